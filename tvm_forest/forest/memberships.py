"""Prepares rows before the first comparison: missing values and membership columns.

takes: InputMeaning, rows as users pass them; gives: rows as walks read them.

Values that the source library reads as missing become NaN. Membership columns follow the others.
With the sets {1, 3} and {2} of feature 0, whose members go left, a walk reads

    feature 0        1.0   2.0   7.0   NaN
    in {1, 3}?       0     1     1     NaN        0 goes left, 1 goes right
    in {2}?          1     0     1     NaN
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .rules import ZERO, Array, CategoryRule

if TYPE_CHECKING:
    from .structure.input_meaning import InputMeaning


MISSING = -2
"""Result of `code_categories` for a missing value."""


class MembershipTable(NamedTuple):
    """The membership columns of one feature.

    Attributes:
        feature: the column that holds the categories.
        columns: slice of the membership columns made from it.
        known: int64 (K,), the categories in the sets, ascending.
        goes_right: (K + 1, J) in the dtype of rows; row k is for category known[k], the last one
            for values that are no category, or one that is in no set.
    """

    feature: int
    columns: slice
    known: Array
    goes_right: Array

    def of(self, codes: Array) -> Array:
        """Return the membership columns (R, J) of categories (R,), in which -1 is no category."""
        place = np.searchsorted(self.known, codes)
        place[np.append(self.known, -2)[place] != codes] = len(self.known)
        return self.goes_right[place]


class SetCounts(NamedTuple):
    """Counts of the sets of categories that a feature is tested for.

    Attributes:
        feature: the column that holds the categories.
        sets: number of sets.
        categories: number of distinct categories in all sets together.
        named: number of categories to list if each set is given by its members or by all others,
            whichever are fewer; "no category" and "missing" count among the others.
    """

    feature: int
    sets: int
    categories: int
    named: int


def count_sets(meaning: InputMeaning) -> list[SetCounts]:
    """Return the SetCounts of each feature that has membership columns."""
    counts = []
    for feature, sets in _sets_of_features(meaning):
        sizes = np.array([len(codes) for codes in sets])
        known = len(set().union(*sets))
        named = np.minimum(sizes, known + 2 - sizes).sum()
        counts.append(SetCounts(feature, len(sets), known, int(named)))
    return counts


def make_tables(meaning: InputMeaning) -> list[MembershipTable]:
    """Return the tables of all membership columns, feature by feature."""
    tables, begin = [], meaning.row_width
    for feature, sets in _sets_of_features(meaning):
        known = np.array(sorted(set().union(*sets)), np.int64)
        member = np.zeros((len(known) + 1, len(sets)), bool)
        for column, codes in enumerate(sets):
            member[np.searchsorted(known, np.array(codes, np.int64)), column] = True
        goes_right = member == (read_rule(meaning).members_go == "right")
        columns = slice(begin, begin + len(sets))
        tables.append(
            MembershipTable(feature, columns, known, goes_right.astype(meaning.row_dtype))
        )
        begin += len(sets)
    return tables


def code_categories(meaning: InputMeaning, feature: int, values: Array) -> Array:
    """Return the category of each value of a feature, by the source library's rule.

    Args:
        meaning: the rule, and the feature's known categories if it has any.
        feature: column of a row.
        values: the feature's clean values, in which NaN is missing.

    Returns:
        int64, -1 for a value that is no category, and `MISSING` for one that is missing, or not
        among the known categories.
    """
    missing = np.isnan(values)
    if feature in meaning.known_categories:
        missing |= ~np.isin(values, meaning.known_categories[feature])
    return np.where(missing, MISSING, read_rule(meaning).codes(values))


def mark_missing(
    meaning: InputMeaning, rows: Array, known_categories: Mapping[int, tuple[int, ...]]
) -> Array:
    """Return rows in which every value that means missing is NaN.

    Args:
        meaning: defines which values are missing.
        rows: (R, row_width); left as they are.
        known_categories: by feature, the categories that count; all other values are missing.

    Returns:
        (R, row_width), the same array if there is nothing to do.
    """
    if meaning.missing is None and not meaning.zero_missing and not known_categories:
        return rows
    missing = np.zeros(rows.shape, bool)
    if meaning.missing is not None:
        missing |= rows == rows.dtype.type(meaning.missing)
    zero = list(meaning.zero_missing)
    missing[:, zero] |= np.abs(rows[:, zero]) <= ZERO
    for feature, known in known_categories.items():
        missing[:, feature] |= ~np.isin(rows[:, feature], known)
    return np.where(missing, rows.dtype.type(np.nan), rows)


def add_columns(meaning: InputMeaning, rows: Array) -> Array:
    """Return clean rows (R, row_width) with the membership columns appended, (R, F)."""
    if not meaning.derived:
        return rows
    wide = np.empty((len(rows), meaning.n_features), rows.dtype)
    wide[:, : meaning.row_width] = rows
    for table in meaning.membership_tables:
        value = rows[:, table.feature]
        wide[:, table.columns] = table.of(read_rule(meaning).codes(value))
        wide[np.isnan(value), table.columns] = np.nan
    return wide


def _sets_of_features(meaning: InputMeaning) -> Iterator[tuple[int, list[tuple[int, ...]]]]:
    """Yield each feature that has membership columns, and its sets of categories."""
    for feature, group in groupby(meaning.derived, key=lambda test: test[0]):
        yield feature, [codes for _, codes in group]


def read_rule(meaning: InputMeaning) -> CategoryRule:
    """Return the category rule of a model that has sets of categories."""
    assert meaning.category_rule is not None, "checked when the forest was made"
    return meaning.category_rule
