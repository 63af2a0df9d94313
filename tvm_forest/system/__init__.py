"""Helpers around Python and the operating system, for all rooms of the package.

Frozen dataclasses that are defined fast (`values.py`), modules that are imported at first use
(`late.py`), the cores of this process (`cores.py`), files with a checksum (`archive.py`), the cache
on disk (`code_cache.py`), locks that are free in a forked process (`process/`).
"""
