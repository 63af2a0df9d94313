"""Random schedules for GPUs compute what the model says, thread by thread, see `strategies.py`.

New ones at every run, 300 of them: pytest -m rare tests/test_random_gpu_schedules.py
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tvm_forest
from gpu_schedules import ORDERS, check
from schedules import GPU_LAYOUTS
from strategies import examples, forests, gpu_schedules_from
from tvm_forest.errors import ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.schedule_prims import Schedule


def draw(data: Any) -> tuple[Forest, Schedule]:
    """Draw a forest and one of its schedules."""
    forest = data.draw(forests(depth=3, n_trees=30))
    return forest, data.draw(gpu_schedules_from(tvm_forest.new_schedule(forest)))


def check_case(data: Any) -> None:
    forest, sch = draw(data)
    try:
        check(forest, sch, data.draw(st.sampled_from(ORDERS)), (1, 7, 20))
    except ScheduleError as refused:  # which the model's layout decides, not the schedule alone
        assert "cannot be copied into shared memory" in str(refused), str(sch)


@pytest.mark.slow
@given(data=st.data())
@examples(4)
def test_random_gpu_schedules_compute_what_the_model_says(data: Any) -> None:
    check_case(data)


@pytest.mark.long
@given(data=st.data())
@examples(40)
def test_more_gpu_schedules_compute_what_the_model_says(data: Any) -> None:
    check_case(data)


@pytest.mark.rare
@given(data=st.data())
@examples(300, anew=True)
def test_new_gpu_schedules_compute_what_the_model_says(data: Any) -> None:
    check_case(data)


@pytest.mark.slow
@given(data=st.data())
@examples(10)
def test_trees_are_near_wherever_a_random_schedule_says_so(data: Any) -> None:
    forest, sch = draw(data)
    for name in (loop.name for loop in sch.loops() if loop.kind == "tree"):
        with contextlib.suppress(ScheduleError):
            sch = sch.cache(name)
    cached = [loop.name for loop in sch.loops() if loop.kind == "tree" and loop.cache == "auto"]
    # A loop inside another one may find its trees in the copy of that one.
    outer = [name for name in cached if {x.name for x in sch.path(name)} & {*cached} == {name}]
    if cached and sch.representation == "reorg":
        with pytest.raises(ScheduleError, match="cannot be copied into shared memory"):
            tvm_forest.lower(forest, sch, "simt")
        return
    text = tvm_forest.lower(forest, sch, "simt").after["predict"].script()
    copies = len(re.findall(r"near_nodes\w* = T.alloc_shared", text))
    assert len(outer) <= copies <= len(cached), str(sch)


def test_the_random_gpu_schedules_meet_all_that_is_promised() -> None:
    schedules: list[Schedule] = []

    @given(sch=st.sampled_from([1, 3]).flatmap(lambda n: gpu_schedules_from(Schedule(13 * n, n))))
    @examples(200)
    def collect(sch: Schedule) -> None:
        schedules.append(sch)

    collect()
    words = Counter(step.do for sch in schedules for step in sch.steps)
    asked = ("shared_reduce", "vector_reduce", "atomic_reduce", "ordered_reduce", "cache")
    for word in (*asked, "interleave", "unroll", "unroll_walk", "peel_walk", "split", "specialize"):
        assert words[word] >= 3, word
    assert {sch.representation for sch in schedules} == set(GPU_LAYOUTS)
    assert {sch.keeps_order for sch in schedules} == {True, False}
