"""Fit the prices of the cost model to records of exhaustive searches, and say how good they are.

    python benchmarks/fit_prices.py [--records FOLDER] [--write]

Reads what `benchmarks/search.py` has kept on this machine; prices of other vendors' CPUs stay as
they are. The prices are a ridge regression of the logarithm of nanoseconds a hop; fast points weigh
more than slow ones, and every search as much as another. How good they are is told by searching
again in the recorded times: once with prices of all models, and once with prices of all but the
model at hand, which is what other models will see.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from searches import RECORDS, Cell, cells
from tvm_forest.search import cost, strategies
from tvm_forest.target import cpu_vendor

RIDGE = 0.3
"""How much a price of 1 costs beside an error of 1."""


def fitted(known: list[Cell], ridge: float = RIDGE) -> dict[str, float]:
    """Return the prices that explain the times of some searches best."""
    if not known:
        return {}
    rows, times, weights = [], [], []
    for cell in known:
        own = cell.times
        rows += [cost.words_of(p, cell.space.facts, cell.space.batch) for p in cell.seconds]
        times.append(own)
        weights.append(np.exp(own.min() - own) / np.exp(own.min() - own).sum() * 100)
    words = sorted({word for row in rows for word in row})
    place = {word: i for i, word in enumerate(words)}
    table = np.zeros((len(rows), len(words)))
    for i, row in enumerate(rows):
        for word, amount in row.items():
            table[i, place[word]] = amount
    scaled = table * np.concatenate(weights)[:, None]
    matrix = scaled.T @ table + ridge * np.eye(len(words))
    prices = np.linalg.solve(matrix, scaled.T @ np.concatenate(times))
    return {word: round(float(x), 3) for word, x in zip(words, prices, strict=True)}


def found_by(cell: Cell, prices: Mapping[str, float]) -> tuple[float, int]:
    """Search in recorded times; return the time found over the best, and how many were asked."""
    points = cell.space.points()
    seconds = {points[p]: x for p, x in cell.seconds.items()}
    asked: list[float] = []

    def measure(schedule: Any) -> float:
        asked.append(seconds.get(schedule, math.inf))
        return asked[-1]

    shipped, cost.known_prices = cost.known_prices, lambda vendor: dict(prices)
    strategies.search_guided(cell.space, measure, random.Random(0))
    cost.known_prices = shipped
    return min(asked) / min(seconds.values()), len(asked)


def replayed(known: list[Cell], prices: Mapping[str, float]) -> None:
    """Print what searches find in the recorded times, also with prices of other models only."""
    print("model         rows points asked  default   found  unseen (times over the best)")
    for cell in known:
        others = [x for x in known if x.model != cell.model]
        (ours, asked), (unseen, _) = found_by(cell, prices), found_by(cell, fitted(others))
        points, best = cell.space.points(), min(cell.seconds.values())
        own = (x for p, x in cell.seconds.items() if points[p] == cell.space.default)
        default = next(own, math.nan)
        about = f"{cell.model:12}{cell.space.batch:6}{len(points):7}{asked:6}"
        print(f"{about}{default / best:9.3f}{ours:8.3f}{unseen:8.3f}", flush=True)


def main() -> None:
    """Fit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--write", action="store_true", help="to prices.json of the package")
    options = parser.parse_args()
    known = cells(options.records)
    prices = fitted(known)
    replayed(known, prices)
    if options.write:
        path = Path(cost.__file__).with_name("prices.json")
        every = cost.shipped_prices() | {cpu_vendor(): prices}
        path.write_text(json.dumps(every, indent=0) + "\n", encoding="utf-8")
        print(f"{len(prices)} prices of {cpu_vendor()!r} in {path.name}")


if __name__ == "__main__":
    main()
