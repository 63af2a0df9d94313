"""What a schedule for a GPU must compute on "simt"."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tvm_forest
from schedules import compare
from tvm_forest.forest import Forest
from tvm_forest.schedule_prims import Schedule

BACKWARDS = {"kind": "simt", "order": "backwards"}
ORDERS = ("simt", BACKWARDS)


def each_row(start: Schedule) -> Schedule:
    """A thread for each row: compiled in a twentieth of the time of default schedules."""
    rows = start.tile("batch", "b0", "b1", 128)
    return rows.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")


def check(
    model: Forest,
    sch: Schedule,
    target: Any = "simt",
    sizes: Iterable[int] = (1, 7, 33, 100),
    on: Callable[[Any], Any] = lambda predictor: predictor,
    outputs: Iterable[str] = ("margin", "apply"),
) -> None:
    """Margins and leaves are those of the model, see `compare`; each has code of its own."""
    predictor = on(tvm_forest.build(model, target, sch, exact=sch.keeps_order))
    compare(predictor, model, sch, sizes, outputs=outputs)


def check_sums(model: Forest, sch: Schedule, target: Any, sizes: Iterable[int] = (1, 33)) -> None:
    """The same for margins alone, where leaves are found by the ways that other tests look at."""
    check(model, sch, target, sizes, outputs=("margin",))
