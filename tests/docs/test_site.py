"""The documentation site: it builds without a warning, names what is public, its code runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from os.path import normpath
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

import tvm_forest
from code_size import ROOT
from site_pages import BLOCK, DOCS, PAGES, run_page
from tvm_forest import viz
from tvm_forest.schedule_prims import DIRECTIVES

NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
FETCHED = re.compile(
    r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)"""
)
DOCUMENTED = re.compile(r"^::: tvm_forest\.([\w.]+)$", re.MULTILINE)


def list_documented() -> set[str]:
    """Return the last part of every name that the reference describes."""
    texts = (page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    return {name.rpartition(".")[2] for text in texts for name in DOCUMENTED.findall(text)}


def test_the_reference_describes_every_public_name() -> None:
    from tvm_forest import relax

    names = {*tvm_forest._ROOM_OF, *viz.__all__, *relax.__all__}
    assert names - list_documented() == set()


def test_the_index_of_the_reference_lists_every_public_name() -> None:
    listed = re.findall(r"`(\w+)`", (DOCS / "reference" / "index.md").read_text(encoding="utf-8"))
    assert set(tvm_forest._ROOM_OF) - set(listed) == set()


def test_the_reference_describes_every_directive() -> None:
    text = (DOCS / "reference" / "directives.md").read_text(encoding="utf-8")
    assert {name.rpartition(".")[2] for name in DOCUMENTED.findall(text)} == set(DIRECTIVES)


def test_every_directive_has_an_example() -> None:
    text = (DOCS / "schedules_by_example.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == set(DIRECTIVES)
    called = {
        word for found in BLOCK.finditer(text) for word in re.findall(r"\.(\w+)\(", found["code"])
    }
    assert set(DIRECTIVES) - called == {"know_depths"}  # `with_depths` calls it


def test_every_page_is_in_the_navigation() -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    named = set(re.findall(r"[\w/]+\.md", NAV))
    assert pages - named == set()


@pytest.mark.long
@pytest.mark.usefixtures("kept_code")
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_and_prints_what_it_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a change is wanted, run `make golden` and look at the difference."""
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # or TVM prints for a notebook
    text, names = run_page(page, tmp_path)
    assert text == (DOCS / page).read_text(encoding="utf-8")
    if "examples" in names:
        compare_examples(names["model"], names["rows"], names["examples"])


def compare_examples(model: Any, rows: Any, examples: list[Any]) -> None:
    """Build the schedules of a page; what keeps the order is equal, the rest within the bound."""
    expected = model.predict(rows[:77], output_margin=True)
    for schedule in examples:
        target = "simt" if any(loop.gpu for loop in schedule.loops()) else "llvm"
        predictor = tvm_forest.build(model, target, schedule, exact=schedule.keeps_order)
        found = predictor.predict_margin(rows[:77])
        if schedule.keeps_order:
            assert found.tobytes() == expected.tobytes(), schedule
        else:
            assert (np.abs(found - expected) <= predictor.tolerance(rows[:77])).all(), schedule


@pytest.mark.long
def test_the_site_builds_without_a_warning_and_asks_nobody_else(tmp_path: Path) -> None:
    for name in ("mkdocs", "mkdocstrings", "material"):
        pytest.importorskip(name, reason="builds the site; part of the extra 'docs'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # the theme speaks of its successor
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    pages = {
        x.relative_to(tmp_path).as_posix(): x.read_text("utf-8") for x in tmp_path.rglob("*.html")
    }
    assert {"index.html", "changelog.html", "reference/command_line.html"} <= pages.keys()
    assert "usage: tvm-forest predict" in pages["reference/command_line.html"]
    assert 'src="pictures/planes.svg"' in pages["concepts.html"]
    assert (tmp_path / "pictures" / "planes.svg").read_text("utf-8").startswith("<?xml")
    reference = "".join(text for name, text in pages.items() if name.startswith("reference/"))
    assert [x for x in tvm_forest._ROOM_OF if f'id="tvm_forest.{x}"' not in reference] == []
    fetched = {x for text in pages.values() for x in FETCHED.findall(text)}
    assert {x for x in fetched if not x.startswith("https://tvm-forest.example/")} == set()
    assert list_broken_links(pages) == []


def list_broken_links(pages: dict[str, str]) -> list[tuple[str, str]]:
    """Return the pages and their links to pages, or to places of pages, that there are not."""
    places = {
        name: set(re.findall(r"\bid=[\"']?([^\"'\s>]+)", text)) for name, text in pages.items()
    }
    broken = []
    for name, text in pages.items():
        for link in re.findall(r"<a[^>]* href=[\"']?([^\"'\s>]+)", text):
            path, _, place = unquote(link).partition("#")
            target = normpath(Path(name).parent / path) if path else name
            if ":" in path or name == "404.html" or (target in places and not place):
                continue
            if place not in places.get(target, ()):
                broken.append((name, link))
    return broken


def test_broken_links_are_found() -> None:
    pages = {
        "a/b.html": '<a href="../c.html#d">',
        "c.html": '<p id="e"><a href="a/b.html"> <a href=x>',
    }
    assert list_broken_links(pages) == [("a/b.html", "../c.html#d"), ("c.html", "x")]
