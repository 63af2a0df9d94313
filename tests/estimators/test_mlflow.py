"""The flavour of MLflow: what is logged predicts what the model predicts."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import xgboost

if find_spec("mlflow") is None:
    pytest.skip("the extra `mlflow` is not installed", allow_module_level=True)

import lightgbm

import tvm_forest
from tvm_forest.errors import InputError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.predictor import saving
from tvm_forest.system import code_cache

if TYPE_CHECKING:
    import mlflow

    import tvm_forest.mlflow

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import MLflow where its tests run, and not where they are collected: it takes seconds."""
    globals()["mlflow"] = importlib.import_module("mlflow")
    importlib.import_module("tvm_forest.mlflow")


@pytest.fixture(scope="module")
def frame() -> Any:
    rng = np.random.default_rng(0)
    colors = pd.Categorical(rng.choice(["blue", "green", "red"], 200))
    return pd.DataFrame({"x": rng.normal(size=200), "color": colors, "n": rng.integers(0, 9, 200)})


@pytest.fixture(scope="module")
def model(frame: Any) -> Any:
    model = xgboost.XGBClassifier(n_estimators=4, max_depth=3, enable_categorical=True)
    return model.fit(frame, (frame["color"] == "red") ^ (frame["x"] > 0))


@pytest.fixture(scope="module")
def predictor(model: Any) -> Any:
    return tvm_forest.build(model, schedule=lambda start: start)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: Any) -> Any:
    """A store of its own, in files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_PRINT_MODEL_URLS_ON_CREATION", "false")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    yield
    mlflow.set_tracking_uri(before)


def test_a_logged_model_predicts_what_the_model_predicts(
    store: None, predictor: Any, model: Any, frame: Any
) -> None:
    with mlflow.start_run() as run:
        info = tvm_forest.mlflow.log_model(predictor, name="model", input_example=frame[:3])
    assert info.run_id == run.info.run_id
    loaded = tvm_forest.mlflow.load_model(info.model_uri)
    assert loaded.signature == predictor.signature
    assert np.array_equal(loaded.predict(frame), model.predict(frame))
    assert np.array_equal(loaded.predict_proba(frame), predictor.predict_proba(frame))
    rows = hard_rows(predictor.forest, 200, 1)
    assert np.array_equal(loaded.predict_margin(rows), predictor.predict_margin(rows))
    assert info.signature.inputs.input_names() == ["x", "color", "n"]
    function = mlflow.pyfunc.load_model(info.model_uri)
    for given in (frame, frame.astype({"color": str}), frame.astype({"color": object})):
        assert np.array_equal(function.predict(given), model.predict(frame))
    assert set(info.flavors) == {"python_function", "tvm_forest"}
    assert info.flavors["python_function"]["loader_module"] == "tvm_forest.mlflow"


def test_as_a_function_it_takes_columns_by_name(
    tmp_path: Path, predictor: Any, model: Any, frame: Any
) -> None:
    tvm_forest.mlflow.save_model(predictor, tmp_path / "model")
    function = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    mixed = frame[["n", "color", "x"]].assign(other=1)
    assert np.array_equal(function.predict(mixed), model.predict(frame))
    assert function.get_raw_model().signature == predictor.signature
    with pytest.raises(InputError, match="no column 'color', 'n'"):
        function.predict(frame[["x"]])
    requirements = (tmp_path / "model" / "requirements.txt").read_text().split()
    own = f"tvm-forest[mlflow]=={tvm_forest.__version__}"  # MLflow may add itself
    assert own in requirements and all(x == own or x.startswith("mlflow==") for x in requirements)


def test_categories_of_lightgbm_are_taken_as_texts(tmp_path: Path, frame: Any) -> None:
    model = lightgbm.LGBMRegressor(n_estimators=4, num_leaves=5, min_data_in_leaf=2, verbose=-1)
    model.fit(frame, (frame["color"] == "red") * frame["x"])
    tvm_forest.mlflow.save_model(model, tmp_path / "model", input_example=frame[:3])
    function = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    expected = model.predict(frame)
    assert len(set(expected)) > 4
    for column in (frame["color"], frame["color"].astype(object), frame["color"].astype("str")):
        assert np.array_equal(function.predict(frame.assign(color=column)), expected)


def test_a_param_asks_for_another_kind(tmp_path: Path, predictor: Any, frame: Any) -> None:
    some, texts = frame[:5], frame[:5].astype({"color": str})
    signature = mlflow.models.infer_signature(
        texts, predictor.predict(some), params={"kind": "predict"}
    )
    tvm_forest.mlflow.save_model(predictor, tmp_path / "model", signature=signature)
    function = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    for kind in ("predict", "predict_proba", "apply"):
        found = function.predict(texts, params={"kind": kind})
        assert np.array_equal(found, getattr(predictor, kind)(some))
    with pytest.raises(InputError, match="param 'kind': 'x' is unknown"):
        function.predict(texts, params={"kind": "x"})


@pytest.mark.parametrize("way", ["nothing", "example", "example, params", "signature", "logged"])
def test_every_model_that_is_saved_takes_the_kind(
    way: str, store: None, tmp_path: Path, predictor: Any, frame: Any
) -> None:
    some, texts = frame[:5], frame[:5].astype({"color": str})
    options: dict[str, Any] = {
        "nothing": {},
        "example": {"input_example": some},
        "example, params": {"input_example": (some, {"kind": "predict_proba"})},
        "signature": {"signature": mlflow.models.infer_signature(texts, predictor.predict(some))},
        "logged": {"input_example": some, "name": "model"},
    }[way]
    if way == "logged":
        place = tvm_forest.mlflow.log_model(predictor, **options).model_uri
    else:
        place = str(tmp_path / "model")
        tvm_forest.mlflow.save_model(predictor, place, **options)
    function = mlflow.pyfunc.load_model(place)
    for kind in ("predict_proba", "predict_margin"):
        found = function.predict(texts, params={"kind": kind})
        assert np.array_equal(found, getattr(predictor, kind)(some))
    with pytest.raises(InputError, match="param 'kind': 'x' is unknown"):
        function.predict(texts, params={"kind": "x"})
    if way != "example, params":
        assert np.array_equal(function.predict(texts), predictor.predict(some))


def test_stored_code_is_not_run_if_it_is_not_trusted(
    tmp_path: Path, predictor: Any, frame: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv(code_cache.VARIABLE, "off")
    tvm_forest.mlflow.save_model(predictor, tmp_path / "model")
    monkeypatch.setattr(saving, "_load_all", None)  # what would load it is no function
    loaded = tvm_forest.mlflow.load_model(str(tmp_path / "model"), recompile=True)
    assert np.array_equal(loaded.predict(frame), predictor.predict(frame))


def test_a_model_of_another_flavour_is_refused(tmp_path: Path) -> None:
    other = mlflow.models.Model()
    other.add_flavor("other")
    (tmp_path / "model").mkdir()
    other.save(tmp_path / "model" / "MLmodel")
    with pytest.raises(InputError, match="has the flavours other; save it by tvm_forest.mlflow"):
        tvm_forest.mlflow.load_model(str(tmp_path / "model"))


def test_the_package_is_imported_without_mlflow_and_without_the_server() -> None:
    program = (
        "import sys, tvm_forest; from tvm_forest import build, cli, serving; "
        "print(*sorted({'mlflow', 'fastapi', 'uvicorn', 'orjson'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == []
