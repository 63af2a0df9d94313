"""Threads, locks and temporary files of a process that may be interrupted, forked or ended.

takes: nothing of the package but its errors; gives: see each file.
"""
