"""What a notebook shows of an object in the last line of a cell: short, and what it is."""

from __future__ import annotations

import pytest

import tvm_forest
from forests import drawn_forest
from tvm_forest.values import replace

FOREST = drawn_forest(40, 6, seed=1, n_features=5)
START = tvm_forest.new_schedule(FOREST)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (FOREST, f"40 trees, {FOREST.n_nodes} nodes, 5 columns, outputs: 1>"),
        (START, "<Schedule of 40 trees: row by row, tree by tree>"),
        (START.interleave("tree", 4), "<Schedule of 40 trees: interleave('tree', 4)>"),
        (tvm_forest.lower(FOREST, START), "<Lowered: apply, per_tree, predict; .before, .after"),
    ],
    ids=["forest", "schedule", "steps", "lowered"],
)
def test_objects_say_in_a_line_what_they_are(shown: object, text: str) -> None:
    assert text in repr(shown) and len(repr(shown)) < 200 and "\n" not in repr(shown)


def test_forests_differ_that_differ_in_rounds_left_out() -> None:
    longer = [drawn_forest(5, 2, seed=seed) for seed in (1, 2)]
    first, other = (replace(FOREST, with_all_rounds=x, rounds_left_out=1) for x in longer)
    assert first.signature == other.signature and first.identity != other.identity
