"""CatBoost's losses, trees, borders and statistics, each trained, compiled and compared.

    PYTHONPATH=. python tools/catboost_configurations.py [--rows 10000] [--only "nan *" Counter]
    PYTHONPATH=. python tools/catboost_configurations.py --values [--rows 100000] [--only Logloss]

A configuration is trained on 3,000 rows, and predicts hard rows in batches of several sizes. Each
margin must equal CatBoost's to the bit, and CatBoost's own must not depend on the batch. A line for
each configuration tells how many rows differ; `--only` takes names and patterns of them.

With `--values`, all that `predict` can be asked for is compared instead, for each loss: of the
model as it was trained, and of one with leaves so large that margins leave the range of powers,
each as an estimator and as a plain `CatBoost`. The table tells how many values are CatBoost's to
the bit. Ends with status 1 if a row or value differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any, NamedTuple

import catboost as cb
import numpy as np

import _path  # noqa: F401 (what tests share)
import tvm_forest
from catboost_models import flags, margins, pairs, with_leaves, yes
from tvm_forest.forest.probe_rows import given_rows, hard_rows
from tvm_forest.frontends.catboost.prediction_types import TYPES, list_types

N_ROWS = 3000
BATCHES = (1, 4, 127, 128, 129)
"""Sizes of batches in which rows are predicted, beside all at once."""
FEW = 1000
"""Rows that CatBoost predicts in the smallest batches, whose calls are slow."""
CATEGORIES = [5, 6, 7]
OPTIONS: dict[str, Any] = {
    "iterations": 40,
    "depth": 6,
    "thread_count": 1,
    "verbose": 0,
    "allow_writing_files": False,
}
Train = Callable[[], Any]


class Data(NamedTuple):
    """Rows to train on.

    Attributes:
        whole: float32 (R, 5) without missing values.
        numbers: the same with missing values.
        mixed: (R, 8) objects, these and three columns of categories.
        target: float64 (R,).
    """

    whole: Any
    numbers: Any
    mixed: Any
    target: Any


@lru_cache
def data() -> Data:
    """Draw the rows that all configurations are trained on."""
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((N_ROWS, 5)).astype(np.float32)
    numbers = whole.copy()
    numbers[rng.random(numbers.shape) < 0.1] = np.nan
    numbers[:, 3] = whole[:, 3]  # a column in which none is missing
    few, some, many = (rng.integers(0, size, N_ROWS) for size in (3, 40, 250))
    mixed = np.empty((N_ROWS, 8), object)
    mixed[:, :5] = numbers.astype(float)
    mixed[:, 5], mixed[:, 6] = [f"a{code}" for code in few], some
    mixed[:, 7] = [f"city {code}" for code in many]
    target = whole[:, 0] + (few == 1) * whole[:, 1] + np.sin(some) + 0.3 * np.cos(many)
    return Data(whole, numbers, mixed, target)


# -- targets --------------------------------------------------------------------------------------


def four(target: Any) -> Any:
    return np.digitize(target, [-1, 0, 1])


def alphabet(target: Any) -> Any:
    return np.random.default_rng(1).integers(0, 26, len(target))


def counts(target: Any) -> Any:
    return np.exp(target / 2)


def chances(target: Any) -> Any:
    return 1 / (1 + np.exp(-target))


def halves(target: Any) -> Any:
    return flags(target) * 0.5


def spans(target: Any) -> Any:
    return np.stack([np.exp(target), np.exp(target) + 1], axis=1)


# -- configurations -------------------------------------------------------------------------------


def train(kind: str, to_target: Any, of: str, options: dict[str, Any]) -> Any:
    """Train an estimator.

    Args:
        kind: "Regressor", "Classifier", "Ranker", or "" for none of these.
        to_target: makes the target of the common one, None for that itself.
        of: the rows, a field of `Data`.
        options: of CatBoost.
    """
    rows, target = getattr(data(), of), data().target
    target = target if to_target is None else to_target(target)
    options = OPTIONS | options | ({"cat_features": CATEGORIES} if of == "mixed" else {})
    if not kind:
        return cb.CatBoost(options).fit(rows, target)
    if kind == "Ranker":
        groups = np.arange(N_ROWS) // 10
        rows = cb.Pool(rows, target, group_id=groups, cat_features=options.get("cat_features"))
        target = None
    return getattr(cb, f"CatBoost{kind}")(**options).fit(rows, target)


def numeric(kind: str, to_target: Any = None, of: str = "numbers", **options: Any) -> Train:
    return partial(train, kind, to_target, of, options)


def coded(kind: str, to_target: Any = None, **options: Any) -> Train:
    return partial(train, kind, to_target, "mixed", options)


def make_sum() -> Any:
    """Return the sum of two models with categories."""
    models = [coded("Regressor")(), coded("Regressor", random_seed=4, depth=4)()]
    return cb.sum_models(models, weights=[0.3, 0.6])


def make_scaled() -> Any:
    """Return a model with categories, with a scale and a bias of its own."""
    model = coded("Regressor")()
    model.set_scale_and_bias(0.7, 0.123)
    return model


LOSSES: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(("RMSE", "MAE", "LogCosh", "MAPE", "LogLinQuantile"), ("Regressor", None)),
    **dict.fromkeys(("Quantile:alpha=0.3", "Expectile:alpha=0.3"), ("Regressor", None)),
    **dict.fromkeys(("Huber:delta=1", "Lq:q=3", "Cox"), ("Regressor", None)),
    **dict.fromkeys(("RMSEWithUncertainty",), ("Regressor", None)),
    **dict.fromkeys(("MultiQuantile:alpha=0.1,0.5,0.9",), ("Regressor", None)),
    **dict.fromkeys(("Poisson", "Tweedie:variance_power=1.5"), ("Regressor", counts)),
    "MultiRMSE": ("Regressor", pairs),
    "SurvivalAft:dist=Normal": ("Regressor", spans),
    **dict.fromkeys(("Logloss", "Focal:focal_alpha=0.5;focal_gamma=2"), ("Classifier", yes)),
    "CrossEntropy": ("Classifier", chances),
    **dict.fromkeys(("MultiClass", "MultiClassOneVsAll"), ("Classifier", four)),
    "MultiLogloss": ("Classifier", flags),
    "MultiCrossEntropy": ("Classifier", halves),
    **dict.fromkeys(("YetiRank", "QueryRMSE", "QuerySoftMax", "PairLogit"), ("Ranker", yes)),
    "YetiRankPairwise": ("Ranker", yes),
}
BORDERS = ("Uniform", "UniformAndQuantiles", "MaxLogSum", "MinEntropy", "Median", "GreedyLogSum")
STATISTICS = ("Borders", "Buckets", "BinarizedTargetMeanValue", "Counter")
PRIORS = ["Borders:Prior=0.3/1:Prior=2/1", "Counter:CtrBorderCount=40"]
DIVISIONS = ["Borders:TargetBorderCount=5", "Buckets:TargetBorderCount=3"]


def list_growths() -> Iterator[tuple[str, Train]]:
    """Yield configurations of trees that are not oblivious."""
    for policy in ("Depthwise", "Lossguide"):
        yield policy, numeric("Regressor", grow_policy=policy)
        yield f"{policy} classes", numeric("Classifier", four, grow_policy=policy)
        yield f"{policy} categories", coded("Regressor", grow_policy=policy)


def list_statistics() -> Iterator[tuple[str, Train]]:
    """Yield configurations of each statistic of categories alone."""
    for name in STATISTICS:
        own: dict[str, Any] = {"simple_ctr": [name], "combinations_ctr": [name]}
        yield name, coded("Classifier", four, **own)
        yield f"{name} binary", coded("Classifier", yes, max_ctr_complexity=3, **own)


CONFIGURATIONS: dict[str, Train] = {
    **{loss: numeric(kind, to, loss_function=loss) for loss, (kind, to) in LOSSES.items()},
    "26 classes": numeric("Classifier", alphabet, iterations=10),
    "CatBoost": numeric("", yes, loss_function="Logloss"),
    **dict(list_growths()),
    "nan Min": numeric("Regressor", nan_mode="Min"),
    "nan Max": numeric("Regressor", nan_mode="Max"),
    "nan Forbidden": numeric("Regressor", of="whole", nan_mode="Forbidden"),
    "Ordered": numeric("Regressor", boosting_type="Ordered"),
    "has_time": numeric("Classifier", yes, has_time=True),
    **{f"borders {way}": numeric("Regressor", feature_border_type=way) for way in BORDERS},
    "1000 borders": numeric("Regressor", border_count=1000),
    "depth 1": numeric("Regressor", depth=1),
    "depth 12": numeric("Regressor", depth=12, iterations=8),
    "depth 16": numeric("Regressor", depth=16, iterations=2),
    "shrink": numeric("Regressor", model_shrink_rate=0.1),
    "one tree": numeric("Regressor", iterations=1),
    "categories": coded("Regressor"),
    "categories Max": coded("Regressor", nan_mode="Max"),
    "categories binary": coded("Classifier", yes),
    "categories classes": coded("Classifier", four),
    "one-hot": coded("Regressor", one_hot_max_size=300),
    **dict(list_statistics()),
    "target borders": coded("Regressor", simple_ctr=DIVISIONS),
    "Full counters": coded(
        "Classifier", yes, counter_calc_method="Full", max_ctr_complexity=4, one_hot_max_size=5
    ),
    "no combinations": coded("Regressor", max_ctr_complexity=1),
    "Ordered categories": coded("Regressor", boosting_type="Ordered"),
    "time categories": coded("Classifier", yes, has_time=True),
    "priors": coded("Classifier", yes, simple_ctr=PRIORS),
    "uncertainty categories": coded("Regressor", loss_function="RMSEWithUncertainty"),
    "ova categories": coded("Classifier", four, loss_function="MultiClassOneVsAll"),
    "ranker categories": coded("Ranker", yes, loss_function="YetiRank"),
    "sum": make_sum,
    "scaled": make_scaled,
}


# -- what is compared -----------------------------------------------------------------------------


def count_differences(model: Any, n_rows: int) -> dict[int, int]:
    """Compare the margins of hard rows with CatBoost's.

    Returns:
        by size of batch, how many rows have other margins, of ours or of CatBoost's own.
    """
    predictor = tvm_forest.build(model)
    rows = hard_rows(predictor.forest, n_rows)
    if predictor.forest.encoder is not None:
        rows = given_rows(predictor.forest, rows)
    expected = margins(model, rows)
    found = {}
    for size in (*BATCHES, n_rows):
        few = rows[: FEW if size < min(BATCHES[2:]) else n_rows]
        found[size] = count_unequal(
            predict_in_batches(predictor.predict_margin, rows, size), expected
        )
        theirs = predict_in_batches(partial(margins, model), few, size)
        found[size] += count_unequal(theirs, expected[: len(few)])
    return found


def count_equal_values(loss: str, n_rows: int) -> dict[str, tuple[int, int]]:
    """Compare all that `predict` can be asked for with CatBoost's.

    Args:
        loss: one of `LOSSES`.
        n_rows: hard rows, predicted together; some of them also in small batches, in which the
            powers that CatBoost takes one by one are others.

    Returns:
        by prediction type, how many values are equal to the bit, of how many.
    """
    counts: dict[str, tuple[int, int]] = {}
    trained = CONFIGURATIONS[loss]()
    factor = 3000 / np.ptp(margins(trained, data().numbers))
    for model in (trained, with_leaves(trained, factor)):
        rows = hard_rows(tvm_forest.load(model), n_rows)
        for given in (model, to_plain(model)):
            predictor = tvm_forest.build(given, schedule=lambda start: start)
            asked = {kind: {"prediction_type": kind} for kind in list_types(predictor.forest)}
            for kind, options in {"predict": {}, **asked}.items():
                ours, theirs = partial(predictor.predict, **options), given.predict
                if options:  # which the method of a ranker does not take
                    theirs = partial(cb.CatBoost.predict, given, **options)
                for few, size in ((rows, n_rows), (rows[:FEW], 127), (rows[:99], 3)):
                    equal = is_equal(*(predict_in_batches(x, few, size) for x in (ours, theirs)))
                    before = counts.get(kind, (0, 0))
                    counts[kind] = (before[0] + int(equal.sum()), before[1] + equal.size)
    return counts


def to_plain(model: Any) -> Any:
    """Return the same model as an object of no task."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_model(f"{folder}/model.cbm")
        return cb.CatBoost().load_model(f"{folder}/model.cbm")


def is_equal(found: Any, expected: Any) -> Any:
    """Return which values are equal to the bit; none, if they are of another shape or dtype."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return np.zeros(max(1, expected.size), bool)
    if expected.dtype.kind != "f":
        return np.ravel(found == expected)
    bits = [np.ascontiguousarray(x).view(np.int64) for x in (found, expected)]
    return np.ravel((bits[0] == bits[1]) | (np.isnan(found) & np.isnan(expected)))


def print_values(losses: list[str], n_rows: int) -> int:
    """Print a table of `count_equal_values`; return how many values differ."""
    kinds, total = ("predict", *TYPES), 0
    print("| loss | " + " | ".join(kinds) + " |")
    print("|---" * (len(kinds) + 1) + "|")
    for loss in losses:
        counts = count_equal_values(loss, n_rows)
        cells = ["{:,} of {:,}".format(*counts[x]) if x in counts else "refused" for x in kinds]
        print(f"| {loss} | {' | '.join(cells)} |", flush=True)
        total += sum(of - equal for equal, of in counts.values())
    print(f"{len(losses)} losses x {n_rows} hard rows: {total} values differ")
    return total


def predict_in_batches(predict: Callable[[Any], Any], rows: Any, size: int) -> Any:
    """Return what is predicted of rows, some at a time."""
    return np.concatenate([predict(rows[at : at + size]) for at in range(0, len(rows), size)])


def count_unequal(found: Any, expected: Any) -> int:
    """Return how many rows differ in a bit; all, if they are of another shape or dtype."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return max(1, len(expected))
    bits = (np.ascontiguousarray(x).view(np.int64).reshape(len(x), -1) for x in (found, expected))
    return int(np.not_equal(*bits).any(axis=1).sum())


def main() -> int:
    """Read the command line; return whether a row differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, help="hard rows of each; 10,000, or 100,000 for values")
    parser.add_argument("--values", action="store_true", help="compare all prediction types")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="NAME", help="names, patterns")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    known = LOSSES if options.values else CONFIGURATIONS
    chosen = [x for x in known if any(fnmatchcase(x, only) for only in options.only)]
    n_rows = options.rows or (100_000 if options.values else 10_000)
    total = print_values(chosen, n_rows) if options.values else print_margins(chosen, n_rows)
    return int(total > 0 or not chosen)


def print_margins(chosen: list[str], n_rows: int) -> int:
    """Print how many rows differ in each configuration; return how many in all."""
    total = 0
    for name in chosen:
        start = time.perf_counter()
        found = count_differences(CONFIGURATIONS[name](), n_rows)
        different = sum(found.values())
        by_size = f", by size of batch: {found}" if different else ""
        seconds = time.perf_counter() - start
        print(f"{name}: {different} differ{by_size} ({seconds:.1f} s)", flush=True)
        total += different
    print(f"{len(chosen)} configurations x {n_rows} hard rows: {total} differ")
    return total


if __name__ == "__main__":
    sys.exit(main())
