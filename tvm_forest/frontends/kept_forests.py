"""Caches the forests of large files, shared by processes.

takes: the bytes of a model file, and what reads them; gives: Forest.

Reading a text of many megabytes takes longer than all else that a later process does.
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
"""Bytes of a file from which on its forest is kept: smaller ones are read about as fast as the
cache is written, and a model that is trained again and again is never read twice."""


def read_or_find(data: bytes, name: str, read: Callable[[], Forest]) -> Forest:
    """Return the forest of a file, from the cache if an earlier process has left it there.

    Args:
        data: the file.
        name: its path, whose suffix may say how it is to be read.
        read: reads it; what this raises is not caught.
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
            vars(forest)["identity"] = kept.manifest["identity"]  # which takes long to compute
            return forest
    forest = read()
    with contextlib.suppress(ForestError):  # labels that JSON cannot say
        values, arrays = to_fields(forest)
        if sum(array.nbytes for array in arrays.values()) <= MAX_ENTRY_BYTES:
            parts = {f"{name}.npy": array for name, array in arrays.items()}
            about = {"forest": values, "identity": forest.identity}
            cache.write(key, Archive(about, parts))
    return forest
