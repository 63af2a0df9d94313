"""Forests, rows and schedules for hypothesis, which makes them small when a test fails.

Forests are those of `forests.py`: single leaves, chains and bushes over a few thresholds. Rows take
their values from the thresholds, what lies right beside them, and special numbers. Schedules are
steps from the moves of `schedules.py`; a step that is refused is left out.

    @given(data=st.data())
    @examples(20)
    def test(data):
        forest = data.draw(forests())
        rows, sch = data.draw(rows_of(forest)), data.draw(schedules_of(forest))

`examples` makes a test the same at every run; `make test-full` also draws anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import tvm_forest
from forests import Split, forest_of
from schedules import GPU_LAYOUTS, LAYOUTS, MOST_HOPS, SHAPING, hops_written_out, moves
from tvm_forest.errors import ScheduleError
from tvm_forest.forest import Array, Forest
from tvm_forest.probe_rows import SPECIAL, hard_rows
from tvm_forest.schedule_prims import DIRECTIVES, Schedule

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
    batch = draw(st.sampled_from([None, 1, 9]))
    return Schedule(len(depths) * classes, classes, batch, depths=depths)


@st.composite
def schedules_from(
    draw: Any, start: Schedule, forest: Forest | None = None, most: int = 8
) -> Schedule:
    """Draw a schedule for CPUs: at most so many of the moves that there are at each step."""
    sch, steps = start, draw(st.integers(0, 2 * most))
    if forest is not None:
        sch = sch.represent_as(draw(st.sampled_from(LAYOUTS)))
    for _ in range(steps):
        if len(sch.steps) >= most:
            break
        choices = moves(sch, forest)
        words = [*(word for word in SHAPING if word in choices), *sorted(choices)]
        name = draw(st.sampled_from(words))
        try:
            new = DIRECTIVES[name].apply(sch, draw(st.sampled_from(choices[name])))
        except ScheduleError:
            continue
        sch = new if hops_written_out(new) <= MOST_HOPS else sch
    return sch


def schedules_of(forest: Forest, most: int = 8) -> st.SearchStrategy[Schedule]:
    """Draw a schedule of a forest for CPUs, whose model may be rewritten as well."""
    return schedules_from(tvm_forest.new_schedule(forest), forest, most)


def any_schedules() -> st.SearchStrategy[Schedule]:
    """Draw a schedule of any problem for CPUs, without a model."""
    return problems().flatmap(schedules_from)


@st.composite
def gpu_schedules_from(
    draw: Any, start: Schedule, layouts: tuple[str, ...] = GPU_LAYOUTS
) -> Schedule:
    """Draw a schedule for GPUs: tiles in any order, some mapped to a dimension, and more steps.

    Few schedules that were drawn freely would fit on a GPU.
    """
    sch = start.represent_as(draw(st.sampled_from(layouts)))
    sch = sch.tile("batch", "b0", "b1", draw(st.sampled_from([1, 3, 4, 8])))
    sizes = [size for size in (1, 2, 4, 5, 8) if size <= start.rounds]
    sch = sch.tile("tree", "t0", "t1", draw(st.sampled_from(sizes)))
    inner = [*(["class"] if start.classes > 1 else []), "b1", "t0", "t1"]
    sch = sch.reorder("b0", *draw(st.permutations(inner))).gpu_dimension("b0", "grid.x")
    if draw(st.booleans()):
        sch = _step_if_allowed(sch, "gpu_dimension", "t1", "block.x")
    for _ in range(draw(st.integers(0, 12))):
        sch = _step_if_allowed(sch, *draw(_gpu_steps(inner, start.rounds)))
    return sch


def _gpu_steps(inner: list[str], rounds: int) -> st.SearchStrategy[tuple[Any, ...]]:
    loop, row = st.sampled_from(inner), st.sampled_from(["b0", "b1"])
    just = st.just
    return st.one_of(
        st.tuples(st.sampled_from(["unroll", "unroll_walk", "specialize", "cache"]), loop),
        st.tuples(just("gpu_dimension"), loop, st.sampled_from(["block.x", "grid.y", "block.y"])),
        st.tuples(st.sampled_from(["shared_reduce", "ordered_reduce"]), just("t1")),
        st.tuples(just("vector_reduce"), just("t1"), st.sampled_from([2, 4, 8])),
        st.tuples(st.sampled_from(["atomic_reduce", "ordered_reduce"]), loop),
        st.tuples(just("cache"), row),
        st.tuples(just("peel_walk"), loop, just(2)),
        st.tuples(just("interleave"), loop, st.sampled_from([2, 3, 4])),
        st.tuples(
            *(just("split"), st.sampled_from(["t0", "t1"]), just("d1"), just("d2")),
            st.integers(1, max(1, rounds - 1)),
        ),
    )


def _step_if_allowed(sch: Schedule, word: str, *arguments: Any) -> Schedule:
    try:
        return getattr(sch, word)(*arguments)
    except ScheduleError:
        return sch
