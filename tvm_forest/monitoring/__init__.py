"""Watches a sample of the rows that a predictor predicts, and compares them with training rows.

takes: Predictor, training rows or a Profile of them; gives: its predictions, and Drift.

    predict(rows) --> Predictor --> predictions
             |
             +------> a row of a hundred, if there is time --> apply --> rows at each leaf

What a call of one row costs besides the prediction is counted in nanoseconds here: `predict` calls
the builtin function of few rows itself, and counts calls, since to ask for the number of rows takes
longer than to count.
"""

from __future__ import annotations

import functools
import logging
import math
import operator
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..forest import Array, Forest
from ..forest.profile import LeafCounter, Profile
from ..predictor.inputs import to_rows
from ..predictor.inputs.encoding import to_objects
from ..predictor.predictor import Predictor
from ..system.process.ending import is_waited_for
from ..system.process.locks import make_lock
from ..system.values import replace
from .drift import Drift, compare_leaves, count_hops
from .samples import refuse_other, refuses, take_rows, take_source

__all__ = ["Drift", "Monitor"]

LOG = logging.getLogger(__name__)

EVERY = 100
"""Rows for each that is observed, if there is time."""

SHARE = 0.01
"""Share of the time that observing takes at most, besides what it costs the caches."""

WINDOW = 10_000
"""Rows of half a window."""

MOST = 64
"""Rows that are observed of a call at most, unless there is no limit of time."""

CALLS = 16
"""Calls between two looks at the clock, at least, where it is not time to observe."""

CHUNK = 4096
"""Rows of a reference whose leaves are in memory at once."""


ONE = 1
"""Number of threads that is looked for by identity, which is quick; an equal object goes the other
way to the same bits."""


def _observed(name: str) -> Callable[..., Any]:
    """Return a method of Monitor that predicts by the method `name` of its predictor."""

    def predict(self: Monitor, rows: Any, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self.predictor, name)
        result = method(rows, *args, **kwargs) if args or kwargs else method(rows)
        self._left -= (count := len(result[0] if type(result) is list else result))
        if self._left <= 0:
            self._sample(rows, count)
        return result

    predict.__name__, predict.__qualname__ = name, f"Monitor.{name}"
    predict.__doc__ = f"Call `{name}` of the predictor, and observe a sample of the rows."
    return predict


class Monitor:
    """A predictor that observes a sample of its rows, by the leaves that they reach.

    It has the methods of the predictor. Rows of `predict`, `predict_proba`, `predict_margin`,
    `predict_value` and `predict_class` are observed, others by `observe`. Any number of threads may
    call it; a copy, such as an unpickled one, has observed no rows. Leaves are those of the model
    that the monitor was made for: after an `update` of the predictor, make another monitor.

    Attributes:
        predictor: the predictor that is watched.
        profile: how many training rows reach each leaf.
    """

    def __init__(
        self,
        predictor: Predictor,
        reference: Any = None,
        *,
        every: int = EVERY,
        share: float = SHARE,
        window: int = WINDOW,
    ) -> None:
        """Watch a predictor.

        Args:
            predictor: from `build`; its code is waited for.
            reference: training rows, or a `Profile` of them; None for the profile that the model
                was built with.
            every: one of so many rows is observed, on average and if there is time; 1 for all. Of
                calls of few rows, one of so many calls, see `predict`.
            share: the share of the time that observing may take, over 0: after it took t seconds,
                no row is observed for t / share - t seconds. 1 for no limit.
            window: a report is of the latest `window` to about 2 `window` rows that were observed,
                or of all if there were fewer.

        Raises:
            InputError: no Predictor, no profile or one of another model, or a number out of range.
            ForestError: the code of the predictor cannot be compiled.
        """
        if not isinstance(predictor, Predictor):
            raise InputError(
                f"Monitor: argument 'predictor': expected a Predictor, got "
                f"{type(predictor).__name__}; give what tvm_forest.build returns, of a Crossover "
                "its part `cpu`"
            )
        is_share = isinstance(share, int | float) and not isinstance(share, bool) and 0 < share <= 1
        for name, value, fits, wanted in (
            ("every", every, type(every) is int and every > 0, "a whole number from 1 on"),
            ("window", window, type(window) is int and window > 0, "a whole number from 1 on"),
            ("share", share, is_share, "a number over 0, at most 1"),
        ):
            if not fits:
                raise InputError(
                    f"Monitor: argument '{name}': expected {wanted}, got {value!r:.80}"
                )
        predictor.wait()
        _pass_on(dir(predictor))
        self.predictor, self._watched = predictor, predictor._present or predictor
        forest: Forest = self._watched.forest
        self._forest, self._every, self._window = forest, every, window
        self._known = forest.refuse_unseen(sorted(forest.known_by_column))
        self._counter = LeafCounter(source := take_source(forest))
        self._share, self._pause = share, 1 / share - 1  # seconds after one of observing
        self._lock, self._random, self._left, self._next = make_lock(), random.Random(), every, 0.0
        self._owed = 0  # rows that were due while there was no time
        empty = np.zeros((0, forest.given_width), object if forest.encoder else forest.row_dtype)
        self._before = self._now = self._look_at(empty)  # which compiles `apply`, so no call does
        self._missing: Array | None = None
        self.profile = self._read_reference(reference, source)

    # -- calls ------------------------------------------------------------------------------------

    @is_waited_for
    def predict(self, rows: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict as the predictor does, and observe a sample of the rows.

        Of calls that take arrays of few rows, one in `every` is observed, with all its rows or 64
        of them; of others, as many rows as are due.
        """
        watched = self.predictor
        jobs = watched.n_jobs
        if (jobs is None or jobs is ONE) and not (args or kwargs):
            small = watched._small_batches
            gives_labels, few = watched._gives_labels, small.few
            values = small.predict_labels(rows, few) if gives_labels else few.values(rows)
            if values is not None:
                left = self._left = self._left - 1
                if left <= 0:
                    self._sample(rows, len(values), is_whole=True)
                return values
        return self._predict(rows, *args, **kwargs)

    @is_waited_for
    def predict_margin(
        self, rows: Any, n_jobs: Any = None, iteration_range: Any = None, *, which: Any = None
    ) -> Any:
        """Predict margins as the predictor does, and observe a sample of the rows, as `predict`."""
        watched = self.predictor
        jobs = watched.n_jobs if n_jobs is None else n_jobs
        if (jobs is None or jobs is ONE) and iteration_range is None and which is None:
            margins = watched._small_batches.few.margins(rows)
            if margins is not None:
                left = self._left = self._left - 1
                if left <= 0:
                    self._sample(rows, len(margins), is_whole=True)
                return margins
        return self._predict_margin(rows, n_jobs, iteration_range, which=which)

    @is_waited_for
    def predict_proba(self, rows: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict probabilities as the predictor does, and observe rows, as `predict`."""
        watched = self.predictor
        jobs = watched.n_jobs
        if (jobs is None or jobs is ONE) and not (args or kwargs):
            found = watched._small_batches.few.probabilities(rows)
            if found is not None:
                left = self._left = self._left - 1
                if left <= 0:
                    self._sample(rows, len(found), is_whole=True)
                return found
        return self._predict_proba(rows, *args, **kwargs)

    predict_value, predict_class = _observed("predict_value"), _observed("predict_class")
    _predict, _predict_margin = _observed("predict"), _observed("predict_margin")
    _predict_proba = _observed("predict_proba")

    def observe(self, rows: Any) -> None:
        """Observe a sample of rows, as `predict` does, where something else has predicted them.

        Args:
            rows: see `Predictor.predict`; none are observed of rows that cannot be indexed, and
                those without a length are refused by an InputError.
        """
        shape = getattr(rows, "shape", None)
        if not shape and not hasattr(rows, "__len__"):
            raise InputError(
                f"observe: argument 'rows': a {type(rows).__name__} has no length; give an array"
            )
        is_one = isinstance(rows, dict) or (shape is not None and len(shape) == 1)
        count = 1 if is_one else int(shape[0]) if shape else len(rows)
        self._left -= count
        if self._left <= 0:
            self._sample(rows, count)

    if TYPE_CHECKING:  # see `_pass_on`

        def __getattr__(self, name: str) -> Any: ...

    def __reduce__(self) -> Any:
        options: Any = {"every": self._every, "share": self._share, "window": self._window}
        return functools.partial(type(self), **options), (self.predictor, self.profile)

    def __repr__(self) -> str:
        return f"<Monitor of 1 in {self._every} rows: {self.predictor!r}>"

    def report(self) -> Drift:
        """Return how far the latest observed rows are from the profile.

        Examples:
            >>> tvm_forest.Monitor(predictor, rows).report().rows
            0
        """
        with self._lock:
            rows, hits, missing, unseen = self._split(self._before + self._now)
        forest, profile = self._forest, self.profile
        names = forest.given_names or map(str, range(forest.given_width))
        psi, expected, distance, hops = compare_leaves(profile, hits, rows)
        return Drift(
            rows=rows,
            reference_rows=profile.rows,
            psi=psi,
            expected_psi=expected,
            distance=distance,
            hops=hops,
            reference_hops=count_hops(profile, profile.hits, profile.rows),
            missing=missing / rows if rows else missing * np.nan,
            reference_missing=self._missing,
            unseen=unseen,
            columns=tuple(names),
        )

    # -- samples ----------------------------------------------------------------------------------

    def _sample(self, rows: Any, count: int, is_whole: bool = False) -> None:
        """Observe, if there is time, as many of `count` rows as are due, chosen at random.

        All are due of a call that `is_whole`, which was counted as one.
        """
        begin = time.perf_counter()
        if begin < self._next:
            self._left = max(self._every, CALLS * (1 if is_whole else count))
            self._owed = min(MOST, self._left // self._every)
            return
        with self._lock:
            more, rest = divmod(-self._left, self._every)
            is_all = is_whole or self._every == 1  # other threads may have counted meanwhile
            due, self._owed = count if is_all else max(self._owed, 1 + more), 0
            # Distances vary, since rows may repeat themselves after as many as there are to one.
            self._left = self._random.randint(1, 2 * self._every - 1) - rest
            if begin < self._next or due < 1:
                return
            self._next = math.inf if self._pause else 0.0  # others go on meanwhile
            most = MOST if self._pause else count
            picks = sorted(self._random.sample(range(count), min(due, count, most)))
        counts: Any = 0
        spent = time.thread_time()  # without that of other threads
        try:
            part = take_rows(rows, picks)
            counts = 0 if part is None else self._look_at(part)
        except Exception as error:  # of rows that only the predictor reads, such as on a GPU
            LOG.debug("rows are not observed: %s", error)
        finally:
            with self._lock:
                spent = time.thread_time() - spent
                self._next = time.perf_counter() + spent * self._pause if self._pause else 0.0
                self._now = self._now + counts
                if self._now[0] >= self._window:
                    self._before, self._now = self._now, 0 * self._now

    def _look_at(self, rows: Any) -> Array:
        """Return the counts of some rows, int64 (1 + L + 2 F,), in one array that can be added up.

        `_split` says what is counted, for the L leaves of all trees and the F columns.
        """
        forest = self._forest
        is_plain = forest.encoder is None
        array = to_rows(rows, forest) if is_plain else to_objects(rows, forest)
        given = forest.clean_rows(array) if is_plain else array
        hits = self._counter.count(self._watched.apply(array, n_jobs=1))
        missing = np.sum(given != given, axis=0, dtype=np.int64)
        return np.concatenate([[len(array)], hits, missing, self._count_unseen(rows, len(array))])

    def _split(self, counts: Array) -> tuple[int, Array, Array, Array]:
        """Split the counts from `_look_at`, of which several may be added up.

        Returns:
            The number of rows; the number of rows that reach each leaf, (L,); for each column, the
            number of missing values, (F,), and of values that `_count_unseen` counts, (F,).
        """
        ends = np.cumsum([1, len(self._counter.leaf), self._forest.given_width])
        rows, *others = np.split(counts, ends)
        return int(rows[0]), others[0], others[1], others[2]

    def _count_unseen(self, rows: Any, count: int) -> Array:
        """Return (F,), in how many of `count` rows a column has a category that the model lacks."""
        unseen, known = np.zeros(self._forest.given_width, np.int64), self._known
        if not known.refuses_unseen or not refuses(rows, known):
            return unseen
        for column in known.refuses_unseen:
            one = replace(known, refuses_unseen=(column,))
            unseen[column] = sum(refuses(take_rows(rows, [row]), one) for row in range(count))
        return unseen

    def _read_reference(self, reference: Any, source: Forest) -> Profile:
        """Return the profile of a reference, or for None that of `source`, see `__init__`.

        Raises:
            InputError: there is no profile, it is of another model, or there are no rows.
        """
        counter = self._counter
        if reference is None and source.hits is None:
            raise InputError(
                "Monitor: argument 'reference': none, and the model was built without a profile; "
                "give the training rows, or what tvm_forest.profile returns"
            )
        if reference is None or isinstance(reference, Profile):
            if reference is not None:
                refuse_other(reference, self._watched)
                source = replace(reference, signature=None).onto(source)
            hits = np.zeros(0, np.int64) if source.hits is None else source.hits[counter.leaf]
            total = int(hits[: counter.offset[1]].sum()) if len(hits) else 0
            return Profile(hits, counter.depths, counter.offset, total)
        is_plain = self._forest.encoder is None
        given = (
            to_rows(reference, self._forest) if is_plain else to_objects(reference, self._forest)
        )
        if not len(given):
            raise InputError("Monitor: argument 'reference': no rows; give rows of the training")
        parts = (self._look_at(given[at : at + CHUNK]) for at in range(0, len(given), CHUNK))
        rows, hits, missing, _ = self._split(sum(parts, 0 * self._now))
        self._missing = missing / rows if rows else missing * np.nan
        return Profile(hits, counter.depths, counter.offset, rows)


def _pass_on(names: list[str]) -> None:
    """Give monitors the public attributes of predictors that they lack, as properties.

    With a `__getattr__`, Python would take a longer way to all attributes, 100 ns of each call.
    """
    for name in names:
        if not name.startswith("_") and not hasattr(Monitor, name):
            setattr(Monitor, name, property(operator.attrgetter(f"predictor.{name}")))
