"""The short way of batches of few rows, whose calls would else take longer than their walks.

takes: rows as users pass them, Functions; gives: margins or values, or None for the long way.

    rows --copy--> frame.rows --frame.call--> frame.results --copy--> what the user gets
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tvm_ffi

from ..forest import Array
from .functions import Functions

MAX_ROWS = 64
"""Rows of a batch that goes the short way."""

MAX_BYTES = 1 << 15
"""Bytes of these rows."""

MARGIN, VALUE = 0, 1
"""Places of the results in `_Frame.results`."""


class _Frame(NamedTuple):
    """Memory of one call, which the next one uses again.

    Tensors of TVM and numpy are made once: a call would need three, and to make one takes as long
    as to copy a row in and a result out.

    Attributes:
        rows: (R, F), which rows are copied to.
        call: the function.
        arguments: all that it takes, the rows and results of this frame among it.
        results: margins and values, (R,) or (R, C).
    """

    rows: Array
    call: Any
    arguments: tuple[Any, ...]
    results: tuple[Array, Array]


class SmallBatches:
    """Predictions of few rows on the caller's thread.

    Attributes:
        frames: those that no call uses, by the shapes of rows that may go the short way.
    """

    def __init__(self, functions: Functions, max_rows: int) -> None:
        self._functions, forest = functions, functions.forest
        self._row_dtype = np.dtype(forest.row_dtype)
        # Numbers of other types become `other_dtype` before they become `row_dtype`.
        codes = "fd" if forest.other_dtype is not None else "?bBhHiIlLqQefd"
        self._copied_dtypes = frozenset(map(np.dtype, codes))
        row_bytes = max(1, forest.row_width * self._row_dtype.itemsize)
        sizes = range(1, min(max_rows, MAX_BYTES // row_bytes) + 1)
        self.frames: dict[tuple[int, ...], list[_Frame]] = {
            (n_rows, forest.row_width): [] for n_rows in sizes if self._may_hold(n_rows)
        }

    def _may_hold(self, n_rows: int) -> bool:
        """Whether so many rows are read as they are, and by one thread."""
        forest, function = self._functions.forest, self._functions.for_batch(n_rows)
        is_serial = self._functions.count_threads(function, n_rows, None) == 1
        is_read_as_is = not (forest.needs_cleaning or forest.refuses or function.takes_memberships)
        return is_serial and is_read_as_is

    def predict(self, rows: Any, n_jobs: Any, result: int) -> Array | None:
        """Predict margins (MARGIN) or values (VALUE); None if rows have to go the long way."""
        if type(rows) is not np.ndarray:
            return None
        # Arrays that were pickled have a dtype of their own, which is equal but not the same.
        has_row_dtype = rows.dtype is self._row_dtype or rows.dtype == self._row_dtype
        if not has_row_dtype and rows.dtype not in self._copied_dtypes:
            return None
        frames = self.frames.get(rows.shape)
        if frames is None:
            return None
        if n_jobs is not None and (type(n_jobs) is not int or n_jobs != 1):
            return None
        try:
            frame = frames.pop()
        except IndexError:  # all are in use, by other threads
            frame = self._new_frame(len(rows))
        if has_row_dtype:
            frame.rows[...] = rows
        else:
            with np.errstate(all="ignore"):  # as `to_rows` converts them
                frame.rows[...] = rows
        frame.call(*frame.arguments)
        predictions = frame.results[result].copy()
        frames.append(frame)
        return predictions

    def _new_frame(self, n_rows: int) -> _Frame:
        function, results = self._functions.for_batch(n_rows), self._functions.new_results(n_rows)
        rows = np.empty((n_rows, self._functions.forest.row_width), self._row_dtype)
        first, *last = (tvm_ffi.from_dlpack(array) for array in (rows, *results))
        margin, value = results[self._functions.margin_place], results[-1]
        arguments = (first, *function.model, *last)
        return _Frame(rows, function.serial, arguments, (squeeze(margin), squeeze(value)))


def squeeze(array: Array) -> Array:
    """Return (R, 1) as (R,)."""
    return array[:, 0] if array.shape[1] == 1 else array
