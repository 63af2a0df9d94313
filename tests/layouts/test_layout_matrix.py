"""Every layout, walk, size of tiles and kind of model: the bits of XGBoost, or of the model.

The tests take a part in which each pair of layout and size meets each kind of walk. All of them,
by hand, with a table of counts:

    python tests/layouts/test_layout_matrix.py
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import xgboost

import tvm_forest
from schedules import rows_inside
from shared_models import shared_model
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows, typical_rows
from tvm_forest.forest.rewrites.ordering import take_trees
from tvm_forest.schedule_prims import Schedule

SIZES = (1, 2, 3, 4, 8)
ROWS = (1, 33)
MODELS = ("airline", "year", "abalone", "letters")
HOLDS = {
    "array": SIZES,
    "sparse": SIZES,
    "sparse_peeled": SIZES[1:],
    "reorg": (1,),
    "packed": (1,),
}


WALKS: dict[str, Callable[[Schedule], Schedule]] = {
    "loop": lambda sch: sch,
    "straight": lambda sch: sch.unroll_walk("tree", "depth"),
    "peel 1": lambda sch: sch.peel_walk("tree", 1),
    "peel likely": lambda sch: sch.peel_walk("tree", "likely"),
    "3 rows": lambda sch: rows_inside(sch, 16).interleave("b1", 3),
    "3 trees": lambda sch: sch.interleave("tree", 3),
    "4 lanes": lambda sch: rows_inside(sch, 4).simdize("b1"),
    "16 lanes": lambda sch: rows_inside(sch, 16).simdize("b1"),
    "default": lambda sch: rows_inside(sch, 64).interleave("b1", 8).parallel("b0"),
}


class Case(NamedTuple):
    """One build."""

    model: str
    walk: str
    layout: str
    size: int


def all_cases() -> Iterator[Case]:
    """Yield the full product; layouts without tiles have one size."""
    for model, walk, (layout, sizes) in itertools.product(MODELS, WALKS, HOLDS.items()):
        yield from (Case(model, walk, layout, size) for size in sizes)


def some_cases() -> Iterator[Case]:
    """Yield each walk with each layout and size once, and these with all models in turn."""
    pairs = [(layout, size) for layout, sizes in HOLDS.items() for size in sizes]
    for (i, walk), (k, (layout, size)) in itertools.product(enumerate(WALKS), enumerate(pairs)):
        yield Case(MODELS[(i + k) % len(MODELS)], walk, layout, size)


@cache
def booster(name: str) -> xgboost.Booster:
    """Read a published model, or train one on published rows."""
    if name in ("airline", "year"):
        return xgboost.Booster(model_file=shared_model(f"{name}.json"))
    rows = np.loadtxt(shared_model(f"{name}.csv"), delimiter=",", dtype=np.float32)
    params: dict[str, Any] = {"max_depth": 6, "seed": 7, "nthread": 1, "verbosity": 0}
    if name == "letters":
        params |= {"objective": "multi:softprob", "num_class": 26}
    rounds = 5 if name == "letters" else 60
    return xgboost.train(params, xgboost.DMatrix(rows[:, :-1], rows[:, -1]), rounds)


@cache
def whole(name: str) -> Forest:
    """Load a model, with the hits of rows of all kinds."""
    forest = tvm_forest.load(booster(name))
    rows = np.concatenate([typical_rows(forest, 300, seed=1), hard_rows(forest, 100, seed=2)])
    hits = np.bincount(forest.reference_nodes(rows).ravel(), minlength=forest.n_nodes)
    return replace(forest, hits=hits.astype(np.int64))


@cache
def part(name: str) -> Forest:
    """Take 12 trees, or 2 rounds of the letters: shallow ones, deep ones, and some between."""
    forest = whole(name)
    if name == "letters":
        return take_trees(forest, np.arange(52))
    order = np.argsort(forest.depths, kind="stable")
    return take_trees(forest, np.sort(order[np.linspace(0, len(order) - 1, 12).astype(int)]))


@cache
def expected(forest: Forest, n: int) -> tuple[Any, Any, Any]:
    """Rows, and what the model says of them: margins and leaves."""
    rows = hard_rows(forest, n, seed=n)
    return rows, forest.predict_reference(rows), forest.predict_reference(rows, "apply")


def check(forest: Forest, case: Case) -> None:
    sch = tvm_forest.new_schedule(forest).tile_nodes(case.size).represent_as(case.layout)
    predictor = tvm_forest.build(forest, schedule=WALKS[case.walk](sch))
    for n in ROWS:
        rows, margins, leaves = expected(forest, n)
        got = predictor.predict_margin(rows).reshape(margins.shape)
        assert got.dtype == margins.dtype
        assert got.tobytes() == margins.tobytes(), (case, n)
        assert np.array_equal(predictor.apply(rows), leaves), (case, n)


old = pytest.mark.filterwarnings("ignore:.*Found JSON model saved before XGBoost 1.6")


def test_the_part_meets_every_layout_walk_size_and_model() -> None:
    cases = list(some_cases())
    assert {case[1:] for case in cases} == {case[1:] for case in all_cases()}
    for pair in ("layout", "size", "walk"):
        met = {(case.model, getattr(case, pair)) for case in cases}
        assert met == {(case.model, getattr(case, pair)) for case in all_cases()}


@old
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.cases(2, others="long")
def test_margins_of_the_whole_model_in_tiles_are_those_of_xgboost(name: str) -> None:
    forest = whole(name)
    rows = hard_rows(forest, 65, seed=3)
    answer = booster(name).inplace_predict(rows, predict_type="margin", validate_features=False)
    for layout in ("array", "sparse", "sparse_peeled"):
        sch = tvm_forest.new_schedule(forest).tile_nodes(4).represent_as(layout)
        margin = tvm_forest.build(forest, schedule=sch).predict_margin(rows)
        assert margin.tobytes() == answer.astype(margin.dtype).tobytes(), layout


@old
@pytest.mark.slow
@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.cases(1)
def test_every_layout_and_size_has_the_bits_of_the_model(walk: str) -> None:
    for case in some_cases():
        if case.walk == walk:
            check(part(case.model), case)


def table(models: list[str]) -> int:
    """Check the full product; print failures, and how many cases passed."""
    passed: Counter[tuple[str, int, str]] = Counter()
    failed, begin = [], time.perf_counter()
    for case in (case for case in all_cases() if case.model in models):
        try:
            check(part(case.model), case)
            passed[case.layout, case.size, case.walk] += 1
        except Exception as error:  # whatever goes wrong is printed, and the next one follows
            failed.append(case)
            print(f"{case}: {type(error).__name__}: {str(error)[:500]}", flush=True)
    print(f"{'layout':<14} size " + " ".join(f"{walk:>11}" for walk in WALKS))
    for layout, sizes in HOLDS.items():
        for size in sizes:
            counts = " ".join(f"{passed[layout, size, walk]:>11}" for walk in WALKS)
            print(f"{layout:<14} {size:>4} {counts}")
    print(f"{passed.total()} passed, {len(failed)} failed; {time.perf_counter() - begin:.0f} s")
    return len(failed)


if __name__ == "__main__":
    sys.exit(table(sys.argv[1:] or list(MODELS)) > 0)
