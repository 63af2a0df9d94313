"""Emits the addition of what leaves add to approximate contributions.

takes: nothing; gives: a TIR function (leaves, arrays of the model ..., result).

    for each block of rows, for each tree
        for each row of the block, for each entry of its leaf    result[row, place] += value
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from .builder import Builder
from .ir import i64

BLOCK = 64
"""Number of rows in a block: what a tree adds, and their sums, stay in the nearest cache."""

MODEL = {"offsets": "int64", "starts": "int64", "places": "int32", "values": "float32"}
"""Dtypes of the arrays of the model, see `forest.contributions.approximate.ApproximateTables`."""


def emit_approximation() -> tirx.PrimFunc:
    """Return the function that adds up approximate contributions; it serves all models.

    Emits:
        A function (leaves int32 (n, t), arrays of `MODEL` ..., result float32 (n, w)), for n rows,
        t trees and w = outputs * (features + 1). It adds to what the result holds when called.
    """
    code = Builder()
    n, n_trees, width = (tirx.Var(name, "int64") for name in "ntw")
    leaves = _declare("leaves", (n, n_trees), "int32")
    # the function gets only addresses of these arrays, so their lengths do not matter
    model = {name: _declare(name, (i64(1 << 40),), dtype) for name, dtype in MODEL.items()}
    result = _declare("result", (n, width), "float32")
    with code.parallel("block", tirx.floordiv(n + (BLOCK - 1), i64(BLOCK))) as block:
        count = code.hold("count", tirx.min(i64(BLOCK), n - block * BLOCK))
        with code.repeat("tree", n_trees) as tree:
            offset = code.hold("offset", model["offsets"][tree])
            with code.repeat("at", count) as at:
                row = code.hold("row", block * BLOCK + at)
                node = code.hold("node", offset + leaves[row, tree].astype("int64"))
                begin = code.hold("begin", model["starts"][node])
                with code.repeat("entry", model["starts"][node + 1] - begin) as entry:
                    place = code.hold("place", model["places"][begin + entry].astype("int64"))
                    total = result[row, place] + model["values"][begin + entry]
                    code.store(result, total, [row, place])
    return tirx.PrimFunc([leaves, *model.values(), result], code.finish())


def _declare(name: str, shape: tuple[Any, ...], dtype: str) -> Any:
    itemsize = tvm.DataType(dtype).itemsize
    return tirx.decl_buffer(shape, dtype, name, data_alignment=itemsize)
