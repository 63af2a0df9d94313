"""Finds out whether the first line of a text file names its columns.

takes: the fields of the line, a model; gives: True or False, or an error if it may be either.
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
"""Lower-case texts that stand for missing values in files written by R, databases and others. They
do not count as column names, and neither do texts without letters or digits, such as "?"."""


def names_columns(
    fields: Sequence[str],
    forest: Forest,
    where: str,
    header: bool | None = None,
    keep: Sequence[str] = (),
) -> bool:
    """Return whether the first line names the columns.

    It does if it contains the names of all wanted columns. If not all are in it, or none are known,
    it does if its fields are texts, or the numbers 0, 1, 2 and so on, which are pandas' default
    names. It does not if it holds other numbers.

    Args:
        fields: fields of the line.
        forest: the model.
        where: beginning of messages.
        header: the user's option; None to find out.
        keep: names of the columns to keep.

    Raises:
        InputError: the line may also be a row.
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
    """Return whether fields look like names: texts, or 0, 1, 2 and so on.

    A blank field before them is allowed, as pandas writes it for an index.
    """
    own = fields[1:] if is_blank(fields[0]) else fields
    if [field.strip() for field in own] == [str(number) for number in range(len(own))]:
        return bool(own)
    return not all(map(_is_missing, fields)) and not any(map(is_number, own))


def _is_row(fields: Sequence[str], forest: Forest) -> bool:
    """Return whether fields can be a row: numbers, or any texts in columns of categories."""
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
    """Return whether a field is None, empty, or only white space."""
    return field is None or (isinstance(field, str) and not field.strip())


def is_number(field: Any) -> bool:
    """Return whether Python's `float` reads a field."""
    try:
        float(field)
    except (ValueError, TypeError, OverflowError):
        return False
    return True
