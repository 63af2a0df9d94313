"""The code that turns rows into what walks read: codes, or bit planes.

takes: rows and the row code of a layout; gives: statements that fill a buffer before the walks.

    RankCoder     codes[r, column] = rank of rows[r, feature] among the cuts of the column
    PlaneCoder    planes[first + k, r / 64], bit r % 64 = code(rows[r, feature]) <= k

A value 0.7 of a column with the cuts 0.1, 0.5 and 0.9 has the rank 2, the number of cuts below it.
A feature whose categories belong to sets is searched once for all these sets; the number of the
category leads to the codes of its memberships, or to the bits of their planes (`memberships`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from ...layouts.row_codes.planes import ROWS_IN_WORD, PlaneCode, bit_of_row
from ...layouts.row_codes.ranks import CUTS_IN_STEP, RankCode, SearchGroup, count_cuts_before
from ..builder import Builder
from ..ir import guard, i64
from ..walks.node_test import Comparer
from .memberships import SetWriter, copy_answers
from .planes import PART_VALUES, VECTOR_WORDS, PlaneWriter

ROWS_TOGETHER = 8
"""Rows that are coded side by side: their searches overlap, and share the first cuts."""

ROWS_OF_CHUNK = 64
"""Rows that are coded column by column: they stay in the first-level cache, and so do the cuts of
the column; see benchmarks/bit_phases.py."""


BANK_BYTES = 4
"""Bytes of a bank of shared memory."""


def row_pitch(columns: int, dtype: str) -> int:
    """Return the distance from one row to the next in shared memory, in elements.

    It is an odd number of words, so that threads which read one column of neighbouring rows read
    from different banks.
    """
    item = tvm.DataType(dtype).itemsize
    word = max(item, BANK_BYTES)
    return (-(-columns * item // word) | 1) * word // item


@dataclass(frozen=True)
class RowCoder:
    """Writes the statements that code rows into a buffer, which walks read in place of rows.

    Attributes:
        ranks: how values are coded.
        rows: buffer of the rows.
        comparer: how they are compared with cuts.
    """

    ranks: RankCode
    rows: Any
    comparer: Comparer

    @property
    def row_bytes(self) -> int:
        """Bytes of a coded row; 0 where the row code is not for GPUs."""
        return 0

    def declare(self, most: Any, scope: str) -> Any:
        """Declare a buffer for at most `most` coded rows."""
        raise NotImplementedError

    def place(self, row: Any) -> list[Any]:
        """Return the indices in the buffer by which a walk names a row of the block."""
        raise NotImplementedError

    def emit(
        self, code: Builder, buffers: dict[str, Any], near: Any, first: Any, here: Any
    ) -> None:
        """Code `here` rows from `first` on."""
        raise NotImplementedError

    def store_codes(self, search: _ColumnSearch, xs: list[Any], rows: list[Any]) -> None:
        """Code the values of some rows in a column, and store what that gives."""
        raise NotImplementedError

    def store_number(self, search: _ColumnSearch, feature: Any, number: Any, row: Any) -> None:
        """Store what the number of a row's category says of its memberships."""
        raise NotImplementedError

    def _column_groups(self) -> list[tuple[SearchGroup, int]]:
        """Return the groups of columns, and the first column of each."""
        begins = [0, *(columns.stop for columns in self.ranks.groups)]
        return list(zip(self.ranks.groups, begins, strict=False))

    def _search_columns(
        self,
        code: Builder,
        buffers: dict[str, Any],
        results: dict[str, Any],
        first: Any,
        here: Any,
    ) -> None:
        """Code `here` rows from `first` on into the buffers of `results`, column by column."""
        with code.repeat("chunk", tirx.ceildiv(here, i64(ROWS_OF_CHUNK))) as chunk:
            start = chunk * ROWS_OF_CHUNK
            left = code.hold("left", tirx.min(here - start, i64(ROWS_OF_CHUNK)))
            for columns, begin in self._column_groups():
                with code.repeat("column", i64(columns.stop - begin)) as place:
                    search = _ColumnSearch(self, code, buffers, columns, begin + place, results)
                    together = 1 if columns.asked else ROWS_TOGETHER
                    for width, at, count in code.groups(left, together):
                        with code.repeat("group", count) as group:
                            rows = [start + at + group * width + r for r in range(width)]
                            search.emit(first, rows)


def coder_of(row_code: RankCode | PlaneCode, rows: Any, comparer: Comparer) -> RowCoder:
    """Return what fills the buffer that a layout asks for."""
    if isinstance(row_code, RankCode):
        return RankCoder(row_code, rows, comparer)
    return PlaneCoder(row_code.ranks, rows, comparer, row_code)


@dataclass(frozen=True)
class RankCoder(RowCoder):
    """Codes every column of a row; codes lie row by row, or in groups of rows column by column."""

    @property
    def _pitch(self) -> int:
        """Elements from one coded row to the next."""
        columns = self.ranks.columns
        return row_pitch(columns, self.ranks.dtype) if self.comparer.vectors is None else columns

    @property
    def row_bytes(self) -> int:
        """A code for every column."""
        return self._pitch * tvm.DataType(self.ranks.dtype).itemsize

    def declare(self, most: Any, scope: str) -> Any:
        """Declare rows of codes, or groups of rows column by column, which may fill registers."""
        lanes, multiple = self.ranks.lanes, self.ranks.multiple
        columns = -(-self._pitch // multiple) * multiple
        shape = [most, i64(columns)]
        if lanes > 1:
            shape = [tirx.ceildiv(most, i64(lanes)), i64(columns), i64(lanes)]
        return tirx.decl_buffer(shape, self.ranks.dtype, "codes", scope=scope)

    def place(self, row: Any, column: Any = 0) -> list[Any]:
        """Name a row by its number, or by its group and lane."""
        column = column + i64(0)
        if self.ranks.lanes == 1:
            return [row, column]
        lanes = i64(self.ranks.lanes)
        return [tirx.floordiv(row, lanes), column, tirx.floormod(row, lanes)]

    def emit(
        self, code: Builder, buffers: dict[str, Any], near: Any, first: Any, here: Any
    ) -> None:
        """Search the cuts of every column; on a GPU neighbouring threads find codes of one row."""
        results = {"codes": near}
        if self.comparer.vectors is not None:
            self._search_columns(code, buffers, results, first, here)
            return
        for columns, begin in self._column_groups():
            spans = [near.shape[0], i64(columns.stop - begin)]
            with code.nest("code", spans, spread=True) as (row, place):
                inside = first + row < self.rows.shape[0]
                with code.block(lambda body, inside=inside: guard(body, [inside])):
                    search = _ColumnSearch(self, code, buffers, columns, begin + place, results)
                    search.emit(first, [row])

    def store_codes(self, search: _ColumnSearch, xs: list[Any], rows: list[Any]) -> None:
        """Store a code for each row."""
        search.store("codes", [self.place(r, search.column) for r in rows], search.encode(xs))

    def store_number(self, search: _ColumnSearch, feature: Any, number: Any, row: Any) -> None:
        """Copy the codes of the memberships."""
        codes = search.results["codes"][row, i64(self.ranks.n_searched)]
        is_llvm, number = self.comparer.vectors is not None, number.astype("int64")
        copy_answers(search.code, search.buffers, feature, number, codes, is_llvm)


@dataclass(frozen=True)
class PlaneCoder(RowCoder):
    """Makes bit planes: for every test, a word of 64 bits for 64 rows.

    Attributes:
        planes: how rows become planes; `ranks` is how values are coded before.
    """

    planes: PlaneCode

    def declare(self, most: Any, scope: str) -> Any:
        """Declare planes, one after the other, each of the words of all rows."""
        assert isinstance(most, tirx.IntImm), "checked by `BlockWalker.check`"
        words = -(-int(most) // ROWS_IN_WORD)
        planes = self.planes.tests + max(self.planes.spare, PART_VALUES)
        return tirx.decl_buffer((i64(planes), i64(words)), "uint64", "planes", scope=scope)

    def place(self, row: Any) -> list[Any]:
        """Name a row by its word in the first plane."""
        return [i64(0), tirx.floordiv(row, i64(ROWS_IN_WORD))]

    def emit(
        self, code: Builder, buffers: dict[str, Any], near: Any, first: Any, here: Any
    ) -> None:
        """Search all values, column by column, then write the planes of each column."""
        vectors, ranks, words = self.comparer.vectors, self.ranks, int(near.shape[1])
        assert vectors is not None, "only LLVM compiles planes so far"
        size = (i64(max(1, ranks.n_searched)), i64(words * ROWS_IN_WORD))
        names = {"high": "uint8", "low": "uint8"}
        if any(x.steps > 2 and not x.asked for x in ranks.groups):
            names["codes"] = ranks.dtype
        results = {name: code.buffer(name, size, dtype) for name, dtype in names.items()}
        features = i64(ranks.n_categorical)
        if ranks.n_categorical:
            size = (features, i64(words * ROWS_IN_WORD))
            results["numbers"] = code.buffer("numbers", size, "uint16")
        parts = code.buffer("parts", (i64(PART_VALUES + 1), i64(VECTOR_WORDS)), "uint64")
        self._search_columns(code, buffers, results, first, here)
        writer = PlaneWriter(code, vectors, buffers, results, near, parts)
        for columns, begin in self._column_groups():
            if not columns.asked:
                with code.repeat("column", i64(columns.stop - begin)) as place:
                    writer.write(columns.steps, begin + place)
        if ranks.n_categorical:
            hot = code.buffer("hot", (i64(self.planes.unions.numbers), near.shape[1]), "uint64")
            first_set = self.planes.n_searched
            sets = SetWriter(code, buffers, results["numbers"], near, first_set, hot)
            with code.repeat("feature", features) as feature:
                sets.write(feature, here)
        for plane, value in ((0, 0), (1, 2**64 - 1)):
            for word in range(words):
                at = [i64(self.planes.tests + plane), i64(word)]
                code.store(near, tirx.const(value, "uint64"), at)

    def store_codes(self, search: _ColumnSearch, xs: list[Any], rows: list[Any]) -> None:
        """Store codes, or the two parts of each if these are found directly."""
        if search.columns.steps > 2:
            words = int(search.results["codes"].shape[1]) // ROWS_IN_WORD
            bits = [[search.column, bit_of_row(r, words)] for r in rows]
            search.store("codes", bits, search.encode(xs))
        else:
            search.store_parts(xs, [[search.column, r] for r in rows])

    def store_number(self, search: _ColumnSearch, feature: Any, number: Any, row: Any) -> None:
        """Store the number, from which planes are made."""
        search.code.store(search.results["numbers"], number, [feature, row])


@dataclass(frozen=True)
class _ColumnSearch:
    """The search of one column: which cuts are searched, and which buffers take the results."""

    coder: RowCoder
    code: Builder
    buffers: dict[str, Any]
    columns: SearchGroup
    column: Any
    results: dict[str, Any]

    def emit(self, first: Any, rows: list[Any]) -> None:
        """Code rows side by side; `first` is the first row of the block, `rows` count from it."""
        feature = self._hold_entry("column_feature").astype("int64")
        loads = [self.coder.rows[first + r, feature] for r in rows]
        xs = [self.code.hold("x", x.astype(self.buffers["cuts"].dtype)) for x in loads]
        if not self.columns.asked:
            self.coder.store_codes(self, xs, rows)
            return
        feature = self.column - self.coder.ranks.n_searched
        at = self.code.hold("at", self.buffers["set_features"][feature, i64(0)])
        number = self.code.hold("number", self.buffers["numbers"][at + self._rank(xs)[0]])
        self.coder.store_number(self, feature, number, rows[0])

    def store(self, name: str, places: list[list[Any]], values: list[Any]) -> None:
        """Store values in one of the buffers of the results."""
        near = self.results[name]
        for place, value in zip(places, values, strict=True):
            self.code.store(near, value.astype(near.dtype), place)

    def _hold_entry(self, name: str, *field: int) -> Any:
        load = self.buffers[name][[self.column, *field]]
        return self.code.hold(name.split("_")[-1], load)

    def store_parts(self, xs: list[Any], places: list[list[Any]]) -> None:
        """Find the high and low part of codes in one or two steps, see `row_codes.planes`."""
        at = self._hold_entry("column_cuts")
        name = "lt" if self.coder.comparer.comparison == "<=" else "le"
        how = f"{'o' if self.columns.missing_left else 'u'}{name}"
        bases = [at] * len(xs)
        if self.columns.steps == 2:
            highs = [self._count_cuts(how, at, x) for x in xs]
            self.store("high", places, highs)
            off = self._hold_entry("column_parts", 0).astype("int64")
            begin = self.code.hold("begin", at + count_cuts_before(1) - off * CUTS_IN_STEP)
            bases = [begin + high * CUTS_IN_STEP for high in highs]
        self.store(
            "low", places, [self._count_cuts(how, b, x) for b, x in zip(bases, xs, strict=True)]
        )

    def _count_cuts(self, how: str, at: Any, x: Any) -> Any:
        """Count those of the 16 cuts from `at` on that compare with x."""
        vectors = self.coder.comparer.vectors
        assert vectors is not None, "checked by PlaneCoder"
        some = self.buffers["cuts"][tirx.Ramp(at, i64(1), CUTS_IN_STEP)]
        count = vectors.count(how, some, tirx.Broadcast(x, CUTS_IN_STEP))
        return self.code.hold("count", count.astype("int64"))

    def encode(self, xs: list[Any]) -> list[Any]:
        """Return the codes of some values."""
        dtype = self.coder.ranks.dtype
        values = [rank.astype(dtype) for rank in self._rank(xs)]
        if self.columns.missing_left:
            return values
        most = tirx.max_value(dtype)
        return [tirx.Select(tirx.isnan(x), most, v) for x, v in zip(xs, values, strict=True)]

    def _rank(self, xs: list[Any]) -> list[Any]:
        """Count the cuts that each of some values reaches, step by step; NaN reaches none."""
        hold, cuts = self.code.hold, self.buffers["cuts"]
        at = self._hold_entry("column_cuts")
        ranks: list[Any] = [i64(0)] * len(xs)
        for step in range(self.columns.steps):
            base = at + count_cuts_before(step)
            for i, (x, rank) in enumerate(zip(xs, ranks, strict=True)):
                rank = rank * CUTS_IN_STEP
                ranks[i] = hold("rank", rank + self._count_reached(cuts, base + rank, x))
        return ranks

    def _count_reached(self, cuts: Any, at: Any, x: Any) -> Any:
        """Count those of the 16 cuts from `at` on that x is not sent to the left of."""
        comparer = self.coder.comparer
        less = comparer.comparison == "<" or self.columns.asked
        if comparer.vectors is not None:
            return self._count_cuts("ole" if less else "olt", at, x)
        count: Any = i64(0)
        for half in (8, 4, 2, 1, 1):  # halves the 16 four times, then looks at the one behind
            cut = cuts[at + count + (half - 1)]
            there = cut <= x if less else cut < x
            count = self.code.hold("count", count + there.astype("int64") * half)
        return count
