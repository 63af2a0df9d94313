"""What a model could lose without a prediction changing, and whether the rest is faster.

    python -m benchmarks rewrites.compact airline xgb_deep cat_100

Prints for each model the nodes below a test that the tests above it have decided; tests whose two
subtrees are equal; inner subtrees that occur again, in any tree; and leaves that do. A model that
would lose nodes is made without them, compared on all rows, and both are timed in turns: one
thread, the least CPU time of some rounds.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tvm_forest
from benchmarks import models
from benchmarks.timing import least_of
from tvm_forest.forest import Forest
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.forest.rewrites.rebuild import take_nodes

NAMES = ("airline", "higgs", "year", "abalone", "xgb_nan", "xgb_deep", "lgb_reg", "lgb_10", "hgb")
NAMES += ("cat_100", "cat_1000")
ROUNDS = 7
BATCHES = {1: 1000, 64: 100, 8192: 1}
"""Rows of a call, and calls of a turn."""


class Known(NamedTuple):
    """What tests above have said of a feature.

    Attributes:
        low, high: between these the value is, unless it is missing.
        missing, present: whether it may be missing, and may be a number.
    """

    low: float = -math.inf
    high: float = math.inf
    missing: bool = True
    present: bool = True


@dataclass
class Compactor:
    """Writes the trees of a forest without what no row reaches or nothing depends on.

    Attributes:
        decided, equal: tests that are gone, since tests above decide them, or since their two sides
            are equal.
        subtrees: number of each distinct subtree, by its test and the numbers of its sides.
        again: inner subtrees that occurred before.
    """

    forest: Forest
    decided: int = 0
    equal: int = 0
    again: int = 0
    subtrees: dict[Any, int] = field(default_factory=dict)
    source: list[int] = field(default_factory=list)
    links: list[tuple[int, int]] = field(default_factory=list)

    def compact(self) -> Forest:
        """Return the smaller forest."""
        forest, offset = self.forest, [0]
        for root in forest.tree_offset[:-1].tolist():
            self._write(self._visit(root, root, {})[0], len(self.source))
            offset.append(len(self.source))
        left, right = np.array(self.links, np.int32).reshape(-1, 2).T
        nodes, ends = np.array(self.source), np.array(offset)
        return take_nodes(forest, nodes, tree_offset=ends, left=left, right=right)

    def _visit(self, node: int, root: int, known: dict[int, Known]) -> tuple[Any, int]:
        """Return what is left of a subtree, a leaf or (node, left, right), and its number."""
        forest = self.forest
        if forest.is_leaf[node]:
            return node, self._number(forest.leaf_value[node].tobytes())
        feature, cut = int(forest.feature[node]), float(forest.threshold[node])
        missing_left, own = bool(forest.default_left[node]), known.get(feature, Known())
        sides = []
        for child, low, high, takes_missing in (
            (forest.left[node], own.low, min(own.high, cut), missing_left),
            (forest.right[node], max(own.low, cut), own.high, not missing_left),
        ):
            missing = own.missing and takes_missing
            open_ended = low == -math.inf or high == math.inf  # an infinity may lie there
            here = Known(low, high, missing, own.present and (low < high or open_ended))
            if here.missing or here.present:
                sides.append(self._visit(root + int(child), root, {**known, feature: here}))
        if len(sides) == 1:
            self.decided += 1
            return sides[0]
        (left, left_number), (right, right_number) = sides
        if left_number == right_number:
            self.equal += 1
            return left, left_number
        seen, test = len(self.subtrees), (feature, cut, missing_left)
        number = self._number((test, left_number, right_number))
        self.again += number < seen
        return (node, left, right), number

    def _number(self, key: Any) -> int:
        return self.subtrees.setdefault(key, len(self.subtrees))

    def _write(self, tree: Any, start: int) -> int:
        """Append the nodes of a tree; return the number of its root in the tree."""
        own, is_leaf = len(self.source), not isinstance(tree, tuple)
        self.source.append(tree if is_leaf else tree[0])
        self.links.append((-1, -1))
        if not is_leaf:
            self.links[own] = (self._write(tree[1], start), self._write(tree[2], start))
        return own - start


def compare(before: Forest, after: Forest, rows: Any) -> None:
    """Print how long both take."""
    first, second = tvm_forest.build(before), tvm_forest.build(after)
    assert np.array_equal(first.predict_margin(rows), second.predict_margin(rows))
    for size, calls in BATCHES.items():
        batch = rows[:size]

        def call(predictor: Any, batch: Any = batch, calls: int = calls) -> None:
            for _ in range(calls):
                predictor.predict_margin(batch, n_jobs=1)

        spent = least_of(ROUNDS, lambda: call(first), lambda: call(second))
        us = [x / size / calls * 1e6 for x in spent]
        print(f"    {size} rows: {us[0]:.3f} us a row before, {us[1]:.3f} after")


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=NAMES)
    parser.add_argument("--folder", type=Path, default=models.CACHE)
    args = parser.parse_args()
    for name in args.models:
        made = models.get(name, args.folder)
        forest = canonicalize(tvm_forest.load(made.load()))
        compactor = Compactor(forest)
        compacted = compactor.compact()
        inner, leaves = int(np.sum(~forest.is_leaf)), forest.leaf_value[forest.is_leaf]
        print(
            f"| {name} | {forest.n_nodes:,} | {forest.n_nodes - compacted.n_nodes:,} | "
            f"{compactor.decided:,} | {compactor.equal:,} | {compactor.again / inner:.1%} | "
            f"{1 - len(np.unique(leaves, axis=0)) / len(leaves):.1%} |",
            flush=True,
        )
        if compacted.n_nodes < forest.n_nodes:
            compare(forest, compacted, np.array(made.rows()[:8192]))
