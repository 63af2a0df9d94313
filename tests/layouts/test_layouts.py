"""Every layout gives the bits of the model under every kind of walk, or refuses the model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of, full_forest
from models import MODELS
from schedules import OUTPUTS, check_results, in_blocks, odd_forest
from tvm_forest import layouts
from tvm_forest.errors import BuildError, ScheduleError
from tvm_forest.forest import LEAF, Forest
from tvm_forest.forest.rewrites.narrowing import narrow_thresholds
from tvm_forest.forest.rewrites.ordering import order_depth_first
from tvm_forest.forest.rewrites.tiling import tile_nodes
from tvm_forest.layouts import SIMDIZED, protocol
from tvm_forest.layouts import complete_trees as complete
from tvm_forest.layouts.protocol import OWN
from tvm_forest.schedule_prims import Schedule

LAYOUTS = ("array", "packed", "ranked", "reorg", "sparse")
SIZES = (0, 1, 7, 33)

FOLDER = Path(layouts.__file__).parent
FILES = {f"{layouts.__name__}.{file}" for file in OWN.values()}


def rows_inside(sch: Schedule, size: int) -> Schedule:
    """Make blocks of rows the innermost loop."""
    return sch.tile("batch", "b0", "b1", size).reorder("b0", *sch.names()[1:], "b1")


WALKS: dict[str, Callable[[Schedule], Schedule]] = {
    "loop": lambda sch: sch,
    "straight": lambda sch: sch.unroll_walk("tree"),
    "peel 1": lambda sch: sch.peel_walk("tree", 1),
    "3 rows": lambda sch: rows_inside(sch, 8).interleave("b1", 3),
    "3 trees": lambda sch: sch.interleave("tree", 3),
    "4 lanes": lambda sch: rows_inside(sch, 4).simdize("b1"),
}


def check_layout(forest: Forest, layout: str, walk: str, outputs: Any = ("margin",)) -> None:
    sch = WALKS[walk](tvm_forest.new_schedule(forest).represent_as(layout))
    assert sch.keeps_order
    check_results(forest, sch, SIZES, jobs=(1,), outputs=outputs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_small_forest_with_missing_values_is_computed(layout: str) -> None:
    forest = forest_of([Split(0, 0.5, 1.0, Split(1, 0.1, 3.0, 4.0, True)), 0.25], base=[0.5])
    check_layout(forest, layout, "3 trees")


@pytest.mark.parametrize("layout", [*LAYOUTS, *SIMDIZED])
@pytest.mark.cases(2)
def test_infinite_thresholds_are_compared_in_every_layout(layout: str) -> None:
    """LightGBM splits at inf where it asks whether a value is missing."""
    dtype = "float32" if layout == "packed" else "float64"
    forest = drawn_forest(6, 4, seed=5, dtype=dtype, comparison="<=")
    far = np.array([np.inf, -np.inf, np.finfo(dtype).max, np.finfo(dtype).min, 0.5], dtype)
    forest = replace(forest, threshold=np.resize(far, forest.n_nodes))
    if layout in SIMDIZED:
        check_results(
            forest,
            in_blocks(forest, layout, 16 if layout == "levels" else 64),
            (7, 65),
            jobs=(1,),
            outputs=("margin",),
        )
    else:
        check_layout(forest, layout, "4 lanes")


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.cases(6)
def test_odd_forests_have_the_bits_of_the_model(walk: str, layout: str) -> None:
    """Each case takes the next seed, so trees of all kinds meet all layouts."""
    at = 4 * list(WALKS).index(walk) + LAYOUTS.index(layout)
    check_layout(odd_forest(at), layout, walk, OUTPUTS)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["packed", "ranked", "reorg"])
@pytest.mark.parametrize(
    "walk", ["3 rows", *(pytest.param(x, marks=pytest.mark.long) for x in WALKS if x != "3 rows")]
)
@pytest.mark.cases(1, others="long")
def test_a_trained_model_has_its_bits(walk: str, layout: str) -> None:
    check_layout(tvm_forest.load(MODELS["missing_values_classes"]()), layout, walk)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_trees_are_prefetched(layout: str) -> None:
    forest = drawn_forest(9, 5, seed=3)
    sch = tvm_forest.new_schedule(forest).represent_as(layout)
    sch = sch.tile("tree", "t0", "t1", 2).reorder("t0", "batch", "t1").cache("t0", "prefetch")
    check_results(forest, sch, SIZES, jobs=(1,), outputs=("margin",))


@pytest.mark.slow
def test_reorg_holds_thresholds_of_64_bits() -> None:
    check_layout(drawn_forest(9, 5, dtype="float64"), "reorg", "loop")


@pytest.mark.slow
def test_a_wide_packed_feature_is_read_whole() -> None:
    trees: list[Any] = [Split(f, 0.0, f, -f, f == 299) for f in (0, 1, 255, 256, 299)]
    check_layout(forest_of(trees, n_features=300), "packed", "loop")


PACK_ALL = """
import sys
import numpy as np
from dataclasses import replace
from forests import drawn_forest
from tvm_forest.forest.rewrites.tiling import tile_nodes
from tvm_forest.layouts.protocol import LAYOUTS as REGISTERED

forest = drawn_forest(4, 3, seed=1)
forest = replace(forest, hits=np.ones(forest.n_nodes, np.int64))
for name, layout in sorted(REGISTERED.items()):
    sizes = [size for size in (1, 4) if size in layout.tile_sizes]
    for plain in (forest if size == 1 else tile_nodes(forest, size) for size in sizes):
        assert layout.unfit(plain) is None
        rep, arrays = layout.pack(plain)
        specs = {*rep.value_buffers(), *rep.id_buffers()}
        assert {x.name: (x.dtype, x.shape) for x in specs} == {
            name: (str(x.dtype), x.shape) for name, x in arrays.items()
        }
    print(name)
assert not {"tvm", "tvm_ffi"} & set(sys.modules)
"""


def test_every_layout_packs_without_tvm_and_names_all_its_arrays() -> None:
    command = [sys.executable, "-c", PACK_ALL]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    others = ("banked", "octets", "pieces", "sparse_peeled")
    assert done.stdout.split() == sorted([*LAYOUTS, *SIMDIZED, *others])


def test_the_roles_of_layouts_are_what_their_files_say() -> None:
    own = {name: protocol.find(name) for name in OWN}
    assert own.keys() == {name for name, x in protocol.LAYOUTS.items() if x.__module__ in FILES}
    assert layouts.TILED == tuple(x for x in layouts.BY_HOPS if len(own[x].tile_sizes) > 1)
    assert set(layouts.COPIED) == {name for name, x in own.items() if x.copied}
    walks = {**SIMDIZED, **layouts.SIMDIZED_TREES}
    assert walks == {name: x.walks for name, x in own.items() if x.walks != "hops"}


def test_every_file_that_registers_layouts_is_named() -> None:
    sources = {file: file.read_text("utf-8") for file in FOLDER.rglob("*.py")}
    found = {file for file, text in sources.items() if "\n@register" in text}
    assert {file.relative_to(FOLDER).parts[0].partition(".")[0] for file in found} == {
        *OWN.values()
    }


TAKES_A_PLACE = """
from tvm_forest.layouts.protocol import LAYOUTS, find, register
assert "ranked" in LAYOUTS

@register
class Mine(find("packed")):
    name = "ranked"

import tvm_forest.layouts.ranked
assert find("ranked") is Mine
del LAYOUTS["ranked"]
assert "ranked" not in LAYOUTS
"""


def test_a_layout_takes_the_place_of_one_that_is_imported_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TAKES_A_PLACE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("tiles", [1, 8])
def test_a_layout_says_why_it_does_not_hold_a_forest(tiles: int) -> None:
    forest = tile_nodes(chain(100), tiles) if tiles > 1 else chain(100)
    held = [x for x in ("array", "sparse") if protocol.find(x).unfit(forest) is None]
    assert held == ["sparse"]


# -- what is in the arrays ------------------------------------------------------------------------


def packed(forest: Forest) -> tuple[Any, Any]:
    rep, arrays = protocol.find("packed").pack(forest)
    return rep, arrays["nodes"]


def test_a_packed_node_is_one_word() -> None:
    forest = forest_of([Split(2, 0.5, -1.0, Split(1, 2.0, 3.0, 4.0))])
    rep, words = packed(forest)
    numbers = (words >> 32).astype(np.int32).view(np.float32)
    assert (rep.feature_bits, rep.any_default_left) == (8, False)
    assert numbers.tolist() == [0.5, -1.0, 2.0, 3.0, 4.0]
    assert (words & 255).tolist() == [2, 0, 1, 0, 0]
    assert (words >> 8 & 1).tolist() == [1, 0, 1, 0, 0]
    assert ((words & 0xFFFFFFFF) >> 9).tolist() == [1, 1, 3, 3, 4]


def test_a_packed_flag_for_missing_values_is_made_room_for() -> None:
    rep, words = packed(forest_of([Split(2, 0.5, -1.0, 1.0, True)], n_features=300))
    assert (rep.feature_bits, rep.inner_bit) == (9, 10)
    assert (words >> 9 & 1).tolist() == [1, 0, 0]


def test_reorg_puts_the_trees_side_by_side() -> None:
    forest = forest_of([Split(0, 0.5, 1.0, 2.0), 7.0, Split(1, 0.25, 3.0, 4.0)])
    _, arrays = protocol.find("reorg").pack(forest)
    assert arrays["threshold"].tolist() == [0.5, 7.0, 0.25, 1.0, 0.0, 3.0, 2.0, 0.0, 4.0]
    assert arrays["feature"].tolist() == [0, 0, 1] + 6 * [0]
    assert arrays["depth"].tolist() == [1, 0, 1]


def test_a_leaf_above_the_last_level_is_copied_below() -> None:
    forest = forest_of([Split(2, 0.5, 9.0, Split(1, 2.0, 3.0, 4.0))])
    number, _, leaf_id = complete.fill_slots(forest, np.array([0]), 1, 7)
    assert number.tolist() == [0.5, 0.0, 2.0, 9.0, 9.0, 3.0, 4.0]
    assert leaf_id.tolist() == [-1, -1, -1, 1, 1, 3, 4]


# -- what does not fit ----------------------------------------------------------------------------


def chain(depth: int) -> Forest:
    """A tree whose right children are leaves, numbered down the chain."""
    inner = np.arange(2 * depth + 1) % 2 == 0
    inner[-1] = False
    count = np.arange(len(inner), dtype=np.int32)
    stump = forest_of([0.0])
    number = np.zeros(len(inner), np.float32)
    return replace(
        stump,
        tree_offset=np.array([0, len(inner)]),
        feature=np.where(inner, 0, LEAF).astype(np.int32),
        threshold=number,
        left=np.where(inner, count + 2, LEAF).astype(np.int32),
        right=np.where(inner, count + 1, LEAF).astype(np.int32),
        default_left=np.zeros(len(inner), bool),
        leaf_value=number.reshape(-1, 1),
        node_id=count,
    )


def test_a_packed_child_that_does_not_fit_is_refused_with_its_node() -> None:
    """20 bits of features and the flag of inner nodes leave 11."""
    packed(replace(chain(1023), n_features=1 << 20))
    message = (
        "represent_as: layout 'packed': tree 0, node 2047: child 2048 does not fit the 11 bits "
        "that 1048576 features leave; use represent_as('sparse')"
    )
    with pytest.raises(BuildError) as error:
        packed(replace(chain(1024), n_features=1 << 20))
    assert str(error.value) == message


def test_features_that_leave_no_room_are_refused() -> None:
    with pytest.raises(BuildError, match="child 1 does not fit the 0 bits that 2147483647 feat"):
        packed(forest_of([Split(0, 0.5, 1.0, 2.0, True)], n_features=2**31 - 1))


def test_packed_rows_of_64_bits_are_refused() -> None:
    with pytest.raises(BuildError, match=r"rows float64.*use represent_as\('sparse'\)"):
        packed(drawn_forest(2, 2, dtype="float64"))


@pytest.mark.parametrize("comparison", ["<", "<="])
def test_packed_models_of_64_bits_serve_rows_of_32(comparison: str) -> None:
    forest = drawn_forest(
        9, 4, seed=2, dtype="float64", row_dtype="float32", comparison=comparison, base=(0.1,) * 3
    )
    check_layout(forest, "packed", "3 trees")


@pytest.mark.parametrize("comparison", ["<", "<="])
def test_narrow_thresholds_send_rows_where_wide_ones_do(comparison: str) -> None:
    top, least = float(np.finfo(np.float32).max), 2.0**-149
    cuts = [0.0, -0.0, 0.1, -0.1, 1.0, least, 0.3 * least, -0.3 * least, 1e300, -1e300]
    cuts += [top, -top, np.nextafter(top, np.inf), np.inf, -np.inf, 1 + 2.0**-30, 1 - 2.0**-30]
    cuts += [1 / 3, 0.5, 1e-42, 1e-60, -1e-60]
    trees = [Split(0, cut, 1.0, 2.0) for cut in cuts]
    forest = forest_of(trees, dtype="float64", row_dtype="float32", comparison=comparison)
    narrow = narrow_thresholds(forest).threshold
    assert narrow.dtype == np.float32
    with np.errstate(over="ignore"):
        near = np.array([*cuts, least, -least, np.nan], np.float32)
        rows = np.concatenate([near, *(np.nextafter(near, np.float32(x)) for x in (-9e9, 9e9))])
    less = np.less if comparison == "<" else np.less_equal
    inner = ~forest.is_leaf
    expected = less(rows[:, None].astype(np.float64), forest.threshold[inner])
    assert np.array_equal(less(rows[:, None], narrow[inner]), expected)


@pytest.mark.parametrize("layout", ["array", "sparse"])
def test_tiles_hold_thresholds_in_the_dtype_of_the_rows(layout: str) -> None:
    forest = drawn_forest(5, 6, seed=3, dtype="float64", row_dtype="float32")
    sch = tvm_forest.new_schedule(forest).tile_nodes(8).represent_as(layout)
    _, arrays = protocol.find(layout).pack(tile_nodes(forest, 8))
    assert (arrays["tiles"].dtype, arrays["leaves"].dtype) == (np.int32, np.float64)
    check_results(forest, sch, SIZES, jobs=(1,))


def test_depth_first_puts_siblings_together_and_the_larger_side_next() -> None:
    forest = drawn_forest(3, 6, seed=5)
    order, place = order_depth_first(forest)
    assert np.array_equal(order[place], np.arange(forest.n_nodes))
    inner = np.flatnonzero(~forest.is_leaf)
    base = forest.tree_offset[forest.node_tree[inner]]
    left, right = base + forest.left[inner], base + forest.right[inner]
    assert np.array_equal(place[right], place[left] + 1)
    sizes = {node: 1 for node in np.flatnonzero(forest.is_leaf)}
    for node, a, b in sorted(zip(inner, left, right, strict=True), reverse=True):
        sizes[node] = 1 + sizes[a] + sizes[b]
    first = {node: place[a] for node, a in zip(inner, left, strict=True)}
    for a, b in zip(left, right, strict=True):
        large = a if sizes[a] >= sizes[b] else b
        if large in first:
            assert first[large] == place[a] + 2


def test_large_trees_are_packed_depth_first() -> None:
    check_layout(full_forest(1, 12), "packed", "3 rows")


@pytest.mark.parametrize("layout", ["packed", "ranked", "reorg"])
def test_tiles_are_refused(layout: str) -> None:
    forest = forest_of([Split(0, 0.5, 1.0, 2.0)])
    sch = tvm_forest.new_schedule(forest).tile_nodes(2).represent_as(layout)
    with pytest.raises(ScheduleError, match=f"{layout!r} cannot hold tiles of 2 nodes"):
        tvm_forest.build(forest, schedule=sch)


@pytest.mark.parametrize(("layout", "slots"), [("array", 2**25 + 1), ("reorg", 3 * 2**25 - 3)])
def test_a_tree_too_deep_to_be_complete_is_refused(layout: str, slots: int) -> None:
    tree: Any = 1.0
    for level in range(24):
        tree = Split(0, float(level), 0.0, tree)
    forest = forest_of([0.5, tree, 0.25])
    message = f"layout '{layout}': tree 1 of depth 24 and 2 others need {slots} slots"
    with pytest.raises(BuildError, match=f"{message}, the limit is 33554432; use represent_as"):
        protocol.find(layout).pack(forest)


@pytest.mark.parametrize("layout", ["array", "reorg"])
def test_a_chain_beyond_any_number_of_slots_is_refused(layout: str) -> None:
    with pytest.raises(BuildError, match=f"layout '{layout}': tree 0 of depth 100 "):
        protocol.find(layout).pack(chain(100))


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
