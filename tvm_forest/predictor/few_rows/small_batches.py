"""Predicts rows by builtin functions, or a few on the caller's thread with buffers that stay.

takes: rows as users pass them, Functions; gives: margins or values, or None for the slow path.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...forest import Array, Forest
from ...runtime.threads import FEW_ROWS
from ...system.late import import_late
from ...system.process.ending import is_waited_for
from ..functions import Functions
from ..inputs.checks import NUMBERS
from ..inputs.roundings import pass_array
from ..inputs.values import check_values
from . import builtin

if TYPE_CHECKING:
    import tvm_ffi
else:
    tvm_ffi = import_late("tvm_ffi")

MAX_BYTES = 1 << 15
"""Most bytes of rows for the fast path."""

MOST_ROWS = 1 << 16
"""Most rows that builtin functions take."""

MOST_NUMBERS = 64
"""Most numbers of threads whose functions are kept."""

_MOST = {"usual": MOST_ROWS, "few": FEW_ROWS}
"""The same for the attributes that are made when they are first asked for."""

MOST_CELLS = 1 << 19
"""Most values of rows that builtin functions take: checks and conversions of so many hold Python's
lock for up to half a millisecond, and for more the longer way takes hardly longer."""

NO_CALLS = builtin.Calls()
"""Functions that leave all rows to others."""

MARGIN, VALUE = 0, 1
"""Indices of the results in `_Frame.results`."""


class _Frame(NamedTuple):
    """The buffers of one call, reused by later calls.

    TVM's tensors and numpy arrays are made once: a call would need three, and making one takes as
    long as copying a row in and a result out.

    Attributes:
        rows: (R, F) buffer for a copy of the rows.
        convert: copies rows of another dtype into it, without a warning.
        call: the compiled function.
        arguments: all its arguments, including the rows and results of this frame.
        results: margins and values, (R,) or (R, C).
    """

    rows: Array
    convert: Callable[[Array], None]
    call: Any
    arguments: tuple[Any, ...]
    results: tuple[Array, Array]


class SmallBatches:
    """Predicts rows with as little as possible around the compiled functions.

    Attributes:
        usual: builtin functions for calls with `n_jobs` None; made when they are first asked for.
        few: those for at most `FEW_ROWS` rows.
        labels: the label of each class; None if it is the number of the class.
        frames: unused frames, by number of rows.
    """

    usual: builtin.Calls
    few: builtin.Calls

    def __init__(self, functions: Functions, max_rows: int) -> None:
        self._functions, forest = functions, functions.forest
        self._row_dtype, self._width = np.dtype(forest.row_dtype), forest.row_width
        self._refuses = forest.looks_at_values
        changes = forest.needs_cleaning or forest.encoder is not None
        self._reads_in_place = bool(max_rows) and not changes
        most = min(max_rows, MAX_BYTES // max(1, self._width * self._row_dtype.itemsize))
        self._most = builtin.count_serial(functions, most) if most and not changes else 0
        self.labels = forest.labels
        if self.labels is not None and self.labels.dtype == np.int64:
            are_numbers = np.array_equal(self.labels, np.arange(len(self.labels)))
            self.labels = None if are_numbers else self.labels
        self.frames: dict[int, list[_Frame]] = {}
        self._calls: dict[int, builtin.Calls] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in _MOST:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        calls = self.__dict__[name] = self._bind(_MOST[name], None)
        return calls

    def find_calls(self, n_jobs: Any) -> builtin.Calls:
        """Return builtin functions for calls on so many threads.

        Raises:
            InputError: n_jobs is invalid.
        """
        if type(n_jobs) is not int:  # True equals 1
            return NO_CALLS
        try:
            return self._calls[n_jobs]
        except KeyError:
            calls = self._bind(MOST_ROWS, n_jobs)
            if len(self._calls) >= MOST_NUMBERS:
                self._calls.clear()
            self._calls[n_jobs] = calls
            return calls

    def _bind(self, most: int, n_jobs: int | None) -> builtin.Calls:
        most = min(most, MOST_CELLS // max(1, self._width))
        return builtin.bind(self._functions, most, n_jobs) if self._reads_in_place else NO_CALLS

    def predict_labels(self, rows: Any, calls: builtin.Calls) -> Array | None:
        """Return the label of each row; None if rows must take the slow path."""
        classes = calls.classes(rows)
        return classes if classes is None or self.labels is None else self.labels[classes]

    def predict(self, rows: Any, result: int, n_jobs: Any = None) -> Array | None:
        """Predict margins (MARGIN) or values (VALUE); None if rows must take the slow path.

        Raises:
            InputError: a value that the source object refuses.
        """
        frame = self._run(rows, n_jobs)
        if frame is None:
            return None
        predictions = frame.results[result].copy()
        self.frames[len(rows)].append(frame)
        return predictions

    def compute_sums(self, rows: Any, n_jobs: Any) -> tuple[Array, Array] | None:
        """Return margins and values, both (R, C); None if rows must take the slow path.

        Raises:
            InputError: a value that the source object refuses.
        """
        frame = self._run(rows, n_jobs)
        if frame is None:
            return None
        margin, value = (array.reshape(len(rows), -1).copy() for array in frame.results)
        self.frames[len(rows)].append(frame)
        return margin, value

    @is_waited_for
    def _run(self, rows: Any, n_jobs: Any) -> _Frame | None:
        """Return a frame with the results of rows; the caller puts it back into `frames`.

        None unless the rows are a numpy array of numbers of the right width, and not too many, and
        `n_jobs` is None or 1.
        """
        if n_jobs is not None and (type(n_jobs) is not int or n_jobs != 1):
            return None
        if type(rows) is not np.ndarray or rows.dtype.kind not in NUMBERS:
            return None
        if rows.ndim != 2 or rows.shape[1] != self._width or not 0 < len(rows) <= self._most:
            return None
        try:
            frame = self.frames.setdefault(len(rows), []).pop()
        except IndexError:  # all are in use, by other threads
            frame = self._new_frame(len(rows))
        # Unpickled arrays have dtype objects of their own, which are equal but not identical.
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
        rows = np.empty((n_rows, self._width), self._row_dtype)
        first, *last = (tvm_ffi.from_dlpack(array) for array in (rows, *results))
        margin, value = results[self._functions.margin_place], results[-1]
        arguments = (first, *function.model, *last)
        places = (squeeze(margin), squeeze(value))
        convert = _quiet_writer(rows, self._functions.forest)
        return _Frame(rows, convert, function.serial, arguments, places)


def _quiet_writer(array: Array, forest: Forest) -> Callable[[Array], None]:
    """Return a function that converts rows into an array, as `to_rows` does, without a warning.

    Numpy's warning state belongs to the caller's context. Switching it twice takes longer than
    converting a row, so each frame has a context of its own, used by one call at a time.
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
