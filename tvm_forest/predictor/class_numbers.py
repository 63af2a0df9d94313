"""Predicts classes, as numbers of the smallest sufficient dtype, and probabilities.

takes: margins and values of a Predictor; gives: indices of labels, int8 or int32; (R, C).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import InputError, UnsupportedModel
from ..forest import Array, Forest, choose_classes, split_by_target

PROBABILITY_LINKS = (
    *("sigmoid", "unbounded_sigmoid", "logistic", "clamp"),
    *("softmax", "rounded_softmax", "plain_softmax", "coarse_softmax"),
)
"""Links whose values are probabilities."""

DTYPES = ("int8", "int32")
"""Dtypes of class numbers; with int8, a row of up to 128 classes takes one byte."""


class ClassMethods:
    """The methods of a Predictor about classes."""

    forest: Forest
    _present: Any
    _sums: Any

    @property
    def n_features_in_(self) -> int:
        """The number of columns of the rows that `predict` takes, under scikit-learn's name."""
        return self.forest.given_width

    @property
    def feature_names_in_(self) -> Array:
        """Names of these columns, (F,) strings; the attribute is missing if they have none."""
        return np.asarray(self._get_known("feature_names_in_", self.forest.given_names), object)

    @property
    def classes_(self) -> Array:
        """Labels of the classes; the attribute is missing for models without labels."""
        return np.asarray(self._get_known("classes_", self.forest.labels))

    def _get_known(self, name: str, value: Any) -> Any:
        """Return a property of the model, or raise AttributeError, which `hasattr` relies on."""
        if value is None:
            raise AttributeError(f"the model '{self.forest.source}' has no '{name}'")
        return value

    @property
    def gives_probabilities(self) -> bool:
        """Whether the model has `predict_proba`."""
        forest = self.forest
        of_labels = forest.label_rule in ("half", "argmax_probability")
        return of_labels or forest.link in PROBABILITY_LINKS

    def predict_class(
        self,
        rows: Any,
        n_jobs: int | None = None,
        iteration_range: tuple[int, int] | None = None,
        dtype: str = "int32",
    ) -> Array:
        """Predict the number of the class of every row.

        It is the index of the label that a classifier's `predict` returns, among the columns of
        `predict_proba`. Of equally likely classes it is the first.

        Args:
            rows, n_jobs, iteration_range: see `predict`.
            dtype: "int32" or, for up to 128 classes, "int8".

        Returns:
            (R,), or (R, targets) where each target has a class.

        Raises:
            UnsupportedModel: the model is no classifier.
            InputError: rows or another argument of the wrong kind, or a class does not fit dtype.

        Examples:
            >>> predictor.predict_class(rows[::50])
            array([0, 1, 2], dtype=int32)
        """
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
        margin, value = now._sums(rows, n_jobs, iteration_range)
        return choose_classes(now.forest, margin, value).astype(dtype)


def to_probabilities(forest: Forest, value: Array) -> Array | list[Array]:
    """Return values (R, C) in the form of `predict_proba`: (R, 2) for two classes."""
    if forest.targets and forest.label_rule == "argmax_probability":
        return split_by_target(value, forest)
    is_complete = value.shape[1] > 1 or forest.label_rule == "argmax_probability"
    return value if is_complete else np.concatenate([1 - value, value], axis=1)
