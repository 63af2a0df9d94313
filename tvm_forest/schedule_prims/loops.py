"""Directives that shape the nest: tile, reorder, parallel.

takes: Schedule; gives: Schedule, and the same step on TVM's schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ..nest import Guard, Loop, Share, Step
from ..schedule import Schedule
from .directive import Nest, check_new_name, directive, find_loop, refuse

TILE_SIZES = (4, 8, 16, 32, 64, 128, 256)


def _tile_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.loops():
        if said_of(loop):
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
        parts: instead of `size`, into how many tiles; rows into tiles of ceil(n / parts).

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
    if said_of(loop):
        message = f"argument 'index': '{index}' is already {said_of(loop)}; tile before annotating"
        raise refuse(sch, "tile", message, index)
    span = _tile_span(sch, loop, size, parts)
    inner_loop = replace(loop, name=inner, start=0, stop=span, case=None)
    outer_loop = replace(loop, name=outer, step=span, children=(inner_loop,))
    guards = _retarget_guards(sch.guards, index, (outer, inner))
    constant = isinstance(loop.stop, int) and isinstance(span, int)
    if not constant or (loop.stop - loop.start) % span:
        guards = (*guards, Guard((outer, inner), loop.stop))
    replaced = (*sch.replaced, (index, (outer, inner)))
    return replace(sch.with_loop(index, outer_loop), guards=guards, replaced=replaced)


def said_of(loop: Loop) -> str:
    """Return what directives have said about a loop, or nothing."""
    return ", ".join([*(["parallel"] if loop.parallel else []), *loop.marks()])


def _tile_span(sch: Schedule, loop: Loop, size: Any, parts: Any) -> Step:
    """Return the distance of two tiles, after checking what was asked for."""
    argument, value = ("parts", parts) if size is None else ("size", size)
    if (size is None) == (parts is None):
        raise refuse(sch, "tile", "argument 'size': give either 'size' or 'parts'")
    if not isinstance(value, int) or isinstance(value, bool):
        raise refuse(sch, "tile", f"argument '{argument}': {value!r} is no integer")
    if value < 1:
        raise refuse(sch, "tile", f"argument '{argument}': {value} is not positive")
    if isinstance(loop.step, Share):
        message = f"argument 'index': '{loop.name}' steps by {loop.step}; tile the loop inside"
        raise refuse(sch, "tile", message, loop.name)
    if loop.count is None:
        if parts is None:
            return loop.step * int(value)
        if (loop.start, loop.stop, loop.step) != (0, None, 1):
            message = f"argument 'parts': '{loop.name}' has not just n iterations; give 'size'"
            raise refuse(sch, "tile", message, loop.name)
        return Share(value)
    if value > loop.count:
        message = (
            f"argument '{argument}': {value} exceeds the {loop.count} iterations of "
            f"'{loop.name}'; use at most {loop.count}"
        )
        raise refuse(sch, "tile", message, loop.name)
    return loop.step * (value if parts is None else -(-loop.count // value))


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
    loop = nest.loops[index]
    extent = getattr(nest.tir.get(loop).extent, "value", None)
    if parts is not None and extent is not None:
        # given the parts, TVM would run them all, even if the last ones are empty
        parts, size = None, -(-extent // parts)
    outer_loop, inner_loop = nest.tir.split(loop, [parts, size])
    nest.replace(index, {outer: outer_loop, inner: inner_loop})


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
    special = next((loop.name for loop in wanted if loop.special), None)
    if special is not None:
        message = f"argument 'indices': '{special}' is specialized; reorder before that"
        raise refuse(sch, "reorder", message, special)
    chain = _chain(sch, [loop.name for loop in wanted])
    children = chain[-1].children
    for loop in reversed(wanted):
        children = (replace(loop, children=children, case=None),)
    return sch.with_loop(chain[0].name, replace(children[0], case=chain[0].case))


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
    places = sorted(nest.order.index(name) for name in indices)
    for place, name in zip(places, indices, strict=True):
        nest.order[place] = name


def _parallel_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.loops():
        if not loop.parallel and not _taken(loop):
            yield {"index": loop.name}


def _taken(loop: Loop) -> bool:
    """Whether the iterations of a loop are spoken for."""
    return bool(loop.gpu or loop.unroll or loop.simdize or loop.interleave > 1)


@directive(choices=_parallel_choices)
def parallel(sch: Schedule, index: str) -> Schedule:
    """Let the iterations of a loop run at the same time on CPU threads.

    A loop over trees gets partial sums of its own for every iteration, which are added up behind
    it: `atomic_reduce` and `vector_reduce` say how. That changes the order of additions. A parallel
    loop right inside another is fused with it.

    s_tir: parallel; for a tree loop, which S-TIR refuses, the pass PrivatizeSums.

    Args:
        index: loop to run in parallel.

    Raises:
        ScheduleError: no such loop, mapped to a GPU, or loops between it and another parallel one.

    Rewrite:
        for b0 in (0, n, 64)   -->   parallel b0 in (0, n, 64)
          S                            S
    """
    loop = find_loop(sch, "parallel", "index", index)
    if sch.target == "gpu":
        message = f"argument 'index': '{index}' cannot use CPU threads on a GPU; use gpu_dimension"
        raise refuse(sch, "parallel", message, index)
    if loop.parallel:
        message = f"argument 'index': '{index}' is already parallel; leave this step out"
        raise refuse(sch, "parallel", message, index)
    if _taken(loop):
        message = f"argument 'index': '{index}' is already {said_of(loop)}; tile it before that"
        raise refuse(sch, "parallel", message, index)
    return sch.with_loop(index, replace(loop, parallel=True))


@parallel.onto_tir
def parallel_onto_tir(nest: Nest, index: str) -> None:
    """Mark a loop over rows or classes; S-TIR refuses one over trees."""
    if not nest.is_reduction(index):
        nest.tir.parallel(nest.loops[index])


MOST_UNROLLED = 256


def _unroll_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.loops():
        if loop.count is not None and loop.count <= 8 and not said_of(loop):
            yield {"index": loop.name}


@directive(choices=_unroll_choices)
def unroll(sch: Schedule, index: str) -> Schedule:
    """Write out all iterations of a loop one after the other.

    s_tir: unroll.

    Args:
        index: loop of at most 256 iterations.

    Raises:
        ScheduleError: no such loop, a symbolic or too large number of iterations, or a loop that
            is parallel or annotated otherwise.

    Rewrite:
        for t1 in (0, 4, 1)   -->   for t1 in (0, 4, 1)    # unroll
          S                           S
    """
    loop = find_loop(sch, "unroll", "index", index)
    if loop.count is None:
        message = f"argument 'index': cannot unroll '{index}' with a symbolic number of iterations"
        raise refuse(sch, "unroll", f"{message}; tile it and unroll the inner loop", index)
    if loop.count > MOST_UNROLLED:
        message = f"argument 'index': {loop.count} iterations exceed {MOST_UNROLLED}; tile first"
        raise refuse(sch, "unroll", message, index)
    if loop.parallel or loop.special or _taken(loop):
        message = f"argument 'index': '{index}' is already {said_of(loop)}; choose another loop"
        raise refuse(sch, "unroll", message, index)
    return sch.with_loop(index, replace(loop, unroll=True))


@unroll.onto_tir
def unroll_onto_tir(nest: Nest, index: str) -> None:
    """Mark the loop."""
    nest.tir.unroll(nest.loops[index])
