"""Where the time of a bit-sliced prediction goes, and what bounds it.

    python benchmarks/bit_phases.py [--models airline higgs letters]

Nothing is timed inside of the code. A phase is what a model with more of it takes longer: with each
tree twice (walk and leaves), with as many trees again that are a single leaf (leaves), with a stump
for each test of the model, and for as many tests that are new (planes). The rest is coding: reading
rows and searching cuts. One thread, batches of 4,096 rows in rotation, processor time, the minimum
of the rounds. Bounds are instructions counted in the assembly over six a cycle, and bytes read over
20 GB/s, at the given clock.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import models
import tvm_forest
from tvm_forest import Forest
from tvm_forest.forest import LEAF
from tvm_forest.forest_passes.ordering import take_trees
from tvm_forest.forest_passes.plain import plain
from tvm_forest.probe_rows import typical_rows
from tvm_forest.search import bits

ROWS, BATCHES, ROUNDS = 4096, 6, 12
BLOCK = 512
A_CYCLE, GIGABYTES = 6, 20.0
VALUE, PLANE, SLOT, LEAVES = 14, 3, 4, 62
"""Instructions for a value of two steps; for a plane, for a slot and for 64 leaves of a block."""


class Phase(NamedTuple):
    """One line of the table: nanoseconds a row, measured and at least."""

    name: str
    measured: float
    bound: float


def with_trees(forest: Forest, trees: list[tuple[int, float, bool] | None]) -> Forest:
    """Add stumps, given as (feature, threshold, default_left), or single leaves for None."""
    sizes = [3 if tree else 1 for tree in trees]
    pad = sum(sizes)
    at = np.cumsum([0, *sizes])[:-1]
    inner = np.array([bool(tree) for tree in trees])
    roots = at[inner]
    stumps = [tree for tree in trees if tree]

    def field(kind: Any, fill: Any, values: Any = ()) -> Any:
        column = np.full(pad, fill, kind)
        column[roots] = values if len(values) else fill
        return column

    left = field(np.int32, LEAF)
    right = left.copy()
    left[roots], right[roots] = 1, 2
    new = {
        "feature": field(np.int32, LEAF, [s[0] for s in stumps]),
        "threshold": field(forest.threshold.dtype, 0, [s[1] for s in stumps]),
        "default_left": field(bool, False, [s[2] for s in stumps]),
        "left": left,
        "right": right,
        "leaf_value": np.zeros((pad, 1), forest.leaf_value.dtype),
        "node_id": np.arange(pad, dtype=np.int32),
    }
    fields = {name: np.concatenate([getattr(forest, name), x]) for name, x in new.items()}
    count = len(trees)
    fields["tree_offset"] = np.append(forest.tree_offset[:-1], forest.tree_offset[-1] + at)
    fields["tree_offset"] = np.append(fields["tree_offset"], forest.n_nodes + pad)
    classes = np.arange(count, dtype=np.int32) % forest.n_outputs
    fields["tree_class"] = np.append(forest.tree_class, classes)
    ids = np.arange(count, dtype=np.int32) + forest.n_trees
    fields["tree_id"] = np.append(forest.tree_id, ids)
    return replace(forest, **fields, tree_round=None, hits=None)


def stumps_of(forest: Forest, fresh: bool) -> list[tuple[int, float, bool] | None]:
    """A stump for each distinct test, or for the middle between it and the next of its column."""
    inner = np.flatnonzero(~forest.is_leaf)
    key = 2 * forest.feature[inner].astype(np.int64) + forest.default_left[inner]
    pairs = np.unique(np.stack([key, forest.threshold[inner].astype(np.float64)], axis=1), axis=0)
    found: list[tuple[int, float, bool] | None] = []
    for (column, cut), (other, after) in itertools.pairwise([*pairs, (-1, 0.0)]):
        value = (cut + after) / 2 if other == column else cut
        value = value if fresh else cut
        found.append((int(column) // 2, float(value), bool(int(column) % 2)))
    most = len(found) // forest.n_outputs * forest.n_outputs
    return [test for test in found if _room(forest, test)][:most]


def _room(forest: Forest, test: tuple[int, float, bool] | None) -> bool:
    """Whether the column of a test stays below 128 cuts, so that twice as many take two steps."""
    assert test is not None
    inner = ~forest.is_leaf & (forest.feature == test[0]) & (forest.default_left == test[2])
    return bool(16 <= len(np.unique(forest.threshold[inner])) < 128)


def nanoseconds(forests: dict[str, Forest]) -> dict[str, float]:
    """Time models in turns; nanoseconds a row of each."""
    first = next(iter(forests.values()))
    rows = [typical_rows(first, ROWS, seed=seed) for seed in range(BATCHES)]
    made = {
        name: tvm_forest.build(f, schedule=bits.sliced(tvm_forest.new_schedule(f), BLOCK, False))
        for name, f in forests.items()
    }
    best = dict.fromkeys(made, np.inf)
    for _, (name, predictor) in itertools.product(range(ROUNDS), made.items()):
        begin = time.process_time()
        for batch in rows:
            predictor.predict_margin(batch, n_jobs=1)
        best[name] = min(best[name], (time.process_time() - begin) / ROWS / BATCHES * 1e9)
    return best


def phases(forest: Forest, gigahertz: float) -> Iterator[Phase]:
    """Measure the phases of a model."""
    trees, outputs = np.arange(forest.n_trees), forest.n_outputs
    old, new = stumps_of(forest, False), stumps_of(forest, True)
    share = min(len(old), len(new)) // outputs * outputs
    took = nanoseconds(
        {
            "all": forest,
            "twice": replace(take_trees(forest, np.tile(trees, 2)), tree_round=None),
            "leaves": with_trees(forest, [None] * forest.n_trees),
            "known": with_trees(forest, old[:share]) if share else forest,
            "fresh": with_trees(forest, new[:share]) if share else forest,
        }
    )
    counts = bits.counts_of(forest)
    leaves = took["leaves"] - took["all"]
    walk = took["twice"] - took["all"] - leaves
    added = bits.counts_of(with_trees(forest, new[:share])).tests - counts.tests if share else 0
    planes = (took["fresh"] - took["known"]) * counts.tests / max(1, added)
    cycle = 1 / gigahertz
    width = forest.n_features * np.dtype(forest.row_dtype).itemsize
    coded = VALUE * counts.columns / A_CYCLE * cycle
    yield Phase(
        "read and code", took["all"] - leaves - walk - planes, max(coded, width / GIGABYTES)
    )
    yield Phase("planes", planes, PLANE * counts.tests / A_CYCLE / BLOCK * cycle)
    yield Phase("walk", walk, SLOT * counts.slots / A_CYCLE / BLOCK * cycle)
    yield Phase("leaves", leaves, LEAVES * counts.trees / 64 / A_CYCLE * cycle)
    yield Phase("all", took["all"], np.nan)


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["airline", "higgs", "letters"])
    parser.add_argument("--gigahertz", type=float, default=2.6, help="clock that bounds assume")
    options = parser.parse_args()
    for name in options.models:
        forest = plain(tvm_forest.load(models.get(name).load()))
        print(f"\n{name}, ns a row\n\n| phase | measured | bound |\n|---|---:|---:|")
        for phase in phases(forest, options.gigahertz):
            bound = "" if np.isnan(phase.bound) else f"{phase.bound:.3g}"
            print(f"| {phase.name} | {phase.measured:.3g} | {bound} |", flush=True)


if __name__ == "__main__":
    main()
