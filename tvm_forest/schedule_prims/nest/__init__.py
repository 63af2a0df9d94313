"""The loop nest of a schedule, and queries about it.

takes: nothing; gives: Loop, Guard, Nest, and functions that query a nest.

A nest is a tree of loops. This one evaluates 5 trees; rows are tiled by 64, and the loop over trees
was split at tree 2, which made a copy of the loop inside for each part:

    for b0 in (0, n, 64)                 b0 = 0, 64, 128, ...
      for d1 in (0, 2, 1)                trees 0, 1
        for b1@d1 in (0, 64, 1)          guard b0 + b1@d1 < n
          out[b0+b1@d1] += walk(d1, b0+b1@d1)
      for d2 in (2, 5, 1)                trees 2, 3, 4
        for b1@d2 in (0, 64, 1)          guard b0 + b1@d2 < n
          out[b0+b1@d2] += walk(d2, b0+b1@d2)

Its leaf loops, `b1@d1` and `b1@d2`, are copies of `b1`; they have guards because, for example, 100
rows end in a block of 36. The row of an iteration is the sum of the row loops around it: b0 = 64
and b1@d1 = 3 are row 67.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...system.values import dataclass, field, replace

Kind = Literal["batch", "class", "tree"]
OUTPUT_KINDS: tuple[Kind, ...] = ("batch", "class")


@dataclass(frozen=True)
class Share:
    """The symbolic number ceil(n / parts), n being the number of rows."""

    parts: int

    def __str__(self) -> str:
        return f"ceil(n/{self.parts})"


Stride = Any
"""An int or Share; code that computes with it has checked that the loop's `count` is known."""
Bound = Any
"""An int, None for n, the number of rows, or a Share; for arithmetic see `Stride`."""


@dataclass(frozen=True)
class Loop:
    """A loop; its index takes the values start, start + step, ... below stop.

    The row (class, tree) that an iteration works on is the sum of the values of all enclosing loops
    of that kind. The attributes after `case` are annotations, which directives set.

    Attributes:
        name: unique in the schedule.
        kind: what the index counts: rows ("batch"), outputs ("class") or rounds of trees ("tree").
        start: first value.
        stop: bound, exclusive; None means n, the number of rows.
        step: distance between two values; a Share where rows were tiled into a number of parts.
        children: loops inside, in order; none for an innermost loop.
        case: the iteration of the enclosing specialized loop in which this loop runs; None for all
            iterations.
        parallel: whether the iterations may run at the same time on CPU threads.
        unroll: whether the loop is unrolled.
        gpu: dimension of the grid or block that the loop is mapped to, such as "block.x".
        interleave: walks that advance together, 1 for one after the other.
        simdize: how one vector walk does all iterations, such as "gather"; None for scalar walks.
        hops: hops of the unrolled walks at or below, a number or "depth"; None for walks in a loop.
        peel: hops peeled off the walks at or below, a number or "likely".
        check: whether a leaf test follows each peeled hop.
        cache: how the rows or trees of an iteration are cached, "auto", "pack", "prefetch",
            "stream" or "shared".
        reduce: how the partial sums of a parallel tree loop are added, "atomic", "shared",
            "ordered" or "vector"; None for a plain loop.
        width: vector width for adding partial sums.
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
    peel: int | str | None = None
    check: bool = True
    cache: str | None = None
    reduce: str | None = None
    width: int = 1
    cooperate: bool = False

    @property
    def count(self) -> int | None:
        """Number of iterations; None if it depends on n."""
        if not (isinstance(self.stop, int) and isinstance(self.step, int)):
            return None
        return max(0, -(-(self.stop - self.start) // self.step))

    @property
    def last(self) -> int | None:
        """The largest value of the index; None if it depends on n."""
        return None if self.count is None else self.start + (self.count - 1) * self.step

    @property
    def range_text(self) -> str:
        """The range as text, such as "(0, n, 64)"."""
        return f"({self.start}, {'n' if self.stop is None else self.stop}, {self.step})"

    @property
    def is_specialized(self) -> bool:
        """Whether every iteration has its own copy of the loops inside."""
        return any(child.case is not None for child in self.children)

    @property
    def is_assigned(self) -> bool:
        """Whether a directive has set how the iterations run; a second one is refused."""
        assigned = self.parallel, self.gpu, self.unroll, self.simdize, self.interleave > 1
        return any(assigned)

    @property
    def is_walked_alike(self) -> bool:
        """Whether `simdize` selects code that is the same for trees of all shapes."""
        return self.simdize not in (None, "gather")

    @property
    def is_concurrent(self) -> bool:
        """Whether iterations run at the same time, on CPU threads or on a GPU."""
        return self.parallel or self.gpu is not None

    @property
    def gathers_sums(self) -> bool:
        """Whether additions of concurrent trees inside can be gathered while the loop runs.

        True for a parallel loop, threads of a GPU block, and blocks that share the rows.
        """
        level = (self.gpu or "").partition(".")[0]
        return self.parallel or level == "block" or (level == "grid" and self.kind == "tree")

    def take_iteration(self, iteration: int) -> Loop:
        """Return this loop restricted to one iteration, counted from 0."""
        value = self.start + self.step * iteration
        return replace(self, start=value, stop=value + 1)

    def traverse(self) -> Iterator[Loop]:
        """Yield this loop and all loops inside, outermost first."""
        yield self
        for child in self.children:
            yield from child.traverse()

    def annotations(self) -> list[str]:
        """Return the loop's annotations as words, except "parallel"."""
        words = [
            (self.gpu, f"{self.gpu}"),
            (self.unroll, "unroll"),
            (self.is_specialized, "specialize"),
            (self.interleave > 1, f"interleave {self.interleave}"),
            (self.simdize, f"simdize {self.simdize}"),
            (self.hops is not None, f"unroll_walk {self.hops}"),
            (self.peel, f"peel_walk {self.peel}" + " unchecked" * (not self.check)),
            (self.cooperate, "cooperate"),
            (self.cache, f"cache {self.cache}"),
            (self.reduce, f"reduce {self.reduce}" + f" {self.width}" * (self.reduce == "vector")),
        ]
        return [text for holds, text in words if holds]

    def describe(self) -> str:
        """Return all annotations of the loop as text; "" for a plain loop."""
        return ", ".join([*(["parallel"] if self.parallel else []), *self.annotations()])

    def rename(self, names: dict[str, str]) -> Loop:
        """Rename this loop and all loops inside; `names` maps old names to new ones."""
        inside = tuple(child.rename(names) for child in self.children)
        return replace(self, name=names.get(self.name, self.name), children=inside)


@dataclass(frozen=True)
class Guard:
    """A condition on a partial tile: the sum of the loops' values stays below `stop`."""

    loops: tuple[str, ...]
    stop: Bound


def make_chain(loops: Sequence[Loop]) -> Loop:
    """Nest loops, outermost first; only the innermost keeps its children."""
    *around, nest = loops
    for loop in reversed(around):
        nest = replace(loop, children=(nest,))
    return nest


def find_path(loop: Loop, name: str) -> tuple[Loop, ...]:
    """Return the loops from `loop` down to the loop called `name`; empty if there is none."""
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
    """Return what `loop` becomes if the loops `new` replace the loop `name`, itself or inside."""
    if loop.name == name:
        return tuple(new)
    inside = [part for x in loop.children for part in replace_loop(x, name, new)]
    return (replace(loop, children=tuple(inside)),)


def list_values(
    path: Sequence[Loop], guards: Iterable[Guard], kind: Kind = "tree"
) -> npt.NDArray[np.int64]:
    """Return the sums of the values of a kind's loops on a path that guards allow, int64, in order.

    Loops in (0, 5, 2) and (0, 2, 1) with a guard below 5 give 0, 1, 2, 3, 4. A specialized loop has
    only the value for which the next loop of the path runs. All numbers of iterations are known.
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

    A loop without children is one. With `vectors`, a walk finds a value for each class, so a loop
    that contains only loops over classes, which run after the walk, is one as well.
    """
    outputs_only = vectors and not loop.is_specialized and all(map(_is_output_loop, loop.children))
    if not loop.children or outputs_only:
        return (loop,)
    return tuple(leaf for child in loop.children for leaf in find_leaf_loops(child, vectors))


def _is_output_loop(loop: Loop) -> bool:
    plain = loop.kind == "class" and not (loop.parallel or loop.gpu)
    return plain and all(map(_is_output_loop, loop.children))


@dataclass(frozen=True, eq=False)
class Nest:
    """The loops around the walks of a model.

    Attributes:
        trees: number of trees, all classes together.
        classes: number of outputs; with more than one, there is a loop over them.
        vectors: whether leaves hold a value for each class, so that a tree serves all classes.
        layout: name of the layout of the model.
        nest: the outermost loops, inside an invisible loop of one iteration.
        guards: conditions of partial tiles.
        replaced: names of replaced loops, with the names of the loops in their place.
    """

    trees: int
    classes: int = 1
    vectors: bool = field(default=False, kw_only=True)
    layout: str = field(default="", kw_only=True)
    nest: Loop = field(default=None, kw_only=True)  # type: ignore[assignment]
    guards: tuple[Guard, ...] = field(default=(), kw_only=True)
    replaced: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), kw_only=True)

    @property
    def round_size(self) -> int:
        """Number of trees in a round, which adds to every class once."""
        return 1 if self.vectors else self.classes

    def runs_over_rounds(self, loop: Loop) -> bool:
        """Return whether a loop is over all rounds, and code may read their number at run time."""
        of_rows = loop.simdize not in (None, "octets", "pieces")
        if loop.kind != "tree" or of_rows or loop.is_specialized:
            return False
        told = ("children", "interleave", "simdize", "hops", "peel", "check", "cache")
        bare = replace(loop, **{name: getattr(Loop, name) for name in told})
        guarded = any(loop.name in guard.loops for guard in self.guards)
        shared = any(x.gpu or (x.parallel and x.kind == "tree") for x in self.loops())
        whole = Loop(loop.name, "tree", 0, -(-self.trees // self.round_size), 1)
        return bare == whole and not (guarded or shared)

    def loops(self) -> tuple[Loop, ...]:
        """Return all loops of the nest, outermost first; replaced ones are not among them."""
        return tuple(self.nest.traverse())[1:]

    def names(self) -> tuple[str, ...]:
        """Return the names of all loops of the nest, outermost first."""
        return tuple(loop.name for loop in self.loops())

    def __getitem__(self, name: str) -> Loop:
        """Return the loop of that name.

        Raises:
            KeyError: no loop of the nest has that name; it may have been replaced.
        """
        return {loop.name: loop for loop in self.loops()}[name]

    def path(self, name: str) -> tuple[Loop, ...]:
        """Return the loops from the outermost one down to the loop `name`; () if there is none."""
        return find_path(self.nest, name)[1:]

    def leaves(self) -> tuple[Loop, ...]:
        """Return the leaf loops, whose body is one walk, in order; see `vectors`."""
        return tuple(x for loop in self.nest.children for x in find_leaf_loops(loop, self.vectors))

    def copies(self, name: str) -> tuple[str, ...]:
        """Return the names of the loops that a loop has become, its own if it is still there.

        After `tile("batch", "b0", "b1", 64)` and `split("tree", "d1", "d2", 4)` around `b1`, those
        of "batch" are `b0`, `b1@d1` and `b1@d2`.
        """
        family, replaced = [name], dict(self.replaced)
        for member in family:
            family += replaced.get(member, ())
        return tuple(live for live in self.names() if live in family)

    pieces = copies

    def trees_of(self, leaf: str) -> npt.NDArray[np.int64]:
        """Return the rounds, from 0, whose trees the walks of a leaf loop visit, int64, in order.

        Args:
            leaf: name of a leaf loop.
        """
        return list_values(self.path(leaf), self.guards)

    @property
    def sliced(self) -> int:
        """Number of rows of the largest leaf loop walked by bits; 0 if there is none."""
        return max((x.count or 0 for x in self.leaves() if x.simdize == "bits"), default=0)

    # -- texts ------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return self.render()

    def render(self, mark: str | None = None) -> str:
        """Return the nest as text, with an arrow at the loop `mark`."""
        return "\n".join(self._list_lines(mark))

    def _list_lines(self, mark: str | None) -> Iterator[str]:
        for loop in self.nest.children:
            yield from self._list_loop_lines(loop, 0, mark)

    def _list_loop_lines(self, loop: Loop, depth: int, mark: str | None) -> Iterator[str]:
        word = "parallel" if loop.parallel else "for"
        line = f"{'  ' * depth}{word} {loop.name} in {loop.range_text}"
        kind = [loop.kind] if loop.name != loop.kind else []
        notes = "; ".join([*kind, *self._list_notes(loop)])
        line = f"{line:<40} # {notes}" if notes else line
        yield line + ("   <----" if loop.name == mark else "")
        for child in loop.children:
            yield from self._list_loop_lines(child, depth + 1, mark)
        if not loop.children:
            yield "  " * (depth + 1) + self._write_body(loop)

    def _list_notes(self, loop: Loop) -> Iterator[str]:
        inside = {x.name for x in loop.traverse()} - {loop.name}
        for guard in self.guards:
            if loop.name in guard.loops and not inside & set(guard.loops):
                stop = "n" if guard.stop is None else guard.stop
                yield f"guard {' + '.join(guard.loops)} < {stop}"
        if loop.case is not None:
            yield f"iteration {loop.case} only"
        yield from loop.annotations()

    def _write_body(self, leaf: Loop) -> str:
        path = self.path(leaf.name)
        row, output, tree = (
            "+".join(loop.name for loop in path if loop.kind == kind)
            for kind in ("batch", "class", "tree")
        )
        if self.classes == 1:
            return f"out[{row}] += walk({tree}, {row})"
        if self.vectors:
            return f"out[{row}, {output}] += walk({tree}, {row})[{output}]"
        tree = f"({tree})" if "+" in tree else tree
        return f"out[{row}, {output}] += walk({tree}*{self.classes} + {output}, {row})"
