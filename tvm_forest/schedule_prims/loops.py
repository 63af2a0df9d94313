"""Directives that shape the nest: tile, reorder, parallel.

takes: Schedule; gives: Schedule, and the same step on TVM's schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ..schedule import Guard, Loop, Schedule
from .directive import Nest, check_new_name, directive, find_loop, refuse

TILE_SIZES = (4, 8, 16, 32, 64, 128, 256)


def _tile_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.loops():
        if loop.parallel or loop.interleave > 1:
            continue
        for size in TILE_SIZES:
            if loop.count is None or size < loop.count:
                names = {"outer": f"{loop.name}0", "inner": f"{loop.name}1"}
                yield {"index": loop.name, **names, "size": size}


@directive(choices=_tile_choices)
def tile(
    sch: Schedule,
    index: str,
    outer: str,
    inner: str,
    size: int | None = None,
    parts: int | None = None,
) -> Schedule:
    """Replace one loop by an outer loop and an inner loop of `size` iterations.

    The value of `index` becomes the sum of both. Any step may be tiled: the inner loop keeps it,
    so a parallel inner loop gives each worker every size-th iteration.

    s_tir: split. Costs a guard if the size does not divide the count, or the count is not known.

    Args:
        index: loop to tile.
        outer, inner: names of the two loops that take its place.
        size: iterations of the inner loop, >= 1 and at most those of `index`.
        parts: instead of `size`, iterations of the outer loop; the count must be known.

    Raises:
        ScheduleError: no such loop, a name already taken, an annotated loop, or a wrong size.

    Rewrite:
        for batch in (0, n, 1)   -->   for b0 in (0, n, 64)
          S                              for b1 in (0, 64, 1)    # guard b0 + b1 < n
                                           S
    """
    loop = find_loop(sch, "tile", "index", index)
    check_new_name(sch, "tile", "outer", outer)
    check_new_name(sch, "tile", "inner", inner)
    if outer == inner:
        raise refuse(
            sch, "tile", f"argument 'inner': '{inner}' is also 'outer'; choose another name"
        )
    if loop.parallel or loop.interleave > 1:
        what = "parallel" if loop.parallel else "interleaved"
        message = f"argument 'index': '{index}' is already {what}; tile before annotating"
        raise refuse(sch, "tile", message, index)
    size = _tile_size(sch, loop, size, parts)
    span = loop.step * size
    inner_loop = replace(loop, name=inner, start=0, stop=span)
    outer_loop = replace(loop, name=outer, step=span, children=(inner_loop,))
    guards = _retarget_guards(sch.guards, index, (outer, inner))
    whole = loop.stop is not None and (loop.stop - loop.start) % span == 0
    if not whole:
        guards = (*guards, Guard((outer, inner), loop.stop))
    replaced = (*sch.replaced, (index, (outer, inner)))
    return replace(sch.with_loop(index, outer_loop), guards=guards, replaced=replaced)


def _tile_size(sch: Schedule, loop: Loop, size: Any, parts: Any) -> int:
    argument, value = ("parts", parts) if size is None else ("size", size)
    if (size is None) == (parts is None):
        raise refuse(sch, "tile", "argument 'size': give either 'size' or 'parts'")
    if not isinstance(value, int) or isinstance(value, bool):
        raise refuse(sch, "tile", f"argument '{argument}': {value!r} is no integer")
    if value < 1:
        raise refuse(sch, "tile", f"argument '{argument}': {value} is not positive")
    if loop.count is None:
        if parts is not None:
            message = f"argument 'parts': '{loop.name}' has n iterations; give 'size' instead"
            raise refuse(sch, "tile", message, loop.name)
        return value
    if value > loop.count:
        message = (
            f"argument '{argument}': {value} exceeds the {loop.count} iterations of "
            f"'{loop.name}'; use at most {loop.count}"
        )
        raise refuse(sch, "tile", message, loop.name)
    return value if parts is None else -(-loop.count // value)


def _retarget_guards(
    guards: tuple[Guard, ...], old: str, new: tuple[str, ...]
) -> tuple[Guard, ...]:
    """Name the loops that took the place of `old` in every guard."""

    def names(guard: Guard) -> tuple[str, ...]:
        return tuple(x for name in guard.loops for x in (new if name == old else (name,)))

    return tuple(replace(guard, loops=names(guard)) for guard in guards)


@tile.onto_tir
def tile_onto_tir(
    nest: Nest,
    index: str,
    outer: str,
    inner: str,
    size: int | None = None,
    parts: int | None = None,
) -> None:
    """Split the loop; TVM adds the guard as a predicate of the block."""
    loop = nest.loops.pop(index)
    count = getattr(nest.tir.get(loop).extent, "value", None)
    if parts is not None and count is not None:
        # given the parts, TVM would run them all, even if the last ones are empty
        size, parts = -(-count // parts), None
    outer_loop, inner_loop = nest.tir.split(loop, [parts, size])
    nest.loops |= {outer: outer_loop, inner: inner_loop}


def _reorder_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for outer in sch.loops():
        if len(outer.children) == 1:
            yield {"indices": [outer.children[0].name, outer.name]}


@directive(choices=_reorder_choices)
def reorder(sch: Schedule, *indices: str) -> Schedule:
    """Put a chain of loops into another order.

    Every order is legal, because the sum over trees commutes; `Schedule.keeps_order` tells
    whether its rounding is still that of the model.

    s_tir: reorder.

    Args:
        indices: the loops of one chain, outermost first in their new order. Each but the
            innermost holds exactly one loop.

    Raises:
        ScheduleError: an unknown or repeated loop, or loops that do not form a chain.

    Rewrite:
        for batch          -->   for tree
          for tree                 for batch
            S                        S
    """
    wanted = [find_loop(sch, "reorder", "indices", name) for name in indices]
    if len(set(indices)) != len(indices):
        message = f"argument 'indices': {', '.join(indices)} names a loop twice; name each once"
        raise refuse(sch, "reorder", message)
    if not wanted:
        raise refuse(sch, "reorder", "argument 'indices': name at least one loop")
    chain = _chain(sch, [loop.name for loop in wanted])
    children = chain[-1].children
    for loop in reversed(wanted):
        children = (replace(loop, children=children),)
    return sch.with_loop(chain[0].name, children[0])


def _chain(sch: Schedule, names: list[str]) -> list[Loop]:
    """Return the loops in their present order, or refuse if they are no chain."""
    order = [loop for loop in sch.loops() if loop.name in names]
    for outer, inner in pairwise(order):
        if len(outer.children) > 1:
            inside = ", ".join(f"'{x.name}'" for x in outer.children)
            message = (
                f"argument 'indices': '{outer.name}' contains {len(outer.children)} loops "
                f"({inside}); reorder inside one of them"
            )
            raise refuse(sch, "reorder", message, outer.name)
        between = [x.name for x in sch.path(inner.name)]
        between = between[between.index(outer.name) + 1 : -1] if outer.name in between else [""]
        if between:
            gap = f" ('{between[0]}' lies between)" if between[0] else ""
            message = f"argument 'indices': '{outer.name}' and '{inner.name}' are not adjacent{gap}"
            raise refuse(sch, "reorder", message, inner.name)
    return order


@reorder.onto_tir
def reorder_onto_tir(nest: Nest, indices: Sequence[str]) -> None:
    """Reorder the loops."""
    nest.tir.reorder(*(nest.loops[name] for name in indices))


def _parallel_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    if not any(loop.parallel for loop in sch.loops()):
        yield from ({"index": loop.name} for loop in sch.loops()[:1] if loop.kind == "batch")


@directive(choices=_parallel_choices)
def parallel(sch: Schedule, index: str) -> Schedule:
    """Let the iterations of a loop over rows or classes run at the same time on CPU threads.

    s_tir: parallel.

    Args:
        index: loop to run in parallel. Only one loop on a path can be.

    Raises:
        ScheduleError: no such loop, a loop over trees, or a parallel loop around or inside it.

    Rewrite:
        for b0 in (0, n, 64)   -->   parallel b0 in (0, n, 64)
          S                            S
    """
    loop = find_loop(sch, "parallel", "index", index)
    if loop.kind == "tree":
        message = (
            f"argument 'index': '{index}' runs over trees, whose partial sums cannot be kept "
            "apart yet; run a loop over rows in parallel"
        )
        raise refuse(sch, "parallel", message, index)
    others = [x.name for x in (*sch.path(index)[:-1], *loop.walk()) if x.parallel]
    if others:
        message = f"argument 'index': '{others[0]}' is already parallel around or inside '{index}'"
        raise refuse(sch, "parallel", f"{message}; leave one of them serial", index)
    return sch.with_loop(index, replace(loop, parallel=True))


@parallel.onto_tir
def parallel_onto_tir(nest: Nest, index: str) -> None:
    """Mark the loop."""
    nest.tir.parallel(nest.loops[index])
