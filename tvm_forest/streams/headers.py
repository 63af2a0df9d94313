"""Whether the first line of a file of text names its columns.

takes: the fields of the line, a model; gives: yes or no, or a refusal where it may be either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..forest import Forest

MISSING = frozenset(
    "#n/a,#n/a n/a,#na,-1.#ind,-1.#qnan,-nan,1.#ind,1.#qnan,<na>,\\n,missing,n/a,na,nan,nat,nil,"
    "none,null,(null)".split(",")
)
"""Texts in small letters that stand for a missing value in files of others, such as those of R or
of databases; none names a column by itself. Nor do signs alone, such as "?", "-" and "."."""


def names_columns(
    fields: Sequence[str],
    forest: Forest,
    where: str,
    header: bool | None = None,
    keep: Sequence[str] = (),
) -> bool:
    """Tell whether the first line names the columns.

    It does if all names that are wanted are among its fields, or if its fields are texts that no
    row of this model has, or if they count from 0, as those do that pandas makes up. It does not if
    it holds other numbers.

    Args:
        fields: of the line.
        forest: the model.
        where: begins messages.
        header: what the user says; None for nothing.
        keep: names of columns that are kept.

    Raises:
        InputError: it may name the columns, and be a row as well.
    """
    if header is not None:
        return header
    wanted, is_row = [*(forest.given_names or ()), *keep], _is_row(fields, forest)
    if wanted and set(wanted) <= {*fields, *forest.spell(fields)}:
        names, is_certain = True, not all(map(is_number, wanted))
    else:
        names, is_certain = _are_names(fields), False
    if names and is_row and not is_certain:
        line = ",".join(fields)
        raise InputError(
            f"{where}: line 1 ({line!r:.80}) may name the columns, and may be a row; say --header "
            "or --no-header (header=True or header=False)"
        )
    return names


def _are_names(fields: Sequence[str]) -> bool:
    """Tell whether fields look like names: texts, or numbers from 0 on, perhaps beside an index."""
    own = fields[1:] if is_blank(fields[0]) else fields
    if [field.strip() for field in own] == [str(number) for number in range(len(own))]:
        return bool(own)
    return not all(map(_is_missing, fields)) and not any(map(is_number, own))


def _is_row(fields: Sequence[str], forest: Forest) -> bool:
    """Tell whether fields can be a row: numbers, but for columns of categories by their texts."""
    if len(fields) != forest.given_width:
        return False
    texts = set() if forest.encoder is None else set(forest.encoder.categories.tolist())
    return all(
        at in texts or is_number(field) or _is_missing(field) for at, field in enumerate(fields)
    )


def _is_missing(field: str) -> bool:
    is_sign = not any(map(str.isalnum, field or ""))
    return is_sign or field.strip().lower() in MISSING


def is_blank(field: Any) -> bool:
    """Tell whether a field is missing or holds nothing."""
    return field is None or (isinstance(field, str) and not field.strip())


def is_number(field: Any) -> bool:
    """Tell whether Python reads a field as a number."""
    try:
        float(field)
    except (ValueError, TypeError, OverflowError):
        return False
    return True
