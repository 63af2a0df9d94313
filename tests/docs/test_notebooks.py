"""The notebooks run from top to bottom, and are kept with pictures, outputs and no noise."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from code_size import ROOT
from stored_notebooks import FOLDER, NOTEBOOKS, PICTURES, join, list_forms, run, to_page

NOISE = re.compile(
    r"/(?:root|home|tmp|work|opt|usr|var|proc)/|[Ww]arning|\x1b\[|\b0x[0-9a-f]{8}|\d+%\|"
)
"""What no reader wants to see: places of one machine, warnings, colours, addresses, progress."""
MAX_BYTES = 300_000
RARE = ("04_search", "05_gpu", "07_deploy", "08_figures", "09_more")
"""Take a minute each; the others take 20 seconds and run in `make test-all`."""
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read_cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def test_there_are_notebooks_one_after_the_other() -> None:
    assert [path.stem[:3] for path in NOTEBOOKS] == [f"0{k}_" for k in range(1, 10)]


@every_notebook
def test_a_notebook_is_stored_as_it_ran_from_top_to_bottom(path: Path) -> None:
    code = [cell for cell in read_cells(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert path.stat().st_size < MAX_BYTES


@every_notebook
def test_a_notebook_has_pictures_and_says_what_each_cell_is_for(path: Path) -> None:
    cells = read_cells(path)
    shown = [x.get("data", {}) for cell in cells for x in cell.get("outputs", ())]
    assert sum(bool(data.keys() & PICTURES.keys()) for data in shown) >= 3
    assert cells[0]["cell_type"] == cells[-1]["cell_type"] == "markdown"
    kinds = [cell["cell_type"] for cell in cells]
    assert ("code", "code") not in zip(kinds, kinds[1:], strict=False)


@every_notebook
def test_outputs_of_a_notebook_are_free_of_noise(path: Path) -> None:
    for cell in read_cells(path):
        for output in cell.get("outputs", ()):
            assert output["output_type"] != "error" and output.get("name") != "stderr"
            texts = [output.get("text", ""), output.get("data", {}).get("text/plain", "")]
            assert not any(NOISE.search(join(text)) for text in texts), texts
            assert not any(join(text).startswith("Text(") for text in texts), "a plot returned this"


@every_notebook
def test_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    for cell in read_cells(path):
        if cell["cell_type"] == "markdown":
            for link in LINK.findall(join(cell["source"])):
                assert (FOLDER / link).exists(), link


@pytest.mark.parametrize("page", ["README.md", "docs/notebooks.md"])
def test_a_page_links_every_notebook(page: str) -> None:
    text, base = (ROOT / page).read_text(encoding="utf-8"), (ROOT / page).parent
    linked = {(base / link).resolve() for link in LINK.findall(text)}
    assert set(NOTEBOOKS) <= linked


def test_the_site_has_a_page_for_every_notebook() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    assert re.findall(r"notebooks/(\w+)\.md", text) == [path.stem for path in NOTEBOOKS]


@every_notebook
def test_a_page_of_the_site_shows_all_pictures_and_texts(path: Path) -> None:
    page, pictures = to_page(path)
    outputs = [x for cell in read_cells(path) for x in cell.get("outputs", ())]
    drawn = [x for x in outputs if x.get("data", {}).keys() & PICTURES.keys()]
    assert len(drawn) == len(pictures) == sum(f"]({name})" in page for name in pictures)
    assert all(join(x["text"]).rstrip("\n") in page for x in outputs if "text" in x)
    for name, content in pictures.items():
        assert content.startswith(b"\x89PNG" if name.endswith(".png") else b"<?xml")


@pytest.mark.slow
def test_a_small_notebook_runs_and_is_kept_without_what_is_of_today(tmp_path: Path) -> None:
    sources = ["import tvm_forest", "print(tvm_forest.__version__)", "tvm_forest.Target"]
    cells = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": x}
        for x in sources
    ]
    text = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (tmp_path / "small.ipynb").write_text(json.dumps(text), encoding="utf-8")
    ran = run(tmp_path / "small.ipynb")
    forms = [[], [("stream", "stdout")], [("execute_result", "text/plain")]]
    assert [list_forms(cell) for cell in ran.cells] == forms
    assert [cell.execution_count for cell in ran.cells] == [1, 2, 3]
    assert ran.metadata.kernelspec.name == "python3"


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, id=path.stem, marks=pytest.mark.rare if path.stem in RARE else pytest.mark.long
        )
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_runs_and_shows_what_is_stored(path: Path) -> None:
    """Times differ from day to day; whether a cell prints or draws does not."""
    stored = [cell for cell in read_cells(path) if cell["cell_type"] == "code"]
    ran = [cell for cell in run(path).cells if cell.cell_type == "code"]
    for before, today in zip(stored, ran, strict=True):
        assert list_forms(before) == list_forms(today), today.source
