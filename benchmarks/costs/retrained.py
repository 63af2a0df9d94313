"""Say what every model of the benchmark takes until it predicts, trained again: CPU milliseconds.

    python -m benchmarks costs.retrained [--models NAME ...] [--times N]

A model is trained again by its own library, with as many trees of its size, on its own rows drawn
anew, and on what it says of them with some noise. The first such model fills what a process keeps;
the others are timed as `costs.hot_swap` does it: a build of a model whose kind the cache knows, and
its first prediction. A model that is not of a known kind is compiled, and its time is not told.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
from benchmarks import models
from benchmarks.costs.hot_swap import CHECKED, MODELS, Laps, Trained, swap
from benchmarks.models import Model

NOISE = 0.3
"""Of the deviation of a model's answers, what is added to them."""

STOPS = tuple(f"swap from {name}" for name in ("object", "UBJSON", "JSON", "text"))


def train_again(model: Model, seed: int, folder: Path) -> Trained:
    """Train a model again."""
    rng = np.random.default_rng(seed)
    rows = model.rows()
    rows = rows[rng.integers(0, len(rows), len(rows))]
    trained = _FIT[model.library](model, rows, _answer(model, rows, rng), seed)
    again = models.write(
        f"{model.name}-{seed}", models.Trained(trained, model.library, rows), folder
    )
    few = rows[:CHECKED]
    tell = getattr(trained, "decision_function", lambda rows: again.reference(rows)[0])
    return Trained({"object": again.load(), **_files(again)}, few, tell(few))


def _answer(model: Model, rows: Any, rng: np.random.Generator) -> Any:
    """Return numbers, or classes where a model has several outputs."""
    margins = model.reference(rows)[0]
    noisy = margins + NOISE * margins.std() * rng.normal(size=margins.shape)
    return noisy.argmax(axis=1) if noisy.shape[1] > 1 else noisy[:, 0]


def _fit_xgboost(model: Model, rows: Any, answer: Any, seed: int) -> Any:
    import xgboost

    forest, rounds = tvm_forest.load(model.path), model.load().num_boosted_rounds()
    params = {"max_depth": int(forest.depths.max()), "eta": 0.1, "nthread": 1, "seed": seed}
    if forest.n_outputs > 1:
        params |= {"objective": "multi:softprob", "num_class": forest.n_outputs}
    return xgboost.train(params, xgboost.DMatrix(rows, answer), rounds)


def _fit_lightgbm(model: Model, rows: Any, answer: Any, seed: int) -> Any:
    import lightgbm

    booster = model.load()
    leaves = max(tree["num_leaves"] for tree in booster.dump_model()["tree_info"])
    params = {"num_leaves": leaves, "num_threads": 1, "verbose": -1, "seed": seed}
    if booster.num_model_per_iteration() > 1:
        params |= {"objective": "multiclass", "num_class": booster.num_model_per_iteration()}
    return lightgbm.train(params, lightgbm.Dataset(rows, answer), booster.current_iteration())


def _fit_scikit_learn(model: Model, rows: Any, answer: Any, seed: int) -> Any:
    import sklearn.base

    estimator = sklearn.base.clone(model.load()).set_params(random_state=seed)
    return estimator.fit(rows, answer)


def _fit_catboost(model: Model, rows: Any, answer: Any, seed: int) -> Any:
    import catboost

    known = model.load().get_all_params()
    params = {name: known[name] for name in ("iterations", "depth", "loss_function")}
    fresh = catboost.CatBoost({**params, "random_seed": seed, "thread_count": 1, "verbose": 0})
    return fresh.fit(rows, answer)


_FIT = {
    "xgboost": _fit_xgboost,
    "lightgbm": _fit_lightgbm,
    "scikit-learn": _fit_scikit_learn,
    "catboost": _fit_catboost,
}


def _files(model: Model) -> dict[str, Any]:
    """Return the bytes of a model's files, by name."""
    if model.library == "xgboost":
        booster, kinds = model.load(), (("UBJSON", "ubj"), ("JSON", "json"))
        return {name: bytes(booster.save_raw(raw)) for name, raw in kinds}
    return {"text": model.path.read_bytes()} if model.library == "lightgbm" else {}


def measure(name: str, times: int) -> dict[str, float]:
    """Return the milliseconds of each stop, and how many models were of a known kind."""
    laps = Laps()
    with tempfile.TemporaryDirectory() as folder:
        model = models.get(name)
        first, *others = (train_again(model, seed, Path(folder)) for seed in range(MODELS + 1))
        swap(laps, first, others, times)
    return laps.least


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=models.NAMES, choices=models.NAMES)
    parser.add_argument("--times", type=int, default=3, help="times of each model (default: 3)")
    chosen = parser.parse_args()
    print(f"| model | {' | '.join(STOPS)} | of a known kind |\n|---|" + "---:|" * (len(STOPS) + 1))
    for name in filter(models.at_hand, chosen.models):
        laps = measure(name, chosen.times)
        cells = [f"{laps[stop]:.3g}" if stop in laps else "" for stop in STOPS]
        print(
            f"| {name} | {' | '.join(cells)} | {laps['of a known kind']} of {MODELS} |", flush=True
        )
