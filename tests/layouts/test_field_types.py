"""Types of fields by choice: what layouts hold them as, and values that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of, full_forest
from tvm_forest.errors import BuildError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.layouts.laying_out import pack
from tvm_forest.schedule_prims import Schedule, recipes

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

OVERFLOWS: dict[str, tuple[Any, tuple[str, int, dict[str, str]], str]] = {
    "a feature": (
        WIDE,
        ("packed", 1, {"feature": "uint8"}),
        f"represent_as: argument 'feature': {WIDE.name_first(WIDE.feature > 255)}: feature "
        f"{WIDE.feature[FIRST_WIDE]} does not fit 'uint8'; use a wider type, or leave it out",
    ),
    "a feature of a tile": (
        WIDE,
        ("sparse", 4, {"feature": "uint8"}),
        f"represent_as: argument 'feature': tree {WIDE.node_tree[FIRST_WIDE]}, node ",
    ),
    "a threshold": (
        DOUBLE,
        ("sparse", 2, {"threshold": "float32"}),
        "represent_as: argument 'threshold': tree 0, node 0: threshold 0.1 does not fit 'float32'",
    ),
    "a child": (
        None,
        ("packed", 1, {"feature": "uint16"}),
        "represent_as: argument 'feature': tree 0, node ",
    ),
    "features that fill no word": (
        NARROW,
        ("sparse", 2, {"feature": "uint8"}),
        "represent_as: argument 'feature': 2 numbers of 'uint8' do not fill the words of a tile",
    ),
    "a layout without this choice": (
        NARROW,
        ("packed", 1, {"threshold": "float64"}),
        "represent_as: argument 'threshold': layout 'packed' holds it in a type of its own, not as "
        "'float64'; leave it out",
    ),
    "other types of the field": (
        NARROW,
        ("packed", 1, {"feature": "uint32"}),
        "represent_as: argument 'feature': layout 'packed' holds it as uint8 or uint16, not as",
    ),
    "a layout without tiles": (
        NARROW,
        ("sparse", 1, {"feature": "uint8"}),
        "represent_as: argument 'feature': layout 'sparse' has no choice without tiles; leave it",
    ),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_a_value_that_does_not_fit_its_type_is_named(name: str) -> None:
    forest, (layout, tiles, types), message = OVERFLOWS[name]
    forest = forest or full_forest(1, 16)  # not drawn where the tests are collected
    with pytest.raises(BuildError) as caught:
        tvm_forest.build(forest, schedule=typed(forest, layout, tiles, **types))
    assert str(caught.value).startswith(message)


def test_a_type_that_there_is_not_is_refused() -> None:
    with pytest.raises(ScheduleError, match="argument 'feature': 'int8' is unknown; use uint8"):
        Schedule(3).represent_as("packed", feature="int8")
