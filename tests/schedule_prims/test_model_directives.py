"""Directives about the model: what they say, what they refuse, and what a built model keeps."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of
from schedules import check_results, rounding_bound
from tvm_forest.errors import BuildError, ForestError, InputError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.hits import find_peel_depths
from tvm_forest.forest.probe_rows import hard_rows, typical_rows
from tvm_forest.forest.profile import Profile
from tvm_forest.forest.rewrites.tile_rules import check_tiling
from tvm_forest.schedule_prims import Schedule
from tvm_forest.schedule_prims.walks import MAX_HOPS, TreeDepths, find_walk_forms

TILED = ("array", "sparse", "sparse_peeled")
SIZES = (2, 3, 4, 5, 8)
START = Schedule(6, depths=(3, 1, 2, 3, 0, 2))
FULL = (
    START.tile_nodes(4, "optimal", gate=(0.05, 0.9))
    .pad_trees("forest")
    .sort_trees("likely")
    .represent_as("sparse")
    .know_depths([1, 1, 2, 2, 3, 3], likely=[0, 1, 1, 1, 2, 2])
)


LADDER = Split(
    0, 0.5, 1.0, Split(1, 0.1, Split(2, 0.0, 3.0, Split(0, 1.0, Split(1, 2.0, 4.0, 7.0), 5.0)), 6.0)
)


def profiled(forest: Forest, n: int = 200) -> Forest:
    """Give a forest the hits of rows of all kinds."""
    rows = np.concatenate([hard_rows(forest, n, seed=1), typical_rows(forest, n, seed=2)])
    ends = forest.reference_nodes(rows).ravel()
    return replace(forest, hits=np.bincount(ends, minlength=forest.n_nodes).astype(np.int64))


def in_tiles(forest: Forest, layout: str, size: int, **how: Any) -> Schedule:
    return tvm_forest.new_schedule(forest).tile_nodes(size, **how).represent_as(layout)


# -- text, JSON, equality -------------------------------------------------------------------------


def test_the_printed_schedule_begins_with_the_rewrites() -> None:
    text = """
tile nodes: size 4, how optimal, gate [0.05, 0.9]
pad trees: to forest
sort trees: by likely
represent as sparse
for batch in (0, n, 1)
  for tree in (0, 6, 1)
    out[batch] += walk(tree, batch)"""
    assert "\n" + str(FULL) == text


def test_a_refusal_shows_the_rewrites_too() -> None:
    with pytest.raises(ScheduleError, match="tile nodes: size 4, how optimal, gate"):
        FULL.parallel("rows")


def test_rewrites_survive_json() -> None:
    again = Schedule.from_json(FULL.to_json())
    assert (again, hash(again), again.steps) == (FULL, hash(FULL), FULL.steps)
    assert (again.rewrites, again.hops, again.likely) == (FULL.rewrites, FULL.hops, FULL.likely)
    pieces = FULL.split_by_depth("tree", by="likely")
    assert Schedule.from_json(pieces.to_json()) == pieces


def test_pairs_and_lists_are_the_same_step() -> None:
    pairs = START.tile_nodes(4, "optimal", (0.5, 0.5)).know_depths((1,) * 6, (0,) * 6)
    lists = START.tile_nodes(4, "optimal", [0.5, 0.5]).know_depths([1] * 6, [0] * 6)
    assert pairs == lists
    assert pairs.steps == lists.steps == Schedule.from_json(pairs.to_json()).steps


def test_arguments_that_are_left_out_are_the_same_rewrite() -> None:
    assert START.tile_nodes(4) == START.tile_nodes(4, "uniform", None)
    assert hash(START.pad_trees()) == hash(START.pad_trees("tree"))
    assert START.sort_trees() == START.sort_trees("depth")


@pytest.mark.parametrize(
    "other",
    [
        START,
        START.tile_nodes(4),
        START.tile_nodes(8, "optimal"),
        START.tile_nodes(4, "optimal", (0.1, 0.9)),
        START.tile_nodes(4, "optimal").pad_trees(),
        START.pad_trees().tile_nodes(4, "optimal"),
    ],
    ids=str,
)
def test_rewrites_that_differ_make_schedules_differ(other: Schedule) -> None:
    assert other != START.tile_nodes(4, "optimal")


def test_known_depths_do_not_make_schedules_differ() -> None:
    assert START.tile_nodes(2).know_depths([1] * 6) == START.tile_nodes(2)


def test_a_rewrite_can_be_left_out_of_the_trace() -> None:
    assert FULL.without("tile_nodes", "know_depths") == (
        START.pad_trees("forest").sort_trees("likely").represent_as("sparse")
    )


# -- refusals -------------------------------------------------------------------------------------

NO_SIZE = "argument 'size': expected 1 to 8 nodes, got"
NO_PAIR = "is no pair of shares from 0 to 1; give \\(leaves, rows\\)"
NO_DEPTHS = "not one depth for each of the 6 rounds of trees; use tvm_forest.with_depths"
TWICE = "the model is rewritten so already; leave this step out"
REFUSALS: list[tuple[str, tuple[Any, ...], str]] = [
    *(("tile_nodes", (size,), NO_SIZE) for size in (0, 9, -1, 2.0, "4", True, None, np.int64(4))),
    *(("tile_nodes", (4, how), "argument 'how': .* is unknown") for how in ("best", None, [1], 3)),
    ("tile_nodes", (4, "uniform", (0.1, 0.9)), "argument 'gate': .* another tiling than 'uniform'"),
    *(
        ("tile_nodes", (4, "optimal", gate), NO_PAIR)
        for gate in (0.5, (), (1,), (0.1, 1.5), (-0.1, 1), ("a", 1), (float("nan"), 1), {1, 0})
    ),
    *(("tile_nodes", (4, "optimal", x), NO_PAIR) for x in ((True, 1), (np.float32(0.5), 1))),
    ("tile_nodes", (), "missing a required argument: 'size'"),
    *(("pad_trees", (to,), "argument 'to': .* use tree, forest") for to in ("deep", None, 1, [])),
    *(("sort_trees", (by,), "argument 'by': .* use depth, likely") for by in ("size", None, {})),
    *(
        ("know_depths", (depths,), f"argument 'depths': {NO_DEPTHS}")
        for depths in (None, 3, "123456", [], [1] * 5, [1] * 7, [1.0] * 6, [True] * 6, [-1] * 6)
    ),
    ("know_depths", (np.ones(6, int),), "argument 'depths': got an array, which JSON cannot say"),
    ("know_depths", ([1 << 20] * 6,), f"argument 'depths': {NO_DEPTHS}"),
    *(
        ("know_depths", ([1] * 6, likely), f"argument 'likely': {NO_DEPTHS}")
        for likely in ([1] * 5, 3, [None] * 6)
    ),
    *(("split_by_depth", ("tree", by), "argument 'by': .* use depth, likely") for by in ("x", 1)),
    ("split_by_depth", ("tree", "likely"), r"with_depths\(schedule, model, profile\)"),
    ("peel_walk", ("tree", "depth"), "argument 'hops': 'depth' is no number of hops"),
]


@pytest.mark.parametrize(("word", "arguments", "message"), REFUSALS, ids=repr)
def test_a_wrong_argument_is_refused(word: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ScheduleError, match=f"^{word}: {message}|^{word}: .*{message}") as caught:
        getattr(START, word)(*arguments)
    assert str(caught.value).partition("\n")[2].replace("   <----", "") == str(START)


@pytest.mark.parametrize("word", ["tile_nodes", "pad_trees", "sort_trees"])
def test_a_rewrite_is_made_once(word: str) -> None:
    arguments = (2,) if word == "tile_nodes" else ()
    once = getattr(START, word)(*arguments)
    with pytest.raises(ScheduleError, match=f"^{word}: {TWICE}"):
        getattr(once, word)(*arguments)


def test_a_straight_line_is_not_peeled_by_likely_depths() -> None:
    sch = FULL.unroll_walk("tree")
    with pytest.raises(ScheduleError, match="'tree' is already fully unrolled"):
        sch.split_by_depth("tree", by="likely")
    with pytest.raises(ScheduleError, match="'tree' is already peeled"):
        FULL.peel_walk("tree", "likely").split_by_depth("tree")


NEEDS_PROFILE = {
    "tile_nodes: argument 'how': 'probability'": lambda s: s.tile_nodes(2, "probability"),
    "tile_nodes: argument 'how': 'hybrid'": lambda s: s.tile_nodes(2, "hybrid"),
    "tile_nodes: argument 'how': 'optimal'": lambda s: s.tile_nodes(2, "optimal", (0.05, 0.9)),
    "sort_trees: argument 'by': 'likely'": lambda s: s.sort_trees("likely"),
}


@pytest.mark.parametrize("message", NEEDS_PROFILE)
def test_a_rewrite_that_needs_a_profile_says_so(message: str) -> None:
    forest = drawn_forest(3, 3)
    sch = NEEDS_PROFILE[message](tvm_forest.new_schedule(forest))
    calls = (tvm_forest.rewrite, tvm_forest.lower)
    for call in (*calls, lambda f, s: tvm_forest.build(f, schedule=s, exact=False)):
        with pytest.raises(ScheduleError, match=f"^{message} needs a leaf profile; give one with"):
            call(forest, sch)
    with pytest.raises(ScheduleError, match=message):
        tvm_forest.with_depths(sch, forest)


def test_a_walk_or_a_layout_that_needs_a_profile_says_so() -> None:
    forest = drawn_forest(3, 3)
    with pytest.raises(ScheduleError, match="^peel_walk: .*'likely' needs a leaf profile"):
        tvm_forest.build(
            forest, schedule=tvm_forest.new_schedule(forest).peel_walk("tree", "likely")
        )
    with pytest.raises(BuildError, match="'sparse_peeled' needs a leaf profile"):
        tvm_forest.build(forest, schedule=in_tiles(forest, "sparse_peeled", 2))


@pytest.mark.parametrize("layout", ["packed", "reorg", "sparse_peeled"])
def test_a_layout_names_the_tiles_that_it_can_hold(layout: str) -> None:
    forest = profiled(drawn_forest(3, 3))
    size = 1 if layout == "sparse_peeled" else 2
    with pytest.raises(ScheduleError, match=f"{layout!r} cannot hold .*tiles it can hold: "):
        tvm_forest.lower(forest, in_tiles(forest, layout, size))


def test_a_profile_of_another_model_is_refused() -> None:
    forest, other = drawn_forest(3, 3), drawn_forest(4, 3)
    leaves = other.predict_reference(hard_rows(other, 9), "apply")
    profile = Profile.of_leaves(other, leaves)
    for call in (tvm_forest.build, tvm_forest.lower):
        with pytest.raises(InputError, match="it has 4 trees, the model has 3"):
            call(forest, profile=profile)
    sch = tvm_forest.new_schedule(forest)
    for call in (tvm_forest.rewrite, lambda f, s, p: tvm_forest.with_depths(s, f, p)):
        with pytest.raises(InputError, match="it has 4 trees, the model has 3"):
            call(forest, sch, profile)


def test_what_is_no_profile_or_no_schedule_is_refused() -> None:
    forest = drawn_forest(3, 3)
    with pytest.raises(InputError, match="argument 'profile': expected a Profile, got list"):
        tvm_forest.build(forest, profile=[1, 2])
    with pytest.raises(ScheduleError, match="rewrite: .*expected a Schedule, got NoneType"):
        tvm_forest.rewrite(forest, None)
    with pytest.raises(ScheduleError, match="rewrite: .*made for 6 trees .* the model has 3"):
        tvm_forest.with_depths(START, forest)


# -- depths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["tile_nodes", "pad_trees", "sort_trees"])
def test_a_rewrite_forgets_the_depths(word: str) -> None:
    known = START.know_depths([1] * 6, [1] * 6)
    assert (known.hops, known.likely, known.depths) == ((1,) * 6, (1,) * 6, START.depths)
    new = getattr(known, word)(*((2,) if word == "tile_nodes" else ()))
    assert (new.hops, new.likely) == (None, None)
    with pytest.raises(ScheduleError, match="the depths of the trees are not known; .*with_depths"):
        new.split_by_depth("tree")


def test_the_depths_are_looked_up_for_each_round() -> None:
    forest = profiled(drawn_forest(8, 5, base=[0.0, 1.0]))
    plain = tvm_forest.new_schedule(forest).tile_nodes(3).sort_trees()
    sch = tvm_forest.with_depths(plain, forest)
    tiled = tvm_forest.rewrite(forest, plain)
    assert sch.hops == tuple(tiled.depths.reshape(4, 2).max(axis=1))
    assert sch.likely == tuple(find_peel_depths(tiled).reshape(4, 2).max(axis=1))
    assert tvm_forest.with_depths(plain, replace(forest, hits=None)).likely is None


def test_sorted_trees_give_one_piece_for_each_depth() -> None:
    forest = drawn_forest(30, 5, seed=2)
    start = tvm_forest.new_schedule(forest)
    sch = tvm_forest.with_depths(start.sort_trees(), forest).split_by_depth("tree")
    depths = sorted({int(depth) for depth in forest.depths})
    assert [loop.name for loop in sch.leaves()] == [f"tree.d{depth}" for depth in depths]
    assert len(start.split_by_depth("tree").leaves()) > len(depths)
    check_results(forest, sch, [1, 9], jobs=(1,))


@pytest.mark.parametrize("classes", [1, 3])
def test_likely_pieces_are_peeled_and_right(classes: int) -> None:
    forest = profiled(drawn_forest(12, 5, seed=3, base=[0.5] * classes))
    sch = in_tiles(forest, "sparse_peeled", 2, how="optimal").sort_trees("likely")
    pieces = tvm_forest.with_depths(sch, forest).split_by_depth("tree", by="likely")
    for leaf in pieces.leaves():
        hops = int(leaf.name.partition(".d")[2].split(".")[0]) if "." in leaf.name else None
        assert leaf.hops is None
        assert hops is None or leaf.peel == (hops or None)
    assert len(pieces.leaves()) > 1
    check_results(forest, pieces, [1, 9], jobs=(1,))


def test_likely_pieces_of_a_very_deep_tree_take_what_peel_walk_takes() -> None:
    known = Schedule(2).know_depths([900, 3], [800, 1]).split_by_depth("tree", by="likely")
    assert [loop.peel for loop in known.leaves()] == [MAX_HOPS, 1]
    depths = TreeDepths(np.array([900, 3]), np.array([1, 1]), np.array([800, 1]))
    forms = find_walk_forms(Schedule(2).peel_walk("tree", "likely"), depths)
    assert forms["tree"].hops == MAX_HOPS


# -- what a built model keeps ---------------------------------------------------------------------


@pytest.mark.parametrize("by", ["depth", "likely"])
def test_sorted_trees_are_close_and_report_in_the_order_of_the_model(by: str) -> None:
    forest = profiled(drawn_forest(20, 5, seed=4, base=[0.25, -1.0]))
    sch = tvm_forest.new_schedule(forest).sort_trees(by)
    assert not sch.keeps_order
    with pytest.raises(ScheduleError, match="another order than the model.*exact=False"):
        tvm_forest.build(forest, schedule=sch)
    predictor = tvm_forest.build(forest, schedule=sch, exact=False)
    assert not np.array_equal(predictor.columns.ravel(), np.arange(20))
    rows = hard_rows(forest, 33, seed=5)
    distance = np.abs(predictor.predict_margin(rows) - forest.predict_reference(rows))
    assert np.all(distance <= rounding_bound(forest, rows))
    assert np.allclose(predictor.tolerance(rows), rounding_bound(forest, rows))
    assert np.array_equal(predictor.apply(rows), forest.predict_reference(rows, "apply"))
    values = forest.predict_reference(rows, "per_tree")
    assert np.array_equal(predictor.predict_per_tree(rows), values)


@pytest.mark.parametrize("to", ["tree", "forest"])
@pytest.mark.parametrize("first", ["pad", "tile"])
def test_trees_are_padded_before_or_after_they_are_tiled(first: str, to: str) -> None:
    forest = drawn_forest(6, 4, seed=6)
    start = tvm_forest.new_schedule(forest).represent_as("sparse")
    sch = start.pad_trees(to).tile_nodes(3) if first == "pad" else start.tile_nodes(3).pad_trees(to)
    padded = tvm_forest.rewrite(forest, sch)
    if first == "tile":
        ends = padded.hop_depth[padded.is_leaf]
        assert np.array_equal(ends, padded.depths[padded.node_tree[padded.is_leaf]])
    assert len(set(padded.depths)) == 1 or to == "tree"
    check_results(forest, sch.unroll_walk("tree"), [1, 9], jobs=(1,))


def test_tiles_that_are_not_full_are_filled_before_they_are_padded() -> None:
    forest = forest_of([Split(0, 0.5, 1.0, 2.0), LADDER])
    sch = in_tiles(forest, "sparse", 4).pad_trees("forest")
    check_tiling(tvm_forest.rewrite(forest, sch))
    check_results(forest, sch, [1, 9], jobs=(1,))


def test_padding_allows_unchecked_hops() -> None:
    forest = drawn_forest(6, 4, seed=6)
    start = tvm_forest.new_schedule(forest)
    with pytest.raises(ScheduleError, match="3 unchecked hops are wrong"):
        tvm_forest.build(forest, schedule=start.peel_walk("tree", 3, check=False))
    padded = start.pad_trees("forest").peel_walk("tree", 3, check=False)
    check_results(forest, padded, [1, 9], jobs=(1,))


def test_a_profile_counts_the_leaves_of_the_rows() -> None:
    forest = drawn_forest(5, 4)
    rows = hard_rows(forest, 60)
    seen = tvm_forest.profile(forest, rows)
    assert isinstance(seen, Profile)
    ends = np.bincount(forest.reference_nodes(rows).ravel(), minlength=forest.n_nodes)
    assert np.array_equal(seen.onto(forest).hits, ends)
    sch = in_tiles(forest, "sparse_peeled", 4, how="optimal")
    margin = tvm_forest.build(forest, schedule=sch, profile=seen).predict_margin(rows)
    assert np.array_equal(margin, forest.predict_reference(rows)[:, 0])


# -- models at the edge ---------------------------------------------------------------------------


def left_heavy() -> Forest:
    forest = drawn_forest(6, 5, seed=7, comparison="<=")
    return replace(forest, default_left=~forest.is_leaf)


def wide(features: tuple[int, ...]) -> Forest:
    trees: list[Any] = [
        Split(a, 0.0, Split(b, 1.0, 1.0, Split(a, -1.0, 2.0, 3.0), True), Split(b, -0.5, 4.0, 5.0))
        for a in features
        for b in features
    ]
    return forest_of(trees, n_features=max(features) + 1)


EDGES = {
    "missing values go left": left_heavy,
    "16 bits of feature": lambda: wide((0, 255, 256, 299)),
    "32 bits of feature": lambda: wide((0, 65535, 65536, 70000)),
    "float64": lambda: drawn_forest(6, 5, seed=8, dtype="float64"),
    "float32 rows, float64 thresholds": lambda: drawn_forest(
        6, 5, seed=9, dtype="float64", row_dtype="float32"
    ),
    "wide float64": lambda: drawn_forest(6, 5, dtype="float64", n_features=300),
    "single leaves": lambda: forest_of([0.5, -0.0, 3.0], base=[0.25]),
    "single leaves among stumps": lambda: forest_of([0.5, Split(2, 0.5, 1.0, 2.0, True), 3.0]),
}


@cache
def answers(edge: str) -> tuple[Forest, Any, Any, Any]:
    """A model with hits, hard rows and rows without a value, and what the model says of them."""
    forest = profiled(EDGES[edge](), 30)
    rows = hard_rows(forest, 9, seed=10)
    rows = np.concatenate([rows, np.full((4, forest.n_features), np.nan, rows.dtype)])
    ids = forest.predict_reference(rows, "apply")
    return forest, rows, forest.predict_reference(rows)[:, 0], ids


@pytest.mark.slow
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("layout", TILED)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.cases(6)
def test_a_model_at_the_edge_is_right_in_tiles(size: int, layout: str, edge: str) -> None:
    forest, rows, margin, leaves = answers(edge)
    sch = in_tiles(forest, layout, size)
    if (size + list(EDGES).index(edge)) % 3 == 0:  # the lanes are rows, not nodes
        sch = sch.tile("batch", "b0", "b1", 4).reorder("b0", "tree", "b1").simdize("b1")
    predictor = tvm_forest.build(forest, schedule=sch)
    assert predictor.predict_margin(rows).tobytes() == margin.tobytes()
    assert np.array_equal(predictor.apply(rows), leaves)


@pytest.mark.parametrize("layout", TILED)
def test_features_of_32_bits_are_told_apart_node_by_node(layout: str) -> None:
    """Two features share a word of 64 bits, and lanes that are rows take one after the other."""
    forest, rows, margin, leaves = answers("float64")
    sch = in_tiles(forest, layout, 2).tile("batch", "b0", "b1", 4)
    predictor = tvm_forest.build(forest, schedule=sch.reorder("b0", "tree", "b1").simdize("b1"))
    assert predictor.predict_margin(rows).tobytes() == margin.tobytes()
    assert np.array_equal(predictor.apply(rows), leaves)


def lopsided(depth: int, n_features: int = 3) -> Forest:
    """A tree that goes on to one side, now left, now right."""
    tree: Any = 1.0
    for level in range(depth):
        sides = (float(level), tree) if level % 3 else (tree, float(level))
        tree = Split(level % n_features, float(level % 7) - 3, *sides, level % 2 == 0)
    return forest_of([tree, 0.5, Split(0, 0.0, 1.0, 2.0)])


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["sparse", "sparse_peeled"])
@pytest.mark.parametrize("size", [2, 8])
def test_a_lopsided_tree_is_laid_out_in_tiles(size: int, layout: str) -> None:
    forest = profiled(lopsided(200))
    assert forest.depths.max() == 200
    sch = in_tiles(forest, layout, size, how="optimal").peel_walk("tree", "likely")
    check_results(forest, sch, [1, 9], jobs=(1,))


@pytest.mark.parametrize(("depth", "size"), [(45, 2), (120, 8), (200, 8), (500, 2)])
def test_a_lopsided_tree_is_too_much_for_complete_tiles(depth: int, size: int) -> None:
    forest = lopsided(depth)
    sch = in_tiles(forest, "array", size)
    begin = time.perf_counter()
    with pytest.raises(BuildError, match="layout 'array': tree 0 of .* hops and 2 others need"):
        tvm_forest.lower(forest, sch)
    assert time.perf_counter() - begin < 30  # it does not hang


def test_a_lopsided_tree_is_too_much_to_be_padded() -> None:
    forest = lopsided(60)
    sch = in_tiles(forest, "sparse", 2).pad_trees()
    with pytest.raises(ForestError, match="pad_trees: .* nodes, tree 0 alone"):
        tvm_forest.rewrite(forest, sch)
