"""Random schedules for GPUs compute what the model says, thread by thread.

By hand, for any number of them, with a summary at the end:

    python tests/test_random_gpu_schedules.py 0 300
"""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter

import pytest

import tvm_forest
from forests import drawn_forest
from gpu_schedules import ORDERS, check
from schedules import GPU_LAYOUTS, drawn_gpu_schedule, summarize
from tvm_forest.forest import Forest
from tvm_forest.schedule_prims import Schedule

SEEDS, FEW = 24, 14


@functools.cache
def forest(classes: int) -> Forest:
    return drawn_forest(13 * classes, 3, seed=3, base=(0.5, -1.0, 2.0)[:classes])


def drawn(seed: int) -> tuple[Forest, Schedule]:
    """Return the forest and the schedule of a seed."""
    model = forest(1 + 2 * (seed % 2))
    return model, drawn_gpu_schedule(seed, tvm_forest.new_schedule(model))


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(FEW), *(pytest.param(n, marks=pytest.mark.long) for n in range(FEW, SEEDS))]
)
@pytest.mark.cases(2)
def test_random_gpu_schedules_compute_what_the_model_says(seed: int) -> None:
    check_seed(seed)


def test_trees_are_near_wherever_a_random_schedule_says_so() -> None:
    cached = [
        (model, sch, count)
        for model, sch in map(drawn, range(SEEDS))
        if (count := sum(loop.kind == "tree" and loop.cache == "auto" for loop in sch.loops()))
    ]
    assert len(cached) >= 5
    for model, sch, count in cached:
        text = tvm_forest.lower(model, sch, "simt").after["predict"].script()
        assert len(re.findall(r"near_nodes\w* = T.alloc_shared", text)) == count, str(sch)


def test_the_random_gpu_schedules_meet_all_that_is_promised() -> None:
    schedules = [drawn(seed)[1] for seed in range(100)]
    words = Counter(step.do for sch in schedules for step in sch.steps)
    asked = ("shared_reduce", "vector_reduce", "atomic_reduce", "ordered_reduce", "cache")
    for word in (*asked, "interleave", "unroll", "unroll_walk", "peel_walk", "split", "specialize"):
        assert words[word] >= 5, word
    assert {sch.representation for sch in schedules} == set(GPU_LAYOUTS)
    assert {sch.keeps_order for sch in schedules} == {True, False}


def check_seed(seed: int) -> Schedule:
    """Build, run and compare the case of a seed; returns its schedule."""
    model, sch = drawn(seed)
    check(model, sch, ORDERS[seed // 2 % 2], (1, 7, 20))
    return sch


if __name__ == "__main__":
    seeds = range(int(sys.argv[1]), int(sys.argv[2]))
    sys.exit(summarize(seeds, drawn, check_seed) > 0)
