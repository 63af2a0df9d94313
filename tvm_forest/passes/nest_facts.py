"""Facts about the loops and the model of a scheduled function.

takes: the result of `read_nest` for a function; gives: facts of a loop, found by its name.

Passes change loops but not their names, and `WriteNest` names the loops that it writes. So a
function's nest is read once, and passes look up the kind, the step and the marks of a loop here:

    for b0 in range(8):   # tvm_forest.name "b0"      facts.of(loop).kind == "batch"

Loops that passes add, such as those that copy rows, have no name and no facts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import tirx

from ..schedule_prims.nest import Bound, Guard, Kind, Loop, Nest, Share, find_paths
from ..schedule_prims.regions import list_values_inside, range_of_sums
from ..schedule_prims.replay import NAME
from ..schedule_prims.walks import WalkForm, find_walk_forms
from ..system.process.locks import cached_property
from ..system.values import dataclass, field, replace
from ..tir_gen.attributes import ModelFacts
from ..tir_gen.ir import find_all, i64

NO_LOOP = Loop("", "", 0, 1, 1)  # type: ignore[arg-type]
"""Stands for the facts of a loop that is not part of the schedule."""

SUMS_OF = "tvm_forest.sums_of"
"""Annotation key: name of another loop, whose kind of reduction the annotated loop takes over."""


@dataclass(frozen=True, eq=False)
class NestFacts:
    """Facts about the loops and the model of one function.

    Attributes:
        nest: all loops around the walks.
        forms: form of the walks of each leaf loop, by the loop's name.
        origins: loops by name that directives have replaced by copies, but that are still in the
            S-TIR until `WriteNest`. A loop of `nest` may have the same name.
        model: facts about the model, from the function's attributes.
    """

    nest: Nest
    forms: dict[str, WalkForm] = field(default_factory=dict)
    origins: dict[str, Loop] = field(default_factory=dict)
    model: ModelFacts = field(default=None)  # type: ignore[assignment]

    def on_one_thread(self) -> NestFacts:
        """Return the facts of the same loops run by one CPU thread, with no parallel loop."""
        nest = replace(self.nest, nest=_without_threads(self.nest.nest))
        return replace(self, nest=nest, forms=find_walk_forms(nest, self.model.depths))

    @cached_property
    def _loops(self) -> dict[str, Loop]:
        return {loop.name: loop for loop in self.nest.loops()}

    @cached_property
    def on_gpu(self) -> bool:
        """Whether any loop is mapped to a dimension of a GPU."""
        return any(loop.gpu for loop in self.nest.loops())

    def of(self, loop: tirx.Stmt) -> Loop:
        """Return the schedule's loop for a TIR loop; `NO_LOOP` if there is none."""
        return self._loops.get(name_of(loop), NO_LOOP) if isinstance(loop, tirx.For) else NO_LOOP

    def form(self, loop: tirx.Stmt) -> WalkForm | None:
        """Return the form of a leaf loop's walks, None for any other loop."""
        return self.forms.get(self.of(loop).name)

    def is_parallel(self, loop: tirx.Stmt) -> bool:
        """Return whether a loop is parallel, or `FuseParallel` will make it parallel."""
        is_already = isinstance(loop, tirx.For) and loop.kind == tirx.ForKind.PARALLEL
        return is_already or self.of(loop).parallel

    def level(self, loop: tirx.Stmt) -> str:
        """Return where a GPU runs the iterations: "grid", "block", or "" if one thread does."""
        return (self.of(loop).gpu or "").split(".")[0]

    def on_levels(self, statement: tirx.Stmt, level: str = "") -> list[tirx.For]:
        """Return the loops in a statement that are mapped to a level, outermost first.

        The level is "grid" or "block"; "" stands for both.
        """
        levels = (level,) if level else ("grid", "block")
        return find_all(statement, tirx.For, lambda x: self.level(x) in levels, "pre")

    def has_level(self, statement: tirx.Stmt, level: str = "") -> bool:
        """Return whether a statement contains a loop that is mapped to a level, see `on_levels`."""
        return bool(self.on_levels(statement, level))

    # -- sums -------------------------------------------------------------------------------------

    def reduction(self, loop: tirx.For) -> tuple[str, int]:
        """Return the kind of reduction of a loop's partial sums, and its width.

        The kind is "plain", "atomic", "shared", "ordered" or "vector". Only "vector" has a width
        other than 1: how many sums a CPU adds at once, or how many GPU threads shuffle theirs.
        """
        name = str(loop.annotations.get(SUMS_OF, name_of(loop)))
        fact = self._loops.get(name, NO_LOOP)
        return fact.reduce or "plain", fact.width

    def shuffle_width(self, loop: tirx.For) -> int:
        """Return the number of GPU threads that add a loop's sums by shuffles; 0 for none."""
        how, width = self.reduction(loop)
        return width if how == "vector" and self.level(loop) == "block" else 0

    # -- values -----------------------------------------------------------------------------------

    def value(self, loop: tirx.For, n: Any) -> Any:
        """Return what a loop's current iteration adds to the number of a row, class or tree."""
        fact = self.of(loop)
        return loop.loop_var * amount(fact.step, n) + fact.start

    def reach(
        self, kind: Kind, around: Iterable[tirx.For], inside: Iterable[Loop], n: Any
    ) -> tuple[Any, int | None]:
        """Return the first row, class or tree of some loops, and how many they cover at most.

        Args:
            kind: rows, classes or trees.
            around: outer loops, which are at their current iteration.
            inside: inner loops, which run through all their iterations.
            n: number of rows.

        Returns:
            An expression, and a number that is None if it depends on the number of rows.
        """
        first = sum((self.value(x, n) for x in around if self.of(x).kind == kind), i64(0))
        paths = (path for loop in inside for path in find_paths(loop))
        last = max((range_of_sums(path, kind)[1] for path in paths), default=0)
        return first, None if last == float("inf") else 1 + int(last)

    def span(
        self, kind: Kind, around: Iterable[tirx.For], loop: tirx.For, n: Any, total: Any
    ) -> tuple[Any, Any, Any]:
        """Return a loop's first row or class, how many it covers here, and how many at most.

        The first two hold for the current iteration of the loops around, the last one for any. If
        the numbers depend on n, they are bounds: what is left from the first on, and `total`.

        If the loop, or one inside, is mapped to a GPU, and the largest number is a constant, both
        numbers are this constant, since dividing by it is cheap. It may be more than what is left,
        so callers guard the end.

        Args:
            kind, around, n: see `reach`.
            loop: the loop, which runs through all its iterations.
            total: number of all rows or classes.
        """
        fact = self.nest[name_of(loop)]
        first, _ = self.reach(kind, around, [], n)
        values = list_values_inside(fact, self.nest.guards, kind)
        if values is None:
            return first, tirx.max(i64(0), total - first), total
        count = int(values.max(initial=-1)) + 1
        most, here = i64(count), tirx.max(i64(0), tirx.min(i64(count), total - first))
        return first, most if self.has_level(loop) else here, most

    def limits(self, around: Iterable[tirx.For], n: Any) -> list[Any]:
        """Return the guards of some loops, at their current iterations, as conditions.

        The guard at the end of all rows is left out, since code for rows ends there anyway.
        """
        values = {name_of(x): self.value(x, n) for x in around if self.of(x).name}
        return list_conditions([x for x in self.nest.guards if x.stop is not None], values, n)

    def rows(self, around: tuple[tirx.For, ...], n: Any) -> tuple[Any, Any, int | None]:
        """Return the rows of the current iteration of the innermost loop `around`.

        The result is the index of the first row, the number of rows, and the largest number of rows
        of any iteration, which is None if it depends on `n`, the number of all rows.
        """
        first, most = self.reach("batch", around, self.of(around[-1]).children, n)
        if most is None:
            return first, n - first, None
        return first, tirx.max(i64(0), tirx.min(i64(most), n - first)), most


def _without_threads(loop: Loop) -> Loop:
    reduce = loop.reduce if loop.reduce == "shared" else None
    inside = tuple(map(_without_threads, loop.children))
    return replace(loop, children=inside, parallel=False, reduce=reduce, width=1)


def list_conditions(guards: Iterable[Guard], values: dict[str, Any], n: Any) -> list[Any]:
    """Return, as conditions, the guards whose loops all have a value in `values`."""
    return [
        sum(values[name] for name in guard.loops) < amount(guard.stop, n)
        for guard in guards
        if values.keys() >= set(guard.loops)
    ]


def name_of(loop: tirx.For) -> str:
    """Return the name that a loop has in the schedule, or ""."""
    return str(loop.annotations.get(NAME, ""))


def amount(bound: Bound, n: Any) -> Any:
    """Return a bound or step of a schedule's loop as an expression of `n`, the number of rows."""
    if isinstance(bound, Share):
        return tirx.floordiv(n + (bound.parts - 1), tirx.const(bound.parts, "int64"))
    return n if bound is None else tirx.const(bound, "int64")
