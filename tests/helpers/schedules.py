"""What every schedule must compute, and forests by hand for it.

Random schedules are drawn by `drawn_schedules.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, forest_of
from tvm_forest.errors import ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.layouts import SIMDIZED
from tvm_forest.schedule_prims import Schedule

OUTPUTS = ("margin", "apply", "per_tree")
"""What a schedule is compared by: sums, and leaves and values of single trees."""


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


def with_vectors(forest: Forest, width: int, seed: int = 2) -> Forest:
    """Give the leaves of a forest vectors, some of them alike."""
    rng = np.random.default_rng(seed)
    pool = rng.normal(size=(max(4, forest.n_nodes // 2), width))
    values = pool[rng.integers(len(pool), size=forest.n_nodes)].astype(forest.sum_dtype)
    return replace(
        forest,
        leaf_value=np.where(forest.is_leaf[:, None], values, 0),
        tree_class=np.full(forest.n_trees, -1, np.int32),
        base_score=rng.normal(size=width).astype(forest.sum_dtype),
    )


def in_blocks(forest: Forest, layout: str, rows: int) -> Schedule:
    """The schedule of a layout that is walked by blocks of rows, see `SIMDIZED`."""
    sch = tvm_forest.new_schedule(forest).represent_as(layout).tile("batch", "b0", "b1", rows)
    inner = ("class", "tree") if sch.classes > 1 else ("tree",)
    return sch.reorder("b0", *inner, "b1").simdize("b1", SIMDIZED[layout])


def rounding_bound(forest: Forest, rows: Any) -> Any:
    """How far two orders of one sum can be apart: 2 (T + 1) u (|base| + sum of |leaf|)."""
    leaves = np.abs(forest.predict_reference(rows, "per_tree").astype(np.float64))
    unit = np.finfo(forest.sum_dtype).eps / 2
    if forest.has_vectors:
        sums = leaves.sum(axis=1)
    else:
        outputs = range(forest.n_outputs)
        sums = np.stack([leaves[:, forest.tree_class == c].sum(axis=1) for c in outputs], axis=1)
    return 2 * (forest.n_trees + 1) * unit * (np.abs(forest.base_score) + sums)


def check_results(
    forest: Forest,
    sch: Schedule,
    sizes: Iterable[int],
    jobs: Iterable[int] = (1, 2),
    outputs: Iterable[str] = OUTPUTS,
) -> None:
    """Bit-equal if the schedule keeps the order, else refused unless allowed, and close.

    Leaves and values of single trees are equal under every schedule. Each output has code of its
    own, and the ways through trees are the same: a test of ways alone compares margins only.
    """
    if not sch.keeps_order:
        with pytest.raises(ScheduleError, match="exact=False"):
            tvm_forest.build(forest, schedule=sch)
    predictor = tvm_forest.build(forest, schedule=sch, exact=sch.keeps_order)
    compare(predictor, forest, sch, sizes, [{"n_jobs": count} for count in jobs], outputs)


def compare(
    predictor: Any,
    forest: Forest,
    sch: Schedule,
    sizes: Iterable[int],
    options: Iterable[dict[str, int]] = ({},),
    outputs: Iterable[str] = ("margin", "apply"),
) -> None:
    """Margins are bit-equal if the order is kept, else within the bound; leaves are equal."""
    for n, given in product(sizes, options):
        rows = hard_rows(forest, n, seed=n)
        if "margin" in outputs:
            expected = forest.predict_reference(rows)
            margin = predictor.predict_margin(rows, **given).reshape(expected.shape)
            bound = 0 if sch.keeps_order else rounding_bound(forest, rows)
            assert np.all(np.abs(margin - expected) <= bound), (n, given)
        if "apply" in outputs:
            leaves = predictor.apply(rows, **given)
            assert np.array_equal(leaves, forest.predict_reference(rows, "apply")), (n, given)
        if "per_tree" in outputs:
            values = predictor.predict_per_tree(rows, **given)
            assert np.array_equal(values, forest.predict_reference(rows, "per_tree")), (n, given)


def rows_inside(sch: Schedule, size: int) -> Schedule:
    """Make blocks of rows the innermost loop."""
    return sch.tile("batch", "b0", "b1", size).reorder("b0", *sch.names()[1:], "b1")
