"""Directives about memory: represent_as, cache.

takes: Schedule; gives: Schedule with a layout, or an annotation that the passes CacheNear, CodeRows
and CacheTrees act on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..layouts import BY_HOPS, FIELD_TYPES, TILED
from ..layouts.protocol import find
from .directive import Refusal, check_word, directive, find_loop

if TYPE_CHECKING:
    from .schedule import Schedule

CACHES = {
    "batch": ("auto", "pack", "prefetch", "shared"),
    "tree": ("auto", "prefetch", "stream", "shared"),
}
"""The values of `cache` by the kind of loop; a search tries those in the middle."""


def _represent_as_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    names = TILED if sch.has_rewrite("tile_nodes") else BY_HOPS
    yield from ({"name": name} for name in names if name != sch.layout)


def _check_known(name: str, **types: str) -> None:
    """Refuse a layout that is not registered in this process, though it may be in another."""
    find(name)


@directive(_represent_as_choices, check_new=_check_known)
def represent_as(
    sch: Schedule, name: str, feature: str | None = None, threshold: str | None = None
) -> Schedule:
    """Choose the memory layout of the model.

    A layout takes the narrowest types that hold the model. Others may be requested where it has a
    choice (`type_choices`); `build` refuses types that cannot hold the model.

    Args:
        name: a layout, see `docs/layouts.md`, or one that is registered, see `docs/new_layout.md`.
        feature: "uint8", "uint16" or "uint32", the type of stored feature numbers.
        threshold: "float32" or "float64", the type of stored thresholds; predictions stay exact.

    Raises:
        ScheduleError: no such layout, or no such type.
    """
    if not isinstance(name, str) or not name:
        raise Refusal("name", f"{name!r} is no name of a layout")
    given = {"feature": feature, "threshold": threshold}
    types = {field: value for field, value in given.items() if value is not None}
    for field, value in types.items():
        check_word(field, value, FIELD_TYPES[field])
    return replace(sch, layout=name, types=tuple(types.items()))


def _cache_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.loops():
        if loop.cache is None and loop.children:
            endless = any(x.stop is None for x in loop.traverse() if x != loop)
            for how in CACHES.get(loop.kind, ())[1:-1]:
                if how == "prefetch" or not endless:
                    yield {"index": loop.name, "how": how}


@directive(_cache_choices)
def cache(sch: Schedule, index: str, how: str = "auto") -> Schedule:
    """Bring the rows or trees of an iteration into a cache before it runs.

    - "pack" copies the rows that the loops inside can reach into a block copy.
    - "prefetch" prefetches the rows, or the first nodes of the tree, of the next iteration.
    - "stream" prefetches all nodes of that tree, in layouts that support it (`TreeAccess.lines`);
      this pays for blocks of rows that touch most of them.
    - "shared" makes a block copy in a GPU's shared memory.
    - "auto" packs rows and prefetches trees on a CPU, and is "shared" on a GPU.

    On a GPU, "pack" means "shared", and nothing is prefetched. A layout with row codes copies the
    codes of a block of rows anyway; "pack" chooses the loop at which this happens. To copy trees on
    a GPU, `build` accepts `layouts.COPIED` only, without tiles.

    Passes: CacheNear, CodeRows; on a GPU also CacheTrees. (`cache_read` and `compute_at` cannot
    follow a nest with copies.)

    Args:
        index: a loop over rows or trees.
        how: "auto", "prefetch" or "shared"; for a loop over rows also "pack", for one over trees
            also "stream".

    Raises:
        ScheduleError: no such loop, a class loop, cached already, another word, an unbounded set of
            rows (unless they are prefetched), an interleaved or simdized loop, or a parallel loop
            around another parallel one.

    Rewrite:
        for b0 in (0, n, 64)   -->   for b0 in (0, n, 64)   # cache pack
          S                            S
    """
    loop = find_loop(sch, index)
    if loop.kind == "class":
        raise Refusal(loop, "has no working set; cache rows or trees")
    check_word("how", how, CACHES[loop.kind])
    if loop.cache is not None:
        raise Refusal(loop, f"already has cache {loop.cache}; leave this step out")
    inside = (x for x in loop.traverse() if x is not loop and x.kind == loop.kind)
    endless = next((x for x in inside if not x.count), None)
    if endless is not None and how != "prefetch":
        raise Refusal(loop, f"holds '{endless.name}' of n iterations; tile it first")
    return sch.with_loop(index, replace(loop, cache=how))
