"""A short run of `tools/sweep.py`, and what it tells of crashes, hangs and wrong answers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ydf", reason="YDF has no wheel for this Python")

import sweep
import tvm_forest

SEEDS = (1, 4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", sweep.LIBRARIES)
@pytest.mark.cases(1)
def test_drawn_models_give_the_answers_of_their_library(library: str) -> None:
    for seed in SEEDS:
        found = sweep.check(library, seed, 200)
        assert found["outcome"] == "equal", found


@pytest.mark.parametrize("library", sweep.LIBRARIES)
def test_a_seed_draws_the_same_model_again(library: str, tmp_path: Path) -> None:
    said = [sweep.drawn_model(library, seed, tmp_path)[0].said for seed in (1, 1, 2)]
    assert said[0] == said[1] != said[2]


@pytest.mark.slow
def test_a_wrong_answer_is_told(tmp_path: Path) -> None:
    drawn, rng = sweep.drawn_model("xgboost", 1, tmp_path)
    forest = tvm_forest.load(drawn.given)
    rows = sweep.drawn_rows(drawn, forest, rng, 50)
    moved = replace(forest, base_score=np.nextafter(forest.base_score, np.float32(9)))
    with pytest.raises(sweep.Wrong, match="50 of 50 rows differ; row 0"):
        made = tvm_forest.build(moved, schedule=tvm_forest.new_schedule(moved))
        sweep.compare_answers(drawn, made, sweep.LIBRARIES["xgboost"], rows)


MISBEHAVING = """
import ctypes, sys, time
from pathlib import Path
import sweep

def check(library, seed, n_rows, said):
    said("ours")
    if seed == 2:
        ctypes.string_at(0)
    if seed == 3:
        time.sleep(600)
    return {"library": library, "seed": seed, "outcome": "equal", "why": ""}

sweep.check = check
sweep.LIMITS.update(ours=3)
if __name__ == "__main__":
    path = Path(sys.argv[1])
    for tried in range(2):
        found = [entry["outcome"] for entry in sweep.run(["xgboost"], range(1, 4), 9, path)]
        print(*found, len(path.read_text().splitlines()))
"""


@pytest.mark.slow
@pytest.mark.long
def test_crashes_and_hangs_are_told_and_not_tried_again(tmp_path: Path) -> None:
    script, here = tmp_path / "misbehaving.py", Path(sweep.__file__).parent
    script.write_text(MISBEHAVING)
    paths = os.pathsep.join([str(here), str(here.parent)])
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "found.json")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
        timeout=600,
    )
    assert done.stdout.splitlines() == ["equal crash hang 3"] * 2, done.stderr[-2000:]
