"""Replaces forests inside fitted estimators of scikit-learn by compiled ones.

takes: fitted estimator; gives: its copy.

Nothing here knows the classes of scikit-learn: the walk goes through the attributes of whatever
predicts or transforms, and through lists, tuples, dicts and arrays of objects, and replaces each
fitted forest that `frontends` knows. All else is copied, so that training the one leaves the other
as it is.
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

    The copy has the interface of the original and predicts what it predicts. Forests are those of
    scikit-learn and of the libraries that `load` reads, at any depth: in a `Pipeline`, a
    `CalibratedClassifierCV`, a `StackingClassifier`, a search, or as the estimator itself. They
    become `ForestClassifier` and `ForestRegressor`. All else is copied: whatever happens to the
    copy, the original stays as it is, and the other way round.

    The copy predicts and refuses to be trained. `sklearn.base.clone` of it, as cross-validation
    makes them, trains new forests where the original would clone untrained ones, as a
    `VotingClassifier` does, and is refused when it is trained where a compiled forest is all it
    has, as in a `Pipeline`.

    Args:
        estimator: fitted estimator with the interface of scikit-learn.
        target: see `build`.
        schedule: see `build`; a function, such as a recipe, fits several forests: it is called with
            `new_schedule` of each.
        n_jobs: threads of a call, see `build`.
        strict: refuse an estimator with a forest that cannot be compiled. With False, such a
            forest stays as it is, and one that is compiled is enough.

    Raises:
        InputError: no estimator, one that cannot be copied, or no fitted forest inside; the
            message names what was met.
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
    """Return a copy that shares only compiled forests with the original."""
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
        compile: makes an estimator of a forest.
        strict: see `accelerate`.
        met: the forests that were left as they are, with their places and the reasons.
        compiled: the forests that were compiled, or were so before.
    """

    def __init__(self, compile: Callable[[Any], Any], strict: bool) -> None:
        self.compile, self.strict = compile, strict
        self.met: list[str] = []
        self.compiled: list[Any] = []
        self._copies: dict[int, tuple[Any, Any]] = {}  # by identity, the original with its copy

    def visit(self, value: Any, path: str, anew: bool = True) -> Any:
        """Return a value with its forests compiled; the value itself if it contains none.

        Args:
            value: anything.
            path: where it is, for messages.
            anew: compile forests that are met for the first time.
        """
        known = self._copies.get(id(value))
        if known is not None:
            return known[1]
        if not isinstance(value, _SEVERAL) and not _is_part(value):
            return value
        if anew:
            self._copies[id(value)] = (value, value)  # for parts that lead back to the whole
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
        """Return a compiled forest, or the forest itself if it is not fitted or is refused."""
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
        """Return a container of the same kind whose items are replaced."""
        keys, values = _list_items(items)
        if not any(isinstance(value, _SEVERAL) or _is_part(value) for value in values):
            return items  # perhaps the millions of words of a vocabulary
        found = [
            self.visit(value, f"{path}[{key!r}]", anew)
            for key, value in zip(keys, values, strict=True)
        ]
        differ = any(new is not old for new, old in zip(found, values, strict=True))
        return _refill(items, found) if differ else items

    def _replace_attributes(self, part: Any, path: str, anew: bool) -> Any:
        """Return a copy of an estimator, or of a part of one, whose attributes are replaced.

        Parameters come last. They hold what is trained only where `fit` keeps nothing else of it,
        as the steps of a pipeline; elsewhere they are models that `fit` has copied before it
        trained them. These stay, unless they are the very objects that were replaced.
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
    """Return the keys and the values of a container."""
    if isinstance(items, dict):
        return items, list(items.values())
    if isinstance(items, np.ndarray) and (type(items) is not np.ndarray or items.dtype != object):
        return [], []
    values = list(items.flat) if isinstance(items, np.ndarray) else list(items)
    return range(len(values)), values


def _refill(items: Any, values: list[Any]) -> Any:
    """Return a container of the same kind with other values in the same places."""
    if isinstance(items, dict):
        found = copy.copy(items)
        found.update(zip(items, values, strict=True))
        return found
    if isinstance(items, np.ndarray):
        array = np.empty(items.size, object)
        for place, value in enumerate(values):  # numpy would look into values that have a length
            array[place] = value
        return array.reshape(items.shape)
    make = getattr(items, "_make", type(items))  # of a tuple with names
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
    found._loaded = found._load_alone()  # the model itself may be trained on
    found.model = found._loaded.model
    _ = found.predictor_
    return found
