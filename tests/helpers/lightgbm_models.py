"""Small trained LightGBM models, and what LightGBM itself says about their rows.

`MODELS` maps a name to a function that trains the model on its first call and returns the same
object afterwards: a Booster, or a fitted estimator where the name begins with "estimator". Features
0 to 3 are numbers, 4 and 5 are codes. `probe_rows` are the hard rows of a forest with LightGBM's
own edges among them; `margins` and `values` have the shapes of `Forest.predict_reference`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd

from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows

N_ROWS, N_FEATURES = 600, 6
COMMON = {"num_threads": 1, "seed": 7, "verbosity": -1, "num_leaves": 12, "deterministic": True}
FOREST = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}
SETS = {"min_data_per_group": 2, "cat_smooth": 1, "cat_l2": 0, "max_cat_to_onehot": 2}
ZERO = float(np.float32(1e-35))
EDGES = [ZERO, -ZERO, np.nextafter(ZERO, 1), np.nextafter(-ZERO, -1), 1e-36, -1e-36, np.nan, 0.0]
CODES = [-3, -1, -0.9999, -0.5, 0.5, 1.999, 7, 30.5, 31, 32, 33, 39, 40, 99, 2**24, 2**31, -(2**31)]
CODES += [2.0**31 - 1, 2.0**32 + 5, 1e300, -1e300, np.inf, -np.inf, np.nan, -0.0, 1e-36]
MODELS: dict[str, Callable[[], Any]] = {}


@lru_cache
def data() -> tuple[Any, Any]:
    """Rows (R, F), half of feature 3 being zero, and a positive target."""
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(N_ROWS, N_FEATURES))
    rows[rng.random(N_ROWS) < 0.5, 3] = 0
    rows[:, 4], rows[:, 5] = rng.integers(0, 40, N_ROWS), rng.integers(0, 3, N_ROWS)
    score = rows[:, 0] * 2 + rows[:, 1] ** 2 - rows[:, 2] * (rows[:, 3] == 0)
    score += rows[:, 4] % 3 + (rows[:, 5] == 1) + rng.normal(size=N_ROWS) / 4
    return rows, score - score.min() + 0.01


def with_holes() -> Any:
    """The same rows with 20 % missing values, missing more often where the target is large."""
    rows, target = data()
    holes = np.random.default_rng(8).random(rows.shape) < 0.4 * (target / target.max())[:, None]
    return np.where(holes, np.nan, rows)


def labels(n_classes: int) -> Any:
    """Classes 0 to n - 1 of equal size, by the target."""
    return np.argsort(np.argsort(data()[1])) * n_classes // N_ROWS


def train(target: Any = None, rows: Any = None, rounds: int = 10, **params: Any) -> Any:
    """Train a Booster on the common rows, features 4 and 5 being numbers if not told else."""
    fields = {key: params.pop(key) for key in ("categorical_feature", "group") if key in params}
    rows, target = data()[0] if rows is None else rows, data()[1] if target is None else target
    return lgb.train(COMMON | params, lgb.Dataset(rows, target, **fields), rounds)


def add(name: str, **params: Any) -> None:
    """Register a Booster."""
    MODELS[name] = lru_cache(partial(train, **params))


def model(build: Callable[[], Any]) -> Callable[[], Any]:
    """Register a model under the name of the function that trains it."""
    MODELS[build.__name__] = lru_cache(build)
    return MODELS[build.__name__]


# -- missing values and categories ----------------------------------------------------------------

CATEGORICAL: dict[str, Any] = {"categorical_feature": [4, 5], **SETS}
add("nothing_missing")
add("missing_nan", rows=with_holes())
add("missing_zero", zero_as_missing=True)
add("missing_zero_and_nan", rows=with_holes(), zero_as_missing=True)
add("missing_ignored", rows=with_holes(), use_missing=False)
add("categories", **CATEGORICAL)
add("categories_and_holes", rows=with_holes(), **CATEGORICAL)
add("categories_and_zero", rows=with_holes(), zero_as_missing=True, **CATEGORICAL)
add("categories_one_hot", **CATEGORICAL | {"max_cat_to_onehot": 64})

# -- objectives -----------------------------------------------------------------------------------

for objective in ("l1", "huber", "fair", "quantile", "mape", "poisson", "gamma", "tweedie"):
    add(objective, objective=objective)
add("sqrt", reg_sqrt=True)
add("sqrt_l1", objective="l1", reg_sqrt=True)
add("sqrt_huber", objective="huber", reg_sqrt=True)  # LightGBM switches it off
add("binary", target=labels(2), objective="binary")
add("binary_sigmoid", target=labels(2), objective="binary", sigmoid=0.7)
add("multiclass", target=labels(4), objective="multiclass", num_class=4)
add("ova", target=labels(4), objective="multiclassova", num_class=4, sigmoid=1.5)
add("ova_sets", target=labels(3), objective="multiclassova", num_class=3, **CATEGORICAL)
add("cross_entropy", target=labels(5) / 4, objective="cross_entropy")
add("cross_entropy_lambda", target=labels(5) / 4, objective="cross_entropy_lambda")
add("lambdarank", target=labels(4), objective="lambdarank", group=[20] * 30)
add("rank_xendcg", target=labels(4), objective="rank_xendcg", group=[20] * 30)
add("own_objective", objective=lambda margin, rows: (margin - rows.get_label(), np.ones(N_ROWS)))

# -- boosting -------------------------------------------------------------------------------------

add("dart", boosting="dart", drop_rate=0.5)
add("goss", data_sample_strategy="goss")
add("random_forest", **FOREST)
add("random_forest_binary", target=labels(2), objective="binary", **FOREST)
add("random_forest_classes", target=labels(3), objective="multiclass", num_class=3, **FOREST)
add("random_forest_quantile", objective="quantile", reg_sqrt=True, **FOREST)
add("one_leaf", target=np.full(N_ROWS, 3.5))
add("one_leaf_classes", target=labels(3) * 2, objective="multiclass", num_class=5, rounds=3)
add("stumps", num_leaves=2, boost_from_average=False)
add("large_values", target=data()[1] * 1e30)


@model
def zero_rounds() -> Any:
    return lgb.Booster(COMMON, lgb.Dataset(*data()))


@model
def early_stopped() -> Any:
    rows, target = data()
    part = lgb.Dataset(rows[:300], target[:300])
    rest = part.create_valid(rows[300:], target[300:])
    params = COMMON | {"learning_rate": 0.7, "early_stopping_round": 3}
    booster = lgb.train(params, part, 60, valid_sets=[rest], keep_training_booster=True)
    assert 0 < booster.best_iteration < booster.num_trees()
    return booster


@model
def continued_with_holes() -> Any:
    return lgb.train(COMMON, lgb.Dataset(with_holes(), data()[1]), 4, init_model=train())


@model
def middle_rounds() -> Any:
    return lgb.Booster(model_str=train().model_to_string(start_iteration=3, num_iteration=4))


def rewritten(booster: Any, change: Callable[[str], str]) -> Any:
    """A Booster with each tree's text changed."""
    head, *trees = booster.model_to_string().split("Tree=")
    *trees, last = [*trees[:-1], *trees[-1].split("end of trees")]
    trees = [change(tree) for tree in trees]
    sizes = " ".join(str(len(f"Tree={tree}")) for tree in trees)
    head = re.sub(r"tree_sizes=.*", f"tree_sizes={sizes}", head)
    return lgb.Booster(model_str="Tree=".join([head, *trees]) + "end of trees" + last)


def made_up(decisions: list[int], thresholds: list[float]) -> Any:
    """A Booster whose thresholds and decision types have been drawn from these lists."""
    rng = np.random.default_rng(2)

    def change(tree: str) -> str:
        for name, choice in (("decision_type", decisions), ("threshold", thresholds)):
            line = f"{name}=" + " ".join(map(repr, rng.choice(choice, 11).tolist()))
            tree = re.sub(rf"{name}=.*", line, tree)
        return tree

    return rewritten(train(rounds=20), change)


TINY = [value for value in EDGES if value == value] + [-0.0, 5e-324, -5e-324, 1e-30, -1e-30]
MODELS["tiny_thresholds"] = lru_cache(partial(made_up, [0, 2, 8, 10], TINY))
MODELS["tiny_thresholds_missing_zero"] = lru_cache(partial(made_up, [4, 6], TINY))
MODELS["mixed_missing"] = lru_cache(partial(made_up, [0, 2, 8, 10], [-1.0, 0.0, 1.0, 20.0]))
FAR = [np.inf, -np.inf, 1e300, -1e300, 1.7976931348623157e308, -1.7976931348623157e308, 3.5e38, 0.5]
MODELS["far_thresholds"] = lru_cache(partial(made_up, [0, 2, 8, 10], FAR))
MODELS["far_thresholds_missing_zero"] = lru_cache(partial(made_up, [4, 6], FAR))


@model
def telling_holes() -> Any:
    """A model that asks whether values are missing: LightGBM writes the threshold inf for it."""
    rows = with_holes()
    target = np.isnan(rows) @ np.array([9.0, 0, 0, 0, 5, 2])
    booster = train(target, rows, **CATEGORICAL | {"categorical_feature": [5]})
    assert re.search("threshold=.*inf", booster.model_to_string())
    return booster


@model
def infinite_leaves() -> Any:
    """A model whose first leaves are -inf, the logarithm of a share of zero."""
    booster = train(np.zeros(len(data()[0])), objective="cross_entropy_lambda", rounds=3)
    assert re.search("leaf_value=.*-inf", booster.model_to_string())
    return booster


@lru_cache
def frame() -> Any:
    """The rows as a frame with two categorical columns."""
    rows = pd.DataFrame(data()[0], columns=["a", "b", "c", "d", "city", "size"])
    rows["city"] = pd.Categorical("c" + rows["city"].astype(int).astype(str))
    rows["size"] = pd.Categorical(rows["size"].astype(int) * 10, categories=[20, 0, 10])
    return rows


@model
def pandas_categories() -> Any:
    return train(rows=frame(), **SETS)


def estimator(kind: str, target: Any, fit: dict[str, Any] | None = None, **params: Any) -> Any:
    """Fit an estimator on the common rows."""
    common = {"n_estimators": 8, "num_leaves": 12, "verbose": -1, "n_jobs": 1}
    return getattr(lgb, kind)(**common, **params).fit(data()[0], target, **fit or {})


def add_estimator(name: str, *arguments: Any, **params: Any) -> None:
    MODELS[f"estimator_{name}"] = lru_cache(partial(estimator, *arguments, **params))


WORDS = np.array(["no", "yes", "perhaps", "never"])
add_estimator("regressor", "LGBMRegressor", data()[1])
add_estimator("ranker", "LGBMRanker", labels(4), {"group": [20] * 30})
add_estimator("classifier", "LGBMClassifier", labels(2) * 4 - 1)
add_estimator("classifier_words", "LGBMClassifier", WORDS[labels(4)])
add_estimator("classifier_objects", "LGBMClassifier", WORDS.astype(object)[labels(2)])
add_estimator("classifier_flags", "LGBMClassifier", labels(2) == 1)
add_estimator("classifier_ova", "LGBMClassifier", labels(2), objective="multiclassova", num_class=2)
add_estimator("classifier_regression", "LGBMClassifier", labels(2), objective="regression")
add_estimator("classifier_forest", "LGBMClassifier", labels(3), **FOREST)


# -- linear leaves --------------------------------------------------------------------------------

LINEAR: dict[str, Any] = {"linear_tree": True}
add("linear", **LINEAR)
add("linear_holes", rows=with_holes(), linear_lambda=0.1, **LINEAR)
add("linear_binary", target=labels(2), objective="binary", **LINEAR)
add("linear_classes", target=labels(3), objective="multiclass", num_class=3, **LINEAR)
add("linear_one_leaf", target=labels(3) * 2, objective="ova", num_class=5, rounds=3, **LINEAR)
add("linear_categories", rows=with_holes(), **LINEAR, **CATEGORICAL)
add("linear_dart", boosting="dart", drop_rate=0.5, **LINEAR)
add("linear_random_forest", reg_sqrt=True, **LINEAR, **FOREST)
add_estimator("linear_classifier", "LGBMClassifier", WORDS[labels(4)], **LINEAR)


@model
def linear_refitted() -> Any:
    return MODELS["linear"]().refit(data()[0], data()[1] ** 2)


@model
def linear_after_plain() -> Any:
    return lgb.train(COMMON | LINEAR, lgb.Dataset(*data(), params=LINEAR), 4, init_model=train())


@model
def linear_huge_terms() -> Any:
    """Terms so large that they tell whether values within 1e-35 of zero are taken for zero."""
    rng = np.random.default_rng(4)

    def change(tree: str) -> str:
        tree = re.sub(r"(?<=leaf_const=).*", " ".join("0" * 12), tree)
        line = re.search(r"leaf_coeff=.*", tree)[0]
        drawn = re.sub(r"[^ =]+(?= |$)", lambda _: repr(rng.normal() * 1e300), line)
        return tree.replace(line, drawn)

    return rewritten(MODELS["linear"](), change)


# -- answers --------------------------------------------------------------------------------------


def booster_of(model: Any) -> Any:
    return model if isinstance(model, lgb.Booster) else model.booster_


def probe_rows(forest: Forest, n: int) -> Any:
    """Hard rows with LightGBM's zeros in all features and odd codes in the last two."""
    rng = np.random.default_rng(3)
    rows = hard_rows(forest, n)
    zero = rng.random(rows.shape) < 0.2
    rows[zero] = rng.choice(EDGES, int(zero.sum()))
    codes = rng.random((n, 2)) < 0.9
    rows[:, 4:][codes] = rng.choice([*range(40), *CODES], int(codes.sum()))
    return rows


def margins(model: Any, rows: Any) -> Any:
    """Raw scores (R, C), divided by the number of rounds for a random forest."""
    booster = booster_of(model)
    raw = booster.predict(rows, raw_score=True).reshape(len(rows), -1)
    averages = "\naverage_output\n" in booster.model_to_string(0)
    return raw / booster.current_iteration() if averages else raw


def values(model: Any, rows: Any) -> Any:
    return booster_of(model).predict(rows).reshape(len(rows), -1)
