"""What the package does can be read in the log, and nothing is written unless one asks for it."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import tvm_forest
from forests import drawn_forest
from tvm_forest.cli import main
from tvm_forest.system import code_cache

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cache(tmp_path, monkeypatch, caplog):
    """An empty cache of its own; messages of the package are caught."""
    monkeypatch.setenv(code_cache.VARIABLE, str(tmp_path / "cache"))
    caplog.set_level(logging.DEBUG, logger="tvm_forest")
    return tmp_path / "cache"


def messages(caplog, room):
    return [x.message for x in caplog.records if x.name == f"tvm_forest.{room}"]


def test_compiling_is_told_and_so_is_the_cache(cache, caplog):
    forest = drawn_forest(3, 2, dtype="float64")  # compiles fast
    tvm_forest.build(forest)
    (compiled,) = messages(caplog, "compiler")
    assert "compiled for {'kind': 'llvm'} in" in compiled
    assert messages(caplog, "search.heuristic")[0].startswith("from 1 rows on: ")
    tvm_forest.build(forest)
    assert messages(caplog, "predictor.compiling") == [
        "predict: code and arrays are those of the cache"
    ]


def test_a_damaged_entry_of_the_cache_is_told(cache, caplog):
    forest = drawn_forest(3, 2, dtype="float64")  # compiles fast
    tvm_forest.build(forest)
    files = list(cache.iterdir())
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    tvm_forest.build(forest)
    warnings = [x for x in caplog.records if x.levelno == logging.WARNING]
    assert len(warnings) == len(files) - 1  # which schedules it chose, this process still knows
    assert all("is not used" in x.message for x in warnings)


def test_models_that_are_read_are_told(tmp_path, caplog):
    import xgboost

    rows = [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]]
    data = xgboost.DMatrix(rows, label=[0.0, 1.0, 2.0])
    booster = xgboost.train({"max_depth": 2, "min_child_weight": 0}, data, num_boost_round=3)
    with caplog.at_level(logging.INFO, logger="tvm_forest"):
        tvm_forest.load(booster)
    assert messages(caplog, "frontends") == [
        "xgboost reg:squarederror: 3 trees, at most 2 deep, of 2 columns"
    ]


@pytest.mark.parametrize(
    "options, rooms", [([], set()), (["-v"], {"frontends"}), (["-vv"], {"frontends", "search"})]
)
@pytest.mark.cases(2, others="long")
def test_the_command_line_says_more_with_every_v(tmp_path, options, rooms):
    import xgboost

    data = xgboost.DMatrix([[0.0], [1.0]], label=[0.0, 1.0])
    xgboost.train({"max_depth": 1}, data, num_boost_round=1).save_model(tmp_path / "model.json")
    command = [sys.executable, "-m", "tvm_forest", *options, "info", tmp_path / "model.json"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT).stderr
    assert {line.split(":")[0].split(".")[1] for line in said.splitlines()} == rooms


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"tvm-forest {tvm_forest.__version__}\n"
