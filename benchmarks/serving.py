"""A bounded load on the server, beside uvicorn and FastAPI calling XGBoost on the same JSON.

    python benchmarks/serving.py --model airline --seconds 3

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
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import models
import tvm_forest
from timing import cores, cpu_name

CLIENTS, ROWS = (1, 8, 64), (1, 100)
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
def serve(*command: str) -> Iterator[int]:
    """Start a server, and return its port."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        found = re.search(r"://127.0.0.1:(\d+);", process.stdout.readline())
        assert found is not None
        yield int(found[1])
    finally:
        process.terminate()
        process.wait(30)


def write_request(rows: Any) -> bytes:
    """Return a request of HTTP that holds rows as JSON."""
    data = [None if x != x else x for x in rows.ravel().tolist()]
    tensor = {"name": "rows", "shape": list(rows.shape), "datatype": "FP32", "data": data}
    body = json.dumps({"inputs": [tensor]}).encode()
    head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def ask(reader: Any, writer: Any, request: bytes) -> bytes:
    """Return the body of the answer."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    found = re.search(rb"content-length: (\d+)", head.lower())
    assert found is not None
    return bytes(await reader.readexactly(int(found[1])))


async def load(port: int, requests: list[bytes], n_clients: int, seconds: float) -> list[float]:
    """Return how long each request took, of all clients."""
    found: list[float] = []
    end = time.perf_counter() + seconds

    async def be_client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (begin := time.perf_counter()) < end:
            await ask(reader, writer, requests[number % len(requests)])
            found.append(time.perf_counter() - begin)
            number += 1
        writer.close()

    await asyncio.gather(*map(be_client, range(n_clients)))
    return found


def measure(port: int, requests: list[bytes], n_clients: int, seconds: float) -> Any:
    """Return requests a second, and milliseconds of the median and of 99 of 100 requests."""
    asyncio.run(load(port, requests, n_clients, seconds / 10))  # connections, caches
    begin = time.perf_counter()
    found = asyncio.run(load(port, requests, n_clients, seconds))
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
    ours = ["-m", "tvm_forest.cli", "serve", f"m={saved}", "--port", "0", "--n-jobs", "1"]
    with (
        serve(*ours) as ours_port,
        serve(str(peer), str(model.path)) as peer_port,
        get_context("spawn").Pool(1) as clients,
    ):
        print(f"{name}, {cores()} cores of {cpu_name()}, {time.strftime('%Y-%m-%d')}\n")
        print("| rows | clients | server | requests/s | p50 ms | p99 ms |")
        print("|---:|---:|---|---:|---:|---:|")
        for n_rows in ROWS:
            parts = [rows[i * n_rows : (i + 1) * n_rows] for i in range(DIFFERENT)]
            requests = list(map(write_request, parts))
            found = [asyncio.run(predict(port, requests)) for port in (ours_port, peer_port)]
            for one, other in zip(*found, strict=True):
                assert one.tobytes() == other.tobytes()
            for n_clients in CLIENTS:
                for who, port in (("tvm-forest serve", ours_port), ("XGBoost", peer_port)):
                    cell = clients.apply(measure, (port, requests, n_clients, seconds))
                    rate, *quantiles = cell
                    times = " | ".join(f"{x:.2f}" for x in quantiles)
                    print(f"| {n_rows} | {n_clients} | {who} | {rate:,.0f} | {times} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="airline")
    parser.add_argument("--cache", type=Path, default=models.CACHE)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run(Path(temporary), options.model, options.cache, options.seconds)
