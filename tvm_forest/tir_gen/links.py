"""Link functions: margins of a row become its values.

takes: buffers of the function under construction; gives: a block "finish" in it.

Every link is spelled as XGBoost computes it, step by step in float32, so results differ only as far
as two implementations of `exp` do.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as tb

from ..forest import Forest

SIGMOID_CLIP = 88.7
"""XGBoost keeps `exp(-margin)` finite in float32 by this bound."""


def emit_link(forest: Forest, n: Any, margin: Any, value: Any) -> None:
    """Append the block that writes value[r, :] from margin[r, :].

    Emits:
        for batch in T.serial(n):
            with T.sblock("finish"):
                value[r, :] = link(margin[r, :])
    """
    classes = forest.n_outputs
    with tb.serial(tirx.IntImm("int64", 0), n) as batch:
        IRBuilder.name("batch", batch)
        with tb.sblock("finish"):
            r = tb.axis.spatial(n, batch)
            IRBuilder.name("r", r)
            tb.reads(margin[r, 0:classes])
            tb.writes(value[r, 0:classes])
            if forest.link == "softmax":
                _emit_softmax(classes, r, margin, value)
                return
            with tb.serial(0, classes) as c:
                linked = _elementwise(forest.link, margin[r, c], forest.sum_dtype)
                tb.buffer_store(value, linked, [r, c])


def _elementwise(link: str, x: Any, dtype: str) -> Any:
    one = tirx.FloatImm(dtype, 1.0)
    if link == "sigmoid":
        power = tirx.exp(tirx.min(-x, tirx.FloatImm(dtype, SIGMOID_CLIP)))
        return one / (power + one)
    if link == "exp":
        return tirx.exp(x)
    if link == "step":
        return tirx.Cast(dtype, x > tirx.FloatImm(dtype, 0.0))
    raise AssertionError(f"no link named {link!r}")


def _emit_softmax(classes: int, r: Any, margin: Any, value: Any) -> None:
    """Exponentials of the distances to the largest margin, summed in float64."""
    dtype = str(margin.dtype)
    top = tb.sblock_alloc_buffer((1,), dtype, scope="global")
    total = tb.sblock_alloc_buffer((1,), "float64", scope="global")
    IRBuilder.name("top", top)
    IRBuilder.name("total", total)
    tb.buffer_store(top, margin[r, 0], [0])
    with tb.serial(1, classes) as c:
        tb.buffer_store(top, tirx.max(top[0], margin[r, c]), [0])
    tb.buffer_store(total, tirx.FloatImm("float64", 0.0), [0])
    with tb.serial(0, classes) as c:
        tb.buffer_store(value, tirx.exp(margin[r, c] - top[0]), [r, c])
        tb.buffer_store(total, total[0] + value[r, c].astype("float64"), [0])
    with tb.serial(0, classes) as c:
        tb.buffer_store(value, value[r, c] / total[0].astype(dtype), [r, c])
