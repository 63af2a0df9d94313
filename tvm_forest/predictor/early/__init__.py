"""Answers that need no prediction to the end: above a threshold, the class, the best rows.

takes: Predictor, rows; gives: what follows from the predictions of the whole model, always.

Rows go through the trees stretch by stretch (`stretches.py`) and stop where bounds of the trees to
come (`bounds.py`) decide (`deciding.py`). Where they cannot stop, or where that does not pay, the
whole model answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InputError
from ...forest import Array
from ...late import import_late
from ...process.locks import cached_property

if TYPE_CHECKING:
    from . import answering
else:
    answering = import_late("tvm_forest.predictor.early.answering")


class EarlyMethods:
    """What a Predictor answers early."""

    def predict_above(
        self: Any, rows: Any, threshold: Any, n_jobs: int | None = None, output: Any = None
    ) -> Array:
        """Predict which values are above a threshold.

        Rows stop as soon as no leaf of the trees to come can change the answer, so this is faster
        than `predict_value(rows) > threshold` for models of many trees where most rows are far from
        the threshold, and gives the same always. The first call compiles functions of parts of the
        model. How many rows stop depends on the rows: where they do not, the whole model answers.

        Args:
            rows, n_jobs: see `predict`.
            threshold: a number, or (C,) one for each output.
            output: whose values are compared, such as 1 for those of the second class; None for
                all.

        Returns:
            bool (R,) or (R, C).

        Raises:
            InputError: rows or n_jobs of the wrong kind, or no such threshold or output.

        Examples:
            >>> predictor.predict_above(rows[:2], 0.5)
            array([[ True, False, False],
                   [ True, False, False]])
        """
        now = (self._present or self)._for_rows(rows)
        outputs = slice(None)
        if output is not None:
            _check_number("predict_above", "output", output, now.forest.n_outputs)
            outputs = slice(int(output), int(output) + 1)
        _check_threshold(threshold, now.forest.n_outputs if output is None else 1)
        found = now._early.above(now, rows, threshold, outputs, _choose_jobs(now, n_jobs))
        return found[:, 0] if found.shape[1] == 1 else found

    def top_k(
        self: Any, rows: Any, k: int, n_jobs: int | None = None, output: Any = None
    ) -> tuple[Array, Array]:
        """Find the rows with the largest values, the largest first.

        Rows are left as soon as k others are surely better. Of equal values, the first row comes
        first: `numpy.argsort(-predict_value(rows), kind="stable")[:k]`.

        Args:
            rows, n_jobs: see `predict`.
            k: how many, 0 or more; of fewer rows, all.
            output: whose values are compared; None for a model of one output.

        Returns:
            int64 (k,), places of rows; (k,), their values.

        Raises:
            InputError: rows, n_jobs, k or output of the wrong kind.

        Examples:
            >>> predictor.top_k(rows, 2, output=0)[0]
            array([ 0,  1])
        """
        now = (self._present or self)._for_rows(rows)
        outputs = now.forest.n_outputs
        place = 0 if output is None and outputs == 1 else output
        _check_number("top_k", "k", k, None)
        _check_number("top_k", "output", place, outputs)
        return now._early.best(now, rows, int(k), int(place), _choose_jobs(now, n_jobs))

    def _predict_class_early(self: Any, rows: Any, n_jobs: int | None) -> Array:
        """Predict the numbers of classes, see `predict_class`."""
        now = (self._present or self)._for_rows(rows)
        classes: Array = now._early.classes(now, rows, _choose_jobs(now, n_jobs))
        return classes

    @cached_property
    def _early(self: Any) -> answering.Answering:
        """What answers early."""
        return answering.Answering()


def _choose_jobs(predictor: Any, n_jobs: int | None) -> int | None:
    """Return the number of threads of a call that may not say it."""
    return predictor.n_jobs if n_jobs is None else n_jobs


def _check_threshold(threshold: Any, outputs: int) -> None:
    """Refuse what is no number, and no number for each output.

    Raises:
        InputError: as said.
    """
    array = np.asarray(threshold)
    if array.dtype.kind not in "iuf" or array.shape not in ((), (outputs,)):
        raise InputError(
            f"predict_above: argument 'threshold': expected a number, or one for each of {outputs} "
            f"outputs, got {threshold!r:.80}"
        )


def _check_number(method: str, name: str, number: Any, end: int | None) -> None:
    """Refuse what is no whole number from 0 on, or beyond an end.

    Raises:
        InputError: as said.
    """
    is_whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if not is_whole or number < 0 or (end is not None and number >= end):
        most = "" if end is None else f" to {end - 1}"
        raise InputError(
            f"{method}: argument '{name}': expected a whole number from 0{most}, got {number!r:.80}"
        )
