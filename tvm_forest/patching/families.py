"""Defines the kinds of estimators that are patched: their states, rows and methods.

takes: fitted estimators, rows; gives: states, rows that were checked, results of compiled code.

No library is imported here. In scikit-learn, only the methods that add up trees are replaced. They
are called by other methods, such as the `predict` of a random forest, which calls `predict_proba`
and makes labels of the result.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, UnsupportedModel
from ..forest import Array, apply_link
from ..forest.rules import LINK_ULPS
from .boosters import refuse_options, state_of_booster, to_plain_rows
from .states import digest_arrays

if TYPE_CHECKING:
    from ..forest import Forest
    from ..predictor.predictor import Predictor

Answer = Callable[[Any, "Predictor", Array], Any]


def _accept(_: Any) -> None:
    return None


@dataclass(frozen=True)
class Family:
    """A kind of estimators, patched in the same way.

    Attributes:
        answers: by name of a replaced method, the function that computes its result from the
            estimator, a predictor and checked rows.
        state: function of an estimator; its result differs if the estimator may predict otherwise.
            It raises an error if it cannot detect that.
        rows: function that checks rows as the library does, and returns those for compiled code; it
            raises an error for rows that are left to the library.
        refuse: function that raises an error for an estimator that must not be compiled, even if
            `load` accepts it.
        inexact: function of a method's name and the model, which returns the reason why results of
            compiled code would not be equal to the bit, or None.
        is_read_at_once: whether the estimator must be read on the calling thread, because the
            library must not be used meanwhile.
        ignored: names of arguments that change no bit.
    """

    answers: Mapping[str, Answer]
    state: Callable[[Any], Any]
    rows: Callable[[Any, Any, Forest], Array]
    refuse: Callable[[Any], None] = _accept
    inexact: Callable[[str, Forest], str | None] = lambda name, forest: None
    is_read_at_once: bool = False
    ignored: tuple[str, ...] = ()

    def takes(self, args: Any, kwargs: Any) -> bool:
        """Return whether a call passes rows, and no other argument that matters."""
        rest = [name for name in kwargs if name not in self.ignored]
        return len(args) + len(rest) == 1 and set(rest) <= {"X", "data"}

    def is_in_training(self, estimator: Any) -> bool:
        """Return whether the estimator is being trained, when it may call its own `predict`."""
        return bool(vars(estimator).get("_in_fit", False))


# -- scikit-learn -------------------------------------------------------------------------------


def _digest_trees(estimators: Iterable[Any]) -> tuple[Any, ...]:
    """Return a digest of fitted trees of `sklearn.tree`.

    Raises:
        UnsupportedModel: a tree is of another class, which may predict differently.
    """
    arrays: list[Array] = []
    for estimator in estimators:
        tree = estimator.tree_
        if type(estimator).__module__ != "sklearn.tree._classes" or "predict" in vars(estimator):
            raise UnsupportedModel(f"estimators_: {type(estimator).__name__} may predict otherwise")
        parts = tree.__getstate__()  # arrays are views: no version of scikit-learn copies them
        arrays += (parts["nodes"], parts["values"])
    return digest_arrays(arrays)


def _attributes(estimator: Any, names: str) -> bytes:
    """Return the contents of attributes as bytes; missing ones count as None."""
    values = vars(estimator)
    return pickle.dumps([values.get(name) for name in names.split()])


def _state_of_forest(model: Any) -> Any:
    about = _attributes(model, "n_features_in_ n_outputs_ n_classes_")
    return about, _digest_trees(model.estimators_)


def _state_of_boosting(model: Any) -> Any:
    about = _attributes(model, "n_features_in_ n_trees_per_iteration_ learning_rate init_")
    shape = model.estimators_.shape
    return about, shape, type(model._loss), _digest_trees(model.estimators_.ravel())


def _state_of_histograms(model: Any) -> Any:
    if model._preprocessor is not None:
        raise UnsupportedModel("categorical_features: the library's own encoder reads the rows")
    stages = [len(stage) for stage in model._predictors]
    trees = [tree for stage in model._predictors for tree in stage]
    arrays = [part for tree in trees for part in (tree.nodes, tree.raw_left_cat_bitsets)]
    about = _attributes(model, "n_features_in_ n_trees_per_iteration_ _baseline_prediction")
    return about, stages, digest_arrays(arrays)


def _state_of_isolation(model: Any) -> Any:
    about = _attributes(model, "n_features_in_ _max_features _max_samples")
    arrays = [
        *model.estimators_features_,
        *model._decision_path_lengths,
        *model._average_path_length_per_tree,
    ]
    return about, _digest_trees(model.estimators_), digest_arrays(arrays)


def _as_checked(rows: Any) -> Array:
    if not isinstance(rows, np.ndarray) or rows.ndim != 2:
        raise InputError("rows are sparse")
    return rows


def _refuse_progress(model: Any) -> None:
    if model.verbose:
        raise UnsupportedModel("verbose: the library tells its progress")


def _check_for_forest(model: Any, rows: Any, _: Forest) -> Array:
    _refuse_progress(model)
    return _as_checked(model._validate_X_predict(rows))


def _check_for_histograms(model: Any, rows: Any, _: Forest) -> Array:
    return _as_checked(model._preprocess_X(rows, reset=False))


def _are_checked(model: Any, rows: Any, _: Forest) -> Array:
    """Return the rows, which the public method has checked; refuse sparse ones."""
    return _as_checked(rows)


def _count_threads(n_jobs: Any) -> int:
    """Return the number of threads that scikit-learn would use."""
    joblib = import_module("joblib")  # scikit-learn has imported it
    return int(joblib.effective_n_jobs(n_jobs))


def _add_chances(model: Any, predictor: Predictor, rows: Array) -> Any:
    return predictor.predict_proba(rows, _count_threads(model.n_jobs))


def _add_numbers(model: Any, predictor: Predictor, rows: Array) -> Array:
    return predictor.predict(rows, _count_threads(model.n_jobs))


def _find_leaves(model: Any, predictor: Predictor, rows: Array) -> Array:
    return predictor.apply(rows, _count_threads(model.n_jobs))


def _add_up(_: Any, predictor: Predictor, rows: Array) -> Array:
    margins: Array = predictor.predict_margin(rows, 1)
    return np.ascontiguousarray(margins.reshape(len(rows), -1))


def _add_up_by_columns(_: Any, predictor: Predictor, rows: Array) -> Array:
    margins: Array = predictor.predict_margin(rows)
    return np.asarray(margins.reshape(len(rows), -1), order="F")


def _score_lengths(model: Any, predictor: Predictor, rows: Array) -> Array:
    _refuse_progress(model)
    lengths: Array = predictor.predict_margin(rows, _count_threads(None))
    return apply_link("isolation", lengths, predictor.forest.link_scale)


_CLASSIFIERS = Family(
    {"predict_proba": _add_chances, "apply": _find_leaves}, _state_of_forest, _check_for_forest
)
_REGRESSORS = Family(
    {"predict": _add_numbers, "apply": _find_leaves}, _state_of_forest, _check_for_forest
)
_BOOSTING = Family({"_raw_predict": _add_up}, _state_of_boosting, _are_checked)
_HISTOGRAMS = Family(
    {"_raw_predict": _add_up_by_columns},
    _state_of_histograms,
    _check_for_histograms,
    ignored=("n_threads",),
)
_ISOLATION = Family({"_score_samples": _score_lengths}, _state_of_isolation, _are_checked)


# -- boosters -----------------------------------------------------------------------------------


def _threads_of_booster(model: Any) -> int | None:
    n_jobs = getattr(model, "n_jobs", None)
    return n_jobs if isinstance(n_jobs, int) and n_jobs >= 1 else None


def _predict(model: Any, predictor: Predictor, rows: Array) -> Array:
    return predictor.predict(rows, _threads_of_booster(model))


def _predict_chances(model: Any, predictor: Predictor, rows: Array) -> Any:
    return predictor.predict_proba(rows, _threads_of_booster(model))


def _tell_inexact(name: str, forest: Forest) -> str | None:
    """Return why values of a booster are not bit-equal (the library's `exp` differs), or None."""
    if LINK_ULPS[forest.link] and not (name == "predict" and forest.gives_labels):
        return f"{name} may differ in the last places, by the link {forest.link}"
    return None


_BOOSTERS = Family(
    {"predict": _predict, "predict_proba": _predict_chances},
    state_of_booster,
    to_plain_rows,
    refuse_options,
    _tell_inexact,
    is_read_at_once=True,
)

FAMILIES: Mapping[str, Mapping[str, Family]] = {
    "sklearn.ensemble": {
        "RandomForestClassifier": _CLASSIFIERS,
        "ExtraTreesClassifier": _CLASSIFIERS,
        "RandomForestRegressor": _REGRESSORS,
        "ExtraTreesRegressor": _REGRESSORS,
        "GradientBoostingClassifier": _BOOSTING,
        "GradientBoostingRegressor": _BOOSTING,
        "HistGradientBoostingClassifier": _HISTOGRAMS,
        "HistGradientBoostingRegressor": _HISTOGRAMS,
        "IsolationForest": _ISOLATION,
    },
    "xgboost.sklearn": dict.fromkeys(
        ("XGBClassifier", "XGBRegressor", "XGBRFClassifier", "XGBRFRegressor", "XGBRanker"),
        _BOOSTERS,
    ),
    "lightgbm.sklearn": dict.fromkeys(("LGBMClassifier", "LGBMRegressor", "LGBMRanker"), _BOOSTERS),
    "catboost.core": dict.fromkeys(
        ("CatBoostClassifier", "CatBoostRegressor", "CatBoostRanker"), _BOOSTERS
    ),
}
"""By module and class, the family of each patched class."""
