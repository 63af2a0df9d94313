"""Examples of serving: they run here against stand-ins of what is too large to install."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tritonclient")
pytest.importorskip("grpc", reason="the extra `grpc` is not installed")

import tritonclient.grpc
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from code_size import ROOT
from served import build
from tvm_forest.errors import InputError

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
ROWS = np.array([[0.5, -1, 2], [-1, np.nan, -2], [1, 1, 1]], np.float32)


def load_example(monkeypatch: Any, path: str, **stand_ins: Any) -> ModuleType:
    """Import an example where modules that it imports are stood in for."""
    for name, names in stand_ins.items():
        module = ModuleType(name.replace("__", "."))
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


class Tensor:
    """What Triton's Python backend calls a tensor."""

    def __init__(self, name: str, array: Any) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array


class TritonRequest:
    def __init__(self, rows: Any, *names: str) -> None:
        self.rows, self.names = rows, names

    def requested_output_names(self) -> list[str]:
        return list(self.names)


def find_tensor(request: TritonRequest, name: str) -> Tensor:
    assert name == "rows"
    return Tensor(name, request.rows)


def answer_triton(output_tensors: Any = (), error: Any = None) -> Any:
    return SimpleNamespace(arrays={x.name(): x.as_numpy() for x in output_tensors}, error=error)


def test_a_model_of_triton_answers_joined_requests_as_its_configuration_says(
    monkeypatch: Any, tmp_path: Path
) -> None:
    predictor = build()
    (tmp_path / "1").mkdir()
    predictor.save(tmp_path / "1" / "model.tvmf")
    text = (EXAMPLES / "triton" / "forest" / "config.pbtxt").read_text(encoding="utf-8")
    config = json_format.MessageToDict(
        text_format.Parse(text, model_config_pb2.ModelConfig()), preserving_proto_field_name=True
    )
    example = load_example(
        monkeypatch,
        "triton/forest/1/model.py",
        triton_python_backend_utils={
            "Tensor": Tensor,
            "get_input_tensor_by_name": find_tensor,
            "InferenceResponse": answer_triton,
            "TritonError": str,
        },
    )
    model = example.TritonPythonModel()
    model.initialize(
        {
            "model_repository": str(tmp_path),
            "model_version": "1",
            "model_config": json.dumps(config),
        }
    )
    names = [output["name"] for output in config["output"]]
    requests = [TritonRequest(ROWS[:1], "predict"), TritonRequest(ROWS, *names)]
    requests.append(TritonRequest(ROWS[:2, :2], "predict"))  # too few columns
    with pytest.raises(ValueError):
        model.execute(requests)  # which Triton itself refuses, by the configuration
    one, all_, none = model.execute([*requests[:2], TritonRequest(ROWS[:0], "predict")])
    assert list(one.arrays) == ["predict"] and none.arrays["predict"].shape == (0, 1)
    assert np.array_equal(one.arrays["predict"][:, 0], predictor.predict(ROWS[:1]))
    for output in config["output"]:
        found = all_.arrays[output["name"]]
        assert found.dtype == np.float32 and output["data_type"] == "TYPE_FP32"
        assert found.shape == (3, *map(int, output["dims"]))
        wanted = getattr(predictor, output["name"])(ROWS)
        assert np.array_equal(found, wanted.reshape(found.shape))

    def refuse(rows: Any) -> Any:
        if len(rows) > 1:
            raise InputError("predict: refused")
        return predictor.predict(rows)

    monkeypatch.setattr(model, "predictor", SimpleNamespace(predict=refuse))
    good, bad = model.execute([requests[0], TritonRequest(ROWS, "predict")])
    assert good.error is None and bad.error == "predict: refused"


class MLModel:
    """What MLServer's class does that a runtime uses."""

    def __init__(self, settings: Any) -> None:
        self._settings, self.name, self.version = settings, settings["name"], "1"

    def decode(self, tensor: Any, default_codec: Any) -> Any:
        return default_codec.decode_input(tensor)


class Codec:
    @staticmethod
    def decode_input(tensor: Any) -> Any:
        return np.array(tensor.data, np.float32).reshape(tensor.shape)

    @staticmethod
    def encode_output(name: str, array: Any) -> Any:
        return SimpleNamespace(name=name, data=np.asarray(array).tolist())


async def find_model(settings: Any, wellknown_filenames: list[str]) -> str:
    assert wellknown_filenames == ["model.tvmf"]
    return str(settings["parameters"]["uri"])


def test_a_runtime_of_mlserver_answers_with_the_outputs_that_are_asked_for(
    monkeypatch: Any, tmp_path: Path
) -> None:
    predictor = build()
    predictor.save(tmp_path / "model.tvmf")
    codecs = {"NumpyCodec": Codec, "StringCodec": Codec}
    types = {"InferenceRequest": Any, "InferenceResponse": lambda **x: SimpleNamespace(**x)}
    example = load_example(
        monkeypatch,
        "mlserver/forest_runtime.py",
        mlserver={"MLModel": MLModel},
        mlserver__codecs=codecs,
        mlserver__errors={"InferenceError": ValueError},
        mlserver__types=types,
        mlserver__utils={"get_model_uri": find_model},
    )
    settings = json.loads((EXAMPLES / "mlserver" / "model-settings.json").read_text())
    assert settings["implementation"] == "forest_runtime.ForestRuntime"
    settings["parameters"]["uri"] = str(tmp_path / settings["parameters"]["uri"])
    runtime = example.ForestRuntime(settings)
    assert asyncio.run(runtime.load())
    tensor = SimpleNamespace(data=ROWS.ravel().tolist(), shape=[3, 3])

    def ask(*names: str, rows: Any = tensor) -> Any:
        outputs = [SimpleNamespace(name=name) for name in names] or None
        answer = asyncio.run(runtime.predict(SimpleNamespace(inputs=[rows], outputs=outputs)))
        assert (answer.model_name, answer.model_version) == ("forest", "1")
        return {output.name: np.array(output.data, np.float32) for output in answer.outputs}

    assert np.array_equal(ask()["predict"], predictor.predict(ROWS))
    for name, found in ask("apply", "predict_proba").items():
        assert np.array_equal(found, getattr(predictor, name)(ROWS))
    with pytest.raises(ValueError, match="'save' is unknown"):
        ask("save")
    with pytest.raises(ValueError, match="must have shape"):
        ask(rows=SimpleNamespace(data=[1.0], shape=[1, 1]))


def test_a_consumer_of_kafka_commits_what_it_has_sent(monkeypatch: Any) -> None:
    example = load_example(monkeypatch, "kafka_consumer.py")
    predictor, events = build(), list[Any]()

    def message(text: str, key: bytes, error: Any = None) -> Any:
        return SimpleNamespace(value=lambda: text, key=lambda: key, error=lambda: error)

    batches = [
        [
            message("[0.5, -1, 2]", b"a"),
            message("", b"", "broken"),
            message("[-1, null, -2]", b"b"),
        ],
        [],
        [message("[1, 1, 1]", b"c")],
        None,
    ]
    consumer = SimpleNamespace(
        consume=lambda size, timeout: batches.pop(0),
        commit=lambda asynchronous: events.append("commit"),
    )
    producer = SimpleNamespace(
        produce=lambda topic, value, key: events.append((topic, json.loads(value), key)),
        flush=lambda: events.append("flush"),
    )
    example.run(predictor, consumer, producer, "predictions")
    a, b, c = (
        ("predictions", x, key) for x, key in zip(predictor.predict(ROWS), b"abc", strict=True)
    )
    sent = [(*x[:2], x[2][0]) if isinstance(x, tuple) else x for x in events]
    assert sent == [a, b, "flush", "commit", c, "flush", "commit"]


def read_dockerfile() -> dict[str, list[str]]:
    """Return what stands behind each word of the Dockerfile."""
    text = (EXAMPLES / "docker" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for word, rest in re.findall(r"^([A-Z]+) (.+)$", text, re.MULTILINE):
        found.setdefault(word, []).append(rest)
    return found


def test_the_image_installs_what_the_package_asks_for_less_tvm() -> None:
    names = {re.match(r"[\w-]+", word)[0] for line in read_dockerfile()["RUN"] for word in (
        x for x in shlex.split(line) if not x.startswith("-")
    )} - {"pip", "install"}  # fmt: skip
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = set()
    for part in ("dependencies", "serve", "grpc"):
        (items,) = re.findall(rf"^{part} = \[(.*?)\](?: #.*)?$", text, re.DOTALL | re.MULTILINE)
        wanted |= set(re.findall(r'"([\w-]+)', re.sub(r"#.*", "", items)))
    assert names - {"tvm-forest"} == wanted - {"tvm-forest", "apache-tvm", "rich"}
    (pinned,) = re.findall(r'"(apache-tvm-ffi[^"]+)"', text)
    assert f'"{pinned}"' in read_dockerfile()["RUN"][0]


@pytest.mark.long
def test_what_the_image_installs_and_starts_answers_by_http_and_grpc(tmp_path: Path) -> None:
    """The lines RUN, ENTRYPOINT and CMD of the Dockerfile, in an environment of Python's own."""
    predictor, dockerfile = build(), read_dockerfile()
    predictor.save(tmp_path / "model.tvmf")
    program = "import sys; from hatchling import build; print(build.build_wheel(sys.argv[1]))"
    made = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    binaries = tmp_path / "venv" / "bin"
    for line in dockerfile["RUN"]:
        words = [
            str(tmp_path / made.stdout.split()[-1]) if x == "tvm-forest" else x
            for x in shlex.split(line)
        ]
        done = subprocess.run([binaries / words[0], *words[1:]], capture_output=True, text=True)
        if "Could not find a version" in done.stderr or "Failed to establish" in done.stderr:
            pytest.skip("no registry of packages is reached")
        assert done.returncode == 0, done.stderr
    command = [*json.loads(dockerfile["ENTRYPOINT"][0]), *json.loads(dockerfile["CMD"][0])]
    copied = dockerfile["COPY"][0].split()
    assert command[-1] == copied[1]
    here = {"8080": "0", "8081": "0", "0.0.0.0": "127.0.0.1", copied[1]: str(tmp_path / copied[0])}
    command = [here.get(word, word) for word in command]
    environment = {"HOME": "/nonexistent", "PATH": str(binaries)}  # a user without a folder
    process = subprocess.Popen(
        [binaries / command[0], *command[1:]], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        found = re.search(r"(http://[^;]+); gRPC at ([^;]+);", process.stdout.readline())
        with urllib.request.urlopen(f"{found[1]}/v2/health/ready") as answer:
            assert json.load(answer)["ready"]
        tensor = tritonclient.grpc.InferInput("rows", [3, 3], "FP32")
        tensor.set_data_from_numpy(ROWS)
        with tritonclient.grpc.InferenceServerClient(found[2]) as client:
            assert np.array_equal(
                client.infer("model", [tensor]).as_numpy("predict"), predictor.predict(ROWS)
            )
    finally:
        process.terminate()
        assert process.wait(60) == 0
