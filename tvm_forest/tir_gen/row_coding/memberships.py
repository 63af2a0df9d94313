"""Emits the code that turns the number of a row's category into memberships in sets.

takes: a number for each row, see `layouts.row_codes.categories`; gives: statements that write a
code, or a bit of a plane, for each set of categories that the model tests.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import tvm
from tvm import tirx

from ...layouts.row_codes.planes import ROWS_IN_WORD, bit_of_row, words_together
from ...system.values import dataclass
from ..builder import Builder
from ..ir import i64, lanes, spread


def copy_answers(
    code: Builder,
    buffers: dict[str, Any],
    feature: Any,
    number: Any,
    row: Any,
    is_llvm: bool,
) -> None:
    """Emit a copy of the model's answers for a row's category to the row's membership codes.

    The membership columns of a feature are adjacent, so one copy writes all of them.

    Args:
        code, buffers: where statements go, and the layout's buffers.
        feature: index of the feature among those with sets of categories.
        number: number of the row's category among those of the feature, int64.
        row: load of the row's code in the first column of memberships.
        is_llvm: whether LLVM compiles the code: it compiles a call of `memcpy` faster than a loop.
    """
    table, answers = buffers["set_features"], buffers["answers"]
    first, count, at = (table[feature, i64(k)] for k in (1, 2, 3))
    count = code.hold("count", count)
    begin = code.hold("begin", at + number * count)
    head, place = row.indices
    if is_llvm:
        load = row.source[head, place + first]
        ends = (tirx.address_of(x) for x in (load, answers[begin]))
        size = count * tvm.DataType(answers.dtype).itemsize
        code.add(tirx.Evaluate(tirx.call_extern("handle", "memcpy", *ends, size)))
        return
    with code.repeat("set", count) as k:
        answer = answers[begin + k]
        code.store(row.source, answer, [head, place + first + k])


@dataclass(frozen=True)
class SetWriter:
    """Writes the bit planes of memberships as unions of planes; see `layouts.row_codes.unions`.

    Attributes:
        code: where statements go.
        buffers: buffers of the layout.
        numbers: buffer (features, rows) of category numbers.
        planes: buffer (planes, words) to be written.
        first: number of the first plane of a set.
        hot: buffer (numbers, words): plane k tells which rows have category k of a feature.
    """

    code: Builder
    buffers: dict[str, Any]
    numbers: Any
    planes: Any
    first: int
    hot: Any

    @property
    def words(self) -> int:
        """Number of words of a plane that are computed at once."""
        return words_together(int(self.planes.shape[1]))

    def write(self, feature: Any, here: Any) -> None:
        """Write the planes of all sets of a feature; bits beyond the `here` rows are undefined."""
        hold = self.code.hold
        self._write_hot(feature, here)
        begin, count = (hold("planes", self._field(feature, k)) for k in (1, 2))
        total = self.code.buffer("union", (i64(self.words),), "uint64")
        with self.code.repeat("plane", count) as place:
            plane = begin + place
            first, last = (hold("union", self.buffers["union_at"][plane + k]) for k in (0, 1))
            flip = hold("flip", -(first & 1)).astype("uint64")
            first, last = (tirx.shift_right(x, i64(1)) for x in (first, last))
            with self._parts() as part:
                self.code.store(total, self._empty, [self._words(i64(0))])
                with self.code.repeat("word", last - first) as word:
                    numbers = hold("numbers", self.buffers["unions"][first + word])
                    self._unite(total, numbers, part)
                value = total[self._words(i64(0))] ^ spread(flip, self.words)
                self.code.store(self.planes, value, [self.first + plane, self._words(part)])

    def _write_hot(self, feature: Any, here: Any) -> None:
        """Write `hot` for a feature: set the bit of each row in the plane of its category."""
        count = self.code.hold("count", self._field(feature, 3))
        with self.code.repeat("number", count) as number, self._parts() as part:
            self.code.store(self.hot, self._empty, [number, self._words(part)])
        with self.code.repeat("row", here) as row:
            number = self.numbers[feature, row].astype("int64")
            place = self.code.hold("bit", bit_of_row(row))
            at = [self.code.hold("number", number), tirx.floordiv(place, i64(ROWS_IN_WORD))]
            place = tirx.floormod(place, i64(ROWS_IN_WORD)).astype("uint64")
            bit = tirx.shift_left(tirx.const(1, "uint64"), place)
            self.code.store(self.hot, self.hot[at] | bit, at)

    def _unite(self, total: Any, numbers: Any, part: Any) -> None:
        """OR the planes of four categories into the union, for the words of one part."""
        value = total[self._words(i64(0))]
        for k in range(4):
            number = tirx.shift_right(numbers, tirx.const(16 * k, "uint64"))
            number = (number & tirx.const(0xFFFF, "uint64")).astype("int64")
            value = value | self.hot[number, self._words(part)]
        self.code.store(total, value, [self._words(i64(0))])

    def _field(self, feature: Any, field: int) -> Any:
        return self.buffers["set_features"][feature, i64(field)]

    def _parts(self) -> AbstractContextManager[Any]:
        """Open a loop over the parts of a plane; its variable is the first word of a part."""
        return self.code.parts("part", int(self.planes.shape[1]), self.words)

    def _words(self, part: Any) -> Any:
        """Return the vector index of the words of a part."""
        return lanes(part, self.words)

    @property
    def _empty(self) -> Any:
        """Return a vector of zeros for the words of a part."""
        return spread(tirx.const(0, "uint64"), self.words)
