"""The categories that a model lists, and the option to refuse all others.

takes: Forest, columns as a user names them; gives: known categories by column; column indices.

A model knows the categories that it lists as those of its training rows. Some models list none:
they have only sets of categories, which do not show which non-members occurred in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, UnsupportedModel
from .rules import Array

if TYPE_CHECKING:
    from .model import Forest

_WHERE = "refuse_unseen: argument 'columns'"


def list_by_column(forest: Forest) -> dict[int, Array]:
    """Return the known categories of each column of users' rows whose categories the model lists.

    Returns:
        by number of the column, int64 codes, ascending; hashes if the forest has an encoder.
    """
    encoder = forest.encoder
    if encoder is not None:
        known = zip(encoder.categories.tolist(), encoder.list_known(), strict=True)
        complete = encoder.categories[encoder.lists_all].tolist()
        return {column: codes.astype(np.int64) for column, codes in known if column in complete}
    found = {
        feature: np.arange(len(names)) for feature, names in forest.category_names.items() if names
    }
    for feature, codes in (*forest.known_categories.items(), *forest.listed_categories):
        found[feature] = np.sort(np.array(codes, np.int64))
    if forest.other_label is not None:
        found = {feature: x[x != forest.other_label] for feature, x in found.items()}
    return found


def choose_columns(forest: Forest, columns: bool | Sequence[str | int]) -> tuple[int, ...]:
    """Return the indices of the columns whose unseen categories are refused, ascending.

    Args:
        forest: the model.
        columns: see `Forest.refuse_unseen`.

    Raises:
        InputError: no such column.
        UnsupportedModel: a column whose categories the model does not list.
    """
    known = forest.known_by_column
    if isinstance(columns, bool | np.bool_):
        chosen = sorted({*known, *list_tested(forest)}) if columns else []
    elif isinstance(columns, str) or not isinstance(columns, Sequence):
        raise InputError(f"{_WHERE}: expected True or a list of columns, got {columns!r:.80}")
    else:
        chosen = sorted({_find_column(forest, column) for column in columns})
    unlisted = [column for column in chosen if column not in known]
    if unlisted:
        have = ", ".join(_name_column(forest, column) for column in sorted(known)) or "none"
        raise UnsupportedModel(
            f"{_WHERE}: the model '{forest.source}' does not list the categories of column "
            f"{_name_column(forest, unlisted[0])} that it was trained on, so that others cannot be "
            f"told from them; name columns of which it does (have: {have}), or check the rows "
            "before"
        )
    return tuple(chosen)


def list_tested(forest: Forest) -> set[int]:
    """Return the users' columns that are tested for categories."""
    if forest.encoder is not None:
        return set(forest.encoder.categories[forest.encoder.is_used].tolist())
    nodes = forest.feature[list(forest.categories)].tolist()
    return {*nodes, *(feature for feature, _ in forest.derived)}


def _find_column(forest: Forest, column: Any) -> int:
    names = forest.given_names
    if isinstance(column, str) and names is not None:
        column = forest.spell([column])[0]
        if column in names:
            return names.index(column)
    is_number = isinstance(column, int | np.integer) and not isinstance(column, bool)
    if is_number and 0 <= column < forest.given_width:
        return int(column)
    kind = "columns have no names" if names is None else "names are those of given_names"
    raise InputError(
        f"{_WHERE}: {column!r:.80} is no column of the model; its {kind}, their numbers 0 to "
        f"{forest.given_width - 1}"
    )


def _name_column(forest: Forest, column: int) -> str:
    names = forest.given_names
    return str(column) if names is None else f"'{names[column]}'"
