"""The nest of a schedule: loops inside loops, and what can be read off them.

takes: nothing; gives: Loop, Guard, and questions about a nest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["batch", "class", "tree"]


@dataclass(frozen=True)
class Share:
    """The symbolic number ceil(n / parts), n being the number of rows."""

    parts: int

    def __str__(self) -> str:
        return f"ceil(n/{self.parts})"

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read what `str` gives."""
        return cls(int(text.removeprefix("ceil(n/").removesuffix(")")))


Step = Any  # int | Share; code that computes with it has asked for a constant `count` before
Stop = Any  # int | Share | None; None is n


@dataclass(frozen=True)
class Loop:
    """One index variable: the values start, start + step, ... below stop.

    The row (class, tree) that an iteration works on is the sum of the values of all enclosing
    loops of that kind.

    Attributes:
        name: unique in the schedule.
        kind: what the index counts.
        start: first value.
        stop: bound, exclusive; None means n, the number of rows.
        step: distance of two values; a Share where rows were tiled into a number of parts.
        children: loops inside, in order; none for a leaf loop, whose body is one walk.
        case: the one iteration of the loop around it in which this loop runs; None for all.
        parallel: whether the iterations may run at the same time on CPU threads.
        unroll: whether the iterations are written out one after the other.
        gpu: dimension of the grid or block that the loop is mapped to, such as "block.x".
        interleave: walks that advance together, 1 for one after the other.
        simdize: how the iterations are done by one vector walk, "gather", "bits" or "permute", or
            None.
        hops: hops of the straight-line walks at or below, a number or "depth"; None for a loop.
        peel: hops before the loop of the walks at or below, a number or "likely", and whether each
            is checked.
        cache: how the rows or trees of an iteration are brought near, "pack" or "prefetch".
        reduce: how the partial sums of a parallel tree loop are added, "atomic", "shared" or
            ("vector", width); None for a plain loop.
    """

    name: str
    kind: Kind
    start: int
    stop: Stop
    step: Step
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

    @property
    def count(self) -> int | None:
        """Number of iterations; None if it depends on n."""
        if not (isinstance(self.stop, int) and isinstance(self.step, int)):
            return None
        return max(0, -(-(self.stop - self.start) // self.step))

    @property
    def last(self) -> int | None:
        """The largest value; None if it depends on n."""
        if self.count is None or isinstance(self.step, Share):
            return None
        return self.start + (self.count - 1) * self.step

    @property
    def special(self) -> bool:
        """Whether every iteration has loops of its own."""
        return any(child.case is not None for child in self.children)

    def walk(self) -> Iterator[Loop]:
        """Yield this loop and all loops inside, outermost first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def marks(self) -> list[str]:
        """Return what directives have said about this loop, in words."""
        peeled, checked = self.peel or (0, True)
        strategy = self.reduce if isinstance(self.reduce, tuple) else (self.reduce,)
        said = [
            (self.gpu, f"{self.gpu}"),
            (self.unroll, "unroll"),
            (self.special, "specialize"),
            (self.interleave > 1, f"interleave {self.interleave}"),
            (self.simdize, f"simdize {self.simdize}"),
            (self.hops is not None, f"unroll_walk {self.hops}"),
            (peeled, f"peel_walk {peeled}" + ("" if checked else " unchecked")),
            (self.cache, f"cache {self.cache}"),
            (self.reduce, " ".join(["reduce", *map(str, strategy)])),
        ]
        return [text for fires, text in said if fires]

    def renamed(self, names: dict[str, str]) -> Loop:
        """Return this loop and its inside with other names."""
        inside = tuple(child.renamed(names) for child in self.children)
        return replace(self, name=names.get(self.name, self.name), children=inside)


@dataclass(frozen=True)
class Guard:
    """A condition on a partial tile: the sum of the loops' values stays below `stop`."""

    loops: tuple[str, ...]
    stop: Stop


def path_to(loop: Loop, name: str) -> tuple[Loop, ...]:
    """Return the loops from `loop` down to the one of that name, or nothing."""
    if loop.name == name:
        return (loop,)
    for child in loop.children:
        below = path_to(child, name)
        if below:
            return (loop, *below)
    return ()


def paths(loop: Loop) -> list[tuple[Loop, ...]]:
    """Return the loops from `loop` down to each leaf, in order."""
    if not loop.children:
        return [(loop,)]
    return [(loop, *below) for child in loop.children for below in paths(child)]


def replace_loop(loop: Loop, name: str, new: Iterable[Loop]) -> tuple[Loop, ...]:
    """Return `loop`, with the loop of that name inside replaced by others."""
    if loop.name == name:
        return tuple(new)
    inside = [found for x in loop.children for found in replace_loop(x, name, new)]
    return (replace(loop, children=tuple(inside)),)


def values(path: Iterable[Loop], kind: Kind, guards: Iterable[Guard]) -> npt.NDArray[np.int64]:
    """Return the sums that guards allow of all values of the loops of one kind, in order."""
    loops = [loop for loop in path if loop.kind == kind]
    own = [np.arange(loop.start, loop.stop, loop.step) for loop in loops]
    grid = np.meshgrid(*own, indexing="ij")
    at = {loop.name: values.ravel() for loop, values in zip(loops, grid, strict=True)}
    kept = np.ones(grid[0].size, bool)
    for guard in guards:
        if at.keys() >= set(guard.loops):
            kept &= sum(at[name] for name in guard.loops) < guard.stop
    return np.sum(list(at.values()), axis=0)[kept]


def walk_loops(loop: Loop, vectors: bool) -> tuple[Loop, ...]:
    """Return the loops here and inside whose body is one walk, in order.

    That is an innermost loop. With `vectors`, a walk finds a value for each class, so it is also a
    loop that holds nothing but loops over classes, which are done after the walk.
    """
    after = vectors and not loop.special and all(map(_of_outputs, loop.children))
    if not loop.children or after:
        return (loop,)
    return tuple(found for child in loop.children for found in walk_loops(child, vectors))


def _of_outputs(loop: Loop) -> bool:
    alone = loop.kind == "class" and not (loop.parallel or loop.gpu)
    return alone and all(map(_of_outputs, loop.children))


def path_problem(path: tuple[Loop, ...], wanted: set[str], vectors: bool = False) -> str | None:
    """Return what is wrong with the loops around one innermost loop, or None."""
    leaf = path[-1]
    kinds = {loop.kind for loop in path}
    if kinds != wanted:
        return f"the loops around '{leaf.name}' run over {', '.join(sorted(kinds))} only"
    for loop in path[:-1]:
        if (loop.interleave > 1 or loop.simdize) and walk_loops(loop, vectors) != (loop,):
            what = "interleaved" if loop.interleave > 1 else "simdized"
            return f"'{loop.name}' is {what} but contains '{loop.children[0].name}'"
    return _cache_problem(path) or _parallel_problem(path) or _gpu_problem(path)


def _cache_problem(path: tuple[Loop, ...]) -> str | None:
    for i, loop in enumerate(path):
        if loop.cache and (loop.interleave > 1 or loop.simdize):
            return (
                f"'{loop.name}' has cache {loop.cache}, one iteration at a time, but its walks "
                "advance together; tile it, and cache the outer loop"
            )
        if loop.cache is None or loop.cache == "prefetch":
            continue
        endless = next((x for x in path[i + 1 :] if x.kind == loop.kind and x.count is None), None)
        if endless is not None:
            return (
                f"'{loop.name}' has cache {loop.cache} but holds '{endless.name}' of n iterations"
            )
    return None


def _parallel_problem(path: tuple[Loop, ...]) -> str | None:
    at = [i for i, loop in enumerate(path) if loop.parallel]
    for i, k in zip(at, at[1:], strict=False):
        if path[i].cache:
            return (
                f"'{path[i].name}' has cache {path[i].cache} and holds parallel '{path[k].name}', "
                "so they cannot be fused"
            )
        if k > i + 1 or len(path[i].children) > 1 or path[i].special:
            return (
                f"'{path[k].name}' lies inside parallel '{path[i].name}', but is not its only "
                "child, so they cannot be fused"
            )
    mapped = next((loop for loop in path if loop.parallel and loop.gpu), None)
    return f"'{mapped.name}' is parallel and mapped to {mapped.gpu}" if mapped else None


def _gpu_problem(path: tuple[Loop, ...]) -> str | None:
    mapped = [loop for loop in path if loop.gpu]
    names = [str(loop.gpu) for loop in mapped]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        return f"'{doubled}' is used by two loops on the path to '{path[-1].name}'"
    for loop in mapped:
        width = loop.reduce[1] if isinstance(loop.reduce, tuple) else 1
        if width > 1 and loop.special:
            return f"'{loop.name}' adds up with vectors, but its iterations have loops of their own"
        if width > 1 and (loop.count is None or loop.count % width):
            return f"'{loop.name}' adds up {width} threads at a time, but has {loop.count}"
    for outer, inner in combinations(mapped, 2):
        if str(outer.gpu).startswith("block") and str(inner.gpu).startswith("grid"):
            return f"grid index '{inner.name}' lies inside block index '{outer.name}'"
    return None


def keeps_order(nest: Loop) -> bool:
    """Return whether each row adds its trees in ascending order, one after the other.

    Decided from ranges: a tree loop must step over all that is inside, and of two leaves that meet
    the same rows and classes the first must have the smaller trees. A loop that a special loop
    repeats counts for itself.
    """
    if any(loop.parallel or loop.gpu for loop in nest.walk() if loop.kind == "tree"):
        return False
    return all(_steps_over(loop) for loop in nest.walk()) and all(
        _disjoint(first, second) or _before(first, second)
        for first, second in combinations(paths(nest), 2)
    )


def _steps_over(loop: Loop) -> bool:
    if loop.kind != "tree" or loop.count == 1:
        return True
    spans = [_range(path[1:], "tree") for path in paths(loop)]
    return max(high for _, high in spans) - min(low for low, _ in spans) < loop.step


def _range(path: tuple[Loop, ...], kind: Kind) -> tuple[float, float]:
    """Smallest and largest sum of the values of one kind."""
    inside = [loop for loop in path if loop.kind == kind]
    high = sum(float("inf") if loop.last is None else loop.last for loop in inside)
    return sum(loop.start for loop in inside), high


def _apart(first: tuple[Loop, ...], second: tuple[Loop, ...]) -> tuple[int, bool]:
    """Where two paths part, and whether they belong to two iterations of a special loop."""
    at = next(i for i, (x, y) in enumerate(zip(first, second, strict=False)) if x != y)
    return at, first[at].case != second[at].case


def _disjoint(first: tuple[Loop, ...], second: tuple[Loop, ...]) -> bool:
    """Whether two leaves meet no row and class in common."""
    at, special = _apart(first, second)
    if special:
        return first[at - 1].kind != "tree"
    for kind in ("batch", "class"):
        (low, high), (low2, high2) = _range(first[at:], kind), _range(second[at:], kind)
        if high < low2 or high2 < low:
            return True
    return False


def _before(first: tuple[Loop, ...], second: tuple[Loop, ...]) -> bool:
    at, special = _apart(first, second)
    if special:  # the tree loop itself steps over what is inside
        return True
    return _range(first[at:], "tree")[1] < _range(second[at:], "tree")[0]
