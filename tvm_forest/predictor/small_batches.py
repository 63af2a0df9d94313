"""The short way of batches of few rows, whose calls would else take longer than their walks.

takes: rows as users pass them, Functions; gives: margins or values, or None for the long way.

    rows --copy--> frame.rows --frame.call--> frame.results --copy--> what the user gets
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tvm_ffi

from ..forest import Array, Forest
from ..inputs.checks import NUMBERS
from ..inputs.roundings import pass_array
from ..inputs.values import check_values
from ..process.ending import is_waited_for
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
        convert: copies rows of another dtype there, without a warning.
        call: the function.
        arguments: all that it takes, the rows and results of this frame among it.
        results: margins and values, (R,) or (R, C).
    """

    rows: Array
    convert: Callable[[Array], None]
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
        self._refuses = forest.looks_at_values
        row_bytes = max(1, forest.row_width * self._row_dtype.itemsize)
        sizes = range(1, min(max_rows, MAX_BYTES // row_bytes) + 1)
        self.frames: dict[tuple[int, ...], list[_Frame]] = {
            (n_rows, forest.row_width): [] for n_rows in sizes if self._may_hold(n_rows)
        }

    def _may_hold(self, n_rows: int) -> bool:
        """Whether so many rows are read as they are, and by one thread."""
        forest, function = self._functions.forest, self._functions.for_batch(n_rows)
        is_serial = self._functions.count_threads(function, n_rows, None) == 1
        changes = forest.needs_cleaning or function.takes_memberships or forest.encoder is not None
        return is_serial and not changes

    def predict(self, rows: Any, n_jobs: Any, result: int) -> Array | None:
        """Predict margins (MARGIN) or values (VALUE); None if rows have to go the long way.

        Raises:
            InputError: a value that the source object refuses.
        """
        frame = self._run(rows, n_jobs)
        if frame is None:
            return None
        predictions = frame.results[result].copy()
        self.frames[rows.shape].append(frame)
        return predictions

    def compute_sums(self, rows: Any, n_jobs: Any) -> tuple[Array, Array] | None:
        """Return margins and values, both (R, C); None if rows have to go the long way.

        Raises:
            InputError: a value that the source object refuses.
        """
        frame = self._run(rows, n_jobs)
        if frame is None:
            return None
        margin, value = (array.reshape(len(rows), -1).copy() for array in frame.results)
        self.frames[rows.shape].append(frame)
        return margin, value

    @is_waited_for
    def _run(self, rows: Any, n_jobs: Any) -> _Frame | None:
        """Return a frame with the results of rows, to be given back to `frames`."""
        if type(rows) is not np.ndarray:
            return None
        frames = self.frames.get(rows.shape)
        if frames is None or rows.dtype.kind not in NUMBERS:
            return None
        if n_jobs is not None and (type(n_jobs) is not int or n_jobs != 1):
            return None
        try:
            frame = frames.pop()
        except IndexError:  # all are in use, by other threads
            frame = self._new_frame(len(rows))
        # Arrays that were pickled have a dtype of their own, which is equal but not the same.
        if rows.dtype is self._row_dtype or rows.dtype == self._row_dtype:
            frame.rows[...] = rows
        else:
            frame.convert(rows)
        if self._refuses:
            check_values(frame.rows, self._functions.forest)
        frame.call(*frame.arguments)
        return frame

    def _new_frame(self, n_rows: int) -> _Frame:
        function, results = self._functions.for_batch(n_rows), self._functions.new_results(n_rows)
        rows = np.empty((n_rows, self._functions.forest.row_width), self._row_dtype)
        first, *last = (tvm_ffi.from_dlpack(array) for array in (rows, *results))
        margin, value = results[self._functions.margin_place], results[-1]
        arguments = (first, *function.model, *last)
        places = (squeeze(margin), squeeze(value))
        convert = _quiet_writer(rows, self._functions.forest)
        return _Frame(rows, convert, function.serial, arguments, places)


def _quiet_writer(array: Array, forest: Forest) -> Callable[[Array], None]:
    """Return a function that writes other numbers to an array, as `to_rows` converts them.

    What numpy warns of stands in the caller's context. To change it there and back takes longer
    than a row's conversion, so each frame has a context, as only one call at a time has a frame.
    """

    def write(rows: Array) -> None:
        array[...] = pass_array(rows, forest)

    if np.lib.NumpyVersion(np.__version__) < "2.0.0":  # it stands in the thread
        return np.errstate(all="ignore")(write)
    context = contextvars.Context()
    context.run(np.seterr, all="ignore")
    return lambda rows: context.run(write, rows)


def squeeze(array: Array) -> Array:
    """Return (R, 1) as (R,)."""
    return array.squeeze(1) if array.shape[1] == 1 else array
