"""The nest of a schedule: loops inside loops, and what can be read off them.

takes: nothing; gives: Loop, Guard, and questions about a nest.

A nest is a tree of loops. This one evaluates 5 trees; rows are tiled by 64, and the loop over trees
was split at tree 2, which made a copy of the loop inside for each part:

    for b0 in (0, n, 64)                 b0 = 0, 64, 128, ...
      for d1 in (0, 2, 1)                trees 0, 1
        for b1@d1 in (0, 64, 1)          guard b0 + b1@d1 < n
          out[b0+b1@d1] += walk(d1, b0+b1@d1)
      for d2 in (2, 5, 1)                trees 2, 3, 4
        for b1@d2 in (0, 64, 1)          guard b0 + b1@d2 < n
          out[b0+b1@d2] += walk(d2, b0+b1@d2)

It holds five loops, two of which are leaf loops (`b1@d1` and `b1@d2`, the copies of `b1`), and a
guard for each of these, because the last block of 100 rows has 36 rows only. The row of an
iteration is the sum of the values of the loops over rows around it: b0 = 64, b1@d1 = 3 is row 67.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["batch", "class", "tree"]
OUTPUT_KINDS: tuple[Kind, ...] = ("batch", "class")


@dataclass(frozen=True)
class Share:
    """The symbolic number ceil(n / parts), n being the number of rows."""

    parts: int

    def __str__(self) -> str:
        return f"ceil(n/{self.parts})"


Stride = Any
"""int or Share; code that computes with it has seen before that the loop's `count` is known."""
Bound = Any
"""int, or None for n, the number of rows, or Share; for code that computes with it see `Stride`."""


@dataclass(frozen=True)
class Loop:
    """One index variable: the values start, start + step, ... below stop.

    The row (class, tree) that an iteration works on is the sum of the values of all enclosing
    loops of that kind. What follows `case` are annotations, which directives put on a loop.

    Attributes:
        name: unique in the schedule.
        kind: what the index counts.
        start: first value.
        stop: bound, exclusive; None means n, the number of rows.
        step: distance of two values; a Share where rows were tiled into a number of parts.
        children: loops inside, in order; none for a leaf loop, whose body is one walk.
        case: the one iteration of the specialized loop around it in which this loop runs; None for
            all.
        parallel: whether the iterations may run at the same time on CPU threads.
        unroll: whether the iterations are written out one after the other.
        gpu: dimension of the grid or block that the loop is mapped to, such as "block.x".
        interleave: walks that advance together, 1 for one after the other.
        simdize: how one vector walk does all iterations, "gather", "bits", "permute" or
            "octets"; None if each iteration has a walk of its own.
        hops: hops of the straight lines that replace the walks at or below, a number or "depth";
            None for walks in a loop.
        peel: hops before the loop of the walks at or below, a number or "likely", and whether a
            leaf test follows each of them.
        cache: how the rows or trees of an iteration are brought near, "auto", "pack", "prefetch",
            "stream" or "shared".
        reduce: how the partial sums of a parallel tree loop are added, "atomic", "shared",
            "ordered" or ("vector", width); None for a plain loop.
        cooperate: whether a team of threads of a GPU decides each tile of the walks at or below.
    """

    name: str
    kind: Kind
    start: int
    stop: Bound
    step: Stride
    children: tuple[Loop, ...] = ()
    case: int | None = None
    parallel: bool = False
    unroll: bool = False
    gpu: str | None = None
    interleave: int = 1
    simdize: str | None = None
    hops: int | str | None = None
    peel: tuple[int | str, bool] | None = None
    cache: str | None = None
    reduce: str | tuple[str, int] | None = None
    cooperate: bool = False

    @property
    def count(self) -> int | None:
        """Number of iterations; None if it depends on n."""
        if not (isinstance(self.stop, int) and isinstance(self.step, int)):
            return None
        return max(0, -(-(self.stop - self.start) // self.step))

    @property
    def last(self) -> int | None:
        """The largest value; None if it depends on n."""
        return None if self.count is None else self.start + (self.count - 1) * self.step

    @property
    def range_text(self) -> str:
        """The values as users see them, such as "(0, n, 64)"."""
        return f"({self.start}, {'n' if self.stop is None else self.stop}, {self.step})"

    @property
    def is_specialized(self) -> bool:
        """Whether every iteration has a copy of its own of the loops inside."""
        return any(child.case is not None for child in self.children)

    @property
    def is_assigned(self) -> bool:
        """Whether a directive has said how the iterations run, so that no other may."""
        assigned = self.parallel, self.gpu, self.unroll, self.simdize, self.interleave > 1
        return any(assigned)

    @property
    def is_concurrent(self) -> bool:
        """Whether iterations run at the same time, on CPU threads or on a GPU."""
        return self.parallel or self.gpu is not None

    @property
    def gathers_sums(self) -> bool:
        """Whether what trees inside add at the same time can be gathered while the loop runs.

        A parallel loop, the threads of a block of a GPU, or blocks that share the rows.
        """
        level = (self.gpu or "").partition(".")[0]
        return self.parallel or level == "block" or (level == "grid" and self.kind == "tree")

    def take_iteration(self, iteration: int) -> Loop:
        """Return this loop with one of its iterations only, counted from 0."""
        value = self.start + self.step * iteration
        return replace(self, start=value, stop=value + 1)

    def traverse(self) -> Iterator[Loop]:
        """Yield this loop and all loops inside, outermost first."""
        yield self
        for child in self.children:
            yield from child.traverse()

    def annotations(self) -> list[str]:
        """Return in words what directives said about this loop, but that it is parallel."""
        peeled, checked = self.peel or (0, True)
        strategy = self.reduce if isinstance(self.reduce, tuple) else (self.reduce,)
        words = [
            (self.gpu, f"{self.gpu}"),
            (self.unroll, "unroll"),
            (self.is_specialized, "specialize"),
            (self.interleave > 1, f"interleave {self.interleave}"),
            (self.simdize, f"simdize {self.simdize}"),
            (self.hops is not None, f"unroll_walk {self.hops}"),
            (peeled, f"peel_walk {peeled}" + ("" if checked else " unchecked")),
            (self.cooperate, "cooperate"),
            (self.cache, f"cache {self.cache}"),
            (self.reduce, " ".join(["reduce", *map(str, strategy)])),
        ]
        return [text for holds, text in words if holds]

    def describe(self) -> str:
        """Return in words all that directives said about this loop; "" for a plain loop."""
        return ", ".join([*(["parallel"] if self.parallel else []), *self.annotations()])

    def rename(self, names: dict[str, str]) -> Loop:
        """Return this loop and all loops inside with new names, by the old ones."""
        inside = tuple(child.rename(names) for child in self.children)
        return replace(self, name=names.get(self.name, self.name), children=inside)


@dataclass(frozen=True)
class Guard:
    """A condition on a partial tile: the sum of the loops' values stays below `stop`."""

    loops: tuple[str, ...]
    stop: Bound


@dataclass(frozen=True)
class Problem:
    """What is wrong with a nest.

    Attributes:
        loop: name of the loop that is wrong, whose line is marked; "" for none.
        what: what is wrong, and with which loops.
        advice: what to do.
    """

    loop: str
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}; {self.advice}"


def make_chain(loops: Sequence[Loop]) -> Loop:
    """Put loops, outermost first, into each other; only the innermost keeps what is inside."""
    *around, nest = loops
    for loop in reversed(around):
        nest = replace(loop, children=(nest,))
    return nest


def find_path(loop: Loop, name: str) -> tuple[Loop, ...]:
    """Return the loops from `loop` down to the one of that name, or nothing."""
    if loop.name == name:
        return (loop,)
    below = next(filter(None, (find_path(child, name) for child in loop.children)), ())
    return (loop, *below) if below else ()


def find_paths(loop: Loop) -> list[tuple[Loop, ...]]:
    """Return the loops from `loop` down to each innermost one, in order."""
    if not loop.children:
        return [(loop,)]
    return [(loop, *below) for child in loop.children for below in find_paths(child)]


def replace_loop(loop: Loop, name: str, new: Iterable[Loop]) -> tuple[Loop, ...]:
    """Return `loop`, with the loop of that name inside replaced by others."""
    if loop.name == name:
        return tuple(new)
    inside = [part for x in loop.children for part in replace_loop(x, name, new)]
    return (replace(loop, children=tuple(inside)),)


def list_values(
    path: Sequence[Loop], guards: Iterable[Guard], kind: Kind = "tree"
) -> npt.NDArray[np.int64]:
    """Return all sums of the values of the loops of a kind that guards allow, int64, in order.

    Loops in (0, 5, 2) and (0, 2, 1) with a guard below 5 give 0, 1, 2, 3, 4. Of a specialized loop,
    the one iteration counts in which the next loop of the path runs. All counts must be known.
    """
    cases = (*(inside.case for inside in path[1:]), None)
    runs = (x if i is None else x.take_iteration(i) for x, i in zip(path, cases, strict=True))
    loops = [loop for loop in runs if loop.kind == kind]
    if not loops:
        return np.zeros(1, np.int64)
    grid = np.meshgrid(*(np.arange(x.start, x.stop, x.step) for x in loops), indexing="ij")
    values = {loop.name: numbers.ravel() for loop, numbers in zip(loops, grid, strict=True)}
    allowed = np.ones(grid[0].size, bool)
    for guard in guards:
        if values.keys() >= set(guard.loops) and isinstance(guard.stop, int):
            allowed &= sum(values[name] for name in guard.loops) < guard.stop
    return np.sum(list(values.values()), axis=0)[allowed]


def find_leaf_loops(loop: Loop, vectors: bool) -> tuple[Loop, ...]:
    """Return the leaf loops here and inside, in order: those whose body is one walk.

    A loop without loops inside is one. With `vectors`, a walk finds a value for each class, so a
    loop that holds nothing but loops over classes, which are done after the walk, is one as well.
    """
    outputs_only = vectors and not loop.is_specialized and all(map(_is_output_loop, loop.children))
    if not loop.children or outputs_only:
        return (loop,)
    return tuple(leaf for child in loop.children for leaf in find_leaf_loops(child, vectors))


def _is_output_loop(loop: Loop) -> bool:
    plain = loop.kind == "class" and not (loop.parallel or loop.gpu)
    return plain and all(map(_is_output_loop, loop.children))


def list_problems(
    path: tuple[Loop, ...], wanted: set[str], vectors: bool = False
) -> Iterator[Problem]:
    """Yield what is wrong with the path to one innermost loop.

    Args:
        path: the loops from the outermost one down to the innermost one.
        wanted: kinds of loops that there must be.
        vectors: see `find_leaf_loops`.
    """
    leaf, kinds = path[-1], {loop.kind for loop in path}
    if kinds != wanted:
        what = f"the loops around '{leaf.name}' run over {', '.join(sorted(kinds))} only"
        yield Problem(leaf.name, what, f"keep loops over {', '.join(sorted(wanted))}")
    for loop in path[:-1]:
        if (loop.interleave > 1 or loop.simdize) and find_leaf_loops(loop, vectors) != (loop,):
            done = "interleaved" if loop.interleave > 1 else "simdized"
            what = f"'{loop.name}' is {done} but contains '{loop.children[0].name}'"
            yield Problem(loop.name, what, "leave it innermost")
    yield from _list_cache_problems(path)
    yield from _list_parallel_problems(path)
    yield from _list_gpu_problems([loop for loop in path if loop.gpu])


def _list_cache_problems(path: tuple[Loop, ...]) -> Iterator[Problem]:
    for i, loop in enumerate(path):
        cached = f"'{loop.name}' has cache {loop.cache}"
        if loop.cache and (loop.interleave > 1 or loop.simdize):
            what = f"{cached}, one iteration at a time, but its walks advance together"
            yield Problem(loop.name, what, "tile it, and cache the outer loop")
        for inside in path[i + 1 :] if loop.cache not in (None, "prefetch") else ():
            if inside.kind == loop.kind and inside.count is None:
                what = f"{cached} but holds '{inside.name}' of n iterations"
                yield Problem(loop.name, what, "tile it first")


def _list_parallel_problems(path: tuple[Loop, ...]) -> Iterator[Problem]:
    parallel = [loop for loop in path if loop.parallel]
    for outer, inner in pairwise(parallel):
        if outer.cache:
            what = f"'{outer.name}' has cache {outer.cache} and holds parallel '{inner.name}'"
            yield Problem(outer.name, what, "cache another loop, for these two become one")
        if outer.children != (inner,) or outer.is_specialized:
            between = path[path.index(outer) + 1].name
            gap = f"with '{between}' between them" if between != inner.name else "beside others"
            what = f"'{inner.name}' lies inside parallel '{outer.name}' {gap}"
            yield Problem(inner.name, what, "make them adjacent, so that they can be fused")
    for loop in parallel:
        if loop.gpu:
            what = f"'{loop.name}' is parallel and mapped to {loop.gpu}"
            yield Problem(loop.name, what, "choose one of them")


def _list_gpu_problems(mapped: list[Loop]) -> Iterator[Problem]:
    for first, second in combinations(mapped, 2):
        if first.gpu == second.gpu:
            what = f"'{first.name}' and '{second.name}' inside it are both mapped to {first.gpu}"
            yield Problem(second.name, what, "choose another dimension")
    for loop in mapped:
        width = loop.reduce[1] if isinstance(loop.reduce, tuple) else 1
        if width > 1 and loop.is_specialized:
            what = f"'{loop.name}' adds up with vectors, but its iterations have loops of their own"
            yield Problem(loop.name, what, "choose one of them")
        if width > 1 and (loop.count is None or loop.count % width):
            what = f"'{loop.name}' adds up {width} threads at a time, but has {loop.count}"
            yield Problem(loop.name, what, "split it at a multiple of these")
    for outer, inner in combinations(mapped, 2):
        if str(outer.gpu).startswith("block") and str(inner.gpu).startswith("grid"):
            what = f"grid index '{inner.name}' lies inside block index '{outer.name}'"
            yield Problem(inner.name, what, "reorder them")
