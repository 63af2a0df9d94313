"""What a notebook shows and completes of an object: short, and by the names of scikit-learn."""

from __future__ import annotations

from html import escape

import numpy as np
import pandas as pd
import pytest
import xgboost

import tvm_forest
from forests import drawn_forest
from tvm_forest.system.values import replace

FOREST = drawn_forest(40, 6, seed=1, n_features=5)
START = tvm_forest.new_schedule(FOREST)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (FOREST, f"40 trees, {FOREST.n_nodes} nodes, 5 columns, outputs: 1>"),
        (START, "<Schedule of 40 trees: row by row, tree by tree>"),
        (START.interleave("tree", 4), "<Schedule of 40 trees: interleave('tree', 4)>"),
        (tvm_forest.lower(FOREST, START), "<Lowered: apply, per_tree, predict; .before, .after"),
    ],
    ids=["forest", "schedule", "steps", "lowered"],
)
def test_objects_say_in_a_line_what_they_are(shown: object, text: str) -> None:
    assert text in repr(shown) and len(repr(shown)) < 200 and "\n" not in repr(shown)


def test_notebooks_show_models_as_tables_and_schedules_as_loops() -> None:
    predictor = tvm_forest.build(FOREST, schedule=START.interleave("tree", 4))
    shown = predictor._repr_html_()
    assert shown.startswith(f"<table><caption>{escape(repr(predictor))}</caption>")
    assert "<th>trees</th><td><pre>40</pre>" in shown
    assert f"<th>from 1 rows on</th><td><pre>{escape(str(predictor.schedule))}</pre>" in shown
    assert "<th>trees</th><td><pre>40</pre>" in FOREST._repr_html_()
    assert START._repr_html_() == f"<pre>{escape(str(START))}</pre>"
    assert "<b>" not in replace(FOREST, source="<b>")._repr_html_()


def test_forests_differ_that_differ_in_rounds_left_out() -> None:
    longer = [drawn_forest(5, 2, seed=seed) for seed in (1, 2)]
    first, other = (replace(FOREST, with_all_rounds=x, rounds_left_out=1) for x in longer)
    assert first.signature == other.signature and first.identity != other.identity


def test_predictors_have_the_attributes_of_fitted_estimators() -> None:
    rows = pd.DataFrame(np.eye(6, 3), columns=["a", "b", "c"])
    model = xgboost.XGBClassifier(n_estimators=2).fit(rows, [0, 1, 2, 0, 1, 2])
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    assert predictor.n_features_in_ == model.n_features_in_
    assert predictor.feature_names_in_.tolist() == model.feature_names_in_.tolist()
    assert predictor.classes_.tolist() == model.classes_.tolist()
    bare = tvm_forest.build(FOREST, schedule=START)
    assert not hasattr(bare, "feature_names_in_") and not hasattr(bare, "classes_")
    assert bare.n_features_in_ == 5
