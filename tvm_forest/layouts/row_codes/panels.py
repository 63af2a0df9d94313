"""Plans the panels in which the columns of 64 rows become bit planes.

takes: the columns of a forest and their cuts; gives: PanelCode and the arrays that coding reads.

Four adjacent features are a unit, of which 64 rows are transposed at once. Up to 16 units are a
panel, whose columns stay in the first-level cache while they are coded:

    rows        f0 f1 f2 f3 | f4 f5 f6 f7 | ...          units without a tested feature are left out
    panel       64 values of f0, 64 values of f1, ...    `column_place` says where those of a column
                                                         begin

A column of up to 15 cuts is compared with each of them, which yields planes at once: `test_place`
and `test_cut` hold the column and cut of each test. One of more cuts is searched as all row codes
are, see `ranks`, or, with up to 255 cuts, by permutes: its cuts are in tables, one per level:

    level 0                       4                      table 0      4
    level 1             2                   6            table 1      2 6
    level 2        1         3         5         7       table 2      1 5 3 7

The outcomes of earlier levels form the index of the entry, the first as the lowest bit; hence 5 is
before 3. Places without a cut hold infinity. So too many cuts are counted for infinity, and for a
missing value that goes right; this is harmless, since codes are only compared with numbers of cuts.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ...forest import Array
from ...system.values import dataclass
from .ranks import RankCode, count_levels

UNIT_FEATURES = 4
"""Number of features in a unit: they take 16 bytes as float32, a quarter of a register."""

PANEL_BYTES = 16 * 1024
"""Size of a panel's columns in bytes, half of a small first-level cache."""

ROWS = 64
"""Number of rows that are transposed together."""

REGISTER_ENTRIES = 16
"""Number of float32 entries in an AVX-512 register, the least length of a table."""

MAX_LEVELS = 8
LEVELS = (5, 6, 7, MAX_LEVELS)
"""Numbers of levels that a permute search of 16 to 255 cuts may have."""


@dataclass(frozen=True)
class PanelGroup:
    """Neighbouring columns that are coded by the same code.

    Attributes:
        steps: number of search steps, 16 cuts each; 1 if each cut is compared.
        missing_left: whether missing values go to the left.
        levels: number of levels in a permute search; 0 unless the search has two steps.
    """

    steps: int
    missing_left: bool
    levels: int


@dataclass(frozen=True)
class PanelCode:
    """The division of a row's columns into panels.

    Attributes:
        width: features of a unit, 4, or fewer if rows are narrower.
        panels: number of panels; the array `panel_units` holds how many units each one uses.
        most: units of a panel, except the last.
        dtype: dtype of cuts, and of the values compared with them.
        groups: groups of columns, in order; `panel_stops` holds the columns of each, maybe none.
    """

    width: int = 1
    panels: int = 0
    most: int = 1
    dtype: str = "float32"
    groups: tuple[PanelGroup, ...] = ()


class SearchedColumns(NamedTuple):
    """The columns that are searched, in order.

    Attributes:
        code: how they are searched.
        feature: int (C,), feature of each column.
        first: int (C + 1,), first test of each column, and the end.
        cuts: (first[C],), the cut of each test.
    """

    code: RankCode
    feature: Array
    first: Array
    cuts: Array


def plan_panels(columns: SearchedColumns, row_width: int) -> tuple[PanelCode, dict[str, Array]]:
    """Divide columns into panels.

    Returns:
        the code, and arrays by name:
            unit_feature: first feature of each unit.
            panel_units: number of units of each panel.
            panel_ahead: element of the rows to prefetch while a panel is coded.
            panel_stops: for each group, the first column of each panel, or its first test if all
                cuts are compared.
            column_place, test_place: place in the panel of each column, and of each compared test.
            test_cut: cut of each compared test.
            tables, column_table: tables of permute searches, and where those of a column begin.
    """
    feature, cuts = columns.feature, columns.cuts
    width = min(UNIT_FEATURES, row_width)
    used = np.flatnonzero(np.bincount(feature // UNIT_FEATURES))
    unit = np.searchsorted(used, feature // UNIT_FEATURES)
    start = np.minimum(used * UNIT_FEATURES, row_width - width)
    most = PANEL_BYTES // (UNIT_FEATURES * ROWS * cuts.dtype.itemsize)
    most = min(most, -(-row_width // UNIT_FEATURES))
    panels = -(-len(used) // most)
    place = unit % most * UNIT_FEATURES + feature - start[unit]
    groups, ends = _find_groups(columns)
    code = PanelCode(width, panels, most, cuts.dtype.name, groups)
    stops, begin = np.zeros((max(1, len(groups)), panels + 1), np.int64), 0
    for row, group, end in zip(stops, groups, ends, strict=False):
        panel = unit[begin:end] // most
        row[:] = begin + np.searchsorted(panel, np.arange(panels + 1))
        row[:] = columns.first[row] if group.steps == 1 else row
        begin = end
    compared = max((end for x, end in zip(groups, ends, strict=True) if x.steps == 1), default=0)
    n_compared = int(columns.first[compared])
    counts = np.diff(columns.first[: compared + 1])
    at, tables = _write_tables(columns, groups, ends)
    fill = np.zeros(1, np.int32)  # no buffer is empty
    arrays: dict[str, Array] = {
        "unit_feature": np.append(start, fill).astype(np.int32),
        "panel_units": np.diff([*range(0, len(used), most), len(used)], append=0).astype(np.int32),
        "panel_ahead": np.append(start[most::most], ROWS * row_width + start[:1]).astype(np.int64),
        "panel_stops": stops.astype(np.int32),
        "column_place": np.append(place, fill).astype(np.int32),
        "test_place": np.append(np.repeat(place[:compared], counts), fill).astype(np.int32),
        "test_cut": np.append(cuts[:n_compared], cuts.dtype.type(0)),
        "column_table": at,
        "tables": tables,
    }
    return code, arrays


def _find_groups(columns: SearchedColumns) -> tuple[tuple[PanelGroup, ...], list[int]]:
    """Split the groups of a row code by levels; return them, and the column after each one's last.

    Code is emitted for all possible levels, since those in use change with every training.
    """
    levels, begin = count_levels(np.diff(columns.first)), 0
    groups, ends = list[PanelGroup](), list[int]()
    for group in (x for x in columns.code.groups if not x.asked):
        own = levels[begin : group.stop]
        for level in LEVELS if group.steps == 2 and columns.cuts.dtype == np.float32 else (0,):
            groups.append(PanelGroup(group.steps, group.missing_left, level))
            ends.append(begin + int(np.searchsorted(own, level, "right")) if level else group.stop)
        begin = group.stop
    return tuple(groups), ends


def _write_tables(
    columns: SearchedColumns, groups: tuple[PanelGroup, ...], ends: list[int]
) -> tuple[Array, Array]:
    """Return where the tables of each column begin, int32 (C + 1,), and the tables of all.

    `groups` and `ends` are those of `_find_groups`: columns of no permute search have no table.
    """
    sizes, begin = np.zeros(len(columns.feature) + 1, np.int64), 0
    for group, end in zip(groups, ends, strict=True):
        sizes[begin:end] = table_begin(group.levels) if group.levels else 0
        begin = end
    at = np.cumsum(sizes) - sizes
    tables, begin = np.full(max(1, int(sizes.sum())), np.inf, columns.cuts.dtype), 0
    counts = np.diff(columns.first)
    for group, end in zip(groups, ends, strict=True):
        own, begin = slice(begin, end), end
        if group.levels:
            cut = _list_cuts(group.levels)
            entry, column = at[own, None] + np.arange(len(cut)), columns.first[:-1][own, None] + cut
            there = cut < counts[own, None]
            tables[entry[there]] = columns.cuts[column[there]]
    return at.astype(np.int32), tables


def table_begin(level: int) -> int:
    """Return where the table of a level begins, relative to the tables of its column.

    The single entry of level 0 comes after the two of level 1.
    """
    if level == 0:
        return 2
    return sum(max(REGISTER_ENTRIES, 1 << k) for k in range(1, level))


@functools.cache
def _list_cuts(levels: int) -> Array:
    """Return which of a column's cuts each entry of its tables holds, by the cut's index.

    An index above all cuts stands for none.
    """
    cuts = np.full(table_begin(levels), 1 << levels)  # which no column has
    for level in range(levels):
        entry = np.arange(1 << level)
        before = np.zeros_like(entry)
        for k in range(level):
            before += (entry >> k & 1) << levels - 1 - k
        first = table_begin(level)
        cuts[first : first + len(entry)] = before + (1 << levels - 1 - level) - 1
    cuts.flags.writeable = False
    return cuts
