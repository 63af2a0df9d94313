"""What damaged inputs once did: crash, escape as a foreign error, or give a wrong answer."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

import catboost_models
import lightgbm_models
import models
import sklearn_models
import tvm_forest
from forests import Split, forest_of
from onnx_models import Tree, regressor
from tvm_forest.errors import InputError, ModelFormatError, ScheduleError, UnsupportedModel
from tvm_forest.frontends import load
from tvm_forest.predictor import saving
from tvm_forest.predictor.inputs import to_rows
from tvm_forest.schedule_prims import Schedule
from tvm_forest.search.machines import Machine, shipped_machines
from tvm_forest.search.records import TrialRecord, read_records
from tvm_forest.streams.reading import read_rows
from tvm_forest.system import archive


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


# -- files of rows --------------------------------------------------------------------------------


@functools.cache
def named() -> tvm_forest.Predictor:
    forest = forest_of([Split(0, 0.5, 1.0, 2.0)], n_features=2, feature_names=("a", "b"))
    forest = replace(forest, category_names={1: ("low", "high")})
    return tvm_forest.build(forest, schedule=lambda start: start)


def predicted(data: bytes, form: str) -> None:
    """Predict the rows of a file, for errors."""
    target = io.BytesIO()
    tvm_forest.predict_file(
        named(), io.BytesIO(data), target, source_format=form, target_format="jsonl"
    )


def arrow_file(stream: bool = False) -> bytes:
    table = pa.table({"a": [0.0, 1.0, 2.0, 3.0], "b": ["low", "high", "low", "none"]})
    file = io.BytesIO()
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(file, table.schema) as opened:
        opened.write_table(table)
    return file.getvalue()


def test_texts_of_arrow_outside_of_their_buffer_are_refused() -> None:
    data = arrow_file()
    predicted(data, "arrow")
    at = data.index(struct.pack("<5i", 0, 3, 7, 10, 14))
    damaged = data[: at + 4] + struct.pack("<i", 10**9) + data[at + 8 :]
    with pytest.raises(InputError, match="cannot be read"):
        predicted(damaged, "arrow")


def test_an_arrow_stream_that_asks_for_all_memory_is_refused() -> None:
    data = arrow_file(stream=True)
    predicted(data, "arrow")
    assert data[:4] == b"\xff" * 4
    resource = pytest.importorskip("resource", reason="limits of POSIX")
    limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, limit[1]))
    try:
        with pytest.raises(InputError, match="cannot be read"):
            predicted(data[:4] + b"\xff\xff\xff\x7f" + data[8:], "arrow")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)


def npy_file(header: str) -> bytes:
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + bytes(16)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': F`lse, 'shape': (2, 2), ",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, True)}",
    ],
)
def test_a_damaged_header_of_numpy_is_refused(header: str, tmp_path: Path) -> None:
    forest = forest_of([Split(0, 0.5, 1.0, 2.0)], n_features=2)
    model = tvm_forest.build(forest, schedule=lambda start: start)
    path = tmp_path / "rows.npy"
    for text in ("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}", header):
        path.write_bytes(npy_file(text))
        if text is not header:
            tvm_forest.predict_file(model, path, tmp_path / "out.npy")
            continue
        with pytest.raises(InputError, match="cannot be read|an array of shape"):
            tvm_forest.predict_file(model, path, tmp_path / "out.npy")
        with pytest.raises(InputError):
            to_rows(read_rows(path, model.forest, "tune"), model.forest)


def test_a_field_of_csv_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("1,2\n1," + "2" * 140_000 + "\n")
    with pytest.raises(InputError, match="tune: rows file .* line 2: damaged: field larger"):
        read_rows(path, forest_of([Split(0, 0.5, 1.0, 2.0)], n_features=2), "tune")


# -- files of our own -----------------------------------------------------------------------------


@pytest.mark.parametrize("field, value", [("seconds", "1"), ("batch", 0), ("rounds", None)])
def test_a_record_with_a_value_of_another_kind_is_refused(
    field: str, value: Any, tmp_path: Path
) -> None:
    facts = dict.fromkeys(("model", "target", "cpu", "versions", "n_jobs", "rows"), "x")
    line = json.loads(TrialRecord(facts, 1, Schedule(3), 1.0, 1.0, 3, 1.0).to_line())
    path = tmp_path / "tune.jsonl"
    path.write_text(json.dumps(line) + "\n")
    assert len(read_records(path)) == 1
    path.write_text(json.dumps(line | {field: value}) + "\n")
    with pytest.raises(InputError, match="line 1 is no record"):
        read_records(path)


def test_an_archive_of_other_parts_with_the_right_checksum_is_refused() -> None:
    sound = archive.pack(archive.Archive({"a": 1}, {"b": b"12"}))
    assert archive.unpack(sound, "x").parts == {"b": b"12"}
    digest = len(archive.digest_of(sound))
    for body in (
        sound[:-digest].replace(b"PK\5\6", b"PK\5\7"),
        sound[:-digest].replace(b'{\n "a": 1\n}', b'[\n "a"  \n ]'),
    ):
        data = body + hashlib.sha256(body).hexdigest().encode()
        with pytest.raises(ModelFormatError, match="right checksum, but not the parts"):
            archive.unpack(data, "x")


def test_a_machine_with_an_infinite_cache_is_refused() -> None:
    text = shipped_machines()[0].to_json()
    data = json.loads(text) | {"cache_bytes": [float("inf")]}
    with pytest.raises(InputError, match="no description of a machine"):
        Machine.from_json(json.dumps(data), "machine.json")


# -- CatBoost and YDF -----------------------------------------------------------------------------


COUNTER = (
    '{"identifier":[{"cat_feature_index":1,"combination_element":"cat_feature_value"}],'
    '"type":"Counter"}'
)


def set_in(document: Any, path: tuple[Any, ...], value: Any) -> None:
    *holders, last = path
    for key in holders:
        document = document[key]
    document[last] = value(document[last]) if callable(value) else value


@pytest.mark.parametrize(
    "name, path, value, said",
    [
        ("regressor", ("oblivious_trees", 0, "splits", 0, "split_index"), 0, "is not the border"),
        ("one_hot", ("features_info", "float_features", 0, "borders"), lambda x: x[::-1], "ascend"),
        (
            "one_hot",
            ("features_info", "categorical_features", 1, "flat_feature_index"),
            10,
            "another order than their features",
        ),
        ("categories", ("features_info", "ctrs", 0, "target_border_idx"), 1, "1 of 2 counts"),
        (
            "categories",
            ("features_info", "ctrs", 4, "elements", 0, "cat_feature_index"),
            0,
            "not that of the elements",
        ),
        ("categories", ("ctr_data", COUNTER, "counter_denominator"), 2**64, "from 0 to 2147483647"),
        (
            "classes",
            ("model_info", "class_params", "class_to_label"),
            [2, 1, 1],
            r"class_to_label \[2, 1, 1\] is not 3 of 3 classes",
        ),
    ],
)
def test_a_file_of_catboost_that_contradicts_itself_is_refused(
    name: str, path: tuple[Any, ...], value: Any, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "model.json"
    catboost_models.MODELS[name]().save_model(str(file), format="json")
    load(file)
    document = json.loads(file.read_text())
    set_in(document, path, value)
    file.write_text(json.dumps(document))
    with pytest.raises((ModelFormatError, UnsupportedModel), match=said):
        load(file)


def test_a_binary_file_of_catboost_with_damaged_parameters_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.cbm"
    catboost_models.MODELS["regressor"]().save_model(str(file))
    data = file.read_bytes()
    load(data)
    with pytest.raises(ModelFormatError, match="cannot be read"):
        load(data.replace(b'"loss_function"', b'"loss\x00function"'))


def test_what_goes_wrong_in_a_folder_of_ydf_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ydf = pytest.importorskip("ydf")
    (tmp_path / "header.pb").touch()
    damaged = type("RandomForestModel", (), {"__module__": "ydf.model"})  # which has no tasks
    monkeypatch.setattr(ydf, "load_model", lambda path: damaged())
    with pytest.raises(ModelFormatError, match="folder"):
        load(tmp_path)


def with_forest(**changed: Any) -> bytes:
    """A saved predictor whose forest has other fields, which its checksum confirms."""
    whole = archive.unpack(saved_predictor(), "test")
    parts, values = dict(whole.parts), dict(whole.manifest["forest"])
    for name, value in changed.items():
        if isinstance(value, np.ndarray):
            parts[f"forest/{name}.npy"] = value
        else:
            values[name] = value
    return archive.pack(archive.Archive({**whole.manifest, "forest": values}, parts))


@functools.lru_cache
def saved_predictor() -> bytes:
    forest = forest_of([Split(0, 0.5, 1.0, 2.0), Split(1, 0.5, 1.0, 2.0)], base=[0.1])
    file = io.BytesIO()
    tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest)).save(file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threshold", np.zeros((6, 1), np.float32)),
        ("threshold", np.zeros(6, np.float16)),
        ("threshold", np.zeros(6, ">f4")),
        ("base_score", np.zeros(1, np.complex64)),
        ("leaf_value", np.zeros((6, 1, 1), np.float32)),
        ("leaf_value", np.zeros(6, np.float32)),
        ("default_left", np.zeros(6, "U1")),
        ("left", np.zeros(6, np.float64)),
        ("tree_offset", np.zeros(0, np.int64)),
        ("tree_offset", np.array([1, 3, 6])),
        ("n_features", 2.5),
        ("n_features", "2"),
        ("missing", [1.0]),
        ("zero_missing", [0.5]),
        ("zero_missing", 3),
        ("link", "cube"),
        ("aggregate", None),
        ("row_dtype", "float16"),
        ("row_dtype", [["x", "f4"]]),
        ("categories", [[0, [0.5]]]),
        ("categories", [[99, [1]]]),
        ("categories", [[0, [10**30]]]),
        ("derived", [[99, [1]]]),
        ("known_categories", [["0", [1]]]),
    ],
)
def test_a_field_of_another_type_in_a_saved_predictor_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ModelFormatError, match=f"'{name}'|load: .*not as expected"):
        saving.from_bytes(with_forest(**{name: value}), "load", recompile=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("part_place", 99),
        ("table_begin", -1),
        ("table_parts", 99),
        ("numbers", 99),
        ("known", None),
    ],
)
def test_an_encoder_that_contradicts_itself_is_refused(name: str, value: Any) -> None:
    forest = tvm_forest.load(catboost_models.MODELS["category_classes"]())
    array = getattr(forest.encoder, name).copy()
    if value is None:
        array = array[:-1]
    else:
        array.flat[0] = value
    with pytest.raises(ModelFormatError, match=f"'encoder': '{name}'"):
        replace(forest, encoder=replace(forest.encoder, **{name: array}))
