"""YDF models: every bit of their predictions, leaves, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tvm_forest
from tvm_forest.errors import InputError, ModelFormatError, UnsupportedModel
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rules import LINK_ULPS
from tvm_forest.frontends.ydf.columns import find_sayable, to_columns
from tvm_forest.verification.distances import ulps

ydf = pytest.importorskip("ydf")

N = 600
BOOSTED, FOREST, CART = "GradientBoostedTreesLearner", "RandomForestLearner", "CartLearner"
BATCHES = (1, 4, 127, 128, 129, 1000)


@lru_cache
def data() -> dict[str, Any]:
    """Columns of numbers with holes, booleans, texts, arrays; and targets."""
    rng = np.random.default_rng(5)
    a, e = rng.normal(size=N).astype(np.float32), rng.integers(0, 9, N).astype(np.float32)
    many = np.array([f"k{i}" for i in rng.integers(0, 60, N)])
    few = rng.choice(["x", "y", "z"], N)
    columns = {
        "a": np.where(rng.random(N) < 0.1, np.float32(np.nan), a),
        "e": np.where(rng.random(N) < 0.1, np.float32(np.nan), e),
        "flag": rng.integers(0, 2, N) > 0,
        "few": np.where(rng.random(N) < 0.1, "", few),
        "many": many,
        "f": rng.normal(size=(N, 2)).astype(np.float32),
    }
    score = 2 * a + e / 4 + 1.5 * columns["flag"] + 2 * (few == "x") + (many > "k4")
    score += columns["f"].prod(axis=1) + rng.normal(size=N) / 4
    share = np.argsort(np.argsort(score)) / N
    targets = {
        "real": score.astype(np.float32),
        "two": np.where(share > 0.4, "yes", "no"),
        "four": np.array(["u", "v", "w", "x"])[(4 * share).astype(int)],
        "grade": np.floor(3 * share).astype(np.float32),
    }
    return columns | {f"label {name}": target for name, target in targets.items()}


INPUTS = ("a", "e", "flag", "few", "many", "f")
OPTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "boosted numbers": (BOOSTED, "real", {}),
    "boosted two": (BOOSTED, "two", {}),
    "boosted four": (BOOSTED, "four", {}),
    "deep": (BOOSTED, "real", {"max_depth": 12, "min_examples": 1}),
    "deep numbers only": (BOOSTED, "two", {"max_depth": 12, "min_examples": 1, "of": ("a", "e")}),
    "best first": (BOOSTED, "two", {"growing_strategy": "BEST_FIRST_GLOBAL", "max_num_nodes": 31}),
    "absolute": (BOOSTED, "real", {"loss": "MEAN_AVERAGE_ERROR"}),
    "focal": (BOOSTED, "two", {"loss": "BINARY_FOCAL_LOSS"}),
    "ranking": (BOOSTED, "grade", {"ranking_group": "group"}),
    "local holes": (BOOSTED, "real", {"missing_value_policy": "RANDOM_LOCAL_IMPUTATION"}),
    "asks for holes": (FOREST, "four", {"allow_na_conditions": True}),
    "bins": (BOOSTED, "two", {"discretize_numerical_columns": True}),
    "random sets": (BOOSTED, "four", {"categorical_algorithm": "RANDOM"}),
    "dropped trees": (BOOSTED, "real", {"dart_dropout": 0.3}),
    "forest numbers": (FOREST, "real", {}),
    "forest votes": (FOREST, "two", {"num_trees": 10}),
    "forest shares": (FOREST, "two", {"winner_take_all": False}),
    "forest votes of four": (FOREST, "four", {"num_trees": 10, "max_depth": 2}),
    "forest shares of four": (FOREST, "four", {"winner_take_all": False}),
    "forest numbers only": (FOREST, "two", {"of": ("a", "e"), "winner_take_all": False}),
    "single tree": (CART, "four", {}),
}


def train(learner: str, label: str, of: Any = INPUTS, **options: Any) -> Any:
    columns = {name: data()[name] for name in of} | {"label": data()[f"label {label}"]}
    task = {"real": "REGRESSION", "grade": "RANKING"}.get(label, "CLASSIFICATION")
    if task == "RANKING":
        columns["group"] = (np.arange(N) // 10).astype(np.bytes_)
    if learner != CART:
        options = {"num_trees": 6} | options
    made = getattr(ydf, learner)(
        label="label", task=ydf.Task[task], num_threads=1, random_seed=3, **options
    )
    return made.train(columns, verbose=0)


@lru_cache
def model(name: str) -> Any:
    learner, label, options = OPTIONS[name]
    return train(learner, label, **options)


def probe(forest: Any, source: Any, n: int = 1500) -> Any:
    """Return hard rows that YDF can be given."""
    rows, rng = hard_rows(forest, n), np.random.default_rng(4)
    for i, name in enumerate(forest.feature_names):
        if name == "flag":
            rows[:, i] = rng.integers(0, 2, n)
        if i in forest.category_names:
            codes = rng.integers(0, len(forest.category_names[i]), n)
            rows[:, i] = np.where(rng.random(n) < 0.1, np.nan, codes)
    assert find_sayable(forest, source, rows).all()
    return rows


def margins(source: Any, columns: dict[str, Any]) -> Any:
    raw = ydf.deserialize_model(source.serialize())
    raw.set_output_logits(True)
    return raw.predict(columns, num_threads=1)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.cases(6)
def test_predictions_have_the_bits_of_ydf(name: str) -> None:
    source = model(name)
    forest = tvm_forest.load(source)
    predictor = tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))
    rows = probe(forest, source)
    for count in (*BATCHES, len(rows)):
        columns = to_columns(forest, source, rows[:count])
        found, own = predictor.predict(rows[:count]), source.predict(columns, num_threads=1)
        assert (found.shape, found.dtype) == (own.shape, own.dtype)
        if LINK_ULPS[forest.link]:
            assert ulps(found, own).max() <= LINK_ULPS[forest.link]
            found, own = predictor.predict_margin(rows[:count]), margins(source, columns)
        assert found.tobytes() == own.tobytes()
    label = np.zeros(len(rows), np.float32)
    if source.task() == ydf.Task.CLASSIFICATION:
        label = np.full(len(rows), source.label_classes()[0])
    leaves = source.predict_leaves(columns | {"label": label, "group": np.full(len(rows), b"1")})
    np.testing.assert_array_equal(predictor.apply(rows), leaves)


def test_the_engine_of_ydf_decides_where_the_initial_prediction_is_added() -> None:
    assert tvm_forest.load(model("boosted numbers")).base_first
    assert not tvm_forest.load(model("deep")).base_first


def test_a_model_is_verified_beside_its_library() -> None:
    report = tvm_forest.verify(
        model("forest numbers only"), n_rows=300, schedule=lambda start: start
    )
    assert report.ok
    assert report.library.against.startswith("ydf ")


def test_a_folder_is_read_by_the_package(tmp_path: Path) -> None:
    model("boosted two").save(str(tmp_path / "saved"))
    assert tvm_forest.load(tmp_path / "saved").signature == (
        tvm_forest.load(model("boosted two")).signature
    )
    (tmp_path / "other").mkdir()
    with pytest.raises(ModelFormatError, match="cannot read"):
        tvm_forest.load(tmp_path / "other")


@pytest.mark.long
def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "header.pb").write_bytes(b"")
    program = f"""
import sys, tvm_forest
sys.modules["ydf"] = None
try:
    tvm_forest.load({str(tmp_path)!r})
except tvm_forest.UnsupportedModel as error:
    assert "field 'folder': the package ydf" in str(error), error
else:
    raise SystemExit(1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_frames_hold_categories_as_texts() -> None:
    source = model("boosted numbers")
    forest = tvm_forest.load(source)
    rows = probe(forest, source, 50)
    columns = to_columns(forest, source, rows)
    frame = pd.DataFrame({name: columns[name] for name in forest.feature_names})
    for name in ("few", "many"):
        frame[name] = frame[name].replace("", None).astype("category")
    predictor = tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))
    np.testing.assert_array_equal(predictor.predict(frame), predictor.predict(rows))
    columns["few"] = np.array(["new", "", *columns["few"][2:]])
    frame["few"] = pd.Categorical(columns["few"])
    np.testing.assert_array_equal(predictor.predict(frame), source.predict(columns))
    frame["few"] = pd.Categorical([1.5] * 50)
    with pytest.raises(InputError, match="column 'few' has the category 1.5, and those of the mod"):
        predictor.predict(frame)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split_axis": "SPARSE_OBLIQUE"}, "field 'condition': oblique_condition on column"),
        ({"missing_value_policy": "LOCAL_IMPUTATION"}, "field 'engine': .*no fast engine"),
        ({"loss": "POISSON"}, "field 'loss': POISSON is not among"),
    ],
)
@pytest.mark.cases(2)
def test_what_cannot_be_reproduced_is_refused(options: dict[str, Any], message: str) -> None:
    label = "real" if "loss" in options else "two"
    if "loss" in options:
        source = train(BOOSTED, label, of=("e", "f"), num_trees=2)
        source._model = _Told(source._model, loss=7)
    else:
        source = train(BOOSTED, label, **options)
    with pytest.raises(UnsupportedModel, match=message):
        tvm_forest.load(source)


class _Told:
    """A model that says of itself what it is told to."""

    def __init__(self, model: Any, **answers: Any) -> None:
        self._model, self._answers = model, answers

    def __getattr__(self, name: str) -> Any:
        if name in self._answers:
            return lambda: self._answers[name]
        return getattr(self._model, name)


def test_a_model_that_gives_margins_is_refused() -> None:
    raw = ydf.deserialize_model(model("boosted two").serialize())
    raw.set_output_logits(True)
    with pytest.raises(UnsupportedModel, match="field 'output_logits'"):
        tvm_forest.load(raw)


def test_other_models_of_ydf_are_refused() -> None:
    source = ydf.IsolationForestLearner(features=["a", "e"], num_trees=3).train(
        {name: data()[name] for name in ("a", "e")}, verbose=0
    )
    with pytest.raises(UnsupportedModel, match=r"ydf\.model.* cannot be loaded"):
        tvm_forest.load(source)


def test_a_bin_without_width_is_refused():
    from tvm_forest.frontends.ydf import nodes

    class Condition(SimpleNamespace):
        def WhichOneof(self, name):
            return "discretized_higher_condition"

    asked = Condition(discretized_higher_condition=SimpleNamespace(threshold=2))
    for last, is_refused in ((4.0, False), (3.0, True)):
        bins = SimpleNamespace(boundaries=[1.0, 2.0, 3.0, last])
        column = SimpleNamespace(name="f", discretized_numerical=bins)
        if is_refused:
            with pytest.raises(UnsupportedModel, match="field 'boundaries': a bin of column 'f'"):
                nodes._threshold(column, asked)
        else:
            assert nodes._threshold(column, asked) == 2.0


def test_bins_whose_missing_values_go_another_way_than_the_mean_are_refused():
    rng = np.random.default_rng(40)
    huge = np.exp(8 * rng.normal(size=400)).astype(np.float32)
    huge[rng.random(400) < 0.15] = np.nan
    label = np.nan_to_num(np.log(huge)) + rng.normal(size=400)
    learner = ydf.GradientBoostedTreesLearner(
        label="y",
        task=ydf.Task.REGRESSION,
        num_trees=8,
        discretize_numerical_columns=True,
        num_discretized_numerical_bins=30,
    )
    refused = learner.train({"f": huge, "y": label.astype(np.float32)}, verbose=0)
    with pytest.raises(UnsupportedModel, match="field 'na_value': .*discretize_numerical_columns"):
        tvm_forest.load(refused)
