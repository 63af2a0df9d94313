"""Compiled forests as estimators of scikit-learn.

takes: a trained model in any form, Schedule; gives: ForestClassifier, ForestRegressor.

These estimators do not train: `fit` compiles the model that is their parameter, and refuses rows.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.extmath import softmax
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import validate_data

from .. import api
from ..errors import InputError, UnsupportedModel
from ..forest import Array, Forest, apply_link, split_by_target
from ..forest.rules import PROBABILITY_LINKS
from ..predictor.inputs.column_names import fits
from ..predictor.inputs.frames import kind_of
from ..predictor.predictor import Predictor
from ..schedule_prims.batches import Edited
from .untrainable import Untrainable

METHODS = ("predict_proba", "predict_log_proba", "decision_function", "score_samples")
"""Methods that a compiled classifier has only if its source estimator has them: those that wrap a
classifier, such as calibration, test which of them exist."""


def _split_in_two(margins: Array, scale: float) -> Array:
    likely = expit(scale * margins)
    return np.stack([1 - likely, likely], axis=1)


_OWN_LINKS: dict[str, Callable[[Array, float], Array]] = {
    "sigmoid": _split_in_two,
    "softmax": lambda margins, scale: softmax(margins),
}
"""Links that scikit-learn computes, for its own models: its `exp` differs from LLVM's in bits.

They take margins (R, C) and a scale, and return probabilities.
"""


def _methods_of_source(model: Any, forest: Forest) -> frozenset[str]:
    """Return which METHODS the source estimator has; for a file or booster, those that apply."""
    if hasattr(model, "get_params"):
        return frozenset(name for name in METHODS if hasattr(model, name))
    if forest.link == "isolation":
        return frozenset(("decision_function", "score_samples"))
    by_margin = forest.source.startswith("scikit") and forest.label_rule != "argmax_probability"
    return frozenset(METHODS[: 3 if by_margin else 2])


def _if_in_source(method: Callable[..., Any]) -> Any:
    """Decorate a method of METHODS: it does not exist if the source estimator does not have it."""

    def is_in_source(estimator: _ForestEstimator) -> bool:
        if estimator.model is None:
            return method.__name__ == "predict_proba"
        return method.__name__ in estimator._load().methods

    return available_if(is_in_source)(method)


class _Loaded(NamedTuple):
    """The loaded model: its Forest, its METHODS, and, after pickling, its feature importances."""

    model: Any
    forest: Forest
    methods: frozenset[str]
    importances: Array | None = None


class _ForestEstimator(BaseEstimator):
    """Base class of both estimators.

    `_loaded` caches the loaded model, and `_built` the compiled predictor with the parameters from
    which it was compiled, until these change.
    """

    def __init__(
        self,
        model: Any = None,
        schedule: Edited | None = None,
        target: api.TargetLike = "llvm",
        n_jobs: int | None = None,
    ) -> None:
        self.model = model
        self.schedule = schedule
        self.target = target
        self.n_jobs = n_jobs

    # -- the model --------------------------------------------------------------------------------

    def fit(self, X: Any = None, y: Any = None, **options: Any) -> Any:
        """Compile the model again, in case it was trained further; return the estimator itself.

        Args:
            X, y, options: refused, since nothing is trained here: cross-validation would score the
                model on rows that it was trained on.

        Raises:
            InputError: no model was given, or there are rows to train on.
            ModelFormatError, UnsupportedModel, ScheduleError, BuildError: see `tvm_forest.build`.
        """
        name = type(self).__name__
        if self.model is None:
            raise InputError(
                f"fit: argument 'model': None cannot be compiled, and {name} does not train; give "
                f"a trained model, as in {name}(model=booster)"
            )
        if X is not None or y is not None or options:
            Untrainable("fit", name)()
        for kept in ("_loaded", "_built"):
            self.__dict__.pop(kept, None)
        _ = self.predictor_
        return self

    @property
    def forest_(self) -> Forest:
        """The loaded model as a Forest."""
        return self._load().forest

    def _load(self) -> _Loaded:
        """Return the model, loaded anew if the parameter has changed; NotFittedError if None."""
        if self.model is None:
            name = type(self).__name__
            raise NotFittedError(f"{name}: argument 'model': None predicts nothing; give a model")
        loaded: _Loaded | None = self.__dict__.get("_loaded")
        if loaded is None or loaded.model is not self.model:
            return self._keep(api.load(self.model))
        return loaded

    def _keep(self, forest: Forest) -> _Loaded:
        """Store `forest`, as `_to_task` returns it, as the loaded model; return that."""
        forest = self._to_task(forest)
        self._loaded = _Loaded(self.model, forest, _methods_of_source(self.model, forest))
        return self._loaded

    def _load_alone(self) -> _Loaded:
        """Return the loaded model, with the Forest in place of the original, to be pickled."""
        forest = self.forest_
        try:
            importances = getattr(self, "feature_importances_", None)
        except Exception:  # any error of a library, for an attribute that may never be used
            importances = None
        return _Loaded(forest, forest, self._load().methods, importances)

    @property
    def predictor_(self) -> Predictor:
        """The compiled model; compiled at first use, and if model, schedule or target changes."""
        forest, parameters = self.forest_, (self.model, self.schedule, self.target)
        built = self.__dict__.get("_built")
        if built is None or any(a is not b for a, b in zip(built[0], parameters, strict=True)):
            built = self._built = (parameters, api.build(forest, self.target, self.schedule))
        predictor: Predictor = built[1]
        return predictor

    @property
    def n_features_in_(self) -> int:
        """Number of columns of rows."""
        return self._of_model("n_features_in_").given_width

    @property
    def feature_names_in_(self) -> Array:
        """Names of the columns, (F,) strings; AttributeError if the model was trained without."""
        names = self._of_model("feature_names_in_").given_names
        if names is None or names == tuple(f"Column_{i}" for i in range(len(names))):
            raise AttributeError("feature_names_in_: the model has no names of columns")
        return np.array(names, object)

    @property
    def feature_importances_(self) -> Array:
        """Importance of every column, (F,), from the source estimator."""
        loaded = self.__dict__.get("_loaded")
        if loaded is not None and loaded.importances is not None and loaded.model is self.model:
            return loaded.importances
        return self.model.feature_importances_

    def _of_model(self, name: str) -> Forest:
        if self.model is None:
            raise AttributeError(f"{name}: argument 'model': None has no such attribute")
        return self.forest_

    def _to_task(self, forest: Forest) -> Forest:
        """Return the forest for this task; a classifier adds labels if it has none.

        UnsupportedModel: a forest of labels for a regressor; one without probabilities otherwise.
        """
        raise NotImplementedError

    # -- predictions ------------------------------------------------------------------------------

    def predict(self, X: Any) -> Array:
        """Return what the source model's `predict` returns: labels, for a classifier.

        Args:
            X: (R, F) array, list, frame or sparse matrix.

        Raises:
            NotFittedError: there is no model.
            ValueError: rows of the wrong kind.
        """
        return self.predictor_.predict(self._validate(X), self.n_jobs)

    def apply(self, X: Any) -> Array:
        """Return the number of the leaf that every row reaches in every tree, (R, T)."""
        return self.predictor_.apply(self._validate(X), self.n_jobs)

    def _validate(self, rows: Any) -> Any:
        """Let scikit-learn validate rows; frames keep their categories.

        Frames with the model's columns are not validated, since scikit-learn might refuse names
        that the model's library accepts.
        """
        frame = hasattr(rows, "columns") or hasattr(rows, "column_names")
        kind = kind_of(rows) if frame else None
        if kind is not None and fits(rows, kind, self.forest_):
            return rows
        frame = frame or self.forest_.encoder is not None  # rows may hold texts
        options = {"dtype": "numeric", "accept_sparse": True, "ensure_all_finite": False}
        return validate_data(self, rows, reset=False, skip_check_array=frame, **options)

    # -- protocols of scikit-learn ----------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name, without the parameters of the trained model."""
        params: dict[str, Any] = super().get_params(deep=False)
        return params

    def __sklearn_clone__(self) -> Any:
        """Return a clone that shares the model, since a clone of the model would be untrained."""
        copied = type(self)(**self.get_params())
        if "_loaded" in self.__dict__:
            copied._loaded = self._loaded
        if "_metadata_request" in self.__dict__:
            copied._metadata_request = deepcopy(self._metadata_request)
        return copied

    def __sklearn_is_fitted__(self) -> bool:
        return self.model is not None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = self.model is None
        tags.target_tags.required = False
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.model is None or "nan" not in self.forest_.refuses
        for kind in filter(None, (tags.classifier_tags, tags.regressor_tags)):
            kind.poor_score = True  # scikit-learn's checks use data unknown to the model
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return a state with the Forest in place of the model; no training library is needed."""
        state = dict(super().__getstate__())
        built = state.pop("_built", None)
        state.pop("_adding", None)
        if self.model is not None:
            loaded = self._load_alone()
            state |= {"model": loaded.model, "_loaded": loaded}
        if built is not None:
            _ = self.predictor_  # anew if a parameter has changed
            (_, *parameters), predictor = self._built
            state["_built"] = ((state["model"], *parameters), predictor)
        return state


class ForestRegressor(RegressorMixin, _ForestEstimator):
    """A compiled regression forest as an estimator of scikit-learn.

    Attributes:
        model: see `tvm_forest.load`.
        schedule, target: see `tvm_forest.build`.
        n_jobs: threads of a call, see `tvm_forest.build`.
    """

    def _to_task(self, forest: Forest) -> Forest:
        if forest.gives_labels:
            raise UnsupportedModel(
                f"ForestRegressor: argument 'model': '{forest.source}' predicts labels; use "
                "ForestClassifier"
            )
        return forest


class ForestClassifier(ClassifierMixin, _ForestEstimator):
    """A compiled classification forest as an estimator of scikit-learn.

    If the model returns probabilities but has no labels, as one from a file may, the classes are 0,
    1, 2, ...

    Attributes:
        model: see `tvm_forest.load`.
        schedule, target: see `tvm_forest.build`.
        n_jobs: threads of a call, see `tvm_forest.build`.
    """

    @property
    def classes_(self) -> Array | list[Array]:
        """Labels (C,) in the order of `predict_proba`'s columns; a list for several targets."""
        labels = (forest := self._of_model("classes_")).labels
        assert labels is not None, "checked when the model was read"
        if len(forest.targets) < 2:
            return labels
        return [part[0] for part in split_by_target(labels[None, :], forest)]

    @_if_in_source
    def predict_proba(self, X: Any) -> Array | list[Array]:
        """Predict the probability of every class, (R, C); a list of these for several targets.

        Raises:
            UnsupportedModel: the model gives no probabilities.
            NotFittedError, ValueError: see `predict`.
        """
        rows, forest = self._validate(X), self.forest_
        if forest.link not in _OWN_LINKS or not forest.source.startswith("scikit-learn"):
            return self.predictor_.predict_proba(rows, self.n_jobs)
        margins = self.predictor_.predict_margin(rows, self.n_jobs)
        by_columns = forest.source.startswith("scikit-learn Hist")  # decides the order of additions
        margins = np.asarray(margins, order="F" if by_columns else "C")
        return _OWN_LINKS[forest.link](margins, forest.link_scale)

    @_if_in_source
    def predict_log_proba(self, X: Any) -> Array | list[Array]:
        """Predict the logarithm of the probability of every class, as `predict_proba` does."""
        if self.forest_.source.startswith("catboost"):  # CatBoost computes it from margins
            rows, kind = self._validate(X), "LogProbability"
            return self.predictor_.predict(rows, self.n_jobs, prediction_type=kind)
        chances = self.predict_proba(X)
        with np.errstate(divide="ignore"):
            return list(map(np.log, chances)) if isinstance(chances, list) else np.log(chances)

    @_if_in_source
    def decision_function(self, X: Any) -> Array:
        """Predict margins, (R,) for two classes and (R, C) for more.

        Those of an isolation forest, (R,), are negative for outliers.

        Raises:
            NotFittedError, ValueError: see `predict`.
        """
        if self.forest_.score_offset is not None:
            return self.score_samples(X) - self.forest_.score_offset
        averages = self.forest_.aggregate == "average"  # LightGBM returns the sums
        predictor = self._adding_predictor() if averages else self.predictor_
        return predictor.predict_margin(self._validate(X), self.n_jobs)

    def _adding_predictor(self) -> Predictor:
        """Return a predictor that adds what the trees of `predictor_` give; it is compiled once."""
        adding: tuple[Any, Predictor] | None = self.__dict__.get("_adding")
        if adding is None or adding[0] is not self.predictor_:
            forest = replace(self.forest_, aggregate="sum")
            adding = self._adding = (
                self.predictor_,
                api.build(forest, self.target, self.schedule),
            )
        return adding[1]

    @_if_in_source
    def score_samples(self, X: Any) -> Array:
        """Score rows as an isolation forest does, (R,): the lower, the more abnormal."""
        lengths = self.predictor_.predict_margin(self._validate(X), self.n_jobs)
        return apply_link("isolation", lengths, self.forest_.link_scale)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.model is not None and self.forest_.link == "isolation":
            tags.estimator_type, tags.classifier_tags = "outlier_detector", None
        return tags

    def _to_task(self, forest: Forest) -> Forest:
        if forest.gives_labels:
            return forest
        several = forest.n_outputs > 1
        ours = "softmax" in forest.link or forest.source == "lightgbm multiclassova"
        if forest.link not in PROBABILITY_LINKS or (several and not ours):
            raise UnsupportedModel(
                f"ForestClassifier: argument 'model': '{forest.source}' gives no probabilities of "
                "classes; use ForestRegressor"
            )
        sizes = forest.targets or (max(2, forest.n_outputs),)
        return replace(
            forest,
            label_rule="argmax_probability" if several else "half",
            labels=np.concatenate([np.arange(size) for size in sizes]),
        )
