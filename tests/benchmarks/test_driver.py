"""One command lists and runs all benchmarks; what pages say of them can be run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.__main__ import commands, main

KNOWN = dict(commands())
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md")),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "benchmarks" / "results").glob("*.md"),
    ROOT / "Makefile",
]
TEXTS = {path: path.read_text(encoding="utf-8") for path in PAGES}
SOURCES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").rglob("*.py")}


def test_all_are_listed_with_what_they_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    assert main() == 0
    said = capsys.readouterr().out
    assert "What it takes to build" in said and "  Time calls of one row" in said
    assert {name for name, text in KNOWN.items() if not text.endswith(".")} == set()


def test_a_name_that_is_none_is_told_with_those_like_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "early_exits"])
    assert main() == 2
    assert "no 'early_exits' (near: features.early_exit" in capsys.readouterr().out


def test_a_benchmark_gets_the_words_behind_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "gpu.sanitize", "--models", "none"])
    monkeypatch.setattr("benchmarks.gpu.sanitize.find_sanitizer", lambda: None)
    assert main() == 2
    assert capsys.readouterr().out.count("not run: no compute-sanitizer") == 3


@pytest.mark.parametrize("path", PAGES, ids=lambda x: x.name)
def test_what_a_page_names_is_there(path: Path) -> None:
    text = TEXTS[path]
    named = re.findall(r"-m benchmarks ([a-z][\w.]*\w)", re.sub(r"\n\s*", " ", text))
    assert set(named) <= KNOWN.keys()
    files = re.findall(r"benchmarks/[\w/]+\.\w+", text)
    assert [x for x in files if not (ROOT / x).exists()] == []


def test_all_are_named_where_a_reader_looks() -> None:
    """A page, the Makefile, or another benchmark has the name of each: nobody runs others."""
    everywhere = "\n".join(TEXTS.values())
    for name in KNOWN:
        own = ROOT / "benchmarks" / f"{name.replace('.', '/')}.py"
        others = [text for path, text in SOURCES.items() if path != own]
        assert f"-m benchmarks {name}" in SOURCES[own], f"{name} does not say how to run it"
        assert any(name in text for text in (everywhere, *others)), f"nothing names {name}"
