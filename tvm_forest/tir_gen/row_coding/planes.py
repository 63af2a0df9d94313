"""Emits the code that turns the codes of a column into the bit planes of its tests.

takes: codes of up to 512 rows; gives: statements that write planes.

Test c of a column is true for codes of at most c. A code is split into a high and a low part of
four bits each, and so is c = 16 h + l:

    code <= 16 h + l   =   low <= l ? high <= h : high < h

So 16 planes of "low <= l" and 16 of "high <= h" are made once per column, from the bit planes of
the code. A test then costs one instruction for up to 512 rows; comparing codes would cost one for
64. A vector always has eight words: 512 rows of one test, or for example 64 rows of each of eight
adjacent tests. Planes of other sizes are made in parts, see `words_together`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from ...layouts.row_codes.planes import (
    OVERCOUNTS,
    ROWS_IN_WORD,
    VECTOR_WORDS,
    words_together,
)
from ...system.values import dataclass, replace
from ..bit_matrices import make_planes
from ..builder import Builder
from ..ir import i64, lanes, spread
from ..walks.vectors import Vectors

NUMBER_BITS = 8
"""Number of bits of a rank or code."""

PART_VALUES = 16
"""Number of values of the high or low part of a code, which has four bits."""


@dataclass(frozen=True)
class PlaneWriter:
    """Writes the planes of all tests of a column.

    Attributes:
        code: where statements go.
        vectors: operations on vectors.
        buffers: buffers of the layout.
        found: buffers (columns, rows) of the results of searches: "codes" in the order of bits,
            others in the order of `planes.byte_of_row`.
        planes: buffer (planes, words) to be written; up to 15 planes after those of a column may
            be overwritten, so columns are written in ascending order.
        below: buffer (17, 8) for the planes of "high < h".
        part: first word of the part of the planes that is being written.
    """

    code: Builder
    vectors: Vectors
    buffers: dict[str, Any]
    found: dict[str, Any]
    planes: Any
    below: Any
    part: Any = i64(0)

    @property
    def words(self) -> int:
        """Number of words of a plane that are computed at once."""
        return words_together(int(self.planes.shape[1]))

    def write(self, steps: int, column: Any) -> None:
        """Write the planes of a column whose cuts are searched in `steps` steps."""
        with self.code.parts("part", int(self.planes.shape[1]), self.words) as part:
            replace(self, part=part)._write(steps, column)

    def _write(self, steps: int, column: Any) -> None:
        hold = self.code.hold
        begin, end = (hold("plane", self.buffers["column_planes"][column + k]) for k in (0, 1))
        first, count = begin.astype("int64"), (end - begin).astype("int64")
        if steps > 2:
            self._by_comparing(column, first, count)
            return
        low, high = self._bits(column)
        planes = self._low_planes(low)
        self._write_high(high)
        with self.code.repeat("high", tirx.ceildiv(count, i64(PART_VALUES))) as h:
            below, at_most = (
                hold("high", self.below[h + k, lanes(i64(0), VECTOR_WORDS)]) for k in (0, 1)
            )
            for j, plane in enumerate(planes):
                value = self.vectors.select_more(plane, at_most, below)
                self._store(first + h * PART_VALUES, j, value)

    def _by_comparing(self, column: Any, first: Any, count: Any) -> None:
        """Write planes by comparing the codes of 64 rows with the number of each cut."""
        held = []
        for word in range(self.words):
            held.append(self.code.hold("code", self._rows("codes", column, word)))
        with self.code.repeat("cut", count) as cut:
            for word, codes in enumerate(held):
                bits = self.vectors.not_above(codes, cut.astype(self.found["codes"].dtype))
                self.code.store(self.planes, bits, [first + cut, self._word(word)])

    def _bits(self, column: Any) -> tuple[list[Any], list[Any]]:
        """Return the bit planes of the low and high parts, lowest bit first, as 8 words each.

        Planes of fewer words are repeated to fill the 8 words.
        """
        numbers = self._numbers(column)
        planes = make_planes(self.code, self.vectors, self.words, numbers)
        bits = self.code.buffer("bits", (i64(NUMBER_BITS), i64(VECTOR_WORDS)), "uint64")
        for bit in range(NUMBER_BITS):
            place = NUMBER_BITS - 1 - bit if "ranks" in self.found else bit
            plane = planes[lanes(i64(place * self.words), self.words)]
            for lane in range(0, VECTOR_WORDS, self.words):
                self.code.store(bits, plane, [i64(bit), lanes(i64(lane), self.words)])
        loads = (bits[i64(bit), lanes(i64(0), VECTOR_WORDS)] for bit in range(NUMBER_BITS))
        held = [self.code.hold("bits", load) for load in loads]
        return held[:4], held[4:]

    def _numbers(self, column: Any) -> Callable[[int, int, int], Any]:
        """Return a function that loads words of ranks or codes, for `make_planes`."""
        if "ranks" in self.found:

            def ranks(row: int, word: int, width: int) -> Any:
                start = self._row((row * self.words + word) * NUMBER_BITS)
                some = self.found["ranks"][column, lanes(start, width * NUMBER_BITS)]
                return self.vectors.cast(some, f"uint64x{width}" if width > 1 else "uint64")

            return ranks
        too_high, last, too_low = (
            self.code.hold(name, self.buffers["column_parts"][column, i64(k)])
            for k, name in enumerate(OVERCOUNTS)
        )
        numbers = self.code.buffer("numbers", (i64(NUMBER_BITS * self.words),), "uint64")
        four = spread(tirx.const(4, "uint64"), VECTOR_WORDS)
        for word in range(self.words):
            high = self._rows("high", column, word) - spread(too_high, ROWS_IN_WORD)
            high = self.code.hold("high", high)
            low = self.vectors.less_where(self._rows("low", column, word), high, last, too_low)
            low, high = (self.vectors.cast(x, f"uint64x{VECTOR_WORDS}") for x in (low, high))
            at = lanes(i64(word * VECTOR_WORDS), VECTOR_WORDS)
            self.code.store(numbers, low | tirx.shift_left(high, four), [at])

        def codes(row: int, word: int, width: int) -> Any:
            return numbers[lanes(i64(row * self.words + word), width)]

        return codes

    def _rows(self, name: str, column: Any, word: int) -> Any:
        return self.found[name][column, lanes(self._row(word * ROWS_IN_WORD), ROWS_IN_WORD)]

    def _word(self, word: int) -> Any:
        """Return the index in the whole plane of a word of the part."""
        return self.part + word

    def _row(self, row: int) -> Any:
        """Return the index in `found` of a row of the part."""
        return self.part * ROWS_IN_WORD + row

    def _low_planes(self, bits: list[Any]) -> list[Any]:
        """Return the planes "low <= l" as vectors of eight words, in the order of `planes`."""
        planes = [self.code.hold("low", plane) for plane in self._at_most(bits)]
        if self.words == VECTOR_WORDS:
            return planes
        flat = self.code.buffer("flat", (i64(PART_VALUES * self.words),), "uint64")
        for place, plane in enumerate(planes):
            some = plane.source[lanes(i64(0), self.words)]
            at = lanes(i64(place * self.words), self.words)
            self.code.store(flat, some, [at])
        starts = range(0, PART_VALUES * self.words, VECTOR_WORDS)
        loads = (flat[lanes(i64(start), VECTOR_WORDS)] for start in starts)
        return [self.code.hold("low", load) for load in loads]

    def _write_high(self, bits: list[Any]) -> None:
        none = spread(tirx.const(0, "uint64"), VECTOR_WORDS)
        for place, plane in enumerate([none, *self._at_most(bits)]):
            self.code.store(self.below, plane, [i64(place), lanes(i64(0), VECTOR_WORDS)])

    def _at_most(self, bits: list[Any]) -> list[Any]:
        """Return the 16 planes of "number <= k", given its four bits, lowest first."""
        b0, b1, b2, b3 = bits
        low = [*self._below(b0, b1), None]
        below = [None, *self._below(b2, b3), None]
        ones = spread(tirx.const(2**64 - 1, "uint64"), VECTOR_WORDS)

        def plane(h: int, k: int) -> Any:
            if low[k] is None:
                return ones if below[h + 1] is None else below[h + 1]
            if below[h] is None:
                return low[k] & below[h + 1]
            if below[h + 1] is None:
                return low[k] | below[h]
            return self.vectors.select_more(low[k], below[h + 1], below[h])

        return [plane(h, k) for h in range(4) for k in range(4)]

    def _below(self, low: Any, high: Any) -> list[Any]:
        """Return the planes of "number < k" for k = 1, 2 and 3, given its two bits."""
        inv = tirx.bitwise_not
        return [self.code.hold("below", x) for x in (inv(low | high), inv(high), inv(low & high))]

    def _store(self, first: Any, place: int, value: Any) -> None:
        """Store vector number `place` of eight words, counted from plane `first` on."""
        plane, word = divmod(place * VECTOR_WORDS, self.words)
        if self.words == int(self.planes.shape[1]):
            at = [first + plane, lanes(i64(word), VECTOR_WORDS)]
            self.code.store(self.planes, value, at)
            return
        held = self.code.hold("made", value).source
        for k in range(0, VECTOR_WORDS, self.words):
            some = held[lanes(i64(k), self.words)]
            at = [first + plane + k // self.words, lanes(self.part, self.words)]
            self.code.store(self.planes, some, at)
