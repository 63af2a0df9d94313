"""What holds for every forest, any rows and any schedule; a failure is shown at its smallest.

Schedules are built and run by `test_random_schedules.py`; what a schedule says about itself is in
`test_language.py`, both in `tests/schedule_prims`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import tvm_forest
from schedules import in_blocks
from strategies import FEATURES, examples, forests, rows_of, seen_forests
from tvm_forest.errors import ForestError
from tvm_forest.forest import LEAF, Forest
from tvm_forest.forest.fields import from_fields, to_fields
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.forest.rewrites.narrowing import narrow_thresholds
from tvm_forest.forest.rewrites.ordering import (
    arrange_by_round,
    order_by_level,
    order_depth_first,
    sort_trees,
)
from tvm_forest.forest.rewrites.padding import pad_trees
from tvm_forest.forest.rewrites.rebuild import take_nodes
from tvm_forest.forest.rewrites.tiling import WAYS, tile_nodes
from tvm_forest.layouts import SIMDIZED
from tvm_forest.predictor.inputs import to_rows
from tvm_forest.system.archive import Archive, pack, unpack

pytestmark = pytest.mark.optimised

NAMES = [f"c{k}" for k in range(FEATURES)]
KINDS: dict[str, Callable[[Any], Any]] = {
    "Fortran order": np.asfortranarray,
    "backwards in memory": lambda rows: rows[::-1, ::-1].copy()[::-1, ::-1],
    "wider numbers": lambda rows: rows.astype(np.float64),
    "the other order of bytes": lambda rows: rows.astype(rows.dtype.newbyteorder()),
    "lists": lambda rows: rows.tolist(),
    "pandas": lambda rows: pd.DataFrame(rows, columns=NAMES),
    "polars": lambda rows: pl.DataFrame(rows, schema=NAMES),
    "a table": lambda rows: pa.table(dict(zip(NAMES, rows.T.copy(), strict=True))),
    "a table in chunks": lambda rows: pa.concat_tables(
        [pa.table(dict(zip(NAMES, part.T.copy(), strict=True))) for part in (rows[:2], rows[2:])]
    ),
}


def plain_walk(forest: Forest, tree: int, row: Any) -> int:
    """Return the leaf of one row in one tree, node by node in plain Python."""
    begin = int(forest.tree_offset[tree])
    node = begin
    while forest.left[node] != LEAF:
        value, threshold = row[forest.feature[node]], forest.threshold[node]
        left = value < threshold if forest.comparison == "<" else value <= threshold
        left = forest.default_left[node] if np.isnan(value) else left
        node = begin + int(forest.left[node] if left else forest.right[node])
    return node


@given(data=st.data())
@examples(60)
def test_the_reference_walk_is_that_of_one_row_after_the_other(data: Any) -> None:
    forest = data.draw(forests(dtype=data.draw(st.sampled_from(["float32", "float64"]))))
    rows = data.draw(rows_of(forest))
    ends = forest.reference_nodes(rows)
    kind = np.dtype(forest.sum_dtype).type
    for at, row in enumerate(rows):
        sums = [kind(x) for x in forest.base_score]
        for tree in range(forest.n_trees):
            end = plain_walk(forest, tree, row)
            assert ends[at, tree] == end
            sums[forest.tree_class[tree]] += forest.leaf_value[end, 0]
        assert np.array(sums, kind).tobytes() == forest.predict_reference(rows)[at].tobytes()


REWRITES: dict[str, Callable[[Forest], Forest]] = {
    "canonical form": canonicalize,
    "by round": arrange_by_round,
    "padded trees": lambda forest: pad_trees(forest, "tree"),
    "padded forest": lambda forest: pad_trees(forest, "forest"),
    **{f"tiles, {how}": lambda forest, how=how: tile_nodes(forest, 3, how) for how in WAYS},
}


@pytest.mark.parametrize("name", REWRITES)
@given(data=st.data())
@examples(8)
def test_a_rewrite_keeps_every_bit(name: str, data: Any) -> None:
    forest = data.draw(seen_forests(depth=4, n_trees=6))
    rows = data.draw(rows_of(forest, most=6))
    try:
        new = REWRITES[name](forest)
    except ForestError as error:  # some tiles need to know how often leaves are reached
        assert forest.hits is None and "profile" in str(error)
        return
    assert new.predict_reference(rows).tobytes() == forest.predict_reference(rows).tobytes()
    before, after = (x.predict_reference(rows, "apply") for x in (forest, new))
    places = [np.flatnonzero(new.tree_id == tree)[0] for tree in forest.tree_id]
    assert np.array_equal(after[:, places], before)


@given(data=st.data())
@examples(40)
def test_narrow_thresholds_send_rows_where_wide_ones_do(data: Any) -> None:
    forest = replace(data.draw(forests(dtype="float64")), row_dtype="float32")
    narrow, rows = narrow_thresholds(forest), data.draw(rows_of(forest))
    assert narrow.threshold.dtype == np.float32
    assert np.array_equal(narrow.reference_nodes(rows), forest.reference_nodes(rows))
    wide = replace(forest, threshold=narrow.threshold.astype(np.float64))
    assert narrow_thresholds(wide).threshold.tobytes() == narrow.threshold.tobytes()


@given(forest=forests())
@examples(20)
def test_sorted_trees_are_the_same_trees(forest: Forest) -> None:
    new = sort_trees(arrange_by_round(forest), "depth")
    for output in range(forest.n_outputs):
        depths = new.depths[new.tree_class == output]
        assert (np.diff(depths) >= 0).all() or (np.diff(depths) <= 0).all()
    kept = new.tree_id[new.tree_id >= 0]
    assert sorted(kept.tolist()) == sorted(forest.tree_id.tolist())


@given(forest=forests())
@examples(30)
def test_nodes_are_numbered_by_level_or_with_the_larger_side_next(forest: Forest) -> None:
    below = dict(zip(range(forest.n_nodes), subtree_sizes(forest), strict=True))
    for number in (order_by_level, order_depth_first):
        order, place = number(forest)
        assert np.array_equal(place[order], np.arange(forest.n_nodes))
        assert np.array_equal(place[forest.tree_offset[:-1]], forest.tree_offset[:-1])
        for node in np.flatnonzero(~forest.is_leaf):
            base = forest.tree_offset[forest.node_tree[node]]
            left, right = base + forest.left[node], base + forest.right[node]
            assert place[right] == place[left] + 1
            if number is order_by_level:
                continue
            large, small = (left, right) if below[left] >= below[right] else (right, left)
            child = next((x for x in (large, small) if not forest.is_leaf[x]), None)
            if child is not None:  # its pair of children comes right behind
                assert place[base + forest.left[child]] == place[left] + 2
    depths = forest.node_depth[order_by_level(forest)[0]]
    same_tree = np.diff(forest.node_tree[order_by_level(forest)[0]]) == 0
    assert (np.diff(depths)[same_tree] >= 0).all()
    order, place = order_by_level(forest)
    assert forest.is_level_ordered == np.array_equal(order, np.arange(forest.n_nodes))
    sorted_forest = take_nodes(forest, order, **renumbered_links(forest, order, place))
    assert sorted_forest.is_level_ordered
    assert np.array_equal(order_by_level(sorted_forest)[0], np.arange(forest.n_nodes))


def renumbered_links(forest: Forest, order: Any, place: Any) -> dict[str, Any]:
    """Return the children by their new places, within each tree."""
    base = forest.tree_offset[forest.node_tree]
    children = (np.where(forest.is_leaf, 0, x) for x in (forest.left, forest.right))
    left, right = (np.where(forest.is_leaf, LEAF, place[base + x] - base) for x in children)
    return {"left": left[order].astype(np.int32), "right": right[order].astype(np.int32)}


def subtree_sizes(forest: Forest) -> list[int]:
    """Return the inner nodes at and below each node."""
    sizes = [0] * forest.n_nodes
    for node in sorted(range(forest.n_nodes), key=lambda x: -forest.node_depth[x]):
        if not forest.is_leaf[node]:
            base = int(forest.tree_offset[forest.node_tree[node]])
            sizes[node] = 1 + sum(sizes[base + int(x[node])] for x in (forest.left, forest.right))
    return sizes


@given(forest=seen_forests())
@examples(30)
def test_a_forest_survives_its_file(forest: Forest) -> None:
    values, arrays = to_fields(forest)
    found = unpack(pack(Archive({"model": values}, {f"{k}.npy": v for k, v in arrays.items()})), "")
    again = from_fields(
        found.manifest["model"], {name.removesuffix(".npy"): x for name, x in found.parts.items()}
    )
    assert again.signature == forest.signature
    for name in ("threshold", "leaf_value", "base_score", "default_left", "node_id"):
        assert getattr(again, name).tobytes() == getattr(forest, name).tobytes(), name
    assert (again.hits is None) == (forest.hits is None)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@examples(8)
def test_every_kind_of_rows_is_the_same_matrix(kind: str, data: Any) -> None:
    forest = data.draw(forests(depth=2, n_trees=2))
    rows = data.draw(rows_of(forest))
    if kind == "lists" and not len(rows):
        return  # an empty list does not say how wide it is
    assert to_rows(KINDS[kind](rows), forest).tobytes() == rows.tobytes()


@given(data=st.data())
@examples(20)
def test_sparse_rows_are_the_matrix_of_what_they_leave_out(data: Any) -> None:
    forest = data.draw(forests(depth=2, n_trees=2))
    rows = data.draw(rows_of(forest))
    form = data.draw(st.sampled_from(["csr", "csc", "coo"]))
    found = to_rows(sp.coo_array(rows).asformat(form), forest)
    assert np.array_equal(found, rows, equal_nan=True)


@pytest.mark.long
@pytest.mark.parametrize("layout", ["array", "packed", "ranked", "reorg", "sparse", *SIMDIZED])
@given(data=st.data())
@examples(3)
def test_every_layout_gives_back_the_model(layout: str, data: Any) -> None:
    forest = data.draw(forests(depth=4, n_trees=6))
    rows = data.draw(rows_of(forest))
    start = tvm_forest.new_schedule(forest)
    sch = in_blocks(forest, layout, 64) if layout in SIMDIZED else start.represent_as(layout)
    predictor = tvm_forest.build(forest, schedule=sch)
    for call, output in (("predict_margin", "margin"), ("predict_per_tree", "per_tree")):
        expected = forest.predict_reference(rows, output)
        found = getattr(predictor, call)(rows).reshape(expected.shape)
        assert found.tobytes() == expected.tobytes(), call
    assert np.array_equal(predictor.apply(rows), forest.predict_reference(rows, "apply"))


@pytest.mark.long
@given(data=st.data())
@examples(3)
def test_a_saved_predictor_predicts_the_same(data: Any) -> None:
    forest = data.draw(forests(depth=3, n_trees=5))
    rows = data.draw(rows_of(forest))
    file = io.BytesIO()
    tvm_forest.build(forest).save(file)
    file.seek(0)
    found = tvm_forest.load_predictor(file).predict_margin(rows)
    assert found.tobytes() == forest.predict_reference(rows).reshape(found.shape).tobytes()
