"""Directives that say how a walk through a tree is done: interleave.

takes: Schedule; gives: Schedule, and an annotation that the walk pass acts on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..schedule import Schedule
from .directive import Nest, directive, find_loop, refuse

MOST_WALKS = 32


def _interleave_choices(sch: Schedule) -> Iterator[dict[str, Any]]:
    for loop in sch.loops():
        if not loop.children and loop.kind == "batch" and loop.interleave == 1:
            yield from ({"index": loop.name, "factor": k} for k in (2, 4, 8))


@directive(choices=_interleave_choices)
def interleave(sch: Schedule, index: str, factor: int) -> Schedule:
    """Advance the walks of `factor` neighbouring rows together, hop by hop.

    The walks are independent, so their loads overlap. A last group of fewer rows is walked one
    row after the other.

    s_tir: an annotation, which the pass LowerWalks acts on (S-TIR cannot fuse two while-loops).

    Args:
        index: a leaf loop over rows.
        factor: walks that advance together, 2 to 32.

    Raises:
        ScheduleError: no such loop, not a leaf, not over rows, or a factor out of range.

    Rewrite:
        for b1 in (0, 64, 1)   -->   for b1 in (0, 64, 1)   # interleave 8
          S                            S
    """
    loop = find_loop(sch, "interleave", "index", index)
    if loop.children:
        inside = loop.children[0].name
        message = f"argument 'index': '{index}' is not innermost (contains '{inside}')"
        raise refuse(sch, "interleave", message, index)
    if loop.kind != "batch":
        message = f"argument 'index': '{index}' does not run over rows; reorder a row loop inwards"
        raise refuse(sch, "interleave", message, index)
    if loop.interleave > 1:
        message = f"argument 'index': '{index}' is already interleaved by {loop.interleave}"
        raise refuse(sch, "interleave", message, index)
    if not isinstance(factor, int) or not 2 <= factor <= MOST_WALKS:
        message = f"argument 'factor': {factor!r} has no effect; use 2..{MOST_WALKS}"
        raise refuse(sch, "interleave", message, index)
    return sch.with_loop(index, replace(loop, interleave=factor))


@interleave.onto_tir
def interleave_onto_tir(nest: Nest, index: str, factor: int) -> None:
    """Leave the annotation."""
    nest.annotations.append((index, "tvm_forest.interleave", factor))
