"""A bounded load on the server, beside uvicorn and FastAPI calling XGBoost on the same JSON.

    python -m benchmarks features.serving --model airline --seconds 3
    python -m benchmarks features.serving --protocols    # HTTP, as JSON and as bytes, beside gRPC

Both servers are processes of this machine with one event loop, and predict on one thread. Another
process is the clients: each keeps its connection, and asks again once it has its answer. First the
answers are compared, as float32; then the servers take turns. Prints the table of docs/serving.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import grpc
import numpy as np

import tvm_forest
from benchmarks import models
from benchmarks.timing import cores, cpu_name
from tvm_forest.serving import messages

CLIENTS, ROWS = (1, 8, 64), (1, 100)
FEW_CLIENTS, SIZES = (1, 8), (1, 64, 4096)
"""Clients and rows of a request, where protocols are compared."""

METHOD = "/inference.GRPCInferenceService/ModelInfer"
DIFFERENT = 16
"""Requests that are asked in rotation."""

PEER = """
import sys

import numpy as np
import uvicorn
import xgboost
from fastapi import FastAPI, Request

booster = xgboost.Booster(model_file=sys.argv[1])
booster.set_param({"nthread": 1})
app = FastAPI()


@app.post("/v2/models/m/infer")
async def infer(request: Request):
    (tensor,) = (await request.json())["inputs"]
    rows = np.array(tensor["data"], np.float32).reshape(tensor["shape"])
    found = booster.inplace_predict(rows)
    output = {"name": "predict", "datatype": "FP32", "shape": [len(found)]}
    return {"model_name": "m", "outputs": [{**output, "data": found.tolist()}]}


server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", access_log=False))
config = server.config
config.load()
listening = config.bind_socket()
print(f"http://127.0.0.1:{listening.getsockname()[1]}; ", flush=True)
server.run([listening])
"""


@contextmanager
def serve(*command: str) -> Iterator[tuple[int, int]]:
    """Start a server, and return its ports of HTTP and gRPC, 0 for none."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"://127.0.0.1:(\d+);(?: gRPC at 127.0.0.1:(\d+);)?", line)
        assert found is not None
        yield int(found[1]), int(found[2] or 0)
    finally:
        process.terminate()
        process.wait(30)


def write_request(rows: Any) -> bytes:
    """Return a request of HTTP that holds rows as JSON."""
    data = [None if x != x else x for x in rows.ravel().tolist()]
    tensor = {"name": "rows", "shape": list(rows.shape), "datatype": "FP32", "data": data}
    return write_head(json.dumps({"inputs": [tensor]}).encode())


def write_head(body: bytes, *headers: str) -> bytes:
    """Return a request of HTTP."""
    first = ("POST /v2/models/m/infer HTTP/1.1", "Host: x", f"Content-Length: {len(body)}")
    return "\r\n".join([*first, *headers, "", ""]).encode() + body


def write_bytes(rows: Any) -> bytes:
    """Return a request of HTTP that holds rows as bytes, and asks for bytes."""
    tensor: dict[str, Any] = {"name": "rows", "shape": list(rows.shape), "datatype": "FP32"}
    tensor["parameters"] = {"binary_data_size": rows.nbytes}
    asked = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    head = json.dumps(asked).encode()
    return write_head(head + rows.tobytes(), f"Inference-Header-Content-Length: {len(head)}")


def write_message(rows: Any) -> bytes:
    """Return a request of gRPC that holds rows as bytes."""
    asked = messages.CLASSES["ModelInferRequest"](
        model_name="m",
        inputs=[{"name": "rows", "datatype": "FP32", "shape": rows.shape}],
        raw_input_contents=[rows.tobytes()],
    )
    return bytes(asked.SerializeToString())


async def ask(reader: Any, writer: Any, request: bytes) -> bytes:
    """Return the body of the answer."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    found = re.search(rb"content-length: (\d+)", head.lower())
    assert found is not None
    return bytes(await reader.readexactly(int(found[1])))


@asynccontextmanager
async def connect(port: int, is_grpc: bool) -> AsyncIterator[Any]:
    """Yield what sends a request by a connection of its own, and returns the answer."""
    if is_grpc:
        place, options = f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(place, options) as channel:
            yield channel.unary_unary(METHOD)
        return
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    yield partial(ask, reader, writer)
    writer.close()


async def load(
    port: int, requests: list[bytes], n_clients: int, seconds: float, is_grpc: bool = False
) -> list[float]:
    """Return how long each request took, of all clients."""
    found: list[float] = []
    end = time.perf_counter() + seconds

    async def be_client(number: int) -> None:
        async with connect(port, is_grpc) as send:
            while (begin := time.perf_counter()) < end:
                await send(requests[number % len(requests)])
                found.append(time.perf_counter() - begin)
                number += 1

    await asyncio.gather(*map(be_client, range(n_clients)))
    return found


def measure(
    port: int, requests: list[bytes], n_clients: int, seconds: float, is_grpc: bool = False
) -> Any:
    """Return requests a second, and milliseconds of the median and of 99 of 100 requests."""
    asyncio.run(load(port, requests, n_clients, seconds / 10, is_grpc))  # connections, caches
    begin = time.perf_counter()
    found = asyncio.run(load(port, requests, n_clients, seconds, is_grpc))
    rate = len(found) / (time.perf_counter() - begin)
    return rate, *(1000 * np.quantile(found, [0.5, 0.99]))


async def predict(port: int, requests: list[bytes]) -> list[Any]:
    """Return the predictions that a server gives."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = [json.loads(await ask(reader, writer, request)) for request in requests]
    writer.close()
    return [np.array(x["outputs"][0]["data"], np.float32) for x in answers]


def run(folder: Path, name: str, cache: Path, seconds: float) -> None:
    model = models.get(name, cache)
    rows = np.load(model.rows_path).astype(np.float32)
    saved, peer = folder / "model.tvmf", folder / "peer.py"
    tvm_forest.build(model.path).save(saved)
    peer.write_text(PEER)
    ours = ["-m", "tvm_forest", "serve", f"m={saved}", "--port", "0", "--n-jobs", "1"]
    with (
        serve(*ours) as (ours_port, _),
        serve(str(peer), str(model.path)) as (peer_port, _),
        get_context("spawn").Pool(1) as clients,
    ):
        print_head(name, "server")
        for n_rows in ROWS:
            parts = [rows[i * n_rows : (i + 1) * n_rows] for i in range(DIFFERENT)]
            requests = list(map(write_request, parts))
            found = [asyncio.run(predict(port, requests)) for port in (ours_port, peer_port)]
            for one, other in zip(*found, strict=True):
                assert one.tobytes() == other.tobytes()
            for n_clients in CLIENTS:
                for who, port in (("tvm-forest serve", ours_port), ("XGBoost", peer_port)):
                    cell = clients.apply(measure, (port, requests, n_clients, seconds))
                    print_row(n_rows, n_clients, who, *cell)


def print_head(name: str, what: str) -> None:
    """Print where it is measured, and the head of a table."""
    print(f"{name}, {cores()} cores of {cpu_name()}, {time.strftime('%Y-%m-%d')}\n")
    print(f"| rows | clients | {what} | requests/s | p50 ms | p99 ms |")
    print("|---:|---:|---|---:|---:|---:|")


def print_row(n_rows: int, n_clients: int, who: str, rate: float, *quantiles: float) -> None:
    """Print a row of the table."""
    times = " | ".join(f"{x:.2f}" for x in quantiles)
    print(f"| {n_rows:,} | {n_clients} | {who} | {rate:,.0f} | {times} |", flush=True)


async def compare(ports: tuple[int, int], rows: Any, wanted: Any) -> None:
    """Check that each protocol answers with the bits that are wanted."""
    async with connect(ports[1], True) as send:
        answer = messages.CLASSES["ModelInferResponse"].FromString(await send(write_message(rows)))
        assert answer.raw_output_contents[0] == wanted.tobytes()
    async with connect(ports[0], False) as send:
        assert (await send(write_bytes(rows))).endswith(wanted.tobytes())
        answer = json.loads(await send(write_request(rows)))
        found = np.array(answer["outputs"][0]["data"], np.float32)
        assert found.tobytes() == wanted.tobytes()


def run_protocols(folder: Path, name: str, cache: Path, seconds: float) -> None:
    """Compare protocols and forms of one server, which take turns."""
    model = models.get(name, cache)
    rows = np.load(model.rows_path).astype(np.float32)
    predictor = tvm_forest.build(model.path)
    predictor.save(folder / "model.tvmf")
    ours = ["-m", "tvm_forest", "serve", f"m={folder / 'model.tvmf'}", "--port", "0"]
    forms = {"HTTP, JSON": write_request, "HTTP, bytes": write_bytes, "gRPC": write_message}
    with (
        serve(*ours, "--grpc-port", "0", "--n-jobs", "1") as ports,
        get_context("spawn").Pool(1) as clients,
    ):
        print_head(name, "protocol")
        for n_rows in SIZES:
            parts = [
                rows[i * n_rows :][:n_rows] for i in range(min(DIFFERENT, len(rows) // n_rows))
            ]
            asyncio.run(compare(ports, parts[0], predictor.predict(parts[0])))
            for n_clients in FEW_CLIENTS:
                for form, write in forms.items():
                    is_grpc = form == "gRPC"
                    asked = list(map(write, parts)), n_clients, seconds, is_grpc
                    cell = clients.apply(measure, (ports[is_grpc], *asked))
                    print_row(n_rows, n_clients, form, *cell)


def main() -> None:
    """Run the server and its load."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="airline")
    parser.add_argument("--cache", type=Path, default=models.CACHE)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--protocols", action="store_true", help="compare HTTP and gRPC")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = run_protocols if options.protocols else run
        work(Path(temporary), options.model, options.cache, options.seconds)
