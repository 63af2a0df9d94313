"""Random schedules of random forests compute what the model says.

By hand, for any number of them, with a summary at the end:

    python tests/test_random_schedules.py 0 2000
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

import tvm_forest
from schedules import (
    LAYOUTS,
    REFUSED,
    check_results,
    drawn_schedule,
    refusal,
    seen_forest,
    summarize,
)
from tvm_forest.errors import BuildError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.schedule_prims import Schedule

SEEDS, FEW, BATCH = 200, 80, 5


def drawn_case(seed: int) -> tuple[Forest, Schedule]:
    """Return the forest and the schedule of a seed."""
    forest = seen_forest(seed)
    return forest, drawn_schedule(seed, tvm_forest.new_schedule(forest), forest=forest)


def check(seed: int) -> Schedule:
    """Build, run and compare one case, or see it refused; returns its schedule."""
    forest, sch = drawn_case(seed)
    again = Schedule.from_json(sch.to_json())
    assert (again, hash(again), again.steps) == (sch, hash(sch), sch.steps)
    rng = np.random.default_rng(seed)
    sizes = [1, int(rng.integers(2, 9)), 2 * int(rng.integers(5, 70)) + 1]
    refused = refusal(forest, sch)
    try:
        check_results(forest, sch, sizes)
        assert refused != "must"
    except (ScheduleError, BuildError):
        if not refused:
            raise
        REFUSED["build"] += 1
    return sch


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        *range(0, FEW, BATCH),
        *(pytest.param(n, marks=pytest.mark.long) for n in range(FEW, SEEDS, BATCH)),
    ],
)
@pytest.mark.cases(2)
def test_random_schedules_of_random_forests_compute_what_the_model_says(first: int) -> None:
    for seed in range(first, first + BATCH):
        check(seed)


@pytest.mark.long
def test_the_fixed_seeds_meet_all_that_is_promised() -> None:
    cases = [drawn_case(seed) for seed in range(SEEDS)]
    steps = {len(sch.steps) for _, sch in cases}
    assert steps == set(range(1, 9))
    assert {sch.keeps_order for _, sch in cases} == {True, False}
    assert {forest.n_outputs for forest, _ in cases} == {1, 2, 3, 4, 5}
    assert any(0 in forest.depths and forest.depths.max() > 3 for forest, _ in cases)
    built = [(forest, sch) for forest, sch in cases if not refusal(forest, sch)]
    assert len(built) > 0.75 * SEEDS
    steps_of = [{step.do for step in sch.steps} for _, sch in built]
    for word in ("tile_nodes", "pad_trees", "sort_trees", "know_depths", "split_by_depth"):
        assert sum(word in words for words in steps_of) >= 5, word
    assert {sch.representation for _, sch in built} == set(LAYOUTS)


if __name__ == "__main__":
    seeds = range(int(sys.argv[1]), int(sys.argv[2]))
    sys.exit(summarize(seeds, drawn_case, check) > 0)
