"""Bodies that are compressed, JSON as Python writes it, and the access log."""

from __future__ import annotations

import gzip
import json
import logging
import math
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httptools", reason="the extra `serve` is not installed")
pytest.importorskip("orjson", reason="the extra `serve` is not installed")

from served import ask, build, get, infer, read, serve, to_binary, to_json
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.serving import coding

pytestmark = pytest.mark.slow

PACK = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.fixture(scope="module")
def predictor() -> Any:
    return build()


@pytest.fixture(scope="module")
def application(predictor: Any) -> Any:
    return serve(predictor, max_body_mb=1.0)


@pytest.mark.parametrize("form", PACK)
def test_requests_and_answers_are_compressed_as_clients_of_triton_do(
    application: Any, predictor: Any, form: str
) -> None:
    rows = hard_rows(predictor.forest, 400, 1).astype(np.float32)
    binary, sizes = to_binary(rows, parameters={"binary_data_output": True})
    headers = {"Content-Encoding": form, "Accept-Encoding": form}
    listed, whole = infer(
        application,
        (PACK[form](to_json(rows)), headers),
        (PACK[form](binary), {**headers, **sizes}),
    )
    for answer in (listed, whole):
        assert answer.headers["content-encoding"] == form  # which this client takes off
        assert answer.headers["vary"] == "accept-encoding"
        assert int(answer.headers["content-length"]) < len(answer.content)
        assert np.array_equal(read(answer)["predict"], predictor.predict(rows))


@pytest.mark.parametrize(
    ("accepted", "form"),
    [
        ("", None),
        ("identity", None),
        ("br", None),
        ("gzip;q=0", None),
        ("gzip;q=0, *", "deflate"),
        ("*", "gzip"),
        ("br, DEFLATE", "deflate"),
        ("gzip, deflate", "gzip"),
        ("gzip;q=0.2, deflate;q=0.30", "deflate"),
        ("*;q=0", None),
        (";;q=,", None),
    ],
)
def test_the_form_of_an_answer_is_what_the_client_wants(
    application: Any, accepted: str, form: str | None
) -> None:
    assert coding.choose_coding(accepted.encode()) == (form and form.encode())
    long, short = infer(
        application,
        *((to_json(np.zeros((n, 3))), {"Accept-Encoding": accepted}) for n in (400, 1)),
    )
    assert long.headers.get("content-encoding") == form
    assert "content-encoding" not in short.headers
    assert len(read(long)["predict"]) == 400


@pytest.mark.parametrize(
    ("body", "form", "status", "text"),
    [
        (b"", "gzip", 400, "cut short"),
        (b"{}", "gzip", 400, "not of the form gzip"),
        (zlib.compress(b"{}"), "gzip", 400, "not of the form gzip"),
        (gzip.compress(b"{}", mtime=0), "deflate", 400, "not of the form deflate"),
        (gzip.compress(b"{}", mtime=0)[:-4], "gzip", 400, "cut short"),
        (gzip.compress(b"{}", mtime=0) + b"x", "gzip", 400, "more follows"),
        (gzip.compress(b"{}", mtime=0), "gzip", 400, "'inputs' is missing"),
        (b"{}", "br", 415, "b'br' (have: gzip, deflate)"),
        (b"{}", "gzip, gzip", 415, "have: gzip, deflate"),
    ],
)
def test_what_is_no_whole_body_is_refused(
    application: Any, body: bytes, form: str, status: int, text: str
) -> None:
    (answer,) = infer(application, (body, {"Content-Encoding": form}))
    assert answer.status_code == status and text in answer.json()["error"]


def test_a_small_body_that_becomes_a_large_one_is_refused_without_making_it(
    application: Any,
) -> None:
    body = gzip.compress(bytes(200 << 20), 9)
    assert len(body) < 1 << 20
    tracemalloc.start()
    (answer,) = infer(application, (body, {"Content-Encoding": "gzip"}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.status_code == 413 and "more than 1 megabytes" in answer.json()["error"]
    assert peak < 10 << 20
    thin = serve(build(), max_queue_mb=0.5)
    (answer,) = infer(thin, (gzip.compress(bytes(1 << 20)), {"Content-Encoding": "gzip"}))
    assert answer.status_code == 413 and "0.5 megabytes by itself" in answer.json()["error"]


def test_numbers_that_json_lacks_are_read_as_python_writes_them(
    application: Any, predictor: Any
) -> None:
    rows = np.array([[math.nan, math.inf, -math.inf], [0.5, math.nan, 1]])
    tensor = {"name": "rows", "shape": [2, 3], "datatype": "FP64", "data": rows.tolist()}
    texts = ['NaN "Infinity', 'a\\" NaN', "-Infinity\\", "ü\\\\"]  # stay as they are
    for text in texts:
        body = json.dumps({"id": text, "inputs": [tensor]}).encode()
        assert b"NaN" in body and b" Infinity" in body and b"-Infinity" in body
        (answer,) = infer(application, body)
        assert answer.json()["id"] == text
        assert np.array_equal(read(answer)["predict"], predictor.predict(rows))
    whole = {**tensor, "datatype": "INT64"}
    (answer,) = infer(application, json.dumps({"inputs": [whole]}).encode())
    assert answer.status_code == 400 and "None is no integer" in answer.json()["error"]


@pytest.mark.parametrize("body", [b'{"id": "' + b'\\"' * 500_000, b'NaN"' + b"\\" * 900_000])
def test_what_is_almost_such_a_number_is_refused_in_time(application: Any, body: bytes) -> None:
    (answer,) = infer(application, body)  # a quadratic search would take an hour
    assert answer.status_code == 400 and "is no JSON" in answer.json()["error"]


def test_the_access_log_has_a_line_for_each_request_whatever_its_path(
    predictor: Any, caplog: Any
) -> None:
    caplog.set_level(logging.INFO, "tvm_forest.access")
    rows = to_json(np.zeros((1, 3)))
    for is_on in (False, True):
        logged = serve(predictor, access_log=is_on, token="t")
        ask(logged, ("POST", "/v2/models/m/infer", rows, {"Authorization": "Bearer t"}))
        ask(logged, ("POST", "/v2/models/m/infer", rows, {}))
        get(logged, "/v2/health/live")
        get(logged, "/v2/a%0Ab%22" + "x" * 999)
        assert len(caplog.messages) == 4 * is_on
    words = [message.split(" ") for message in caplog.messages]
    assert [x[1:4] for x in words[:3]] == [
        ["POST", "/v2/models/m/infer", "200"],
        ["POST", "/v2/models/m/infer", "401"],
        ["GET", "/v2/health/live", "200"],
    ]
    assert words[3][2].startswith("/v2/a%0Ab%22xxx") and len(words[3][2]) < 250
    assert all(x[0] == "127.0.0.1" and x[-1] == "ms" and float(x[4]) >= 0 for x in words)
