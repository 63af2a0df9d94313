"""Every form of a walk, alone and together with others, gives the bits of the model.

Rows are hard ones: thresholds, their neighbours, NaN, infinities.
"""

from __future__ import annotations

import functools
from itertools import product

import numpy as np
import pytest

import tvm_forest
from forests import Split, drawn_forest, forest_of, full_forest
from shared_models import shared_model
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rewrites.ordering import NULL_TREE, take_trees
from tvm_forest.schedule_prims import Schedule

EVERY_SIZE = range(1, 21)
LAYOUTS = ("array", "sparse")

FORMS = {
    "loop": lambda sch: sch,
    "straight": lambda sch: sch.unroll_walk("tree"),
    "straight and too long": lambda sch: sch.unroll_walk("tree", 12),
    "straight by depth": lambda sch: sch.split_by_depth("tree"),
    "peel 1": lambda sch: sch.peel_walk("tree", 1),
    "peel 3": lambda sch: sch.peel_walk("tree", 3),
    "peel beyond the leaves": lambda sch: sch.peel_walk("tree", 10),
}
UNCHECKED = {hops: lambda sch, hops=hops: sch.peel_walk("tree", hops, False) for hops in (1, 2, 3)}


def blocks(sch: Schedule, size: int) -> Schedule:
    """Make blocks of rows the leaf loops."""
    others = sch.names()[1:]
    return sch.tile("batch", "b0", "b1", size).reorder("b0", *others, "b1")


def on_leaves(sch: Schedule, word: str, *arguments: int) -> Schedule:
    for leaf in sch.leaves():
        sch = getattr(sch, word)(leaf.name, *arguments)
    return sch


TOGETHER = {
    "one by one": (lambda sch: sch, lambda sch: sch),
    "2 trees": (lambda sch: sch, lambda sch: on_leaves(sch, "interleave", 2)),
    "5 trees": (lambda sch: sch, lambda sch: on_leaves(sch, "interleave", 5)),
    "3 rows": (lambda sch: blocks(sch, 8), lambda sch: on_leaves(sch, "interleave", 3)),
    "8 rows": (lambda sch: blocks(sch, 16), lambda sch: on_leaves(sch, "interleave", 8)),
    "4 lanes": (lambda sch: blocks(sch, 4), lambda sch: on_leaves(sch, "simdize")),
    "8 lanes": (lambda sch: blocks(sch, 8), lambda sch: on_leaves(sch, "simdize")),
    "16 lanes": (lambda sch: blocks(sch, 16), lambda sch: on_leaves(sch, "simdize")),
}


@functools.cache
def models() -> dict[str, Forest]:
    """Return small forests: unequal trees with and without default directions, single leaves."""
    chain: float | Split = 0.5
    for k in range(9):
        chain = Split(k % 3, k / 9, chain, -float(k), k % 2 == 0)
    mixed = [chain, 0.25, Split(0, 0.5, 1.0, 2.0), Split(1, 0.1, 3.0, Split(2, 0.3, 1.0, 2.0))]
    return {
        "unequal": drawn_forest(13, 6, seed=5, base=[0.3]),
        "classes": drawn_forest(22, 4, seed=6, base=[0.3, -0.2]),
        "chain and leaves": forest_of([*mixed, *mixed]),
        "stumps": forest_of([Split(0, 0.5, 1.0, 2.0), Split(1, 0.1, 3.0, 4.0)] * 3),
        "deep enough": full_forest(7, 3, seed=2),
    }


def check_every_size(forest: Forest, sch: Schedule) -> None:
    """Compare margins and leaves for 1 to 20 rows, bit by bit."""
    assert sch.keeps_order
    predictor = tvm_forest.build(forest, schedule=sch)
    rows = hard_rows(forest, max(EVERY_SIZE), seed=1)
    margins, leaves = forest.predict_reference(rows), forest.predict_reference(rows, "apply")
    for n in EVERY_SIZE:
        result = predictor.predict_margin(rows[:n], n_jobs=1).reshape(n, -1)
        assert np.array_equal(result, margins[:n]), n
        assert np.array_equal(predictor.apply(rows[:n], n_jobs=1), leaves[:n]), n


def schedule(forest: Forest, form: str, together: str, layout: str) -> Schedule:
    outer, inner = TOGETHER[together]
    start = tvm_forest.new_schedule(forest).represent_as(layout)
    return inner(FORMS[form](outer(start)))


@pytest.mark.slow
@pytest.mark.parametrize("together", TOGETHER)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.cases(4)
def test_every_form_of_walk_gives_the_bits_of_the_model(form: str, together: str) -> None:
    """Each form with each number of walks at a time, on a model that changes from case to case."""
    at = list(product(FORMS, TOGETHER)).index((form, together))
    names = list(models())
    layout = LAYOUTS[at // len(names) % 2]
    forest = models()[names[at % len(names)]]
    check_every_size(forest, schedule(forest, form, together, layout))


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("together", ["one by one", "4 lanes", "8 lanes", "3 rows"])
@pytest.mark.parametrize("form", ["loop", "straight"])
@pytest.mark.cases(3, others="long")
def test_stumps_are_walked_in_lanes(form: str, together: str, layout: str) -> None:
    forest = models()["stumps"]
    check_every_size(forest, schedule(forest, form, together, layout))


@pytest.mark.slow
@pytest.mark.parametrize("together", TOGETHER)
@pytest.mark.parametrize("hops", UNCHECKED)
@pytest.mark.cases(3)
def test_hops_above_all_leaves_need_no_check(hops: int, together: str) -> None:
    forest = models()["deep enough"]
    outer, inner = TOGETHER[together]
    layout = LAYOUTS[hops % 2]
    start = tvm_forest.new_schedule(forest).represent_as(layout)
    check_every_size(forest, inner(UNCHECKED[hops](outer(start))))


@functools.cache
def year() -> Forest:
    return tvm_forest.load(shared_model("year.json"))


YEAR = [
    *(("loop", "8 rows"), ("straight", "8 lanes"), ("straight by depth", "16 lanes")),
    *(("peel 3", "5 trees"), ("straight and too long", "one by one")),
    ("peel beyond the leaves", "8 rows"),
]
MORE = [
    *product(FORMS, ["one by one", "8 rows"]),
    *product(["straight by depth", "peel 3"], ["5 trees", "16 lanes"]),
    ("loop", "5 trees"),
]
YEAR += [pytest.param(*case, marks=pytest.mark.long) for case in MORE if case not in YEAR]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "together"), YEAR)
@pytest.mark.cases(1)
def test_year_with_its_leaves_at_depth_0_to_8(form: str, together: str) -> None:
    forest = year()
    assert set(forest.depths) >= {0, 8}
    check_every_size(forest, schedule(forest, form, together, LAYOUTS[len(form) % 2]))


def test_a_model_of_no_trees_gives_its_base_scores_and_no_leaves() -> None:
    forest = models()["classes"]
    empty, rows = take_trees(forest, np.full(2, NULL_TREE)), hard_rows(forest, 5)
    predictor = tvm_forest.build(empty, schedule=tvm_forest.new_schedule(empty))
    assert np.array_equal(predictor.predict_margin(rows), np.tile(forest.base_score, (5, 1)))
    assert predictor.predict_per_tree(rows).shape == predictor.apply(rows).shape == (5, 0)


def leaf_wise_tree(depth: int, seed: int) -> Split:
    """Return a tree as LightGBM grows them: a long arm with small trees beside it."""
    rng = np.random.default_rng(seed)
    tree = Split(0, 0.5, 1.0, -1.0)
    for level in range(depth - 1):
        beside = Split(1, float(rng.normal()), *rng.normal(size=2)) if level % 3 else 0.125 * level
        children = (tree, beside) if rng.random() < 0.5 else (beside, tree)
        tree = Split(int(rng.integers(3)), float(rng.normal()), *children, bool(level % 2))
    return tree


@pytest.mark.slow
@pytest.mark.parametrize("together", ["one by one", "2 trees", "8 rows", "4 lanes"])
@pytest.mark.parametrize("form", ["loop", "straight", "peel 3"])
@pytest.mark.cases(2)
def test_a_leaf_wise_tree_of_depth_30(form: str, together: str) -> None:
    forest = forest_of([leaf_wise_tree(30, 0), 0.5, leaf_wise_tree(30, 1), Split(0, 0.5, 1.0, 2.0)])
    assert forest.depths.tolist() == [30, 0, 30, 1]
    check_every_size(forest, schedule(forest, form, together, "sparse"))
