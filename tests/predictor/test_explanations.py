"""Explanations as the package shap holds them, and reasons."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest
import xgboost as xgb
from sklearn.ensemble import RandomForestClassifier

import shapley
import tvm_forest
from forests import Split, drawn_forest, forest_of
from quick_builds import build
from tvm_forest.errors import InputError
from tvm_forest.streams.formats import Predicted

shap = pytest.importorskip("shap")


def frame() -> Any:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(60, 3)), columns=["age", "debt", "income"])
    rows["home"] = pd.Categorical(rng.choice(["own", "rent"], 60))
    return rows


def train(classes: int = 2) -> Any:
    rows = frame()
    score = rows.age + (rows.home == "own") + rows.debt * rows.income
    target = np.digitize(score, [0.3, 1][: classes - 1])
    options = {"n_estimators": 3, "max_depth": 3, "enable_categorical": True}
    return xgb.XGBClassifier(**options).fit(rows, target)


def test_explanations_are_those_of_the_package() -> None:
    numbers = frame()[["age", "debt", "income"]]
    target = np.digitize(numbers.age + numbers.debt, [0, 1])
    trained = RandomForestClassifier(3, max_depth=4, random_state=0).fit(numbers, target)
    found, theirs = build(trained).explain(numbers), shap.TreeExplainer(trained)(numbers)
    np.testing.assert_allclose(found.values, theirs.values, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.base_values, theirs.base_values, rtol=0, atol=1e-12)
    assert np.array_equal(found.data, theirs.data.astype(np.float32))
    assert list(found.feature_names) == list(theirs.feature_names)
    assert found[0, :, "2"].values.shape == (3,)


@pytest.mark.parametrize("classes", [2, 3])
def test_values_and_base_values_add_up_to_the_margin(classes: int) -> None:
    predictor, rows = build(train(classes)), frame()
    found = predictor.explain(rows)
    assert found.values.shape == ((60, 4) if classes == 2 else (60, 4, 3))
    total = found.values.sum(axis=1) + found.base_values
    np.testing.assert_allclose(total, predictor.predict_margin(rows), atol=1e-5)
    assert found.feature_names == ["age", "debt", "income", "home"]


def test_data_are_what_the_user_passes() -> None:
    predictor, rows = build(train()), frame()
    shown = predictor.explain(rows).data
    assert shown[:, 3].tolist() == rows.home.tolist()
    assert np.array_equal(shown[:, 0].astype(float), rows.age)
    for other in (polars.from_pandas(rows), pyarrow.Table.from_pandas(rows)):
        assert predictor.explain(other).data[:, 3].tolist() == rows.home.tolist()
    named = predictor.explain(rows.iloc[0].to_dict())
    assert named.data[0, 3] == rows.home[0] and named.data.shape == (1, 4)
    assert predictor.explain(np.zeros((2, 4))).data.dtype == np.float32


def test_models_without_names_are_explained() -> None:
    forest = shapley.with_cover(forest_of([Split(0, 0.0, 1.0, Split(1, 0.0, 2.0, 4.0))]))
    found = build(forest).explain(np.zeros((3, 3)))
    assert found.feature_names == ["Feature 0", "Feature 1", "Feature 2"]


def test_without_the_package_an_error_says_what_to_install(monkeypatch: Any) -> None:
    predictor = build(train())
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(InputError, match=r"pip install 'tvm-forest\[shap\]'"):
        predictor.explain(frame())


@pytest.mark.parametrize("plot", ["bar", "beeswarm", "waterfall"])
def test_plots_of_the_package_take_explanations(plot: str) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    found = build(train()).explain(frame())
    getattr(shap.plots, plot)(found[0] if plot == "waterfall" else found, show=False)
    texts = [x.get_text() for axes in plt.gcf().axes for x in axes.get_yticklabels()]
    plt.close("all")
    assert any("home" in text for text in texts)


# -- reasons --------------------------------------------------------------------------------------


def test_reasons_are_the_largest_contributions() -> None:
    predictor, rows = build(train()), frame()
    values = predictor.predict_contributions(rows)[:, :-1]
    for toward, sign in (("any", np.abs), ("higher", np.positive), ("lower", np.negative)):
        found = predictor.reasons(rows, 2, toward)
        for row, value in enumerate(sign(values)):
            wanted = sorted(range(4), key=lambda at: (-value[at], at))[:2]
            wanted = [at if value[at] > 0 else -1 for at in wanted]
            assert found.columns[row].tolist() == wanted
            own = [values[row, at] if at >= 0 else 0.0 for at in wanted]
            assert found.values[row].tolist() == own
            names = [rows.columns[at] if at >= 0 else "" for at in wanted]
            assert found.names[row].tolist() == names


def test_each_class_has_reasons_of_its_own() -> None:
    predictor = build(train(3))
    found = predictor.reasons(frame(), 9)
    assert found.columns.shape == found.values.shape == found.names.shape == (60, 3, 4)


def test_wrong_numbers_of_reasons_are_refused() -> None:
    predictor = build(train())
    for k in (0, True, 1.5):
        with pytest.raises(InputError, match="reasons: argument 'k'"):
            predictor.reasons(frame(), k)
    for toward in ("up", 1, np.array(["any", "up"])):
        with pytest.raises(InputError, match="have: any, higher, lower"):
            predictor.reasons(frame(), 1, toward)


# -- files ----------------------------------------------------------------------------------------


def test_files_get_a_column_for_each_contribution_and_reason(tmp_path: Path) -> None:
    predictor, rows = build(train()), frame()
    rows.to_parquet(tmp_path / "rows.parquet")
    values, found = predictor.predict_contributions(rows), predictor.reasons(rows)
    for suffix in ("parquet", "csv"):
        target = tmp_path / f"found.{suffix}"
        for kind in ("predict_contributions", "reasons"):
            tvm_forest.predict_file(predictor, tmp_path / "rows.parquet", target, kind=kind)
            table = pd.read_parquet(target) if suffix == "parquet" else pd.read_csv(target)
            if kind == "reasons":
                assert list(table)[:3] == ["reason_1", "reason_1_value", "reason_2"]
                assert table["reason_1"].tolist() == found.names[:, 0].tolist()
                assert table["reason_2_value"].tolist() == found.values[:, 1].tolist()
            else:
                names = [*rows.columns, "base"]
                assert list(table) == [f"contribution_{name}" for name in names]
                assert np.array_equal(table.to_numpy(), values)


def test_columns_of_several_outputs_begin_with_their_number() -> None:
    predictor = build(train(3))
    found = {
        kind: getattr(predictor, kind)(frame()) for kind in ("predict_contributions", "reasons")
    }
    names = {k: list(Predicted(k, x, predictor.forest).columns) for k, x in found.items()}
    assert names["predict_contributions"][3:6] == [
        "contribution_0_home", "contribution_0_base", "contribution_1_age"
    ]  # fmt: skip
    assert names["reasons"][7:9] == ["reason_0_4_value", "reason_1_1"]


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        (["base", "base_"], ["base", "base_", "base__"]),
        (["a", "a"], ["a", "a_", "base"]),  # which XGBoost reads from a file
        (["a", "a_"], ["a", "a_", "base"]),
    ],
)
def test_no_contribution_is_lost_by_the_name_of_its_column(
    names: list[str], ends: list[str]
) -> None:
    forest = replace(drawn_forest(3, 2, n_features=2), feature_names=tuple(names))
    values = np.arange(12.0).reshape(4, 3)
    columns = Predicted("predict_contributions", values, forest).columns
    assert list(columns) == [f"contribution_{end}" for end in ends]
    assert np.array_equal(np.stack(list(columns.values()), axis=1), values)


def test_reasons_do_not_go_into_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((3, 2), np.float32))
    forest = shapley.with_cover(drawn_forest(3, 2, n_features=2))
    predictor, out = build(forest), tmp_path / "out.npy"
    with pytest.raises(InputError, match="use another format for reasons"):
        tvm_forest.predict_file(predictor, tmp_path / "rows.npy", out, kind="reasons")
    assert not out.exists()
