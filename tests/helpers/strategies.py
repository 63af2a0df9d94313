"""Forests, rows and schedules for hypothesis, which makes them small when a test fails.

Forests are those of `forests.py`: single leaves, chains and bushes over a few thresholds. Rows take
their values from the thresholds, what lies right beside them, and special numbers. Schedules are
those of `drawn_schedules.py`.

    @given(data=st.data())
    @examples(20)
    def test(data):
        forest = data.draw(forests())
        rows, sch = data.draw(rows_of(forest)), data.draw(any_schedules())

`examples` makes a test the same at every run; `make test-full` also draws anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from drawn_schedules import drawn_schedule
from forests import Split, forest_of
from tvm_forest.forest import Array, Forest
from tvm_forest.forest.probe_rows import SPECIAL, hard_rows
from tvm_forest.schedule_prims import Schedule

FEATURES = 4
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def examples(number: int, anew: bool = False) -> settings:
    """Return the settings of a test: how many examples, and whether others at every run."""
    return settings(
        max_examples=number,
        derandomize=not anew,
        database=None,
        deadline=None,
        suppress_health_check=SLOW,
        print_blob=anew,
    )


def numbers(dtype: str) -> st.SearchStrategy[float]:
    """Draw finite numbers that the dtype holds."""
    width = 32 if dtype == "float32" else 64
    bound = float(np.float32(1e6))
    return st.floats(-bound, bound, width=width)


def thresholds(dtype: str) -> st.SearchStrategy[float]:
    """Draw thresholds: numbers, and at times infinities, zeros, denormals and the largest."""
    info = np.finfo(dtype)
    odd = [0.0, -0.0, np.inf, -np.inf, float(info.tiny) / 4, float(info.max), float(info.min)]
    return st.one_of(numbers(dtype), st.sampled_from(odd))


@st.composite
def trees(draw: Any, depth: int, pool: list[float], dtype: str) -> Any:
    """Draw a tree that is at most so deep, over the thresholds of a pool."""
    if depth == 0 or not draw(st.booleans()):
        return draw(numbers(dtype))
    shape = draw(st.sampled_from(["both", "left", "right"]))
    sides = [
        draw(trees(depth - 1, pool, dtype)) if shape in ("both", side) else draw(numbers(dtype))
        for side in ("left", "right")
    ]
    test = draw(st.integers(0, FEATURES - 1)), draw(st.sampled_from(pool))
    return Split(*test, *sides, draw(st.booleans()))


@st.composite
def forests(
    draw: Any, classes: int = 3, depth: int = 5, n_trees: int = 10, dtype: str = "float32"
) -> Forest:
    """Draw a forest with no more than so many classes, levels and trees."""
    pool = draw(st.lists(thresholds(dtype), min_size=1, max_size=6))
    some = draw(st.lists(trees(depth, pool, dtype), min_size=1, max_size=n_trees))
    base = draw(st.lists(numbers(dtype), min_size=1, max_size=classes))
    comparison = draw(st.sampled_from(["<", "<="]))
    return forest_of(some, n_features=FEATURES, base=base, dtype=dtype, comparison=comparison)


@st.composite
def seen_forests(draw: Any, **sizes: Any) -> Forest:
    """Draw a forest, mostly with the hits of hard rows."""
    forest = draw(forests(**sizes))
    if draw(st.integers(0, 4)) == 4:
        return forest
    ends = forest.reference_nodes(hard_rows(forest, 60)).ravel()
    return replace(forest, hits=np.bincount(ends, minlength=forest.n_nodes).astype(np.int64))


@st.composite
def rows_of(draw: Any, forest: Forest, most: int = 12) -> Array:
    """Draw rows on the thresholds of a forest, beside them, and of special numbers."""
    dtype = np.dtype(forest.row_dtype)
    up, down = dtype.type(np.inf), dtype.type(-np.inf)
    with np.errstate(over="ignore", under="ignore"):
        cuts = np.unique(forest.threshold[~forest.is_leaf].astype(dtype))
        near = np.concatenate([cuts, np.nextafter(cuts, up), np.nextafter(cuts, down)])
    pool = [0.0, *near.tolist(), *SPECIAL]
    row = st.lists(st.sampled_from(pool), min_size=FEATURES, max_size=FEATURES)
    rows = draw(st.lists(row, min_size=0, max_size=most))
    return np.array(rows, dtype).reshape(-1, FEATURES)


@st.composite
def problems(draw: Any) -> Schedule:
    """Draw a schedule without steps, of a number of rounds, classes and rows."""
    depths = tuple(draw(st.lists(st.integers(0, 6), min_size=1, max_size=19)))
    classes = draw(st.integers(1, 3))
    return Schedule(len(depths) * classes, classes, depths=depths)


@st.composite
def schedules_from(draw: Any, start: Schedule, **options: Any) -> Schedule:
    """Draw a schedule, see `drawn_schedule`."""
    return drawn_schedule(draw(st.randoms(use_true_random=False)), start, **options)


def any_schedules() -> st.SearchStrategy[Schedule]:
    """Draw a schedule of any problem for CPUs, without a model."""
    return problems().flatmap(schedules_from)
