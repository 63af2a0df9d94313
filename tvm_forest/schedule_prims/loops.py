"""Directives that shape the nest: tile, reorder, parallel, unroll.

takes: Schedule; gives: Schedule, and the same step on TVM's schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .directive import (
    Refusal,
    TirLoops,
    check_new_names,
    directive,
    find_loop,
    find_unassigned,
    is_whole,
    name_parts,
    offer_loops,
)
from .nest import Guard, Loop, Share, Stride, make_chain

if TYPE_CHECKING:
    from tvm import s_tir

    from .schedule import Schedule

TILE_SIZES = (4, 8, 16, 32, 64, 128, 256)
"""Sizes of inner loops that a search tries."""
MAX_UNROLLED = 256
"""Largest number of iterations of a loop that `unroll` accepts."""


def _tile_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.loops():
        outer, inner = name_parts(loop, "0", "1")
        for size in TILE_SIZES if not loop.describe() else ():
            if loop.count is None or size < loop.count:
                yield {"index": loop.name, "outer": outer, "inner": inner, "size": size}


def _tile_onto_tir(
    tir: s_tir.Schedule, loops: TirLoops, index: str, size: Any = None, parts: Any = None, **_: str
) -> None:
    """Split the loop; TVM adds the guard as a predicate of the block."""
    extent = getattr(tir.get(loops[index]).extent, "value", None)
    if parts is not None and extent is not None:
        # given the parts, TVM would run them all, even if the last ones are empty
        parts, size = None, -(-extent // parts)
    tir.split(loops[index], [parts, size])


@directive(_tile_choices, onto_tir=_tile_onto_tir)
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
        parts: the number of tiles, instead of `size`; rows are cut into tiles of ceil(n / parts).

    Raises:
        ScheduleError: no such loop, a wrong name or one already taken, an annotated loop, the outer
            loop of tiles that `parts` made of the rows, or a wrong size or number of parts.

    Rewrite:
        for batch in (0, n, 1)   -->   for b0 in (0, n, 64)
          S                              for b1 in (0, 64, 1)    # guard b0 + b1 < n
                                           S
    """
    loop = find_loop(sch, index)
    check_new_names(sch, "choose another name", outer=outer, inner=inner)
    if loop.describe():
        raise Refusal(loop, f"is already {loop.describe()}; tile before annotating")
    stride = _find_stride_of_tiles(loop, size, parts)
    inner_loop = replace(loop, name=inner, start=0, stop=stride, case=None)
    outer_loop = replace(loop, name=outer, step=stride, children=(inner_loop,))
    guards = tuple(_retarget(guard, index, (outer, inner)) for guard in sch.guards)
    if not isinstance(loop.stop, int) or (loop.stop - loop.start) % stride:
        guards = (*guards, Guard((outer, inner), loop.stop))
    replaced = (*sch.replaced, (index, (outer, inner)))
    return replace(sch.with_loop(index, outer_loop), guards=guards, replaced=replaced)


def _find_stride_of_tiles(loop: Loop, size: Any, parts: Any) -> Stride:
    """Check the arguments of `tile`; return the distance from one tile to the next.

    Raises:
        Refusal: an argument is wrong.
    """
    argument, value = ("parts", parts) if size is None else ("size", size)
    if (size is None) == (parts is None):
        raise Refusal("size", "give either 'size' or 'parts'", mark="")
    if not is_whole(value, float("-inf")):
        raise Refusal(argument, f"{value!r} is no integer", mark="")
    if value < 1:
        raise Refusal(argument, f"{value} is not positive", mark="")
    if isinstance(loop.step, Share):
        raise Refusal(loop, f"steps by {loop.step}; tile the loop inside")
    if loop.count is None:
        if parts is None:
            return loop.step * int(value)
        if (loop.start, loop.stop, loop.step) != (0, None, 1):
            raise Refusal("parts", f"'{loop.name}' has not just n iterations; give 'size'")
        return Share(value)
    if value > loop.count:
        what = f"{value} exceeds the {loop.count} iterations of"
        raise Refusal(argument, f"{what} '{loop.name}'; use at most {loop.count}")
    return loop.step * (value if parts is None else -(-loop.count // value))


def _retarget(guard: Guard, old: str, new: tuple[str, ...]) -> Guard:
    """Replace the loop `old` in a guard by the loops that took its place."""
    names = (x for name in guard.loops for x in (new if name == old else (name,)))
    return replace(guard, loops=tuple(names))


def _reorder_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for outer in sch.loops():
        if len(outer.children) == 1:
            yield {"indices": [outer.children[0].name, outer.name]}


def _reorder_onto_tir(tir: s_tir.Schedule, loops: TirLoops, indices: Sequence[str]) -> None:
    tir.reorder(*(loops[name] for name in indices))


@directive(_reorder_choices, onto_tir=_reorder_onto_tir)
def reorder(sch: Schedule, *indices: str) -> Schedule:
    """Put a chain of loops into another order.

    Every order is legal, because the sum over trees commutes; `Schedule.keeps_order` tells whether
    the sums are still rounded as in the model.

    s_tir: reorder.

    Args:
        indices: the loops of one chain, outermost first in their new order. Each but the
            innermost holds exactly one loop.

    Raises:
        ScheduleError: no loop, an unknown, repeated or specialized one, or loops that do not form
            a chain.

    Rewrite:
        for batch          -->   for tree
          for tree                 for batch
            S                        S
    """
    wanted = [find_loop(sch, name, "indices") for name in indices]
    if len(set(indices)) != len(indices):
        raise Refusal("indices", f"{', '.join(indices)} names a loop twice; name each once")
    if not wanted:
        raise Refusal("indices", "name at least one loop")
    special = next((loop.name for loop in wanted if loop.is_specialized), None)
    if special is not None:
        raise Refusal("indices", f"'{special}' is specialized; reorder before that", special)
    chain = [loop for loop in sch.loops() if loop.name in indices]
    for outer, inner in pairwise(chain):
        _check_adjacent(sch, outer, inner)
    new = [replace(loop, case=None) for loop in wanted]
    new[0] = replace(new[0], case=chain[0].case)
    new[-1] = replace(new[-1], children=chain[-1].children)
    return sch.with_loop(chain[0].name, make_chain(new))


def _check_adjacent(sch: Schedule, outer: Loop, inner: Loop) -> None:
    """Refuse two loops unless the second is the only loop directly inside the first."""
    if len(outer.children) > 1:
        inside = ", ".join(f"'{x.name}'" for x in outer.children)
        what = f"'{outer.name}' contains {len(outer.children)} loops ({inside})"
        raise Refusal("indices", f"{what}; reorder inside one of them", outer.name)
    if inner not in outer.children:
        around = [x.name for x in sch.path(inner.name)]
        between = around[around.index(outer.name) + 1] if outer.name in around else None
        gap = f" ('{between}' lies between)" if between else ""
        what = f"'{outer.name}' and '{inner.name}' are not adjacent{gap}"
        raise Refusal("indices", what, inner.name)


@directive(offer_loops(lambda loop: not loop.is_assigned))
def parallel(sch: Schedule, index: str) -> Schedule:
    """Let the iterations of a loop run at the same time on CPU threads.

    Every iteration of a loop over trees gets a partial sum, and these are added after the loop:
    `atomic_reduce` and `vector_reduce` select how. That changes the order of additions, unless
    `ordered_reduce` keeps it. A parallel loop directly inside another is fused with it.

    s_tir: parallel; for a tree loop, which S-TIR refuses, the pass PrivatizeSums.

    Args:
        index: loop to run in parallel.

    Raises:
        ScheduleError: no such loop, one that runs in another way already, a schedule for GPUs, or
            another parallel loop around or inside it, unless one is directly inside the other, and
            the outer one has no `cache`.

    Rewrite:
        for b0 in (0, n, 64)   -->   parallel b0 in (0, n, 64)
          S                            S
    """
    loop = find_unassigned(sch, index)
    if sch.target == "gpu":
        raise Refusal(loop, "cannot use CPU threads on a GPU; use gpu_dimension")
    return sch.with_loop(index, replace(loop, parallel=True))


def _is_small_and_plain(loop: Loop) -> bool:
    return loop.count is not None and loop.count <= 8 and not loop.describe()


@directive(offer_loops(_is_small_and_plain))
def unroll(sch: Schedule, index: str) -> Schedule:
    """Unroll a loop completely.

    s_tir: unroll.

    Args:
        index: loop of at most 256 iterations.

    Raises:
        ScheduleError: no such loop, a symbolic or too large number of iterations, or a loop that
            runs in another way already.

    Rewrite:
        for t1 in (0, 4, 1)   -->   for t1 in (0, 4, 1)    # unroll
          S                           S
    """
    loop = find_unassigned(sch, index)
    if loop.count is None:
        what = f"cannot unroll '{index}' with a symbolic number of iterations"
        raise Refusal("index", f"{what}; tile it and unroll the inner loop")
    if loop.count > MAX_UNROLLED:
        raise Refusal("index", f"{loop.count} iterations exceed {MAX_UNROLLED}; tile first")
    return sch.with_loop(index, replace(loop, unroll=True))
