"""Emits the coding of panels: 64 rows become columns, and columns become bit planes or ranks.

takes: 64 rows of a block; gives: statements that write the planes of tests whose cuts are compared
one by one, and the ranks or codes of the columns that are searched.

    for each panel                           a group of columns
        for each unit                        values[place + k, 0..63] = rows[0..63, feature + k]
        for each test that is compared       planes[test, word] = values[place, :] < cut
        for each column that is searched     ranks[column, :] = rank(values[place, :])

A unit is up to four adjacent features, with k from 0 on, see `layouts.row_codes.panels`. Rows of
the next panel are prefetched while one is coded.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from tvm import tirx

from ...layouts.row_codes.panels import UNIT_FEATURES, PanelCode, PanelGroup
from ...layouts.row_codes.planes import (
    ROWS_IN_WORD,
    PlaneCode,
    bit_of_row,
    byte_of_row,
    words_together,
)
from ...layouts.row_codes.ranks import SearchGroup
from ...system.values import dataclass, replace
from ..builder import Builder
from ..ir import i64
from ..walks.vectors import Vectors
from . import column_vectors
from .searches import ROWS_TOGETHER, Chunk, ColumnSearch

if TYPE_CHECKING:
    from .coders import PlaneCoder


def found_dtypes(planes: PlaneCode, vectors: Vectors) -> dict[str, str]:
    """Return the names and dtypes of the buffers for the results of searches.

    They are "ranks" for columns that are searched by permutes, else "high" and "low", the parts of
    codes that take two steps at most, and "codes" for columns with more than 255 cuts.
    """
    names, panels = dict[str, str](), planes.panels
    for steps, _, _ in planes.searched:
        if steps > 2:
            names["codes"] = planes.ranks.dtype
        elif column_vectors.can_search(vectors, panels.dtype):
            names["ranks"] = "uint8"
        else:
            names |= {"high": "uint8", "low": "uint8"}
    return names


@dataclass(frozen=True)
class PanelCoder:
    """Emits the coding of 64 rows, which goes through the panels one after the other.

    Attributes:
        coder: coder of the rows.
        code: where statements go.
        buffers: buffers of the layout.
        found: buffers (columns, rows) for the results of searches, see `PlaneWriter`.
        planes: buffer (planes, words) to be written.
        values: buffer (columns of a panel, 64) for the values of 64 rows.
    """

    coder: PlaneCoder
    code: Builder
    buffers: dict[str, Any]
    found: dict[str, Any]
    planes: Any
    values: Any

    @classmethod
    def begin(
        cls,
        coder: PlaneCoder,
        code: Builder,
        buffers: dict[str, Any],
        found: dict[str, Any],
        planes: Any,
    ) -> PanelCoder:
        """Create a coder, and declare the buffer of a panel's columns."""
        panels = coder.planes.panels
        columns = UNIT_FEATURES * panels.most
        values = code.buffer("values", (i64(columns), i64(ROWS_IN_WORD)), panels.dtype)
        return cls(coder, code, buffers, found, planes, values)

    @property
    def panels(self) -> PanelCode:
        """The division of columns into panels."""
        return self.coder.planes.panels

    @property
    def vectors(self) -> Vectors:
        """Operations on vectors."""
        vectors = self.coder.comparer.vectors
        assert vectors is not None, "checked by PlaneCoder"
        return vectors

    def emit(self, chunk: Chunk) -> None:
        """Emit code for 64 rows, panel by panel."""
        with self.code.repeat("panel", i64(self.panels.panels)) as panel:
            self.read(chunk, panel)
            stops, first = self.buffers["panel_stops"], 0
            for group, alike in self._list_groups():
                with self.code.parts("levels", alike, 1) as place:
                    number = first + place
                    loads = (stops[number, panel + k].astype("int64") for k in (0, 1))
                    begin, end = (self.code.hold("stop", load) for load in loads)
                    with self.code.repeat("item", end - begin) as item:
                        if group.steps == 1:
                            self.compare(group, begin + item, chunk)
                        else:
                            self.search(group, begin + item, chunk)
                first += alike

    def _list_groups(self) -> list[tuple[PanelGroup, int]]:
        """Return (group, number of consecutive groups that share its code) pairs.

        Groups that differ only in `levels` share code, unless columns are searched by permutes.
        """
        groups = self.panels.groups
        if "ranks" not in self.found:
            groups = tuple(replace(x, levels=0) for x in groups)
        return [(group, len(list(alike))) for group, alike in groupby(groups)]

    def read(self, chunk: Chunk, panel: Any) -> None:
        """Transpose rows to columns: all 64 at once, or row by row if there are fewer."""
        most = i64(self.panels.most)
        units = self.code.hold("units", self.buffers["panel_units"][panel].astype("int64"))
        full = tirx.EQ(chunk.left, i64(ROWS_IN_WORD))
        for is_full in (True, False):
            condition = full if is_full else tirx.Not(full)
            with (
                self.code.block(lambda body, c=condition: tirx.IfThenElse(c, body, None)),
                self.code.repeat("unit", units) as unit,
            ):
                load = self.buffers["unit_feature"][panel * most + unit].astype("int64")
                feature = self.code.hold("feature", load)
                if is_full:
                    self._transpose(chunk, panel, unit, feature)
                else:
                    self._copy(chunk, unit, feature)

    def _transpose(self, chunk: Chunk, panel: Any, unit: Any, feature: Any) -> None:
        rows, row = self.coder.rows, chunk.first + chunk.start
        width, ahead = int(rows.shape[1]), None
        if self.panels.panels > 1:
            step = self.buffers["panel_ahead"][panel]
            ahead = rows[row, step + unit * (UNIT_FEATURES * width)]
        into = self.values[unit * UNIT_FEATURES, i64(0)]
        source = rows[row, feature]
        self.code.add(
            column_vectors.transpose(self.vectors, source, width, self.panels.width, into, ahead)
        )

    def _copy(self, chunk: Chunk, unit: Any, feature: Any) -> None:
        with self.code.nest("value", [i64(self.panels.width), chunk.left]) as (column, row):
            value = self.coder.rows[chunk.first + chunk.start + row, feature + column]
            at = [unit * UNIT_FEATURES + column, bit_of_row(row)]
            self.code.store(self.values, value.astype(self.panels.dtype), at)

    def compare(self, group: PanelGroup, test: Any, chunk: Chunk) -> None:
        """Emit the comparison of a column with the cut of a test, which gives a word of a plane."""
        name = "lt" if self.coder.comparer.comparison == "<" else "le"
        how = f"{'u' if group.missing_left else 'o'}{name}"
        place = self.buffers["test_place"][test].astype("int64")
        column = self.values[place, i64(0)]
        bits = column_vectors.compare(self.vectors, how, column, self.buffers["test_cut"][test])
        self.code.store(self.planes, bits, [test, tirx.floordiv(chunk.start, i64(ROWS_IN_WORD))])

    def search(self, group: PanelGroup, column: Any, chunk: Chunk) -> None:
        """Emit the search of a column's values among its cuts, by permutes if possible."""
        place = self.code.hold("place", self.buffers["column_place"][column].astype("int64"))
        if group.steps == 2 and "ranks" in self.found:
            name = "ge" if self.coder.comparer.comparison == "<" else "gt"
            how = f"{'o' if group.missing_left else 'u'}{name}"
            table = self.buffers["tables"][self.buffers["column_table"][column].astype("int64")]
            values = self.values[place, i64(0)]
            words = int(self.planes.shape[1])
            into = self.found["ranks"][column, byte_of_row(chunk.start, words)]
            some = words_together(words)
            self.code.add(
                column_vectors.search(self.vectors, how, group.levels, values, table, into, some)
            )
            return
        columns = SearchGroup(0, group.steps, group.missing_left)
        search = ColumnSearch(self.coder, self.code, self.buffers, columns, column, self.found)
        with self.code.repeat("group", i64(ROWS_IN_WORD // ROWS_TOGETHER)) as some:
            rows = [some * ROWS_TOGETHER + k for k in range(ROWS_TOGETHER)]
            loads = [self.values[place, bit_of_row(row)] for row in rows]
            search.emit(loads, [chunk.start + row for row in rows])
