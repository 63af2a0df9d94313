"""Repeat the trace of a schedule on TVM's schedule of one function, and note there what is left.

takes: s_tir.Schedule and Schedule; gives: nothing, the s_tir.Schedule is changed in place.

What S-TIR can do is done by its primitives. All else stands on the loops, as annotations that
passes read: the name of a loop, and what directives say of it, see `marks_of`. S-TIR cannot hold
loops with copies. From the first one inwards its nest is left as it is, and the outermost loop left
says in `PARTS`, as JSON, which loops the pass WriteNest is to put in the place of all of them:

    for batch in range(n):    # tvm_forest.name "batch"
      for tree in range(9):   # tvm_forest.name "tree", tvm_forest.parts {"loops": [{"name": "d1",
        walk                  #   "of": "tree", "kind": "tree", "range": [0, 4, 1]}, ...], ...}
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..nest import Bound, Guard, Loop, Share
from .directive import DIRECTIVES, TirNest
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
    roots = sch.fresh().loops()
    loops = tir.get_loops(tir.get_sblock(WALK_BLOCK))
    names = [root.name for root in roots]
    trees = {root.name for root in roots if root.kind == "tree"}
    nest = TirNest(tir, dict(zip(names, loops, strict=True)), names, trees)
    written = _replay_steps(nest, sch)
    for name, loop in (nest.loops | written).items():
        tir.annotate(loop, NAME, name)
    for name, loop in nest.loops.items():
        fact = sch[name]
        marks = marks_of(fact)
        if fact.count == 1:
            marks["kind"] = [fact.kind, write_bound(fact.step)]
        if not (fact.parallel and nest.is_reduction(name)):
            marks.pop("parallel", None)
        marks.pop("unroll", None)
        for word, value in marks.items():
            tir.annotate(loop, PREFIX + word, value)
    if written:
        outermost = next(iter(written.values()))
        tir.annotate(outermost, PARTS, _write_parts(sch, [*nest.loops], [*written]))


def _replay_steps(nest: TirNest, sch: Schedule) -> dict[str, Any]:
    """Apply what S-TIR can do; returns the loops that WriteNest replaces, outermost first."""
    if sch.function:  # its nest was made elsewhere, and is written as a whole
        loops, nest.loops = nest.loops, {}
        return loops
    now, written = sch.fresh(), dict[str, Any]()
    for step in sch.steps:
        before, now = now, DIRECTIVES[step.do].apply(now, step.arguments)
        index = str(step.arguments.get("index"))
        names = step.arguments.get("indices", [index])
        if any(name not in nest.loops for name in names):
            continue
        hook = DIRECTIVES[step.do].onto_tir
        if hook is not None:
            hook(nest, **step.arguments)
        elif set(before.names()) != set(now.names()):
            inside = nest.order[nest.order.index(index) :]
            fresh = {x: nest.loops.pop(x) for x in inside if x in nest.loops}
            written = fresh | written
    return written


# -- what directives say of a loop ----------------------------------------------------------------


def marks_of(loop: Loop) -> dict[str, Any]:
    """Return what directives say of a loop, by their names: 1, or their argument, or a list."""
    how, width = loop.reduce if isinstance(loop.reduce, tuple) else (loop.reduce, 1)
    said = {
        "parallel": loop.parallel or None,
        "unroll": loop.unroll or None,
        "gpu_dimension": loop.gpu,
        "interleave": loop.interleave if loop.interleave > 1 else None,
        "simdize": loop.simdize,
        "unroll_walk": loop.hops,
        "peel_walk": loop.peel and [loop.peel[0], int(loop.peel[1])],
        "cooperate": loop.cooperate or None,
        "cache": loop.cache,
        f"{how}_reduce": width if how else None,
    }
    return {word: int(x) if x is True else x for word, x in said.items() if x is not None}


MARKS: dict[str, tuple[str, ...]] = {
    "parallel": (),
    "gpu_dimension": ("dimension",),
    "unroll": (),
    "interleave": ("factor",),
    "simdize": ("how",),
    "unroll_walk": ("hops",),
    "peel_walk": ("hops", "check"),
    "cooperate": (),
    "cache": ("how",),
    "atomic_reduce": (),
    "vector_reduce": ("width",),
    "ordered_reduce": (),
    "shared_reduce": (),
}
"""The directives that say something of a loop, with the arguments that a mark holds; in an order in
which none of them refuses what another one has said before."""


def with_marks(loop: Loop, marks: dict[str, Any]) -> Loop:
    """Return a loop of which nothing is said with what `marks_of` gives of another; unchecked."""
    reduce = next((word for word in marks if word.endswith("_reduce")), None)
    how: Any = reduce and reduce.removesuffix("_reduce")
    peel = marks.get("peel_walk")
    return replace(
        loop,
        parallel=bool(marks.get("parallel")),
        unroll=bool(marks.get("unroll")),
        gpu=marks.get("gpu_dimension"),
        interleave=marks.get("interleave", 1),
        simdize=marks.get("simdize"),
        hops=marks.get("unroll_walk"),
        peel=peel and (peel[0], bool(peel[1])),
        cooperate=bool(marks.get("cooperate")),
        cache=marks.get("cache"),
        reduce=(how, marks[str(reduce)]) if how == "vector" else how,
    )


# -- loops as JSON --------------------------------------------------------------------------------


def write_bound(value: Bound) -> Any:
    """Return a bound or a step as JSON can say it."""
    return "n" if value is None else str(value) if isinstance(value, Share) else value


def read_bound(value: Any) -> Bound:
    """Return what `write_bound` was given."""
    if isinstance(value, str) and value != "n":
        return Share(int(value.removeprefix("ceil(n/").removesuffix(")")))
    return None if value == "n" else value


def _write_parts(sch: Schedule, above: list[str], replaced: list[str]) -> str:
    """Return the loops in the place of those replaced, inside of those above, and all guards."""
    kinds = {root.kind: root.name for root in sch.fresh().loops()}
    of = {copy: origin for origin in replaced for copy in sch.copies(origin)}
    of |= {x.name: kinds[x.kind] for x in sch.loops() if sch.function}
    around = [loop for loop in sch.loops() if loop.name in above and loop.name not in of]
    inside = around[-1].children if around else sch.nest.children
    loops, guards = write_loops(inside, of), write_guards(sch.guards)
    return json.dumps({"loops": loops, "guards": guards})


def write_loops(loops: tuple[Loop, ...], of: dict[str, str]) -> list[dict[str, Any]]:
    """Return loops as plain values, each with the name of the loop of S-TIR that it comes from."""
    told = []
    for loop in loops:
        span = [loop.start, write_bound(loop.stop), write_bound(loop.step)]
        here = {"name": loop.name, "of": of.get(loop.name, ""), "kind": loop.kind, "range": span}
        case = {} if loop.case is None else {"case": loop.case}
        inside = {"loops": write_loops(loop.children, of)} if loop.children else {}
        told.append({**here, **case, **marks_of(loop), **inside})
    return told


def read_loops(told: list[dict[str, Any]]) -> tuple[Loop, ...]:
    """Return the loops that `write_loops` was given."""
    loops = []
    for here in told:
        start, stop, step = here["range"]
        ends = (start, read_bound(stop), read_bound(step))
        loop = Loop(here["name"], here["kind"], *ends, read_loops(here.get("loops", [])))
        loops.append(with_marks(replace(loop, case=here.get("case")), here))
    return tuple(loops)


def write_guards(guards: tuple[Guard, ...]) -> list[Any]:
    """Return guards as plain values."""
    return [[list(guard.loops), write_bound(guard.stop)] for guard in guards]


def read_guards(told: list[Any]) -> tuple[Guard, ...]:
    """Return the guards that `write_guards` was given."""
    return tuple(Guard(tuple(names), read_bound(stop)) for names, stop in told)
