"""Caches the forests of large files, shared by processes.

takes: the bytes of a model file, and a function that reads them; gives: Forest.

Reading a text of many megabytes takes longer than everything else that a later process does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from ..errors import ForestError
from ..forest import Forest
from ..forest.fields import from_fields, to_fields
from ..system.archive import Archive
from ..system.code_cache import MAX_ENTRY_BYTES, digest, digest_sources, find_cache

LARGE = 2**24
"""Size in bytes of the smallest file whose forest is cached.

A smaller file is read about as fast as a cache entry is written, which would be in vain for models
that are retrained often and never read twice.
"""


def read_or_find(data: bytes, name: str, read: Callable[[], Forest]) -> Forest:
    """Return the forest of a file, from the cache if it has been stored there.

    Otherwise the file is read, and its forest stored if it is not too large for the cache. Files
    smaller than `LARGE` are always read.

    Args:
        data: the content of the file.
        name: its path; the suffix, which may decide how it is read, is part of the key.
        read: reads the file; its errors are not caught.
    """
    cache = find_cache() if len(data) >= LARGE else None
    if cache is None:
        return read()
    key = digest("forest", digest_sources(), Path(name).suffix, data)
    kept = cache.read(key)
    if kept is not None:
        with contextlib.suppress(ForestError):
            arrays = {name.removesuffix(".npy"): array for name, array in kept.parts.items()}
            forest = from_fields(kept.manifest["forest"], arrays)
            vars(forest)["identity"] = kept.manifest["identity"]  # it takes long to compute
            return forest
    forest = read()
    with contextlib.suppress(ForestError):  # for labels that JSON cannot store
        values, arrays = to_fields(forest)
        if sum(array.nbytes for array in arrays.values()) <= MAX_ENTRY_BYTES:
            parts = {f"{name}.npy": array for name, array in arrays.items()}
            about = {"forest": values, "identity": forest.identity}
            cache.write(key, Archive(about, parts))
    return forest
