"""Emits the epilogue after the sums, which computes the margins of a row and its values.

takes: buffers of the function under construction; gives: a block "finish" in it.

Every link follows the formula of its training library step by step, so results differ only as far
as two implementations of `exp` do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as tb

from ..forest import Forest
from . import ops
from .coarse_links import COARSE, spans_of_targets

SIGMOID_CLIP = 88.7
"""Upper bound that XGBoost puts on `-margin`, so that `exp(-margin)` is finite in float32."""


def emit_epilogue(
    forest: Forest, n: Any, base: Any, results: dict[str, Any], table: Any = None
) -> None:
    """Append the block that computes margins from sums and values from margins, where they differ.

    Args:
        forest: the model, with its link and the scale of sums.
        n: number of rows.
        base: buffer of the base scores.
        results: buffers of the results by name, see `results.result_names`.
        table: buffer of the table of powers if the link needs it, see `results.link_arrays`.

    Emits:
        for batch in T.serial(n):
            with T.sblock("finish"):
                margin[r, :] = sum[r, :] / trees * scale + base[:]
                value[r, :] = link(margin[r, :])
    """
    if len(results) == 1:
        return
    classes, (first, *written) = forest.n_outputs, results.values()
    with tb.serial(tirx.IntImm("int64", 0), n) as batch:
        IRBuilder.name("batch", batch)
        with tb.sblock("finish"):
            r = tb.axis.spatial(n, batch)
            IRBuilder.name("r", r)
            tables = [] if table is None else [table[0 : table.shape[0]]]
            tb.reads(first[r, 0:classes], base[0:classes], *tables)
            tb.writes(*(buffer[r, 0:classes] for buffer in written))
            if "sum" in results:
                _emit_margins(forest, r, base, first, results["margin"])
            if "value" in results:
                _emit_values(forest, r, n, results["margin"], results["value"], table)


def _emit_margins(forest: Forest, r: Any, base: Any, total: Any, margin: Any) -> None:
    """Store margins: sums divided by the number of trees, scaled, plus base scores, as needed."""
    dtype, trees = forest.sum_dtype, forest.trees_of_class
    for c in range(forest.n_outputs):
        value = total[r, c]
        if forest.aggregate == "average":
            value = value / tirx.FloatImm(dtype, float(max(1, trees[c])))
        if forest.sum_scale != 1:
            value = ops.keep_rounded(value * tirx.FloatImm(dtype, forest.sum_scale))
        if not forest.base_first:
            added = value.astype(forest.base_dtype) + base[c]
            value = added.astype(dtype)
        tb.buffer_store(margin, value, [r, c])


def _emit_values(forest: Forest, r: Any, n: Any, margin: Any, value: Any, table: Any) -> None:
    if forest.link in COARSE:
        COARSE[forest.link](forest, r, n, margin, value, table)
        return
    if forest.link in _OF_ROWS:
        _OF_ROWS[forest.link](forest, r, margin, value)
        return
    with tb.serial(0, forest.n_outputs) as c:
        linked = _elementwise(forest, margin[r, c].astype(str(value.dtype)), str(value.dtype))
        tb.buffer_store(value, linked, [r, c])


def _elementwise(forest: Forest, x: Any, dtype: str) -> Any:
    """Return the link of one margin, in the dtype of the values."""
    link, one = forest.link, tirx.FloatImm(dtype, 1.0)
    if link in _OF_A_MARGIN:
        return _OF_A_MARGIN[link](x)
    if link == "clamp":
        zero = tirx.FloatImm(dtype, 0.0)
        return tirx.Select(x < zero, zero, tirx.Select(x > one, one, x))
    if link in ("sigmoid", "unbounded_sigmoid"):
        scaled = x if forest.link_scale == 1 else tirx.FloatImm(dtype, forest.link_scale) * x
        bounded = link == "sigmoid" and dtype == "float32"
        bound = tirx.FloatImm(dtype, SIGMOID_CLIP)
        # not `min`, which returns the bound for NaN
        power = tirx.exp(tirx.Select(-scaled > bound, bound, -scaled) if bounded else -scaled)
        return one / (power + one)
    if link == "logistic":  # `exp` of numbers below zero only
        above = one / (one + tirx.exp(-tirx.abs(x)))
        return tirx.Select(x < tirx.FloatImm(dtype, 0.0), one - above, above)
    if link == "signed_square":
        zero = tirx.FloatImm(dtype, 0.0)
        return tirx.Select(x < zero, -x * x, x * x)
    if link in ("isolation", "halving"):
        power = -(x / tirx.FloatImm(dtype, forest.link_scale))
        halved = tirx.pow(tirx.FloatImm(dtype, 2.0), power)
        return halved if link == "halving" else -halved
    if link == "step":
        return tirx.Cast(dtype, x > tirx.FloatImm(dtype, 0.0))
    raise AssertionError(f"no link named {link!r}")


def _emit_plain_softmax(forest: Forest, r: Any, margin: Any, value: Any) -> None:
    """Emit YDF's softmax: exponentials times 1 / their sum, at most 1; no maximum is subtracted."""
    dtype = str(value.dtype)
    one = tirx.FloatImm(dtype, 1.0)
    total = tb.sblock_alloc_buffer((1,), dtype, scope="global")
    IRBuilder.name("total", total)
    for begin, end in spans_of_targets(forest):
        tb.buffer_store(total, tirx.FloatImm(dtype, 0.0), [0])
        with tb.serial(begin, end) as c:
            tb.buffer_store(value, tirx.exp(margin[r, c].astype(dtype)), [r, c])
            tb.buffer_store(total, total[0] + value[r, c], [0])
        tb.buffer_store(total, one / total[0], [0])
        with tb.serial(begin, end) as c:
            share = value[r, c] * total[0]
            tb.buffer_store(value, tirx.Select(share > one, one, share), [r, c])


def _emit_softmax(forest: Forest, r: Any, margin: Any, value: Any) -> None:
    """Emit the softmax of each target: subtract the largest margin; add in float64."""
    dtype = str(value.dtype)
    kept = "float32" if forest.link == "rounded_softmax" else dtype
    top = tb.sblock_alloc_buffer((1,), kept, scope="global")
    total = tb.sblock_alloc_buffer((1,), "float64", scope="global")
    IRBuilder.name("top", top)
    IRBuilder.name("total", total)
    for begin, end in spans_of_targets(forest):
        tb.buffer_store(top, margin[r, begin].astype(kept), [0])
        with tb.serial(begin + 1, end) as c:
            tb.buffer_store(top, tirx.max(top[0], margin[r, c].astype(kept)), [0])
        tb.buffer_store(total, tirx.FloatImm("float64", 0.0), [0])
        with tb.serial(begin, end) as c:
            distance = margin[r, c].astype(dtype) - top[0].astype(dtype)
            power = tirx.exp(distance)
            tb.buffer_store(value, power.astype(kept).astype(dtype), [r, c])
            tb.buffer_store(total, total[0] + value[r, c].astype("float64"), [0])
        with tb.serial(begin, end) as c:
            tb.buffer_store(value, value[r, c] / total[0].astype(kept).astype(dtype), [r, c])


def _emit_sort(forest: Forest, r: Any, margin: Any, value: Any) -> None:
    """Emit an insertion sort of the margins; equal ones keep their order, NaN comes last."""
    dtype, classes = str(value.dtype), forest.n_outputs
    lower = tb.sblock_alloc_buffer((1,), dtype, scope="global")
    IRBuilder.name("lower", lower)
    with tb.serial(0, classes) as c:
        tb.buffer_store(value, margin[r, c].astype(dtype), [r, c])
    for c in range(1, classes):
        with tb.serial(0, c) as step:
            place = c - 1 - step
            tb.buffer_store(lower, value[r, place], [0])
            above = value[r, place + 1]
            swaps = tirx.Or(lower[0] > above, tirx.isnan(lower[0]))
            tb.buffer_store(value, tirx.Select(swaps, above, lower[0]), [r, place])
            tb.buffer_store(value, tirx.Select(swaps, lower[0], above), [r, place + 1])


_OF_A_MARGIN: dict[str, Callable[[Any], Any]] = {
    "identity": lambda x: x,
    "exp": tirx.exp,
    "log1p_exp": lambda x: tirx.log1p(tirx.exp(x)),
}
"""Link functions of a single margin, each as one formula."""

_OF_ROWS: dict[str, Callable[[Forest, Any, Any, Any], None]] = {
    **dict.fromkeys(("softmax", "rounded_softmax"), _emit_softmax),
    "plain_softmax": _emit_plain_softmax,
    "sorted": _emit_sort,
}
"""Link functions whose values depend on several margins of a row."""
