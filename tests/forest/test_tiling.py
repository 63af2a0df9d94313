"""Tiles, padding and sorting: what they promise, on drawn forests and the published profiles."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of, full_forest
from schedules import odd_forest, with_vectors
from shared_models import shared_model
from tvm_forest.errors import BuildError, ScheduleError
from tvm_forest.forest import CategoryRule, Forest
from tvm_forest.forest.hits import (
    are_skewed,
    count_mean_hops,
    count_node_hits,
    find_peel_depths,
    find_skewed_trees,
)
from tvm_forest.forest.probe_rows import hard_rows, typical_rows
from tvm_forest.forest.profile import Profile
from tvm_forest.forest.rewrites.ordering import arrange_by_round, sort_trees, take_trees
from tvm_forest.forest.rewrites.padding import fill_tiles, pad_trees
from tvm_forest.forest.rewrites.tile_rules import check_tiling
from tvm_forest.forest.rewrites.tile_table import TileTable, make_tile_table
from tvm_forest.forest.rewrites.tiling import TABLE_BYTES, WAYS, tile_nodes

SIZES = (2, 3, 4, 8)
OPEN_GATE = (1.0, 0.0)
"""Lets every tree through that has seen a row."""

real = pytest.mark.filterwarnings("ignore:.*Found JSON model saved before XGBoost 1.6")


def with_hits(forest: Forest, seed: int = 0, spread: float = 4.0) -> Forest:
    """Draw hits, many of them zero and some very large."""
    rng = np.random.default_rng(seed)
    hits = np.exp(rng.normal(0, spread, forest.n_nodes)).astype(np.int64)
    return replace(forest, hits=np.where(forest.is_leaf, hits, 0))


def counted(forest: Forest, *hits: int) -> Forest:
    """Give the leaves these hits, in the order of their nodes."""
    all_hits = np.zeros(forest.n_nodes, np.int64)
    all_hits[forest.is_leaf] = hits
    return replace(forest, hits=all_hits)


@cache
def odd(seed: int) -> Forest:
    return with_hits(odd_forest(seed), seed)


def costs(forest: Forest) -> Any:
    """Rows times tiles of each tree."""
    weight = forest.hits * forest.hop_depth.astype(np.int64)
    return np.add.reduceat(weight, forest.tree_offset[:-1])


def assert_same_predictions(one: Forest, other: Forest) -> None:
    rows = np.concatenate([hard_rows(one, 60), typical_rows(one, 40)])
    for output in ("margin", "apply", "per_tree"):
        expected = one.predict_reference(rows, output)
        assert other.predict_reference(rows, output).tobytes() == expected.tobytes()


# -- tiling ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", WAYS)
def test_every_tiling_keeps_the_rules_and_the_predictions(how: str, size: int) -> None:
    for seed in range(12):
        tiled = tile_nodes(odd(seed), size, how)
        check_tiling(tiled)
        assert tiled.tile_size == size
        assert_same_predictions(odd(seed), tiled)


@real
@pytest.mark.slow
@pytest.mark.parametrize("name", ["airline", "epsilon", "higgs", "year"])
@pytest.mark.cases(1)
def test_real_models_can_be_tiled_in_every_way(name: str) -> None:
    forest = tvm_forest.load(shared_model(f"{name}.json"))
    forest = Profile.load(shared_model(f"{name}.profile.csv")).onto(forest)
    for how in WAYS:
        for size in (2, 8):
            tiled = tile_nodes(forest, size, how)
            check_tiling(tiled)
            full = fill_tiles(tiled)
            assert make_tile_table(full).members.shape[1] == size
            assert count_mean_hops(full) == count_mean_hops(tiled)
            assert_same_predictions(forest, full)


def test_uniform_tiles_are_breadth_first() -> None:
    tree = tile_nodes(full_forest(1, 4), 3).tile
    assert tree[:7].tolist() == [0, 0, 0, 3, 4, 5, 6]
    assert tree[7:15].tolist() == [3, 3, 4, 4, 5, 5, 6, 6]
    assert tree[15:].tolist() == list(range(15, 31))


LADDER = Split(0, 0.0, Split(1, 0.0, Split(2, 0.0, 1.0, 2.0), 3.0), Split(1, 1.0, 4.0, 5.0))
"""Nodes 0, 1, 2 and 3 (below 1) are inner; leaves in node order are 3, 4, 5, 1, 2."""


@pytest.mark.parametrize(
    ("how", "hits", "expected"),
    [
        ("uniform", (1, 1, 1, 96, 1), [0, 0, 2, 3]),
        ("probability", (1, 1, 1, 96, 1), [0, 0, 2, 3]),
        ("probability", (1, 60, 37, 1, 1), [0, 1, 0, 1]),
        ("optimal", (1, 60, 37, 1, 1), [0, 1, 0, 1]),
        ("optimal", (1, 1, 1, 96, 1), [0, 1, 0, 1]),
    ],
)
def test_small_tilings_are_as_worked_out_by_hand(how: str, hits: Any, expected: Any) -> None:
    tiled = tile_nodes(counted(forest_of([LADDER]), *hits), 2, how)
    assert tiled.tile.tolist() == [*expected, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("how", ["probability", "hybrid"])
@pytest.mark.parametrize("size", SIZES)
def test_without_any_row_greedy_tiles_are_uniform(how: str, size: int) -> None:
    forest = with_hits(drawn_forest(30, 6), 1)
    none = replace(forest, hits=np.zeros_like(forest.hits))
    assert np.array_equal(tile_nodes(none, size, how).tile, tile_nodes(forest, size).tile)


@pytest.mark.parametrize(("rows", "expected"), [(20, [0, 1, 0, 3, 1]), (19, [0, 1, 0, 1, 4])])
def test_hybrid_tiles_are_greedy_where_a_fifth_of_the_rows_comes(rows: int, expected: Any) -> None:
    below = Split(0, 0.0, Split(1, 0.0, 1.0, 2.0), Split(1, 1.0, 3.0, 4.0))
    forest = forest_of([Split(0, 1.0, below, Split(2, 0.0, 5.0, 6.0))])
    tiled = tile_nodes(counted(forest, 100 - rows, 0, 0, 0, rows, 0), 2, "hybrid")
    assert tiled.tile[:5].tolist() == expected


def least_cost(forest: Forest, size: int) -> int:
    """Try all tiles of a single tree at every node."""
    rows, left, right = count_node_hits(forest), forest.left, forest.right
    inner = [[c for c in (left[v], right[v]) if left[c] >= 0] for v in range(forest.n_nodes)]

    @cache
    def below(node: int) -> int:
        return 1 + sum(below(c) for c in inner[node])

    @cache
    def cost(node: int) -> int:
        tiles = {frozenset([node])}
        for _ in range(min(size, below(node)) - 1):
            tiles = {t | {c} for t in tiles for v in t for c in inner[v] if c not in t}
        outside = ([c for v in t for c in inner[v] if c not in t] for t in tiles)
        return int(rows[node]) + min(sum(map(cost, ends)) for ends in outside)

    return 0 if forest.is_leaf[0] else cost(0)


@pytest.mark.parametrize("size", SIZES)
def test_optimal_tiles_cost_as_little_as_any(size: int) -> None:
    forest = with_hits(drawn_forest(60, 4, seed=3), 5, spread=1.0)
    tiled = costs(tile_nodes(forest, size, "optimal"))
    for tree, cost in enumerate(tiled):
        assert cost == least_cost(take_trees(forest, np.array([tree])), size), tree


@pytest.mark.parametrize("size", SIZES)
def test_optimal_tiles_never_cost_more_than_others(size: int) -> None:
    better = 0
    for seed in range(30):
        optimal = costs(tile_nodes(odd(seed), size, "optimal", OPEN_GATE))
        for how in ("probability", "hybrid"):
            other = costs(tile_nodes(odd(seed), size, how, OPEN_GATE))
            assert np.all(optimal <= other)
            better += int(np.sum(optimal < other))
        assert np.all(optimal <= costs(tile_nodes(odd(seed), size)))
    assert better > 0


def test_tiles_are_replaced_and_taken_away() -> None:
    forest = odd(4)
    padded = fill_tiles(tile_nodes(forest, 8, "optimal"))
    again = tile_nodes(padded, 3, "probability")
    check_tiling(again)
    plain = tile_nodes(again, 1)
    assert plain.tile is None
    assert plain.tile_size == 1
    assert_same_predictions(forest, plain)


@pytest.mark.parametrize("how", WAYS[1:])
def test_only_skewed_trees_pass_the_gate(how: str) -> None:
    forest = with_hits(full_forest(40, 6), 2, spread=3.0)
    are_skewed = find_skewed_trees(forest, 0.1, 0.9)[forest.node_tree]
    gated = tile_nodes(forest, 4, how, (0.1, 0.9)).tile
    chosen, uniform = (tile_nodes(forest, 4, w).tile for w in (how, "uniform"))
    assert 0 < are_skewed.sum() < len(are_skewed)
    assert np.array_equal(gated[are_skewed], chosen[are_skewed])
    assert np.array_equal(gated[~are_skewed], uniform[~are_skewed])
    assert not np.array_equal(chosen[~are_skewed], uniform[~are_skewed])


def test_a_table_that_would_be_large_closes_the_gate() -> None:
    forest = with_hits(full_forest(40, 6), 2)
    free = tile_nodes(forest, 8, "probability", OPEN_GATE)
    assert make_tile_table(fill_tiles(free)).lut.nbytes > TABLE_BYTES
    gated = tile_nodes(forest, 8, "probability", (0.05, 0.9))
    assert not np.array_equal(gated.tile, free.tile)
    assert np.array_equal(tile_nodes(forest, 8, "probability").tile, gated.tile)
    assert np.array_equal(
        tile_nodes(forest, 6, "optimal").tile, tile_nodes(forest, 6, "optimal", OPEN_GATE).tile
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "argument 'size': expected 1 to 8 nodes, got 0"),
        ((9,), "argument 'size': expected 1 to 8 nodes, got 9"),
        ((2.0,), "argument 'size': expected 1 to 8 nodes, got 2.0"),
        ((True,), "argument 'size': expected 1 to 8 nodes, got True"),
        ((4, "greedy"), "'greedy' is unknown; use one of uniform, probability, hybrid, optimal"),
        ((4, "uniform", (0.1, 0.9)), "argument 'gate': .* another tiling than 'uniform'"),
        ((4, "optimal", (0.1,)), "argument 'gate': .* no pair of shares"),
        ((4, "optimal", (0.1, 1.5)), "argument 'gate': .* no pair of shares"),
        ((4, "optimal", 0.1), "argument 'gate': 0.1 is no pair of shares"),
    ],
)
def test_impossible_tilings_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ScheduleError, match=f"tile_nodes: .*{message}"):
        tile_nodes(odd(0), *arguments)


@pytest.mark.parametrize("how", WAYS[1:])
def test_likely_tiles_need_a_profile(how: str) -> None:
    message = f"tile_nodes: argument 'how': '{how}' needs a leaf profile; give one with build"
    with pytest.raises(ScheduleError, match=message):
        tile_nodes(odd_forest(1), 4, how)


@pytest.mark.parametrize("how", WAYS)
def test_a_forest_of_leaves_or_of_nothing_has_no_tiles(how: str) -> None:
    for trees in ([], [0.5, 1.5]):
        forest = with_hits(forest_of(trees)) if trees else empty()
        tiled = tile_nodes(forest, 4, how)
        check_tiling(tiled)
        table = make_tile_table(fill_tiles(tiled))
        assert table.members.shape == (0, 4)
        assert table.root.tolist() == [-1] * len(trees)
        assert pad_trees(tiled, "forest").n_nodes == len(trees)


def empty() -> Forest:
    return take_trees(with_hits(forest_of([0.5])), np.zeros(0, np.int64))


# -- the rules ------------------------------------------------------------------------------------

TREE = [0, 0, 2, 0, 4, 5, 6, 7, 8]
"""Tiles of at most 3 nodes in LADDER: nodes 0, 1 and 3, then 2; leaves 4, 5, 6, 7, 8."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({5: -1}, "tree 1, node 5 breaks rule 1 .cover.: .* number -1"),
        ({2: 0}, "tree 1, node 0 breaks rule 3 .size.: tile 0 has 4 nodes, at most 3"),
        ({5: 6}, "tree 1, node 5 breaks rule 4 .leaf.: a leaf shares tile 6; 2 nodes"),
        ({5: 2}, "tree 1, node 5 breaks rule 4 .leaf.: a leaf shares tile 2"),
        ({3: 3}, "tree 1, node 2 breaks rule 5 .maximal.: tile 2 begins below a tile of 2 nodes"),
        ({1: 9, 2: 9}, "tree 1, node 1 breaks rule 5 .maximal."),
    ],
)
def test_each_broken_rule_is_named(change: dict[int, int], message: str) -> None:
    forest = forest_of([LADDER, LADDER])
    tile = np.array(TREE + TREE, np.int32)
    check_tiling(replace(forest, tile=tile, tile_size=3))
    for node, number in change.items():
        tile[9 + node] = number
    with pytest.raises(ScheduleError, match=f"check_tiling: .*{message}.*; let tile_nodes"):
        check_tiling(replace(forest, tile=tile, tile_size=3))


def test_a_tile_in_two_parts_is_refused() -> None:
    below = Split(0, 0.0, Split(1, 0.0, 1.0, 2.0), Split(1, 1.0, 4.0, 5.0))
    forest = forest_of([Split(2, 0.0, below, 3.0)])
    tile = np.array([0, 0, 20, 5, 5, 21, 22, 23, 24], np.int32)
    with pytest.raises(ScheduleError, match=r"tree 0, node 4 breaks rule 6 \(connected\)"):
        check_tiling(replace(forest, tile=tile, tile_size=2))


def test_any_tile_numbers_will_do() -> None:
    tiled = tile_nodes(odd(3), 3)
    rng = np.random.default_rng(0)
    names = rng.permutation(10 * int(tiled.tile.max() + 1)).astype(np.int32)
    renamed = replace(tiled, tile=names[tiled.tile])
    check_tiling(renamed)
    one, other = (make_tile_table(fill_tiles(forest)) for forest in (tiled, renamed))
    assert np.array_equal(one.members, other.members)
    assert np.array_equal(renamed.hop_depth, tiled.hop_depth)


# -- full tiles and their table -------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", WAYS)
def test_full_tiles_have_all_their_nodes_and_change_nothing(how: str, size: int) -> None:
    for seed in range(8):
        tiled = tile_nodes(odd(seed), size, how)
        full = fill_tiles(tiled)
        check_tiling(full)
        key = full.node_tree * full.n_nodes + full.tile
        _, own, counts = np.unique(key, return_inverse=True, return_counts=True)
        assert np.all(counts[own][~full.is_leaf] == size)
        assert np.array_equal(full.depths, tiled.depths)
        assert np.array_equal(costs(full), costs(tiled))
        assert full.hits.sum() == tiled.hits.sum()
        assert_same_predictions(tiled, full)


def test_dummies_are_put_above_leaves_in_level_order() -> None:
    forest = counted(forest_of([Split(0, 0.5, 1.0, 2.0)]), 10, 20)
    full = fill_tiles(tile_nodes(forest, 4))
    value, left, right = full.leaf_value[:, 0], full.left, full.right
    assert full.tile[~full.is_leaf].tolist() == [0] * 4
    one, two, three = left[0], right[0], left[left[0]]
    assert not full.is_leaf[[one, two, three]].any()
    ends = [left[three], right[three], right[one], left[two], right[two]]
    assert value[ends].tolist() == [1, 1, 1, 2, 2]
    assert full.hits[ends].tolist() == [10, 0, 0, 20, 0]
    assert full.node_id[ends].tolist() == [1, 1, 1, 2, 2]


def test_categories_move_with_their_nodes() -> None:
    forest = forest_of(
        [LADDER, LADDER], categories={1: (3,), 11: (4, 5)}, category_rule=CategoryRule("right")
    )
    for grown in (fill_tiles(tile_nodes(forest, 8)), pad_trees(forest)):
        assert grown.n_nodes > forest.n_nodes
        nodes = {
            (int(grown.node_tree[k]), int(grown.node_id[k])): v for k, v in grown.categories.items()
        }
        assert nodes == {(0, 1): (3,), (1, 2): (4, 5)}


def test_an_invalid_tiling_cannot_be_filled() -> None:
    forest = replace(tile_nodes(full_forest(2, 3), 3), tile_size=2)
    with pytest.raises(ScheduleError, match="breaks rule 3"):
        fill_tiles(forest)


def test_the_table_of_the_complete_tile_of_three_is_the_known_one() -> None:
    table = make_tile_table(tile_nodes(full_forest(2, 2), 3))
    assert table.lut.dtype == np.uint8
    assert table.lut.tolist() == [[3, 1, 3, 0, 2, 1, 2, 0]]
    assert table.children.tolist() == [[3, 4, 5, 6], [10, 11, 12, 13]]
    assert table.root.tolist() == [0, 1]


def test_a_forest_without_tiles_has_tiles_of_one_node() -> None:
    table = make_tile_table(forest_of([0.5, LADDER]))
    assert table.lut.tolist() == [[1, 0]]
    assert table.members.tolist() == [[1], [2], [3], [4]]
    assert table.root.tolist() == [-1, 0]


def test_tiles_that_are_not_full_have_no_table() -> None:
    message = "tile at node 2 of tree 0 has 1 nodes, expected 3; call fill_tiles first"
    with pytest.raises(ScheduleError, match=message):
        make_tile_table(replace(forest_of([LADDER]), tile=np.array(TREE, np.int32), tile_size=3))


def walk(forest: Forest, table: TileTable, rows: Any) -> Any:
    """Walk every row through every tree, tile by tile; (R, T) leaves."""
    at = np.repeat(forest.tree_offset[None, :-1], len(rows), axis=0)
    row = np.arange(len(rows))[:, None]
    while not forest.is_leaf[at].all():
        tile = table.tile_of[at]
        nodes = table.members[tile]
        value = rows[row[:, :, None], forest.feature[nodes]]
        left = np.where(
            np.isnan(value), forest.default_left[nodes], value < forest.threshold[nodes]
        )
        outcome = left @ (1 << np.arange(nodes.shape[2]))
        child = table.lut[table.shape[tile], outcome]
        at = np.where(tile < 0, at, table.children[tile, child])
    return at


@pytest.mark.parametrize("size", [1, *SIZES])
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.cases(10, others="long")
def test_walks_by_table_end_where_the_model_ends(how: str, size: int) -> None:
    for seed in range(10):
        forest = fill_tiles(tile_nodes(odd(seed), size, how))
        table = make_tile_table(forest)
        if not len(table.tree):
            continue
        rows = hard_rows(forest, 50, seed)
        assert np.array_equal(walk(forest, table, rows), forest.reference_nodes(rows))
        assert np.all(np.diff(table.tree) >= 0)
        assert np.array_equal(
            np.unique(table.shape, return_index=True)[1].argsort(), np.arange(len(table.lut))
        )


# -- padding --------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["tree", "forest"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_padded_trees_have_their_leaves_at_one_depth(size: int, to: str) -> None:
    for seed in range(10):
        forest = fill_tiles(tile_nodes(odd(seed), size, "probability" if size > 1 else "uniform"))
        padded = pad_trees(forest, to)
        assert np.array_equal(padded.shallowest, padded.depths)
        goal = forest.depths if to == "tree" else np.full_like(forest.depths, forest.depths.max())
        assert np.array_equal(padded.depths, goal)
        assert padded.hits.sum() == forest.hits.sum()
        assert make_tile_table(padded).members.shape[1] == size
        assert_same_predictions(forest, padded)


def test_a_leaf_becomes_a_tile_with_equal_leaves() -> None:
    forest = tile_nodes(forest_of([7.0, Split(0, 0.5, 1.0, 2.0)]), 3)
    padded = pad_trees(fill_tiles(forest), "forest")
    assert padded.leaf_value[:7, 0].tolist() == [0, 0, 0, 7, 7, 7, 7]
    assert np.diff(padded.tree_offset).tolist() == [7, 7]
    assert padded.tile[:3].tolist() == [0, 0, 0]


def test_padding_that_would_explode_is_refused() -> None:
    chain: Any = 0.0
    for _ in range(30):
        chain = Split(0, 0.0, chain, 1.0)
    with pytest.raises(BuildError, match=r"tree 1 alone 2\.15e\+09, at most 33554432"):
        pad_trees(forest_of([0.5, chain]))


def test_padding_knows_two_goals() -> None:
    with pytest.raises(ScheduleError, match="'all' is unknown; use 'tree' or 'forest'"):
        pad_trees(odd(0), "all")


# -- sorting and what profiles say ----------------------------------------------------------------


@pytest.mark.parametrize("by", ["depth", "likely"])
def test_sorting_stays_in_the_class_and_keeps_values(by: str) -> None:
    for seed in range(12):
        forest = tile_nodes(arrange_by_round(odd(seed)), 2, "probability")
        trees = sort_trees(replace(forest, tree_id=np.arange(forest.n_trees)), by)
        assert np.array_equal(trees.tree_class, forest.tree_class)
        assert np.array_equal(forest.tree_class[trees.tree_id], forest.tree_class)
        likely = find_peel_depths(trees) if by == "likely" else trees.depths
        late = (likely == trees.depths) & (by == "likely")
        for c in range(forest.n_outputs):
            own = np.flatnonzero(trees.tree_class == c)
            keys = [(late[t], likely[t], trees.tree_id[t]) for t in own]
            assert keys == sorted(keys)
        rows = hard_rows(forest, 20)
        values = forest.predict_reference(rows, "per_tree")[:, trees.tree_id]
        assert np.array_equal(trees.predict_reference(rows, "per_tree"), values)


def test_sorting_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ScheduleError, match="'size' is unknown; use 'depth' or 'likely'"):
        sort_trees(odd(0), "size")
    with pytest.raises(ScheduleError, match="sort_trees: argument 'by': 'likely' needs a leaf"):
        sort_trees(odd_forest(0), "likely")


def test_nine_rows_in_ten_decide_the_peel_depth() -> None:
    trees = [Split(0, 0.0, 1.0, Split(1, 0.0, 2.0, 3.0)), 0.5, Split(0, 0.0, 1.0, 2.0)]
    for first, expected in ((90, 1), (89, 2)):
        forest = counted(forest_of(trees), first, 100 - first, 0, 100, 0, 0)
        assert find_peel_depths(forest).tolist() == [expected, 0, 1]


def test_expected_hops_are_those_of_the_rows() -> None:
    forest = odd_forest(5)
    rows = typical_rows(forest, 200)
    ids = forest.predict_reference(rows, "apply")
    tiled = tile_nodes(Profile.of_leaves(forest, ids).onto(forest), 3, "optimal")
    visited = tiled.hop_depth[tiled.reference_nodes(rows)]
    assert count_mean_hops(tiled) == pytest.approx(visited.mean())


GATES = {
    "abalone": (617, 225),
    "airline": (10, 8),
    "airline-ohe": (987, 955),
    "covtype": (419, 156),
    "epsilon": (0, 0),
    "higgs": (13, 4),
    "letters": (8, 0),
    "year": (1, 0),
}
"""Trees in which 10 %, and 5 %, of the leaves get more than 90 % of the rows."""


@pytest.mark.parametrize("name", GATES)
@pytest.mark.cases(4, others="long")
def test_the_published_profiles_have_the_known_skew(name: str) -> None:
    profile = Profile.load(shared_model(f"{name}.profile.csv"))
    found = [are_skewed(profile.hits, profile.leaf_counts, share).sum() for share in (0.10, 0.05)]
    assert tuple(found) == GATES[name]


def test_a_forest_that_is_as_it_should_be_is_returned_itself() -> None:
    full = fill_tiles(tile_nodes(odd(3), 3))
    assert fill_tiles(full) is full
    vectors = with_vectors(odd_forest(3), 2)
    assert arrange_by_round(vectors) is vectors
    assert arrange_by_round(arrange_by_round(odd_forest(4))).n_trees % odd_forest(4).n_outputs == 0


SHAPES = (1, 1, 2, 5, 14, 42, 132, 429, 1430)
"""Binary trees of 0 to 8 nodes: the sum of those of the left side times those of the right one."""


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_a_table_has_a_row_for_each_shape_that_occurs(size: int) -> None:
    drawn = make_tile_table(fill_tiles(tile_nodes(drawn_forest(60, 9, seed=size), size)))
    assert sorted(set(drawn.shape.tolist())) == list(range(len(drawn.lut)))
    assert 1 < len(drawn.lut) <= SHAPES[size]
    assert drawn.lut.shape[1] == 1 << size and drawn.lut.max() == size
    one = make_tile_table(fill_tiles(tile_nodes(full_forest(3, 3), 7)))
    assert len(one.lut) == 1  # of 429
