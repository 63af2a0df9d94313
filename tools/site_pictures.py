"""Pictures of the documentation site, drawn by `viz` while it is built; see site_hooks.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import _path  # noqa: F401 (what tests share)
import tvm_forest
from tvm_forest import Schedule, viz
from viz_cases import ONE, TWO

ROWS = np.random.default_rng(1).uniform(0, 1, (32, 3)) * [80, 24000, 5]
PLAIN = Schedule(trees=100)
SMALL = Schedule(trees=8)


def block(sch: Schedule, rows: int) -> Schedule:
    return sch.tile("batch", "b0", "b1", rows).reorder("b0", "tree", "b1")


def divide(sch: Schedule, trees: int, walks: int) -> Schedule:
    return sch.split("tree", "t0", "t1", trees).parallel("b0").interleave("b1@t0", walks)


def draw_layout(name: str) -> viz.Picture:
    return viz.layout(TWO, tvm_forest.new_schedule(TWO).represent_as(name))


def draw_tiles() -> viz.Picture:
    tiled = tvm_forest.rewrite(ONE, tvm_forest.new_schedule(ONE).tile_nodes(2))
    return viz.tree(tiled)


PICTURES: dict[str, Callable[[], viz.Picture]] = {
    "tree": lambda: viz.tree(ONE),
    "tiles": draw_tiles,
    "layout_array": lambda: draw_layout("array"),
    "layout_sparse": lambda: draw_layout("sparse"),
    "nest_plain": lambda: viz.nest(PLAIN),
    "nest_blocks": lambda: viz.nest(block(PLAIN, 64)),
    "nest_parts": lambda: viz.nest(divide(block(PLAIN, 64), 20, 8)),
    "order_plain": lambda: viz.order(SMALL, rows=8),
    "order_blocks": lambda: viz.order(block(SMALL, 4), rows=8),
    "order_parts": lambda: viz.order(divide(block(SMALL, 4), 2, 4), rows=8),
    "planes": lambda: viz.planes(ONE, ROWS),
}
"""What is drawn, by the name of its file in `pictures/` without the ending."""
