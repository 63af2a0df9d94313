"""Pictures: their texts, their drawings, and what they refuse."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of
from interpreter import runs
from tvm_forest import Schedule, viz
from tvm_forest.errors import InputError, ScheduleError
from tvm_forest.forest import CategoryRule
from tvm_forest.forest.profile import Profile
from tvm_forest.forest.rewrites.ordering import take_trees
from tvm_forest.layouts import protocol
from tvm_forest.layouts.sparse import SparseLayout
from tvm_forest.viz import nests
from viz_cases import GOLDEN, ONE, PAGE, THREE, TWO, golden_text, page_pictures, page_text

SVG = "{http://www.w3.org/2000/svg}"


def schedule(forest: Any, layout: str = "array", tiles: int = 1) -> Any:
    return tvm_forest.new_schedule(forest).represent_as(layout).tile_nodes(tiles)


def texts(svg: str) -> list[str]:
    """Return the lines of text of a document, with ordinary spaces."""
    found = ElementTree.fromstring(svg).iter(f"{SVG}text")
    return [(text.text or "").replace("\N{NO-BREAK SPACE}", " ") for text in found]


def boxes(svg: str) -> dict[str, str]:
    """Return the style of the box around each node, by the first line of its text."""
    groups = (
        g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if g.find(f"{SVG}text") is not None
    )
    return {
        str(group.findtext(f"{SVG}text")): path.get("style", "")
        for group in groups
        if (path := group.find(f"{SVG}g/{SVG}path")) is not None
    }


# -- texts ----------------------------------------------------------------------------------------


def test_golden_texts_are_what_viz_prints() -> None:
    """If this change is wanted, run `make golden` and look at the difference."""
    assert GOLDEN.read_text(encoding="utf-8") == golden_text()


def test_the_page_of_layouts_shows_what_viz_prints() -> None:
    """If this change is wanted, run `make golden` and look at the difference."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == page_text(page)
    assert all(f"<!-- picture: {name} -->" in page for name in page_pictures())


def test_the_page_shows_every_layout_with_and_without_tiles() -> None:
    wanted = set()
    for name, layout in protocol.LAYOUTS.items():
        wanted |= {name} if 1 in layout.tile_sizes else set()
        wanted |= {f"{name} of tiles"} if max(layout.tile_sizes) > 1 else set()
    assert wanted <= set(page_pictures())


def test_a_deep_tree_is_shown_without_recursion() -> None:
    tree: Any = 0.0
    for level in range(1500):
        tree = Split(0, level, tree, 1.0)
    assert len(str(viz.tree(forest_of([tree]))).splitlines()) == 1 + 3001


def test_depth_cuts_a_tree_and_keeps_the_shares() -> None:
    lines = str(viz.tree(ONE, depth=1)).splitlines()[1:]
    assert [line.split() for line in lines] == [
        ["[0]", "age", "<", "39.5"],
        ["├─", "...", "(40", "%)"],
        ["└─", "leaf", "2:", "0.4", "(60", "%)"],
    ]


def test_a_profile_gives_the_shares() -> None:
    rows = np.array([[0, 0, 0], [50, 0, 0], [50, 0, 0], [50, 0, 0]], np.float32)
    profile = Profile.of_leaves(TWO, TWO.predict_reference(rows, "apply"))
    assert "leaf 3: 0.1                   (25 %)" in str(viz.tree(TWO, 0, profile))


def test_categories_and_vector_leaves_are_shown() -> None:
    forest = forest_of([Split(0, 0.5, 1.0, 2.0)])
    leaves = np.repeat(forest.leaf_value, 2, axis=1)
    class_of_all = np.array([-1], np.int32)
    vectors = replace(forest, leaf_value=leaves, base_score=np.zeros(2), tree_class=class_of_all)
    asks = replace(vectors, categories={0: (1, 3)}, category_rule=CategoryRule("right"))
    text = str(viz.tree(asks))
    assert "[0] f0 not in {1, 3}\n" in text
    assert "leaf 2: 2 2" in text


def test_a_layout_that_describes_nothing_is_shown_as_it_is(monkeypatch: Any) -> None:
    quiet = type("Quiet", (SparseLayout,), {"describe": protocol.Layout.describe})
    monkeypatch.setitem(protocol.LAYOUTS, "sparse", quiet)
    lines = str(viz.layout(ONE, schedule(ONE, "sparse"), most=2)).splitlines()
    assert lines[-5:-3] == ["nodes: int32 (7, 3), 84 bytes", "              0  1  2"]
    assert lines[-3].split() == ["0", str(np.float32(39.5).view(np.int32)), "0", "3"]
    assert lines[-1] == "  ... and 5 more"


@pytest.mark.parametrize("layout", ["array", "sparse", "packed", "reorg"])
def test_one_tree_is_laid_out_by_itself(layout: str) -> None:
    alone = take_trees(THREE, np.array([1]))
    text = str(viz.layout(alone, schedule(alone, layout)))
    shown = str(viz.layout(THREE, schedule(THREE, layout), 1))
    assert shown.splitlines()[2:] == text.splitlines()[2:]


@pytest.mark.parametrize("layout", ["array", "sparse"])
def test_forests_of_leaves_only_and_of_float64_are_shown(layout: str) -> None:
    for forest in (forest_of([1.5]), drawn_forest(3, 4, dtype="float64")):
        for tiles in (1, 3):
            picture = viz.layout(forest, schedule(forest, layout, tiles), most=1000)
            shown = {float(x) for x in str(picture).split() if x.replace(".", "").isdigit()}
            ends = [float(f"{x:.6g}") for x in forest.leaf_value[forest.is_leaf, 0] if x > 0]
            assert set(ends) <= shown


def test_footprints_are_what_the_formats_take() -> None:
    sizes = {x: viz.footprint(THREE, schedule(THREE, x)) for x in ("packed", "array", "reorg")}
    assert sizes["packed"] == {"offset": 24, "depth": 12, "nodes": 8 * 19}
    assert sizes["array"] == {"offset": 24, "depth": 12, "nodes": 8 * (15 + 31 + 1)}
    assert sizes["reorg"] == {"depth": 12, "threshold": 4 * 31 * 3, "feature": 4 * 31 * 3}


# -- drawings -------------------------------------------------------------------------------------


def test_a_drawn_tree_shows_every_node() -> None:
    picture = viz.tree(ONE)
    shown = " ".join(texts(picture.svg)).split()
    lines = [line.lstrip("│├└─ ").split() for line in str(picture).splitlines()]
    assert sorted(shown) == sorted(word for line in lines for word in line)
    assert len(boxes(picture.svg)) == ONE.n_nodes


def test_a_drawn_layout_shows_every_line() -> None:
    picture = viz.layout(ONE, schedule(ONE, "sparse", 2))
    assert texts(picture.svg) == str(picture).split("\n")


def test_nodes_of_a_tile_share_a_colour_of_their_own() -> None:
    tiled = tvm_forest.rewrite(ONE, schedule(ONE, tiles=2))
    style = boxes(viz.tree(tiled).svg)
    age, income, visits = (
        next(style[x] for x in style if f" {n} " in x) for n in ONE.feature_names
    )
    assert age == income != visits
    assert len(set(style.values())) == 3


def test_drawings_are_the_same_whatever_the_users_style() -> None:
    first = viz.tree(TWO).svg
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "savefig.dpi": 200}):
        assert viz.tree(TWO).svg == first == viz.tree(TWO)._repr_svg_()
        assert matplotlib.rcParams["font.size"] == 30


def test_odd_names_of_features_are_drawn() -> None:
    names = ("$a_b", "<&>", "new\nline\x01")
    shown = texts(viz.tree(replace(ONE, feature_names=names)).svg)
    assert {"[0] $a_b < 39.5", "[1] <&> < 12000", "[4] new?line? < 2.5 or missing"} <= set(shown)


def test_files_hold_the_text_or_the_drawing(tmp_path: Path) -> None:
    picture = viz.tree(TWO, 1)
    for name, content in {"a.txt": f"{picture}\n", "a.svg": picture.svg}.items():
        picture.save(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "a.txt"]


# -- refusals and costs ---------------------------------------------------------------------------


@pytest.mark.parametrize("tree", [2, -1, "a"])
def test_a_tree_that_is_not_there_is_refused(tree: Any) -> None:
    with pytest.raises(InputError, match=f"no tree {tree!r}; the trees are 0 to 1"):
        viz.tree(TWO, tree)
    with pytest.raises(InputError, match="layout: argument 'tree'"):
        viz.layout(TWO, schedule(TWO), tree)


def test_a_schedule_of_another_model_is_refused() -> None:
    with pytest.raises(ScheduleError, match="made for 1 trees"):
        viz.layout(TWO, schedule(ONE))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'.*a\.png' does not end in \.svg or \.txt"):
        viz.tree(ONE).save(tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_a_drawing_without_matplotlib_names_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'tvm-forest\[plot\]'"):
        viz.tree(ONE).svg  # noqa: B018


def test_a_text_of_a_tree_imports_neither_tvm_nor_matplotlib() -> None:
    source = "import sys; from tvm_forest import viz; print({'tvm', 'matplotlib'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


# -- nests and bit planes -------------------------------------------------------------------------


def test_a_nest_has_a_box_for_each_of_its_lines() -> None:
    sch = tvm_forest.new_schedule(THREE).tile("batch", "b0", "b1", 64).parallel("b0")
    picture = viz.nest(sch.split("tree", "t0", "t1", 1).represent_as("sparse"))
    lines = str(picture).splitlines()
    assert lines == str(sch.split("tree", "t0", "t1", 1).represent_as("sparse")).splitlines()
    assert texts(picture.svg) == [" ".join(line.split()) for line in lines]
    colours = re.findall(r"fill: (#\w{6}); stroke: #808080", picture.svg)
    assert [colours.count(nests.COLOURS[kind]) for kind in ("batch", "tree")] == [2, 2]


def test_bit_planes_say_what_tests_answer_and_which_leaf_is_reached() -> None:
    rows = np.array([[30, 900, 1], [30, 20000, np.nan], [39.5, 0, 0], [np.nan, 0, 9]], np.float32)
    shown = dict(line.rsplit(maxsplit=1) for line in str(viz.planes(ONE, rows)).splitlines()[1:])
    assert shown["[0] age < 39.5"] == "1100"  # a threshold goes right, and so does what is missing
    assert shown["[4] visits < 2.5 or missing"] == "1110"
    for at, leaf in enumerate(ONE.predict_reference(rows, "apply")[:, 0]):
        (bits,) = (bits for name, bits in shown.items() if name.startswith(f"leaf {leaf}:"))
        assert bits[at] == "1"
    assert sum(bits.count("1") for name, bits in shown.items() if name.startswith("leaf")) == 4


def test_planes_of_no_rows_and_of_a_single_leaf_can_be_drawn() -> None:
    assert str(viz.planes(THREE, np.zeros((2, 3)), 2)).splitlines()[1:] == ["leaf 0: -7.25   11"]
    assert "<svg" in viz.planes(THREE, np.zeros((0, 3)), 1).svg
    with pytest.raises(InputError, match="there is no tree 3"):
        viz.planes(THREE, np.zeros((2, 3)), 3)


# -- orders ---------------------------------------------------------------------------------------

SMALL = Schedule(trees=6)
BLOCKS = SMALL.tile("batch", "b0", "b1", 4).reorder("b0", "tree", "b1")
CLASSES = Schedule(trees=6, classes=3).tile("batch", "b0", "b1", parts=2).parallel("b0")
ORDERS = {
    "plain": SMALL,
    "blocks": BLOCKS,
    "parts": BLOCKS.split("tree", "t0", "t1", 2),
    "copies": SMALL.tile("tree", "t0", "t1", 4).reorder("t0", "batch", "t1").specialize("t0"),
    "threads": BLOCKS.parallel("b0"),
    "classes": CLASSES,
}


def cells(picture: viz.Picture) -> list[list[str]]:
    return [line.split() for line in str(picture).splitlines()[1:]]


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("rows", [1, 7, 8])
def test_an_order_is_that_in_which_the_nest_runs(name: str, rows: int) -> None:
    sch, steps, found = ORDERS[name], dict[int, int](), np.zeros((rows, 6), object)
    has_threads = sch.nest.children[0].parallel
    for visit, around in runs(sch, rows):
        thread = around["b0"] if has_threads else 0
        steps[thread] = steps.get(thread, 0) + 1
        tree = visit.tree * sch.round_size + visit.output
        found[visit.row, tree] = list(steps).index(thread), steps[thread]
    write = "{}:{}" if len(steps) > 1 else "{1}"
    expected = [[write.format(*cell) for cell in line] for line in found]
    assert cells(viz.order(sch, rows)) == expected


def test_walks_that_advance_together_share_a_step() -> None:
    assert cells(viz.order(BLOCKS.interleave("b1", 3), 5)) == [
        ["1", "3", "5", "7", "9", "11"],
        ["1", "3", "5", "7", "9", "11"],
        ["1", "3", "5", "7", "9", "11"],
        ["2", "4", "6", "8", "10", "12"],
        ["13", "14", "15", "16", "17", "18"],
    ]
    assert cells(viz.order(BLOCKS.simdize("b1"), 4)) == [list("123456")] * 4


def test_threads_of_a_gpu_take_turns_at_the_trees() -> None:
    sch = SMALL.tile("batch", "b0", "b1", 2).tile("tree", "t0", "t1", 3)
    sch = sch.reorder("b0", "b1", "t1", "t0").gpu_dimension("b0", "grid.x")
    sch = sch.gpu_dimension("b1", "block.x").gpu_dimension("t1", "block.y")
    picture = viz.order(sch, rows=2, trees=4)
    assert str(picture).startswith("rows: 2, trees: 4, steps: 2, threads: 6\n")
    assert cells(picture) == [["0:1", "1:1", "2:1", "0:2"], ["3:1", "4:1", "5:1", "3:2"]]


def test_an_order_is_drawn_with_its_steps() -> None:
    drawn = texts(viz.order(BLOCKS, 4).svg)
    assert {"rows: 4, trees: 6, steps: 24", *map(str, range(1, 25))} <= set(drawn)


@pytest.mark.parametrize("rows", [0, 65])
def test_an_order_of_too_many_rows_is_refused(rows: int) -> None:
    with pytest.raises(InputError, match=f"order: argument 'rows': expected 1 to 64, got {rows}"):
        viz.order(SMALL, rows)


@pytest.mark.parametrize("draw", [viz.nest, viz.order])
def test_what_is_no_schedule_is_refused_with_those_that_it_has(draw: Any) -> None:
    forest = drawn_forest(3, 2, seed=0)
    predictor = tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))
    with pytest.raises(ScheduleError, match="got Predictor; give one of its `schedules`, .* at 1$"):
        draw(predictor)
    assert str(draw(predictor.schedules[1]))
    with pytest.raises(ScheduleError, match="got dict; give one of its values, such as that at 1$"):
        draw(predictor.schedules)
    with pytest.raises(ScheduleError, match="got Forest; make one with tvm_forest.new_schedule"):
        draw(forest)
