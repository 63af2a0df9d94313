"""Threads, locks and temporary files of a process that may be interrupted, forked or ended.

takes: nothing; gives: see each file.
"""
