"""All that docs/serving.md shows runs, and prints what it shows."""

from __future__ import annotations

import re
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `serve` is not installed")
pytest.importorskip("orjson", reason="the extra `serve` is not installed")
pytest.importorskip("tritonclient")
pytest.importorskip("grpc", reason="the extra `grpc` is not installed")
if find_spec("mlflow") is None:  # it is imported where the page runs: that takes seconds
    pytest.skip("the extra `mlflow` is not installed", allow_module_level=True)

import served
from served import PATIENCE_S, STATUSES
from site_pages import BLOCK, DOCS, enter, run_python
from tvm_forest.cli import main

PAGE = DOCS / "serving.md"


class Reader:
    """Who does what the page says, but with servers on ports that are free."""

    def __init__(self) -> None:
        self.process: Any = None
        self.port = 0
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.grpc_port = str(free.getsockname()[1])
        self.names: dict[str, Any] = {"__name__": "page"}

    def run(self, found: re.Match[str]) -> str:
        """Run a block, and return it with what it prints today."""
        if found["language"] == "python":
            printed = run_python(self._at_port(found["code"]), self.names, str(PAGE))
        else:
            commands = found["code"].replace("\\\n", " ").replace(",\n", ", ").splitlines()
            printed = "".join(map(self._run_command, commands))
        if not found["between"]:
            assert not printed
            return found[0]
        return f"{found[0][: found.start('shown') - found.start()]}{printed}```\n"

    def _at_port(self, text: str) -> str:
        text = text.replace("localhost:8081", f"localhost:{self.grpc_port}")
        return text.replace("localhost:8080", f"localhost:{self.port}")

    def _run_command(self, command: str) -> str:
        words = command.replace("--grpc-port 8081", f"--grpc-port {self.grpc_port}").split()
        if words[:2] == ["tvm-forest", "serve"]:
            self.end()
            self.process, self.port = served.start(*words[2:])
        elif words[:1] == ["tvm-forest"]:
            assert main(words[1:]) == 0
        else:
            done = subprocess.run(
                ["bash", "-ec", self._at_port(command)], capture_output=True, text=True
            )
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            return done.stdout + "\n" * (done.stdout[-1:] in ("}", "]"))  # curl ends no line
        return ""

    def end(self) -> None:
        """End the server, if there is one."""
        if self.process is not None:
            self.process.terminate()
            assert self.process.wait(PATIENCE_S) == 0
            self.process = None


def run_page(folder: Path) -> str:
    """Run the page in a folder, and return it with what it prints today."""
    served.train().save_model(folder / "model.json")
    reader = Reader()
    try:
        with enter(folder):
            return BLOCK.sub(reader.run, PAGE.read_text(encoding="utf-8"))
    finally:
        reader.end()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("kept_code")
def test_what_the_page_shows_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall("^```(.+)$", text, re.MULTILINE)) == {
        "sh",
        "python",
        "text",
        "dockerfile",
    }
    assert run_page(tmp_path) == text


def test_the_page_lists_the_statuses() -> None:
    listed = re.findall(r"^\| (\d+) \| \D", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(status) for status in listed} == STATUSES | {200, 500}
