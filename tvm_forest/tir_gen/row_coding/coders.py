"""Emits the code that turns rows into the codes or bit planes that walks read.

takes: rows and the row code of a layout; gives: statements that fill a buffer before the walks.

    RankCoder     codes[r, column] = rank of rows[r, feature] among the cuts of the column
    PlaneCoder    planes[first + k, r / 64], bit r % 64 = code(rows[r, feature]) <= k, see `panels`

The value 0.7 of a column with the cuts 0.1, 0.5 and 0.9 has the rank 2, the number of cuts below
it. A feature with sets of categories is searched once for all sets; the number of the category then
selects the codes of its memberships, or the bits of their planes (`memberships`).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...layouts.row_codes.banks import BankCode
from ...layouts.row_codes.planes import (
    ROWS_IN_WORD,
    VECTOR_WORDS,
    PlaneCode,
    bit_of_row,
    byte_of_row,
    words_together,
)
from ...layouts.row_codes.ranks import RankCode
from ...system.values import dataclass
from ..builder import Builder
from ..ir import guard, i64
from ..walks.node_test import Comparer
from .banks import BankCoder
from .memberships import SetWriter, copy_answers
from .panels import PanelCoder, found_dtypes
from .planes import PART_VALUES, PlaneWriter
from .searches import ColumnSearch, RowCoder, row_pitch


def coder_of(row_code: RankCode | PlaneCode, rows: Any, comparer: Comparer) -> RowCoder:
    """Return the coder that emits how rows become the codes of a layout's row code."""
    if isinstance(row_code, BankCode):
        return BankCoder(row_code, rows, comparer)
    if isinstance(row_code, RankCode):
        return RankCoder(row_code, rows, comparer)
    return PlaneCoder(row_code.ranks, rows, comparer, row_code)


@dataclass(frozen=True)
class RankCoder(RowCoder):
    """Codes every column of rows; codes are stored row by row, or by column for groups of rows."""

    @property
    def _pitch(self) -> int:
        """Return the distance, in elements, from one coded row to the next."""
        on_gpu, code = self.comparer.vectors is None, self.ranks
        return row_pitch(code.columns, code.dtype) if on_gpu else code.room

    @property
    def row_bytes(self) -> int:
        """Bytes of a coded row: one code for every column."""
        return self._pitch * tvm.DataType(self.ranks.dtype).itemsize

    def declare(self, most: Any, scope: str) -> Any:
        """Declare a buffer of coded rows, or of groups of rows stored column by column."""
        lanes, multiple = self.ranks.lanes, self.ranks.multiple
        columns = -(-self._pitch // multiple) * multiple
        shape = [most, i64(columns)]
        if lanes > 1:
            shape = [tirx.ceildiv(most, i64(lanes)), i64(columns), i64(lanes)]
        return tirx.decl_buffer(shape, self.ranks.dtype, "codes", scope=scope)

    def place(self, row: Any, column: Any = 0) -> list[Any]:
        """Return the indices of a row's code in a column of the buffer of codes.

        They are (row, column), or (group, column, lane) if rows are coded in groups.
        """
        column = column + i64(0)
        if self.ranks.lanes == 1:
            return [row, column]
        lanes = i64(self.ranks.lanes)
        return [tirx.floordiv(row, lanes), column, tirx.floormod(row, lanes)]

    def emit(
        self, code: Builder, buffers: dict[str, Any], near: Any, first: Any, here: Any
    ) -> None:
        """Emit the search of every column's cuts; on a GPU, neighbouring threads code one row."""
        results = {"codes": near}
        if self.comparer.vectors is not None:
            with self._chunks(code, first, here) as chunk:
                for group in self._read_groups(code, buffers):
                    self._search_rows(code, buffers, results, group, chunk)
            return
        for columns, begin in self._column_groups():
            spans = [near.shape[0], i64(columns.stop - begin)]
            with code.nest("code", spans, spread=True) as (row, place):
                inside = first + row < self.rows.shape[0]
                with code.block(lambda body, inside=inside: guard(body, [inside])):
                    search = ColumnSearch(self, code, buffers, columns, begin + place, results)
                    search.emit(search.read(first, [row]), [row])

    def store_codes(self, search: ColumnSearch, xs: list[Any], rows: list[Any]) -> None:
        """Store a code for each row."""
        search.store("codes", [self.place(r, search.column) for r in rows], search.encode(xs))

    def store_number(self, search: ColumnSearch, feature: Any, number: Any, row: Any) -> None:
        """Copy the membership codes that belong to the number of a row's category."""
        codes = search.results["codes"][row, i64(self.ranks.n_searched)]
        is_llvm, number = self.comparer.vectors is not None, number.astype("int64")
        copy_answers(search.code, search.buffers, feature, number, codes, is_llvm)


@dataclass(frozen=True)
class PlaneCoder(RowCoder):
    """Makes bit planes: for every test, a bit for each row, in words of 64 rows.

    Attributes:
        planes: the plane code; its `ranks` codes the values first.
    """

    planes: PlaneCode

    @property
    def in_blocks(self) -> bool:
        """Return True: the words of planes begin at a block's first row."""
        return True

    def declare(self, most: Any, scope: str) -> Any:
        """Declare the buffer (planes, words), with a bit for each row in a plane."""
        assert isinstance(most, tirx.IntImm), "checked by `BlockWalker.check`"
        words = -(-int(most) // ROWS_IN_WORD)
        planes = self.planes.tests + max(self.planes.spare, PART_VALUES)
        return tirx.decl_buffer((i64(planes), i64(words)), "uint64", "planes", scope=scope)

    def place(self, row: Any) -> list[Any]:
        """Return the indices of the row's word in the first plane."""
        return [i64(0), tirx.floordiv(row, i64(ROWS_IN_WORD))]

    def emit(
        self, code: Builder, buffers: dict[str, Any], near: Any, first: Any, here: Any
    ) -> None:
        """Emit the search of all values, by column, then the planes of each column."""
        vectors, ranks, words = self.comparer.vectors, self.ranks, int(near.shape[1])
        assert vectors is not None, "only LLVM compiles planes so far"
        names = found_dtypes(self.planes, vectors)
        size = (i64(ranks.room), i64(words * ROWS_IN_WORD))
        results = {name: code.buffer(name, size, dtype) for name, dtype in names.items()}
        features = i64(ranks.n_categorical)
        if ranks.n_categorical:
            size = (features, i64(words * ROWS_IN_WORD))
            results["numbers"] = code.buffer("numbers", size, "uint16")
        parts = code.buffer("parts", (i64(PART_VALUES + 1), i64(VECTOR_WORDS)), "uint64")
        panels = PanelCoder.begin(self, code, buffers, results, near)
        with self._chunks(code, first, here) as chunk:
            panels.emit(chunk)
            for group in self._read_groups(code, buffers):
                if group.searches.asked:
                    self._search_rows(code, buffers, results, group, chunk)
        writer, groups = (
            PlaneWriter(code, vectors, buffers, results, near, parts),
            self._read_groups(code, buffers),
        )
        for steps, first_group, last_group in self.planes.searched:
            begin, stop = groups[first_group].begin, groups[last_group].stop
            with code.repeat("column", stop - begin) as place:
                writer.write(steps, begin + place)
        if ranks.n_categorical:
            hot = code.buffer("hot", (i64(self.planes.unions.numbers), near.shape[1]), "uint64")
            first_set = self.planes.n_searched
            sets = SetWriter(code, buffers, results["numbers"], near, first_set, hot)
            with code.repeat("feature", features) as feature:
                sets.write(feature, here)
        some = words_together(words)
        with code.parts("word", words, some) as word:
            for plane, value in ((0, 0), (1, 2**64 - 1)):
                for k in range(some):
                    at = [i64(self.planes.tests + plane), word + k]
                    code.store(near, tirx.const(value, "uint64"), at)

    def store_codes(self, search: ColumnSearch, xs: list[Any], rows: list[Any]) -> None:
        """Store the codes of values, or their high and low parts if a search has 1 or 2 steps."""
        if search.columns.steps > 2:
            bits = [[search.column, bit_of_row(r)] for r in rows]
            search.store("codes", bits, search.encode(xs))
        else:
            words = int(search.results["low"].shape[1]) // ROWS_IN_WORD
            bytes_ = [[search.column, byte_of_row(r, words)] for r in rows]
            search.store_parts(xs, bytes_)

    def store_number(self, search: ColumnSearch, feature: Any, number: Any, row: Any) -> None:
        """Store the number of a row's category, from which the planes are made later."""
        search.code.store(search.results["numbers"], number, [feature, row])
