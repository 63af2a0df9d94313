"""One model on a CPU and a GPU, which the threads of the CPU stand in for."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost

import tvm_forest
from forests import drawn_forest
from tvm_forest.errors import InputError, ModelFormatError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.predictor import crossover
from tvm_forest.predictor.crossover import METHODS
from tvm_forest.schedule_prims.recipes import RECIPES
from tvm_forest.system import archive

FOREST = drawn_forest(6, 3, base=(0.1, 0.2), link="softmax")


@pytest.fixture(scope="module")
def pair() -> list[Any]:
    gpu = tvm_forest.build(FOREST, "simt", lambda sch: RECIPES["tahoe_direct"](sch, rows=8))
    return [tvm_forest.build(FOREST, schedule=tvm_forest.new_schedule(FOREST)), gpu]


def test_the_number_of_rows_decides_where_they_go(pair: list[Any]) -> None:
    both = tvm_forest.Crossover(*pair, rows=10)
    assert tvm_forest.Crossover(*pair).rows == 100
    for n in (0, 1, 9, 10, 33):
        rows = hard_rows(FOREST, n, seed=n)
        assert both.choose(rows) is pair[n >= 10]
        assert both.choose(rows.tolist()) is pair[n >= 10]
        assert np.array_equal(both.predict_margin(rows), FOREST.predict_reference(rows))
        for name in METHODS:
            expected = getattr(pair[n >= 10], name)(rows)
            assert np.array_equal(getattr(both, name)(rows), expected), name
    part = both.predict_margin(rows, iteration_range=(0, 1))
    assert np.array_equal(part, pair[1].predict_margin(rows, iteration_range=(0, 1)))


def test_both_are_copied_together(pair: list[Any]) -> None:
    rows = hard_rows(FOREST, 12)
    again = copy.copy(tvm_forest.Crossover(*pair, rows=3))
    assert again.rows == 3 and "Crossover at 3 rows" in repr(again)
    assert np.array_equal(again.predict_margin(rows), FOREST.predict_reference(rows))
    assert not hasattr(again, "update") and "predict" in dir(again)


def test_both_are_saved_in_one_file(pair: list[Any], tmp_path: Path) -> None:
    rows, file = hard_rows(FOREST, 12), tmp_path / "both.tvmf"
    tvm_forest.Crossover(*pair, rows=7).save(file)
    for source in (file, file.read_bytes()):
        again = tvm_forest.Crossover.load(source)
        assert again.rows == 7 and again.gpu.target.kind == "simt"
        assert np.array_equal(again.predict_margin(rows), FOREST.predict_reference(rows))
        assert np.array_equal(again.predict_margin(rows[:3]), FOREST.predict_reference(rows[:3]))
    with pytest.raises(
        ModelFormatError, match="'kind': .*Crossover.load reads this in Python, and its attributes"
    ):
        tvm_forest.load_predictor(file)
    pair[0].save(tmp_path / "cpu.tvmf")
    with pytest.raises(ModelFormatError, match="'kind': .*read that of a Predictor by"):
        tvm_forest.Crossover.load(tmp_path / "cpu.tvmf")
    whole = archive.unpack(file.read_bytes(), "test")
    for parts in ({"cpu.tvmf": whole.parts["cpu.tvmf"]}, {**whole.parts, "gpu.tvmf": b"no"}):
        with pytest.raises(ModelFormatError, match="Crossover.load: argument 'file'"):
            tvm_forest.Crossover.load(archive.pack(archive.Archive(whole.manifest, parts)))


def test_one_predictor_that_is_updated_alone_is_refused() -> None:
    start = tvm_forest.new_schedule(FOREST)
    gpu = tvm_forest.build(FOREST, "simt", lambda sch: RECIPES["tahoe_direct"](sch, rows=8))
    both = tvm_forest.Crossover(tvm_forest.build(FOREST, schedule=start), gpu)
    newer = drawn_forest(6, 3, seed=9, base=(0.1, 0.2), link="softmax")
    rows = hard_rows(newer, 130)
    both.cpu.update(newer)
    with pytest.raises(InputError, match="update both `cpu` and `gpu`"):
        both.predict_margin(rows[:1])
    both.gpu.update(newer)
    for n in (1, 130):
        assert np.array_equal(both.predict_margin(rows[:n]), newer.predict_reference(rows[:n]))


def test_one_model_for_each_row_is_computed_on_the_cpu() -> None:
    several = tvm_forest.load([drawn_forest(4, 3, seed=seed) for seed in (1, 2)])
    start = tvm_forest.new_schedule(several)
    gpu = tvm_forest.build(several, "simt", lambda sch: RECIPES["tahoe_direct"](sch, rows=8))
    both = tvm_forest.Crossover(tvm_forest.build(several, schedule=start), gpu, rows=10)
    rows, which = hard_rows(several, 40), np.arange(40) % 2
    expected = several.predict_reference(rows)[np.arange(40), which]
    assert np.array_equal(both.predict(rows, which=which), expected)


@pytest.mark.parametrize("gpu_from", [1, 8, 1 << 10, None])
def test_the_number_of_rows_is_measured(
    pair: list[Any], gpu_from: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = tvm_forest.Crossover(*pair)

    def time_calls(predictor: Any, rows: Any) -> float:
        serves = gpu_from is not None and len(rows) >= gpu_from
        return float(1 + (serves == (predictor is both.cpu)))

    monkeypatch.setattr(crossover, "_time_calls", time_calls)
    assert both.measure() == both.rows == (gpu_from or 2 * crossover.MEASURED[-1])


def test_a_lucky_call_of_the_gpu_decides_nothing(
    pair: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = tvm_forest.Crossover(*pair)
    fast = {8, 64, 128, 256}
    monkeypatch.setattr(
        crossover, "_time_calls", lambda x, rows: 1 + (len(rows) in fast) * (x is both.cpu)
    )
    assert both.measure() == 64


def test_calls_of_both_are_timed(pair: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossover, "MEASURED", (1, 2))
    assert tvm_forest.Crossover(*pair).measure() in (1, 2, 4)


def test_rows_of_a_wide_model_that_are_timed_fit_into_memory(
    pair: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossover, "MOST_BYTES", 100 * 4 * FOREST.row_width)
    asked: list[int] = []
    monkeypatch.setattr(
        crossover, "_time_calls", lambda x, rows: asked.append(len(rows)) or (x is pair[1])
    )
    assert tvm_forest.Crossover(*pair).measure() == 128 and max(asked) == 64


def test_a_model_that_refuses_rows_drawn_for_it_is_built_and_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crossover, "REAL_GPUS", ("simt",))
    monkeypatch.setattr(crossover, "MEASURED", (1, 64))
    cities = pd.DataFrame({"city": pd.Categorical(["Lima", "Oslo", "Rome"] * 20)})
    debts = np.array([1.0, 5.0, 2.0] * 20)
    model = xgboost.XGBRegressor(n_estimators=2, enable_categorical=True).fit(cities, debts)
    both = tvm_forest.build(model, ["llvm", "simt"], refuse_unseen=True)
    assert both.rows == crossover.ROWS
    with pytest.raises(InputError, match="measure: .* that the model does not know .*'rows'"):
        both.measure()


@pytest.mark.parametrize("rows", [None, 5, np.array(1.0), (row for row in [[1.0]])])
def test_what_are_no_rows_is_refused_as_by_a_predictor(pair: list[Any], rows: Any) -> None:
    with pytest.raises(InputError, match="predict: argument 'rows'"):
        tvm_forest.Crossover(*pair).predict(rows)


def test_a_model_is_built_for_two_targets() -> None:
    forest = drawn_forest(6, 3, base=(0.1, 0.2), link="softmax", dtype="float64")  # compiles fast
    both = tvm_forest.build(forest, ["simt", "llvm"], n_jobs=1)
    assert both.cpu.target.kind == "llvm" and both.gpu.target.kind == "simt"
    assert both.rows == crossover.ROWS and both.cpu.n_jobs == 1  # no GPU is here to be timed
    rows = hard_rows(forest, 130)
    for n in (1, 130):
        assert np.array_equal(both.predict_margin(rows[:n]), forest.predict_reference(rows[:n]))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"target": ["llvm", "llvm"]}, r"'target': .* got \['llvm', 'llvm'\]; give"),
        ({"target": ["simt"]}, r"'target': .* got \['simt'\]; give"),
        ({"target": ["llvm", "tpu"]}, "'target': unknown kind 'tpu'"),
        (
            {"target": ["llvm", "simt"], "schedule": lambda sch: sch},
            "a list takes neither",
        ),
        ({"target": ["llvm", "simt"], "wait": False}, "a list takes neither"),
        ({"target": ("llvm", "simt")}, r"got \('llvm', 'simt'\); use for two targets a list"),
    ],
)
def test_targets_that_are_no_pair_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tvm_forest.build(FOREST, **arguments)


def test_what_is_no_pair_is_refused(pair: list[Any]) -> None:
    cpu, gpu = pair
    other = drawn_forest(2, 2)
    stranger = tvm_forest.build(other, schedule=tvm_forest.new_schedule(other))
    for arguments, message in (
        ((gpu, gpu), "argument 'cpu': expected a Predictor for a CPU, got simt"),
        ((cpu, cpu), "argument 'gpu': expected a Predictor for a GPU, got llvm"),
        ((cpu, FOREST), "argument 'gpu': expected a Predictor for a GPU, got Forest"),
        ((stranger, gpu), "argument 'gpu': .* is of another model than"),
        ((cpu, gpu, -1), "argument 'rows': expected 0 or more, got -1"),
        ((cpu, gpu, True), "argument 'rows': expected 0 or more, got True"),
    ):
        with pytest.raises(InputError, match=message):
            tvm_forest.Crossover(*arguments)
    assert tvm_forest.Crossover(cpu, gpu, np.int64(7)).rows == 7


def test_two_that_refuse_the_categories_of_different_columns_are_no_pair(pair: list[Any]) -> None:
    model = replace(FOREST, known_categories={1: (0, 1)})
    strict = model.refuse_unseen([1])
    cpu = tvm_forest.build(strict, schedule=lambda start: start)
    gpu = tvm_forest.build(replace(strict, refuses_unseen=()), "simt", pair[1].schedule)
    with pytest.raises(InputError, match=r"columns \[\], and 'cpu' those of \[1\]; build both"):
        tvm_forest.Crossover(cpu, gpu)
