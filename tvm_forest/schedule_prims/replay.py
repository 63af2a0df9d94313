"""Repeat the trace of a schedule on TVM's schedule of one function, and note there what is left.

takes: s_tir.Schedule and Schedule; gives: nothing, the s_tir.Schedule is changed in place.

What S-TIR can do is done by its primitives. All else stands on the loops, as annotations that
passes read: the name of a loop, and what directives say of it, see `nest.marks`. S-TIR cannot hold
loops with copies. From the first one inwards its nest is left as it is, and the outermost loop left
says in `PARTS`, as JSON, which loops the pass WriteNest is to put in the place of all of them:

    for batch in range(n):    # tvm_forest.name "batch"
      for tree in range(9):   # tvm_forest.name "tree", tvm_forest.parts {"loops": [{"name": "d1",
        walk                  #   "of": "tree", "kind": "tree", "range": [0, 4, 1]}, ...], ...}
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..nest.marks import marks_of, write_bound, write_guards, write_loops
from .directive import DIRECTIVES, TirLoops
from .schedule import Schedule

if TYPE_CHECKING:
    from tvm import s_tir

PREFIX = "tvm_forest."
NAME = PREFIX + "name"
"""Holds the name that a loop has in the schedule."""
PARTS = PREFIX + "parts"
"""Holds the loops in the place of a loop and all inside it, and the guards of the nest, as JSON."""
KIND = PREFIX + "kind"
"""Says what a loop of one iteration counts, of which no index depends, and its step."""
WALK_BLOCK = "walk"
FINISH_BLOCK = "finish"
EPILOGUE = "tvm_forest.finish"
"""Marks the loop over rows that makes values of sums, for GPUs."""


def replay(tir: s_tir.Schedule, sch: Schedule) -> None:
    """Rewrite the function "main" of `tir` step by step, and annotate its loops.

    The function holds the block "walk" inside one loop for each root index of `sch`.

    Args:
        tir: TVM's schedule of a canonical function.
        sch: what to replay.
    """
    above, written = _replay_steps(tir, sch)
    for name, loop in (above | written).items():
        tir.annotate(loop, NAME, name)
    for name, loop in above.items():
        fact = sch[name]
        marks = marks_of(fact)
        if fact.count == 1:
            marks["kind"] = [fact.kind, write_bound(fact.step)]
        if fact.kind != "tree":
            marks.pop("parallel", None)
        marks.pop("unroll", None)
        for word, value in marks.items():
            tir.annotate(loop, PREFIX + word, value)
    if written:
        outermost = next(iter(written.values()))
        tir.annotate(outermost, PARTS, _write_parts(sch, [*above], [*written]))


def _replay_steps(tir: s_tir.Schedule, sch: Schedule) -> tuple[TirLoops, TirLoops]:
    """Apply what S-TIR can do; return its loops, and those that WriteNest replaces, by name."""
    now, written = sch.fresh(), list[str]()
    for step in sch.steps:
        loops, _ = _name_loops(tir, now, written)
        before, now = now, DIRECTIVES[step.do].apply(now, step.arguments)
        index, hook = str(step.arguments.get("index")), DIRECTIVES[step.do].onto_tir
        if not loops.keys() >= {*step.arguments.get("indices", [index])}:
            continue
        if step.do == "parallel" and before[index].kind == "tree":
            continue  # S-TIR sees a reduction
        if hook is not None:
            hook(tir, loops, **step.arguments)
        elif set(before.names()) != set(now.names()):
            names = [*loops]
            written = names[names.index(index) :] + written
    return _name_loops(tir, now, written)


def _name_loops(
    tir: s_tir.Schedule, sch: Schedule, written: list[str]
) -> tuple[TirLoops, TirLoops]:
    """Name the loops of S-TIR: the outer ones are those of the schedule, the others are written."""
    loops = tir.get_loops(tir.get_sblock(WALK_BLOCK))
    count = len(loops) - len(written)
    outer = dict(zip(sch.names(), loops[:count], strict=False))
    return outer, dict(zip(written, loops[count:], strict=True))


def _write_parts(sch: Schedule, above: list[str], replaced: list[str]) -> str:
    """Return the loops in the place of those replaced, inside of those above, and all guards."""
    of = {copy: origin for origin in replaced for copy in sch.copies(origin)}
    inside = sch[above[-1]].children if above else sch.nest.children
    loops, guards = write_loops(inside, of), write_guards(sch.guards)
    return json.dumps({"loops": loops, "guards": guards})
