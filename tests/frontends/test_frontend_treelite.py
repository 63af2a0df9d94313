"""treelite models have the bits of treelite's own interpreter; damaged checkpoints are refused."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import treelite

import models
import tvm_forest
from treelite_models import MODELS, drawn, leaves, margins, probe_rows, values
from tvm_forest.errors import ForestError, ModelFormatError, UnsupportedModel
from tvm_forest.forest.rules import LINK_ULPS
from tvm_forest.frontends import load
from tvm_forest.frontends.library_predictions import predict_by_library
from tvm_forest.verification import ulps

N = 600
FEW = ["sklearn rf several classes", "drawn vectors of all", "xgboost categories_in_sets"]


@pytest.fixture(params=MODELS)
def case(request: Any) -> Any:
    """A model, its forest, and rows."""
    model = MODELS[request.param]()
    forest = load(model)
    return model, forest, probe_rows(forest, N)


def test_verify_says_that_treelite_is_not_installed(monkeypatch: Any) -> None:
    model = MODELS["drawn targets"]()
    data, forest = model.serialize_bytes(), load(model)
    monkeypatch.setitem(sys.modules, "treelite", None)
    rows = probe_rows(forest, N)
    assert "'treelite' is not installed" in str(predict_by_library(data, forest, rows))


# -- meaning --------------------------------------------------------------------------------------


def test_margins_equal_those_of_gtil_to_the_bit(case: Any) -> None:
    model, forest, rows = case
    found, expected = forest.predict_reference(rows), margins(model, rows)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert ulps(found, expected).max() == 0


def test_leaf_numbers_equal_those_of_gtil(case: Any) -> None:
    model, forest, rows = case
    found, expected = forest.predict_reference(rows, "apply"), leaves(model, rows)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


def test_values_are_within_the_bound_of_their_link(case: Any) -> None:
    model, forest, rows = case
    found, expected = forest.predict_reference(rows, "value"), values(model, rows)
    assert found.dtype == expected.dtype
    if forest.link == "rounded_softmax":
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    assert ulps(found, expected).max() <= 2 * LINK_ULPS[forest.link]  # numpy's exp is less exact


@pytest.mark.parametrize("name", ["xgboost softprob", "sklearn rf classes", "drawn average"])
def test_values_of_trees_equal_those_of_gtil(name: str) -> None:
    model = MODELS[name]()
    forest = load(model)
    rows = probe_rows(forest, N)
    found, expected = forest.predict_reference(rows, "per_tree"), margins_of_trees(model, rows)
    assert np.array_equal(found.reshape(expected.shape), expected)


def margins_of_trees(model: Any, rows: Any) -> Any:
    return treelite.gtil.predict_per_tree(model, rows, nthread=1)


def test_base_scores_are_added_last_and_in_float64() -> None:
    model = MODELS["xgboost logistic_with_base_score"]()
    forest = load(model)
    rows, trained = probe_rows(forest, 4000), models.MODELS["logistic_with_base_score"]()
    expected = margins(model, rows)
    rounded = replace(forest, base_score=forest.base_score.astype(np.float32))
    first = replace(rounded, base_first=True)
    assert forest.base_score.dtype == np.float64
    for other in (rounded, first, load(trained)):
        assert 0.05 < np.mean(other.predict_reference(rows) == expected) < 0.95
    assert np.array_equal(forest.predict_reference(rows), expected)


def test_a_softmax_of_doubles_is_rounded_as_gtil_rounds_it() -> None:
    model = MODELS["sklearn gb classes"]()
    forest = load(model)
    rows = probe_rows(forest, N)
    expected = values(model, rows)
    assert np.mean(ulps(forest.predict_reference(rows, "value"), expected) == 0) > 0.95
    plain = replace(forest, link="softmax").predict_reference(rows, "value")
    assert np.mean(ulps(plain, expected) > 1000) > 0.95


def test_the_largest_categories_are_told_apart() -> None:
    for dtype in ("float32", "float64"):
        model = drawn(sets=(False, True), top=(1 << 24) - 1, n_trees=3, dtype=dtype)
        forest = load(model)
        rows = probe_rows(forest, 2000)
        rows[::5, :2] = np.nextafter(rows.dtype.type(1 << 24), 0), 1 << 24
        assert np.array_equal(forest.predict_reference(rows), margins(model, rows))


@pytest.mark.parametrize("name", FEW)
def test_a_checkpoint_file_loads_as_its_model(tmp_path: Path, name: str) -> None:
    model = MODELS[name]()
    model.serialize(tmp_path / "model.bin")
    assert load(tmp_path / "model.bin").signature == load(model).signature
    assert load(str(tmp_path / "model.bin")).source == load(model).source


def test_a_checkpoint_needs_no_treelite(tmp_path: Path) -> None:
    MODELS["drawn targets"]().serialize(tmp_path / "model.bin")
    source = f"""
import sys
sys.modules["treelite"] = None
from tvm_forest.frontends import load
assert load({str(tmp_path / "model.bin")!r}).n_outputs == 3
"""
    subprocess.run([sys.executable, "-c", source], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS)[::12])
@pytest.mark.cases(3)
def test_compiled_models_equal_gtil(name: str) -> None:
    report = tvm_forest.verify(MODELS[name](), n_rows=200, schedule=lambda start: start)
    assert report.ok, str(report)
    assert not isinstance(report.library, str) and report.library.rows_equal == 200, str(report)


@pytest.mark.parametrize("name", ["sigmoid beyond exp", "targets of classes", "vectors of all"])
def test_links_of_treelite_are_compiled_as_gtil_computes_them(name: str) -> None:
    model = MODELS[f"drawn {name}"]()
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    rows = probe_rows(predictor.forest, N)
    found, expected = predictor.predict(rows), values(model, rows)
    if predictor.forest.link == "rounded_softmax":
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    assert ulps(found.reshape(expected.shape), expected).max() <= 4
    assert (
        ulps(predictor.predict_margin(rows).reshape(expected.shape), margins(model, rows)).max()
        == 0
    )


# -- refusals -------------------------------------------------------------------------------------


def edited(name: str, **header: Any) -> Any:
    """A drawn model with other fields in its header."""
    model = drawn(
        **{"drawn": {}, "classes": {"num_class": (3,), "ids": lambda t: (0, t % 3)}}[name]
    )
    for field, value in header.items():
        given = value if isinstance(value, str) else np.array(value)
        model.get_header_accessor().set_field(field, given)
    return model


def with_tree(**fields: Any) -> Any:
    model = drawn(n_trees=2, sets=(True,), seed=1)
    tree = model.get_tree_accessor(1)
    for field, change in fields.items():
        tree.set_field(field, change(tree.get_field(field).copy()))
    return model


I32 = np.int32
REFUSED = {
    "equality": (lambda: drawn(operators=("==",)), "'cmp': a node compares by operator 1"),
    "an unknown operator": (lambda: with_tree(cmp=lambda c: c + 9), "'cmp'"),
    "an unknown postprocessor": (
        lambda: edited("drawn", postprocessor="magic"),
        "'postprocessor': 'magic' is not among",
    ),
    "large categories": (
        lambda: with_tree(category_list=lambda codes: codes + np.uint32(1 << 24)),
        "'category_list': a set holds 167772",
    ),
    "an average of no trees": (
        lambda: edited(
            "classes", average_tree_output=np.array([1], np.uint8), class_id=np.zeros(12, I32)
        ),
        "'average_tree_output': the sum of no trees",
    ),
    "an average of some": (
        lambda: drawn(num_class=(3, 2), shape=(1, 3), ids=lambda t: (t % 2, -1), average=True),
        "'average_tree_output': trees with vectors for some",
    ),
}
DAMAGED = {
    "a class beyond": (lambda: edited("classes", class_id=np.arange(12, dtype=I32)), "'class_id'"),
    "no target": (lambda: edited("drawn", target_id=np.full(12, -1, I32)), "'class_id': tree 0"),
    "classes of nothing": (lambda: edited("drawn", num_class=np.array([0], I32)), "'num_class'"),
    "other base scores": (lambda: edited("drawn", base_scores=np.zeros(2)), "'base_scores'"),
    "other leaves": (
        lambda: edited("drawn", leaf_vector_shape=np.array([2, 2], I32)),
        "'leaf_vector': a leaf holds 0 values",
    ),
    "a child beyond": (
        lambda: with_tree(cleft=lambda c: np.where(c > 0, c + 100, c).astype(I32)),
        "has left child",
    ),
    "a cycle": (lambda: with_tree(cleft=lambda c: np.where(c > 0, 1, c).astype(I32)), "'trees'"),
    "a feature beyond": (lambda: with_tree(split_index=lambda f: f + 90), "tests feature"),
    "no threshold": (lambda: with_tree(threshold=lambda t: t + np.float32(np.nan)), "not a number"),
    "no model": (treelite.Model, "'model': holds no model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_reproduced_is_refused_by_name(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=message):
        load(make())


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_models_are_refused(name: str) -> None:
    make, message = DAMAGED[name]
    with pytest.raises(ModelFormatError, match=message):
        load(make())


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_other_versions_are_refused(tmp_path: Path) -> None:
    data = drawn(n_trees=1).serialize_bytes()
    for version in (3, 5):
        path = written(tmp_path / "model", struct.pack("<i", version) + data[4:])
        with pytest.raises(UnsupportedModel, match=rf"'version': .* got {version}\.\d+"):
            load(path)


def test_fields_of_later_versions_are_refused(tmp_path: Path) -> None:
    data = drawn(n_trees=1).serialize_bytes()
    path = written(tmp_path / "model", data[:-4] + struct.pack("<i", 1))
    with pytest.raises(UnsupportedModel, match="'num_opt_field': tree 0, 1 fields of a later"):
        load(path)


def test_a_truncated_checkpoint_is_an_error_at_every_length(tmp_path: Path) -> None:
    data = drawn(n_trees=2, sets=(True,)).serialize_bytes()
    for length in range(14, len(data), 7):
        with pytest.raises(ModelFormatError, match="truncated or damaged"):
            load(written(tmp_path / "model", data[:length]))
    with pytest.raises(ModelFormatError, match="'trees': the model ends at byte"):
        load(written(tmp_path / "model", data + b"\0"))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.cases(1, others="long")
def test_changed_bytes_give_a_model_or_an_error_of_ours(tmp_path: Path, seed: int) -> None:
    rng, path = random.Random(seed), tmp_path / "model"
    vectors = {"num_class": (3, 2), "shape": (1, 3), "ids": lambda tree: (tree % 2, -1)}
    data = drawn(n_trees=2, sets=(True,), **(vectors if seed else {})).serialize_bytes()
    outcomes = set()
    for _ in range(700):
        changed = bytearray(data)
        for at in rng.sample(range(14, len(data)), rng.choice((1, 1, 3))):
            changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        try:
            outcomes.add(load(written(path, changed)).n_trees)
        except ForestError as error:
            outcomes.add(type(error))
    assert {2, ModelFormatError} <= outcomes
