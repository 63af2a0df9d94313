"""gRPC of the Open Inference Protocol: what HTTP answers and refuses, asked by Triton's clients."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost

pytest.importorskip("grpc", reason="the extra `grpc` is not installed")
pytest.importorskip("tritonclient")
pytest.importorskip("httptools", reason="the extra `serve` is not installed")

import grpc
import tritonclient.grpc
import tritonclient.http
from google.protobuf import descriptor_pb2
from tritonclient.grpc import service_pb2
from tritonclient.utils import triton_to_np_dtype

import tvm_forest
from forests import drawn_forest
from served import build, get, infer, serve
from served_grpc import client_of, refusal, serving
from tvm_forest.cli import main
from tvm_forest.errors import InputError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.serving import Settings, check_packages, make_application, messages, service
from tvm_forest.serving.models import OUTPUTS
from tvm_forest.serving.refusals import Refused
from tvm_forest.serving.repository import Named, Source
from tvm_forest.serving.tensors import DATATYPES, DTYPES
from tvm_forest.system.archive import replace_file
from tvm_forest.system.process.ending import ENDING

pytestmark = pytest.mark.slow

INFER = f"/{service.NAME}/ModelInfer"
FORESTS = [drawn_forest(5, 4, seed=seed, base=[0.1]) for seed in (1, 2)]


@pytest.fixture(scope="module")
def predictor() -> Any:
    return build()


@pytest.fixture(scope="module")
def colored() -> tuple[Any, Any]:
    """A model of a column of categories and one of numbers, and its rows."""
    rng = np.random.default_rng(0)
    colors = pd.Categorical(rng.choice(["blue", "green", "red"], 200))
    frame = pd.DataFrame({"color": colors, "x": rng.normal(size=200).astype(np.float32)})
    model = xgboost.XGBClassifier(n_estimators=4, max_depth=3, enable_categorical=True)
    model.fit(frame, (frame["color"] == "red") ^ (frame["x"] > 0))
    return tvm_forest.build(model, schedule=lambda start: start), frame


@pytest.fixture(scope="module")
def ports(predictor: Any, colored: Any) -> Iterator[tuple[int, int]]:
    with serving(serve(predictor, colored[0], max_body_mb=1.0)) as found:
        yield found


@pytest.fixture(scope="module")
def client(ports: Any) -> Iterator[Any]:
    with client_of(ports[1]) as found:
        yield found


def tensor(module: Any, name: str, array: Any, datatype: str = "FP32", **options: Any) -> Any:
    """Return an input of a client of Triton."""
    found = module.InferInput(name, list(array.shape), datatype)
    found.set_data_from_numpy(array, **options)
    return found


def typed(array: Any, datatype: str, name: str = "rows") -> Any:
    """Return an input whose numbers stand in a field of their datatype, which has them as lists."""
    found = service_pb2.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=array.shape
    )
    getattr(found.contents, messages._FIELDS[datatype]).extend(array.ravel().tolist())
    return found


def ask(port: int, *inputs: Any, model: str = "m", **fields: Any) -> Any:
    """Send a message of the protocol as it is, and return the answer."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            INFER,
            service_pb2.ModelInferRequest.SerializeToString,
            service_pb2.ModelInferResponse.FromString,
        )
        return call(service_pb2.ModelInferRequest(model_name=model, inputs=inputs, **fields))


def read(answer: Any, name: str = "predict") -> Any:
    """Return an output whose numbers stand in a field of their datatype."""
    assert not answer.raw_output_contents
    (output,) = (x for x in answer.outputs if x.name == name)
    values = list(getattr(output.contents, messages._FIELDS[output.datatype]))
    return np.array(values, DTYPES.get(output.datatype, np.dtype(object))).reshape(output.shape)


def refused(port: int, *inputs: Any, **fields: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as error:
        ask(port, *inputs, **fields)
    return error.value.code().name, error.value.details()


def test_messages_have_the_fields_and_numbers_of_the_published_protocol() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    service_pb2.DESCRIPTOR.CopyToProto(file)
    inner = [message for outer in file.message_type for message in outer.nested_type]
    published = {message.name: message for message in [*file.message_type, *inner]}

    def fields_of(message: Any) -> list[Any]:
        kinds = (x.type_name.rpartition(".")[2] for x in message.field)
        return [
            (x.name, x.number, x.type, x.label, kind, x.HasField("oneof_index"))
            for x, kind in zip(message.field, kinds, strict=True)
        ]

    for name, kind in messages.CLASSES.items():
        ours = descriptor_pb2.DescriptorProto()
        kind.DESCRIPTOR.CopyToProto(ours)
        fields = fields_of(ours)
        if name == "ModelMetadataResponse":  # and what MLServer adds
            assert fields.pop()[:2] == ("parameters", 6)
        assert fields == fields_of(published[name]), name
    asked = {f"{x}Request" for x in service.Service(serve_nothing())._answers}
    assert asked < set(messages.CLASSES)


def serve_nothing() -> Any:
    return make_application([Named("m", "1", tvm_forest.build(FORESTS[0], schedule=lambda x: x))])


def test_server_and_models_describe_themselves_as_over_http(
    client: Any, predictor: Any, colored: Any
) -> None:
    application = serve(predictor, colored[0])
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("m") and client.is_model_ready("m", "1")
    assert client.get_server_metadata(as_json=True) == get(application, "/v2").json()
    for name in ("m", "m1"):
        wanted = get(application, f"/v2/models/{name}").json()
        columns = wanted.pop("parameters")["columns"]
        found = client.get_model_metadata(name, as_json=True)
        for each in (*found["inputs"], *found["outputs"]):
            each["shape"] = [*map(int, each["shape"])]
        assert found == wanted
        message = messages.CLASSES["ModelMetadataResponse"].FromString(
            client.get_model_metadata(name).SerializeToString()  # with fields that it does not know
        )
        assert json.loads(message.parameters["columns"].string_param) == columns
    (index,) = (x for x in client.get_model_repository_index().models if x.name == "m")
    assert (index.version, index.state) == ("1", "READY")


@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_bytes_and_typed_contents_give_the_bits_of_predict(
    client: Any, ports: Any, predictor: Any, count: int
) -> None:
    rows = hard_rows(predictor.forest, 300, 1)[:count].astype(np.float32)
    wanted = {name: getattr(predictor, name)(rows) for name in OUTPUTS}
    outputs = [tritonclient.grpc.InferRequestedOutput(name) for name in OUTPUTS]
    answer = client.infer(
        "m", [tensor(tritonclient.grpc, "rows", rows)], outputs=outputs, request_id="ü42"
    )
    about = answer.get_response()
    assert (about.model_name, about.model_version, about.id) == ("m", "1", "ü42")
    named = [service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=x) for x in OUTPUTS]
    listed = ask(ports[1], typed(rows, "FP32"), outputs=named)
    for name in OUTPUTS:
        for array in (answer.as_numpy(name), read(listed, name)):
            assert (array.dtype, array.shape) == (wanted[name].dtype, wanted[name].shape)
            assert np.array_equal(array, wanted[name], equal_nan=True), name


def test_every_datatype_is_answered_by_both_protocols_in_both_forms_or_refused(
    ports: Any, predictor: Any, client: Any
) -> None:
    numbers = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 0]])
    tried = 0
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{ports[0]}") as http:
        for datatype in DATATYPES:
            if datatype == "BYTES":
                continue  # the next test
            rows = numbers.astype(triton_to_np_dtype(datatype))
            wanted = predictor.predict(rows.astype(np.float32))
            answers = [client.infer("m", [tensor(tritonclient.grpc, "rows", rows, datatype)])]
            whole = tensor(tritonclient.http, "rows", rows, datatype, binary_data=True)
            answers.append(http.infer("m", [whole]))
            if datatype in messages._FIELDS:
                assert np.array_equal(read(ask(ports[1], typed(rows, datatype))), wanted), datatype
                tried += 1
            if datatype not in ("FP16", "BF16"):  # which this client writes as bytes only
                listed = tensor(tritonclient.http, "rows", rows, datatype, binary_data=False)
                answers.append(http.infer("m", [listed]))
            for answer in answers:
                assert np.array_equal(answer.as_numpy("predict"), wanted), datatype
            tried += len(answers)
    assert tried == 4 * 11 + 2 * 2
    for datatype in ("FP16", "BF16"):
        empty = service_pb2.ModelInferRequest.InferInputTensor(
            name="rows", datatype=datatype, shape=[1, 3]
        )
        code, text = refused(ports[1], empty)
        assert code == "INVALID_ARGUMENT" and "'raw_input_contents'" in text


def test_bf16_is_the_upper_half_of_float32_and_no_json(ports: Any, predictor: Any) -> None:
    rows = hard_rows(predictor.forest, 20, 1).astype(np.float32)
    upper = (rows.view(np.uint32) >> 16).astype(np.uint16)
    about = service_pb2.ModelInferRequest.InferInputTensor(
        name="rows", datatype="BF16", shape=rows.shape
    )
    answer = ask(ports[1], about, raw_input_contents=[upper.tobytes()])
    wanted = predictor.predict((upper.astype(np.uint32) << 16).view(np.float32))
    assert np.array_equal(np.frombuffer(answer.raw_output_contents[0], np.float32), wanted)
    body = {"inputs": [{"name": "rows", "datatype": "BF16", "shape": [1, 3], "data": [1, 2, 3]}]}
    (answer,) = infer_json(predictor, body)
    assert answer.status_code == 400 and "BF16 tensor comes as bytes" in answer.json()["error"]


def infer_json(predictor: Any, *bodies: Any) -> Any:
    return infer(serve(predictor), *(json.dumps(body).encode() for body in bodies))


def test_categories_are_taken_by_their_texts_in_both_forms(
    client: Any, ports: Any, colored: Any
) -> None:
    predictor, frame = colored
    some = frame[:9]
    words = np.array([str(x) for x in some["color"]], object)
    encoded = np.array([word.encode() for word in words], object)
    x = some["x"].to_numpy()
    wanted = predictor.predict(some)
    for module, asked in (
        (tritonclient.grpc, client),
        (tritonclient.http, tritonclient.http.InferenceServerClient(f"127.0.0.1:{ports[0]}")),
    ):
        inputs = [tensor(module, "x", x), tensor(module, "color", words, "BYTES")]
        assert np.array_equal(asked.infer("m1", inputs).as_numpy("predict"), wanted)
    answer = ask(ports[1], typed(encoded, "BYTES", "color"), typed(x, "FP32", "x"), model="m1")
    assert np.array_equal(read(answer), wanted)
    pink, broken = (np.array([word], object) for word in (b"pink", b"\xff"))
    for word, text in ((pink, "'pink'"), (broken, "not of UTF-8")):
        code, why = refused(
            ports[1], typed(word, "BYTES", "color"), typed(x[:1], "FP32", "x"), model="m1"
        )
        assert code == "INVALID_ARGUMENT" and text in why


def test_labels_that_are_texts_come_as_bytes(client: Any) -> None:
    from sklearn.ensemble import RandomForestClassifier

    rows = np.random.default_rng(1).normal(size=(60, 3))
    labels = np.array(["no", "pérhaps"])[(rows[:, 0] > 0).astype(int)]
    model = RandomForestClassifier(2, max_depth=3, random_state=0).fit(rows, labels)
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    with serving(serve(predictor)) as (_, port), client_of(port) as other:
        rows = rows.astype(np.float32)
        raw = other.infer("m", [tensor(tritonclient.grpc, "rows", rows)]).as_numpy("predict")
        listed = ask(port, typed(rows, "FP32")).outputs[0].contents.bytes_contents
    wanted = predictor.predict(rows).tolist()
    assert [x.decode() for x in raw] == [x.decode() for x in listed] == wanted


ROW = np.array([[1, 2, 3]], np.float32)
ABOUT = {"name": "rows", "datatype": "FP32", "shape": [1, 3]}


def about(**fields: Any) -> Any:
    return service_pb2.ModelInferRequest.InferInputTensor(**{**ABOUT, **fields})


def test_what_clients_of_triton_send_besides_does_not_matter(
    client: Any, ports: Any, predictor: Any
) -> None:
    rows = hard_rows(predictor.forest, 5, 1).astype(np.float32)
    besides = {"priority": 1, "timeout": 900_000, "sequence_id": 5, "sequence_start": True}
    over_grpc = client.infer("m", [tensor(tritonclient.grpc, "rows", rows)], **besides)
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{ports[0]}") as http:
        over_http = http.infer("m", [tensor(tritonclient.http, "rows", rows)], **besides)
    for answer in (over_grpc, over_http):
        assert np.array_equal(answer.as_numpy("predict"), predictor.predict(rows))


@pytest.mark.parametrize(
    ("inputs", "fields", "code", "text"),
    [
        ([typed(ROW, "FP32")], {"model": "nix"}, "NOT_FOUND", "model 'nix' is unknown"),
        ([typed(ROW, "FP32")], {"model_version": "7"}, "NOT_FOUND", "version '7' is unknown"),
        ([], {}, "INVALID_ARGUMENT", "one or more"),
        ([typed(ROW, "FP32")] * 2, {}, "INVALID_ARGUMENT", "occurs twice"),
        ([about(datatype="FP8")], {}, "INVALID_ARGUMENT", "datatype 'FP8' is unknown"),
        ([about(shape=[1, -3])], {}, "INVALID_ARGUMENT", "'shape'"),
        ([about(shape=[])], {}, "INVALID_ARGUMENT", "'shape'"),
        ([about()], {}, "INVALID_ARGUMENT", "'fp32_contents': it has not the shape [1, 3]"),
        ([about()], {"raw_input_contents": [b"x" * 11]}, "INVALID_ARGUMENT", "12 bytes make"),
        ([about()], {"raw_input_contents": [b""] * 2}, "INVALID_ARGUMENT", "2 tensors, and"),
        (
            [typed(ROW, "FP32")],
            {"raw_input_contents": [ROW.tobytes()]},
            "INVALID_ARGUMENT",
            "nothing else beside it",
        ),
        (
            [about(contents={"fp64_contents": [1, 2, 3]})],
            {},
            "INVALID_ARGUMENT",
            "fp64_contents; FP32 is given in 'fp32_contents'",
        ),
        (
            [about(datatype="INT8", contents={"int_contents": [1, 2, 200]})],
            {},
            "INVALID_ARGUMENT",
            "not from -128 to 127",
        ),
        (
            [about(parameters={"shared_memory_region": {"string_param": "a"}})],
            {},
            "INVALID_ARGUMENT",
            "'shared_memory_region' is unknown (have: none)",
        ),
        (
            [typed(ROW, "FP32")],
            {"parameters": {"delay": {"int64_param": 1}}},
            "INVALID_ARGUMENT",
            "the request: parameter 'delay' is unknown (have: none)",
        ),
        (
            [typed(ROW, "FP32")],
            {"outputs": [{"name": "x"}]},
            "INVALID_ARGUMENT",
            "no such output (have: predict, ",
        ),
        (
            [typed(ROW, "FP32")],
            {"outputs": [{"name": "predict", "parameters": {"binary_data": {"bool_param": True}}}]},
            "INVALID_ARGUMENT",
            "'binary_data' is unknown",
        ),
        ([typed(ROW[:, :2], "FP32")], {}, "INVALID_ARGUMENT", "rows must have shape (R, 3)"),
        ([typed(ROW, "FP32", "x")], {}, "INVALID_ARGUMENT", "unknown are x"),
        (
            [about(shape=[1 << 19, 3])],
            {"raw_input_contents": [bytes(12 << 19)]},
            "RESOURCE_EXHAUSTED",
            "larger than max",
        ),
    ],
)
def test_a_wrong_request_is_refused_with_a_status_and_a_reason(
    ports: Any, inputs: Any, fields: Any, code: str, text: str
) -> None:
    found, why = refused(ports[1], *inputs, **fields)
    assert found == code and text in why


def test_bytes_that_are_no_message_are_refused(ports: Any) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{ports[1]}") as channel:
        for method in ("ModelInfer", "ModelMetadata"):
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(f"/{service.NAME}/{method}")(b"\xff" * 9)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert f"9 bytes are no message {method}Request" in error.value.details()
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary(f"/{service.NAME}/ModelConfig")(b"")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as error:
            channel.stream_unary(INFER)(iter(()))
        assert "has sent no message" in error.value.details()
    with client_of(ports[1]) as client:
        assert refusal(client.is_model_ready, "nix")[0] == "NOT_FOUND"
        assert refusal(client.load_model, "m")[0] == "PERMISSION_DENIED"
        assert refusal(client.unload_model, "m")[0] == "PERMISSION_DENIED"


def test_limits_a_token_a_slow_client_and_a_fault_have_statuses(
    predictor: Any, caplog: Any
) -> None:
    application = serve(predictor, token="s3cret", timeout_s=0.2, max_answer_mb=0.0001)
    rows = [tensor(tritonclient.grpc, "rows", ROW)]
    token = {"authorization": "Bearer s3cret"}
    with serving(application) as (_, port), client_of(port) as client:
        assert client.is_server_live() and client.is_server_ready()
        for wrong in ({}, {"authorization": "Bearer s3cre"}):
            assert refusal(client.infer, "m", rows, headers=wrong)[0] == "UNAUTHENTICATED"
            assert refusal(client.get_server_metadata, headers=wrong)[0] == "UNAUTHENTICATED"
        assert client.infer("m", rows, headers=token).as_numpy("predict").shape == (1,)
        many = [tensor(tritonclient.grpc, "rows", np.zeros((99, 3), np.float32))]
        code, text = refusal(client.infer, "m", many, headers=token)
        assert code == "RESOURCE_EXHAUSTED" and "the answer could have" in text
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            waits = threading.Event()
            call = channel.stream_unary(INFER)
            with pytest.raises(grpc.RpcError) as error:  # a message that never comes
                call((b"" for _ in iter(waits.wait, None)), metadata=[*token.items()])
            waits.set()
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        (model,) = application.models
        model.predict = None  # what is called then is no function
        code, text = refusal(client.infer, "m", rows, headers=token)
        assert code == "INTERNAL" and "a request to model 'm' failed" in caplog.text
    text = get(application, "/metrics", Authorization="Bearer s3cret").text
    counted = dict(re.findall(r'tvm_forest_requests_total{model="m",status="(\d+)".* (.*)', text))
    assert counted == {"200": "1.0", "413": "1.0", "500": "1.0"}
    others = dict(re.findall(r'tvm_forest_requests_total{model="",status="(\d+)".* (.*)', text))
    assert others == {"200": "2.0", "401": "4.0", "408": "1.0"}


def test_requests_that_wait_are_refused_when_they_are_too_many(predictor: Any) -> None:
    application = serve(predictor, max_queue=2, max_delay_ms=300.0)
    found = []
    with serving(application) as (_, port), client_of(port) as client:
        done = threading.Semaphore(0)

        def note(result: Any, error: Any) -> None:
            found.append("OK" if error is None else str(error.status()))
            done.release()

        for _ in range(6):
            client.async_infer("m", [tensor(tritonclient.grpc, "rows", ROW)], note)
        for _ in range(6):
            assert done.acquire(timeout=60)
    assert sorted(found) == ["OK"] * 2 + ["StatusCode.UNAVAILABLE"] * 4


def test_requests_that_do_not_come_are_refused_when_they_are_too_many(predictor: Any) -> None:
    application = serve(predictor, max_queue=2, timeout_s=1.0)
    waits, codes = threading.Event(), []
    with serving(application) as (_, port), client_of(port) as client:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            calls = [
                channel.stream_unary(INFER).future(b"" for _ in iter(waits.wait, None))
                for _ in range(5)
            ]
            for call in calls:
                codes.append(call.exception(60).code().name)
            waits.set()
        assert sorted(codes) == ["DEADLINE_EXCEEDED"] * 2 + ["UNAVAILABLE"] * 3  # in any order
        assert client.is_server_ready()  # when the others have gone


def test_what_is_small_only_as_long_as_it_is_compressed_is_refused(predictor: Any) -> None:
    application = serve(predictor, max_body_mb=1.0)
    body = service_pb2.ModelInferRequest(model_name="m", inputs=[about(shape=[1 << 24, 3])])
    body.raw_input_contents.append(bytes(100 << 20))
    with serving(application) as (_, port):
        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            call = channel.unary_unary(INFER)
            with pytest.raises(grpc.RpcError) as error:
                call(body.SerializeToString(), compression=grpc.Compression.Gzip)
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        rows = tensor(tritonclient.grpc, "rows", np.zeros((900, 3), np.float32))
        with client_of(port) as client:
            answer = client.infer("m", [rows], compression_algorithm="gzip")
            assert len(answer.as_numpy("predict")) == 900


def number_of(found: Any, rows: Any) -> int:
    """Return which of the models an answer is of."""
    (number,) = (
        k for k, x in enumerate(FORESTS) if np.array_equal(found, x.predict_reference(rows)[:, 0])
    )
    return number


def test_each_answer_is_of_one_model_while_eight_clients_ask_and_models_are_swapped(
    tmp_path: Path,
) -> None:
    rows = hard_rows(FORESTS[0], 40, 1).astype(np.float32)
    saved = []
    for k, forest in enumerate(FORESTS):
        tvm_forest.build(forest, schedule=lambda sch: sch).save(tmp_path / f"{k}.tvmf")
        saved.append((tmp_path / f"{k}.tvmf").read_bytes())
    path = tmp_path / "m.tvmf"
    path.write_bytes(saved[0])
    source = Source(str(path), tvm_forest.load_predictor)
    application = make_application(
        [Named("m", "1", source.open(), source)], Settings(allow_load=True)
    )
    counts, ends, swaps = [[0, 0, 0] for _ in range(8)], threading.Event(), 10

    def be_client(number: int, http: int, port: int) -> None:
        module = tritonclient.grpc if number % 2 else tritonclient.http
        with module.InferenceServerClient(f"127.0.0.1:{port if number % 2 else http}") as client:
            inputs = [tensor(module, "rows", rows)]
            while not ends.is_set():
                try:
                    found = client.infer("m", inputs).as_numpy("predict")
                    counts[number][number_of(found, rows)] += 1
                except tritonclient.grpc.InferenceServerException as error:
                    assert error.status() in ("404", "StatusCode.NOT_FOUND"), error
                    counts[number][2] += 1

    with serving(application) as (http, port), client_of(port) as client:
        threads = [threading.Thread(target=be_client, args=(k, http, port)) for k in range(8)]
        for thread in threads:
            thread.start()
        for k in range(swaps):
            replace_file(path, saved[(k + 1) % 2])
            client.load_model("m")
            found = client.infer("m", [tensor(tritonclient.grpc, "rows", rows)])
            assert number_of(found.as_numpy("predict"), rows) == (k + 1) % 2
        assert sum(count[2] for count in counts) == 0  # no request was lost
        client.unload_model("m")
        assert refusal(client.infer, "m", [tensor(tritonclient.grpc, "rows", rows)])[0] == (
            "NOT_FOUND"
        )
        (index,) = client.get_model_repository_index().models
        assert (index.state, index.reason) == ("UNAVAILABLE", "unloaded")
        client.load_model("m")
        code, text = refusal(client.load_model, "m", config="{}")
        assert code == "INVALID_ARGUMENT" and "'config' is not taken" in text
        ends.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert all(sum(count[:2]) > 0 for count in counts)


def start_with_grpc(folder: Path, *arguments: str) -> tuple[Any, int, int]:
    """Start a process that serves both, and return it with the ports of HTTP and gRPC."""
    command = [sys.executable, "-m", "tvm_forest", "serve", str(folder / "m.tvmf")]
    command += ["--port", "0", "--grpc-port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    found = re.search(r"://127.0.0.1:(\d+); gRPC at 127.0.0.1:(\d+);", line)
    assert found, line
    return process, int(found[1]), int(found[2])


def test_a_process_serves_both_behind_tls_logs_all_and_answers_what_has_come_when_it_ends(
    tmp_path: Path, predictor: Any
) -> None:
    predictor.save(tmp_path / "m.tvmf")
    chain, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=DNS:localhost", "-out", chain, "-keyout", key],
        check=True,
        capture_output=True,
    )
    tls, slowly = ["--tls", str(chain), str(key)], ["--max-delay-ms", "1500"]
    slowly += ["--timeout-s", "600"]  # which nobody waits for a stream that has sent nothing
    process, _, port = start_with_grpc(tmp_path, *tls, *slowly, "--access-log")
    found = list[Any]()
    ended = threading.Event()

    def note(result: Any, error: Any) -> None:
        found.append(result.as_numpy("predict") if error is None else error)
        ended.set()

    client = tritonclient.grpc.InferenceServerClient(
        f"localhost:{port}", ssl=True, root_certificates=str(chain)
    )
    assert client.is_server_ready()
    client.async_infer("m", [tensor(tritonclient.grpc, "rows", ROW)], note)
    client.is_model_ready("m")  # comes after it, so the server has both
    known = grpc.ssl_channel_credentials(chain.read_bytes())
    with grpc.secure_channel(f"localhost:{port}", known) as channel:
        waits = threading.Event()
        idle = channel.stream_unary(INFER).future(b"" for _ in iter(waits.wait, None))
        channel.unary_unary(INFER.replace("ModelInfer", "ServerLive"))(b"")
        process.terminate()
        assert ended.wait(60) and process.wait(60) == 0
        error = idle.exception(60)
        waits.set()
    assert error.code() is grpc.StatusCode.UNAVAILABLE and "the server ends" in error.details()
    assert np.array_equal(found[0], predictor.predict(ROW))
    lines = process.stderr.read().splitlines()
    for method in ("ServerReady", "ModelInfer", "ModelReady"):
        assert len([x for x in lines if f"/{method} 200 " in x]) == 1
    assert len([x for x in lines if "/ModelInfer 503 " in x]) == 1


@pytest.fixture
def kept_signals() -> Iterator[None]:
    """Give the process of the test back the handlers that a server replaces."""
    before = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("kept_signals")
def test_a_port_that_is_in_use_is_refused(tmp_path: Path, predictor: Any, capfd: Any) -> None:
    predictor.save(tmp_path / "m.tvmf")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = ["serve", str(tmp_path / "m.tvmf"), "--port", "0", "--grpc-port"]
        assert main([*command, port]) == 2
        assert f"argument 'grpc_port': cannot listen at 127.0.0.1:{port}" in capfd.readouterr().err
        assert main([*command, "65536"]) == 2
        assert "argument 'grpc_port': 65536 is no port" in capfd.readouterr().err


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    check_packages()  # HTTP needs none of it
    with pytest.raises(InputError, match=r"grpc is missing; .* 'tvm-forest\[grpc\]'"):
        check_packages(with_grpc=True)


@pytest.mark.parametrize("seed", range(2))
def test_damaged_messages_are_read_or_refused(predictor: Any, seed: int) -> None:
    rng, (model,) = random.Random(seed), serve(predictor).models
    lists = typed(ROW, "FP32"), typed(ROW.astype(np.int64), "INT64"), typed(ROW > 0, "BOOL")
    whole = [
        service_pb2.ModelInferRequest(model_name="m", inputs=[x], outputs=[{"name": "apply"}])
        for x in lists
    ]
    whole.append(service_pb2.ModelInferRequest(inputs=[about()], raw_input_contents=[bytes(12)]))
    fates = dict.fromkeys(("read", "refused"), 0)
    for _ in range(1000):
        body = bytearray(rng.choice(whole).SerializeToString())
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(len(body))
            body[at : at + rng.randint(0, 1)] = rng.randbytes(rng.randint(0, 1))
        try:
            message = messages.read_message("ModelInferRequest", bytes(body))
            request = messages.read_request(message, model)
        except Refused:
            fates["refused"] += 1
            continue
        found = {x.name: model.predict(x.name, request.rows) for x in request.outputs}
        answer = messages.write_answer(model, request, found)
        assert service_pb2.ModelInferResponse.FromString(answer).outputs
        fates["read"] += 1
    assert min(fates.values()) > 50, fates
