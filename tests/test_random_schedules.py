"""Random schedules of random forests compute what the model says, see `strategies.py`.

New ones at every run, 500 of them: pytest -m rare tests/test_random_schedules.py
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tvm_forest
from schedules import LAYOUTS, check_results, refusal
from strategies import examples, rows_of, schedules_of, seen_forests
from tvm_forest.errors import BuildError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.schedule_prims import Schedule


def check(forest: Forest, sch: Schedule, data: Any) -> None:
    """Build, run and compare, or see the schedule refused."""
    sizes = [1, data.draw(st.integers(2, 8)), 2 * data.draw(st.integers(5, 70)) + 1]
    refused = refusal(forest, sch)
    try:
        check_results(forest, sch, sizes)
        assert refused != "must"
    except (ScheduleError, BuildError):
        if not refused:
            raise
        return
    if sch.keeps_order:
        rows = data.draw(rows_of(forest))
        expected = forest.predict_reference(rows)
        found = tvm_forest.build(forest, schedule=sch).predict_margin(rows)
        assert found.tobytes() == expected.tobytes()


def draw(data: Any) -> tuple[Forest, Schedule]:
    """Draw a forest and one of its schedules."""
    forest = data.draw(seen_forests(classes=5, n_trees=16))
    return forest, data.draw(schedules_of(forest))


@pytest.mark.slow
@given(data=st.data())
@examples(8)
def test_random_schedules_of_random_forests_compute_what_the_model_says(data: Any) -> None:
    check(*draw(data), data)


@pytest.mark.long
@given(data=st.data())
@examples(80)
def test_more_schedules_compute_what_the_model_says(data: Any) -> None:
    check(*draw(data), data)


@pytest.mark.rare
@given(data=st.data())
@examples(500, anew=True)
def test_new_schedules_compute_what_the_model_says(data: Any) -> None:
    check(*draw(data), data)


@pytest.mark.long
def test_the_examples_meet_all_that_is_promised() -> None:
    cases: list[tuple[Forest, Schedule]] = []

    @given(data=st.data())
    @examples(300)
    def collect(data: Any) -> None:
        cases.append(draw(data))

    collect()
    assert {len(sch.steps) for _, sch in cases} >= set(range(1, 9))
    assert {sch.keeps_order for _, sch in cases} == {True, False}
    assert {forest.n_outputs for forest, _ in cases} == {1, 2, 3, 4, 5}
    assert any(0 in forest.depths and forest.depths.max() > 3 for forest, _ in cases)
    built = [(forest, sch) for forest, sch in cases if not refusal(forest, sch)]
    assert len(built) > 0.5 * len(cases)
    words = Counter(word for _, sch in cases for word in {step.do for step in sch.steps})
    for word in ("tile_nodes", "pad_trees", "sort_trees", "know_depths", "split_by_depth"):
        assert words[word], word
    assert {sch.representation for _, sch in cases} == set(LAYOUTS)
