"""What happens to a row before the first comparison.

takes: Forest, rows as users pass them; gives: rows as walks read them.

Values that the source library takes for missing become NaN. Memberships in sets of categories
become columns behind the others: 0 where the row goes left, 1 where it goes right, NaN where the
value is missing.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .rules import ZERO, Array

if TYPE_CHECKING:
    from .model import Forest


class Memberships(NamedTuple):
    """The columns that one feature gives.

    Attributes:
        feature: column of the categories.
        columns: slice of the columns that are made of it.
        goes_right: (K + 1, J) in the dtype of rows; row 0 is for values that are no category, or
            one beyond those in the sets; row k + 1 is for category k.
    """

    feature: int
    columns: slice
    goes_right: Array


def memberships(forest: Forest) -> list[Memberships]:
    """Return the tables of all derived columns, feature by feature."""
    rule, tables, begin = forest.category_rule, [], forest.row_width
    for feature, group in groupby(forest.derived, key=lambda test: test[0]):
        sets = [codes for _, codes in group]
        assert rule is not None, "checked when the forest was made"
        top = max((max(codes, default=-1) for codes in sets), default=-1)
        member = np.zeros((top + 2, len(sets)), bool)
        for column, codes in enumerate(sets):
            member[np.array(codes, np.int64) + 1, column] = True
        goes_right = member == (rule.members_go == "right")
        columns = slice(begin, begin + len(sets))
        tables.append(Memberships(feature, columns, goes_right.astype(forest.row_dtype)))
        begin += len(sets)
    return tables


def prepared(forest: Forest, rows: Array) -> Array:
    """See `Forest.prepared`."""
    rows = _cleaned(forest, rows)
    if not forest.derived:
        return rows
    rule = forest.category_rule
    assert rule is not None, "checked when the forest was made"
    wide = np.empty((len(rows), forest.n_features), rows.dtype)
    wide[:, : forest.row_width] = rows
    for feature, columns, goes_right in forest.memberships:
        value = rows[:, feature]
        codes = rule.codes(value)
        place = np.where(codes < len(goes_right) - 1, codes + 1, 0)
        wide[:, columns] = goes_right[place]
        wide[np.isnan(value), columns] = np.nan
    return wide


def _cleaned(forest: Forest, rows: Array) -> Array:
    if forest.missing is None and not forest.zero_missing and not forest.known_categories:
        return rows
    holes = np.zeros(rows.shape, bool)
    if forest.missing is not None:
        holes |= rows == rows.dtype.type(forest.missing)
    zero = list(forest.zero_missing)
    holes[:, zero] |= np.abs(rows[:, zero]) <= ZERO
    for feature, known in forest.known_categories.items():
        holes[:, feature] |= ~np.isin(rows[:, feature], known)
    return np.where(holes, rows.dtype.type(np.nan), rows)
