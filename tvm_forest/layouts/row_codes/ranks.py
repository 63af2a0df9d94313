"""Ranks: small integers that compare with a model's thresholds as the row's values do.

takes: Forest; gives: RankCode (how rows are coded) and the arrays that coding reads.

The code of x is the number of thresholds of its feature that do not send x to the left:

    code(x) = #{t : t <= x} if the model compares with <;    x <  t  iff  code(x) <  code(t)
    code(x) = #{t : t <  x} if the model compares with <=;   x <= t  iff  code(x) <= code(t)

so a walk compares codes as it would compare the values. A NaN gets the least code where missing
values go left, and the greatest number of the code's type where they go right, so it needs no
further test. For that, a feature that is tested with both sides has two columns in a coded row; a
feature that is never tested has none.

The thresholds of a column, its cuts, are searched 16 at a time, by counting the true comparisons. A
column of up to 15 cuts takes one such step, one of up to 255 two, and so on:

    step 0   every 16th cut        16 of them, filled up with NaN, which no value reaches
    step 1   all cuts              the 16 from place 16 * (count of step 0) on

A membership column (`Forest.derived`) is not searched: the categorical feature behind it is
searched once for all its sets, see `categories`, and the codes of all its membership columns are
looked up. These columns come last, feature by feature, and so do the searches of categorical
features, which all take the same number of steps, so that one piece of code serves them all.

Models trained on 256 bins have at most 255 cuts per feature, and so codes of 8 bits. Trainers
compare bins in the same way; our bins are the model's thresholds, however it was trained.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...forest import Array, Forest
from ...forest.structure.distinct_tests import DistinctTests
from ...system.values import dataclass, replace
from . import categories
from .categories import CategoricalFeature

CUTS_IN_STEP = 16
"""Cuts that one step of a search compares: one vector of AVX-512, or two of AVX2."""

ROOM, LESS = 8, 2
"""Rows are padded to a multiple of `ROOM` codes, minus `LESS` unless `multiple` is above 1.

LLVM recomputes each address if rows are 32 bytes apart, but not if they are 30 bytes apart.
"""

MAX_THRESHOLDS = 65535
"""Largest number of cuts of a column, since codes have 16 bits."""


@dataclass(frozen=True)
class SearchGroup:
    """Neighbouring searches of the same kind: each codes a column, or finds a category.

    Attributes:
        stop: index after the last search.
        steps: number of steps of each search.
        missing_left: whether missing values go to the left.
        asked: whether the search finds the number of a category; then it counts cuts <= the value,
            whatever comparison the model uses.
    """

    stop: int
    steps: int
    missing_left: bool
    asked: bool = False


@dataclass(frozen=True)
class RankCode:
    """The parameters of coding rows: dtype, searches, and the placement of codes.

    Attributes:
        dtype: dtype of the codes, uint8 or uint16.
        groups: groups of searches, in order; some may be empty, see `group_stops` in RankedTests.
        sets: number of membership columns.
        lanes: rows whose codes are adjacent, column by column.
        multiple: the number of codes of a row is padded to a multiple of this.
    """

    dtype: str
    groups: tuple[SearchGroup, ...]
    sets: int = 0
    lanes: int = 1
    multiple: int = 1

    @property
    def kind(self) -> Any:
        """The part of the row code that compiled code depends on.

        The ends of groups are left out, since code reads them from an array. With sets of
        categories they count, because column numbers are then constants of the code.
        """
        groups = self.groups if self.sets else [replace(x, stop=0) for x in self.groups]
        return self.dtype, tuple(groups), self.sets, self.lanes, self.multiple, self.room

    @property
    def room(self) -> int:
        """Number of codes of a row with padding, which makes the number equal for many models."""
        multiple = self.multiple * -(-ROOM // self.multiple)
        less = LESS if self.multiple == 1 else 0
        return -(-(max(1, self.columns) + less) // multiple) * multiple - less

    @property
    def n_categorical(self) -> int:
        """Number of searches that find a category; these come last."""
        return self.groups[-1].stop - self.n_searched

    @property
    def n_searched(self) -> int:
        """Number of columns that are searched; membership columns follow."""
        return max((x.stop for x in self.groups if not x.asked), default=0)

    @property
    def columns(self) -> int:
        """Number of codes of a row, without padding."""
        return self.n_searched + self.sets


class RankedTests(NamedTuple):
    """The tests of a forest as comparisons of codes.

    Attributes:
        code: how rows are coded.
        arrays: the arrays that searches read, by name: "column_feature", "column_cuts" (where the
            cuts of a search begin), "cuts", "group_stops" (`SearchGroup.stop`). For searches that
            find a category also "set_features", see `categories.feature_table`, whose last field
            says where the codes of a feature begin in "answers", and "numbers". There are few
            arrays, because code that checks a buffer's type and shape takes time to compile.
        tests: the distinct tests, with columns numbered as they are coded.
        codes: int64 (P,), code of each test's threshold.
        categorical: the categorical features, in the order of their columns.
    """

    code: RankCode
    arrays: dict[str, Array]
    tests: DistinctTests
    codes: Array
    categorical: tuple[CategoricalFeature, ...]

    @property
    def column(self) -> Array:
        """Int64 (N,), column that each node tests, 0 at leaves."""
        return self.tests.spread(self.tests.column)

    @property
    def rank(self) -> Array:
        """Int64 (N,), code of each node's threshold, 0 at leaves."""
        return self.tests.spread(self.codes)

    def answer_arrays(self) -> dict[str, Array]:
        """Return {"answers": array}, from which code copies the codes of a row's category.

        The array is flat: for each categorical feature, and each number of a category of it, the
        codes in the feature's membership columns. The dict is empty without such features.
        """
        if not self.categorical:
            return {}
        return {"answers": np.concatenate([x.codes.ravel() for x in self.categorical])}


def choose_code_dtype(forest: Forest) -> str:
    """Return the dtype of codes: the narrowest that can count a column's thresholds."""
    return "uint8" if forest.cuts_per_column.max(initial=0) <= 255 else "uint16"


def unfit(forest: Forest) -> str | None:
    """Return a refusal that names a feature with too many thresholds or categories, or None."""
    counts = forest.cuts_per_column
    if counts.max(initial=0) <= MAX_THRESHOLDS:
        return categories.unfit(forest)
    worst = int(np.argmax(counts))
    feature = forest.distinct_tests.keys[worst] // 2
    return (
        f"feature {feature} has {counts[worst]} thresholds, a code of 16 bits tells "
        f"{MAX_THRESHOLDS} apart"
    )


def rank_tests(forest: Forest, by_levels: bool = False) -> RankedTests:
    """Rank the thresholds of every column of a forest that `unfit` accepts.

    Args:
        forest: the model.
        by_levels: whether columns searched in two steps are ordered by `count_levels` rather than
            by feature.
    """
    tests = find_tests(forest)
    categorical = _categorical_features(forest, tests)
    code, arrays, order = _plan_searches(forest, tests, categorical, by_levels)
    tests = tests._replace(column=np.argsort(order)[tests.column])
    codes = tests.place + (forest.comparison == "<")
    return RankedTests(code, arrays, tests, codes, tuple(x for x, _ in categorical))


def find_tests(forest: Forest) -> DistinctTests:
    """Return the distinct tests of a forest; there is a column even if there is no test."""
    tests = forest.distinct_tests
    return tests if len(tests.keys) else tests._replace(keys=np.zeros(1, np.int64))


def _codes_of(forest: Forest, tests: DistinctTests, value: float) -> Array:
    """Return the code that a value, which is not NaN, has in each column, int64 (columns,)."""
    count = tests.cut <= value if forest.comparison == "<" else tests.cut < value
    return np.bincount(tests.column, count, len(tests.keys)).astype(np.int64)


def _categorical_features(
    forest: Forest, tests: DistinctTests
) -> list[tuple[CategoricalFeature, Array]]:
    """Return the categorical features, each with the indices in `tests.keys` of its columns."""
    keys, dtype = tests.keys, choose_code_dtype(forest)
    sets = np.flatnonzero(keys >= 2 * forest.row_width)
    if not len(sets):
        return []
    missing = np.where(keys % 2, 0, np.iinfo(dtype).max)
    sides = [_codes_of(forest, tests, value) for value in (0, 1)]
    side_codes = categories.SideCodes(*(x.astype(dtype) for x in (*sides, missing)))
    column = keys // 2 - forest.row_width
    feature = np.array([forest.derived[c][0] for c in column[sets]])
    categorical = []
    for f in np.unique(feature):
        places = sets[feature == f]
        members = [forest.derived[c][1] for c in column[places]]
        own = side_codes.take(places)
        categorical.append((categories.number_categories(forest, int(f), members, own), places))
    return categorical


def _plan_searches(
    forest: Forest,
    tests: DistinctTests,
    categorical: list[tuple[CategoricalFeature, Array]],
    by_levels: bool,
) -> tuple[RankCode, dict[str, Array], Array]:
    """Return the row code, the arrays of the searches, and the order of the coded columns.

    The order is the index in `tests.keys` of each column of a coded row.

    Args:
        forest: the model.
        tests: its distinct tests, see `find_tests`.
        categorical: its categorical features, see `_categorical_features`.
        by_levels: see `rank_tests`.
    """
    searched = int(np.searchsorted(tests.keys, 2 * forest.row_width))
    counts = np.bincount(tests.column, minlength=len(tests.keys))[:searched]
    keys = tests.keys[:searched]
    steps = _count_steps(counts)
    levels = np.where(by_levels & (steps == 2), count_levels(counts), 0)
    order = np.lexsort((keys, levels, keys % 2, steps))
    is_searched = tests.column < searched
    column = np.argsort(order)[tests.column[is_searched]]
    features = tuple(x for x, _ in categorical)
    own = [x.cuts for x in features]
    sizes = np.array([len(x) for x in own], np.int64)
    steps = np.append(
        _count_steps(counts[order]), np.full(len(own), _count_steps(sizes).max(initial=1))
    )
    at, cuts = _write_cut_tables(
        np.append(counts[order], sizes),
        steps,
        np.append(column, np.repeat(searched + np.arange(len(own)), sizes)),
        np.concatenate([tests.place[is_searched], *map(np.arange, sizes)]),
        np.concatenate([tests.cut[is_searched], *own]),
    )
    finds_category = np.arange(len(steps)) >= searched
    missing_left = np.append(keys[order] % 2 == 1, sizes >= 0)
    groups = _group_searches(np.stack([finds_category, steps, missing_left], axis=1))
    feature = [*(keys[order] // 2), *(x.feature for x in features)]
    arrays = {"column_feature": np.array(feature, np.int32), "column_cuts": at, "cuts": cuts}
    arrays["group_stops"] = np.array([x.stop for x in groups], np.int64)
    if features:
        widths = np.array([x.codes.shape[1] for x in features])
        codes = np.array([x.codes.size for x in features])
        table = categories.feature_table(features, widths, np.cumsum(codes) - codes)
        arrays |= {"set_features": table, "numbers": np.concatenate([x.number for x in features])}
    code = RankCode(choose_code_dtype(forest), groups, len(tests.keys) - searched)
    return code, arrays, np.concatenate([order, *(places for _, places in categorical)])


def _group_searches(kinds: Array) -> tuple[SearchGroup, ...]:
    """Return the groups of searches, with empty ones that another training might fill.

    Args:
        kinds: (C, 3), for each search whether it finds a category, its steps, and whether missing
            values go left; in ascending order.
    """
    searched = kinds[kinds[:, 0] == 0]
    sides = (False, True) if searched[:, 2].any() else (False,)
    most = int(searched[:, 1].max(initial=1))
    wanted = [(0, steps, left) for steps in range(1, max(2, most) + 1) for left in sides]
    rows, groups, stop = kinds.astype(int).tolist(), list[SearchGroup](), 0
    asked = sorted({tuple(row) for row in rows if row[0] == 1})
    for finds, steps, left in (*wanted, *asked):
        stop += rows.count([finds, steps, left])
        groups.append(SearchGroup(stop, steps, bool(left), bool(finds)))
    return tuple(groups)


def _count_steps(counts: Any) -> Any:
    """Return how many search steps each number of cuts needs: one up to 15, two up to 255, ..."""
    return sum(counts >= CUTS_IN_STEP**step for step in range(1, 4)) + 1


def count_levels(counts: Array) -> Array:
    """Return, for each number of cuts, the number of steps of a binary search among so many."""
    return np.ceil(np.log2(counts + 1)).astype(np.int64)


def count_cuts_before(step: int) -> int:
    """Return where a step's cuts begin in the table of its column, if earlier steps are full."""
    return sum(CUTS_IN_STEP**k for k in range(1, step + 1))


def _write_cut_tables(
    counts: Array, steps: Array, column: Array, place: Array, cut: Array
) -> tuple[Array, Array]:
    """Return where the table of each search begins, and all tables: cuts, padded with NaN.

    A table holds the cuts of its steps one after the other, see the module's docstring.

    Args:
        counts: number of cuts of each search.
        steps: number of steps of each search.
        column, place, cut: for each cut, the index of its search, its place among the cuts of this
            search, from 0, and the cut.
    """
    offsets = np.array([0, *(count_cuts_before(step) for step in range(4))])[steps]
    sizes = offsets + CUTS_IN_STEP * (counts // CUTS_IN_STEP + 1)
    at = np.cumsum(sizes) - sizes
    table = np.full(int(sizes.sum()), np.nan, cut.dtype)
    for step in range(int(steps.max())):
        stride = CUTS_IN_STEP ** np.maximum(steps - 1 - step, 0)[column]
        is_in_step = (steps[column] > step) & ((place + 1) % stride == 0)
        entry = at[column] + count_cuts_before(step) + (place + 1) // stride - 1
        table[entry[is_in_step]] = cut[is_in_step]
    return at, table
