"""Numbers of categories: one search finds the answers of all sets that a feature is asked for.

takes: Forest, its columns of memberships; gives: cuts to be searched, and what each number means.

A value that a model asks for memberships in sets of categories is searched among the places where
its category changes. What lies between two such cuts has a number, and a number says where the
value belongs in all sets, be there thousands:

    cuts          -inf      0       1       2     3         5       6      t <= x are counted
    number      0       1       2       3      4       1        5      1
    means      NaN    none      0       1      2     none       5    none

No value is turned into an integer. The cuts are whole numbers and their neighbours, and the rule of
the source library is asked about each (`prepare.labels`): so -0.5, 2.5, 1e30 and infinities have
the meaning that they have there. NaN reaches no cut.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np

from ...errors import BuildError
from ...forest import Array, Forest
from ...forest import memberships as prepare

NONE = -1
MOST_CUTS = 65535


class Asked(NamedTuple):
    """A feature that is asked for categories.

    Attributes:
        feature: column of a row.
        cuts: (B,) in the dtype of thresholds, ascending.
        number: uint16 (B + 1,), what a value means that reaches so many cuts.
        labels: int64 (K,), the category of each number, see `prepare.labels`; categories that are
            in no set are none.
        codes: (K, J) in the dtype of codes, those of each number in the columns of the feature.
    """

    feature: int
    cuts: Array
    number: Array
    labels: Array
    codes: Array


def table(asked: tuple[Asked, ...], counts: Array, last: Array) -> Array:
    """Return int64 (features, 4), where to find what of each feature.

    The fields are where its numbers begin, its first column or plane, counted from those that are
    not searched, how many it has, and a last one.

    Args:
        asked: the features.
        counts: int64 (features,), columns or planes of each.
        last: int64 (features,), what the layout wants to know beside.
    """
    sizes = np.array([len(x.number) for x in asked])
    begins = (np.cumsum(x) - x for x in (sizes, counts))
    return np.stack([*begins, counts, last], axis=1).astype(np.int64)


class Answers(NamedTuple):
    """What columns of memberships say, one for each set and default side that is tested.

    Attributes:
        of_left: (J,), code of a value that the rule sends to the left.
        of_right: (J,), of one that it sends to the right.
        of_missing: (J,), of a missing value.
    """

    of_left: Array
    of_right: Array
    of_missing: Array

    def of(self, places: Array) -> Answers:
        """Take some columns."""
        return Answers(*(field[places] for field in self))


def asked(
    forest: Forest, feature: int, sets: list[tuple[int, ...]], answers: Answers, layout: str
) -> Asked:
    """Return how one feature is asked.

    Args:
        forest: the model.
        feature: column of a row.
        sets: what it is asked for, J sets.
        answers: what the columns say.
        layout: name for messages.

    Raises:
        BuildError: more categories than 16 bits can number.
    """
    rule = forest.category_rule
    assert rule is not None, "checked when the forest was made"
    sizes = np.fromiter(map(len, sets), np.int64, len(sets))
    members = np.fromiter(chain.from_iterable(sets), np.int64, int(sizes.sum()))
    known = np.unique(members)
    places = _places(forest, feature, known)
    found = np.append(prepare.MISSING, prepare.labels(forest, feature, places))
    found[(found >= 0) & ~np.isin(found, known)] = NONE
    kept = found[1:] != found[:-1]
    labels, number = np.unique(found[np.append(True, kept)], return_inverse=True)
    if len(number) > MOST_CUTS:
        raise BuildError(
            f"represent_as: layout '{layout}': feature {feature} is asked for {len(known)} "
            f"categories, a number of 16 bits tells about {MOST_CUTS} apart; "
            "use represent_as('sparse')"
        )
    is_member = np.zeros((len(labels), len(sets)), bool)
    at = np.minimum(np.searchsorted(labels, members), len(labels) - 1)
    there = labels[at] == members  # a category may be too high for the rule
    is_member[at[there], np.repeat(np.arange(len(sets)), sizes)[there]] = True
    goes_left = is_member == (rule.members_go == "left")
    codes = np.where(goes_left, answers.of_left, answers.of_right)
    codes[labels == prepare.MISSING] = answers.of_missing
    return Asked(feature, places[kept], number.astype(np.uint16), labels, codes)


def _places(forest: Forest, feature: int, known: Array) -> Array:
    """Return all numbers at which a category may begin or end, ascending."""
    dtype = forest.threshold.dtype
    whole = np.union1d(known, forest.known_categories.get(feature, ())).astype(dtype)
    up = dtype.type(np.inf)
    ends = np.array([-up, np.nextafter(dtype.type(-1), up), 0], dtype)
    return np.unique(np.concatenate([ends, whole, np.nextafter(whole, up), whole + 1]))
