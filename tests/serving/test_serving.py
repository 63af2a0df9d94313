"""The server speaks the Open Inference Protocol V2, with the bits of `predict`."""

from __future__ import annotations

import asyncio
import json
import math
import re
import struct
import threading
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.ensemble import RandomForestClassifier

pytest.importorskip("httptools", reason="the extra `serve` is not installed")
pytest.importorskip("orjson", reason="the extra `serve` is not installed")

import tvm_forest
from served import ask, build, get, infer, read, serve, to_binary, to_json
from tvm_forest.errors import InputError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.serving import Settings, app, batching, make_application, tensors, warn_of_strangers
from tvm_forest.serving.models import OUTPUTS
from tvm_forest.serving.repository import Named

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def predictor() -> Any:
    return build()


@pytest.fixture(scope="module")
def classes() -> Any:
    """Labels that are texts, and several outputs, in float64."""
    rows = np.random.default_rng(1).normal(size=(150, 3))
    labels = np.array(["no", "pérhaps", "yes"])[(rows[:, 0] > 0) + (rows[:, 1] > 0).astype(int)]
    model = RandomForestClassifier(4, max_depth=3, random_state=0).fit(rows, labels)
    return tvm_forest.build(model, schedule=lambda start: start)


@pytest.fixture(scope="module")
def application(predictor: Any, classes: Any) -> Any:
    return serve(predictor, classes)


@pytest.fixture(scope="module")
def rows(predictor: Any) -> Any:
    return hard_rows(predictor.forest, 300, 1)


def test_server_and_models_describe_themselves(application: Any) -> None:
    version = tvm_forest.__version__
    about = {"name": "tvm-forest", "version": version, "extensions": ["binary_tensor_data"]}
    assert get(application, "/v2").json() == get(application, "/v2/").json() == about
    assert get(application, "/v2/health/live").json() == {"live": True}
    assert get(application, "/v2/health/ready").json() == {"live": True, "ready": True}
    for path in ("/v2/models/m/ready", "/v2/models/m/versions/1/ready"):
        assert get(application, path).json() == {"name": "m", "ready": True}
    for path in ("/v2/models/m", "/v2/models/m/versions/1"):
        assert get(application, path).json() == {
            "name": "m",
            "versions": ["1"],
            "platform": "tvm_forest",
            "inputs": [{"name": "rows", "datatype": "FP32", "shape": [-1, 3]}],
            "outputs": [
                {"name": "predict", "datatype": "FP32", "shape": [-1]},
                {"name": "predict_proba", "datatype": "FP32", "shape": [-1, 2]},
                {"name": "predict_margin", "datatype": "FP32", "shape": [-1]},
                {"name": "apply", "datatype": "FP32", "shape": [-1, 4]},
                {"name": "predict_per_tree", "datatype": "FP32", "shape": [-1, 4]},
                {"name": "predict_contributions", "datatype": "FP64", "shape": [-1, 4]},
            ],
            "parameters": {"columns": [{"name": x, "datatype": "FP32"} for x in "abc"]},
        }
    about = get(application, "/v2/models/m1").json()
    assert about["outputs"][0] == {"name": "predict", "datatype": "BYTES", "shape": [-1]}
    assert "parameters" not in about


def test_metadata_say_what_every_output_is(application: Any) -> None:
    for name in ("m", "m1"):
        outputs = get(application, f"/v2/models/{name}").json()["outputs"]
        body = to_json(np.zeros((2, 3)), outputs=[{"name": x["name"]} for x in outputs])
        (answer,) = infer(application, body, path=f"/v2/models/{name}/infer")
        for about, found in zip(outputs, answer.json()["outputs"], strict=True):
            assert (found["name"], found["datatype"]) == (about["name"], about["datatype"])
            assert found["shape"] == [2, *about["shape"][1:]]


@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_json_and_bytes_give_the_bits_of_predict(
    application: Any, predictor: Any, rows: Any, count: int
) -> None:
    some = rows[:count]
    wanted = {name: getattr(predictor, name)(some) for name in OUTPUTS}
    outputs = [{"name": name} for name in OUTPUTS]
    answers = infer(
        application,
        to_json(some, outputs=outputs),
        to_binary(some, outputs=outputs),
        to_binary(some, outputs=outputs, parameters={"binary_data_output": True}),
        to_json(some.astype(np.float64), "FP64", outputs=outputs),
    )
    for answer in answers:
        found = read(answer)
        assert list(found) == list(OUTPUTS)
        for name in OUTPUTS:
            assert found[name].dtype == wanted[name].dtype
            assert np.array_equal(found[name], wanted[name], equal_nan=True), name


def test_who_names_no_output_gets_predictions_with_its_id(application: Any, rows: Any) -> None:
    (answer,) = infer(application, to_json(rows[:2], id="ü42"))
    about = answer.json()
    assert (about["model_name"], about["model_version"], about["id"]) == ("m", "1", "ü42")
    assert [output["name"] for output in about["outputs"]] == ["predict"]
    assert answer.headers["content-type"] == "application/json"


def test_data_may_be_nested_or_flat_or_integers(application: Any, predictor: Any) -> None:
    rows = np.array([[1, 0, -2], [3, 1, 0]])
    tensor = {"name": "rows", "shape": [2, 3], "datatype": "INT32", "data": rows.ravel().tolist()}
    flat = json.dumps({"inputs": [tensor]}).encode()
    for answer in infer(application, flat, to_json(rows, "INT64"), to_json(rows, "FP32")):
        assert np.array_equal(read(answer)["predict"], predictor.predict(rows))


def test_labels_that_are_texts_are_bytes(application: Any, classes: Any) -> None:
    rows = hard_rows(classes.forest, 20, 2)
    rows = np.where(np.isfinite(rows), rows, 0).astype(np.float32)
    path = "/v2/models/m1/versions/1/infer"
    binary = {"parameters": {"binary_data_output": True}}
    for answer in infer(application, to_json(rows), to_binary(rows, **binary), path=path):
        assert np.array_equal(read(answer)["predict"], classes.predict(rows))
    outputs = [{"name": "predict_proba", "parameters": {"binary_data": True}}, {"name": "predict"}]
    (answer,) = infer(application, to_json(rows, outputs=outputs), path=path)
    assert np.array_equal(read(answer)["predict_proba"], classes.predict_proba(rows))


def to_columns(**columns: Any) -> bytes:
    inputs = [
        {"name": name, "shape": [len(data)], "datatype": datatype, "data": data}
        for name, (datatype, data) in columns.items()
    ]
    return json.dumps({"inputs": inputs}).encode()


def test_columns_are_taken_by_name_in_any_order(application: Any, predictor: Any) -> None:
    frame = pd.DataFrame({"a": [0.5, None], "b": [1, 2], "c": [True, False]})
    body = to_columns(c=("BOOL", [True, False]), a=("FP64", [0.5, None]), b=("INT32", [1, 2]))
    (answer,) = infer(application, body)
    assert np.array_equal(read(answer)["predict"], predictor.predict(frame))
    wrong = to_columns(a=("FP32", [1.0]), b=("FP32", [1.0]), d=("FP32", [1.0]))
    uneven = to_columns(a=("FP32", [1.0]), b=("FP32", [1.0, 2.0]), c=("FP32", [1.0]))
    wrong, uneven = infer(application, wrong, uneven)
    assert wrong.status_code == uneven.status_code == 400
    assert "missing are c; unknown are d" in wrong.json()["error"]
    assert "all columns have the shape" in uneven.json()["error"]


def test_categories_are_taken_by_their_texts() -> None:
    rng = np.random.default_rng(0)
    colors = pd.Categorical(rng.choice(["blue", "green", "red"], 200))
    frame = pd.DataFrame({"color": colors, "x": rng.normal(size=200).astype(np.float32)})
    model = xgboost.XGBClassifier(n_estimators=4, max_depth=3, enable_categorical=True)
    model.fit(frame, (frame["color"] == "red") ^ (frame["x"] > 0))
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    application = serve(predictor)
    inputs = get(application, "/v2/models/m").json()["inputs"]
    assert [tensor["datatype"] for tensor in inputs] == ["BYTES", "FP32"]
    columns = get(application, "/v2/models/m").json()["parameters"]["columns"]
    assert columns == [{"name": x["name"], "datatype": x["datatype"]} for x in inputs]
    x = frame["x"][:9].tolist()
    words = colors[:9].tolist()
    texts = b"".join(struct.pack("<I", len(word)) + word.encode() for word in words)
    tensors = [
        {"name": "x", "shape": [9, 1], "datatype": "FP32", "data": x},
        {"name": "color", "shape": [9], "datatype": "BYTES"},
    ]
    tensors[1]["parameters"] = {"binary_data_size": len(texts)}
    head = json.dumps({"inputs": tensors}).encode()
    binary = (head + texts, {"Inference-Header-Content-Length": str(len(head))})
    body = to_columns(color=("BYTES", [*words[:-1], None]), x=("FP32", x))
    by_json, by_bytes = infer(application, body, binary)
    assert np.array_equal(read(by_bytes)["predict"], predictor.predict(frame[:9]))
    words[-1] = None
    holed = pd.DataFrame({"color": pd.Categorical(words, colors.categories), "x": frame["x"][:9]})
    assert np.array_equal(read(by_json)["predict"], predictor.predict(holed))
    (unknown,) = infer(application, to_columns(color=("BYTES", ["pink"]), x=("FP32", [0.0])))
    assert unknown.status_code == 400 and "'pink'" in unknown.json()["error"]


@pytest.mark.long
def test_categories_of_catboost_are_taken_by_their_texts() -> None:
    catboost = pytest.importorskip("catboost")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"k": rng.choice(["u", "v"], 100), "x": rng.normal(size=100)})
    model = catboost.CatBoostRegressor(
        iterations=4, depth=3, verbose=0, cat_features=["k"], allow_writing_files=False
    )
    model.fit(frame, (frame["k"] == "u") * frame["x"])
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    application = serve(predictor)
    bodies = [
        to_columns(
            x=("FP64", frame["x"][i : i + 3].tolist()), k=("BYTES", [*frame["k"][i : i + 3]])
        )
        for i in range(0, 9, 3)
    ]
    found = [read(answer)["predict"] for answer in infer(application, *bodies)]
    assert np.array_equal(np.concatenate(found), predictor.predict(frame[:9]))
    (wrong,) = infer(application, to_columns(x=("FP64", [1.0]), k=("FP64", [1.0])))
    assert wrong.status_code == 400


@pytest.mark.parametrize("short_s", [0.0, 1.0], ids=["thread", "loop"])
@pytest.mark.parametrize("delay_ms", [0.0, 5.0])
def test_joined_requests_get_the_bits_of_a_call_of_their_own(
    predictor: Any, rows: Any, monkeypatch: Any, short_s: float, delay_ms: float
) -> None:
    monkeypatch.setattr(batching, "SHORT_S", short_s)
    application = serve(predictor, max_batch=50, max_delay_ms=delay_ms)
    rng = np.random.default_rng(3)
    parts = [rows[rng.integers(0, 300, size)] for size in rng.integers(0, 60, 40)]
    kinds = [[OUTPUTS[k] for k in range(5) if k == i % 5 or i % 3 == k] for i in range(40)]
    bodies = [
        to_binary(part, outputs=[{"name": name} for name in names])
        for part, names in zip(parts, kinds, strict=True)
    ]
    for part, names, answer in zip(parts, kinds, infer(application, *bodies), strict=True):
        found = read(answer)
        for name in names:
            assert np.array_equal(found[name], getattr(predictor, name)(part), equal_nan=True)
    text = get(application, "/metrics").text
    counted = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    model = '{model="m",version="1"}'
    assert float(counted[f"tvm_forest_rows_total{model}"]) == sum(map(len, parts))
    assert float(counted[f"tvm_forest_batch_requests_sum{model}"]) == 40
    assert 5 < float(counted[f"tvm_forest_batch_requests_count{model}"]) < 40
    assert float(counted['tvm_forest_requests_total{model="m",status="200",version="1"}']) == 40
    assert float(counted["tvm_forest_queue_length"]) == 0


def test_a_row_that_the_model_refuses_fails_its_own_request_only(classes: Any) -> None:
    good, bad = np.eye(3, dtype=np.float32), np.array([[np.inf, 0, 0]], np.float32)
    first, refused, last = infer(serve(classes), to_json(good), to_binary(bad), to_binary(good))
    assert refused.status_code == 400 and "inf" in refused.json()["error"]
    for answer in (first, last):
        assert np.array_equal(read(answer)["predict"], classes.predict(good))


def test_a_fault_is_500_and_goes_to_the_log(predictor: Any, rows: Any, caplog: Any) -> None:
    application = serve(predictor)
    (model,) = application.models
    model.predict = None  # what is called then is no function
    (answer,) = infer(application, to_json(rows[:1]))
    assert answer.status_code == 500 and "see its log" in answer.json()["error"]
    assert "a request to model 'm' failed" in caplog.text


def test_versions_are_asked_for_and_the_last_serves(predictor: Any, rows: Any) -> None:
    other = predictor.rounds(0, 2)
    named = [Named("m", "1", predictor), Named("m", "b2", other)]
    application = make_application(named)
    assert get(application, "/v2/models/m").json()["versions"] == ["1", "b2"]
    for path, model in (("/versions/1", predictor), ("/versions/b2", other), ("", other)):
        (answer,) = infer(application, to_json(rows), path=f"/v2/models/m{path}/infer")
        assert np.array_equal(read(answer)["predict"], model.predict(rows))
        assert answer.json()["model_version"] == (path.rpartition("/")[2] or "b2")
    (missing,) = infer(application, to_json(rows), path="/v2/models/m/versions/3/infer")
    assert missing.status_code == 404 and "version '3' is unknown" in missing.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/nix", 404),
        ("GET", "/v2/models/m/versions/2", 404),
        ("POST", "/v2/models/nix/infer", 404),
        ("POST", "/v2/models/m", 405),
        ("GET", "/v2/models/m/infer", 405),
        ("DELETE", "/v2", 405),
    ],
)
def test_what_is_not_there_is_said_as_the_protocol_says_it(
    application: Any, method: str, path: str, status: int
) -> None:
    (answer,) = ask(application, (method, path, b"", {}))
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]


TENSOR = {"name": "rows", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}


def change(**fields: Any) -> dict[str, Any]:
    return {"inputs": [{**TENSOR, **fields}]}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "is no JSON"),
        (b"{", "is no JSON"),
        (b"[" * 5000, "is no JSON"),
        (b'{"inputs": [nan]}', "a missing value is null"),
        (b'{"inputs": [-NaN]}', "a missing value is null"),
        (b'{"inputs": [xNaN, "]}', "a missing value is null"),
        (b'{"inputs": [NaN]}', "a text 'name'"),
        ([], "no JSON object"),
        ({}, "'inputs' is missing"),
        ({"inputs": []}, "one or more"),
        ({"inputs": [1]}, "a text 'name'"),
        ({"inputs": [TENSOR, TENSOR]}, "occurs twice"),
        ({"inputs": [TENSOR], "id": 4}, "'id'"),
        ({"inputs": [TENSOR], "parameters": 4}, "'parameters'"),
        (
            {"inputs": [TENSOR], "parameters": {"delay": 1}},
            "the request: parameter 'delay' is unknown (have: binary_data_output)",
        ),
        ({"inputs": [TENSOR], "parameters": {"binary_data_output": 1}}, "true or false"),
        ({"inputs": [TENSOR], "outputs": [{"name": "x"}]}, "no such output (have: predict, "),
        (
            {
                "inputs": [TENSOR],
                "outputs": [{"name": "predict", "parameters": {"binary_data": 0}}],
            },
            "true or false",
        ),
        (
            {"inputs": [TENSOR], "outputs": [{"name": "predict", "parameters": {"classes": 2}}]},
            "parameter 'classes' is unknown",
        ),
        (change(name="x"), "missing are a, b, c; unknown are x"),
        (change(datatype="FP8"), "datatype 'FP8' is unknown"),
        (change(datatype=[]), "is unknown"),
        (change(shape=[3, 1]), "rows must have shape (R, 3)"),
        (change(shape=[3]), "rows must have shape (R, 3)"),
        (change(shape=[1, -3]), "'shape'"),
        (change(shape=[1 << 62, 1 << 62]), "'shape'"),
        (change(shape=[]), "'shape'"),
        (change(shape=[1, True]), "'shape'"),
        (change(shape=[2, 3]), "has not the shape"),
        (change(data=[[1, 2], [3]]), "has not the shape"),
        (change(data=[1, 2, "3"]), "'3' is no number"),
        (change(data=[1, 2, [3]]), "is no number"),
        (change(data={}), "expected a list"),
        (change(datatype="INT32", data=[1, 2, 1.5]), "1.5 is no integer"),
        (change(datatype="INT32", data=[1, 2, 1 << 31]), "is not from"),
        (change(datatype="UINT8", data=[1, 2, -1]), "is not from 0 to 255"),
        (change(datatype="BOOL"), "1 is no bool"),
        (change(datatype="BYTES", data=["a", "b", "c"]), "must hold numbers"),
        (change(parameters={"binary_data_size": 12}), "either field 'data' or parameter"),
    ],
)
def test_a_wrong_body_is_refused_with_a_reason(application: Any, body: Any, text: str) -> None:
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    (answer,) = infer(application, body)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"] and text in answer.json()["error"]


@pytest.mark.parametrize(
    ("parameters", "length", "data", "text"),
    [
        ({"binary_data_size": 12}, 0, b"x" * 11, "11 bytes are left"),
        ({"binary_data_size": 12}, 0, b"x" * 13, "1 bytes after the JSON belong to no tensor"),
        ({"binary_data_size": 11}, 0, b"x" * 11, "12 bytes make a FP32 tensor of shape [1, 3]"),
        ({"binary_data_size": -1}, 0, b"", "bytes are left"),
        ({"binary_data_size": "12"}, 0, b"x" * 12, "bytes are left"),
        ({"binary_data_size": 12}, 999, b"x" * 12, "and the body has"),
        ({"binary_data_size": 12}, None, b"x" * 12, "is no number"),
    ],
)
def test_wrong_bytes_are_refused_with_a_reason(
    application: Any, parameters: Any, length: int | None, data: bytes, text: str
) -> None:
    tensor = {"name": "rows", "shape": [1, 3], "datatype": "FP32", "parameters": parameters}
    head = json.dumps({"inputs": [tensor]}).encode()
    size = "-1" if length is None else str(len(head) + length)
    (answer,) = infer(application, (head + data, {"Inference-Header-Content-Length": size}))
    assert answer.status_code == 400 and text in answer.json()["error"]


def test_texts_as_bytes_must_be_whole(application: Any) -> None:
    for data in (b"\1\0\0\0a" * 2, b"\1\0\0\0a" * 4, b"\1\0\0\0\xff" * 3, b"\xff" * 15):
        tensor = {"name": "rows", "shape": [1, 3], "datatype": "BYTES"}
        tensor["parameters"] = {"binary_data_size": len(data)}
        head = json.dumps({"inputs": [tensor]}).encode()
        (answer,) = infer(
            application, (head + data, {"Inference-Header-Content-Length": str(len(head))})
        )
        assert answer.status_code == 400 and "3 texts of UTF-8" in answer.json()["error"]


def test_a_token_is_asked_for_but_not_of_probes(predictor: Any, rows: Any) -> None:
    application = serve(predictor, token="s3cret")
    assert get(application, "/v2/health/live").status_code == 200
    assert get(application, "/v2/health/ready").status_code == 200
    for wrong in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "Basic s3cret"}):
        for path in ("/v2", "/metrics", "/v2/models/nix", "/nix"):
            answer = get(application, path, **wrong)
            assert answer.status_code == 401 and list(answer.json()) == ["error"]
            assert answer.headers["www-authenticate"] == "Bearer"
        (answer,) = infer(application, (to_json(rows), wrong))
        assert answer.status_code == 401
    right = {"Authorization": "Bearer s3cret"}
    assert get(application, "/metrics", **right).status_code == 200
    (answer,) = infer(application, (to_json(rows), right))
    assert answer.status_code == 200


def test_bodies_and_queues_have_limits(predictor: Any, rows: Any) -> None:
    small = serve(predictor, max_body_mb=0.001)
    (answer,) = infer(small, to_json(rows))
    assert answer.status_code == 413 and "0.001 megabytes" in answer.json()["error"]
    narrow = serve(predictor, max_queue=3, max_delay_ms=20.0)
    statuses = [answer.status_code for answer in infer(narrow, *[to_json(rows[:1])] * 8)]
    assert sorted(statuses) == [200] * 3 + [503] * 5
    thin = serve(predictor, max_queue_mb=0.04, max_delay_ms=20.0)
    answers = infer(thin, *[to_binary(rows[:200])] * 8)
    assert sorted(answer.status_code for answer in answers) == [200] * 4 + [503] * 4
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert refused.headers["retry-after"] == "1"
    assert infer(thin, to_binary(rows[:200]))[0].status_code == 200  # when the others have gone
    (packed,) = infer(small, (b"", {"Content-Encoding": "br"}))
    assert packed.status_code == 415 and "have: gzip, deflate" in packed.json()["error"]


def test_an_answer_that_could_be_too_large_is_refused_before_anything_is_predicted(
    predictor: Any,
) -> None:
    """20 bytes of a request may be megabytes of an answer: of many trees, for example."""
    application = serve(predictor, max_answer_mb=1.0)
    (model,) = application.models
    tiny = np.zeros((20_000, 3), np.uint8)
    for name in ("apply", "predict_per_tree"):
        for sized in ({}, {"parameters": {"binary_data_output": True}}):
            body = to_binary(tiny, "UINT8", outputs=[{"name": name}], **sized)
            (answer,) = infer(application, body)
            assert (answer.status_code == 200) == bool(sized)
            assert sized or answer.status_code == 413
            assert sized or re.search("could have .* megabytes, more than 1;", answer.text)
    model.predict = None  # what is called from now on is a fault
    assert infer(application, to_binary(tiny, "UINT8", outputs=[{"name": "apply"}]))[0].is_error
    assert infer(application, to_binary(tiny[:9], "UINT8"))[0].status_code == 500


@pytest.mark.parametrize("options", [{}, {"num_class": 3, "objective": "multi:softprob"}])
def test_no_answer_has_more_bytes_than_were_counted_before(options: Any) -> None:
    predictor = build(**options)
    (model,) = serve(predictor).models
    rows = hard_rows(predictor.forest, 50, 5)
    for name in model.outputs:
        found = model.predict(name, rows)
        assert model.count_bytes(name, 50, True) == sum(map(len, tensors.write_binary(found)))
        assert model.count_bytes(name, 50, False) >= sum(map(len, tensors.write_json(found))) - 2


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8", "u1", "?", "O", "U"])
@pytest.mark.parametrize("size", [0, 1, tensors.MAX_PART + 1])
def test_a_tensor_is_written_in_parts_that_read_back_to_the_same_bits(
    dtype: str, size: int
) -> None:
    rng = np.random.default_rng(size)
    if dtype in "OU":
        array = np.array([rng.choice(["", "ü\n", '"x\\']) for _ in range(size)], dtype)
    else:
        array = np.frombuffer(rng.bytes(size * np.dtype(dtype).itemsize), dtype)
        array = array.view(np.uint8) < 128 if dtype == "?" else array
    text = b"".join(tensors.write_json(array))
    datatype = tensors.name_datatype(array)
    found = tensors.read_list(json.loads(text), datatype, (size,), "test")
    with np.errstate(over="ignore"):
        assert np.array_equal(found, array, equal_nan=dtype in ("f4", "f8"))
    data = memoryview(b"".join(tensors.write_binary(array)))
    again = tensors.read_binary(data, datatype, (size,), "test")
    assert again.tobytes() == array.tobytes() or list(again) == list(array)
    assert len(text) <= tensors.count_bytes(array, ["", "ü\n", '"x\\'], False) + 2


async def ask_slowly(application: Any, body: Any, take: Any = None) -> list[Any]:
    """Return all messages of an answer; after each the client does something else."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body[0]}

    async def send(message: Any) -> None:
        sent.append(message)
        await take(len(sent)) if take else None

    headers = [(name.lower().encode(), value.encode()) for name, value in body[1].items()]
    scope = {"type": "http", "method": "POST", "path": "/v2/models/m/infer", "headers": headers}
    await application(scope, receive, send)
    return sent


def test_a_long_answer_is_made_off_the_event_loop_and_sent_in_parts(
    predictor: Any, monkeypatch: Any
) -> None:
    threads: set[str] = set()
    write = app.write_answer

    def spy(*arguments: Any) -> Any:
        threads.add(threading.current_thread().name)
        return write(*arguments)

    monkeypatch.setattr(app, "write_answer", spy)
    rows = np.zeros((30_000, 3), np.float32)
    body = to_binary(rows, outputs=[{"name": "predict"}, {"name": "apply"}])
    start, *parts = asyncio.run(ask_slowly(serve(predictor), body))
    sizes = [len(part["body"]) for part in parts]
    assert sum(sizes) == int(dict(start["headers"])[b"content-length"]) > 1_000_000
    assert max(sizes) < 300_000 and [part.get("more_body", False) for part in parts][-2:] == [1, 0]
    assert threading.current_thread().name not in threads


def test_what_an_answer_holds_is_given_back_when_it_is_taken(predictor: Any) -> None:
    application = serve(predictor, max_queue_mb=1.0)
    rows = np.zeros((5000, 3), np.float32)
    body = to_binary(rows, outputs=[{"name": "apply"}])
    seen: list[int] = []

    async def take(count: int) -> None:
        if count == 2:  # the first answer is on its way, and stays
            seen.append((await ask_slowly(application, body))[0]["status"])

    assert asyncio.run(ask_slowly(application, body, take))[0]["status"] == 200
    assert seen == [503]
    assert infer(application, body)[0].status_code == 200
    (alone,) = infer(application, to_binary(rows.repeat(9, axis=0)))
    assert alone.status_code == 413 and "takes more than 1 megabytes by itself" in alone.text


def test_what_cannot_be_served_is_refused_before_the_port_opens(predictor: Any) -> None:
    with pytest.raises(InputError, match="two are called 'm' in version '1'"):
        make_application([Named("m", "1", predictor)] * 2)
    with pytest.raises(InputError, match="the name 'a/b' may hold letters"):
        make_application([Named("a/b", "1", predictor)])
    with pytest.raises(InputError, match="there is none"):
        make_application([])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_batch", 0), ("max_batch", 1.5), ("timeout_s", 0.0), ("max_queue", -1)],
        *[("timeout_s", math.inf), ("max_body_mb", math.nan), ("max_delay_ms", 1e300)],
        *[("max_answer_mb", "1"), ("max_queue_mb", True), ("token", ""), ("token", "a b")],
    ],
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"argument '{name}'"):
        Settings(**{name: value})


@pytest.mark.parametrize(
    ("address", "token", "tls", "words"),
    [
        ("127.0.0.1", False, False, []),
        ("127.8.0.1", False, False, []),
        ("::1", False, False, []),
        ("::ffff:127.0.0.1", False, False, []),
        ("0.0.0.0", False, False, ["whoever does may ask", "can be read on the way"]),
        ("::", False, False, ["whoever does may ask", "can be read on the way"]),
        ("192.168.0.7", True, False, ["the token too, can be read on the way"]),
        ("fe80::1%eth0", False, True, ["whoever does may ask"]),
        ("0.0.0.0", True, True, []),
    ],
)
def test_a_server_that_others_reach_warns_of_what_they_can_do(
    address: str, token: bool, tls: bool, words: list[str], caplog: Any
) -> None:
    warn_of_strangers(address, token, tls)
    assert len(caplog.messages) == len(words)
    for message, text in zip(caplog.messages, words, strict=True):
        assert address in message and text in message
