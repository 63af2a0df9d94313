"""Features of the specification that no other test is about, see `test_feature_list.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of, full_forest
from tvm_forest.errors import BuildError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rewrites.padding import fill_tiles
from tvm_forest.forest.rewrites.tile_table import make_tile_table
from tvm_forest.forest.rewrites.tiling import tile_nodes
from tvm_forest.layouts import protocol
from tvm_forest.layouts.laying_out import pack
from tvm_forest.schedule_prims import Schedule, recipes

SHAPES = (1, 1, 2, 5, 14, 42, 132, 429, 1430)
"""Binary trees of 0 to 8 nodes: the sum of those of the left side times those of the right one."""


def test_a_schedule_is_drawn_as_a_graph() -> None:
    sch = Schedule(4).tile("batch", "b0", "b1", 8).parallel("b0").interleave("tree", 2)
    assert sch.to_dot().splitlines() == [
        "digraph schedule {",
        "  node [shape=box, fontname=monospace];",
        r'  "b0" [label="b0 in (0, n, 8)\nbatch\nparallel"];',
        '  "b0" -> "b1";',
        r'  "b1" [label="b1 in (0, 8, 1)\nbatch\nguard b0 + b1 < n"];',
        '  "b1" -> "tree";',
        r'  "tree" [label="tree in (0, 4, 1)\ntree\ninterleave 2"];',
        "}",
    ]


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_a_table_has_a_row_for_each_shape_that_occurs(size: int) -> None:
    drawn = make_tile_table(fill_tiles(tile_nodes(drawn_forest(60, 9, seed=size), size)))
    assert sorted(set(drawn.shape.tolist())) == list(range(len(drawn.lut)))
    assert 1 < len(drawn.lut) <= SHAPES[size]
    assert drawn.lut.shape[1] == 1 << size and drawn.lut.max() == size
    one = make_tile_table(fill_tiles(tile_nodes(full_forest(3, 3), 7)))
    assert len(one.lut) == 1  # of 429


def test_a_leaf_of_the_sparse_layout_is_its_own_child() -> None:
    forest = forest_of([Split(0, 0.5, 1.0, Split(1, 0.25, 2.0, 3.0)), 4.0])
    _, arrays = protocol.find("sparse").pack(forest)
    nodes, offset = arrays["nodes"], arrays["offset"]
    link, slot = nodes[:, 2].astype(np.int64), np.arange(6) - np.repeat(offset, (5, 1))
    inner = link & 1 > 0
    assert inner.tolist() == [True, False, True, False, False, False]
    assert (link[inner] >> 1).tolist() == [1, 3]  # the left child; the right one is behind it
    for goes_right in (0, 1):  # whatever the row says
        assert np.array_equal((link + goes_right >> 1)[~inner], slot[~inner])


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_groups_of_trees_have_trees_of_all_depths(groups: int) -> None:
    start = Schedule(30, depths=(2,) * 10 + (4,) * 10 + (6,) * 10)
    sch = recipes.treebeard_tree_at_a_time(start, cores=4, walks=2, tree_groups=groups)
    assert sch["group"].parallel and sch["group"].count == groups and not sch.keeps_order
    hops = [sch[name].hops for name in sch.copies("tree") if name != "group"]
    assert hops == [2, 4, 6]
    visited = np.concatenate([sch.trees_of(leaf.name) for leaf in sch.leaves()])
    assert sorted(visited.tolist()) == list(range(30))


@pytest.mark.parametrize("width", [4, 16])
def test_threads_share_the_rows_of_the_final_reduction(width: int) -> None:
    forest = drawn_forest(24, 4, seed=8, base=(0.5, -1.0))
    sch = recipes.tree_parallel(tvm_forest.new_schedule(forest), 3, width)
    text = tvm_forest.lower(forest, sch).after["predict_parallel"].script()
    assert text.count("T.parallel") == 2  # walks, sums
    predictor = tvm_forest.build(forest, schedule=sch, exact=False)
    for n in (1, 511, 513, 1100):
        rows = hard_rows(forest, n, seed=n)
        leaves = forest.predict_reference(rows, "per_tree").reshape(n, 12, 2)
        margin = np.repeat(forest.base_score[None], n, axis=0)
        for part in np.split(leaves, 3, axis=1):
            total = np.zeros_like(margin)
            for tree in range(4):
                total += part[:, tree]
            margin += total
        assert np.array_equal(predictor.predict_margin(rows, n_jobs=2), margin), n


# -- types of fields by choice --------------------------------------------------------------------

WIDE = drawn_forest(7, 4, seed=8, n_features=300)
NARROW = drawn_forest(7, 4, seed=8, n_features=20)


def typed(forest: Forest, layout: str, tiles: int, **types: Any) -> Schedule:
    sch = tvm_forest.new_schedule(forest)
    sch = sch.tile_nodes(tiles) if tiles > 1 else sch
    return sch.represent_as(layout, **types)


@pytest.mark.parametrize(
    ("features", "layout", "tiles", "types", "width"),
    [
        (20, "packed", 1, {"feature": "uint8"}, 1),
        (20, "packed", 1, {"feature": "uint16"}, 1),
        (300, "packed", 1, {"feature": "uint16"}, 1),
        (20, "sparse", 4, {}, 8),  # thresholds, a word of features, shape, child
        (20, "sparse", 4, {"feature": "uint32"}, 16),
        (300, "sparse", 4, {"feature": "uint16"}, 8),
        (20, "sparse", 4, {"threshold": "float64", "feature": "uint16"}, 8),
        (20, "array", 8, {"threshold": "float64"}, 16),
        (20, "array", 8, {"feature": "uint32"}, 32),
    ],
)
def test_types_by_choice_give_the_bits_of_the_model(
    features: int, layout: str, tiles: int, types: dict[str, str], width: int
) -> None:
    forest = WIDE if features == 300 else NARROW
    sch = typed(forest, layout, tiles, **types)
    assert Schedule.from_json(sch.to_json()) == sch
    assert not types or sch != typed(forest, layout, tiles)
    arrays = pack(forest, sch).arrays
    if tiles > 1:
        assert arrays["tiles"].shape[1] == width
        assert (arrays["tiles"].itemsize == 8) == (types.get("threshold") == "float64")
    predictor = tvm_forest.build(forest, schedule={1: sch, 8: typed(forest, layout, tiles)})
    for n in (1, 7, 33):
        rows = hard_rows(forest, n, seed=n)
        assert np.array_equal(predictor.predict_margin(rows), forest.predict_reference(rows)[:, 0])


@pytest.mark.parametrize(
    ("layout", "types"),
    [
        ("sparse", {"threshold": "float64"}),
        ("sparse", {"feature": "uint32"}),
        ("array", {"threshold": "float64", "feature": "uint32"}),
    ],
)
def test_threads_of_a_gpu_read_types_by_choice(layout: str, types: dict[str, str]) -> None:
    sch = recipes.tahoe_direct(typed(NARROW, layout, 4, **types), rows=8)
    predictor = tvm_forest.build(NARROW, "simt", sch)
    rows = hard_rows(NARROW, 33)
    assert np.array_equal(predictor.predict_margin(rows), NARROW.predict_reference(rows)[:, 0])


def test_a_type_is_shown_beside_the_layout() -> None:
    sch = typed(NARROW, "sparse", 4, feature="uint16", threshold="float64")
    assert "represent as sparse: feature uint16, threshold float64" in str(sch)
    assert "represent as array: feature uint32" in str(typed(NARROW, "array", 4, feature="uint32"))


FIRST_WIDE = int(np.argmax(WIDE.feature > 255))
DOUBLE = forest_of([Split(1, 0.1, 1.0, Split(0, 0.5, 2.0, 3.0))], dtype="float64")
OVERFLOWS = {
    "a feature": (
        typed(WIDE, "packed", 1, feature="uint8"),
        WIDE,
        f"represent_as: argument 'feature': {WIDE.name_first(WIDE.feature > 255)}: feature "
        f"{WIDE.feature[FIRST_WIDE]} does not fit 'uint8'; use a wider type, or leave it out",
    ),
    "a feature of a tile": (
        typed(WIDE, "sparse", 4, feature="uint8"),
        WIDE,
        f"represent_as: argument 'feature': tree {WIDE.node_tree[FIRST_WIDE]}, node ",
    ),
    "a threshold": (
        typed(DOUBLE, "sparse", 2, threshold="float32"),
        DOUBLE,
        "represent_as: argument 'threshold': tree 0, node 0: threshold 0.1 does not fit 'float32'",
    ),
    "a child": (
        typed(full_forest(1, 16), "packed", 1, feature="uint16"),
        full_forest(1, 16),
        "represent_as: argument 'feature': tree 0, node ",
    ),
    "features that fill no word": (
        typed(NARROW, "sparse", 2, feature="uint8"),
        NARROW,
        "represent_as: argument 'feature': 2 numbers of 'uint8' do not fill the words of a tile",
    ),
    "a layout without this choice": (
        typed(NARROW, "packed", 1, threshold="float64"),
        NARROW,
        "represent_as: argument 'threshold': layout 'packed' holds it in a type of its own, not as "
        "'float64'; leave it out",
    ),
    "other types of the field": (
        typed(NARROW, "packed", 1, feature="uint32"),
        NARROW,
        "represent_as: argument 'feature': layout 'packed' holds it as uint8 or uint16, not as",
    ),
    "a layout without tiles": (
        typed(NARROW, "sparse", 1, feature="uint8"),
        NARROW,
        "represent_as: argument 'feature': layout 'sparse' has no choice without tiles; leave it",
    ),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_a_value_that_does_not_fit_its_type_is_named(name: str) -> None:
    sch, forest, message = OVERFLOWS[name]
    with pytest.raises(BuildError) as caught:
        tvm_forest.build(forest, schedule=sch)
    assert str(caught.value).startswith(message)


def test_a_type_that_there_is_not_is_refused() -> None:
    with pytest.raises(ScheduleError, match="argument 'feature': 'int8' is unknown; use uint8"):
        Schedule(3).represent_as("packed", feature="int8")
