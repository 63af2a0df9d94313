"""The examples in docstrings of public functions and methods run, and give what they show."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from tvm_forest import Crossover, Predictor, QuantilePredictor
from tvm_forest.schedule_prims.recipes import RECIPES

WITHOUT = {"compile", "patch", "unpatch", "warm"}
"""Functions whose effect outlives an example, or that would take its seconds."""


LACKED = {"update", "update_leaves", "rounds", "predict_value", "export_library"}
"""Methods of a Predictor that one of quantiles refuses."""


def list_documented() -> dict[str, Callable[..., Any]]:
    """Return public functions, and public methods of what predicts, by name."""
    functions = {name: getattr(tvm_forest, name) for name in tvm_forest._ROOM_OF}
    found = {name: x for name, x in functions.items() if inspect.isfunction(x)}
    own = {name: x for name, x in vars(QuantilePredictor).items() if name not in LACKED}
    all_of = {"Predictor": dict(inspect.getmembers(Predictor)), "QuantilePredictor": own}
    for kind, of_class in (all_of | {"Crossover": dict(inspect.getmembers(Crossover))}).items():
        for name, x in of_class.items():
            if not name.startswith("_") and (inspect.isfunction(x) or inspect.ismethod(x)):
                found[f"{kind}.{name}"] = x
    return found


DOCUMENTED = list_documented()


@pytest.fixture(scope="module")
def names(kept_code: None) -> dict[str, Any]:
    """What an example may use: a model, its rows and labels, a plain schedule, predictors."""
    import xgboost
    from sklearn.datasets import load_iris
    from sklearn.ensemble import RandomForestRegressor

    rows, labels = load_iris(return_X_y=True)
    model = xgboost.XGBClassifier(n_estimators=5, max_depth=2, n_jobs=1).fit(rows, labels)
    plain = tvm_forest.new_schedule(model)
    predictor = tvm_forest.build(model, schedule=plain)
    on_gpu = tvm_forest.build(model, "simt", lambda sch: RECIPES["tahoe_direct"](sch, rows=8))
    regressor = RandomForestRegressor(10, max_depth=3, random_state=0).fit(rows, labels)
    quantiles = tvm_forest.build_quantiles(regressor, rows, labels, schedule=lambda start: start)
    more = {"regressor": regressor, "quantile_predictor": quantiles, "on_gpu": on_gpu}
    known = {"np": np, "tvm_forest": tvm_forest, "model": model, "rows": rows, "labels": labels}
    return {**known, **more, "plain": plain, "predictor": predictor}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_example_of_a_function_gives_what_it_shows(
    name: str, names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(DOCUMENTED[name]) or ""
    example = doctest.DocTestParser().get_doctest(text, dict(names), name, None, 0)
    assert example.examples or name in WITHOUT, f"{name} has no example"
    said = list[str]()
    result = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert result.failed == 0, "".join(said)
