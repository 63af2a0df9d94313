"""Reads the nest of a scheduled function from its loops, its block and its annotations.

takes: a function scheduled by TVM's primitives and annotations; gives: NestFacts.

Most facts about a loop follow from S-TIR itself:

    kind (batch, class, tree)    the axis of the block "walk" that depends on the loop's variable
    step                         the factor of the variable there
    stop                         the extent of the loop
    guards                       the condition of the block
    parallel, unrolled           TVM's kind of the loop

The others are annotations, from `replay` or from users of `s_tir.Schedule`, see `adopt`. A loop
that cannot be read is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import sym, tirx

from ...errors import ScheduleError
from ...schedule_prims.directive import DIRECTIVES, TraceStep, is_whole
from ...schedule_prims.model import OF_MODEL
from ...schedule_prims.nest import OUTPUT_KINDS, Bound, Guard, Kind, Loop, Share, make_chain
from ...schedule_prims.nest.marks import MARKS, Told
from ...schedule_prims.replay import KIND, NAME, PREFIX, STEPS, find_copied
from ...schedule_prims.schedule import ROOT, Schedule
from ...schedule_prims.walks import find_walk_forms
from ...system.values import dataclass, field, replace
from ...tir_gen import ir, ops
from ...tir_gen.attributes import FOREST, LAYOUT, ModelFacts, read_model_facts, to_plain
from ...tir_gen.internals.names import DICT_ATTRS
from ..function_pass import function_pass
from ..nest_facts import NestFacts, amount, name_of
from .blocks import WalkBlock, find_walk_block
from .computation import SEAL

KINDS = {tirx.ForKind.PARALLEL: "parallel", tirx.ForKind.UNROLLED: "unroll"}
"""Directives, by TVM's kind of loop that they lead to."""
KNOWN = {PREFIX + word for word in MARKS} | {NAME, STEPS, KIND}
DIRECTIVES_OF_LOOPS = {*DIRECTIVES} - {*OF_MODEL} | {"know_depths"}
_ROOT = Loop(ROOT, "batch", 0, 1, 1)


def find_schedules(func: tirx.PrimFunc, model: ModelFacts) -> tuple[Schedule, Schedule]:
    """Return the schedule of a function's loops, without and with its annotations applied.

    If no loop has a name, the function was not scheduled, and both schedules have no loops.

    Raises:
        ScheduleError: the loops do not form a nest, or a directive refuses an annotation.
    """
    steps = map(TraceStep.of, model.steps)
    sch = Schedule(model.trees, model.classes, vectors=model.vectors).take_steps(steps)
    walk = find_walk_block(func)
    if walk is None or not any(map(name_of, walk.around)):
        return (replace(sch, nest=_ROOT),) * 2
    return _Reader(walk, model, func.params[0].shape[0]).read(sch)


def read_nest(func: tirx.PrimFunc) -> NestFacts:
    """Return the facts about the loops and the model of a function.

    Raises:
        ScheduleError: see `find_schedules`.
    """
    model = read_model_facts(func)
    chain, sch = find_schedules(func, model)
    replaced = {name: chain[name] for name in find_copied(chain, sch)}
    return NestFacts(sch, find_walk_forms(sch, model.depths), replaced, model)


@function_pass
class ForgetNest:
    """Removes the annotations and attributes that `read_nest` reads, except the names of loops.

    The code that is compiled then does not depend on them.
    """

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Return a function without these attributes and annotations, see the class."""

        def forget(loop: tirx.For) -> tirx.For:
            kept = {k: x for k, x in loop.annotations.items() if k == NAME or k not in KNOWN}
            return ir.change_loop(loop, annotations=kept)

        body = ir.rewrite_loops(func.body, forget)
        kept = {str(k): x for k, x in func.attrs.items() if k not in (FOREST, LAYOUT, SEAL)}
        attributes = tvm.ir.make_node(DICT_ATTRS, **kept)
        return tirx.PrimFunc(func.params, body, func.ret_type, attributes)


@dataclass(frozen=True)
class _Reader:
    """Reads the loops around a walk.

    Attributes:
        walk: the block of the walk.
        model: facts about the model, from the function's attributes.
        n: number of rows.
        analyzer: TVM's analyzer, to compare expressions.
    """

    walk: WalkBlock
    model: ModelFacts
    n: Any
    analyzer: sym.Analyzer = field(default_factory=sym.Analyzer)

    def read(self, sch: Schedule) -> tuple[Schedule, Schedule]:
        """Return a schedule with the loops around the walk instead of its own.

        There are two results, without and with annotations, as of `find_schedules`.
        """
        factors, steps = self._find_factors(), list[TraceStep]()
        facts, marks = dict[Any, Loop](), dict[str, Told]()
        for loop in self.walk.around:
            notes = self._read_notes(loop)
            steps += _read_steps(loop, notes.get(STEPS, "[]"))
            facts[loop.loop_var] = fact = self._read_loop(loop, notes, factors.get(loop.loop_var))
            said = {x.removeprefix(PREFIX): notes[x] for x in notes.keys() - {NAME, KIND, STEPS}}
            marks[fact.name] = said | ({KINDS[loop.kind]: 1} if loop.kind in KINDS else {})
        nest, guards = make_chain([_ROOT, *facts.values()]), tuple(self._read_guards(facts))
        chain = replace(sch, nest=nest, guards=guards, hops=None, likely=None)
        return chain, chain.with_annotations(steps, marks)

    def _read_notes(self, loop: tirx.For) -> dict[str, Any]:
        """Return the annotations of a loop that belong to this package.

        Raises:
            ScheduleError: one is unknown, or does not name a kind of loop.
        """
        ours = {str(key): to_plain(x) for key, x in loop.annotations.items()}
        notes = {key: x for key, x in ours.items() if key.startswith(PREFIX)}
        kind = notes.get(KIND, ["batch", 1])
        pair = isinstance(kind, list) and len(kind) == 2 and is_whole(kind[1], 1)
        if not pair or kind[0] not in (*OUTPUT_KINDS, "tree"):
            raise make_loop_error(name_of(loop), f"has {kind!r} as '{KIND}'", "leave it out")
        unknown = next((key for key in notes if key not in KNOWN), None)
        if unknown is not None:
            known = f"use one of {', '.join(PREFIX + word for word in MARKS)}"
            raise make_loop_error(name_of(loop), f"has the unknown annotation '{unknown}'", known)
        return notes

    def _read_loop(self, loop: tirx.For, notes: dict[str, Any], factor: Any) -> Loop:
        """Convert a TIR loop to a Loop.

        Args:
            loop: the loop.
            notes: see `_read_notes`.
            factor: its entry in `_find_factors`; None for a loop that the walk does not use.

        Raises:
            ScheduleError: its kind, begin, step or end is none that a nest can have.
        """
        name = str(notes.get(NAME, loop.loop_var.name))
        if loop.kind not in (tirx.ForKind.SERIAL, *KINDS):
            raise make_loop_error(name, f"is {tirx.ForKind(loop.kind).name.lower()}")
        if not self._is(loop.min, 0):
            raise make_loop_error(name, f"begins at {loop.min}, not at 0")
        if factor is None:
            if not self._is(loop.extent, 1):
                raise make_loop_error(name, "counts neither rows nor classes nor trees")
            kind, step = notes.get(KIND, (_guess_kind(loop), 1))
            return Loop(name, kind, 0, 1, step)
        kind, step = factor[0], self._read_number(factor[1])
        if step is None:
            raise make_loop_error(name, f"steps by {factor[1]}")
        stop = self._read_stop(loop.extent, step)
        if not self._ends_at(loop.extent, kind, stop, step):
            what = f"has {loop.extent} iterations, which is no number of tiles"
            raise make_loop_error(name, what)
        return Loop(name, kind, 0, stop, step)

    def _find_factors(self) -> dict[Any, tuple[str, Any]]:
        """Return the kind of each loop and its factor in the axis of that kind, by its variable.

        Raises:
            ScheduleError: an axis is not a sum of loop variables times factors.
        """
        found: dict[Any, tuple[str, Any]] = {}
        kinds, block = self._find_axis_kinds(), self.walk.block
        for axis, value in zip(block.iter_vars, self.walk.realize.iter_values, strict=True):
            counted, rest = kinds[axis.var], value
            for loop in (x for x in self.walk.around if ir.mentions(value, {x.loop_var})):
                linear = sym.detect_linear_equation(rest, [loop.loop_var])
                if len(linear) < 2 or loop.loop_var in found:
                    what = f"counts its {counted} in no even steps, or more than that"
                    advice = "fuse no rows, classes or trees with others"
                    raise make_loop_error(name_of(loop), what, advice)
                factor, rest = linear
                found[loop.loop_var] = counted, factor
            if not self._is(rest, 0):
                what = f"has an index of its {counted} that does not begin at 0"
                raise make_loop_error(name_of(self.walk.around[0]), what)
        return found

    def _find_axis_kinds(self) -> dict[Any, str]:
        """Return the kind of each axis of the block, from the arguments of the walk."""
        axes = [axis.var for axis in self.walk.block.iter_vars]
        call: Any = ops.find_walk(self.walk.block.body)
        row, tree = call.args[0].indices[0], call.args[1]
        of_tree = [axis for axis in axes if ir.mentions(tree, {axis})]
        factors = sym.detect_linear_equation(tree, of_tree) if of_tree else []
        size = 1 if self.model.vectors else self.model.classes
        kinds = dict.fromkeys(axes, "class")
        for axis, factor in zip(of_tree, list(factors)[:-1], strict=True):
            kinds[axis] = "tree" if self._is(factor, size) else "class"
        return kinds | {row: "batch"}

    # -- numbers ----------------------------------------------------------------------------------

    def _is(self, value: Any, number: int) -> bool:
        return isinstance(value, tirx.IntImm) and int(value) == number

    @property
    def _shares(self) -> Iterator[Share]:
        """Yield the share ceil(n / extent) of each loop around the walk with a constant extent."""
        for loop in self.walk.around:
            if isinstance(loop.extent, tirx.IntImm) and int(loop.extent) > 1:
                yield Share(int(loop.extent))

    def _read_number(self, value: Any) -> Any:
        """Convert an expression to a step: a number or a share of the rows; None if neither."""
        if isinstance(value, tirx.IntImm):
            return int(value) if int(value) > 0 else None
        shares = (Share(1), *self._shares)  # a single part has all rows
        return next((x for x in shares if self._equal(value, amount(x, self.n))), None)

    def _read_stop(self, extent: Any, step: Any) -> Bound:
        """Return the bound of a loop with this extent and step.

        The result is None for a loop that ends at the last row, and if no bound fits; `_ends_at`
        and `_is_end` tell these two apart.
        """
        if isinstance(extent, tirx.IntImm):
            return int(extent) * step if isinstance(step, int) else None
        if not isinstance(step, int):
            return None
        return next((x for x in self._shares if self._is_end(extent, x, step)), None)

    def _ends_at(self, extent: Any, kind: Kind, stop: Bound, step: Any) -> bool:
        """Return whether a loop's extent fits its bound, or a guard ends it at the last row."""
        if isinstance(extent, tirx.IntImm) and isinstance(step, int):
            return int(extent) >= 0
        size = amount(step, self.n)
        if isinstance(step, int) and self._is_end(extent, stop, step):
            return kind == "batch"
        all_rows = isinstance(step, Share) and self._is(extent, step.parts)
        all_rows = all_rows or self.analyzer.can_prove(extent * size >= self.n)
        ends = self._guards_rows or step == Share(1)  # a single part has no more than all rows
        return kind == "batch" and stop is None and all_rows and ends

    @property
    def _guards_rows(self) -> bool:
        """Whether the condition of the block ends all loops over rows at the last row."""
        pairs = zip(self.walk.block.iter_vars, self.walk.realize.iter_values, strict=True)
        kinds = self._find_axis_kinds()
        (row,) = (value for axis, value in pairs if kinds[axis.var] == "batch")
        clauses = ir.split_condition(self.walk.realize.predicate)
        ends = (x for x in clauses if isinstance(x, tirx.LT))
        return any(self._equal(x.a, row) and self._equal(x.b, self.n) for x in ends)

    def _equal(self, a: Any, b: Any) -> bool:
        return bool(self.analyzer.can_prove_equal(a, b))

    # -- guards -----------------------------------------------------------------------------------

    def _read_guards(self, facts: dict[Any, Loop]) -> Iterator[Guard]:
        """Yield the guards for the conditions of the block.

        TVM's conditions count iterations; guards count rows, classes or trees.

        Raises:
            ScheduleError: a condition is not the end of a tile.
        """
        clauses = ir.split_condition(self.walk.realize.predicate)
        for clause in clauses:
            if isinstance(clause, tirx.IntImm):
                continue
            here = [var for var in facts if ir.mentions(clause, {var})]
            known = isinstance(clause, tirx.LT) and not ir.mentions(clause.b, facts)
            factors = list(sym.detect_linear_equation(clause.a, here)) if here and known else []
            ratio = self._find_ratio([facts[var].step for var in here], factors)
            kinds = {facts[var].kind for var in here}
            end = None if ratio is None else self._read_stop(clause.b, ratio)
            if ratio is None or len(kinds) > 1 or not self._is_end(clause.b, end, ratio):
                name = facts[here[0]].name if here else ""
                what = f"has the condition {clause}, which is no end of a tile"
                raise make_loop_error(name, what)
            yield Guard(tuple(facts[var].name for var in here), end)

    def _find_ratio(self, steps: list[Any], factors: list[Any]) -> int | None:
        """Return the rows, classes or trees per unit of a condition; None if no number fits."""
        if not factors or not self._is(factors[-1], 0):
            return None
        ratio, rest = 1, 0
        if isinstance(steps[0], int) and isinstance(factors[0], tirx.IntImm):
            ratio, rest = divmod(steps[0], int(factors[0]))
        pairs = zip(steps, factors[:-1], strict=True)
        fits = all(self._equal(amount(step, self.n), factor * ratio) for step, factor in pairs)
        return ratio if fits and ratio > 0 and rest == 0 else None

    def _is_end(self, limit: Any, end: Bound, ratio: int) -> bool:
        """Return whether a limit, in units of `ratio`, is equal to the bound `end`, rounded up."""
        return self._equal(limit, tirx.floordiv(amount(end, self.n) + (ratio - 1), ir.i64(ratio)))


def _read_steps(loop: tirx.For, text: Any) -> list[TraceStep]:
    """Return the steps in the annotation `STEPS`: one that copies the loop, and those after it.

    Raises:
        ScheduleError: the annotation holds anything else.
    """
    try:
        steps = [*map(TraceStep.of, json.loads(text))]
        if not DIRECTIVES_OF_LOOPS.issuperset(step.do for step in steps):
            raise ValueError("directives about the model")
        return steps
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        what = f"has an annotation '{STEPS}' that holds no directives for its place"
        raise make_loop_error(name_of(loop), what, "split with directives") from None


def _guess_kind(loop: tirx.For) -> Kind:
    """Guess the kind of a loop with one iteration from the name that TVM derived for it."""
    root: Any = str(loop.loop_var.name).partition("_")[0]
    return root if root in (*OUTPUT_KINDS, "tree") else "batch"


def make_loop_error(name: str, what: str, advice: str = "see docs/directives.md") -> ScheduleError:
    """Return the exception for the loop `name`, which does not fit a nest.

    `what` says what is wrong, as in "loop 'b1' is vectorized", and `advice` what to do.
    """
    return ScheduleError(f"build: argument 'schedule': loop '{name}' {what}; {advice}")
