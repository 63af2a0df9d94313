"""Small fitted pipelines of scikit-learn, with rows that meet their edges.

takes: nothing; gives: `PIPELINES`, by name.

A case says how its pipeline is made, which of the pipeline's methods it offers (`outputs`), the
dtype of its rows, and whether skl2onnx converts it. `Case.fit()` trains once; `Case.rows(n)` are
rows that the pipeline takes: values of training, their neighbours among floats, values of the
case's own (NaN, unknown categories, edges of bins), and pairs of neighbouring numbers between
which the prediction changes, found by bisection: thresholds, as seen through the transformers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from sklearn import compose, ensemble, impute, pipeline, preprocessing, tree
from threadpoolctl import threadpool_limits

N_ROWS = 160
REAL, CODED = (0, 1, 2, 3), (4, 5)
"""Columns of real numbers and of categories."""
NAN = float("nan")

LABELS = ("predict", "predict_proba")
BOOSTED = (*LABELS, "decision_function")
NUMBERS = ("predict",)
REFUSED_BY_SKL2ONNX = {
    "columns by slice and mask",
    "constant indicator",
    "lgbm regressor",
    "lgbm words",
    "mean ints",
    "minmax clip holes",
    "most frequent number",
    "one hot infrequent",
    "passthrough step",
    "standard holes hist",
    "union weights",
    "xgb binary",
    "xgb missing number",
    "xgb regressor float32",
}
"""What skl2onnx does not convert, or onnxruntime not load, also with rows of float32."""
OUTLIERS = ("predict", "decision_function", "score_samples")


@lru_cache
def data(kind: str) -> Any:
    """Rows of training (R, 6).

    "plain" is float64, "single" float32, "holes" has NaN in columns of real numbers, "zeros" has -1
    there, "whole" is int64, "short" int32.
    """
    rng = np.random.default_rng(11)
    rows = rng.normal(size=(N_ROWS, 6)) * [1, 10, 0.1, 3, 1, 1] + [0, 5, 0, -100, 0, 0]
    rows[:, 4] = rng.integers(0, 4, N_ROWS) * 2
    rows[:, 5] = rng.integers(-1, 6, N_ROWS)
    if kind in ("whole", "short"):
        return np.round(rows * [5, 2, 90, 1, 1, 1]).astype("i8" if kind == "whole" else "i4")
    if kind in ("holes", "single holes", "zeros"):
        holes = rng.random((N_ROWS, len(REAL))) < 0.15
        holes[:, 3] = False
        rows[:, : len(REAL)][holes] = -1 if kind == "zeros" else np.nan
    return rows.astype("f4" if kind.startswith("single") else "f8")


@lru_cache
def target() -> Any:
    """Numbers (R,) that depend on the rows."""
    rows = data("plain")
    noise = np.random.default_rng(12).normal(size=N_ROWS) / 4
    return rows[:, 0] + rows[:, 1] / 10 * rows[:, 4] + 10 * rows[:, 2] * rows[:, 5] + noise


def classes(*labels: Any) -> Any:
    """Labels of equal frequency (R,), by the target."""
    return np.asarray(labels)[np.argsort(np.argsort(target())) * len(labels) // N_ROWS]


class Case(NamedTuple):
    """A pipeline; see the head of this file."""

    make: Callable[[], list[Any]]
    fitted_to: Callable[[], Any]
    outputs: tuple[str, ...]
    kind: str = "plain"
    own: dict[int, tuple[float, ...]] = {}
    coded: tuple[int, ...] = ()
    onnx: bool = True

    def fit(self) -> Any:
        """Return the fitted pipeline, the same on each call."""
        return _fit(self)

    def rows(self, n: int = 64, seed: int = 0) -> Any:
        """Return rows (n, F) in the dtype of training."""
        with threadpool_limits(1):
            return hard_rows(self, n, seed)

    @property
    def dtype(self) -> str:
        """Name the dtype of the rows."""
        return str(data(self.kind).dtype)

    # a case holds a dict, and is the same as itself alone
    __hash__ = object.__hash__
    __eq__ = object.__eq__


@cache
def _fit(case: Case) -> Any:
    steps = case.make()
    model = pipeline.make_pipeline(*steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with threadpool_limits(1):
            return model.fit(data(case.kind), case.fitted_to())


# -- rows -----------------------------------------------------------------------------------------


def hard_rows(case: Case, n: int, seed: int = 0) -> Any:
    """Return rows (n, F) that meet the edges of a pipeline."""
    rng = np.random.default_rng(seed)
    train = data(case.kind)
    rows = _mix(case, rng, train, n)
    pairs = _bisect(case, rng, rows)[: n // 2]
    rows[: len(pairs)] = pairs
    return rows


def _mix(case: Case, rng: Any, train: Any, n: int) -> Any:
    """Return rows whose columns come from training rows of their own, neighbours, own values."""
    rows = np.stack([rng.choice(column, n) for column in train.T], axis=1)
    for column in set(range(rows.shape[1])) - set(case.coded):
        if rows.dtype.kind == "f":
            for side in (np.inf, -np.inf):
                near = rng.random(n) < 0.15
                rows[near, column] = np.nextafter(rows[near, column], rows.dtype.type(side))
            rows[rng.random(n) < 0.05, column] = -0.0
    for column, values in case.own.items():
        own = rng.random(n) < 0.4
        rows[own, column] = rng.choice(np.asarray(values, rows.dtype), int(own.sum()))
    return rows


def _bisect(case: Case, rng: Any, rows: Any) -> Any:
    """Return pairs of rows, one after the other, that differ by one unit in the last place.

    Between the rows of a pair the prediction changes.
    """
    count = 4 * len(rows)
    low = rows[rng.integers(0, len(rows), count)].copy()
    real = [c for c in range(rows.shape[1]) if c not in case.coded]
    column, each = rng.choice(real, count), np.arange(count)
    high = low.copy()
    high[each, column] = data(case.kind)[rng.integers(0, N_ROWS, count), column]
    first = score(case, low)
    with np.errstate(invalid="ignore"):
        kept = (score(case, high) != first).any(axis=1)
        kept &= np.isfinite(low[each, column] + high[each, column])
    keep = np.flatnonzero(kept)[: len(rows) // 4]
    low, high, first, column, each = (
        low[keep],
        high[keep],
        first[keep],
        column[keep],
        each[: len(keep)],
    )
    for _ in range(80 if len(keep) else 0):
        a, b = low[each, column], high[each, column]
        halves = (a / 2 + b / 2) if low.dtype.kind == "f" else (a + b) // 2
        middle = low.copy()
        middle[each, column] = halves
        if ((halves == a) | (halves == b)).all():
            break
        same = (score(case, middle) == first).all(axis=1)
        low[same], high[~same] = middle[same], middle[~same]
    return np.stack([low, high], axis=1).reshape(-1, rows.shape[1])


def score(case: Case, rows: Any) -> Any:
    """Return what a pipeline says of rows, numbers (R, columns)."""
    name = {LABELS: "predict_proba", BOOSTED: "predict_proba"}.get(case.outputs, case.outputs[-1])
    return call(case.fit(), name, rows).reshape(len(rows), -1)


def call(model: Any, method: str, rows: Any) -> Any:
    """Return what a method of a pipeline gives, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(getattr(model, method)(rows))


# -- the pipelines --------------------------------------------------------------------------------


def _rf(**options: Any) -> Any:
    options = {"n_estimators": 7, "max_depth": 5, "random_state": 1, **options}
    return ensemble.RandomForestClassifier(**options)


def _rfr(**options: Any) -> Any:
    return ensemble.RandomForestRegressor(n_estimators=7, max_depth=5, random_state=1, **options)


def _xgb(kind: str, **options: Any) -> Any:
    import xgboost

    options = {"n_estimators": 8, "max_depth": 4, "n_jobs": 1, **options}
    return getattr(xgboost, kind)(**options)


def _lgbm(kind: str, **options: Any) -> Any:
    import lightgbm

    options = {"n_estimators": 8, "num_leaves": 12, "min_child_samples": 5, **options}
    return getattr(lightgbm, kind)(n_jobs=1, verbose=-1, deterministic=True, **options)


def _columns(*parts: Any, **options: Any) -> Any:
    named = [(f"part{i}", *part) for i, part in enumerate(parts)]
    return compose.ColumnTransformer(named, **options)


def _cases() -> dict[str, Case]:
    p, e, ct = preprocessing, ensemble, _columns
    fill, onehot = impute.SimpleImputer, partial(p.OneHotEncoder, sparse_output=False)
    two, three = partial(classes, "no", "yes"), partial(classes, 3, -1, 7)
    words, three_places = partial(classes, "red", "green", "äh"), partial(classes, 0, 1, 2)
    holes = {c: (NAN,) for c in (0, 1, 2)}
    unknown = {4: (1.0, 99.0, -3.0, 0.5, NAN), 5: (7.0, 0.5)}
    few: dict[str, Any] = {"n_estimators": 8, "max_depth": 3, "random_state": 1}
    hist: dict[str, Any] = {"max_iter": 6, "max_leaf_nodes": 10, "random_state": 1}
    hgc, hgr = e.HistGradientBoostingClassifier, e.HistGradientBoostingRegressor
    gbc, gbr = e.GradientBoostingClassifier, e.GradientBoostingRegressor
    bins: dict[str, Any] = {"n_bins": 5, "quantile_method": "averaged_inverted_cdf"}
    cases = {
        # scalers
        "standard": Case(lambda: [p.StandardScaler(), _rf()], three, LABELS),
        "standard float32": Case(lambda: [p.StandardScaler(), _rf()], words, LABELS, kind="single"),
        "standard without mean": Case(
            lambda: [p.StandardScaler(with_mean=False), _rfr()], target, NUMBERS
        ),
        "standard without std, ints": Case(
            lambda: [p.StandardScaler(with_std=False), gbr(**few)], target, NUMBERS, kind="whole"
        ),
        "standard holes hist": Case(
            lambda: [p.StandardScaler(), hgc(**hist)],
            three,
            BOOSTED,
            kind="single holes",
            own=holes,
        ),
        "minmax": Case(lambda: [p.MinMaxScaler((-1, 2)), _rf()], two, LABELS),
        "minmax clip float32": Case(
            lambda: [p.MinMaxScaler(clip=True), e.ExtraTreesClassifier(**few)],
            two,
            LABELS,
            kind="single",
            own={0: (1e9, -1e9, 0.0), 1: (-0.0,)},
        ),
        "minmax clip holes": Case(
            lambda: [p.MinMaxScaler(clip=True), hgr(**hist)],
            target,
            NUMBERS,
            kind="holes",
            own={0: (NAN, 50.0), 1: (NAN, -50.0)},
        ),
        "maxabs": Case(
            lambda: [p.MaxAbsScaler(), e.ExtraTreesRegressor(**few)], target, NUMBERS, "single"
        ),
        "robust": Case(lambda: [p.RobustScaler(), gbc(**few)], two, BOOSTED),
        "robust float32": Case(
            lambda: [p.RobustScaler(quantile_range=(10, 90)), gbc(**few)],
            words,
            BOOSTED,
            kind="single",
        ),
        "normalizer l1": Case(lambda: [p.Normalizer("l1"), _rf()], two, LABELS),
        "normalizer l2": Case(lambda: [p.Normalizer("l2"), _rf()], two, LABELS),
        "normalizer max float32": Case(
            lambda: [p.Normalizer("max"), _rfr()], target, NUMBERS, kind="single"
        ),
        "binarizer": Case(
            lambda: [
                p.Binarizer(threshold=0.1),
                tree.DecisionTreeClassifier(max_depth=5, random_state=1),
            ],
            three,
            LABELS,
            own={0: (0.1, np.nextafter(0.1, 1)), 5: (0.1,)},
        ),
        # imputers
        "mean": Case(lambda: [fill(), _rf()], three, LABELS, kind="holes", own=holes),
        "median scaled": Case(
            lambda: [fill(strategy="median"), p.StandardScaler(), _rfr()],
            target,
            NUMBERS,
            kind="single holes",
            own=holes,
        ),
        "most frequent number": Case(
            lambda: [fill(strategy="most_frequent", missing_values=-1), _rf()],
            two,
            LABELS,
            kind="zeros",
            own={0: (-1.0,), 2: (-1.0,)},
        ),
        "constant indicator": Case(
            lambda: [fill(strategy="constant", fill_value=-7.5, add_indicator=True), _rf()],
            words,
            LABELS,
            kind="holes",
            own=holes,
        ),
        "mean ints": Case(
            lambda: [
                fill(missing_values=0),
                tree.DecisionTreeRegressor(max_depth=6, random_state=1),
            ],
            target,
            NUMBERS,
            kind="whole",
        ),
        # encoders
        "one hot": Case(
            lambda: [
                ct((onehot(handle_unknown="ignore"), [4, 5]), remainder="passthrough"),
                _rf(),
            ],
            three,
            LABELS,
            own=unknown,
            coded=CODED,
        ),
        "one hot ints": Case(
            lambda: [onehot(handle_unknown="ignore"), _rf()],
            two,
            LABELS,
            kind="short",
            own={0: (1000,), 4: (1, 99)},
        ),
        "one hot sparse, dropped": Case(
            lambda: [
                ct(
                    (p.OneHotEncoder(drop="first"), [5, 4]),
                    (p.StandardScaler(), [0, 2]),
                    sparse_threshold=0,
                ),
                _rf(),
            ],
            words,
            LABELS,
            coded=CODED,
        ),
        "one hot infrequent": Case(
            lambda: [
                ct(
                    (onehot(min_frequency=24, handle_unknown="infrequent_if_exist"), [4, 5]),
                    ("passthrough", slice(0, 3)),
                ),
                gbc(**few),
            ],
            three,
            BOOSTED,
            own={4: (1.0, 99.0), 5: (7.0, 0.5)},
            coded=CODED,
        ),
        "ordinal unknown": Case(
            lambda: [
                ct(
                    (
                        p.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-5),
                        [5, 4],
                    ),
                    (fill(), [0, 1]),
                ),
                _rfr(),
            ],
            target,
            NUMBERS,
            kind="holes",
            own={**holes, 4: (1.0, 99.0), 5: (7.0, 0.5, NAN)},
            coded=CODED,
        ),
        "bins ordinal": Case(
            lambda: [p.KBinsDiscretizer(encode="ordinal", **bins), _rf()], two, LABELS
        ),
        "bins one hot float32": Case(
            lambda: [
                p.KBinsDiscretizer(encode="onehot-dense", strategy="uniform", **bins),
                e.ExtraTreesClassifier(**few),
            ],
            three,
            LABELS,
            kind="single",
        ),
        # combinations
        "polynomial": Case(
            lambda: [p.StandardScaler(), p.PolynomialFeatures(2), p.StandardScaler(), _rfr()],
            target,
            NUMBERS,
        ),
        "polynomial interactions": Case(
            lambda: [
                p.PolynomialFeatures((1, 3), interaction_only=True, include_bias=False),
                p.MinMaxScaler(),
                gbr(**few),
            ],
            target,
            NUMBERS,
            kind="single",
        ),
        "columns nested": Case(
            lambda: [
                ct(
                    (pipeline.make_pipeline(fill(strategy="median"), p.RobustScaler()), [1, 0]),
                    ("drop", [2]),
                    (onehot(handle_unknown="ignore"), [5]),
                    remainder=p.MinMaxScaler(),
                ),
                p.MaxAbsScaler(),
                _rf(class_weight="balanced"),
            ],
            words,
            LABELS,
            kind="holes",
            own={0: (NAN,), 1: (NAN,), 5: (7.0, 0.5)},
            coded=CODED,
        ),
        "columns by slice and mask": Case(
            lambda: [
                ct(
                    (p.StandardScaler(), slice(1, 4)),
                    (p.Normalizer("l1"), [True, False, True, False, False, False]),
                    ("passthrough", [-2]),
                ),
                hgc(**hist),
            ],
            two,
            BOOSTED,
            kind="single",
        ),
        "union": Case(
            lambda: [
                pipeline.make_union(
                    p.StandardScaler(),
                    pipeline.make_pipeline(p.MinMaxScaler(), p.Binarizer(threshold=0.5)),
                    "passthrough",
                ),
                _rf(),
            ],
            three,
            LABELS,
        ),
        "union weights": Case(
            lambda: [
                pipeline.FeatureUnion(
                    [("a", p.RobustScaler()), ("b", "drop"), ("c", p.MaxAbsScaler())],
                    transformer_weights={"a": 0.1, "c": 3.3},
                ),
                p.StandardScaler(),
                gbr(**few),
            ],
            target,
            NUMBERS,
        ),
        # more forests
        "passthrough step": Case(
            lambda: ["passthrough", p.StandardScaler(), p.FunctionTransformer(), _rf()],
            two,
            LABELS,
        ),
        "isolation": Case(
            lambda: [p.StandardScaler(), e.IsolationForest(n_estimators=12, random_state=1)],
            target,
            OUTLIERS,
        ),
        "isolation contamination": Case(
            lambda: [
                fill(),
                p.MinMaxScaler(),
                e.IsolationForest(n_estimators=12, contamination=0.1, random_state=1),
            ],
            target,
            OUTLIERS,
            kind="single holes",
            own=holes,
        ),
        "xgb binary": Case(
            lambda: [p.StandardScaler(), _xgb("XGBClassifier")],
            partial(classes, 0, 1),
            LABELS,
            kind="holes",
            own=holes,
        ),
        "xgb missing number": Case(
            lambda: [p.FunctionTransformer(), _xgb("XGBClassifier", missing=-1)],
            three_places,
            LABELS,
            kind="zeros",
            own={0: (-1.0,), 2: (-1.0,), 3: (-1.0,)},
        ),
        "xgb regressor float32": Case(
            lambda: [
                ct((onehot(handle_unknown="ignore"), [4, 5]), remainder=p.MinMaxScaler()),
                _xgb("XGBRegressor"),
            ],
            target,
            NUMBERS,
            kind="single",
            own={4: (99.0,)},
            coded=CODED,
        ),
        "lgbm words": Case(
            lambda: [p.RobustScaler(), _lgbm("LGBMClassifier")],
            words,
            LABELS,
            kind="holes",
            own=holes,
        ),
        "lgbm regressor": Case(
            lambda: [fill(strategy="median"), p.MinMaxScaler(), _lgbm("LGBMRegressor")],
            target,
            NUMBERS,
            kind="holes",
            own=holes,
        ),
        "two targets": Case(
            lambda: [p.StandardScaler(), _rfr()],
            lambda: np.stack([target(), -data("plain")[:, 1]], axis=1),
            NUMBERS,
        ),
    }
    refused = REFUSED_BY_SKL2ONNX
    return {name: case._replace(onnx=name not in refused) for name, case in cases.items()}


PIPELINES = _cases()
