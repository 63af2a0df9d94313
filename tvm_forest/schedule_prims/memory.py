"""Directives about memory: represent_as, cache.

takes: Schedule; gives: Schedule with a layout, or a mark that the pass CacheNear acts on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .. import layouts
from ..schedule import Schedule
from .directive import directive, find_loop, refuse

HOW = {
    "batch": ("auto", "pack", "prefetch", "shared"),
    "tree": ("auto", "prefetch", "stream", "shared"),
}
LAYOUTS = layouts.BY_HOPS
"""What a search tries without tiles; there may be more, see `tir_gen.representation`."""
COPIED = layouts.COPIED
"""Layouts whose trees a GPU can copy into shared memory, without tiles."""
TILED = layouts.TILED
"""What a search tries with tiles."""
SLICED, LEVELS = layouts.BIT_PLANES, layouts.PERMUTED
WALKED = layouts.SIMDIZED
"""What a search tries with blocks of rows and `simdize(how=...)`, and in no other way."""


def _represent_as_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    tiled = any(step.do == "tile_nodes" for step in sch.rewrites)
    names = TILED if tiled else LAYOUTS
    yield from ({"name": name} for name in names if name != sch.representation)


@directive(choices=_represent_as_choices)
def represent_as(sch: Schedule, name: str) -> Schedule:
    """Choose how the model lies in memory.

    Args:
        name: a layout, see `docs/layouts.md`; `build` knows which there are.

    Raises:
        ScheduleError: no name.
    """
    if not isinstance(name, str) or not name:
        raise refuse(sch, "represent_as", f"argument 'name': {name!r} is no name of a layout")
    return replace(sch, representation=name)


def _cache_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.loops():
        if loop.cache is None and loop.children:
            for how in HOW.get(loop.kind, ())[1:-1]:
                if how == "prefetch" or not any(x.stop is None for x in loop.walk() if x != loop):
                    yield {"index": loop.name, "how": how}


@directive(choices=_cache_choices)
def cache(sch: Schedule, index: str, how: str = "auto") -> Schedule:
    """Bring the rows or trees of an iteration near before it runs.

    "pack" copies the rows that the loops inside can reach into a block of their own; "prefetch"
    asks for the rows or the first nodes of the tree of the next iteration; "stream" asks for all of
    that tree, in layouts that can (`TreeAccess.lines`), which pays for blocks of rows that touch most
    of it; "shared" copies into the shared memory of a GPU; "auto" packs rows and prefetches trees on a CPU, and is
    "shared" on a GPU, where "pack" is so too, and nothing is prefetched. A layout that codes rows
    does so with or without "pack", and always near, so "pack" only says where. For trees
    of a GPU `build` refuses layouts other than `COPIED`, and tiles.

    Passes: CacheNear, CodeRows; on a GPU also cache_trees. (`cache_read` and `compute_at` cannot
    follow a nest with copies.)

    Args:
        index: a loop over rows or trees.
        how: "auto", "pack", "prefetch", "stream" or "shared".

    Raises:
        ScheduleError: no such loop, a class loop, another word, a set of rows without bound, or
            walks of several iterations advance together.

    Rewrite:
        for b0 in (0, n, 64)   -->   for b0 in (0, n, 64)   # cache pack
          S                            S
    """
    loop = find_loop(sch, "cache", "index", index)
    if loop.kind == "class":
        message = f"argument 'index': '{index}' has no working set; cache rows or trees"
        raise refuse(sch, "cache", message, index)
    if how not in HOW[loop.kind]:
        words = ", ".join(HOW[loop.kind])
        raise refuse(sch, "cache", f"argument 'how': {how!r} is unknown; use {words}", index)
    if loop.cache is not None:
        message = f"argument 'index': '{index}' already has cache {loop.cache}; leave this step out"
        raise refuse(sch, "cache", message, index)
    endless = [x.name for x in loop.walk() if x is not loop and x.kind == loop.kind and not x.count]
    if endless and how != "prefetch":
        message = f"argument 'index': '{index}' holds '{endless[0]}' of n iterations; tile it first"
        raise refuse(sch, "cache", message, index)
    return sch.with_loop(index, replace(loop, cache=how))
