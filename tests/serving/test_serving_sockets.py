"""Slow clients, wrong bodies, bodies of 100 MB: nothing but the statuses of docs/serving.md."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httptools", reason="the extra `serve` is not installed")
pytest.importorskip("orjson", reason="the extra `serve` is not installed")

from served import PATIENCE_S, STATUSES, build, infer, serve, start, to_binary, to_json
from tvm_forest.cli import main

pytestmark = pytest.mark.slow

ROW = np.array([[0.5, -1, 2]], np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    build().save(folder / "model.tvmf")
    return folder


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    models = [str(folder / "model.tvmf"), f"o:7={folder / 'model.tvmf'}"]
    process, port = start(*models, "--timeout-s", "1", "--max-body-mb", "2")
    yield port
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def request(body: bytes, path: str = "/v2/models/model/infer", **headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """Return the status and the body of the next answer; status 0 if the server closes instead."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(1)
        if not more:
            assert not data
            return 0, b""
        data += more
    status = int(data.split()[1])
    size = int(re.search(rb"content-length: (\d+)", data.lower())[1])
    body = b""
    while len(body) < size:
        body += connection.recv(size - len(body))
    return status, body


def check_well(port: int) -> None:
    """See that the server still answers others."""
    with connect(port) as other:
        other.sendall(request(to_json(ROW)))
        assert read_answer(other)[0] == 200


def error_of(answer: tuple[int, bytes]) -> str:
    (text,) = json.loads(answer[1]).values()
    return text


def test_a_connection_is_kept_and_requests_may_follow_each_other_at_once(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(request(to_json(ROW, id="1")))
        first = json.loads(read_answer(connection)[1])
        both = request(to_json(ROW, id="2")) + request(to_json(ROW), "/v2/models/o/infer")
        connection.sendall(both)
        second, third = (json.loads(read_answer(connection)[1]) for _ in range(2))
        assert (first["id"], second["id"], third["model_version"]) == ("1", "2", "7")
        assert first["outputs"] == second["outputs"]


BEGUN = {
    "head": b"GET /v2 HTTP/1.1\r\nHost: x\r\nX: " + b"y",
    "body": request(to_json(ROW))[:-1],
    "chunk": b"POST /v2/models/model/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
}


def leave_requests_without_end(port: int) -> None:
    """All connections wait for their ends at the same time."""
    with contextlib.ExitStack() as stack:
        first, later = (
            {name: stack.enter_context(connect(port)) for name in BEGUN} for _ in range(2)
        )
        for name, begin in BEGUN.items():
            first[name].sendall(begin)
            later[name].sendall(request(to_json(ROW)) + begin)  # after one that is answered
        check_well(port)
        for name in BEGUN:
            answer = read_answer(first[name])
            assert answer[0] == 408 and "within 1 seconds" in error_of(answer), name
            assert first[name].recv(1) == b"", name
            assert read_answer(later[name])[0] == 200, name
            assert read_answer(later[name])[0] == 408, name


def send_drop_by_drop(port: int) -> None:
    with connect(port) as connection:
        connection.settimeout(0.1)
        for drop in request(to_json(ROW)):
            try:
                connection.sendall(bytes([drop]))
                if data := connection.recv(4096):
                    assert data.startswith(b"HTTP/1.1 408 ")
                    return
            except TimeoutError:
                continue
    raise AssertionError("it had all the time it wanted")


def say_nothing(port: int) -> None:
    with connect(port) as silent, connect(port) as other:
        other.sendall(b"\r\n")
        for connection in (silent, other):
            assert read_answer(connection) == (0, b"")


def test_slow_clients_are_told_408_or_let_go(port: int) -> None:
    """All of them wait for the same seconds; drops give no more time."""
    clients = (leave_requests_without_end, send_drop_by_drop, say_nothing)
    with ThreadPoolExecutor(len(clients)) as pool:
        for done in [pool.submit(client, port) for client in clients]:
            done.result()


def test_a_client_that_takes_no_answers_is_let_go(port: int) -> None:
    rows = np.zeros((5000, 3), np.float32)
    outputs = [{"name": "predict_per_tree"}, {"name": "apply"}]
    body = request(to_json(rows, outputs=outputs))
    with connect(port) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pytest.raises(OSError):  # broken or reset, once the server has waited for a second
            for _ in range(10_000):
                connection.sendall(body)
    check_well(port)


def test_a_head_of_any_length_is_431(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\nX: " + b"y" * 70_000)
        answer = read_answer(connection)
        assert answer[0] == 431 and "65536 bytes" in error_of(answer)


def send_all(connection: socket.socket, part: bytes, count: int) -> None:
    """Send a part so many times, or until the server has enough."""
    try:
        for _ in range(count):
            connection.sendall(part)
    except OSError:
        pass


def test_a_body_of_100_megabytes_is_413(port: int) -> None:
    part = b"[" + b"1," * 499_999 + b"1"
    path = b"POST /v2/models/model/infer HTTP/1.1\r\nHost: x\r\n"
    with connect(port) as connection:
        connection.sendall(path + b"Content-Length: 100000000\r\n\r\n")
        send_all(connection, part, 100)
        answer = read_answer(connection)
        assert answer[0] == 413 and "more than 2 megabytes" in error_of(answer)
        connection.sendall(request(to_json(ROW)))  # the rest was thrown away
        assert read_answer(connection)[0] == 200
    with connect(port) as connection:
        connection.sendall(path + b"Transfer-Encoding: chunked\r\n\r\n")
        send_all(connection, b"%x\r\n%b\r\n" % (len(part), part), 100)
        assert read_answer(connection)[0] == 413
    with connect(port) as connection:  # it asks first
        connection.sendall(path + b"Content-Length: 100000000\r\nExpect: 100-continue\r\n\r\n")
        assert read_answer(connection)[0] == 413
    check_well(port)


def test_what_is_no_http_is_400(port: int) -> None:
    lines = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a client of TLS
        b"GET\r\n\r\n",
        b"GET /v2 HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        b"POST /v2/models/model/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    ]
    for line in lines:
        for before in (b"", request(to_json(ROW))):
            with connect(port) as connection:
                connection.sendall(before)
                assert not before or read_answer(connection)[0] == 200
                connection.sendall(line)
                answer = read_answer(connection)
                assert answer[0] in (400, 404, 405), line
                assert error_of(answer)
    check_well(port)


OFFER = {
    "Connection": "Upgrade, HTTP2-Settings",
    "HTTP2_Settings": "AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA",
    "Upgrade": "h2c",
    "User_Agent": "Java-http-client/17.0.15",
}
"""What Java's HttpClient sends with each first request."""


@pytest.mark.parametrize("cuts", [(), (-1,), (-40,), (9, -90, -3)], ids=str)
def test_a_client_that_offers_another_protocol_gets_this_one(port: int, cuts: Any) -> None:
    body = to_json(ROW, id="1")
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    chunked = request(b"", Transfer_Encoding="chunked", **OFFER).replace(
        b"Content-Length: 0\r\n", b""
    )
    plain = request(to_json(ROW, id="2"))
    websocket = b"GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    for asked in (request(body, **OFFER), chunked + chunks, websocket):
        with connect(port) as connection:
            places = [0, *(len(asked) + cut if cut < 0 else cut for cut in cuts), len(asked)]
            for begin, end in pairwise(places):  # as segments of TCP
                connection.sendall(asked[begin:end])
                check_well(port)
            first = read_answer(connection)
            assert first[0] == 200 and (asked is websocket or json.loads(first[1])["id"] == "1")
            connection.sendall(asked + plain)  # the connection is kept
            assert [read_answer(connection)[0] for _ in range(2)] == [200, 200]


def test_a_client_that_offers_another_protocol_may_wait_and_close(port: int) -> None:
    body = to_json(ROW)
    asked = request(body, **{**OFFER, "Connection": "close, Upgrade", "Expect": "100-continue"})
    with connect(port) as connection:
        connection.sendall(asked[: -len(body)])
        assert connection.recv(99).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert read_answer(connection)[0] == 200
        assert connection.recv(1) == b""
    with connect(port) as connection:
        connection.sendall(b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_answer(connection)[0] in (400, 404, 405)


def test_a_client_that_takes_a_long_answer_bit_by_bit_gets_all_of_it(port: int) -> None:
    rows = np.zeros((1_000, 3), np.float32)
    body, headers = to_binary(rows, outputs=[{"name": "predict_per_tree"}, {"name": "apply"}])
    size = headers["Inference-Header-Content-Length"]
    with connect(port) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request(body, Inference_Header_Content_Length=size))
        status, text = read_answer(connection)
    found = json.loads(text)["outputs"]
    assert status == 200 and [len(output["data"]) for output in found] == [4 * len(rows)] * 2


def test_random_bytes_get_documented_statuses(port: int) -> None:
    rng = random.Random(0)
    good = request(to_binary(ROW)[0], Inference_Header_Content_Length="98")
    for _ in range(60):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with connect(port) as connection:
            connection.sendall(bytes(data))
            connection.shutdown(socket.SHUT_WR)
            assert read_answer(connection)[0] in STATUSES | {0, 200}
    check_well(port)


PARTS = [b"{", b"}", b"[", b"]", b'"', b",", b":", b"1e999", b"-", b"null", b"\\ud800", b"\xff"]
PARTS += [b"NaN", b"true", b'"rows"', b'"shape"', b"9" * 30, b'"FP32"', b'"BYTES"', b"\x00", b"{}"]


def mutate(body: bytes, rng: random.Random) -> bytes:
    """Return a body in which some places are changed, doubled, left out or replaced."""
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(body) + 1)
        end = at + rng.randrange(12)
        middle = rng.choice([b"", bytes([rng.randrange(256)]), rng.choice(PARTS), body[at:end] * 2])
        body = body[:at] + middle + body[rng.choice([at, end]) :]
    return body


def test_mutated_bodies_get_predictions_or_a_reason() -> None:
    """Predictions only if the body says so: those of the rows that an answer holds."""
    application = serve(build())
    rng = random.Random(1)
    rows = np.array([[0.5, -1, 2], [1, np.nan, 3]], np.float32)
    outputs = [{"name": "predict"}, {"name": "apply", "parameters": {"binary_data": True}}]
    bodies: list[Any] = []
    for k in range(400):
        body, headers = to_binary(rows, outputs=outputs) if k % 2 else (to_json(rows), {})
        if k % 10 == 3:
            headers = {"Inference-Header-Content-Length": str(rng.randrange(len(body) + 5))}
        bodies.append((mutate(body, rng), headers))
    bodies += [(rng.randbytes(rng.randrange(200)), {}) for _ in range(50)]
    seen = set()
    for answer in infer(application, *bodies):
        seen.add(answer.status_code)
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 400:
            assert list(answer.json()) == ["error"]
    assert seen == {200, 400}


def test_a_server_that_ends_answers_what_has_come(folder: Path) -> None:
    process, port = start(str(folder / "model.tvmf"), "--max-delay-ms", "1500")
    with connect(port) as connection, connect(port) as idle:
        connection.sendall(request(to_json(ROW)))
        check = b"GET /v2/health/live HTTP/1.1\r\n\r\n"
        idle.sendall(check)
        assert read_answer(idle)[0] == 200  # so the request before has come as well
        process.send_signal(signal.SIGTERM)
        assert read_answer(connection)[0] == 200
        assert process.wait(PATIENCE_S) == 0
        assert idle.recv(1) == b""
    with pytest.raises(OSError):
        connect(port)


@pytest.mark.long
def test_tls_and_a_token_are_asked_for_if_there_are_any(folder: Path, tmp_path: Path) -> None:
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = [str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names]
    make += ["-out", files[0], "-keyout", files[1]]
    try:
        subprocess.run(make, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    (tmp_path / "token").write_text("s3cret\n")
    options = ["--tls", *files, "--token-file", str(tmp_path / "token")]
    process, port = start(str(folder / "model.tvmf"), *options)
    context = ssl.create_default_context(cafile=files[0])
    with context.wrap_socket(connect(port), server_hostname="localhost") as connection:
        for headers, status in (({}, 401), ({"Authorization": "Bearer s3cret"}, 200)):
            connection.sendall(request(to_json(ROW), **headers))
            assert read_answer(connection)[0] == status
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


def test_one_clear_error_ends_a_server_before_its_port_opens(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(folder / "model.tvmf")
    (tmp_path / "bad.json").write_text("{")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, text in (
            ([model, str(tmp_path / "bad.json")], "bad.json"),
            ([model, "x=nowhere.json"], "nowhere.json"),
            ([model, model], "two are called 'model' in version '1'"),
            ([model, "--port", port], f"cannot listen at 127.0.0.1:{port}"),
            ([model, "--port", "65536"], "argument 'port': 65536 is no port"),
            ([model, "--port", "-1"], "argument 'port': -1 is no port"),
            ([model, "--n-jobs", "0"], "argument 'n_jobs': 0"),
            ([model, "--timeout-s", "inf"], "argument 'timeout_s': inf"),
            ([model, "--host", "nowhere.invalid"], "cannot listen at nowhere.invalid"),
            ([model, "--token-file", str(tmp_path / "none")], "--token-file"),
            ([model, "--tls", "no", "no", "--port", "0"], "certificate"),
            ([model, "--max-batch", "0"], "max_batch"),
        ):
            assert main(["serve", *arguments]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert text in line
