"""Schedules for GPUs drawn at random, and what each of them must compute on "simt"."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import tvm_forest
from schedules import rounding_bound
from tvm_forest.errors import ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.probe_rows import hard_rows
from tvm_forest.schedule_prims import Schedule
from tvm_forest.schedule_prims.memory import COPIED

BACKWARDS = {"kind": "simt", "order": "backwards"}
ORDERS = ("simt", BACKWARDS)
LAYOUTS = ("array", "packed", "ranked", "reorg", "sparse")


def check(
    model: Forest,
    sch: Schedule,
    target: Any = "simt",
    sizes: Iterable[int] = (1, 7, 33, 100),
    on: Callable[[Any], Any] = lambda predictor: predictor,
) -> None:
    """Bit-equal if the order is kept, else within the bound; leaves are equal."""
    predictor = on(tvm_forest.build(model, target, sch, exact=sch.keeps_order))
    for n in sizes:
        rows = hard_rows(model, n, seed=n)
        expected = model.predict_reference(rows)
        margin = predictor.predict_margin(rows).reshape(expected.shape)
        bound = 0 if sch.keeps_order else rounding_bound(model, rows)
        assert np.all(np.abs(margin - expected) <= bound), n
        assert np.array_equal(predictor.apply(rows), model.predict_reference(rows, "apply")), n


def drawn_gpu_schedule(seed: int, start: Schedule) -> Schedule:
    """Tile and order loops at random, give some to the GPU, and take further steps that fit."""
    rng = np.random.default_rng(seed)
    rounds = start.trees // start.classes
    sch = start.represent_as(str(rng.choice(LAYOUTS)))
    sch = sch.tile("batch", "b0", "b1", int(rng.choice([1, 3, 4, 8])))
    sizes = [size for size in (1, 2, 4, 4, 5, 8, 8, rounds) if size <= rounds]
    sch = sch.tile("tree", "t0", "t1", int(rng.choice(sizes)))
    inner = [*(["class"] if start.classes > 1 else []), "b1", "t0", "t1"]
    sch = sch.reorder("b0", *rng.permutation(inner).tolist()).gpu_dimension("b0", "grid.x")
    if rng.random() < 0.5:
        sch = _taken(sch, "gpu_dimension", "t1", "block.x")
    for dimension in rng.permutation(["grid.y", "block.x", "block.y", "block.z"])[:3]:
        sch = _taken(sch, "gpu_dimension", str(rng.choice(inner)), str(dimension))
    split = {"first": "d1", "second": "d2", "at": int(rng.integers(1, rounds))}
    near = [x for x in (*inner, "b0") if x[0] == "b" or sch.representation in COPIED]
    more: list[tuple[Any, ...]] = [
        *(("cache", str(rng.choice(near))) for _ in range(2)),
        ("atomic_reduce", str(rng.choice([*inner, "b0"]))),
        *(("vector_reduce", "t1"), ("vector_reduce", "t1"), ("shared_reduce", "t1")),
        *((word, str(rng.choice(inner))) for word in ("unroll", "unroll_walk", "specialize")),
        ("peel_walk", str(rng.choice(inner)), 2),
        ("split", str(rng.choice(["t0", "t1"])), *split.values()),
        *(("interleave", loop.name, int(rng.choice([2, 3, 4]))) for loop in sch.leaves()),
    ]
    for place in rng.permutation(len(more)):
        word, *arguments = more[place]
        width = [int(rng.choice([2, 4, 8]))] if word == "vector_reduce" else []
        sch = _taken(sch, word, *arguments, *width) if rng.random() < 0.6 else sch
    return sch


def _taken(sch: Schedule, word: str, *arguments: Any) -> Schedule:
    """Take a step if it is allowed."""
    try:
        return getattr(sch, word)(*arguments)
    except ScheduleError:
        return sch
