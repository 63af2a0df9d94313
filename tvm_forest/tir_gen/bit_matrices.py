"""Emits bit transpositions: turn bit planes into 8-bit numbers, and the reverse.

takes: eight rows of words; gives: statements that write eight rows of words.

    bit i of byte b of row k   ->   bit k of byte b of row i

Applied twice, it is the identity. Three rounds of exchanges between pairs of rows transpose all
bytes at once. Bits are in the order of `planes.bit_of_row`, so word k of row i then holds the eight
numbers from number 64 k + 8 i on. Three more rounds, which exchange words between pairs of rows,
put the numbers in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tvm import tirx

from .builder import Builder
from .ir import i64, lanes, spread
from .walks.vectors import Vectors

ROWS = 8
"""Number of rows of words that are transposed together, one for each bit of a byte."""

LOWER = {1: 0x5555555555555555, 2: 0x3333333333333333, 4: 0x0F0F0F0F0F0F0F0F}
"""Masks of the lower bits of the pairs that are exchanged, by the distance between their bits."""


LoadWords = Callable[[int, int, int], Any]
"""Function that loads words of a row: takes the row, the first word, and the number of words."""


def make_planes(code: Builder, vectors: Vectors, words: int, row: LoadWords) -> Any:
    """Emit bit planes of 8-bit numbers; return a buffer of uint64, one plane after the other.

    Args:
        code: where statements go.
        vectors: operations on vectors.
        words: number of words of each plane.
        row: loads numbers; word k of row i holds eight numbers, the first of which is number
            64 k + 8 i.
    """
    out = code.buffer("exchanged", (i64(ROWS * words),), "uint64")
    for first, width, rows in _transpose_bits(code, vectors, words, row, out):
        for k in range(ROWS):
            code.store(out, rows[k], [lanes(i64(k * words + first), width)])
    return out


def join_planes(code: Builder, vectors: Vectors, words: int, row: LoadWords) -> Any:
    """Emit 8-bit numbers from their bit planes; return a buffer of uint64, eight in each word.

    Args:
        code: where statements go.
        vectors: operations on vectors.
        words: number of words of each plane.
        row: loads words of a plane.
    """
    out = code.buffer("exchanged", (i64(ROWS * words),), "uint64")
    for first, width, rows in _transpose_bits(code, vectors, words, row, out):
        for distance in (x for x in LOWER if x < width):
            for k in (k for k in range(ROWS) if not k & distance):
                pair = rows[k], rows[k + distance]
                swapped = [vectors.exchange_lanes(*pair, distance, side) for side in (0, 1)]
                rows[k], rows[k + distance] = (code.hold("row", x) for x in swapped)
        for k in range(ROWS):
            at = (first + k % width) * ROWS + k // width * width
            code.store(out, rows[k], [lanes(i64(at), width)])
    return out


def _transpose_bits(
    code: Builder, vectors: Vectors, words: int, row: LoadWords, out: Any
) -> Iterator[tuple[int, int, list[Any]]]:
    """Emit the exchanges; yield (first word, number of words, rows) for each group of words.

    If each row has one word, the eight words are exchanged as one vector and stored to `out`;
    nothing is yielded.
    """
    if words == 1:
        for k in range(ROWS):
            code.store(out, row(k, 0, 1), [i64(k)])
        code.store(out, vectors.transpose_bits(out[_EIGHT]), [_EIGHT])
        return
    width = min(words, vectors.words)
    for first in range(0, words, width):
        rows = [code.hold("row", row(k, first, width)) for k in range(ROWS)]
        for distance in LOWER:
            for k in (k for k in range(ROWS) if not k & distance):
                _exchange(code, vectors, rows[k], rows[k + distance], distance)
        yield first, width, rows


_EIGHT = lanes(i64(0), ROWS)


def _exchange(code: Builder, vectors: Vectors, low: Any, high: Any, distance: int) -> None:
    """Exchange bit i + `distance` of `low` with bit i of `high`, for each bit i in `LOWER`."""
    width = int(str(low.ty.dtype).partition("x")[2] or 1)
    mask, by = (spread(tirx.const(x, "uint64"), width) for x in (LOWER[distance], distance))
    if vectors.selects_bits:
        below = vectors.select(mask, low, tirx.shift_left(high, by))
        above = code.hold("row", vectors.select(mask, tirx.shift_right(low, by), high))
        code.put(low, below)
        code.put(high, above)
        return
    other = code.hold("other", (tirx.shift_right(low, by) ^ high) & mask)
    code.put(high, high ^ other)
    code.put(low, low ^ tirx.shift_left(other, by))
