"""Emits searches of values among the cuts of a column, and defines the base class of row coders.

takes: values of a column; gives: statements that compute their ranks, which a coder stores. A step
of a search compares a value with 16 cuts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import tvm
from tvm import tirx

from ...layouts.row_codes.ranks import CUTS_IN_STEP, RankCode, SearchGroup, count_cuts_before
from ...system.values import dataclass
from ..builder import Builder
from ..ir import i64
from ..walks.node_test import Comparer

ROWS_TOGETHER = 8
"""Number of rows that are coded side by side, so that their searches overlap and share the loads
of the first cuts."""

ROWS_OF_CHUNK = 64
"""Number of rows that are coded column by column: they stay in the first-level cache, and so do the
cuts of the column, see benchmarks/rewrites/bit_phases.py."""


BANK_BYTES = 4
"""Bytes of one bank of GPU shared memory."""


def row_pitch(columns: int, dtype: str) -> int:
    """Return the distance from one row to the next in shared memory, in elements.

    It is an odd number of words, so that threads that read one column of neighbouring rows access
    different banks.
    """
    item = tvm.DataType(dtype).itemsize
    word = max(item, BANK_BYTES)
    return (-(-columns * item // word) | 1) * word // item


def bring_rows_near(code: Builder, name: str, rows: Any, first: Any, count: int) -> Any:
    """Emit a copy of `count` rows from `first` on to shared memory, and return their buffer.

    Indices beyond the end read the last value again: loads without a condition can overlap.
    """
    width, pitch = int(rows.shape[1]), row_pitch(int(rows.shape[1]), rows.dtype)
    near = code.buffer(name, (i64(count), i64(pitch)), rows.dtype, "shared")
    last = rows.shape[0].astype("int64") * width - 1
    with code.nest("copy", [i64(count), i64(width)], spread=True) as (r, f):
        at = r * width + f
        value = rows[i64(0), tirx.min(first * width + at, last)]
        code.store(near, value, [i64(0), at + r * (pitch - width)])
    return near


class Chunk(NamedTuple):
    """Rows that are coded column by column.

    Attributes:
        first: index of the block's first row among all rows.
        start: number of rows of the block before the chunk.
        left: number of rows in the chunk, at most 64.
    """

    first: Any
    start: Any
    left: Any


class ReadGroup(NamedTuple):
    """A range of columns that are searched by the same code, read from a buffer at run time.

    Attributes:
        searches: properties that these searches share.
        begin, stop: the first column, and the one after the last.
    """

    searches: SearchGroup
    begin: Any
    stop: Any


@dataclass(frozen=True)
class RowCoder:
    """Base class: emits the statements that code rows into a buffer, which walks read instead.

    Attributes:
        ranks: the row code, which tells how values are coded.
        rows: buffer of the rows.
        comparer: tells how values are compared with cuts.
    """

    ranks: RankCode
    rows: Any
    comparer: Comparer

    @property
    def in_blocks(self) -> bool:
        """Return whether walks take rows in groups, counted from a block's first row."""
        return self.ranks.lanes > 1

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a coded row in shared memory; 0 if the row code is not for GPUs."""
        return 0

    def declare(self, most: Any, scope: str) -> Any:
        """Return a new buffer for at most `most` coded rows, to be allocated in memory `scope`."""
        raise NotImplementedError

    def place(self, row: Any) -> list[Any]:
        """Return the buffer indices at which a walk reads a row of the block."""
        raise NotImplementedError

    def emit(
        self, code: Builder, buffers: dict[str, Any], near: Any, first: Any, here: Any
    ) -> None:
        """Emit the coding of a block of rows.

        Args:
            code: where statements go.
            buffers: buffers of the model, by name.
            near: buffer of the codes, from `declare`.
            first: the first row of the block.
            here: number of rows of the block.
        """
        raise NotImplementedError

    def store_codes(self, search: ColumnSearch, xs: list[Any], rows: list[Any]) -> None:
        """Code the values of some rows in one column, and store the result."""
        raise NotImplementedError

    def store_number(self, search: ColumnSearch, feature: Any, number: Any, row: Any) -> None:
        """Store the memberships of a row in the sets of a feature, given its category's number."""
        raise NotImplementedError

    def _column_groups(self) -> list[tuple[SearchGroup, int]]:
        """Return (group of columns, its first column) pairs."""
        begins = [0, *(columns.stop for columns in self.ranks.groups)]
        pairs = zip(self.ranks.groups, begins, strict=False)
        return [(columns, begin) for columns, begin in pairs if columns.stop > begin]

    def _read_groups(self, code: Builder, buffers: dict[str, Any]) -> list[ReadGroup]:
        """Load the range of columns of each group from the model's buffers."""
        count, stops = len(self.ranks.groups), buffers["group_stops"]
        ends = [i64(0), *(code.hold("stop", stops[k]) for k in range(count))]
        return [ReadGroup(*x) for x in zip(self.ranks.groups, ends, ends[1:], strict=False)]

    @contextmanager
    def _chunks(self, code: Builder, first: Any, here: Any) -> Iterator[Chunk]:
        """Open a loop over the `here` rows from `first` on, 64 at a time; yield their Chunk."""
        with code.repeat("chunk", tirx.ceildiv(here, i64(ROWS_OF_CHUNK))) as chunk:
            start = chunk * ROWS_OF_CHUNK
            left = code.hold("left", tirx.min(here - start, i64(ROWS_OF_CHUNK)))
            yield Chunk(first, start, left)

    def _search_rows(
        self,
        code: Builder,
        buffers: dict[str, Any],
        results: dict[str, Any],
        group: ReadGroup,
        chunk: Chunk,
    ) -> None:
        """Emit the search of the columns of a group, one after the other, for rows of a chunk."""
        columns, begin, stop = group
        with code.repeat("column", stop - begin) as place:
            search = ColumnSearch(self, code, buffers, columns, begin + place, results)
            together = 1 if columns.asked else ROWS_TOGETHER
            for width, at, count in code.groups(chunk.left, together):
                with code.repeat("group", count) as some:
                    rows = [chunk.start + at + some * width + r for r in range(width)]
                    search.emit(search.read(chunk.first, rows), rows)


@dataclass(frozen=True)
class ColumnSearch:
    """Emits the search of values of one column.

    Attributes:
        coder: stores the results.
        code: where statements go.
        buffers: buffers of the model, by name.
        columns: the group of columns searched by the same code to which the column belongs.
        column: number of the column.
        results: buffers for the results, by name.
    """

    coder: RowCoder
    code: Builder
    buffers: dict[str, Any]
    columns: SearchGroup
    column: Any
    results: dict[str, Any]

    def read(self, first: Any, rows: list[Any]) -> list[Any]:
        """Load the values of the column for some rows, counted from row `first`."""
        feature = self._hold_entry("column_feature").astype("int64")
        return [self.coder.rows[first + r, feature] for r in rows]

    def emit(self, loads: list[Any], rows: list[Any]) -> None:
        """Code the loaded values of some rows of the block side by side, and store the codes."""
        xs = [self.code.hold("x", x.astype(self.buffers["cuts"].dtype)) for x in loads]
        if not self.columns.asked:
            self.coder.store_codes(self, xs, rows)
            return
        feature = self.column - self.coder.ranks.n_searched
        at = self.code.hold("at", self.buffers["set_features"][feature, i64(0)])
        number = self.code.hold("number", self.buffers["numbers"][at + self._rank(xs)[0]])
        self.coder.store_number(self, feature, number, rows[0])

    def store(self, name: str, places: list[list[Any]], values: list[Any]) -> None:
        """Store values in the buffer `name` of the results."""
        near = self.results[name]
        for place, value in zip(places, values, strict=True):
            self.code.store(near, value.astype(near.dtype), place)

    def _hold_entry(self, name: str, *field: int) -> Any:
        load = self.buffers[name][[self.column, *field]]
        return self.code.hold(name.split("_")[-1], load)

    def store_parts(self, xs: list[Any], places: list[list[Any]]) -> None:
        """Search and store the high and low parts of codes, see `row_codes.planes`.

        A search of one step gives only the low part.
        """
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
        """Count the cuts c, of 16 from `at` on, for which the comparison `c how x` is true."""
        vectors = self.coder.comparer.vectors
        assert vectors is not None, "checked by PlaneCoder"
        some = self.buffers["cuts"][tirx.Ramp(at, i64(1), CUTS_IN_STEP)]
        count = vectors.count(how, some, tirx.Broadcast(x, CUTS_IN_STEP))
        return self.code.hold("count", count.astype("int64"))

    def encode(self, xs: list[Any]) -> list[Any]:
        """Return the codes of some values, which are their ranks.

        The code of a missing value is 0 in columns where it goes left, else the largest one.
        """
        dtype = self.coder.ranks.dtype
        values = [rank.astype(dtype) for rank in self._rank(xs)]
        if self.columns.missing_left:
            return values
        most = tirx.max_value(dtype)
        return [tirx.Select(tirx.isnan(x), most, v) for x, v in zip(xs, values, strict=True)]

    def _rank(self, xs: list[Any]) -> list[Any]:
        """Return the number of cuts that each value reaches, searched step by step; 0 for NaN."""
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
        """Count the cuts, of 16 from `at` on, that value x reaches, so that it goes right."""
        comparer = self.coder.comparer
        less = comparer.comparison == "<" or self.columns.asked
        if comparer.vectors is not None:
            return self._count_cuts("ole" if less else "olt", at, x)
        count: Any = i64(0)
        for half in (8, 4, 2, 1, 1):  # bisects the 16 cuts, then compares the last one
            cut = cuts[at + count + (half - 1)]
            there = cut <= x if less else cut < x
            count = self.code.hold("count", count + there.astype("int64") * half)
        return count
