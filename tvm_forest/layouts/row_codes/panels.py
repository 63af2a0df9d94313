"""Panels: in which pieces the columns of 64 rows become planes.

takes: the columns of a forest and their cuts; gives: PanelCode and the arrays that coding reads.

Four features that lie beside each other are a unit: 64 rows of it are turned into columns at once.
Up to 16 units are a panel, whose columns stay in the first-level cache while they are coded:

    rows        f0 f1 f2 f3 | f4 f5 f6 f7 | ...          units without a tested feature are left out
    panel       64 values of f0, 64 values of f1, ...    `column_place` says where those of a column
                                                         begin

A column of up to 15 cuts is compared with each of them, which gives planes at once: `test_place`
and `test_cut` say what is compared for each test. One of up to 255 cuts is searched, either as all
row codes are, see `ranks`, or by permutes, for which its cuts lie in tables, one for each level:

    level 0                       4                      table 0      4
    level 1             2                   6            table 1      2 6
    level 2        1         3         5         7       table 2      1 5 3 7

The outcomes of the levels before are the number of the entry, the first its lowest bit: that is why
5 stands before 3. Places without a cut hold infinity. That too many cuts are counted for infinity,
or for a missing value that goes to the right, does no harm: a code is only asked whether it is at
most k, for every cut k.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ...forest import Array
from ...values import dataclass
from .ranks import RankCode, count_levels

UNIT_FEATURES = 4
"""Features of a unit: 16 bytes of float32, a quarter of a register of AVX-512."""

PANEL_BYTES = 16 * 1024
"""Bytes of the columns of a panel, half of a small first-level cache."""

ROWS = 64
"""Rows whose values lie side by side."""

REGISTER_ENTRIES = 16
"""Entries of a register of AVX-512: tables are at least as long."""

MAX_LEVELS = 8
LEVELS = (5, 6, 7, MAX_LEVELS)
"""Levels that a search of 16 to 255 cuts by permutes may have."""


@dataclass(frozen=True)
class PanelGroup:
    """Neighbouring columns that are coded alike.

    Attributes:
        steps: steps of their search among 16 cuts; 1 if each cut is compared.
        missing_left: whether missing values go to the left.
        levels: levels of their search by permutes; 0 if it has more steps than two, or one.
    """

    steps: int
    missing_left: bool
    levels: int


@dataclass(frozen=True)
class PanelCode:
    """How the columns of 64 rows are cut into panels.

    Attributes:
        width: features of a unit; rows may be narrower than 4.
        panels: number of panels; how many units are used, `panel_units` says.
        most: units of a panel, but for the last.
        dtype: of cuts, with which values are compared.
        groups: columns in order; which columns a group has, `panel_stops` says, and it may be none.
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
        feature: int (C,), which feature of a row.
        first: int (C + 1,), first test of each, and the end.
        cuts: (first[C],), the cut of each test.
    """

    code: RankCode
    feature: Array
    first: Array
    cuts: Array


def plan_panels(columns: SearchedColumns, row_width: int) -> tuple[PanelCode, dict[str, Array]]:
    """Cut columns into panels.

    Returns:
        code, and the arrays: first feature of each unit; units of each panel; what is prefetched
        while it is coded, as the distance from the first element of the rows; for each group and
        panel the first column, or the first test where cuts are compared; the place of each column
        and of each test that is compared, and its cut; the tables, and where those of a column
        begin.
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
    """Cut the groups of a row code by levels; return them, and the number behind each one's last.

    Code has all levels that there may be, for which of them occur changes with every training.
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
    """Return where the tables of each column begin, int32 (C + 1,), and the tables of all."""
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
    """Return where the table of a level begins, or behind the last level where all end.

    The one entry of level 0 lies behind the two of level 1.
    """
    if level == 0:
        return 2
    return sum(max(REGISTER_ENTRIES, 1 << k) for k in range(1, level))


@functools.cache
def _list_cuts(levels: int) -> Array:
    """Return which cut of a column each entry of its tables is, counted in order."""
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
