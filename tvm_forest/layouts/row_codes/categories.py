"""Numbers categories, so that one search finds a value's memberships in all sets.

takes: Forest, its membership columns; gives: cuts to search, and the meaning of each number.

A categorical feature is one whose values are tested for memberships in sets of categories. Such a
value is searched among the points where its category changes. Each interval between two such cuts
has a number, and the number decides the membership in all of the sets, even thousands. With the
sets {0, 2} and {1, 2, 5}:

    cuts          -inf      0       1       2     3         5       6      t <= x are counted
    number      0       1       2       3      4       1        5      1
    means      NaN    none      0       1      2     none       5    none

No value is converted to an integer. The cuts are whole numbers and their neighbours, and the source
library's rule is applied to each (`memberships.code_categories`), so -0.5, 2.5, 1e30 and infinities
mean the same as there. NaN reaches no cut.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np

from ...forest import Array, Forest, memberships

NO_CATEGORY = -1

MAX_NUMBERS = 65535
"""Largest number of categories of a feature, since codes have 16 bits."""


class CategoricalFeature(NamedTuple):
    """A feature that is tested for memberships, with the codes of its values.

    Attributes:
        feature: column of a row.
        cuts: (B,) in the dtype of thresholds, ascending.
        number: uint16 (B + 1,), category number of a value, by how many cuts it reaches.
        labels: int64 (K,), the category of each number, see
            `memberships.code_categories`; categories that are in no set are none.
        codes: (K, J) in the dtype of codes, code of each number in the feature's columns.
    """

    feature: int
    cuts: Array
    number: Array
    labels: Array
    codes: Array


class SideCodes(NamedTuple):
    """The codes in membership columns, of which each tested set and default side has one.

    Attributes:
        left: (J,), code of a value that goes left by the rule.
        right: (J,), code of a value that goes right.
        missing: (J,), code of a missing value.
    """

    left: Array
    right: Array
    missing: Array

    def take(self, columns: Array) -> SideCodes:
        """Return the codes of the membership columns with these indices."""
        return SideCodes(*(field[columns] for field in self))


def feature_table(features: tuple[CategoricalFeature, ...], counts: Array, last: Array) -> Array:
    """Return int64 (features, 4), a table of where the data of each feature are.

    The fields are the index of the feature's first entry in the joined arrays `number`, its first
    column or plane (counted after those that are searched), how many columns or planes it has, and
    the field `last`.

    Args:
        features: the features.
        counts: int64 (features,), columns or planes of each feature.
        last: int64 (features,), a further field of the layout's choice.
    """
    sizes = np.array([len(x.number) for x in features])
    begins = (np.cumsum(x) - x for x in (sizes, counts))
    return np.stack([*begins, counts, last], axis=1).astype(np.int64)


def unfit(forest: Forest) -> str | None:
    """Return a refusal that names a feature with too many categories for 16 bits, or None."""
    for question in forest.set_counts:
        feature = question.feature
        listed = question.categories + len(forest.known_categories.get(feature, ()))
        if 3 * listed + 4 <= MAX_NUMBERS:  # see `_list_places`
            continue
        sets = (members for tested, members in forest.derived if tested == feature)
        known = np.unique(np.fromiter(chain.from_iterable(sets), np.int64))
        if len(_find_cuts(forest, feature, known)[1]) > MAX_NUMBERS:
            return (
                f"feature {feature} is asked for {len(known)} categories, a number of 16 bits "
                f"tells about {MAX_NUMBERS} apart"
            )
    return None


def number_categories(
    forest: Forest, feature: int, sets: list[tuple[int, ...]], side_codes: SideCodes
) -> CategoricalFeature:
    """Number the categories of a feature that its sets distinguish.

    Args:
        forest: the model, which `unfit` accepts.
        feature: column of a row.
        sets: the J sets.
        side_codes: codes in the columns of these sets.
    """
    sizes = np.fromiter(map(len, sets), np.int64, len(sets))
    members = np.fromiter(chain.from_iterable(sets), np.int64, int(sizes.sum()))
    cuts, category = _find_cuts(forest, feature, np.unique(members))
    labels, number = np.unique(category, return_inverse=True)
    is_member = np.zeros((len(labels), len(sets)), bool)
    at = np.minimum(np.searchsorted(labels, members), len(labels) - 1)
    there = labels[at] == members  # a category may be too high for the rule
    is_member[at[there], np.repeat(np.arange(len(sets)), sizes)[there]] = True
    goes_left = is_member == (memberships.read_rule(forest).members_go == "left")
    codes = np.where(goes_left, side_codes.left, side_codes.right)
    codes[labels == memberships.MISSING] = side_codes.missing
    return CategoricalFeature(feature, cuts, number.astype(np.uint16), labels, codes)


def _find_cuts(forest: Forest, feature: int, known: Array) -> tuple[Array, Array]:
    """Return the cuts where the category changes, (B,), and the categories, int64 (B + 1,).

    Args:
        forest: the model.
        feature: column of a row.
        known: the categories of all sets, ascending.
    """
    places = _list_places(forest, feature, known)
    category = np.append(memberships.MISSING, memberships.code_categories(forest, feature, places))
    category[(category >= 0) & ~np.isin(category, known)] = NO_CATEGORY
    changes = category[1:] != category[:-1]
    return places[changes], category[np.append(True, changes)]


def _list_places(forest: Forest, feature: int, known: Array) -> Array:
    """Return all values at which the category of a feature's values may change, ascending.

    They are -inf, the least value above -1, 0, and for each category that sets or the source model
    name, the category itself, the next larger value, and the next whole number.

    Args:
        forest, feature, known: see `_find_cuts`.
    """
    dtype = forest.threshold.dtype
    whole = np.union1d(known, forest.known_categories.get(feature, ())).astype(dtype)
    up = dtype.type(np.inf)
    ends = np.array([-up, np.nextafter(dtype.type(-1), up), 0], dtype)
    return np.unique(np.concatenate([ends, whole, np.nextafter(whole, up), whole + 1]))
