"""Small trained XGBoost models for all tests, and what XGBoost itself says about their rows.

`MODELS` maps a name to a function that trains the model on its first call and returns the same
object afterwards: a Booster, or a fitted estimator where the name begins with "estimator". Training
is seeded and takes well under a second. `margins`, `leaves` and `values` are XGBoost's own answers
for any of these models, in the shapes of `Forest.predict_reference`: (R, C), (R, T), (R, C).

    @pytest.mark.parametrize("name", MODELS)
    def test_something(name):
        model = MODELS[name]()
        forest = load(model)
        rows = probe_rows(model, forest, 500)
        assert np.array_equal(forest.predict_reference(rows), margins(model, rows))

A model in `SINGLE_OUTPUT` has C = 1, one in `CLASSES` has C > 1. DART models have no answer for
infinities, which `probe_rows` leaves out for them: XGBoost rounds DART one way from a DMatrix,
which refuses infinities, and another way from an array; the Forest follows the first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import xgboost as xgb

from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows

N_ROWS, N_FEATURES, N_CLASSES = 600, 6, 5
XGBOOST = tuple(map(int, xgb.__version__.split(".")[:2]))
DART_BY_KIND = XGBOOST < (3, 3)
"""Whether DART rounds by the kind of rows, and refuses infinities: newer ones do not."""
COMMON = {"nthread": 1, "seed": 7, "verbosity": 0, "max_depth": 4}
MODELS: dict[str, Callable[[], Any]] = {}


@lru_cache
def data() -> tuple[Any, Any]:
    """Rows (R, F) and a positive target that depends on them."""
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(N_ROWS, N_FEATURES)).astype(np.float32)
    score = rows[:, 0] * 2 + rows[:, 1] ** 2 - rows[:, 2] * rows[:, 3] + rng.normal(size=N_ROWS) / 4
    return rows, (score - score.min() + 0.01).astype(np.float32)


def with_holes() -> tuple[Any, Any]:
    """The same with 20 % missing values, missing more often where the target is large."""
    rows, target = data()
    rng = np.random.default_rng(8)
    holes = rng.random(rows.shape) < 0.4 * (target / target.max())[:, None]
    holes[:, 1] = rng.random(N_ROWS) < 0.2
    return np.where(holes, np.float32(np.nan), rows), target


def labels(n_classes: int) -> Any:
    """Classes 0 to n - 1 of equal size, by the target."""
    target = data()[1]
    return (np.argsort(np.argsort(target)) * n_classes // N_ROWS).astype(np.int64)


def train(objective: str, target: Any, rounds: int = 12, rows: Any = None, **params: Any) -> Any:
    """Train a Booster on the common rows."""
    matrix = xgb.DMatrix(data()[0] if rows is None else rows, target)
    return xgb.train(COMMON | {"objective": objective} | params, matrix, rounds)


def model(build: Callable[[], Any]) -> Callable[[], Any]:
    """Register a model under the name of the function that trains it."""
    MODELS[build.__name__] = lru_cache(build)
    return MODELS[build.__name__]


# -- one output -----------------------------------------------------------------------------------


def positive() -> Any:
    return data()[1]


def binary() -> Any:
    return labels(2)


def censored() -> Any:
    """Times of events; negative ones are of rows that outlived the study."""
    return np.where(labels(3) > 0, data()[1], -data()[1])


for name, (objective, target_of, params) in {
    "regression": ("reg:squarederror", positive, {}),
    "regression_200_trees": ("reg:squarederror", positive, {"rounds": 200, "eta": 0.05}),
    "deep": ("reg:squarederror", positive, {"rounds": 6, "max_depth": 12, "min_child_weight": 0}),
    "stumps": ("reg:squarederror", positive, {"rounds": 30, "max_depth": 1}),
    "single_leaves": ("reg:squarederror", positive, {"rounds": 5, "gamma": 1e9}),
    "some_single_leaves": ("reg:squarederror", positive, {"rounds": 60, "gamma": 20, "eta": 0.5}),
    "dart": ("reg:squarederror", positive, {"booster": "dart", "rate_drop": 0.4}),
    "logistic": ("binary:logistic", binary, {}),
    "logistic_with_base_score": ("binary:logistic", binary, {"base_score": 0.3}),
    "zero_rounds": ("binary:logistic", binary, {"base_score": 0.3, "rounds": 0}),
    "logitraw_with_base_score": ("binary:logitraw", binary, {"base_score": 0.3}),
    "hinge": ("binary:hinge", binary, {}),
    "regression_logistic": ("reg:logistic", lambda: labels(5) / 4, {"base_score": 0.2}),
    "poisson": ("count:poisson", lambda: np.floor(positive()), {}),
    "gamma": ("reg:gamma", positive, {}),
    "tweedie": ("reg:tweedie", positive, {"tweedie_variance_power": 1.3}),
    "squared_log_error": ("reg:squaredlogerror", positive, {}),
    "pseudo_huber": ("reg:pseudohubererror", positive, {"min_child_weight": 0, "reg_lambda": 0}),
    "absolute_error": ("reg:absoluteerror", positive, {}),
    "quantile": ("reg:quantileerror", positive, {"quantile_alpha": 0.7}),
    "cox": ("survival:cox", censored, {}),
}.items():
    MODELS[name] = lru_cache(
        partial(lambda o, t, p: train(o, t(), **p), objective, target_of, params)
    )


@model
def default_options() -> Any:
    """All options but the seed and the number of threads are XGBoost's own."""
    return xgb.train({"nthread": 1, "seed": 7}, xgb.DMatrix(*data()), 20)


@model
def aft() -> Any:
    matrix = xgb.DMatrix(data()[0])
    matrix.set_float_info("label_lower_bound", data()[1])
    matrix.set_float_info("label_upper_bound", data()[1] * 1.5)
    return xgb.train(COMMON | {"objective": "survival:aft"}, matrix, 12)


def ranker(objective: str) -> Any:
    """Train on groups of 30 rows."""
    matrix = xgb.DMatrix(data()[0], labels(2), group=[30] * (N_ROWS // 30))
    return xgb.train(COMMON | {"objective": objective}, matrix, 8)


@model
def rank_pairwise() -> Any:
    return ranker("rank:pairwise")


@model
def rank_ndcg() -> Any:
    return ranker("rank:ndcg")


@model
def rank_map() -> Any:
    return ranker("rank:map")


@model
def random_forest() -> Any:
    params = {"num_parallel_tree": 10, "subsample": 0.7, "colsample_bynode": 0.5, "eta": 1}
    return train("binary:logistic", labels(2), rounds=2, **params)


@model
def missing_values() -> Any:
    rows, target = with_holes()
    return train("reg:squarederror", target, rows=rows, rounds=20)


@model
def pruned() -> Any:
    params = {"gamma": 3.0, "tree_method": "exact", "max_depth": 8}
    return train("reg:squarederror", data()[1], rounds=20, **params)


@model
def one_feature() -> Any:
    return train("reg:squarederror", data()[1], rows=data()[0][:, :1])


@model
def early_stopped_booster() -> Any:
    rows, target = data()
    held_out = xgb.DMatrix(rows[300:], target[300:])
    matrix = xgb.DMatrix(rows[:300], target[:300])
    params = COMMON | {"objective": "reg:squarederror"}
    options = {"evals": [(held_out, "x")], "early_stopping_rounds": 5, "verbose_eval": False}
    return xgb.train(params, matrix, 100, **options)


# -- classes --------------------------------------------------------------------------------------


@model
def softprob() -> Any:
    return train("multi:softprob", labels(N_CLASSES), num_class=N_CLASSES)


@model
def softmax() -> Any:
    return train("multi:softmax", labels(N_CLASSES), num_class=N_CLASSES)


@model
def softprob_26_classes() -> Any:
    return train("multi:softprob", labels(26), num_class=26, rounds=4, base_score=0.25)


@model
def dart_classes() -> Any:
    params = {"booster": "dart", "rate_drop": 0.5, "num_class": N_CLASSES}
    return train("multi:softprob", labels(N_CLASSES), **params)


@model
def random_forest_classes() -> Any:
    params = {"num_parallel_tree": 4, "subsample": 0.7, "num_class": 3, "eta": 0.9}
    return train("multi:softprob", labels(3), rounds=3, **params)


@model
def missing_values_classes() -> Any:
    return train("multi:softprob", labels(3), rows=with_holes()[0], num_class=3)


@model
def own_objective_classes() -> Any:
    """A custom objective leaves the default one in the file, with a tree for each class."""
    target = np.eye(3)[labels(3)]
    params = COMMON | {"num_class": 3, "base_score": 0.1}
    return xgb.train(
        params,
        xgb.DMatrix(data()[0], labels(3)),
        5,
        obj=lambda margin, _: ((margin.reshape(-1, 3) - target), np.ones((N_ROWS, 3))),
    )


# -- estimators -----------------------------------------------------------------------------------

ESTIMATOR = {"n_estimators": 10, "max_depth": 4, "n_jobs": 1, "random_state": 7}


@model
def estimator_regressor() -> Any:
    return xgb.XGBRegressor(**ESTIMATOR).fit(*data())


@model
def estimator_regressor_early_stopped() -> Any:
    rows, target = data()
    params = ESTIMATOR | {"n_estimators": 100, "early_stopping_rounds": 5}
    held_out = [(rows[300:], target[300:])]
    estimator = xgb.XGBRegressor(**params)
    return estimator.fit(rows[:300], target[:300], eval_set=held_out, verbose=False)


@model
def estimator_forest_classes_early_stopped() -> Any:
    """Three classes, two trees for each of them in a round."""
    rows, target = data()[0], labels(3)
    params = ESTIMATOR | {"n_estimators": 60, "early_stopping_rounds": 3, "num_parallel_tree": 2}
    held_out = [(rows[300:], target[300:])]
    estimator = xgb.XGBClassifier(**params)
    return estimator.fit(rows[:300], target[:300], eval_set=held_out, verbose=False)


@model
def estimator_classifier() -> Any:
    return xgb.XGBClassifier(**ESTIMATOR).fit(data()[0], labels(2))


@model
def estimator_classifier_classes() -> Any:
    return xgb.XGBClassifier(**ESTIMATOR).fit(data()[0], labels(4))


@model
def estimator_classifier_softmax() -> Any:
    return xgb.XGBClassifier(objective="multi:softmax", **ESTIMATOR).fit(data()[0], labels(4))


@model
def estimator_random_forest_regressor() -> Any:
    return xgb.XGBRFRegressor(**ESTIMATOR).fit(*data())


@model
def estimator_random_forest_classifier() -> Any:
    return xgb.XGBRFClassifier(**ESTIMATOR).fit(data()[0], labels(3))


@model
def estimator_ranker() -> Any:
    return xgb.XGBRanker(**ESTIMATOR).fit(data()[0], labels(2), qid=np.arange(N_ROWS) // 30)


CLASSES = tuple(
    name for name in MODELS if "classes" in name or "soft" in name or name.endswith("t_classifier")
)
SINGLE_OUTPUT = tuple(name for name in MODELS if name not in CLASSES)


# -- XGBoost's answers ----------------------------------------------------------------------------


def is_dart(trained: Any) -> bool:
    """Tell whether a model is a DART Booster."""
    return isinstance(trained, xgb.Booster) and '"name":"dart"' in trained.save_config()


def probe_rows(trained: Any, forest: Forest, n: int, seed: int = 0) -> Any:
    """Return `hard_rows` for which XGBoost has an answer."""
    rows = hard_rows(forest, n, seed)
    return np.nan_to_num(rows, nan=np.nan) if is_dart(trained) else rows


def margins(trained: Any, rows: Any) -> Any:
    """XGBoost's margins, float32 (R, C)."""
    if is_dart(trained):
        margin = trained.predict(matrix_of(trained, rows), output_margin=True)
    elif isinstance(trained, xgb.Booster):
        margin = trained.inplace_predict(rows, predict_type="margin")
    else:
        margin = trained.predict(rows, output_margin=True)
    return np.asarray(margin).reshape(len(rows), -1)


def values(trained: Any, rows: Any) -> Any:
    """XGBoost's predictions after the link, float32 (R, C); softmax labels are no such values."""
    if is_dart(trained):
        value = trained.predict(matrix_of(trained, rows))
    elif isinstance(trained, xgb.Booster):
        value = trained.inplace_predict(rows)
    elif isinstance(trained, xgb.XGBClassifier):
        value = trained.predict_proba(rows)
        one = trained.n_classes_ == 2 and trained.predict(rows[:1]).ndim == 1
        value = value[:, 1] if one else value
    else:
        value = trained.predict(rows)
    return np.asarray(value).reshape(len(rows), -1)


def leaves(trained: Any, rows: Any) -> Any:
    """XGBoost's leaf numbers, float32 (R, T); infinities must have been replaced."""
    if isinstance(trained, xgb.Booster):
        leaf = trained.predict(matrix_of(trained, rows), pred_leaf=True)
    else:
        leaf = trained.apply(rows)
    return np.asarray(leaf).reshape(len(rows), -1)


def matrix_of(trained: xgb.Booster, rows: Any) -> xgb.DMatrix:
    """A DMatrix of rows, under the names and types of the model's features."""
    names, types = trained.feature_names, trained.feature_types
    return xgb.DMatrix(
        rows, feature_names=names, feature_types=types, enable_categorical=True, nthread=1
    )
