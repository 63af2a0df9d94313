"""A model as bytes, as text, and as an open file is the model of the file."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import catboost_models
import lightgbm_models
import models
import onnx_models
import treelite_models
import tvm_forest
from tvm_forest import ModelFormatError


def _save_catboost(form: str) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model")
        catboost_models.MODELS["classifier"]().save_model(str(path), format=form)
        return path.read_bytes()


CONTENTS: dict[str, Callable[[], Any]] = {
    "xgboost save_raw": lambda: models.MODELS["logistic"]().save_raw(),
    "xgboost save_raw json": lambda: models.MODELS["logistic"]().save_raw("json"),
    "xgboost binary": lambda: Path("data/xgboost-0.90-logistic.model").read_bytes(),
    "lightgbm": lambda: lightgbm_models.MODELS["binary"]().model_to_string().encode(),
    "catboost json": lambda: _save_catboost("json"),
    "catboost cbm": lambda: _save_catboost("cbm"),
    "onnx": lambda: onnx_models.regressor(_draw_trees()).SerializeToString(),
    "treelite": lambda: _treelite().serialize_bytes(),
}
TEXTS = ("xgboost save_raw json", "lightgbm", "catboost json")


def _draw_trees() -> Any:
    return onnx_models.drawn_trees(0, 3, ["LEQ"])


def _treelite() -> Any:
    return treelite_models.MODELS[next(iter(treelite_models.MODELS))]()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])


@pytest.mark.parametrize("name", CONTENTS)
def test_bytes_in_all_forms_are_the_model_of_the_file(
    name: str, tmp_path: Path, here: None
) -> None:
    content = CONTENTS[name]()
    path = tmp_path / "model"
    path.write_bytes(content)
    wanted = tvm_forest.load(path).signature
    forms = (bytes(content), bytearray(content), memoryview(content), io.BytesIO(content))
    for form in (*forms, str(path), os.fsencode(path).decode()):
        assert tvm_forest.load(form).signature == wanted
    with path.open("rb") as file:
        assert tvm_forest.load(file).signature == wanted


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_the_model_of_the_file(name: str, tmp_path: Path) -> None:
    content = bytes(CONTENTS[name]())
    path = tmp_path / "model"
    path.write_bytes(content)
    wanted = tvm_forest.load(path).signature
    assert tvm_forest.load(content.decode()).signature == wanted
    assert tvm_forest.load(io.StringIO(content.decode())).signature == wanted
    with path.open() as file:
        assert tvm_forest.load(file).signature == wanted


def test_a_text_that_names_a_file_is_a_path(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    raw = models.MODELS["logistic"]().save_raw()
    for name in ("{model}", "two\nlines"):
        Path(name).write_bytes(raw)
        assert tvm_forest.load(name).source == "xgboost binary:logistic"


def test_what_cannot_be_told_apart_is_refused_with_what_to_give(tmp_path: Path) -> None:
    predictor = tvm_forest.build(models.MODELS["logistic"](), schedule=_simple())
    archive = io.BytesIO()
    predictor.save(archive)
    with pytest.raises(ModelFormatError, match="a compiled predictor .*load_predictor"):
        tvm_forest.build(archive.getvalue())
    for model in (b"", b"nothing", "some\ntext", io.BytesIO(b"nothing"), io.StringIO("x\n")):
        with pytest.raises(ModelFormatError, match="give a model file of XGBoost .*LightGBM"):
            tvm_forest.build(model)
    with pytest.raises(ModelFormatError, match=r"cannot read 'no\.json' .*give a model file"):
        tvm_forest.build("no.json")
    file = (tmp_path / "closed").open("wb+")
    file.close()
    with pytest.raises(ModelFormatError, match="the file cannot be read .*open it again"):
        tvm_forest.load(file)


def _simple() -> tvm_forest.Schedule:
    return tvm_forest.new_schedule(models.MODELS["logistic"]())


def test_a_predictor_is_built_of_bytes() -> None:
    booster = models.MODELS["logistic"]()
    rows = models.data()[0][:9]
    predictor = tvm_forest.build(booster.save_raw(), schedule=_simple())
    wanted = booster.inplace_predict(rows, predict_type="margin")
    np.testing.assert_array_equal(predictor.predict_margin(rows), wanted)
