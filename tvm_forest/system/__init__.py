"""What all rooms need of Python and of the operating system.

Frozen dataclasses that are made fast (`values.py`), modules that are imported at first use
(`late.py`), the cores of this process (`cores.py`), files that are whole or refused (`archive.py`),
the cache on disk (`code_cache.py`), locks that survive a fork (`process/`).
"""
