"""A model whose rows, or trees, are shared by threads."""

from __future__ import annotations

import ctypes

import tvm_forest
from forests import drawn_forest
from tvm_forest.forest.probe_rows import hard_rows

FOREST = drawn_forest(60, 6, base=[0.1, 0.2], link="softmax", seed=4)
START = tvm_forest.new_schedule(FOREST)
BY_ROWS = START.tile("batch", "b0", "b1", 16).reorder("b0", "class", "tree", "b1").parallel("b0")
BY_TREES = START.tile("tree", "t0", "t1", 4).reorder("t0", "batch", "class", "t1").parallel("t0")
ROWS = hard_rows(FOREST, 400, seed=5)
MARGINS = FOREST.predict_reference(ROWS)

Task = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
Launch = ctypes.CFUNCTYPE(ctypes.c_int32, Task, ctypes.c_void_p, ctypes.c_int32)
"""How compiled code has tasks done by threads: by the launcher of a pool."""
