"""Cuts surplus columns off arrays, and adds missing columns that no tree reads, as CatBoost does.

takes: frames, arrays; gives: frames with all columns of the model, arrays of the model's width.

An added column holds zeros, since 0 is both a number and a category.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...forest import Array, Forest

if TYPE_CHECKING:
    from .column_names import Kind


def fit_width(array: Array, forest: Forest) -> Array:
    """Return an array with as many columns as the model has.

    Surplus columns on the right are cut off, and missing ones that no tree reads are added. The
    array is returned as it is if a tree reads a missing column, or the model takes only rows of its
    own width (see `InputMeaning.spares_columns`).
    """
    if not forest.spares_columns or array.ndim != 2:
        return array
    lacks = forest.given_width - array.shape[1]
    if lacks <= 0:
        return array[:, : forest.given_width]
    if not forest.read_columns.isdisjoint(range(array.shape[1], forest.given_width)):
        return array
    return np.concatenate([array, np.zeros((len(array), lacks), array.dtype)], axis=1)


def add_unread(frame: Any, names: list[str], kind: Kind, forest: Forest) -> Any:
    """Return a frame to which the missing columns that no tree reads were added.

    It is returned as it is if the model refuses rows of another width (see
    `InputMeaning.spares_columns`), or has no column names and reads a missing column.

    Args:
        frame: of the library `kind`.
        names: the names of its columns.
        kind: the library of the frame.
        forest: the model.
    """
    if not forest.spares_columns or kind == "named":
        return frame
    known = forest.given_names or tuple([*names, *_number(len(names), forest.given_width)])
    lacks = [at for at, name in enumerate(known) if name not in names]
    if forest.given_names is None and not forest.read_columns.isdisjoint(lacks):
        return frame
    added = [known[at] for at in lacks if at not in forest.read_columns]
    return _append(frame, added, kind) if added else frame


def _number(begin: int, end: int) -> list[str]:
    return [f"column {at}" for at in range(begin, end)]


def _append(frame: Any, names: list[str], kind: Kind) -> Any:
    """Return a frame with additional columns of zeros."""
    if kind == "pandas":
        return frame.assign(**dict.fromkeys(names, 0))
    if kind == "polars":
        from polars import lit

        return frame.with_columns(**{name: lit(0) for name in names})
    from pyarrow import array

    for name in names:
        frame = frame.append_column(name, array(np.zeros(frame.num_rows, np.int64)))
    return frame
