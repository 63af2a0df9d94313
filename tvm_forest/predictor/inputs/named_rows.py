"""Reads rows that map column names to values: a dict, a list of dicts, a Series of pandas.

takes: such rows; gives: NamedRows, a frame with the columns of the model in its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...forest import Forest
from .checks import refusal
from .values import list_some


class NamedRows:
    """A frame made of rows that map column names to values.

    Attributes:
        columns: names of the columns.
        values: for each column, a list with the value of every row; None and NaN are missing.
        labelled: indices of the columns whose categories the model knows by their labels.
    """

    def __init__(self, columns: Iterable[str], rows: list[dict[str, Any]], labelled: set[int]):
        self.columns, self.labelled = list(columns), labelled
        self.values = [[_clean(row[name]) for row in rows] for name in self.columns]
        self._length = len(rows)

    def __len__(self) -> int:
        return self._length


def gather_named(rows: Any, forest: Forest) -> Any:
    """Convert rows that map column names to values to `NamedRows`; return other rows unchanged.

    Raises:
        InputError: the model has no feature names, or a row lacks a name, has one twice, has an
            unknown one and the model does not take columns by name, or holds lists in place of
            single values.
    """
    if isinstance(rows, Mapping) and not hasattr(rows, "tocsr"):
        named = [rows]
    elif _is_series(rows):
        if not rows.index.is_unique:
            raise refusal("a Series whose index names a value twice; give each name once")
        named = [dict(zip(rows.index.tolist(), rows.tolist(), strict=True))]
    elif isinstance(rows, list | tuple) and rows and all(isinstance(x, Mapping) for x in rows):
        named = list(rows)
    else:
        return rows
    found = [dict(zip(forest.spell([*row]), row.values(), strict=True)) for row in named]
    names = forest.given_names
    for number, row in enumerate(found):
        where = f"row {number}: " if len(found) > 1 else ""
        if len(row) < len(named[number]):
            raise refusal(f"{where}two names that are one to the model; give each value once")
        _check_row(row, forest, where)
    assert names is not None, "checked with the first row"
    return NamedRows(names, found, set(forest.category_names))


def _check_row(row: dict[str, Any], forest: Forest, where: str) -> None:
    names = forest.given_names
    if any(
        hasattr(value, "__len__") and not isinstance(value, str | bytes) for value in row.values()
    ):
        raise refusal("columns by name without a frame; use pandas.DataFrame(rows)")
    if names is None:
        raise refusal(
            "values by name, and the model has no names; give a numpy array of shape (R, F)"
        )
    missing = [name for name in names if name not in row]
    if missing:
        raise refusal(
            f"{where}no value of {list_some(missing)}; give each, None where it is missing"
        )
    other = row.keys() - {*names, *forest.ignored_columns}
    if other and not forest.takes_by_name:
        listed = list_some([name for name in row if name in other])
        raise refusal(f"{where}the model has no feature {listed}; leave it out")


def _is_series(rows: Any) -> bool:
    is_pandas = type(rows).__module__.partition(".")[0] == "pandas"
    return is_pandas and hasattr(rows, "iloc") and getattr(rows, "ndim", 2) == 1


def _clean(value: Any) -> Any:
    """Replace pandas' NA and NaT, which mark a missing value, by NaN."""
    return np.nan if type(value).__name__ in ("NAType", "NaTType") else value
