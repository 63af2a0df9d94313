"""Time CatBoost's models, compiled, beside CatBoost's own applier, in turns in one process.

    python -m benchmarks features.oblivious [--models M ...] [--out FILE] [--cache FOLDER]

First every margin of rows on thresholds is compared, to the bit, in batches of several sizes. Then
the three take turns with one batch after the other out of 20,480 rows: ours with numpy rows,
CatBoost with numpy rows, and CatBoost with a `Pool` that was made ahead. A figure is the median of
the turns, microseconds a row; a ratio is the median of the ratios of turns.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
from benchmarks import models
from benchmarks.timing import cores, cpu_name, time_round
from tvm_forest.forest.probe_rows import hard_rows

BATCHES = (1, 32, 512, 4096)
CHECKED = (1, 4, 127, 128, 129, 2000)
TURNS, SECONDS = 31, 0.005
HEADS = ("model", "threads", "rows", "ours", "CatBoost", "of a Pool", "ratio", "ratio, Pool")


def main() -> None:
    """Compare, time, print a table and its means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=models.OBLIVIOUS)
    parser.add_argument("--out", type=Path, help="file for the table")
    parser.add_argument("--cache", type=Path, default=models.CACHE)
    chosen = parser.parse_args()
    lines = [f"| {' | '.join(HEADS)} |", f"|---|{'--:|' * (len(HEADS) - 1)}"]
    ratios: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    for name, threads in itertools.product(chosen.models, (1, 2)):
        model = models.get(name, chosen.cache)
        for batch, times in time_model(model, threads):
            ours, *theirs = times
            by = [float(np.median(x / ours)) for x in theirs]
            ratios[batch] += by
            cells = [f"{1e6 * np.median(x) / batch:.3g}" for x in times]
            cells += [f"{x:.3g}" for x in by]
            lines.append(f"| {name} | {threads} | {batch} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    lines.append("")
    for sizes in ((1,), (32,), (512, 4096)):
        some = np.array([x for size in sizes for x in ratios[size]])
        rows = " and ".join(f"{size:,}" for size in sizes) + (" rows" if sizes != (1,) else " row")
        mean = np.exp(np.log(some).mean())
        lines.append(f"{rows}: geometric mean {mean:.3g}, least {some.min():.3g}.")
    text = "\n".join([f"{cpu_name()}, {cores()} cores.", "", *lines, ""])
    print(text)
    if chosen.out:
        chosen.out.write_text(text, encoding="utf-8")


def time_model(model: models.Model, threads: int) -> Any:
    """Yield a batch size and the seconds of a call, (TURNS,), of ours and both of CatBoost's."""
    import catboost

    theirs, rows = model.load(), model.rows()
    predictor = tvm_forest.build(model.path, n_jobs=None if threads >= cores() else threads)
    compare(predictor, theirs, hard_rows(tvm_forest.load(model.path), CHECKED[-1]))

    def apply(batch: Any) -> Any:
        return theirs.predict(batch, prediction_type="RawFormulaVal", thread_count=threads)

    for batch in BATCHES:
        pieces = [rows[k : k + batch] for k in range(0, min(len(rows), 400 * batch), batch)]
        pools = [catboost.Pool(piece) for piece in pieces]
        ways = ((predictor.predict_margin, pieces), (apply, pieces), (apply, pools))
        yield batch, take_turns(ways)


def take_turns(ways: Any) -> list[Any]:
    """Return the seconds of a call in each turn, after one that does not count."""
    turns: list[list[float]] = [[] for _ in ways]
    rotating = [(function, itertools.cycle(batches)) for function, batches in ways]
    for _ in range(TURNS + 1):
        for (function, batches), times in zip(rotating, turns, strict=True):
            times.append(time_round(function, batches, SECONDS).call)
    return [np.array(times[1:]) for times in turns]


def compare(predictor: Any, theirs: Any, rows: Any) -> None:
    """Stop if one margin of hard rows is not CatBoost's."""
    wanted = theirs.predict(rows, prediction_type="RawFormulaVal", thread_count=1)
    predict: Callable[[Any], Any] = predictor.predict_margin
    for size in CHECKED:
        parts = [predict(rows[k : k + size]) for k in range(0, len(rows), size)]
        if not np.array_equal(np.concatenate(parts), wanted):
            raise SystemExit(f"margins of batches of {size} rows are not those of CatBoost")
