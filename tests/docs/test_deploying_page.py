"""The commands of docs/deploying.md, which build libraries and a program, and run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from code_size import ROOT
from site_pages import enter, run_python

BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = BLOCK.findall((ROOT / "docs" / "deploying.md").read_text(encoding="utf-8"))
TOOLS = ("cc", "cmake")
pytestmark = pytest.mark.long


def why_not(code: str) -> str:
    """Say what is missing to run a block; "" if nothing."""
    words = {word for line in code.splitlines() for word in line.split()[:2]}
    missing = (f"no {tool}" for tool in TOOLS if tool in words and shutil.which(tool) is None)
    return next(missing, "")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, Any]]:
    """Run the page; return what its commands print, and the names of its Python."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "bin").mkdir()
    command = folder / "bin" / "tvm-forest"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tvm_forest "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = f"{ROOT}:{environment.get('PYTHONPATH', '')}"
    printed, names = dict[str, str](), dict[str, Any]()
    for language, code in BLOCKS:
        if language == "python":
            with enter(folder):
                run_python(code, names, "deploying.md")
        elif not why_not(code):
            command_line = ["bash", "-euo", "pipefail", "-c", code]
            done = subprocess.run(
                command_line, cwd=folder, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, (code, done.stdout, done.stderr)
            printed[code] = done.stdout
    return printed, names


def test_the_program_in_c_predicts_what_the_model_does(
    page: tuple[dict[str, str], dict[str, Any]],
) -> None:
    printed, names = page
    (code,) = (code for _, code in BLOCKS if "predict.c" in code)
    if why_not(code):
        pytest.skip(why_not(code))
    lines = [line.split() for line in printed[code].splitlines()]
    rows = names["rows"][::10]
    values = np.array([line[:-1] for line in lines], np.float64).astype(np.float32)
    assert values.tobytes() == names["model"].predict_proba(rows).tobytes()
    assert [int(line[-1]) for line in lines] == names["model"].predict(rows).tolist()


def test_every_command_of_the_page_runs(page: tuple[dict[str, str], dict[str, Any]]) -> None:
    printed, _ = page
    left_out = [code for language, code in BLOCKS if language == "sh" and code not in printed]
    assert all(why_not(code) for code in left_out)
    assert len(printed) >= 5
