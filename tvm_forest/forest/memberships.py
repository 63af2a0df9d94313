"""What happens to a row before the first comparison.

takes: Forest, rows as users pass them; gives: rows as walks read them.

Values that the source library takes for missing become NaN. Memberships in sets of categories
become columns behind the others: 0 where the row goes left, 1 where it goes right, NaN where the
value is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .rules import ZERO, Array

if TYPE_CHECKING:
    from .model import Forest


MISSING = -2
"""What `labels` says of a missing value."""


class Memberships(NamedTuple):
    """The columns that one feature gives.

    Attributes:
        feature: column of the categories.
        columns: slice of the columns that are made of it.
        known: int64 (K,), the categories in the sets, ascending.
        goes_right: (K + 1, J) in the dtype of rows; row k is for category known[k], the last one
            for values that are no category, or one that is in no set.
    """

    feature: int
    columns: slice
    known: Array
    goes_right: Array

    def of(self, codes: Array) -> Array:
        """Return the columns of categories (R,), -1 for none: (R, J)."""
        place = np.searchsorted(self.known, codes)
        place[np.append(self.known, -2)[place] != codes] = len(self.known)
        return self.goes_right[place]


class Question(NamedTuple):
    """What a feature is asked for, counted.

    Attributes:
        feature: column of the categories.
        sets: how many sets.
        categories: distinct ones in all sets.
        named: categories that name all sets, be it by what they hold or by what they do not hold.
    """

    feature: int
    sets: int
    categories: int
    named: int


def questions(forest: Forest) -> list[Question]:
    """Count what each feature is asked for."""
    found = []
    for feature, group in groupby(forest.derived, key=lambda test: test[0]):
        sets = [codes for _, codes in group]
        sizes = np.array([len(codes) for codes in sets])
        known = len(set().union(*sets))
        named = np.minimum(sizes, known + 2 - sizes).sum()  # beside: no category, missing
        found.append(Question(feature, len(sets), known, int(named)))
    return found


def memberships(forest: Forest) -> list[Memberships]:
    """Return the tables of all derived columns, feature by feature."""
    rule, tables, begin = forest.category_rule, [], forest.row_width
    for feature, group in groupby(forest.derived, key=lambda test: test[0]):
        sets = [codes for _, codes in group]
        assert rule is not None, "checked when the forest was made"
        known = np.array(sorted(set().union(*sets)), np.int64)
        member = np.zeros((len(known) + 1, len(sets)), bool)
        for column, codes in enumerate(sets):
            member[np.searchsorted(known, np.array(codes, np.int64)), column] = True
        goes_right = member == (rule.members_go == "right")
        columns = slice(begin, begin + len(sets))
        tables.append(Memberships(feature, columns, known, goes_right.astype(forest.row_dtype)))
        begin += len(sets)
    return tables


def labels(forest: Forest, feature: int, values: Array) -> Array:
    """Return what sets of categories can tell apart, for clean values of a feature.

    Returns:
        int64, the category of each value, -1 for none, `MISSING` for a missing value.
    """
    rule = forest.category_rule
    assert rule is not None, "checked when the forest was made"
    gone = np.isnan(values)
    if feature in forest.known_categories:
        gone |= ~np.isin(values, forest.known_categories[feature])
    return np.where(gone, MISSING, rule.codes(values))


def prepared(forest: Forest, rows: Array) -> Array:
    """See `Forest.prepared`."""
    rows = _cleaned(forest, rows, forest.known_categories)
    if not forest.derived:
        return rows
    rule = forest.category_rule
    assert rule is not None, "checked when the forest was made"
    wide = np.empty((len(rows), forest.n_features), rows.dtype)
    wide[:, : forest.row_width] = rows
    for table in forest.memberships:
        value = rows[:, table.feature]
        wide[:, table.columns] = table.of(rule.codes(value))
        wide[np.isnan(value), table.columns] = np.nan
    return wide


def cleaned(forest: Forest, rows: Array) -> Array:
    """See `Forest.cleaned`."""
    return _cleaned(forest, rows, forest.compared_categories)


def _cleaned(forest: Forest, rows: Array, categories: Mapping[int, tuple[int, ...]]) -> Array:
    if forest.missing is None and not forest.zero_missing and not categories:
        return rows
    holes = np.zeros(rows.shape, bool)
    if forest.missing is not None:
        holes |= rows == rows.dtype.type(forest.missing)
    zero = list(forest.zero_missing)
    holes[:, zero] |= np.abs(rows[:, zero]) <= ZERO
    for feature, known in categories.items():
        holes[:, feature] |= ~np.isin(rows[:, feature], known)
    return np.where(holes, rows.dtype.type(np.nan), rows)
