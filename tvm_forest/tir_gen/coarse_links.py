"""Emits CatBoost's link functions, with its approximate exponential (`forest.coarse_powers`).

takes: margins of a row, the table of powers; gives: statements that store the row's values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as tb

from ..forest import Forest
from ..forest.coarse_powers import (
    GREATEST_POWER,
    LANES,
    LEAST_POWER,
    ONE_STEP,
    ROUNDING,
    SIXTH,
    STEPS_IN_ONE,
    TABLE_BITS,
    THREE,
)
from . import ops

_BITS_OF_ROUNDING = int(np.float64(ROUNDING).view(np.int64))


def _emit_powers(forest: Forest, r: Any, n: Any, margin: Any, value: Any, table: Any) -> None:
    """Store e^margin for each output; CatBoost's vectors hold rows here, see `_is_alone`."""
    for c in range(forest.n_outputs):
        power = _take_power(margin[r, c].astype("float64"), table, _is_alone(r, n))
        tb.buffer_store(value, power.astype(str(value.dtype)), [r, c])


def _emit_variances(forest: Forest, r: Any, n: Any, margin: Any, value: Any, table: Any) -> None:
    """Store outputs in pairs: the first margin unchanged, and e^(2 x) of the second one."""
    for c in range(forest.n_outputs):
        x = margin[r, c].astype("float64")
        x = _take_power(_number(2.0) * x, table, _is_alone(r, n)) if c % 2 else x
        tb.buffer_store(value, x.astype(str(value.dtype)), [r, c])


def _emit_softmax(forest: Forest, r: Any, n: Any, margin: Any, value: Any, table: Any) -> None:
    """Store each target's softmax: exponentials of margins minus the largest, over their sum."""
    dtype, classes = str(value.dtype), forest.n_outputs
    top, total = (tb.sblock_alloc_buffer((1,), "float64", scope="global") for _ in range(2))
    powers = tb.sblock_alloc_buffer((classes,), "float64", scope="global")
    for name, buffer in {"top": top, "total": total, "powers": powers}.items():
        IRBuilder.name(name, buffer)
    for begin, end in spans_of_targets(forest):
        tb.buffer_store(top, margin[r, begin].astype("float64"), [0])
        with tb.serial(begin + 1, end) as c:
            x = margin[r, c].astype("float64")
            tb.buffer_store(top, tirx.Select(top[0] < x, x, top[0]), [0])  # NaN is never larger
        tb.buffer_store(total, _number(0.0), [0])
        with tb.serial(begin, end) as c:
            alone = _is_alone(c - begin, end - begin)
            distance = margin[r, c].astype("float64") - top[0]
            tb.buffer_store(powers, _take_power(distance, table, alone), [c])
            tb.buffer_store(total, total[0] + powers[c], [0])
        with tb.serial(begin, end) as c:
            tb.buffer_store(value, (powers[c] / total[0]).astype(dtype), [r, c])


def spans_of_targets(forest: Forest) -> Iterator[tuple[int, int]]:
    """Return the range (begin, end) of the outputs of each target, in order."""
    return pairwise(accumulate(forest.targets or (forest.n_outputs,), initial=0))


def _is_alone(place: Any, count: Any) -> Any:
    """Return whether an element is in the remainder that does not fill a vector.

    CatBoost computes such elements one by one: the powers of very small numbers are 0 then, and
    that of NaN is NaN.
    """
    lanes = tirx.IntImm("int64", LANES)
    return place >= tirx.floordiv(count, lanes) * lanes


def _take_power(x: Any, table: Any, alone: Any) -> Any:
    """Return e^x as `take_powers` of `forest.coarse_powers` does.

    Args:
        x: float64.
        table: buffer of the table of powers.
        alone: see `_is_alone`.
    """
    bound = list[tuple[Any, Any]]()

    def name(word: str, value: Any) -> Any:
        bound.append((tirx.Var(word, value.ty), value))
        return bound[-1][0]

    x = name("x", x)
    kept = tirx.Select(x < _number(GREATEST_POWER), x, _number(GREATEST_POWER))  # and for NaN
    kept = name("kept", tirx.Select(kept > _number(LEAST_POWER), kept, _number(LEAST_POWER)))
    shifted = ops.keep_rounded(kept * _number(STEPS_IN_ONE)) + _number(ROUNDING)
    shifted = name("shifted", shifted)
    number = name("number", tirx.reinterpret("int64", shifted) - _whole(_BITS_OF_ROUNDING))
    t = ops.keep_rounded((shifted - _number(ROUNDING)) * _number(ONE_STEP)) - kept
    t = name("t", t)
    near_one = ops.keep_rounded((_number(THREE) - t) * (t * t) * _number(SIXTH)) - t + _number(1.0)
    exponent = tirx.shift_right(number, _whole(TABLE_BITS)) + _whole(1023)
    fraction = table[tirx.bitwise_and(number, _whole((1 << TABLE_BITS) - 1))]
    bits = tirx.bitwise_or(tirx.shift_left(exponent, _whole(52)), fraction)
    power = ops.keep_rounded(near_one * tirx.reinterpret("float64", bits))
    power = name("power", power)
    apart = tirx.Select(x <= _number(LEAST_POWER), _number(0.0), power)
    apart = tirx.Select(tirx.isnan(x), x, apart)
    result = tirx.Select(alone, apart, power)
    for variable, value in reversed(bound):
        result = tirx.Let(variable, value, result)
    return result


def _number(value: float) -> Any:
    return tirx.FloatImm("float64", value)


def _whole(value: int) -> Any:
    return tirx.IntImm("int64", value)


COARSE: dict[str, Callable[[Forest, Any, Any, Any, Any, Any], None]] = {
    "coarse_exp": _emit_powers,
    "coarse_softmax": _emit_softmax,
    "variance": _emit_variances,
}
