"""The layout that docs/new_layout.md writes is short, runs, and gives the bits of the model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, forest_of
from schedules import check_results, odd_forest
from test_layouts import SIZES, WALKS
from tvm_forest.errors import BuildError, ScheduleError
from tvm_forest.layouts.protocol import LAYOUTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "new_layout.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
LAYOUT, USE = BLOCKS[:3], BLOCKS[3:]


def run(block: str, names: dict[str, Any]) -> None:
    exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)


@pytest.fixture(scope="module")
def page() -> Iterator[dict[str, Any]]:
    """The names that the layout's file defines; afterwards the layout is unknown again."""
    names: dict[str, Any] = {"__name__": "preorder"}
    for block in LAYOUT:
        run(block, names)
    yield names
    del LAYOUTS["preorder"]


def test_the_layout_takes_less_than_100_lines() -> None:
    lines = "\n\n".join(LAYOUT).splitlines()
    assert "@protocol.register" in lines
    assert len(lines) < 100


def test_what_the_page_draws_is_packed(page: dict[str, Any]) -> None:
    forest = forest_of([Split(2, 0.5, 7.0, Split(0, 0.1, 8.0, 9.0, True))])
    rep, arrays = page["Preorder"].pack(forest)
    assert arrays["number"].tolist() == np.float32([0.5, 7.0, 0.1, 8.0, 9.0]).tolist()
    assert arrays["code"].tolist() == [2, 0, ~0, 0, 0]
    assert arrays["skip"].tolist() == [2, 0, 2, 0, 0]
    assert {spec.name: (spec.dtype, spec.shape) for spec in rep.id_buffers()} == {
        name: (str(array.dtype), array.shape) for name, array in arrays.items()
    }


def test_right_subtrees_are_skipped_to(page: dict[str, Any]) -> None:
    deep = Split(1, 0.0, Split(0, 0.5, 1.0, 2.0), Split(2, 0.25, 3.0, 4.0))
    arrays = page["Preorder"].pack(forest_of([5.0, deep]))[1]
    assert arrays["first"].tolist() == [0, 1]
    assert arrays["number"].tolist() == [5.0, 0.0, 0.5, 1.0, 2.0, 0.25, 3.0, 4.0]
    assert arrays["skip"].tolist() == [0, 4, 2, 0, 0, 2, 0, 0]


@pytest.mark.slow
def test_the_page_runs(page: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    for block in USE:
        run(block, page)
    assert page["forest"].default_left.any()
    assert len(set(page["forest"].depths)) > 1
    assert "\t.p2align" in capsys.readouterr().out  # the beginning of the assembly
    shown = re.search(r"^```\n(first_1: .*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    code = [line.strip() for line in page["lowered"].after["predict"].script().splitlines()]
    assert shown and all(line.strip() in code for line in shown[1].splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.cases(3, others="long")
def test_odd_forests_have_the_bits_of_the_model(walk: str, seed: int, page: dict[str, Any]) -> None:
    forest = odd_forest(2 * list(WALKS).index(walk) + seed)
    sch = WALKS[walk](tvm_forest.new_schedule(forest).represent_as("preorder"))
    check_results(forest, sch, SIZES, jobs=(1,), outputs=("margin", "apply"))


@pytest.mark.slow
def test_threads_give_the_bits_of_the_model(page: dict[str, Any]) -> None:
    forest = odd_forest(2)
    assert forest.default_left.any()
    assert {0} < set(forest.depths.tolist())
    sch = tvm_forest.hop_schedule(forest).represent_as("preorder")
    assert any(loop.parallel for loop in sch.loops())
    check_results(forest, sch, (0, 1, 33, 300), outputs=("margin", "per_tree"))


@pytest.mark.slow
def test_trees_are_prefetched(page: dict[str, Any]) -> None:
    forest = odd_forest(12)
    sch = tvm_forest.new_schedule(forest).represent_as("preorder")
    sch = sch.tile("tree", "t0", "t1", 2).reorder("t0", *sch.names()[:-1], "t1")
    check_results(forest, sch.cache("t0", "prefetch"), SIZES, jobs=(1,), outputs=("margin",))


def test_a_feature_beyond_16_bits_is_refused_with_its_node(page: dict[str, Any]) -> None:
    wide = Split(0, 0.0, 1.0, Split(1 << 15, 0.0, 1.0, 2.0))
    with pytest.raises(BuildError, match="tree 1, node 2: feature 32768 does not fit 16 bits; use"):
        page["Preorder"].pack(forest_of([0.5, wide], n_features=1 << 16))
    widest = forest_of([Split(32767, 0.0, 1.0, 2.0, True)], n_features=32768)
    assert page["Preorder"].pack(widest)[1]["code"][0] == -32768


def test_tiles_are_refused(page: dict[str, Any]) -> None:
    forest = forest_of([Split(0, 0.5, 1.0, 2.0)])
    sch = tvm_forest.new_schedule(forest).tile_nodes(2).represent_as("preorder")
    with pytest.raises(ScheduleError, match="'preorder' cannot hold tiles of 2 nodes"):
        tvm_forest.build(forest, schedule=sch)
