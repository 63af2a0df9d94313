"""Replaces forests inside fitted estimators of scikit-learn by compiled ones.

takes: fitted estimator; gives: its copy.

The code names no class of scikit-learn: it traverses the attributes of every object that predicts
or transforms, and the items of lists, tuples, dicts and arrays of objects, and replaces each fitted
forest that `frontends` can load. Everything else is copied, so that training the original does not
change the copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from .. import api, frontends
from ..errors import ForestError, InputError
from ..predictor import building
from ..schedule_prims.batches import Edited
from .forests import ForestClassifier, ForestRegressor
from .untrainable import Untrainable

_WORKS = ("get_params", "predict", "predict_proba", "decision_function", "transform")
"""Methods by which estimators and their parts are recognised."""
_TRAINING = ("fit", "fit_predict", "fit_transform", "partial_fit")
_SEVERAL = (list, tuple, dict, np.ndarray)


def accelerate(
    estimator: Any,
    target: api.TargetLike = "llvm",
    schedule: Edited | None = None,
    *,
    n_jobs: int | None = None,
    strict: bool = True,
) -> Any:
    """Return a copy of a fitted estimator in which every forest is a compiled one.

    The copy has the interface of the original, and the same predictions. Forests of scikit-learn
    and of the libraries that `load` reads are found at any depth: in a `Pipeline`, a
    `CalibratedClassifierCV`, a `StackingClassifier`, a search, or as the estimator itself. They
    become `ForestClassifier` or `ForestRegressor`. Everything else is copied, so that a later
    change of the original does not affect the copy, nor the other way round.

    The copy cannot be trained. Cross-validation trains clones of it (`sklearn.base.clone`). A clone
    trains new forests if the estimator keeps untrained ones as parameters, as a `VotingClassifier`
    does; if its parameter is the compiled forest itself, as in a `Pipeline`, training is refused.

    Args:
        estimator: fitted estimator with the interface of scikit-learn.
        target: see `build`.
        schedule: see `build`; for several forests pass a function, such as a recipe, which is
            called with the `new_schedule` of each.
        n_jobs: number of threads of a call, see `build`.
        strict: refuse an estimator with a forest that cannot be compiled. With False, such a
            forest stays as it is, if at least one other is compiled.

    Raises:
        InputError: `estimator` is not an estimator, cannot be copied, or has no fitted forest
            inside; the message names the forests that were found.
        ModelFormatError, UnsupportedModel, ScheduleError, BuildError: see `build`; the message
            begins with the place of the forest, such as `steps[1][1].estimators_[0]`.

    Examples:
        >>> fast = tvm_forest.accelerate(model)
        >>> bool((fast.predict(rows) == labels).mean() > 0.9)
        True
    """
    if isinstance(estimator, type) or not hasattr(estimator, "get_params"):
        kind = getattr(estimator, "__name__", type(estimator).__name__)
        raise InputError(
            f"accelerate: argument 'estimator': {kind} is no fitted estimator of scikit-learn; for "
            "other models use tvm_forest.build, or ForestClassifier(model)"
        )
    walk = _Traversal(lambda model: _compile_estimator(model, target, schedule, n_jobs), strict)
    found = walk.visit(estimator, "")
    if not walk.compiled:
        met = ", ".join(walk.met) or "none"
        raise InputError(
            f"accelerate: argument 'estimator': {type(estimator).__name__} holds no fitted forest "
            f"(forests that were met: {met}); give one that is fitted"
        )
    return found if found is estimator else _separate(found, walk.compiled)


def _separate(found: Any, compiled: list[Any]) -> Any:
    """Return a deep copy of an estimator that shares only the compiled forests with it.

    Raises:
        InputError: the estimator cannot be copied.
    """
    try:
        return copy.deepcopy(found, {id(forest): forest for forest in compiled})
    except Exception as error:
        raise InputError(
            f"accelerate: argument 'estimator': {type(found).__name__} cannot be copied "
            f"({type(error).__name__}: {error}); take out the part that copy.deepcopy refuses, or "
            "accelerate the parts that hold forests"
        ) from None


class _Traversal:
    """A recursive traversal of an estimator.

    Attributes:
        compile: a function that compiles a forest and returns its new estimator.
        strict: see `accelerate`.
        met: for messages, the forests that were not compiled, with their places and the reasons.
        compiled: the compiled forests, including those that were compiled before.
    """

    def __init__(self, compile: Callable[[Any], Any], strict: bool) -> None:
        self.compile, self.strict = compile, strict
        self.met: list[str] = []
        self.compiled: list[Any] = []
        self._copies: dict[int, tuple[Any, Any]] = {}  # by identity, the original with its copy

    def visit(self, value: Any, path: str, anew: bool = True) -> Any:
        """Return a value with its forests compiled; the value itself if it contains none.

        Args:
            value: any object.
            path: the place of the object in the estimator, for messages.
            anew: whether to compile forests that were not found before.
        """
        known = self._copies.get(id(value))
        if known is not None:
            return known[1]
        if not isinstance(value, _SEVERAL) and not _is_part(value):
            return value
        if anew:
            self._copies[id(value)] = (value, value)  # ends cycles of references
        found = self._replace(value, path, anew)
        if anew or found is not value:
            self._copies[id(value)] = (value, found)
        return found

    def _replace(self, value: Any, path: str, anew: bool) -> Any:
        if isinstance(value, ForestClassifier | ForestRegressor):
            if value.model is not None:
                self.compiled.append(value)
            return value
        if isinstance(value, _SEVERAL):
            return self._replace_items(value, path, anew)
        if frontends.is_forest(value):
            is_estimator = hasattr(value, "get_params") and hasattr(value, "predict")
            return self._compile(value, path) if anew and is_estimator else value
        return self._replace_attributes(value, path, anew)

    def _compile(self, forest: Any, path: str) -> Any:
        """Return a compiled forest, or the forest itself if it cannot be compiled.

        Raises:
            ForestError: it is fitted, but refused, and `strict` is set.
        """
        place = f"{path or 'it'}: {type(forest).__name__}"
        try:
            found = self.compile(forest)
        except ForestError as error:
            if not _is_fitted(forest):
                self.met.append(f"{place}, not fitted")
            elif self.strict:
                where = f"accelerate: {path}: " if path else "accelerate: "
                error.args = type(error)(f"{where}{error}").args
                raise
            else:
                self.met.append(f"{place}, refused: {error}")
            return forest
        self.compiled.append(found)
        return found

    def _replace_items(self, items: Any, path: str, anew: bool) -> Any:
        """Return a container of the same kind whose items are replaced; itself if none is."""
        keys, values = _list_items(items)
        if not any(isinstance(value, _SEVERAL) or _is_part(value) for value in values):
            return items  # it may have millions of items, such as a vocabulary
        found = [
            self.visit(value, f"{path}[{key!r}]", anew)
            for key, value in zip(keys, values, strict=True)
        ]
        differ = any(new is not old for new, old in zip(found, values, strict=True))
        return _refill(items, found) if differ else items

    def _replace_attributes(self, part: Any, path: str, anew: bool) -> Any:
        """Return a copy of an estimator, or of a part of one, whose attributes are replaced.

        If none is, it is the object itself. A copy has no methods for training.

        Parameters are visited last. Usually `fit` trains copies of them, and they stay untrained,
        as in stacking. Then they are kept, unless they are the very objects that were replaced
        elsewhere. Only if `fit` stored nothing else, as in a pipeline, do parameters hold trained
        models, and are replaced.
        """
        parameters = part.get_params(deep=False) if hasattr(part, "get_params") else {}
        attributes = dict(getattr(part, "__dict__", {}))
        changed: dict[str, Any] = {}
        for name in sorted(attributes, key=parameters.__contains__):
            is_kept = name in parameters and any(key not in parameters for key in changed)
            where = f"{path}.{name}" if path else name
            found = self.visit(attributes[name], where, anew and not is_kept)
            if found is not attributes[name]:
                changed[name] = found
        if not changed:
            return part
        copied = copy.copy(part)
        copied.__dict__.update(changed)
        for name in _TRAINING:
            if hasattr(part, name):
                copied.__dict__[name] = Untrainable(name, type(part).__name__)
        return copied


def _list_items(items: Any) -> tuple[Iterable[Any], list[Any]]:
    """Return the keys and the values of a container; none of an array that holds no objects."""
    if isinstance(items, dict):
        return items, list(items.values())
    if isinstance(items, np.ndarray) and (type(items) is not np.ndarray or items.dtype != object):
        return [], []
    values = list(items.flat) if isinstance(items, np.ndarray) else list(items)
    return range(len(values)), values


def _refill(items: Any, values: list[Any]) -> Any:
    """Return a container of the same type and keys with other values."""
    if isinstance(items, dict):
        found = copy.copy(items)
        found.update(zip(items, values, strict=True))
        return found
    if isinstance(items, np.ndarray):
        array = np.empty(items.size, object)
        for place, value in enumerate(values):  # numpy would unpack values that have a length
            array[place] = value
        return array.reshape(items.shape)
    make = getattr(items, "_make", type(items))  # `_make` is that of named tuples
    return make(values)


def _is_part(value: Any) -> bool:
    """Return whether an object is an estimator, or a part that works as one."""
    return not isinstance(value, type) and any(hasattr(type(value), name) for name in _WORKS)


def _is_fitted(forest: Any) -> bool:
    try:
        check_is_fitted(forest)
    except NotFittedError:
        return False
    return True


def _compile_estimator(
    model: Any,
    target: api.TargetLike,
    schedule: Edited | None,
    n_jobs: int | None,
) -> ForestClassifier | ForestRegressor:
    """Return the compiled estimator of a model: a classifier if it has labels, else a regressor.

    Raises:
        ModelFormatError, UnsupportedModel, ScheduleError, BuildError: see `tvm_forest.build`.
    """
    forest = api.load(model)
    kind = ForestClassifier if forest.gives_labels else ForestRegressor
    made = None if schedule is None else building.edit_schedule(schedule, forest)
    found = kind(model, made, target, n_jobs)
    found._keep(forest)
    found._loaded = found._load_alone()  # the original may be trained further
    found.model = found._loaded.model
    _ = found.predictor_
    return found
