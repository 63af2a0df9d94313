"""Damaged requests to the server: an answer with the right bits, or a status that says why not.

`CHECKS` maps a kind to what draws an input, tries it and says what became of it.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
from functools import lru_cache
from typing import Any

import numpy as np

import _path  # noqa: F401 (what tests share)
import tvm_forest
from forests import Split, forest_of
from fuzz_files import NUMBERS, OTHERS, Phase, damaged_bytes, damaged_values, odd_value
from served import STATUSES, serve, to_binary, to_json
from tvm_forest.forest.probe_rows import hard_rows

NAMES = ("age", "height", "weight")
TYPES = {"FP64": "f8", "FP32": "f4", "FP16": "f2", "INT32": "i4", "INT64": "i8", "UINT8": "u1"}
TYPES |= {"BOOL": "?", "BYTES": "O"}
OUTPUTS = ("predict", "predict_margin", "predict_proba", "apply")


@lru_cache
def predictors() -> list[Any]:
    """A model with names, which is "m", one without, and one with labels."""
    trees = [Split(0, 0.5, -1.0, 2.0), Split(1, -0.25, 0.5, Split(2, 1.5, 0.25, 4.0), True), 0.125]
    labels = {1: ("low", "high", "none")}
    forests = [
        forest_of(trees, base=[0.1], feature_names=NAMES),
        forest_of(trees, base=[0.1]),
        forest_of(trees, base=[0.1], feature_names=NAMES, category_names=labels),
    ]
    return [tvm_forest.build(x, schedule=lambda start: start, n_jobs=1) for x in forests]


@lru_cache
def application() -> Any:
    return serve(*predictors(), max_body_mb=1.0)


@lru_cache
def loop() -> asyncio.AbstractEventLoop:
    """The loop of this process, made when it is first needed, which is after a fork."""
    return asyncio.new_event_loop()


def ask(method: str, path: str, headers: list[Any], parts: list[bytes]) -> tuple[int, Any, bytes]:
    """Send a request, and wait for the answer."""
    return loop().run_until_complete(_send(method, path, headers, parts))


async def _send(
    method: str, path: str, headers: list[Any], parts: list[bytes]
) -> tuple[int, Any, bytes]:
    """Send a request as uvicorn does; return status, headers and body of the answer."""
    waiting = list(parts)
    sent: list[Any] = []

    async def receive() -> Any:
        part = waiting.pop(0) if waiting else b""
        return {"type": "http.request", "body": part, "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    scope |= {"raw_path": path.encode(), "query_string": b"", "http_version": "1.1"}
    scope |= {"scheme": "http", "server": ("test", 80), "client": ("test", 1), "root_path": ""}
    await application()(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), body


# -- requests -------------------------------------------------------------------------------------


def _sound(place: int, rng: random.Random) -> tuple[dict[str, Any], bytes]:
    """The JSON of a request, and the bytes that follow it."""
    forest = predictors()[place].forest
    rows = hard_rows(forest, rng.choice((0, 1, 2, 5)), rng.randrange(9))
    rows = np.where(np.isfinite(rows), rows, 0.5)
    datatype = rng.choice(("FP32", "FP64", "FP64", "INT32"))
    rows = rows.astype(TYPES[datatype]) if datatype != "INT32" else rows.clip(-9, 9).astype("i4")
    fields: dict[str, Any] = {}
    if rng.random() < 0.5:
        outputs = rng.sample(OUTPUTS, rng.choice((1, 2)))
        fields["outputs"] = [{"name": name} for name in outputs]
        if rng.random() < 0.3:
            fields["outputs"][0]["parameters"] = {"binary_data": True}
    if rng.random() < 0.2:
        fields["parameters"] = {"binary_data_output": rng.random() < 0.5}
    if rng.random() < 0.3:
        fields["id"] = "4"
    if rng.random() < 0.4 and forest.feature_names is not None:
        return {"inputs": _columns(forest, rows), **fields}, b""
    if rng.random() < 0.5:
        body, headers = to_binary(rows, datatype, **fields)
        size = int(headers["Inference-Header-Content-Length"])
        return json.loads(body[:size]), body[size:]
    return json.loads(to_json(rows, datatype, **fields)), b""


def _columns(forest: Any, rows: Any) -> list[dict[str, Any]]:
    inputs = []
    for i, name in enumerate(NAMES):
        labels = forest.category_names.get(i)
        data = [labels[k % 3] for k in range(len(rows))] if labels else rows[:, i].tolist()
        datatype = "BYTES" if labels else "FP64"
        inputs.append({"name": name, "shape": [len(rows)], "datatype": datatype, "data": data})
    return inputs


def _damaged(asked: dict[str, Any], data: bytes, rng: random.Random) -> tuple[Any, bytes]:
    """Change values, fields and bytes of a request."""
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        held = asked.get("inputs")
        tensors = [x for x in held if isinstance(x, dict)] if isinstance(held, list) else []
        tensor = rng.choice(tensors or [asked])
        choice = rng.random()
        if choice < 0.35:
            damaged_values(asked, rng)
        elif choice < 0.5:
            tensor["shape"] = rng.choice([[1, 3], [3], [0, 3], [2**40, 3], [2**62], [], [1] * 9, 3])
        elif choice < 0.6:
            tensor["datatype"] = rng.choice([*TYPES, "FP8", "fp32", None, 3])
        elif choice < 0.75:
            size = rng.choice([*NUMBERS, len(data), None, "x", True, 1.5])
            tensor["parameters"] = {"binary_data_size": size}
        elif choice < 0.85:
            tensor[rng.choice(("data", "name", "x", "parameters"))] = rng.choice(OTHERS)
        elif data:
            data = damaged_bytes(data, rng)
        else:
            data = rng.choice((b"x", bytes(12), struct.pack("<I", 2**32 - 1) + b"ab"))
    return asked, data


def check_values(rng: random.Random, said: Phase) -> str:
    """Ask for predictions with odd values."""
    place = rng.randrange(3)
    asked, data = _sound(place, rng)
    asked, data = _damaged(asked, data, rng)
    head = json.dumps(asked).encode()
    headers = [(b"content-length", str(len(head) + len(data)).encode())]
    if data or rng.random() < 0.05:
        size = len(head) if rng.random() < 0.95 else odd_value(len(head), rng)
        headers.append((b"inference-header-content-length", str(size).encode()))
    return _ask_for(place, head + data, headers, rng, said)


def check_bytes(rng: random.Random, said: Phase) -> str:
    """Ask for predictions by damaged bytes, and other things at odd paths."""
    place = rng.randrange(3)
    asked, data = _sound(place, rng)
    head = json.dumps(asked).encode()
    body, size = damaged_bytes(head + data, rng), len(head)
    headers = [(b"inference-header-content-length", b"%d" % size)] if data else []
    if rng.random() < 0.2:
        return _ask_oddly(body, headers, rng, said)
    return _ask_for(place, body, headers, rng, said)


def _ask_oddly(body: bytes, headers: Any, rng: random.Random, said: Phase) -> str:
    names = ["m", "m1", "m2", "m3", "", "%00", "a/b", "..", "é", "m" * 9999, "versions"]
    ends = [
        "infer",
        "ready",
        "",
        "infer/",
        "versions/1/infer",
        "versions/2/infer",
        "versions//infer",
    ]
    path = f"/v2/models/{rng.choice(names)}/{rng.choice(ends)}"
    path = rng.choice(
        (path, path, path, "/", "/v2", "/v2/health/live", "/metrics", "/v2/x", "//", "*")
    )
    method = rng.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "X" * 99))
    odd = (b"", b"-1", b"x", b"1e3", b"\xff", b"9" * 99, b"0", b" 1")
    names_of = (b"content-length", b"inference-header-content-length", b"authorization", b"expect")
    headers = [*headers, (rng.choice(names_of), rng.choice(odd))]
    said("ours")
    status, _, answer = ask(method, path, headers, [body])
    if status != 200:
        assert status in STATUSES, (status, answer)
        return "refused"
    return "taken"


def _ask_for(place: int, body: bytes, headers: Any, rng: random.Random, said: Phase) -> str:
    name = "m" if not place else f"m{place}"
    cut = rng.randrange(len(body) + 1)
    parts = [body] if rng.random() < 0.7 else [body[:cut], body[cut:]]
    said("ours")
    status, about, answer = ask("POST", f"/v2/models/{name}/infer", headers, parts)
    if status != 200:
        assert status in STATUSES, (status, answer)
        error = json.loads(answer)["error"]
        assert error and len(error) < 2000, error
        return "refused"
    size = int(about.get(b"inference-header-content-length", len(answer)))
    outputs = json.loads(answer[:size])["outputs"]
    given = dict(headers).get(b"inference-header-content-length")
    rows = read_rows(body, None if given is None else int(given), predictors()[place].forest)
    if rows is None:
        return "taken"
    expected = predictors()[place].forest.predict_reference(rows).ravel()
    compared = 0
    for output in outputs:
        if output["name"] in ("predict", "predict_margin") and "data" in output:
            special = {None: np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
            found = np.array([special.get(x, x) for x in output["data"]], np.float32)
            np.testing.assert_array_equal(found, expected)
            compared += 1
    return "equal" if compared else "taken"


def read_rows(body: bytes, size: int | None, forest: Any) -> Any:
    """The rows of a request as numpy alone reads them; None where that is not simple enough."""
    try:
        asked = json.loads(body[:size])
        tensors = {x["name"]: x for x in asked["inputs"]}
        if any("data" not in x or x["datatype"] not in ("FP64", "INT32") for x in tensors.values()):
            return None
        if list(tensors) == ["rows"]:
            (x,) = tensors.values()
            columns = np.array(x["data"], np.float64).reshape(x["shape"])
        elif set(tensors) == set(NAMES) and not forest.category_names:
            columns = np.array([np.ravel(tensors[name]["data"]) for name in NAMES], np.float64).T
        else:
            return None
        with np.errstate(over="ignore"):
            return columns.reshape(-1, 3).astype(np.float32)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


# -- sound requests -------------------------------------------------------------------------------

ALL_TYPES = {"FP64": "<f8", "FP32": "<f4", "FP16": "<f2", "BOOL": "?"}
ALL_TYPES |= {
    f"{k}{8 * n}": f"<{c}{n}" for k, c in (("INT", "i"), ("UINT", "u")) for n in (1, 2, 4, 8)
}
ALL_OUTPUTS = ("predict", "predict_margin", "apply", "predict_per_tree")


def check_sound(rng: random.Random, said: Phase) -> str:
    """Ask for predictions by sound requests, several at once; each gets those of its rows."""
    place = rng.randrange(3)
    asked = [_draw_sound(place, rng) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
    said("ours")
    path = f"/v2/models/{'m' if not place else f'm{place}'}/infer"
    answers = loop().run_until_complete(_send_all(path, asked))
    for (_, _, rows, name), (status, about, answer) in zip(asked, answers, strict=True):
        assert status == 200, (status, answer)
        size = int(about.get(b"inference-header-content-length", len(answer)))
        head = json.loads(answer[:size])
        assert head.get("id") == name
        data = memoryview(answer)[size:]
        for output in head["outputs"]:
            found, data = _read_output(output, data)
            expected = _expect(place, output["name"], rows)
            assert found.shape == expected.shape and found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
        assert not len(data)
    return "equal"


async def _send_all(path: str, asked: list[Any]) -> Any:
    """Send requests at the same time, so that some are joined; return the answers."""
    calls = (_send("POST", path, headers, [body]) for body, headers, *_ in asked)
    return await asyncio.gather(*calls)


def _draw_sound(place: int, rng: random.Random) -> Any:
    """A request, its headers, the rows in the model's dtype, and its id."""
    forest = predictors()[place].forest
    datatype = rng.choice(sorted(ALL_TYPES))
    rows = _draw_rows(forest, datatype, rng)
    fields: dict[str, Any] = {}
    if rng.random() < 0.8:
        names = rng.sample(ALL_OUTPUTS, rng.choice((1, 2, 4)))
        fields["outputs"] = [{"name": name} for name in names]
        if rng.random() < 0.5:
            fields["outputs"][0]["parameters"] = {"binary_data": rng.random() < 0.5}
    if rng.random() < 0.5:
        fields["parameters"] = {"binary_data_output": rng.random() < 0.5}
    if rng.random() < 0.5:
        fields["id"] = rng.choice(("", "4", "ü\n", "x" * 300))
    tensors, data = [], b""
    by_name = forest.feature_names is not None and rng.random() < 0.5
    parts = [("rows", rows)] if not by_name else list(zip(NAMES, rows.T, strict=True))
    rng.shuffle(parts)
    for name, part in parts:
        tensor: dict[str, Any] = {"name": name, "shape": list(part.shape), "datatype": datatype}
        own = _write_labels(forest, name, part, tensor, rng) if by_name else None
        if own is None and "data" not in tensor and rng.random() < 0.5:
            own = np.ascontiguousarray(part).tobytes()
        if own is not None:
            tensor["parameters"] = {"binary_data_size": len(own)}
            data += own
        elif "data" not in tensor:
            tensor["data"] = _to_lists(part, rng)
        tensors.append(tensor)
    head = json.dumps({"inputs": tensors, **fields}).encode()
    headers = [(b"content-length", b"%d" % (len(head) + len(data)))]
    if data or rng.random() < 0.2:
        headers.append((b"inference-header-content-length", b"%d" % len(head)))
    with np.errstate(over="ignore"):
        return head + data, headers, rows.astype(np.float32), fields.get("id")


def _draw_rows(forest: Any, datatype: str, rng: random.Random) -> Any:
    """Rows on and beside the model's thresholds, as far as a datatype has them."""
    rows = hard_rows(forest, rng.choice((0, 1, 2, 5, 40)), rng.randrange(99)).astype(np.float64)
    labels = forest.category_names
    if labels or ALL_TYPES[datatype][-2:-1] != "f":
        rows = np.nan_to_num(rows, nan=0.0, posinf=9.0, neginf=-9.0).clip(-9, 9)
    if datatype.startswith("U") or datatype == "BOOL":
        rows = np.abs(rows)
    for column in labels:
        rows[:, column] = np.abs(rows[:, column]).astype(int) % (2 if datatype == "BOOL" else 3)
    with np.errstate(all="ignore"):
        return rows.astype(ALL_TYPES[datatype])


def _write_labels(forest: Any, name: str, part: Any, tensor: Any, rng: random.Random) -> Any:
    """Give a column of categories by its labels; None, or the bytes that follow the JSON."""
    known = forest.category_names.get(NAMES.index(name))
    if known is None:
        return None
    tensor["datatype"], texts = "BYTES", [known[int(code)] for code in part]
    if rng.random() < 0.5:
        return b"".join(struct.pack("<I", len(text)) + text.encode() for text in texts)
    tensor["data"] = texts
    return None


def _to_lists(part: Any, rng: random.Random) -> Any:
    """Write a tensor as JSON, nested or flat; what JSON lacks as null and texts."""
    special = {np.inf: "Infinity", -np.inf: "-Infinity"}
    flat = [None if x != x else special.get(x, x) for x in part.ravel().tolist()]
    if part.ndim == 1 or rng.random() < 0.5:
        return flat
    return [flat[at : at + 3] for at in range(0, len(flat), 3)]


def _read_output(output: dict[str, Any], data: memoryview) -> tuple[Any, memoryview]:
    """Read an output of an answer; return it and the bytes after it."""
    dtype = np.dtype(ALL_TYPES[output["datatype"]])
    if "data" in output:
        special = {None: np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
        values = [special.get(x, x) if type(x) in (str, type(None)) else x for x in output["data"]]
        return np.array(values, dtype).reshape(output["shape"]), data
    size = output["parameters"]["binary_data_size"]
    return np.frombuffer(data[:size], dtype).reshape(output["shape"]), data[size:]


def _expect(place: int, name: str, rows: Any) -> Any:
    """What the reference, or a call of its own, says of rows."""
    made = predictors()[place]
    if name in ("predict", "predict_margin"):
        return made.forest.predict_reference(rows).ravel()
    return getattr(made, name)(rows)


CHECKS = {"request values": check_values, "request bytes": check_bytes, "requests": check_sound}


def prepare() -> None:
    """Compile the models."""
    application()
    for made in predictors():
        made.apply(hard_rows(made.forest, 3))
        made.predict_per_tree(hard_rows(made.forest, 3))
