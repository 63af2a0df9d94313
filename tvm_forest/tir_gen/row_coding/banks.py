"""Emits the coding of rows into banks of a GPU's shared memory, in groups of 32 rows.

takes: rows; gives: statements that fill a buffer of codes, see `row_codes.banks`.

    for part:                                              some rows at a time
        stage[r, f] = rows[first + r, f]                   neighbouring threads: features
        for column:
            banks[r / 32, place(column) + r % 32 * 4] = rank of stage[r, feature]     rows

Rows are read coalesced, and searched side by side: 32 threads search the cuts of one column for 32
rows, and the first levels of these cuts share a cache line.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...layouts.row_codes.banks import LANES, BankCode
from ...layouts.row_codes.ranks import SearchGroup
from ...system.values import dataclass
from ..builder import Builder
from ..ir import guard, i64
from .searches import RowCoder, bring_rows_near, row_pitch

TOGETHER = 4
"""Columns that a GPU thread searches side by side, so that the loads of their cuts overlap."""

STAGE_BYTES = 1 << 14
"""Largest size of the shared memory in which rows are staged before they are coded, in bytes."""


@dataclass(frozen=True)
class BankCoder(RowCoder):
    """Codes every column of a row, for groups of 32 rows."""

    @property
    def _code(self) -> BankCode:
        assert isinstance(self.ranks, BankCode), "see `coder_of`"
        return self.ranks

    @property
    def row_bytes(self) -> int:
        """Bytes of a coded row: one code for every column, in whole words."""
        item = tvm.DataType(self._code.dtype).itemsize
        return self._code.group_size // LANES * item

    def declare(self, most: Any, scope: str) -> Any:
        """Declare a buffer for at most `most` coded rows, see `RowCoder.declare`.

        They lie in groups of 32. The last group may have room to spare, and so may the last part of
        rows that are staged.
        """
        groups = tirx.ceildiv(most, i64(LANES))
        rows = self._count_staged(most)
        if rows:
            groups = i64(-(-int(most) // rows) * rows // LANES)
        return tirx.decl_buffer(
            (groups, i64(self._code.group_size)), self._code.dtype, "banks", scope=scope
        )

    def place(self, row: Any) -> list[Any]:
        """Return the indices of a row's first code: its group, and the place within the group."""
        lane = tirx.floormod(row, i64(LANES))
        return [tirx.floordiv(row, i64(LANES)), lane * self._code.in_word]

    def _count_staged(self, most: Any) -> int:
        """Return the number of rows that are staged at once; 0 if rows are not staged.

        They are not on CPUs, or if 32 rows are too large, or if the block's size is unknown.
        """
        if self.comparer.vectors is not None or not isinstance(most, tirx.IntImm):
            return 0
        item = tvm.DataType(self.rows.dtype).itemsize
        bytes_ = row_pitch(int(self.rows.shape[1]), self.rows.dtype) * item
        rows = LANES
        if rows * bytes_ > STAGE_BYTES:
            return 0
        while rows < int(most) and 2 * rows * bytes_ <= STAGE_BYTES:
            rows *= 2
        return rows

    def emit(
        self, code: Builder, buffers: dict[str, Any], near: Any, first: Any, here: Any
    ) -> None:
        """Emit the search of every column's cuts; neighbouring threads take neighbouring rows."""
        on_gpu = self.comparer.vectors is None
        rows = self._count_staged(near.shape[0] * LANES)
        if not rows:
            spans = near.shape[0] * LANES if on_gpu else here

            def read(row: Any, feature: Any) -> Any:
                return self.rows[first + row, feature]

            self._search_columns(code, buffers, near, (i64(0), spans), first, read)
            return
        with code.repeat("part", tirx.floordiv(near.shape[0] * LANES, i64(rows))) as part:
            start = part * rows
            stage = bring_rows_near(code, "stage", self.rows, first + start, rows)
            span = (start, i64(rows))
            self._search_columns(code, buffers, near, span, first + start, lambda r, f: stage[r, f])

    def _search_columns(
        self,
        code: Builder,
        buffers: dict[str, Any],
        near: Any,
        span: tuple[Any, Any],
        first: Any,
        read: Any,
    ) -> None:
        """Search every column for some rows of the block.

        Args:
            code: where statements go.
            buffers: buffers of the model.
            near: buffer of the codes.
            span: the first of these rows in the block, and their number.
            first: row of the call at which `span` begins. Rows beyond the call's last one are not
                coded, and GPU threads derive from it which rows are theirs.
            read: function that loads a feature of one of these rows, counted from the first.
        """
        start, count = span
        on_gpu = self.comparer.vectors is None
        together = TOGETHER if on_gpu else 1
        for group, begin in self._column_groups():
            for width, left, times in _deal_out(begin, group.stop, together):
                with code.nest("code", [i64(times), count], on_gpu, apart=True) as (part, r):
                    inside = first + r < self.rows.shape[0]
                    with code.block(lambda body, inside=inside: guard(body, [inside])):
                        columns = [left + part * width + k for k in range(width)]
                        loads = [buffers["column_feature"][column] for column in columns]
                        features = [code.hold("feature", x).astype("int64") for x in loads]
                        xs = [read(r, x).astype(buffers["cuts"].dtype) for x in features]
                        xs = [code.hold("x", x) for x in xs]
                        ranks = self._rank(code, buffers, group, columns, xs)
                        group_of, lane = self.place(start + r)
                        for column, rank in zip(columns, ranks, strict=True):
                            at = self._code.place(column) + lane
                            code.store(near, rank, [group_of, at])

    def _rank(
        self,
        code: Builder,
        buffers: dict[str, Any],
        group: SearchGroup,
        columns: list[Any],
        xs: list[Any],
    ) -> list[Any]:
        """Emit the search of values in the cut trees of several columns; return their codes.

        It goes level by level, to the right if a value reaches the cut. The code of a missing value
        is 0 in columns where it goes left, else the largest one.
        """
        bases = [code.hold("at", buffers["column_cuts"][column]) for column in columns]
        places = [code.hold("place", i64(1)) for _ in columns]
        searches = list(zip(bases, places, xs, strict=True))
        for _ in range(group.steps):
            cuts = [code.hold("cut", buffers["cuts"][at + place]) for at, place, _ in searches]
            for (_, place, x), cut in zip(searches, cuts, strict=True):
                reached = cut <= x if self.comparer.comparison == "<" else cut < x
                code.put(place, place * 2 + reached.astype("int64"))
        ranks = [(place - (1 << group.steps)).astype(self._code.dtype) for place in places]
        if group.missing_left:
            return ranks
        most = tirx.max_value(self._code.dtype)
        return [tirx.Select(tirx.isnan(x), most, rank) for x, rank in zip(xs, ranks, strict=True)]


def _deal_out(begin: int, end: int, most: int) -> list[tuple[int, int, int]]:
    """Split columns into equal parts of at most `most`, such as 9 into 3 x 3, and a rest.

    Returns:
        (width, first column, number of parts of this width) for the equal parts and for the rest.
    """
    count = end - begin
    width = -(-count // max(1, -(-count // most))) or 1
    full, rest = divmod(count, width)
    parts = [(width, begin, full), (rest, end - rest, 1)]
    return [part for part in parts if part[0] * part[2]]
