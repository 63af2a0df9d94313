"""Random schedules of small models of all kinds compute what the models say.

`tools/random_schedules.py` draws, builds and compares them; as a program it tries thousands.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import random_schedules
import tvm_forest
from drawn_schedules import ARGUMENTS, GPU_LAYOUTS, LAYOUTS, drawn_schedule, layouts_of, words_of
from quick_builds import lower_sums
from random_schedules import (
    BUILT,
    FAILURES,
    Wrong,
    check,
    check_margins,
    drawn,
    rare,
    shorten,
    taken_by,
)
from scheduled_models import MODELS, Answers, forest_named
from strategies import examples, forests, schedules_from
from tvm_forest.errors import BuildError, ScheduleError
from tvm_forest.layouts.protocol import LAYOUTS as REGISTERED
from tvm_forest.schedule_prims import DIRECTIVES, Schedule

CHUNK = 2
"""Schedules of a case, so that a model is trained for more than one of them."""


def check_chunk(device: str, first: int) -> None:
    found = [check(device, seed) for seed in range(first, first + CHUNK)]
    failed = [(x["seed"], x["outcome"], x["why"]) for x in found if x["outcome"] in FAILURES]
    assert not failed, failed


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 396, CHUNK))
@pytest.mark.cases(2)
def test_random_schedules_compute_what_the_model_says(first: int) -> None:
    check_chunk("cpu", first)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 100, CHUNK))
@pytest.mark.cases(2)
def test_random_gpu_schedules_compute_what_the_model_says(first: int) -> None:
    check_chunk("simt", first)


def test_every_directive_and_every_layout_can_be_drawn() -> None:
    assert ARGUMENTS.keys() == DIRECTIVES.keys()
    assert DIRECTIVES.keys() - words_of(False) == {"gpu_dimension", "cooperate", "shared_reduce"}
    assert DIRECTIVES.keys() - words_of(True) == {"parallel"}
    assert REGISTERED.keys() >= set(LAYOUTS)
    own = {name for name, x in REGISTERED.items() if x.__module__.startswith("tvm_forest.")}
    assert set(LAYOUTS) == own


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "simt"])
def test_every_directive_and_every_layout_is_drawn(device: str) -> None:
    schedules = [drawn(device, seed)[1] for seed in range(70)]
    counts = Counter(step.do for sch in schedules for step in sch.steps)
    counts.update(sch.layout for sch in schedules)
    assert not [name for name in taken_by(device) if counts[name] < 2], counts


def test_paths_for_a_gpu_often_lack_dimensions_of_each_other() -> None:
    def dimensions(sch: Schedule) -> set[frozenset[Any]]:
        return {frozenset(x.gpu for x in sch.path(leaf.name)) for leaf in sch.leaves()}

    different = [len(dimensions(drawn("simt", seed)[1])) > 1 for seed in range(80)]
    assert sum(different) >= 12


def test_what_a_device_takes_and_was_built_too_seldom_is_told() -> None:
    found = {"outcome": "equal", "layout": "array", "words": words_of(True)}
    refused = found | {"outcome": "refused"}
    told = list(rare({"simt": [found, found, refused, found | {"layout": "packed"}]}, 3))
    assert "simt: array was built 2 times, fewer than 3" in told
    assert {line.split()[1] for line in told} == set(layouts_of(True))


def test_arguments_are_drawn_that_no_search_would_try() -> None:
    start, rng = Schedule(100), random.Random(1)
    steps = [step for _ in range(100) for step in drawn_schedule(rng, start).steps]
    sizes = {step.arguments.get("size") for step in steps if step.do == "tile"}
    assert {3, 5, 96, 192} < sizes
    checks = {step.arguments["check"] for step in steps if "check" in step.arguments}
    assert checks == {True, False}


def test_there_are_models_of_every_kind() -> None:
    kinds = [forest_named(name) for name in sorted(MODELS)]
    assert {forest.aggregate for forest in kinds} == {"sum", "average", "min", "max"}
    assert {forest.row_dtype for forest in kinds} == {"float32", "float64"}
    assert any(0 in forest.depths and forest.depths.max() > 3 for forest in kinds)
    for what in ("has_vectors", "is_linear", "categories"):
        assert any(getattr(forest, what) for forest in kinds), what


def test_a_wrong_sum_is_told() -> None:
    answers = Answers("drawn 1")
    sch = tvm_forest.new_schedule(answers.forest)
    predictor = tvm_forest.build(answers.forest, schedule=sch)
    check_margins(answers, predictor, sch, slice(5, 20), 1)
    answers.margins = np.nextafter(answers.margins, np.float32(np.inf))
    with pytest.raises(Wrong, match="n_jobs=1: 15 of rows 5:20 are wrong, first in row 0"):
        check_margins(answers, predictor, sch, slice(5, 20), 1)


def test_a_failing_schedule_keeps_only_the_steps_that_it_fails_by() -> None:
    start = Schedule(9).tile("batch", "b0", "b1", 8).reorder("b0", "tree", "b1").unroll("b1")
    wide = shorten(start.split("tree", "x", "y", 3), lambda sch: "b1" in "".join(sch.names()))
    assert [step.do for step in wide.steps] == ["tile"]
    assert shorten(start, lambda sch: False) == start


@pytest.mark.long
def test_the_program_counts_what_was_built_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    program, path = Path(random_schedules.__file__), tmp_path / "found.json"
    for wanted in ("2", "3"):
        options = ["--schedules", wanted, "--simt", "1", "--processes", "1", "--json", str(path)]
        said = subprocess.run(
            [sys.executable, str(program), *options], check=True, capture_output=True, text=True
        ).stdout
        assert re.search(r"^\| represent_as \| [\d]+ \| [\d]+ \|", said, re.MULTILINE), said
        assert "0 wrong, 0 foreign, 0 late, 0 crash, 0 hang" in said
    found = [json.loads(line) for line in path.read_text().splitlines()]
    built = [x["seed"] for x in found if x["outcome"] in BUILT and x["device"] == "cpu"]
    assert len(built) == len(set(built)) == 3


@pytest.mark.slow
@given(data=st.data())
@examples(5)
def test_trees_are_near_wherever_a_random_schedule_says_so(data: Any) -> None:
    forest = data.draw(forests(depth=3, n_trees=30))
    start = tvm_forest.new_schedule(forest)
    sch = data.draw(schedules_from(start, forest=forest, gpu=True, layouts=GPU_LAYOUTS))
    for name in (loop.name for loop in sch.loops() if loop.kind == "tree"):
        with contextlib.suppress(ScheduleError):
            sch = sch.cache(name)
    near = ("auto", "shared")
    cached = [loop.name for loop in sch.loops() if loop.kind == "tree" and loop.cache in near]
    # A loop inside another one may find its trees in the copy of that one.
    outer = [name for name in cached if {x.name for x in sch.path(name)} & {*cached} == {name}]
    try:
        text = lower_sums(forest, sch, "simt").after["predict"].script()
    except (BuildError, ScheduleError):
        assume(False)
    # Kernels inside the loop share what its copy holds, in the memory of the device.
    copies = len(re.findall(r"near_nodes\w* = T.alloc_(?:shared|buffer)", text))
    # Trees of one leaf have no node to be copied, and a straight line may be for such ones only.
    reads_nodes = forest.depths.max(initial=0) > 0 and all(x.hops is None for x in sch.loops())
    assert len(outer) * reads_nodes <= copies <= len(cached), str(sch)
