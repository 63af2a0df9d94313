"""What damaged inputs once did: crash, escape as a foreign error, or give a wrong answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import lightgbm_models
import models
import sklearn_models
import tvm_forest
from forests import Split, forest_of
from onnx_models import Tree, regressor
from tvm_forest.errors import InputError, ModelFormatError, ScheduleError, UnsupportedModel
from tvm_forest.frontends import load
from tvm_forest.inputs import to_rows
from tvm_forest.schedule_prims import Schedule


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr"])
@pytest.mark.parametrize("place", [-1, 3, 10**9])
def test_a_place_outside_a_sparse_matrix_is_refused(form: str, place: int) -> None:
    matrix = sparse.coo_matrix(np.eye(3, dtype=np.float32)).asformat(form)
    (matrix.row if form == "coo" else matrix.indices)[1] = place
    with pytest.raises(InputError, match="damaged"):
        to_rows(matrix, forest_of([Split(0, 0.5, 1.0, 2.0)]))


@pytest.mark.parametrize("ends", [[0, 1, 2], [0, 1, 2, 99], [0, 2, 1, 3], [1, 1, 2, 3], [0.0] * 4])
def test_ends_that_do_not_fit_a_sparse_matrix_are_refused(ends: Any) -> None:
    matrix = sparse.csc_matrix(np.eye(3, dtype=np.float32))
    matrix.indptr = np.array(ends)
    with pytest.raises(InputError, match="indptr"):
        to_rows(matrix, forest_of([Split(0, 0.5, 1.0, 2.0)]))


@pytest.mark.parametrize("version", [[0, 9, 0], [-1, 0, 0], [3, -1, 0]])
def test_a_version_without_json_is_refused(version: list[int], tmp_path: Path) -> None:
    document = json.loads(models.MODELS["poisson"]().save_raw("json"))
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document | {"version": version}))
    with pytest.raises(ModelFormatError, match="'version'"):
        tvm_forest.load(path)


def test_onnx_weights_that_no_path_reaches_are_refused() -> None:
    leaf = Tree(votes={0: 0.5})
    model = regressor([leaf, Tree("LEQ", branches=(leaf, Tree("LT", branches=(leaf, leaf))))])
    modes = next(a for a in model.graph.node[0].attribute if a.name == "nodes_modes")
    load(model)
    modes.strings[1] = b"LEAF"
    with pytest.raises(ModelFormatError, match="weight"):
        load(model)


def test_rounds_with_another_number_of_trees_are_refused() -> None:
    model = sklearn_models.MODELS["hist"].__wrapped__()
    model.n_trees_per_iteration_ = 2
    with pytest.raises(ModelFormatError, match="one tree for each of 2"):
        load(model)


def test_rounds_with_another_number_of_outputs_are_refused() -> None:
    model = sklearn_models.MODELS["gb zero"].__wrapped__()
    load(model)
    model.n_trees_per_iteration_ = 2
    with pytest.raises(ModelFormatError, match="1 trees in a round for 2 outputs"):
        load(model)


def test_an_estimator_with_odd_attributes_gives_our_error() -> None:
    model = lightgbm_models.MODELS["estimator_regressor"].__wrapped__()
    model._Booster = 0.5
    with pytest.raises(ModelFormatError, match="do not fit together"):
        load(model)


def test_an_array_is_no_name_of_a_loop() -> None:
    with pytest.raises(ScheduleError, match="got an array"):
        Schedule(3).tile(np.arange(3), "t0", "t1", 2)
    with pytest.raises(ScheduleError, match="got an array"):
        Schedule(3).peel_walk("tree", np.arange(3))


def test_an_infinite_number_of_classes_is_refused(tmp_path: Path) -> None:
    document = json.loads(models.MODELS["poisson"]().save_raw("json"))
    document["learner"]["learner_model_param"]["num_class"] = float("inf")
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ModelFormatError, match="'num_class'"):
        tvm_forest.load(path)


@pytest.mark.parametrize("text", [str(2**63), f"[{-(2**63)}]", "1_0", "-inf", "[5E-1,x]", "0x1"])
def test_a_base_score_that_xgboost_reads_otherwise_is_refused(text: str, tmp_path: Path) -> None:
    document = json.loads(models.MODELS["missing_values"]().save_raw("json"))
    path = tmp_path / "model.json"
    for sound in ("12", "[5E-1]", "-1.5", "1e+2", "3."):
        document["learner"]["learner_model_param"]["base_score"] = sound
        path.write_text(json.dumps(document))
        tvm_forest.load(path)
    document["learner"]["learner_model_param"]["base_score"] = text
    path.write_text(json.dumps(document))
    with pytest.raises(ModelFormatError, match="'base_score': expected numbers"):
        tvm_forest.load(path)


@pytest.mark.parametrize("form", ["json", "ubj"])
def test_a_default_direction_that_is_neither_0_nor_1_is_refused(form: str, tmp_path: Path) -> None:
    data = bytes(models.MODELS["missing_values"]().save_raw(form))
    key = b'"default_left":[' if form == "json" else b"default_left[$U#L" + bytes(7)
    at = data.index(key) + len(key) + (form == "ubj")
    path = tmp_path / f"model.{form}"
    path.write_bytes(data)
    tvm_forest.load(path)
    path.write_bytes(data[:at] + (b"9" if form == "json" else b"\2") + data[at + 1 :])
    with pytest.raises(ModelFormatError, match="'default_left': tree 0, node 0 has a number that"):
        tvm_forest.load(path)


def test_trees_in_another_order_than_their_numbers_are_refused(tmp_path: Path) -> None:
    booster = models.MODELS["missing_values"]()[2:5]
    document = json.loads(booster.save_raw("json"))
    load(booster)
    document["learner"]["gradient_booster"]["model"]["trees"].reverse()
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ModelFormatError, match="'id': tree 0 has the number 2"):
        tvm_forest.load(path)


def test_an_onnx_tensor_without_dimensions_is_refused() -> None:
    model = regressor([Tree(votes={0: 0.5})], dtype="float64", base=[0.25])
    load(model)
    base = next(a for a in model.graph.node[0].attribute if a.name == "base_values_as_tensor")
    del base.t.dims[:]
    with pytest.raises(ModelFormatError, match=r"1 numbers for the shape \[\]"):
        load(model)


def test_an_onnx_leaf_without_weights_below_equality_is_refused() -> None:
    one, both = Tree(votes={0: 0.5}), Tree(votes={0: 0.5, 1: 2.0})
    load(regressor([Tree("LEQ", branches=(Tree(), both)), one, both], targets=2))
    load(regressor([Tree("EQ", branches=(one, Tree())), both], targets=2))
    with pytest.raises(UnsupportedModel, match="below BRANCH_EQ has no weight"):
        load(regressor([Tree("EQ", branches=(Tree(), one)), both], targets=2))


def test_any_mark_but_0_makes_a_node_of_scikit_learn_categorical() -> None:
    model = sklearn_models.MODELS["hist categories"].__wrapped__()
    sound = load(model)
    for (predictor,) in model._predictors:
        predictor.nodes["is_categorical"] *= 128
    assert load(model).signature == sound.signature


def test_a_node_of_scikit_learn_without_its_categories_is_refused() -> None:
    model = sklearn_models.MODELS["hist categories"].__wrapped__()
    load(model)
    first = model._predictors[0][0]
    node = np.argmax(first.nodes["is_categorical"])
    first.nodes["bitset_idx"][node] = len(first.raw_left_cat_bitsets)
    with pytest.raises(ModelFormatError, match="no set of categories in its tree"):
        load(model)
