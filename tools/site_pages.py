"""Pages of the documentation whose code is run; as a program, writes what it prints into them.

python tools/site_pages.py [PAGE ...]        # or: make golden

A block of Python runs after those above it. If a block of text follows, that is what it prints. If
`<!-- nest -->` stands between them, the text shows the schedules `before` and `after`. Commands
`tvm-forest` of a block of `sh` run as well, in the same folder; a comment behind them is not read.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvm_forest.cli import main

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = (
    "../README.md",
    "start.md",
    "concepts.md",
    "schedules_by_example.md",
    "tvm_schedules.md",
    "predicting.md",
    "contributions.md",
    "quantiles.md",
    "early_exit.md",
    "retraining.md",
    "monitoring.md",
    "equality.md",
    "exactness.md",
    "starting.md",
    "cpu.md",
    "schedules.md",
    "tuning.md",
    "reference/index.md",
    "reference/predictor.md",
    "calls.md",
    "coming_from.md",
    "environment.md",
    "troubleshooting.md",
    "support.md",
    "measuring.md",
)
BLOCK = re.compile(
    r"^```(?P<language>python|sh)\n(?P<code>.*?)^```\n"
    r"(?P<between>\n(?P<mark><!-- nest -->\n\n)?```text\n)?"
    r"(?(between)(?P<shown>.*?)^```\n)",
    re.DOTALL | re.MULTILINE,
)


def run_python(code: str, names: dict[str, Any], page: str) -> str:
    """Run a block and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, page, "exec", dont_inherit=True), names)
    return printed.getvalue()


def run_commands(code: str) -> str:
    """Run the commands of this package in a block, and return what they print."""
    printed = io.StringIO()
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["tvm-forest"]:
            with contextlib.redirect_stdout(printed):
                status = main(words[1:])
            if status:
                raise RuntimeError(f"status {status}: {line}")
    return printed.getvalue()


@contextlib.contextmanager
def enter(folder: Path) -> Iterator[None]:
    """Work in a folder for a while, as `contextlib.chdir` of Python 3.11 does."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)


def run_page(page: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Run a page in a folder; return its text with what it prints today, and its names."""
    names: dict[str, Any] = {"__name__": "page"}

    def run(found: re.Match[str]) -> str:
        if found["language"] == "python":
            printed = run_python(found["code"], names, page)
        else:
            printed = run_commands(found["code"])
        if found["mark"]:
            before, after = names.pop("before"), names.pop("after")
            names.setdefault("examples", []).append(after)
            printed = f"{before}\n\n-->\n\n{after}\n"
        if not found["between"]:
            return found[0]
        head = found[0][: found.start("shown") - found.start()]
        return f"{head}{printed}```\n"

    with enter(folder):
        return BLOCK.sub(run, (DOCS / page).read_text(encoding="utf-8")), names


if __name__ == "__main__":
    for name in sys.argv[1:] or PAGES:
        with tempfile.TemporaryDirectory() as temporary:
            text, _ = run_page(name, Path(temporary))
        (DOCS / name).write_text(text, encoding="utf-8")
