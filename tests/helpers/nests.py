"""Schedules on which tests of several directives build."""

from __future__ import annotations

from tvm_forest.schedule_prims import Schedule

START = Schedule(100)
BLOCKS = START.tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
LANES = START.tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")
TILES = START.tile("tree", "t0", "t1", 25)
TREES = TILES.reorder("t0", "t1", "batch").parallel("t0")
BOTH = BLOCKS.tile("tree", "t0", "t1", parts=3).parallel("b0").parallel("t0")
SPECIAL = Schedule(4).tile("tree", "t0", "t1", 2).reorder("t0", "batch", "t1").specialize("t0")
DEEP = Schedule(100, depths=(6,) * 40 + (8,) * 60)
