"""A server reads models anew while it answers: each answer is that of one of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("httptools", reason="the extra `serve` is not installed")
pytest.importorskip("orjson", reason="the extra `serve` is not installed")

import tvm_forest
from forests import drawn_forest
from served import PATIENCE_S, ask, get, infer, read, serve, start, to_json, train
from tvm_forest.errors import InputError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.serving import Settings, make_application
from tvm_forest.serving.repository import Named, Source
from tvm_forest.system.archive import replace_file

pytestmark = pytest.mark.slow

FORESTS = [drawn_forest(5, 4, seed=seed, base=[0.1]) for seed in (1, 2)]
ROWS = hard_rows(FORESTS[0], 40, 1)
LOAD, UNLOAD = (f"/v2/repository/models/m/{word}" for word in ("load", "unload"))


def build(forest: Any) -> Any:
    return tvm_forest.build(forest, schedule=lambda sch: sch)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("saved")
    for k, forest in enumerate(FORESTS):
        build(forest).save(folder / f"{k}.tvmf")
    return [(folder / f"{k}.tvmf").read_bytes() for k in range(len(FORESTS))]


@pytest.fixture
def file(tmp_path: Path, saved: list[bytes]) -> Path:
    path = tmp_path / "m.tvmf"
    path.write_bytes(saved[0])
    return path


def application_of(file: Path, **settings: Any) -> Any:
    source = Source(str(file), tvm_forest.load_predictor)
    named = [Named("m", "1", source.open(), source)]
    return make_application(named, Settings(**{"allow_load": True, **settings}))


def post(application: Any, path: str, body: bytes | None = None) -> Any:
    return ask(application, ("POST", path, body, {}))[0]


def number_of(answer: Any) -> int:
    """Return which of the models an answer is of."""
    found = read(answer)["predict"]
    (number,) = (
        k for k, x in enumerate(FORESTS) if np.array_equal(found, x.predict_reference(ROWS)[:, 0])
    )
    return number


def test_a_model_is_read_anew_and_answers_no_more_when_it_is_unloaded(
    file: Path, saved: list[bytes]
) -> None:
    application = application_of(file)
    assert number_of(infer(application, to_json(ROWS))[0]) == 0
    replace_file(file, saved[1])
    answer = post(application, LOAD, b"{}")
    assert (answer.status_code, answer.content) == (200, b"")
    assert number_of(infer(application, to_json(ROWS))[0]) == 1
    ready = {"name": "m", "version": "1", "state": "READY", "reason": ""}
    assert post(application, "/v2/repository/index").json() == [ready]
    without = b'{"parameters": {"unload_dependents": false}}'  # as clients of Triton send it
    assert post(application, UNLOAD, without).status_code == 200
    assert infer(application, to_json(ROWS))[0].status_code == 404
    assert get(application, "/v2/models/m/ready").status_code == 404
    assert post(application, "/v2/repository/index", b'{"ready": true}').json() == []
    (about,) = post(application, "/v2/repository/index").json()
    assert (about["state"], about["reason"]) == ("UNAVAILABLE", "unloaded")
    assert post(application, LOAD).status_code == 200
    assert number_of(infer(application, to_json(ROWS))[0]) == 1


def test_a_file_that_is_damaged_leaves_the_model_that_there_is(file: Path) -> None:
    application = application_of(file)
    file.write_bytes(file.read_bytes()[:-100])
    answer = post(application, LOAD)
    assert answer.status_code == 400
    assert "model 'm' stays as it is" in answer.json()["error"]
    assert number_of(infer(application, to_json(ROWS))[0]) == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v2/repository/models/other/load", b"", 404, "no file here (have: m)"),
        (LOAD, b"[]", 400, "no JSON of the protocol"),
        (LOAD, b"{", 400, "no JSON of the protocol"),
        (LOAD, b'{"parameters": []}', 400, "no JSON of the protocol"),
        (LOAD, b'{"parameters": {"file:1/model": "AAAA"}}', 400, "'file:1/model' is not taken"),
        (LOAD, b" " * 70_000, 413, "more than 65536 bytes"),
    ],
)
def test_clients_load_what_the_operator_has_named_and_nothing_else(
    file: Path, path: str, body: bytes, status: int, text: str
) -> None:
    answer = post(application_of(file), path, body)
    assert answer.status_code == status
    assert text in answer.json()["error"]


def test_clients_load_nothing_unless_they_may(file: Path) -> None:
    for application in (application_of(file, allow_load=False), serve(build(FORESTS[0]))):
        for path in (LOAD, UNLOAD):
            answer = post(application, path)
            assert answer.status_code == 403
            assert "--allow-load" in answer.json()["error"]
    assert "model_repository" in get(application_of(file), "/v2").json()["extensions"]
    (answer,) = ask(application_of(file, token="secret"), ("POST", LOAD, None, {}))
    assert answer.status_code == 401


def test_no_request_is_lost_or_mixed_while_models_are_swapped(
    file: Path, saved: list[bytes]
) -> None:
    application, swaps = application_of(file), 20

    async def swap(client: Any) -> None:
        for k in range(swaps):
            replace_file(file, saved[(k + 1) % 2])
            assert (await client.post(LOAD)).status_code == 200
            assert number_of(await client.post("/v2/models/m/infer", content=body)) == (k + 1) % 2

    async def ask_all() -> list[Any]:
        transport, found = httpx.ASGITransport(application), list[Any]()
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            swapping = asyncio.create_task(swap(client))
            while not swapping.done():
                asked = (client.post("/v2/models/m/infer", content=body) for _ in range(8))
                found += await asyncio.gather(*asked)
            await swapping
        return found

    body = to_json(ROWS)
    numbers = [number_of(answer) for answer in asyncio.run(ask_all())]
    assert set(numbers) <= {0, 1} and len(numbers) >= 8


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[tuple[Any, Callable[[], int]]]:
    """Start a server; yield its process, and what tells which model answers."""
    process, port = start(*arguments)
    url = f"http://127.0.0.1:{port}/v2/models/m/infer"
    with httpx.Client(timeout=PATIENCE_S) as client:
        yield process, lambda: number_of(client.post(url, content=to_json(ROWS)))
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


def wait_for(number: int, tell: Callable[[], int]) -> None:
    end = time.monotonic() + PATIENCE_S
    while tell() != number:
        assert time.monotonic() < end


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no such signal")
def test_a_signal_lets_a_server_read_its_models_anew(file: Path, saved: list[bytes]) -> None:
    with running(str(file)) as (process, tell):
        assert tell() == 0
        replace_file(file, saved[1])
        os.kill(process.pid, signal.SIGHUP)
        wait_for(1, tell)


def test_a_server_that_watches_its_files_reads_what_is_whole(
    file: Path, saved: list[bytes]
) -> None:
    with running(str(file), "--watch-s", "0.05") as (_, tell):
        assert tell() == 0
        file.write_bytes(saved[1][:-10])  # is told in the log
        replace_file(file, saved[1])
        wait_for(1, tell)
        replace_file(file, saved[0])
        wait_for(0, tell)


def test_a_server_that_does_not_wait_answers_with_the_same_bits(tmp_path: Path) -> None:
    model = train(max_depth=1)
    model.save_model(tmp_path / "m.json")
    predictor = tvm_forest.build(tmp_path / "m.json", schedule=lambda start: start)
    rows = hard_rows(predictor.forest, 40)
    process, port = start(str(tmp_path / "m.json"), "--no-wait")
    url = f"http://127.0.0.1:{port}/v2/models/m/infer"
    for _ in range(20):
        answer = httpx.post(url, content=to_json(rows), timeout=PATIENCE_S)
        assert np.array_equal(read(answer)["predict"], predictor.predict(rows))
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("value", [-1.0, float("nan"), True])
def test_a_time_between_looks_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="argument 'watch_s'"):
        Settings(watch_s=value)
