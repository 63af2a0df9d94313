"""Where the time of a bit-sliced prediction goes, and what bounds it.

    python benchmarks/bit_phases.py [--models airline higgs year]

Nothing is timed inside of the code. A phase is what a model with more of it takes longer: with each
tree twice (walk and leaves), or with as many trees again that are a single leaf (leaves). The rest
is reading rows, searching cuts and writing planes. One thread, batches of 4,096 rows in rotation,
processor time, the minimum of the rounds. Bounds are instructions counted in the assembly over six
a cycle, and bytes read over 20 GB/s, at the given clock.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

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


def with_leaves(forest: Forest, count: int) -> Forest:
    """Add trees that are a single leaf."""
    new = {
        "feature": np.full(count, LEAF, np.int32),
        "threshold": np.zeros(count, forest.threshold.dtype),
        "default_left": np.zeros(count, bool),
        "left": np.full(count, LEAF, np.int32),
        "right": np.full(count, LEAF, np.int32),
        "leaf_value": np.zeros((count, 1), forest.leaf_value.dtype),
        "node_id": np.zeros(count, np.int32),
        "tree_class": np.arange(count, dtype=np.int32) % forest.n_outputs,
        "tree_id": np.arange(count, dtype=np.int32) + forest.n_trees,
    }
    fields = {name: np.concatenate([getattr(forest, name), x]) for name, x in new.items()}
    ends = forest.tree_offset[-1] + np.arange(1, count + 1)
    fields["tree_offset"] = np.append(forest.tree_offset, ends)
    return replace(forest, **fields, tree_round=None, hits=None)


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
    trees, counts = np.arange(forest.n_trees), bits.counts_of(forest)
    twice = take_trees(forest, np.tile(trees, 2))
    took = nanoseconds(
        {
            "all": forest,
            "twice": replace(twice, tree_round=None),
            "leaves": with_leaves(forest, forest.n_trees),
        }
    )
    leaves = took["leaves"] - took["all"]
    walk = took["twice"] - took["all"] - leaves
    cycle = 1 / gigahertz
    width = forest.n_features * np.dtype(forest.row_dtype).itemsize
    coded = VALUE * counts.columns + PLANE * counts.tests / BLOCK
    coded = max(coded / A_CYCLE * cycle, width / GIGABYTES)
    yield Phase("code rows, write planes", took["all"] - leaves - walk, coded)
    yield Phase("walk", walk, SLOT * counts.slots / A_CYCLE / BLOCK * cycle)
    yield Phase("leaves", leaves, LEAVES * counts.trees / 64 / A_CYCLE * cycle)
    yield Phase("all", took["all"], np.nan)


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["airline", "higgs", "year"])
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
