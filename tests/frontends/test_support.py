"""The table of what is accepted is true, whole and the same in the docs."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn import ensemble

import lightgbm_models
import models
import onnx_models
import sklearn_models
import treelite_models
import tvm_forest
import xgboost_models
from support_page import PAGE, page_text
from tvm_forest.cli import main
from tvm_forest.errors import UnsupportedModel
from tvm_forest.forest.rules import WEIGHTED
from tvm_forest.frontends import load

FRONTENDS = Path(tvm_forest.__file__).parent / "frontends"
FILES = {
    "scikit-learn": "sklearn",
    "catboost": "catboost",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "onnx": "onnx",
    "treelite": "treelite",
    "ydf": "ydf",
}
FIELD_AT = {"unsupported": 0, "refuse_unsupported": 1}
"""Which argument of a function that refuses is the field."""
UNKNOWN_TO_XGBOOST = ("reg:magic", "multi:hinge", "", "binary")
UNKNOWN_TO_LIGHTGBM = ("magic", "regression_l3", "xentropy_2", "Binary")
OTHER_ESTIMATORS = ("RandomTreesEmbedding", "AdaBoostRegressor", "BaggingRegressor")


def names(library: str, part: str) -> set[str]:
    found = {row.name for row in tvm_forest.SUPPORT if (row.library, row.part) == (library, part)}
    assert found, (library, part)
    return found


def fields_refused(library: str) -> set[str]:
    """Fields that the calls of `unsupported` in a frontend name outright."""
    found = set()
    for path in (FRONTENDS / FILES[library]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in FIELD_AT:
                field = node.args[FIELD_AT[ast.unparse(node.func)]]
                found |= {field.value} if isinstance(field, ast.Constant) else set()
    return found


@pytest.mark.parametrize("library", FILES)
def test_the_refused_fields_are_those_that_the_checks_name(library: str) -> None:
    told, refused = names(library, "field"), fields_refused(library)
    assert told == refused, "name the fields in `list_refused` of the library's SUPPORT"


def test_the_page_is_made_of_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text(), "run tools/support_page.py"


def test_the_command_line_shows_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--support"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(tvm_forest.SUPPORT)
    for line, row in zip(lines, tvm_forest.SUPPORT, strict=True):
        assert all(text in line for text in row)


def test_info_without_a_model_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 2
    assert "argument 'model': missing" in capsys.readouterr().err


@pytest.mark.slow
def test_every_objective_of_xgboost_in_the_table_loads() -> None:
    every = (models.MODELS | xgboost_models.KINDS).values()
    sources = [load(make()).source for make in every]
    loaded = {x.removeprefix("xgboost ").removesuffix(WEIGHTED) for x in sources}
    later = {"reg:expectileerror"}  # of XGBoost 3.3, for Python 3.12 and newer
    assert loaded | later == names("xgboost", "objective") - {"reg:linear"}


@pytest.mark.parametrize("objective", UNKNOWN_TO_XGBOOST)
def test_another_objective_of_xgboost_is_refused_by_name(tmp_path: Path, objective: str) -> None:
    assert objective not in names("xgboost", "objective")
    document = json.loads(models.MODELS["logistic"]().save_raw("json"))
    document["learner"]["objective"]["name"] = objective
    (tmp_path / "model.json").write_text(json.dumps(document))
    with pytest.raises(UnsupportedModel, match=f"field 'objective': '{objective}' is not among"):
        load(tmp_path / "model.json")


@pytest.mark.slow
def test_every_objective_of_lightgbm_in_the_table_loads() -> None:
    every = (make() for make in lightgbm_models.MODELS.values())
    loaded = {load(model).source.removeprefix("lightgbm ") for model in every}
    assert loaded - {"custom"} == names("lightgbm", "objective") - {"(the user's own)"}


@pytest.mark.parametrize("objective", UNKNOWN_TO_LIGHTGBM)
def test_another_objective_of_lightgbm_is_refused_by_name(tmp_path: Path, objective: str) -> None:
    assert objective not in names("lightgbm", "objective")
    text = lightgbm_models.MODELS["binary"]().model_to_string()
    text = text.replace("objective=binary sigmoid:1", f"objective={objective}")
    (tmp_path / "model.txt").write_text(text)
    with pytest.raises(UnsupportedModel, match=f"field 'objective': '{objective}' is not among"):
        load(tmp_path / "model.txt")


@pytest.mark.slow
def test_every_estimator_of_scikit_learn_in_the_table_loads() -> None:
    loaded = {load(make()).source.split()[-1] for make in sklearn_models.MODELS.values()}
    assert loaded == names("scikit-learn", "estimator")


@pytest.mark.parametrize("name", OTHER_ESTIMATORS)
def test_another_estimator_is_refused_by_name(name: str) -> None:
    assert name not in names("scikit-learn", "estimator")
    model = getattr(ensemble, name)(n_estimators=2).fit(np.eye(4), np.arange(4))
    with pytest.raises(UnsupportedModel, match=f"field '__class__'.*{name} cannot be loaded"):
        load(model)


def test_every_postprocessor_of_treelite_in_the_table_loads() -> None:
    for name in names("treelite", "postprocessor"):
        load(treelite_models.drawn(num_class=(3,), ids=lambda tree: (0, tree % 3), post=name))


def test_every_mode_and_transform_of_onnx_in_the_table_loads() -> None:
    assert names("onnx", "mode") == set(onnx_models.MODES)
    for transform in names("onnx", "post_transform"):
        trees = onnx_models.drawn_trees(1, 4, ["LEQ"], 3, votes="all")
        load(onnx_models.regressor(trees, targets=3, post_transform=transform))
    with pytest.raises(UnsupportedModel, match="field 'post_transform': 'PROBIT' is not among"):
        load(onnx_models.regressor(trees, targets=3, post_transform="PROBIT"))
