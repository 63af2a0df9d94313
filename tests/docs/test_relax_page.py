"""What docs/relax.md shows runs as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tvm

PAGE = Path(__file__).resolve().parents[2] / "docs" / "relax.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.long
def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # or TVM prints for a notebook
    names: dict[str, Any] = {"__name__": "page"}
    for block in BLOCKS:
        name = re.match(r"# file: (.*)\n", block)
        if name:
            Path(name[1]).write_text(block)
        else:
            exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    (shown,) = re.findall(r"^(R\.tvm_forest\.predict\(.*\))$", PAGE.read_text(), re.MULTILINE)
    assert shown in re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    runtime = Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so"
    command = [sys.executable, "serve.py", str(runtime), "./wine.so"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "(7, 3)\n"
