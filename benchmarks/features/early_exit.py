"""Answers before the last tree: how many rows stop, how many trees that saves, and what it gains.

    python -m benchmarks features.early_exit                     # a table
    python -m benchmarks features.early_exit xgb_deep --check 1000000

Every answer is first compared with that of the whole model. Early exit is then timed as if it paid
always, and as it is: a predictor takes the way that took less. One thread; the least CPU time of
some rounds.
With --check, that many answers are compared for each model, of rows on thresholds of tests and
beside them, and at thresholds of values that rows have.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
from benchmarks import models
from benchmarks.timing import least_of
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.predictor.early.answering import _predict
from tvm_forest.predictor.early.deciding import Above, Best, Leader, can_lead, rises
from tvm_forest.predictor.early.stretches import Stretches

NAMES = ("airline", "higgs", "abalone", "xgb_nan", "lgb_reg", "lgb_cat", "lgb_10", "hgb")
NAMES += ("xgb_deep", "rf_deep", "et_clf", "rare")
ROWS, ROUNDS = 8192, 5
CANDIDATES, BEST = 1000, 10


def train_rare(folder: Path) -> tuple[Any, Any]:
    """Return a random forest that looks for a rare class, one row in thirty, and rows."""
    from sklearn.ensemble import RandomForestClassifier

    path = folder / "rare.pickle"
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40_000, 20)).astype(np.float32)
    score = rows[:, 0] * rows[:, 1] + rows[:, 2] - rows[:, 3] ** 2 + rng.normal(size=len(rows)) / 2
    if not path.exists():
        answer = score > np.quantile(score, 0.967)
        forest = RandomForestClassifier(300, n_jobs=2, random_state=7).fit(rows, answer)
        path.write_bytes(pickle.dumps(forest))
    fresh = rng.normal(size=(ROWS, 20)).astype(np.float32)
    return pickle.loads(path.read_bytes()), fresh


def load(name: str, folder: Path) -> tuple[Any, Any]:
    """Return a trained model and rows like those of its training."""
    if name == "rare":
        return train_rare(folder)
    made = models.get(name, folder)
    rows = made.rows()
    return made.load(), np.array(rows[np.arange(ROWS) % len(rows)])


class Question:
    """A question to a model.

    Columns of its line: rows that have not walked all trees; trees that were not walked; time of a
    row by the whole model; how many times as fast stretches are, and the method as it is.
    """

    def __init__(self, name: str, ask: Callable[[], Any], right: Callable[[], Any]) -> None:
        self.name, self._ask, self._right = name, ask, right
        equal = [np.array_equal(a, b) for a, b in zip(_parts(ask()), _parts(right()), strict=True)]
        assert all(equal), f"{name}: wrong"

    def measure(self, stretches: Stretches, rows: Any, decide: Any, ways: Any) -> str:
        """Return a line of the table."""
        counts = dict[int, int]()

        def count(stretch: int, places: Any, sums: Any) -> Any:
            counts[stretch] = len(places)
            return decide(stretch, places, sums)

        stretches.run(rows, 1, count)
        sizes = np.diff(stretches.ends)
        walked = sum(counts.get(k + 1, 0) * size for k, size in enumerate(sizes))
        stopped = 1 - counts.get(len(sizes), 0) / len(rows)
        ways.take = lambda way, rows, call: call()  # its own measurements would change the way
        ways.seconds = [0.0, 1.0]
        early, whole = least_of(ROUNDS, self._ask, self._right)
        del ways.take
        ways.seconds = [None, None]
        for _ in range(4):
            self._ask()
        as_it_is, again = least_of(ROUNDS, self._ask, self._right)
        saved = 1 - walked / (len(rows) * sizes.sum())
        return (
            f"{self.name} | {stopped:.0%} | {saved:.0%} | {whole / len(rows) * 1e6:.2f} | "
            f"{whole / early:.2f} | {again / as_it_is:.2f} |"
        )


def _parts(answer: Any) -> tuple[Any, ...]:
    return answer if isinstance(answer, tuple) else (answer,)


class Model:
    """A model to ask, about the last of its outputs up to the second."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        model, rows = load(name, folder)
        self.predictor = tvm_forest.build(model)
        self.forest, self.now = self.predictor.forest, self.predictor._present
        self.rows = np.ascontiguousarray(rows, self.forest.row_dtype)
        self.output = min(1, self.forest.n_outputs - 1)

    def values(self, rows: Any) -> Any:
        """Return the values of the output by the whole model."""
        values = np.asarray(self.predictor.predict_value(rows, n_jobs=1))
        return values.reshape(len(rows), -1)[:, self.output]

    def compile_stretches(self) -> Stretches | None:
        """Ask for the first time."""
        begin = time.perf_counter()
        if rises(self.forest):
            self.predictor.predict_above(self.rows, 0.5, n_jobs=1)
        else:
            self.predictor.predict_class(self.rows, n_jobs=1, early_exit=True)
        print(f"{self.name}: stretches after {time.perf_counter() - begin:.1f} s", flush=True)
        return self.now._early._stretches

    def ask_thresholds(self, stretches: Stretches) -> None:
        """Print a line for each of some thresholds."""
        rows, every = self.rows, self.values(self.rows)
        wanted = {f"{q:.0%}": float(np.quantile(every, q)) for q in (0.5, 0.9, 0.99)}
        if every.min() >= 0 and every.max() <= 1:
            wanted = {"0.5": 0.5, "0.9": 0.9}
        for text, threshold in wanted.items():

            def ask(threshold: float = threshold) -> Any:
                return self.predictor.predict_above(rows, threshold, 1, self.output)

            def whole(threshold: float = threshold) -> Any:
                return self.values(rows) > threshold

            question = Question(f"| {self.name} | above {text}", ask, whole)
            own = slice(self.output, self.output + 1)
            decider = self.now._early._find_above(threshold, own)
            decide = decider.decide(np.empty((len(rows), 1), bool))
            print(question.measure(stretches, rows, decide, decider.ways), flush=True)

    def ask_classes(self, stretches: Stretches) -> None:
        """Print a line about classes."""

        def ask(early: bool = True) -> Any:
            return self.predictor.predict_class(self.rows, n_jobs=1, early_exit=early)

        question = Question(f"| {self.name} | class", ask, lambda: ask(early=False))
        leader = self.now._early._leader
        decide = leader.decide(np.empty(len(self.rows), np.int64))
        print(question.measure(stretches, self.rows, decide, leader.ways), flush=True)

    def ask_best(self, stretches: Stretches) -> None:
        """Print a line about the best rows."""
        rows = self.rows[:CANDIDATES]

        def sort() -> Any:
            scores = self.values(rows)
            order = np.argsort(-scores, kind="stable")[:BEST]
            return order, scores[order]

        def ask() -> Any:
            return self.predictor.top_k(rows, BEST, 1, self.output)

        question = Question(f"| {self.name} | best {BEST} of {CANDIDATES}", ask, sort)
        decide, ways = (
            Best(stretches, BEST, self.output).decide,
            self.now._early._ways[self.output],
        )
        print(question.measure(stretches, rows, decide, ways), flush=True)


def ask_model(name: str, folder: Path) -> None:
    """Print the lines of a model."""
    model = Model(name, folder)
    stretches = model.compile_stretches()
    if stretches is None:
        print(f"| {name} | has no stretches |")
        return
    if rises(model.forest):
        model.ask_thresholds(stretches)
        model.ask_best(stretches)
    if can_lead(model.forest):
        model.ask_classes(stretches)


def check_model(name: str, folder: Path, answers: int) -> None:
    """Print how many answers were compared, and how many of them are wrong."""
    model, rows = load(name, folder)
    predictor = tvm_forest.build(model)
    forest, now = predictor.forest, predictor._present
    hard = hard_rows(forest, ROWS, seed=3)
    hard = np.clip(np.nan_to_num(hard, nan=0.5), -1e30, 1e30) if forest.refuses else hard
    rows = np.concatenate([rows, hard]).astype(forest.row_dtype)
    now._early._stretches = stretches = Stretches(now)
    margins, values = _predict(now, rows, None)
    rng, seen, wrong, decided, ties = np.random.default_rng(5), 0, 0, 0, 0
    while seen < answers:
        if rises(forest):
            own = rng.choice(values.ravel())
            below = np.nextafter(own, own.dtype.type(-np.inf))
            threshold = rng.choice(np.array([own, below, float(own)], object))
            found = np.empty(values.shape, bool)
            left = stretches.run(rows, None, Above(stretches, threshold).decide(found))
            found[left] = values[left] > threshold
            wrong += int(np.sum(found != (values > threshold)))
            ties += int(np.sum(values == threshold))
            seen, decided = seen + len(rows), decided + len(rows) - len(left)
        if can_lead(forest):
            classes, right = np.empty(len(rows), np.int64), predictor.predict_class(rows)
            left = stretches.run(rows, None, Leader(stretches).decide(classes))
            classes[left] = right[left]
            wrong += int(np.sum(classes != right))
            seen, decided = seen + len(rows), decided + len(rows) - len(left)
    print(f"| {name} | {seen:,} | {decided:,} | {ties:,} | {wrong} |", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=NAMES)
    parser.add_argument("--check", type=int, default=0, help="answers to compare for each model")
    parser.add_argument("--folder", type=Path, default=models.CACHE)
    args = parser.parse_args()
    for name in args.models:
        if args.check:
            check_model(name, args.folder, args.check)
        else:
            ask_model(name, args.folder)
