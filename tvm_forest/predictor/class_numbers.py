"""Methods of a Predictor that return decisions: class numbers, rows above a threshold, best rows.

takes: margins and values of a Predictor; gives: class numbers, int8 or int32; probabilities (R, C);
bools; row numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, UnsupportedModel
from ..forest import Array, Forest, choose_classes, split_by_target
from ..system.late import import_late
from ..system.process.ending import is_waited_for
from ..system.process.locks import cached_property
from .inputs.checks import as_array
from .parts.rounds import refuse_which

if TYPE_CHECKING:
    from .early import answering
else:
    answering = import_late("tvm_forest.predictor.early.answering")

DTYPES = ("int8", "int32")
"""Dtypes of class numbers; with int8, a row of up to 128 classes takes one byte."""


class ClassMethods:
    """Methods of a Predictor for class numbers, and the attributes that scikit-learn expects."""

    forest: Forest
    _present: Any
    _sums: Any
    _small_batches: Any
    _predict_class_early: Any

    @property
    def n_features_in_(self) -> int:
        """The number of columns of the rows that `predict` takes, under scikit-learn's name."""
        return self.forest.given_width

    @property
    def feature_names_in_(self) -> Array:
        """Names of the rows' columns, (F,) strings; models without names lack the attribute."""
        return np.asarray(self._get_known("feature_names_in_", self.forest.given_names), object)

    @property
    def classes_(self) -> Array:
        """Labels of the classes; the attribute is missing for models without labels."""
        return np.asarray(self._get_known("classes_", self.forest.labels))

    def _get_known(self, name: str, value: Any) -> Any:
        """Return `value`; if it is None, raise AttributeError, so that `hasattr` is false."""
        if value is None:
            raise AttributeError(f"the model '{self.forest.source}' has no '{name}'")
        return value

    @property
    def gives_probabilities(self) -> bool:
        """Whether `predict_proba` works for the model."""
        return self.forest.gives_probabilities

    def predict_quantiles(self, rows: Any, quantiles: Any = None, **others: Any) -> Array:
        """Refuse: only a `QuantilePredictor`, whose leaves hold training rows, predicts quantiles.

        Raises:
            UnsupportedModel: always.

        Examples:
            >>> quantile_predictor.predict_quantiles(rows, [0.1, 0.9]).shape
            (150, 2)
        """
        raise UnsupportedModel(
            f"predict_quantiles: the model '{self.forest.source}' has no training rows in its "
            "leaves; give them to tvm_forest.build_quantiles"
        )

    @is_waited_for
    def predict_class(
        self,
        rows: Any,
        n_jobs: int | None = None,
        iteration_range: tuple[int, int] | None = None,
        dtype: str = "int32",
        early_exit: bool = False,
        *,
        ask_after: Any = None,
        which: None = None,
    ) -> Array:
        """Predict the number of the class of every row.

        It is the column of `predict_proba` for the label that a classifier's `predict` returns. If
        classes are equally likely, it is the first of them.

        Args:
            rows, n_jobs, iteration_range: see `predict`.
            dtype: "int32" or, for up to 128 classes, "int8".
            early_exit: whether rows stop as soon as their class is decided, see `predict_above`;
                the class is the same. Has no effect together with `iteration_range`.
            ask_after: with `early_exit`, see `predict_above`.
            which: is refused; see `predict`, `predict_value` and `predict_margin`.

        Returns:
            (R,), or (R, targets) if the model predicts a class for each of several targets.

        Raises:
            UnsupportedModel: the model is no classifier.
            InputError: rows or another argument of the wrong kind, or a class does not fit dtype.

        Examples:
            >>> predictor.predict_class(rows[::50])
            array([0, 1, 2], dtype=int32)
        """
        refuse_which("predict_class", which, "predict gives labels by it, where there are some")
        if dtype not in DTYPES:
            raise InputError(
                f"predict_class: argument 'dtype': {dtype!r} is unknown; use {' or '.join(DTYPES)}"
            )
        now = self._present or self
        last = now.forest.last_class
        if last is None:
            raise UnsupportedModel(
                f"predict_class: the model '{now.forest.source}' tells no classes apart; use "
                "predict or predict_margin"
            )
        if last > np.iinfo(dtype).max:
            raise InputError(
                f"predict_class: argument 'dtype': class {last} does not fit '{dtype}'; use 'int32'"
            )
        if ask_after is not None and not early_exit:
            raise InputError(
                "predict_class: argument 'ask_after': rows are asked with early_exit=True only; "
                "give both"
            )
        if early_exit and iteration_range is None:
            return self._predict_class_early(rows, n_jobs, ask_after).astype(dtype)
        jobs, few = _choose_jobs(self, n_jobs), now._small_batches
        if iteration_range is None:
            classes = (few.usual if jobs is None else few.find_calls(jobs)).classes(rows)
            if classes is not None:
                return classes.astype(dtype)
        margin, value = now._sums(rows, n_jobs, iteration_range)
        return choose_classes(now.forest, margin, value).astype(dtype)


class EarlyMethods:
    """The methods of a Predictor that may decide about a row before all its trees are walked."""

    def predict_above(
        self: Any,
        rows: Any,
        threshold: Any,
        n_jobs: int | None = None,
        output: Any = None,
        *,
        ask_after: Any = None,
        which: None = None,
    ) -> Array:
        """Predict which values are above a threshold.

        A row stops as soon as no leaf of the remaining trees can change the answer. The result is
        always that of `predict_value(rows) > threshold`, and comes faster if the model has many
        trees and most rows are far from the threshold. The first call compiles functions for parts
        of the model. If few rows stop, the whole model is used instead.

        Args:
            rows, n_jobs: see `predict`.
            threshold: a number, or (C,) one for each output.
            output: number of the output to compare, such as 1 for the second class; None for all.
            ask_after: numbers of trees, ascending, after each of which rows are asked whether
                their answer is certain; if a tree adds to one of several outputs, the numbers
                count the trees of each output. None for 8 stretches of equally many. Code is
                compiled for each stretch, and the latest 4 choices are kept. No answer depends
                on it.
            which: is refused; compare what `predict_value` gives by it.

        Returns:
            bool (R,) or (R, C).

        Raises:
            InputError: rows or n_jobs of the wrong kind, or an invalid threshold, output or
                ask_after.

        Examples:
            >>> predictor.predict_above(rows[:2], 0.5)
            array([[ True, False, False],
                   [ True, False, False]])
        """
        refuse_which("predict_above", which, "compare what predict_value gives")
        now = (self._present or self)._for_rows(rows)
        outputs = slice(None)
        if output is not None:
            _check_number("predict_above", "output", output, now.forest.n_outputs)
            outputs = slice(int(output), int(output) + 1)
        _check_threshold(threshold, now.forest.n_outputs if output is None else 1)
        early = now._early.asking_after("predict_above", ask_after, now.forest)
        found = early.above(now, rows, threshold, outputs, _choose_jobs(now, n_jobs))
        return found[:, 0] if found.shape[1] == 1 else found

    def top_k(
        self: Any,
        rows: Any,
        k: int,
        n_jobs: int | None = None,
        output: Any = None,
        *,
        ask_after: Any = None,
        which: None = None,
    ) -> tuple[Array, Array]:
        """Find the rows with the largest values, the largest first.

        The result is that of `numpy.argsort(-predict_value(rows), kind="stable")[:k]`, so rows of
        equal values keep their order. A row stops as soon as k others are certain to be better.

        Args:
            rows, n_jobs: see `predict`.
            k: how many rows to find, 0 or more; if there are fewer, all are returned.
            output: number of the output to compare; None for a model of one output.
            ask_after: see `predict_above`.
            which: is refused; sort what `predict_value` gives by it.

        Returns:
            Row numbers, int64 (k,), and the values of these rows, (k,).

        Raises:
            InputError: rows, n_jobs, k, output or ask_after of the wrong kind.

        Examples:
            >>> predictor.top_k(rows, 2, output=0)[0]
            array([0, 1])
        """
        refuse_which("top_k", which, "sort what predict_value gives")
        now = (self._present or self)._for_rows(rows)
        outputs = now.forest.n_outputs
        place = 0 if output is None and outputs == 1 else output
        _check_number("top_k", "k", k, None)
        _check_number("top_k", "output", place, outputs)
        early: answering.Answering = now._early.asking_after("top_k", ask_after, now.forest)
        return early.best(now, rows, int(k), int(place), _choose_jobs(now, n_jobs))

    def _predict_class_early(self: Any, rows: Any, n_jobs: int | None, ask_after: Any) -> Array:
        """Predict the class number of each row by early stopping, see `predict_class`."""
        now = (self._present or self)._for_rows(rows)
        early: answering.Answering = now._early.asking_after("predict_class", ask_after, now.forest)
        return early.classes(now, rows, _choose_jobs(now, n_jobs))

    @cached_property
    def _early(self: Any) -> answering.Answering:
        """The object that answers these methods by early stopping, made on first use."""
        return answering.Answering()


def to_probabilities(forest: Forest, value: Array) -> Array | list[Array]:
    """Return values (R, C) in the form of `predict_proba`: (R, 2) for two classes.

    A list with an array for each target, if targets have classes of their own.
    """
    if forest.targets and forest.label_rule == "argmax_probability":
        return split_by_target(value, forest)
    is_complete = value.shape[1] > 1 or forest.label_rule == "argmax_probability"
    return value if is_complete else np.concatenate([1 - value, value], axis=1)


def _choose_jobs(predictor: Any, n_jobs: int | None) -> int | None:
    """Return the argument `n_jobs` of a call; that of the predictor if the call gives none."""
    return predictor.n_jobs if n_jobs is None else n_jobs


def _check_threshold(threshold: Any, outputs: int) -> None:
    """Check that a threshold is a number, or has a number for each output.

    Raises:
        InputError: it is neither.
    """
    array = as_array(threshold)
    if array.dtype.kind not in "iuf" or array.shape not in ((), (outputs,)):
        raise InputError(
            f"predict_above: argument 'threshold': expected a number, or one for each of {outputs} "
            f"outputs, got {threshold!r:.80}"
        )


def _check_number(method: str, name: str, number: Any, end: int | None) -> None:
    """Check that an argument is a whole number from 0 on, and below `end` unless that is None.

    Raises:
        InputError: it is not.
    """
    is_whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if not is_whole or number < 0 or (end is not None and number >= end):
        most = "" if end is None else f" to {end - 1}"
        raise InputError(
            f"{method}: argument '{name}': expected a whole number from 0{most}, got {number!r:.80}"
        )
