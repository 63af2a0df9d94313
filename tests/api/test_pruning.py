"""Fewer trees for a stated accuracy, and what that loses."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import drawn_forest, forest_of
from models import data, labels
from models import train as train_xgboost
from tvm_forest.errors import InputError, UnsupportedModel
from tvm_forest.forest import Forest, choose_labels
from tvm_forest.forest.probe_rows import typical_rows
from tvm_forest.forest.rewrites.ordering import find_rounds, take_trees


@functools.cache
def trained(kind: str) -> tuple[Forest, Any, Any]:
    """Return a model, rows, and right answers."""
    rows, target = data()
    if kind == "classes":
        classes = labels(3)
        booster = train_xgboost("multi:softmax", classes, 8, num_class=3)
        return tvm_forest.load(booster), rows, classes
    return tvm_forest.load(train_xgboost("reg:squarederror", target, 25)), rows, target


def answers_of(forest: Forest, rows: Any) -> Any:
    """What `predict` returns, by the reference walk."""
    margin = forest.predict_reference(rows)
    value = forest.values_of(margin)
    return choose_labels(forest, margin, value) if forest.gives_labels else value[:, 0]


def right_share(forest: Forest, rows: Any, answers: Any) -> float:
    """The accuracy, by definition."""
    found = answers_of(forest, rows)
    if forest.class_rule != "none":
        return float(np.mean(found == answers))
    answers = np.asarray(answers, np.float64)
    return float(1 - np.sum((found - answers) ** 2) / np.sum((answers - answers.mean()) ** 2))


@pytest.mark.parametrize("kind", ["classes", "values"])
@pytest.mark.parametrize("with_labels", [True, False])
def test_trees_are_dropped_as_long_as_the_loss_allows(kind: str, with_labels: bool) -> None:
    forest, rows, right = trained(kind)
    answers = right if with_labels else answers_of(forest, rows)
    before, sizes = right_share(forest, rows, answers), []
    for loss in (0.0, 0.02, 0.1):
        pruned = tvm_forest.prune(forest, rows, right if with_labels else None, loss=loss)
        after = right_share(pruned.forest, rows, answers)
        assert pruned.accuracy == pytest.approx(after, abs=1e-9)
        assert pruned.loss == pytest.approx(before - after, abs=1e-9)
        assert pruned.loss <= loss
        sizes.append(len(pruned.trees))
    assert sizes == sorted(sizes, reverse=True)
    assert forest.n_outputs <= sizes[-1] < sizes[1] < forest.n_trees


def test_one_tree_more_would_lose_too_much() -> None:
    forest, rows, _ = trained("values")
    pruned = tvm_forest.prune(forest, rows, loss=0.02)
    more = tvm_forest.prune(forest, rows, loss=pruned.loss)
    assert np.array_equal(more.trees, pruned.trees)
    less = tvm_forest.prune(forest, rows, loss=np.nextafter(pruned.loss, 0))
    assert len(less.trees) > len(pruned.trees)


def test_what_is_left_are_trees_of_the_model() -> None:
    forest, rows, _ = trained("classes")
    pruned = tvm_forest.prune(forest, rows, loss=0.1)
    kept = forest.predict_reference(rows, "per_tree")[:, pruned.trees]
    assert np.array_equal(pruned.forest.predict_reference(rows, "per_tree"), kept)
    assert np.array_equal(pruned.forest.tree_class, forest.tree_class[pruned.trees])
    assert pruned.forest.tree_id.tolist() == list(range(len(pruned.trees)))
    assert pruned.forest.n_rounds == find_rounds(pruned.forest).max() + 1
    assert set(pruned.forest.tree_class.tolist()) == {0, 1, 2}
    schedule = tvm_forest.new_schedule(pruned.forest)
    predictor = tvm_forest.build(pruned.forest, schedule=schedule)
    margins = predictor.predict_margin(rows)
    assert np.array_equal(margins, pruned.forest.predict_reference(rows))
    assert "trees, accuracy" in repr(pruned)


def test_trees_that_say_nothing_go_first() -> None:
    forest = drawn_forest(6, 3, seed=3)
    silent = np.isin(forest.node_tree, (1, 4))[:, None]
    forest = replace(forest, leaf_value=np.where(silent, 0, forest.leaf_value).astype("float32"))
    pruned = tvm_forest.prune(forest, typical_rows(forest, 100), loss=0)
    assert pruned.trees.tolist() == [0, 2, 3, 5] and pruned.loss == 0


def test_an_average_is_divided_by_the_trees_that_are_left() -> None:
    forest = replace(drawn_forest(12, 4, seed=5), aggregate="average")
    rows = typical_rows(forest, 300)
    pruned = tvm_forest.prune(forest, rows, loss=0.3)
    leaves = forest.predict_reference(rows, "per_tree")[:, pruned.trees].astype(np.float64)
    assert 1 <= len(pruned.trees) < 12
    assert np.allclose(pruned.forest.predict_reference(rows)[:, 0], leaves.mean(axis=1), atol=1e-5)


def test_one_tree_of_each_class_is_left_whatever_may_be_lost() -> None:
    forest = drawn_forest(9, 3, base=(0.0, 0.5, 1.0), link="softmax")
    pruned = tvm_forest.prune(forest, typical_rows(forest, 50), loss=2)
    assert sorted(pruned.forest.tree_class.tolist()) == [0, 1, 2]


def test_what_cannot_be_pruned_is_refused() -> None:
    forest = drawn_forest(4, 3)
    rows = typical_rows(forest, 20)
    for loss in (-1, True, "0.1", float("nan")):
        with pytest.raises(InputError, match="prune: argument 'loss': expected a number from 0"):
            tvm_forest.prune(forest, rows, loss=loss)
    with pytest.raises(InputError, match="argument 'rows': there are none"):
        tvm_forest.prune(forest, rows[:0])
    with pytest.raises(InputError, match=r"argument 'labels': expected \(20, 1\), got \(3,\)"):
        tvm_forest.prune(forest, rows, [1, 2, 3])
    with pytest.raises(UnsupportedModel, match="takes the smallest leaf"):
        tvm_forest.prune(replace(forest, aggregate="min"), rows)


def test_a_single_tree_and_no_tree_are_left_as_they_are() -> None:
    single = forest_of([1.0])
    assert tvm_forest.prune(single, np.zeros((2, 3))).trees.tolist() == [0]
    none = take_trees(single, np.zeros(0, np.int64))
    assert tvm_forest.prune(none, np.zeros((2, 3))).trees.tolist() == []


@pytest.mark.slow
@pytest.mark.long
def test_the_page_runs() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "pruning.md"
    (block,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(block, str(page), "exec", dont_inherit=True), names)
    assert names["pruned"].loss <= 0.005 and len(names["pruned"].trees) < 40
