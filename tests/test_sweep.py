"""A short run of `tests/sweep.py`, and what it would tell of crashes, hangs and wrong answers."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sweep
import tvm_forest

SEEDS = {"xgboost": (1, 2, 3, 4), "lightgbm": (1, 2, 3, 4), "scikit-learn": (1, 2, 3, 4)}


@pytest.mark.slow
@pytest.mark.parametrize("library", SEEDS)
def test_drawn_models_give_the_answers_of_their_library(library: str) -> None:
    for seed in SEEDS[library]:
        found = sweep.check(library, seed, 200)
        assert found["outcome"] == "equal", found


@pytest.mark.parametrize("library", SEEDS)
def test_a_seed_draws_the_same_model_again(library: str, tmp_path: Path) -> None:
    said = [sweep.drawn_model(library, seed, tmp_path)[0].said for seed in (1, 1, 2)]
    assert said[0] == said[1] != said[2]


def test_a_wrong_answer_is_told(tmp_path: Path) -> None:
    drawn, rng = sweep.drawn_model("xgboost", 1, tmp_path)
    forest = tvm_forest.load(drawn.given)
    rows = sweep.drawn_rows(drawn, forest, rng, 50)
    moved = replace(forest, base_score=np.nextafter(forest.base_score, np.float32(9)))
    with pytest.raises(sweep.Wrong, match="rows differ; row"):
        sweep._same(drawn, tvm_forest.build(moved), sweep.LIBRARIES["xgboost"], rows, None)


MISBEHAVING = """
import ctypes, time
from pathlib import Path
import sweep

def check(library, seed, n_rows, said):
    said("ours")
    if seed == 1:
        ctypes.string_at(0)
    if seed == 2:
        time.sleep(60)
    return {"library": library, "seed": seed, "outcome": "equal", "why": ""}

sweep.check = check
sweep.LIMITS.update(ours=0.5)
if __name__ == "__main__":
    path = Path(__file__).with_suffix(".json")
    for tried in range(2):
        found = [entry["outcome"] for entry in sweep.run(["xgboost"], range(1, 4), 9, path)]
        print(found, len(path.read_text().splitlines()))
"""


def test_crashes_and_hangs_are_told_and_not_tried_again(tmp_path: Path) -> None:
    script = tmp_path / "misbehaving.py"
    script.write_text(MISBEHAVING)
    here = Path(sweep.__file__).parent
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=here,
        env={"PYTHONPATH": f"{here}:{here.parent}", "PATH": "/usr/bin"},
        timeout=100,
    )
    lines = done.stdout.splitlines()
    assert lines == ["['crash', 'hang', 'equal'] 3"] * 2, done.stderr[-2000:]
    assert ast.literal_eval(lines[0].rsplit(" ", 1)[0])
