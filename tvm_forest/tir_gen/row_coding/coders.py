"""What rows become before they are walked: codes, or planes of bits.

takes: rows and how a layout wants them; gives: statements that fill a buffer near the walks.

    Codes     codes[r, column] = rank of rows[r, feature] among the cuts of the column
    Planes    plane[first + k, r / 64], bit r % 64 = code(rows[r, feature]) <= k

A feature that is asked for memberships in categories is searched once for all its sets; the number
that is found leads to their codes, or sets bits from which their planes are made (`set_writer`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import tvm
from tvm import tirx

from ...layouts.row_codes.planes import WORD, PlaneCode
from ...layouts.row_codes.ranks import WIDTH, Columns, RankCode, step_offset
from ..builder import Code
from ..ir import guarded, i64
from ..walks.node_test import Comparer
from .memberships import SetWriter, copy_answers
from .planes import LANES, PART, PlaneWriter

TOGETHER = 8
"""Rows that are coded side by side: their searches overlap and share the first cuts."""

CHUNK = 64
"""Rows that are coded column by column: they stay in the first-level cache, and so do the cuts of
the column. Coding row by row instead took 2.3 ns a value on `year`, 90 features (Zen 4)."""


BANK_BYTES = 4
"""Bytes of a bank of shared memory."""


def row_pitch(columns: int, dtype: str) -> int:
    """Return the distance of rows in shared memory, in elements.

    An odd number of words: so threads that read one column of neighbouring rows meet in no bank.
    """
    item = tvm.DataType(dtype).itemsize
    word = max(item, BANK_BYTES)
    return (-(-columns * item // word) | 1) * word // item


class RowCoder(Protocol):
    """Fills a buffer with what walks read in the place of rows."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""

    def near(self, most: Any, scope: str) -> Any:
        """Declare a buffer for at most so many rows."""

    def place(self, row: Any) -> list[Any]:
        """Return the indices by which a walk names a row of the buffer."""

    def emit(self, code: Code, buffers: dict[str, Any], near: Any, first: Any, here: Any) -> None:
        """Code `here` rows from `first` on."""


def coder_of(row_code: RankCode | PlaneCode, rows: Any, comparer: Comparer) -> RowCoder:
    """Return what fills the buffer that a layout asks for."""
    if isinstance(row_code, RankCode):
        return Codes(row_code, rows, comparer)
    return Planes(row_code, rows, comparer)


@dataclass(frozen=True)
class Codes:
    """A code for every column of a row, side by side, or of `lanes` rows, column by column.

    Attributes:
        ranks: how values are coded.
        rows: buffer of the rows.
        comparer: how they are compared with cuts.
    """

    ranks: RankCode
    rows: Any
    comparer: Comparer

    @property
    def _pitch(self) -> int:
        """Elements from one row to the next."""
        columns = self.ranks.columns
        return row_pitch(columns, self.ranks.dtype) if self.comparer.vectors is None else columns

    @property
    def row_bytes(self) -> int:
        """A code for every column."""
        return self._pitch * tvm.DataType(self.ranks.dtype).itemsize

    def near(self, most: Any, scope: str) -> Any:
        """One row of codes for every row, or columns of them, with some to fill two registers."""
        lanes = self.ranks.lanes
        columns = self._pitch if lanes == 1 else -(-self.ranks.columns // 8) * 8
        shape = [most, i64(columns)]
        if lanes > 1:
            shape = [tirx.ceildiv(most, i64(lanes)), i64(columns), i64(lanes)]
        return tirx.decl_buffer(shape, self.ranks.dtype, "codes", scope=scope)

    def place(self, row: Any, column: Any = 0) -> list[Any]:
        """Rows by number, or by group and lane."""
        column = column + i64(0)
        if self.ranks.lanes == 1:
            return [row, column]
        lanes = i64(self.ranks.lanes)
        return [tirx.floordiv(row, lanes), column, tirx.floormod(row, lanes)]

    def emit(self, code: Code, buffers: dict[str, Any], near: Any, first: Any, here: Any) -> None:
        """Search the cuts of every column."""
        if self.comparer.vectors is None:
            self._emit_spread(code, buffers, near, first)
        else:
            _emit_ranks(self, code, buffers, (first, here), {"codes": near})

    def _emit_spread(self, code: Code, buffers: dict[str, Any], near: Any, first: Any) -> None:
        """A code for each thread of a GPU, those of a row next to each other."""
        for columns, begin in _begins(self.ranks):
            spans = [near.shape[0], i64(columns.stop - begin)]
            with code.nest("code", spans, spread=True) as (row, place):
                inside = first + row < self.rows.shape[0]
                with code.block(lambda body, inside=inside: guarded(body, [inside])):
                    search = _Search(self, code, buffers, columns, begin + place, {"codes": near})
                    search.emit(first, [row])


@dataclass(frozen=True)
class Planes:
    """A word of answers for every test and 64 rows.

    Attributes:
        planes: how rows become planes.
        rows: buffer of the rows.
        comparer: how they are compared with cuts.
    """

    planes: PlaneCode
    rows: Any
    comparer: Comparer

    @property
    def ranks(self) -> RankCode:
        """How values are coded before."""
        return self.planes.ranks

    @property
    def row_bytes(self) -> int:
        """Planes are not for GPUs, which ask."""
        return 0

    def near(self, most: Any, scope: str) -> Any:
        """The words of all rows side by side, plane by plane."""
        assert self.comparer.vectors is not None, "only LLVM compiles planes so far"
        assert isinstance(most, tirx.IntImm), "checked by `lower`"
        words = -(-int(most) // WORD)
        planes = self.planes.tests + max(self.planes.spare, PART)
        return tirx.decl_buffer((i64(planes), i64(words)), "uint64", "planes", scope=scope)

    def place(self, row: Any) -> list[Any]:
        """Rows by their word."""
        return [i64(0), tirx.floordiv(row, i64(WORD))]

    def emit(self, code: Code, buffers: dict[str, Any], near: Any, first: Any, here: Any) -> None:
        """Search all values, column by column, then write the planes of each column."""
        assert self.comparer.vectors is not None, "checked by `near`"
        words = int(near.shape[1])
        size = (i64(max(1, self.ranks.searched)), i64(words * WORD))
        names = {"high": "uint8", "low": "uint8"}
        if any(x.steps > 2 and not x.asked for x in self.ranks.groups):
            names["codes"] = self.ranks.dtype
        found = {name: code.buffer(name, size, dtype) for name, dtype in names.items()}
        if self.ranks.asked:
            size = (i64(self.ranks.asked), i64(words * WORD))
            found["numbers"] = code.buffer("numbers", size, "uint16")
        parts = code.buffer("parts", (i64(PART + 1), i64(LANES)), "uint64")
        _emit_ranks(self, code, buffers, (first, here), found)
        writer = PlaneWriter(code, self.comparer.vectors, buffers, found, near, parts)
        for columns, begin in _begins(self.ranks):
            if not columns.asked:
                with code.repeat("column", i64(columns.stop - begin)) as place:
                    writer.write(columns.steps, begin + place)
        if self.ranks.asked:
            self._emit_sets(code, buffers, found["numbers"], near, here)
        for plane, value in ((0, 0), (1, 2**64 - 1)):
            for word in range(words):
                at = [i64(self.planes.tests + plane), i64(word)]
                code.store(near, tirx.const(value, "uint64"), at)

    def _emit_sets(
        self, code: Code, buffers: dict[str, Any], numbers: Any, near: Any, here: Any
    ) -> None:
        """Unite planes of numbers, feature by feature."""
        size = (i64(self.planes.unions.numbers), near.shape[1])
        hot = code.buffer("hot", size, "uint64")
        writer = SetWriter(code, buffers, numbers, near, self.planes.searched, hot)
        with code.repeat("feature", i64(self.ranks.asked)) as feature:
            writer.write(feature, here)


def _emit_ranks(
    coder: Codes | Planes,
    code: Code,
    buffers: dict[str, Any],
    span: tuple[Any, Any],
    found: dict[str, Any],
) -> None:
    """Code some rows; `span` is the first one and their number, `found` is what to fill."""
    first, here = span
    with code.repeat("chunk", tirx.ceildiv(here, i64(CHUNK))) as chunk:
        start, left = chunk * CHUNK, code.hold("left", tirx.min(here - chunk * CHUNK, i64(CHUNK)))
        for columns, begin in _begins(coder.ranks):
            with code.repeat("column", i64(columns.stop - begin)) as place:
                search = _Search(coder, code, buffers, columns, begin + place, found)
                for width, at, count in code.groups(left, 1 if columns.asked else TOGETHER):
                    with code.repeat("group", count) as group:
                        rows = [start + at + group * width + r for r in range(width)]
                        search.emit(first, rows)


def _begins(ranks: RankCode) -> list[tuple[Columns, int]]:
    """Return the groups of columns, and the first column of each."""
    begins = [0, *(columns.stop for columns in ranks.groups)]
    return list(zip(ranks.groups, begins, strict=False))


@dataclass(frozen=True)
class _Search:
    """One column: how it is coded, where its cuts are, and what is to be filled."""

    coder: Codes | Planes
    code: Code
    buffers: dict[str, Any]
    columns: Columns
    column: Any
    found: dict[str, Any]

    def emit(self, first: Any, rows: list[Any]) -> None:
        """Code some rows together."""
        xs = self._values([first + r for r in rows])
        if self.columns.asked:
            self._emit_number(xs, rows[0])
            return
        if isinstance(self.coder, Codes):
            places = [self.coder.place(r, self.column) for r in rows]
            self._store("codes", places, self._codes(xs))
            return
        places = [[self.column, r] for r in rows]
        if self.columns.steps > 2:
            self._store("codes", places, self._codes(xs))
        else:
            self._emit_parts(xs, places)

    def _emit_number(self, xs: list[Any], row: Any) -> None:
        """Find the number of a category, and what it leads to if walks read codes."""
        feature = self.column - self.coder.ranks.searched
        at = self.code.hold("at", tirx.BufferLoad(self.buffers["asked"], [feature, i64(0)]))
        place = self._ranked(xs)[0]
        number = self.code.hold("number", tirx.BufferLoad(self.buffers["numbers"], [at + place]))
        if isinstance(self.coder, Planes):
            self.code.store(self.found["numbers"], number, [feature, row])
            return
        codes = tirx.BufferLoad(self.found["codes"], [row, i64(self.coder.ranks.searched)])
        is_llvm = self.coder.comparer.vectors is not None
        copy_answers(self.code, self.buffers, feature, number.astype("int64"), codes, is_llvm)

    def _store(self, name: str, places: list[list[Any]], values: list[Any]) -> None:
        near = self.found[name]
        for place, value in zip(places, values, strict=True):
            self.code.store(near, value.astype(near.dtype), place)

    def _values(self, rows: list[Any]) -> list[Any]:
        feature = self._held("column_feature").astype("int64")
        loads = [tirx.BufferLoad(self.coder.rows, [r, feature]) for r in rows]
        return [self.code.hold("x", x.astype(self.buffers["cuts"].dtype)) for x in loads]

    def _held(self, name: str, *field: int) -> Any:
        load = tirx.BufferLoad(self.buffers[name], [self.column, *field])
        return self.code.hold(name.split("_")[-1], load)

    def _emit_parts(self, xs: list[Any], places: list[list[Any]]) -> None:
        """Count in one step or two, see `tir_gen.planes`."""
        at = self._held("column_cuts")
        name = "lt" if self.coder.comparer.comparison == "<=" else "le"
        how = f"{'o' if self.columns.missing_left else 'u'}{name}"
        bases = [at] * len(xs)
        if self.columns.steps == 2:
            highs = [self._counted(how, at, x) for x in xs]
            self._store("high", places, highs)
            off = self._held("column_parts", 0).astype("int64")
            begin = self.code.hold("begin", at + step_offset(1) - off * WIDTH)
            bases = [begin + high * WIDTH for high in highs]
        self._store(
            "low", places, [self._counted(how, b, x) for b, x in zip(bases, xs, strict=True)]
        )

    def _counted(self, how: str, at: Any, x: Any) -> Any:
        """How many of the 16 cuts from `at` on compare with x."""
        vectors = self.coder.comparer.vectors
        assert vectors is not None, "checked by Planes"
        some = tirx.BufferLoad(self.buffers["cuts"], [tirx.Ramp(at, i64(1), WIDTH)])
        bits = vectors.bits(how, some, tirx.Broadcast(x, WIDTH))
        return self.code.hold("count", tirx.popcount(bits).astype("int64"))

    def _codes(self, xs: list[Any]) -> list[Any]:
        """Return the codes of some values."""
        dtype = self.coder.ranks.dtype
        values = [rank.astype(dtype) for rank in self._ranked(xs)]
        if self.columns.missing_left:
            return values
        most = tirx.max_value(dtype)
        return [tirx.Select(tirx.isnan(x), most, v) for x, v in zip(xs, values, strict=True)]

    def _ranked(self, xs: list[Any]) -> list[Any]:
        """Count the cuts that each of some values reaches, step by step; NaN reaches none."""
        hold, cuts = self.code.hold, self.buffers["cuts"]
        at = self._held("column_cuts")
        ranks: list[Any] = [i64(0)] * len(xs)
        for step in range(self.columns.steps):
            base = at + step_offset(step)
            for i, (x, rank) in enumerate(zip(xs, ranks, strict=True)):
                rank = rank * WIDTH
                ranks[i] = hold("rank", rank + self._reached(cuts, base + rank, x))
        return ranks

    def _reached(self, cuts: Any, at: Any, x: Any) -> Any:
        """How many of the cuts from `at` on x does not lie to the left of."""
        comparer = self.coder.comparer
        less = comparer.comparison == "<" or self.columns.asked
        if comparer.vectors is not None:
            return self._counted("ole" if less else "olt", at, x)
        count: Any = i64(0)
        for half in (8, 4, 2, 1, 1):  # halves the 16 four times, then looks at the one behind
            cut = tirx.BufferLoad(cuts, [at + count + (half - 1)])
            there = cut <= x if less else cut < x
            count = self.code.hold("count", count + there.astype("int64") * half)
        return count
