"""Replays the trace of a schedule on TVM's schedule of one function, and annotates the rest.

takes: s_tir.Schedule and Schedule; gives: nothing, the s_tir.Schedule is changed in place.

Steps that S-TIR supports are done by its primitives. All others become annotations of the loops,
which passes read: the name of a loop, and the settings of directives, see `nest.marks`. S-TIR
cannot hold loops with copies. From the first such loop inwards its nest is left as it is, and the
outermost remaining loop lists in `STEPS`, as JSON, the directives that the pass WriteNest is to
carry out:

    for batch in range(n):    # tvm_forest.name "batch"
      for tree in range(9):   # tvm_forest.name "tree", tvm_forest.steps [{"do": "split",
        walk                  #   "index": "tree", "first": "d1", "second": "d2", "at": 4}]
"""

from __future__ import annotations

import json
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from .directive import DIRECTIVES, TirLoops
from .model import OF_MODEL
from .nest import Nest
from .nest.marks import marks_of
from .schedule import Schedule

if TYPE_CHECKING:
    from tvm import s_tir

PREFIX = "tvm_forest."
NAME = PREFIX + "name"
"""Annotation key: the name of a loop in the schedule."""
STEPS = PREFIX + "steps"
"""Annotation key: JSON of the directives that replace a loop and those inside by copies."""
KIND = PREFIX + "kind"
"""Annotation key: kind and step of a loop with one iteration, whose index nothing uses."""
WALK_BLOCK = "walk"
FINISH_BLOCK = "finish"
EPILOGUE = "tvm_forest.finish"
"""Marks the loop over rows that computes values from sums, for GPUs."""


def replay(tir: s_tir.Schedule, sch: Schedule) -> None:
    """Rewrite the function "main" of `tir` step by step, and annotate its loops.

    The function holds the block "walk" inside the loops of the schedule without directives.

    Args:
        tir: TVM's schedule of a canonical function.
        sch: what to replay.
    """
    chain, told = _replay_steps(tir, sch)
    loops, copied = _name_loops(tir, chain), find_copied(chain, sch)
    for name, loop in loops.items():
        fact = chain[name]
        marks = {} if name in copied else marks_of(sch[name])
        if fact.count == 1:
            marks["kind"] = [fact.kind, fact.step]
        tir.annotate(loop, NAME, name)
        for word, value in marks.items():
            if word == "unroll" or (word == "parallel" and fact.kind != "tree"):  # a reduction
                getattr(tir, word)(loop)
            else:
                tir.annotate(loop, PREFIX + word, value)
    if copied:
        told = [x for x in told if x.get("index") in copied or x.get("index") not in loops]
        tir.annotate(loops[copied[0]], STEPS, json.dumps(told))


def _replay_steps(tir: s_tir.Schedule, sch: Schedule) -> tuple[Schedule, list[dict[str, Any]]]:
    """Apply the steps that S-TIR supports; return the resulting nest, and the other steps."""
    chain = now = sch.fresh()
    told = list[dict[str, Any]]()
    for step in sch.steps:
        directive, arguments = DIRECTIVES[step.do], step.arguments
        names = arguments.get("indices", [arguments.get("index")])
        if directive.onto_tir is not None and {*names} <= {*chain.names()}:
            directive.onto_tir(tir, _name_loops(tir, chain), **arguments)
            chain = directive.apply(chain, arguments)
        elif step.do not in OF_MODEL:
            if step.do == "split_by_depth":
                told.append({"do": "know_depths", "depths": now.hops, "likely": now.likely})
            told.append(step.to_dict())
        now = directive.apply(now, arguments)
    return chain, told


def _name_loops(tir: s_tir.Schedule, chain: Schedule) -> TirLoops:
    """Return S-TIR's loop handles by the names of the loops."""
    loops = tir.get_loops(tir.get_sblock(WALK_BLOCK))
    return dict(zip(chain.names(), loops, strict=True))


def find_copied(chain: Nest, sch: Nest) -> list[str]:
    """Return the names in a loop chain from the first loop on that the schedule has copies of.

    A specialized loop counts, since every iteration has a copy of the loops inside.
    """
    names, others = chain.names(), (x.name for x in sch.loops() if not x.is_specialized)
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(names, others, strict=False))
    return [*names[len([*alike]) :]]
