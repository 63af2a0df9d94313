"""What tests of the server share: models, requests of the protocol, and clients."""

from __future__ import annotations

import asyncio
import json
import os
import re
import struct
import subprocess
import sys
from typing import Any

import httpx
import numpy as np
import xgboost

import tvm_forest
from tvm_forest.serving import Settings, make_application
from tvm_forest.serving.repository import Named

NAMES = ["a", "b", "c"]
STATUSES = {400, 401, 403, 404, 405, 408, 413, 415, 431, 503}
"""What docs/serving.md says of requests that get no predictions; 500 would be a fault of ours."""

PATIENCE_S = 60  # of this client, for a machine that is busy


def train(names: list[str] | None = NAMES, **options: Any) -> Any:
    rows = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    labels = (rows[:, 0] > rows[:, 1]) + (rows[:, 2] > 0.5)
    data = xgboost.DMatrix(rows, labels > 0, feature_names=names)
    if options.get("num_class"):
        data.set_label(labels)
    parameters = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1, **options}
    return xgboost.train(parameters, data, 4)


def serve(*predictors: Any, **settings: Any) -> Any:
    """Return the application that serves models, the first of which is called "m"."""
    names = ["m", *(f"m{i}" for i in range(1, len(predictors)))]
    named = [Named(name, "1", x) for name, x in zip(names, predictors, strict=True)]
    return make_application(named, Settings(**settings))


def start(*arguments: str, **environment: str) -> tuple[Any, int]:
    """Start a server on a free port, and return its process and port."""
    command = [sys.executable, "-m", "tvm_forest", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    line = process.stdout.readline()
    return process, int(re.search(r"://127.0.0.1:(\d+);", line)[1])


def to_json(rows: Any, datatype: str = "FP32", **fields: Any) -> bytes:
    """Return a request; NaN is null, and infinities are texts."""
    special = {"nan": None, "inf": "Infinity", "-inf": "-Infinity"}
    data = [[special.get(str(x), x) for x in row] for row in np.asarray(rows).tolist()]
    tensor = {"name": "rows", "shape": list(rows.shape), "datatype": datatype, "data": data}
    return json.dumps({"inputs": [tensor], **fields}).encode()


def to_binary(rows: Any, datatype: str = "FP32", **fields: Any) -> tuple[bytes, dict[str, str]]:
    """Return a request that holds rows as bytes, and its header."""
    data = rows.tobytes()
    tensor = {"name": "rows", "shape": list(rows.shape), "datatype": datatype}
    tensor["parameters"] = {"binary_data_size": len(data)}
    head = json.dumps({"inputs": [tensor], **fields}).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


def read(answer: Any) -> dict[str, Any]:
    """Return the outputs of an answer as arrays by name, whichever way they came."""
    assert answer.status_code == 200, answer.text
    size = int(answer.headers.get("Inference-Header-Content-Length", len(answer.content)))
    head, data = json.loads(answer.content[:size]), answer.content[size:]
    special = {None: np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
    arrays = {}
    for output in head["outputs"]:
        kinds = {"FP32": "<f4", "FP64": "<f8", "INT32": "<i4", "INT64": "<i8", "BOOL": "?"}
        kind, shape = output["datatype"], output["shape"]
        if "data" not in output:
            own = output["parameters"]["binary_data_size"]
            if kind == "BYTES":
                array = np.array(split_texts(data[:own]), object)
            else:
                array = np.frombuffer(data[:own], kinds[kind])
            data = data[own:]
        elif kind == "BYTES":
            array = np.array(output["data"], object)
        else:
            values = [
                special.get(x, x) if type(x) not in (int, bool) else x for x in output["data"]
            ]
            array = np.array(values, kinds[kind])
        arrays[output["name"]] = array.reshape(shape)
    assert not data
    return arrays


def split_texts(data: bytes) -> list[str]:
    texts = []
    while data:
        (size,) = struct.unpack_from("<I", data)
        texts.append(data[4 : 4 + size].decode())
        data = data[4 + size :]
    return texts


def ask(application: Any, *requests: Any) -> list[Any]:
    """Send requests at once, each (method, path, body, headers), and return the answers."""

    async def ask_all() -> list[Any]:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            calls = (
                client.request(method, path, content=body, headers=headers)
                for method, path, body, headers in requests
            )
            return await asyncio.gather(*calls)

    return asyncio.run(ask_all())


def infer(application: Any, *bodies: Any, path: str = "/v2/models/m/infer") -> list[Any]:
    """Send requests for predictions at once, bodies or (body, headers)."""
    pairs = [x if isinstance(x, tuple) else (x, {}) for x in bodies]
    return ask(application, *(("POST", path, body, headers) for body, headers in pairs))


def get(application: Any, path: str, **headers: str) -> Any:
    return ask(application, ("GET", path, None, headers))[0]


def build(*arguments: Any, **options: Any) -> Any:
    return tvm_forest.build(train(*arguments, **options), schedule=lambda start: start)
