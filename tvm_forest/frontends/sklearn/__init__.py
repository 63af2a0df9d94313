"""Loads fitted trees and ensembles of trees of scikit-learn 1.5 and newer.

takes: fitted estimator; gives: Forest.

scikit-learn sums float64 leaves in tree order and compares by `<=`. Its estimators differ:

- Trees, random forests and extra trees cast rows to float32 and compare them with float64
  thresholds. Forests divide the sum by the number of trees. They are reproduced as with `n_jobs=1`;
  several threads add in any order. A leaf of a classifier holds class fractions, one target after
  the other, a leaf of a regressor a value per target.
- Gradient boosting compares in the same way, but starts from the prediction of its `init` and adds
  `learning_rate * leaf`.
- Histogram gradient boosting compares float64 rows and starts from its baseline. Categorical
  columns come first in its trees; a category is encoded as its index among those of the training
  rows, and all other values are missing.
- Isolation forests (Liu, Ting and Zhou, 2008) sum path lengths, which are the margin here. The
  value is `score_samples`; `decision_function` subtracts `offset_` from it.

Refused are estimators that are not fitted, classes that derive from these, and cases that the table
`SUPPORT` lists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...forest import Forest
from ..objects import find_class, library_of
from ..refusals import damaged, name_in_errors, unsupported
from ..support import list_accepted, list_linked, list_refused
from . import boosting, trees

_OLDEST = (1, 5)
_LOADERS: dict[str, tuple[str, Callable[[Any], Forest]]] = {
    "DecisionTreeClassifier": ("tree_", trees.load_trees),
    "DecisionTreeRegressor": ("tree_", trees.load_trees),
    "ExtraTreeClassifier": ("tree_", trees.load_trees),
    "ExtraTreeRegressor": ("tree_", trees.load_trees),
    "RandomForestClassifier": ("estimators_", trees.load_trees),
    "RandomForestRegressor": ("estimators_", trees.load_trees),
    "ExtraTreesClassifier": ("estimators_", trees.load_trees),
    "ExtraTreesRegressor": ("estimators_", trees.load_trees),
    "GradientBoostingClassifier": ("estimators_", boosting.load_boosting),
    "GradientBoostingRegressor": ("estimators_", boosting.load_boosting),
    "HistGradientBoostingClassifier": ("_predictors", boosting.load_hist_boosting),
    "HistGradientBoostingRegressor": ("_predictors", boosting.load_hist_boosting),
    "IsolationForest": ("estimators_", trees.load_isolation_forest),
}
"""For each estimator, an attribute that it has once it is fitted, and the function to load it."""
_FAMILIES = (
    "BaseDecisionTree",
    "BaseForest",
    "BaseGradientBoosting",
    "BaseHistGradientBoosting",
    "IsolationForest",
)
"""The base classes of all trees and forests of scikit-learn, also of those that are refused."""
_INSIDE = {
    "Pipeline": "give its last step, `model[-1]`, and transform rows yourself",
    "GridSearchCV": "give its `best_estimator_`",
    "RandomizedSearchCV": "give its `best_estimator_`",
}

SUPPORT = [
    *list_accepted("scikit-learn", "estimator", _LOADERS),
    *list_linked(
        "scikit-learn", "link of a loss", {name: link for name, (link, _) in boosting.LINKS.items()}
    ),
    *list_linked("scikit-learn", "score", {"IsolationForest.score_samples": "isolation"}),
    *list_refused(
        "scikit-learn",
        __class__="any other estimator, and classes that derive from these",
        __version__="scikit-learn before 1.5",
        init="gradient boosting that starts from another model",
        loss="a link that is not known",
        categorical_features="categories other than texts and whole numbers from 0 to 2^24 - 1",
    ),
]


def from_object(model: Any) -> Forest | None:
    """Load a fitted estimator.

    Return None for an object that is not of scikit-learn, nor derived from its estimators of trees.

    Raises:
        ModelFormatError: the estimator is not fitted, or its trees are damaged.
        UnsupportedModel: another kind of estimator, a subclass, scikit-learn before 1.5, or a part
            that cannot be reproduced exactly.
    """
    base = find_class(model, "sklearn", _LOADERS)
    if base is None and library_of(type(model)) != "sklearn":
        return None
    name = type(model).__name__
    with name_in_errors(f"scikit-learn {name}"):
        version = _check_version()
        _check_class(model, base)
        attribute, loader = _LOADERS[name]
        if attribute not in vars(model):
            raise damaged(attribute, "the estimator is not fitted", "fit it first")
        try:
            return loader(model)
        except AttributeError as error:
            what = f"scikit-learn {version} keeps no such attribute"
            remedy = "fit the estimator again with scikit-learn 1.5 to 1.9"
            raise unsupported(str(error.name), what, remedy) from error


def is_forest(model: Any) -> bool:
    """Return whether an object is a tree or forest of scikit-learn, or derives from one."""
    return find_class(model, "sklearn", _FAMILIES) is not None


def _check_version() -> str:
    """Return the version of scikit-learn, which the object has imported; refuse old versions."""
    version = str(getattr(sys.modules.get("sklearn"), "__version__", "0.0"))
    parts = version.split(".")[:2]
    if tuple(int(part) if part.isdecimal() else 0 for part in parts) < _OLDEST:
        what = f"scikit-learn {version} predicts by other rules"
        raise unsupported("__version__", what, "use scikit-learn 1.5 or newer")
    return version


def _check_class(model: Any, base: str | None) -> None:
    name, module = type(model).__name__, type(model).__module__
    if library_of(type(model)) != "sklearn":
        what = f"{module}.{name} derives from {base} and may predict otherwise"
        raise unsupported("__class__", what, f"give an object of the class {base} itself")
    if name not in _LOADERS:
        remedy = _INSIDE.get(name, f"give one of {', '.join(_LOADERS)}")
        remedy += "; tvm_forest.accelerate(model) compiles the forests inside of an estimator"
        raise unsupported("__class__", f"{module}.{name} cannot be loaded", remedy)
