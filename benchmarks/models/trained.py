"""How the models that are trained here are made, always alike.

takes: nothing, or the name of a random model; gives: Trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.models.model import ROWS, Trained, drawn_again
from benchmarks.models.published import MODELS, rows_of

ONE_HOT = (12, 31, 7, 22, 309, 309)
"""Month, day, weekday, carrier, origin, destination: with two numbers, 692 columns."""


def _boost(rows: Any, answer: Any, rounds: int, **params: Any) -> Any:
    import xgboost

    params = {"seed": 7, "nthread": 2, "verbosity": 0} | params
    return xgboost.train(params, xgboost.DMatrix(rows, answer), rounds)


def _abalone() -> Trained:
    """Read the published ONNX file; XGBoost then predicts what was published to the last bit."""
    import tvm_forest

    forest = tvm_forest.load(MODELS / "abalone.onnx")
    return Trained(_booster_of(forest), "xgboost", drawn_again(rows_of("abalone")[0]), "published")


def _booster_of(forest: Any) -> Any:
    import xgboost

    from benchmarks.models.xgboost_files import to_xgboost

    return xgboost.Booster(model_file=bytearray(to_xgboost(forest)))


def draw(name: str) -> Trained:
    """Draw one of the random models of SilvanForge's study."""
    from benchmarks.models.drawn import find

    drawn = find(name)
    return Trained(_booster_of(drawn.forest()), "xgboost", drawn.rows(), "drawn as in the study")


def _on_published_rows(name: str, rounds: int, classes: int, drawn: Blur, **params: Any) -> Trained:
    rows, answer = rows_of(name)
    task = {"objective": "multi:softprob", "num_class": classes}
    model = _boost(*_blurred(rows, answer, drawn), rounds, **task, **params)
    return Trained(model, "xgboost", drawn_again(rows), "published")


class Blur(NamedTuple):
    """How many rows are drawn, and the share of values, and of answers, that other rows lend."""

    rows: int = 8000
    share: float = 0.1


def _blurred(rows: Any, answer: Any, blur: Blur) -> tuple[Any, Any]:
    """Draw rows some values of which, and some answers, are those of another row.

    A few thousand rows that can be fitted would leave nothing to later trees than single leaves;
    those of the published profiles have many.
    """
    rng = np.random.default_rng(0)
    table = np.column_stack([rows, answer])
    drawn = table[rng.integers(0, len(table), blur.rows)]
    other = np.take_along_axis(table, rng.integers(0, len(table), drawn.shape), axis=0)
    drawn = np.where(rng.random(drawn.shape) < blur.share, other, drawn)
    return drawn[:, :-1], drawn[:, -1]


def _numbers(seed: int, n: int, features: int) -> tuple[Any, Any]:
    """Draw normal rows and an answer with steps, products and noise."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, features))
    answer = rows[:, 0] * rows[:, 1] + np.sin(3 * rows[:, 2]) + 0.3 * rows[:, 3:10].sum(axis=1)
    return rows, answer + rng.normal(size=n)


def _flights(seed: int, n: int) -> tuple[Any, Any]:
    """Draw two numbers and six one-hot groups, and whether a flight is late."""
    rng, effects = np.random.default_rng(seed), np.random.default_rng(1)
    codes = np.stack([(rng.random(n) ** 2 * size).astype(int) for size in ONE_HOT], axis=1)
    rows = np.zeros((n, 2 + sum(ONE_HOT)), np.float32)
    first = np.cumsum((2, *ONE_HOT[:-1]))
    rows[np.arange(n)[:, None], first + codes] = 1
    rows[:, 0], rows[:, 1] = rng.uniform(0, 2400, n), rng.gamma(2, 400, n)
    score = np.sin(rows[:, 0] / 300) + rows[:, 1] / 800 * effects.normal(size=309)[codes[:, 4]]
    for group, size in enumerate(ONE_HOT):
        score += 0.4 * effects.normal(size=size)[codes[:, group]]
    return rows, score + rng.logistic(size=n) > 1


def _tiny() -> Trained:
    rows, answer = _numbers(0, 500, 10)
    model = _boost(rows, answer, 20, max_depth=4)
    return Trained(model, "xgboost", _numbers(1, ROWS, 10)[0].astype(np.float32))


def _airline_ohe() -> Trained:
    """Boost trees that mostly see both numbers, or they would be chains of single categories."""
    import xgboost

    rows, answer = _flights(0, 40_000)
    seen = np.ones(rows.shape[1])
    seen[:2] = 50
    params = {"max_bin": 32, "colsample_bytree": 0.2, "eta": 0.003, "max_depth": 8}
    params |= {"min_child_weight": 0.02, "reg_lambda": 0.01, "seed": 7, "nthread": 2}
    matrix = xgboost.DMatrix(rows, answer, feature_weights=seen)
    model = xgboost.train(params | {"objective": "binary:logistic"}, matrix, 1000)
    return Trained(model, "xgboost", _flights(1, ROWS)[0])


def _parts(seed: int, n: int) -> tuple[Any, Any]:
    """Draw parts as a factory measures them, and which fail.

    A part goes through one of several lines, and through some of the stations of that line; what
    other stations would measure is missing, four numbers in five.
    """
    rng, plant = np.random.default_rng(seed), np.random.default_rng(1)
    stations, numbers, lines = 44, 22, 5
    station = np.arange(stations)
    visits = np.where(station // lines % 4 < 3, 1.0, 0.7)
    taken = rng.integers(0, lines, n)
    there = (station % lines == taken[:, None]) & (rng.random((n, stations)) < visits)
    there = np.repeat(there, numbers, axis=1)
    rows = rng.normal(size=there.shape).astype(np.float32)
    counts = plant.random(stations * numbers) < 0.2
    score = (there & (rows > 0.5)) @ (counts * plant.normal(size=stations * numbers))
    score += 2 * plant.normal(size=lines)[taken] + rng.logistic(size=n)
    rows[~there] = np.nan
    return rows, score > np.quantile(score, 0.9)


def _bosch() -> Trained:
    params = {"max_depth": 8, "max_bin": 32, "colsample_bytree": 0.2, "min_child_weight": 0.2}
    model = _boost(*_parts(0, 8000), 100, objective="binary:logistic", **params)
    return Trained(model, "xgboost", _parts(1, ROWS)[0])


def _xgb_nan() -> Trained:
    def with_holes(seed: int, n: int) -> tuple[Any, Any]:
        rows, answer = _numbers(seed, n, 20)
        rows[np.random.default_rng(seed + 10).random(rows.shape) < 0.2] = np.nan
        return rows.astype(np.float32), answer > 0

    model = _boost(*with_holes(0, 20_000), 300, objective="binary:logistic", max_depth=8)
    return Trained(model, "xgboost", with_holes(1, ROWS)[0])


def _depth_6(features: int, rounds: int) -> Trained:
    """Boost as many shallow trees as public records of single rows do."""
    model = _boost(*_numbers(0, 20_000, features), rounds, max_depth=6, eta=0.1)
    return Trained(model, "xgboost", _numbers(1, ROWS, features)[0].astype(np.float32))


def _lightgbm(rows: Any, answer: Any, rounds: int, categories: Any = "auto", **params: Any) -> Any:
    import lightgbm

    data = lightgbm.Dataset(rows, answer, categorical_feature=categories)
    params = {"seed": 7, "num_threads": 2, "verbose": -1, "deterministic": True} | params
    return lightgbm.train(params, data, rounds)


def _lgb_reg() -> Trained:
    params = {"num_leaves": 255, "min_data_in_leaf": 5, "max_bin": 127}
    model = _lightgbm(*_numbers(0, 20_000, 28), 500, **params)
    return Trained(model, "lightgbm", _numbers(1, ROWS, 28)[0])


def _lgb_cat() -> Trained:
    def with_codes(seed: int, n: int) -> tuple[Any, Any]:
        rows, answer = _numbers(seed, n, 20)
        sizes = (8, 20, 50, 100)
        codes = np.random.default_rng(seed + 10).integers(0, sizes, (n, len(sizes)))
        effects = np.random.default_rng(1).normal(size=(max(sizes), len(sizes)))
        rows[:, 10:14] = codes
        return rows, answer + effects[codes, np.arange(len(sizes))].sum(axis=1) > 0

    rows, answer = with_codes(0, 20_000)
    columns = [10, 11, 12, 13]
    model = _lightgbm(rows, answer, 200, columns, objective="binary", num_leaves=63)
    return Trained(model, "lightgbm", with_codes(1, ROWS)[0])


def _boosted(
    rounds: int, features: int, rows: int = 30_000, missing: float = 0.0, **params: Any
) -> Trained:
    """Boost trees with XGBoost's own parameters, but for those that are said."""
    drawn, answer = _numbers(0, rows, features)
    model = _boost(_with_holes(drawn, 0, missing), answer, rounds, **params)
    rows_like = _with_holes(_numbers(1, ROWS, features)[0], 1, missing)
    return Trained(model, "xgboost", rows_like.astype(np.float32))


def _with_holes(rows: Any, seed: int, share: float) -> Any:
    """Return rows of which a share of the values is missing."""
    holes = np.random.default_rng(seed + 10).random(rows.shape) < share
    return np.where(holes, np.nan, rows)


def _leaf_wise(rounds: int, leaves: int, features: int, rows: int, classes: int = 1) -> Trained:
    """Boost trees with LightGBM's own parameters, but for those that are said."""
    drawn, answer = _numbers(0, rows, features)
    params: dict[str, Any] = {"num_leaves": leaves}
    if classes > 1:
        bounds = np.quantile(answer, np.arange(1, classes) / classes)
        answer, params = np.digitize(answer, bounds), params | {"num_class": classes}
        params["objective"] = "multiclass"
    model = _lightgbm(drawn, answer, rounds, **params)
    return Trained(model, "lightgbm", _numbers(1, ROWS, features)[0])


def _rf_deep() -> Trained:
    """Fit a forest as scikit-learn does if nothing is said: ten million nodes."""
    from sklearn.ensemble import RandomForestRegressor

    rows, answer = _numbers(0, 40_000, 20)
    model = RandomForestRegressor(200, n_jobs=2, random_state=7)
    model.fit(rows.astype(np.float32), answer)
    return Trained(model, "scikit-learn", _numbers(1, ROWS, 20)[0].astype(np.float32))


def _et_clf() -> Trained:
    from sklearn.ensemble import ExtraTreesClassifier

    rows, answer = _numbers(0, 15_000, 40)
    model = ExtraTreesClassifier(300, n_jobs=2, random_state=7, min_samples_leaf=2)
    model.fit(rows.astype(np.float32), np.digitize(answer, (-1.5, 0.0, 1.5)))
    return Trained(model, "scikit-learn", _numbers(1, ROWS, 40)[0].astype(np.float32))


def _hgb() -> Trained:
    from sklearn.ensemble import HistGradientBoostingClassifier

    drawn, answer = _numbers(0, 40_000, 50)
    model = HistGradientBoostingClassifier(
        max_iter=300, max_leaf_nodes=63, early_stopping=False, random_state=7
    )
    model.fit(_with_holes(drawn, 0, 0.05), answer > 0)
    return Trained(model, "scikit-learn", _with_holes(_numbers(1, ROWS, 50)[0], 1, 0.05))


def _skl_rf_reg() -> Trained:
    from sklearn.ensemble import RandomForestRegressor

    rows, answer = _numbers(0, 10_000, 20)
    model = RandomForestRegressor(100, n_jobs=2, random_state=7, max_features=0.5)
    return Trained(
        model.fit(rows.astype(np.float32), answer),
        "scikit-learn",
        _numbers(1, ROWS, 20)[0].astype(np.float32),
    )


def _skl_rf_clf() -> Trained:
    from sklearn.ensemble import RandomForestClassifier

    rows, answer = _numbers(0, 20_000, 20)
    model = RandomForestClassifier(200, max_depth=12, n_jobs=2, random_state=7)
    return Trained(
        model.fit(rows.astype(np.float32), np.digitize(answer, (-0.5, 1.0))),
        "scikit-learn",
        _numbers(1, ROWS, 20)[0].astype(np.float32),
    )


def _catboost(features: int, rounds: int, depth: int, classes: int = 1) -> Trained:
    """Boost oblivious trees, as CatBoost does unless it is told otherwise."""
    import catboost

    answer: Any
    rows, answer = _numbers(0, 20_000, features)
    params: dict[str, Any] = {"loss_function": "RMSE"}
    if classes > 1:
        bounds = np.quantile(answer, np.arange(1, classes) / classes)
        answer, params = np.digitize(answer, bounds), {"loss_function": "MultiClass"}
    params |= {"leaf_estimation_iterations": 1, "random_seed": 7, "thread_count": 2}
    params |= {"iterations": rounds, "depth": depth, "verbose": 0, "allow_writing_files": False}
    model = catboost.CatBoost(params).fit(rows.astype(np.float32), answer)
    return Trained(model, "catboost", _numbers(1, ROWS, features)[0].astype(np.float32))


TRAINED: dict[str, Callable[[], Trained]] = {
    "tiny": _tiny,
    "abalone": _abalone,
    "airline_ohe": _airline_ohe,
    "covtype": lambda: _on_published_rows(
        "covtype", 100, 8, Blur(24_000, 0.2), max_depth=8, eta=0.1, min_child_weight=0.02
    ),
    "bosch": _bosch,
    "letters": lambda: _on_published_rows("letters", 1000, 26, Blur(), max_depth=6, eta=0.1),
    "xgb_nan": _xgb_nan,
    "xgb_500": lambda: _depth_6(28, 500),
    "xgb_1000": lambda: _depth_6(50, 1000),
    "lgb_reg": _lgb_reg,
    "lgb_cat": _lgb_cat,
    "skl_rf_reg": _skl_rf_reg,
    "skl_rf_clf": _skl_rf_clf,
    "xgb_tiny": lambda: _boosted(20, 8, 5000, max_depth=3),
    "xgb_100x6": lambda: _boosted(100, 30),
    "xgb_deep": lambda: _boosted(200, 50, 60_000, 0.1, max_depth=12),
    "lgb_small": lambda: _leaf_wise(100, 31, 12, 20_000),
    "lgb_10": lambda: _leaf_wise(100, 63, 60, 40_000, 10),
    "lgb_big": lambda: _leaf_wise(2000, 127, 200, 60_000),
    "rf_deep": _rf_deep,
    "et_clf": _et_clf,
    "hgb": _hgb,
    "cat_1000": lambda: _catboost(28, 1000, 6),
    "cat_100": lambda: _catboost(28, 100, 8),
    "cat_500": lambda: _catboost(28, 500, 10),
    "cat_26": lambda: _catboost(16, 200, 6, 26),
}
