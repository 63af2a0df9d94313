"""The command `cache`: shows or clears the cache of compiled code."""

from __future__ import annotations

import argparse

from ..system.code_cache import MAX_BYTES, VARIABLE, find_cache


def run(options: argparse.Namespace) -> None:
    """Print where the cache lies and what it holds, or clear it."""
    cache = find_cache()
    if cache is None:
        return print(f"the cache is off; {VARIABLE} names its folder")
    count, size = cache.clear() if options.clear else cache.contents()
    print(f"folder: {cache.folder}")
    print(f"{'removed' if options.clear else 'entries'}: {count}, {size / 2**20:.1f} MiB")
    if not options.clear:
        print(f"at most: {MAX_BYTES / 2**20:.0f} MiB, then those go that were used least recently")
    fault = cache.find_fault()
    if fault is not None:
        print(f"not used: it {fault[0]}; {fault[1]}")
