"""Random schedules, and what every schedule must compute.

A random schedule is a few steps drawn from the directives' own `choices` and from `further_moves`,
which are legal too but which no search would try.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, forest_of
from tvm_forest.errors import ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.probe_rows import hard_rows
from tvm_forest.schedule_prims import DIRECTIVES, Schedule

CPU_WORDS = sorted(set(DIRECTIVES) - {"gpu_dimension", "shared_reduce"})
SHAPING = (
    *("tile", "tile", "reorder", "parallel", "interleave"),
    *("simdize", "simdize", "atomic_reduce", "vector_reduce", "vector_reduce"),
)
"""Words that are drawn more often: the others need many kinds of loops to meet."""

MOST_HOPS = 60
"""Hops in the code of a function, above which a step is not taken."""

REFUSED: Counter[str] = Counter()
"""How often a drawn step was refused, by directive."""


def further_moves(sch: Schedule, shallowest: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield odd sizes, parts, longer chains, counted hops and unchecked peels.

    Args:
        sch: the schedule that is to be rewritten.
        shallowest: depth of the leaf of the model that is nearest to its root.
    """
    for loop in sch.loops():
        names = {"index": loop.name, "outer": f"{loop.name}0", "inner": f"{loop.name}1"}
        yield from (("tile", {**names, "size": size}) for size in (1, 2, 3, 5, 7))
        yield from (("tile", {**names, "parts": parts}) for parts in (2, 3))
        if len(loop.children) == 1 and len(loop.children[0].children) == 1:
            chain = [loop.name, loop.children[0].name, loop.children[0].children[0].name]
            yield from (("reorder", {"indices": list(p)}) for p in permutations(chain))
        if loop.kind == "tree":
            yield "split_by_depth", {"index": loop.name}
            yield "unroll_walk", {"index": loop.name, "hops": max(sch.depths or (0,))}
        yield "peel_walk", {"index": loop.name, "hops": 3}
        if shallowest:
            yield "peel_walk", {"index": loop.name, "hops": shallowest, "check": False}
        if loop.parallel and loop.kind == "tree":
            yield from (("vector_reduce", {"index": loop.name, "width": k}) for k in (2, 4))
        if not loop.children:
            yield from (("interleave", {"index": loop.name, "factor": k}) for k in (3, 5))


def moves(sch: Schedule, shallowest: int = 0) -> dict[str, list[dict[str, Any]]]:
    """Return the argument dicts that may be tried, by directive."""
    found = {name: list(DIRECTIVES[name].choices(sch)) for name in CPU_WORDS}
    for name, arguments in further_moves(sch, shallowest):
        found[name].append(arguments)
    return {name: choices for name, choices in found.items() if choices}


def drawn_schedule(
    seed: int, start: Schedule, most: int = 8, shallowest: int = 0, least: int = 1
) -> Schedule:
    """Take steps until so many are accepted, each drawn from the moves of a drawn directive."""
    rng = random.Random(seed)
    sch, wanted = start, rng.randint(least, most)
    if wanted > 2 and rng.random() < 0.3:
        sch = _rows_inside(start, rng.choice((4, 8, 16)))
    for _ in range(4 * wanted):
        if len(sch.steps) == wanted:
            break
        choices = moves(sch, shallowest)
        name = rng.choice([*sorted(choices), *(word for word in SHAPING if word in choices)])
        try:
            new = DIRECTIVES[name].apply(sch, rng.choice(choices[name]))
        except ScheduleError:
            REFUSED[name] += 1
            continue
        sch = new if hops_written_out(new) <= MOST_HOPS else sch
    return sch


def hops_written_out(sch: Schedule) -> int:
    """Estimate the size of the code, on which the time to compile it depends."""
    return sum(_hops_of_leaf(sch, leaf) for leaf in sch.leaves())


def _hops_of_leaf(sch: Schedule, leaf: Any) -> int:
    copies, hops = leaf.interleave * (2 if leaf.simdize else 1), 1
    for loop in sch.path(leaf.name):
        copies *= (loop.count or 1) if loop.unroll else 1
        said = loop.peel[0] if loop.peel else loop.hops
        hops = max(sch.depths or (0,)) if said == "depth" else said or hops
    return copies * (hops + 1)


def _rows_inside(sch: Schedule, size: int) -> Schedule:
    """Make a block of rows the leaf loop, which few random steps would."""
    if sch.batch is not None and sch.batch < size:
        return sch
    others = sch.names()[1:]
    return sch.tile("batch", "b0", "b1", size).reorder("b0", *others, "b1")


def odd_forest(seed: int) -> Forest:
    """Draw a small forest with single leaves, skewed and unequal trees, and 1 to 5 classes."""
    rng = np.random.default_rng(seed)
    classes, depth = int(rng.integers(1, 6)), int(rng.integers(0, 7))
    pool = rng.normal(size=6)
    n_trees = int(rng.integers(1, 16 * classes))
    kinds = rng.choice(["leaf", "skewed", "full", "any"], n_trees)
    trees = [_odd_tree(rng, str(kind), int(rng.integers(0, depth + 1)), pool) for kind in kinds]
    return forest_of(trees, n_features=4, base=rng.normal(size=classes))


def _odd_tree(rng: np.random.Generator, kind: str, depth: int, pool: Any) -> Any:
    if depth == 0 or kind == "leaf" or (kind == "any" and rng.random() < 0.25):
        return float(rng.normal())
    below = [_odd_tree(rng, kind, depth - 1, pool) for _ in range(1 if kind == "skewed" else 2)]
    children = [*below, float(rng.normal())][:2]
    if rng.random() < 0.5:
        children.reverse()
    left = bool(rng.random() < 0.3)
    return Split(int(rng.integers(4)), float(rng.choice(pool)), *children, left)


def rounding_bound(forest: Forest, rows: Any) -> Any:
    """How far two orders of one sum can be apart: 2 (T + 1) u (|base| + sum of |leaf|)."""
    leaves = np.abs(forest.predict_reference(rows, "per_tree").astype(np.float64))
    unit = np.finfo(forest.sum_dtype).eps / 2
    outputs = range(forest.n_outputs)
    sums = np.stack([leaves[:, forest.tree_class == c].sum(axis=1) for c in outputs], axis=1)
    return 2 * (forest.n_trees + 1) * unit * (np.abs(forest.base_score) + sums)


def check_results(
    forest: Forest, sch: Schedule, sizes: Iterable[int], jobs: Iterable[int] = (1, 2)
) -> None:
    """Bit-equal if the schedule keeps the order, else refused unless allowed, and close.

    Leaves and values of single trees are equal under every schedule.
    """
    if not sch.keeps_order:
        with pytest.raises(ScheduleError, match="exact=False"):
            tvm_forest.build(forest, schedule=sch)
    predictor = tvm_forest.build(forest, schedule=sch, exact=sch.keeps_order)
    for n in sizes:
        rows = hard_rows(forest, n, seed=n)
        margin = forest.predict_reference(rows)
        bound = 0 if sch.keeps_order else rounding_bound(forest, rows)
        for n_jobs in jobs:
            result = predictor.predict_margin(rows, n_jobs=n_jobs).reshape(margin.shape)
            assert np.all(np.abs(result - margin) <= bound), (n, n_jobs)
            leaves = predictor.apply(rows, n_jobs=n_jobs)
            assert np.array_equal(leaves, forest.predict_reference(rows, "apply")), (n, n_jobs)
            values = predictor.predict_per_tree(rows, n_jobs=n_jobs)
            assert np.array_equal(values, forest.predict_reference(rows, "per_tree")), (n, n_jobs)
