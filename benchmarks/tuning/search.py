"""Search for schedules of the benchmark's models: all of the space, and guided by prices.

    python -m benchmarks tuning.search [--models M ...] [--batches B ...] [--out FOLDER]
                                [--strategies exhaustive heuristic compare] # or: make bench-search

On one thread, one call for all sizes of batch of a model: `exhaustive` measures every point of the
spaces, or as many as `--budget` seconds for each size allow; `heuristic` searches with nothing
known, and the wall time of the whole call is kept. The time of a size is that of its candidates.
`compare` builds the default
schedule, that of the heuristic and the three fastest of all points, checks them and times them in
turns, round after round; it does so for all models, and then twice more, so that minutes in which
the machine is busy spoil a third of the rounds at most. A ratio is the median over all rounds, its
spread the quartiles.

Everything is kept in FOLDER, and a second run goes on where the first one was stopped: records of
each strategy, a JSON file for each model and size of batch, results.json and table.md. Delete
*.seconds.json to search again, for instance after a calibration.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import models
from benchmarks.timing import cores, cpu_name
from benchmarks.tuning.searches import BATCHES, RECORDS, cell_of, forest_of, path_of, points_of
from tvm_forest.layouts.laying_out.request import BuildRequest
from tvm_forest.predictor.building import build
from tvm_forest.schedule_prims import Schedule
from tvm_forest.search import measuring as tuning
from tvm_forest.search.measuring import measure
from tvm_forest.search.space import Point
from tvm_forest.target import Target

STRATEGIES = ("exhaustive", "heuristic", "compare")
PASSES, ROUNDS = 3, 7
"""Through all models, and of each one in a pass."""

SECONDS_A_ROUND = 0.02
FINALISTS = 3
"""Fastest points of the exhaustive search that are timed again: the first may have had luck."""


Rounds = dict[Point, list[float]]
"""Seconds of a call at each point, by round."""


def searched(folder: Path, name: str, batches: list[int], strategy: str, budget: float) -> float:
    """Search on for all sizes of batch, as far as the budget allows; return wall seconds."""
    left = budget - sum(cell_of(folder, name, batch, strategy).spent for batch in batches)
    if left <= 0:
        return 0.0
    begin = time.monotonic()
    tuning.tune(
        forest_of(name),
        Target(),
        batches,
        models.get(name).rows(),
        strategy,
        budget_s=left,
        records=path_of(folder, name, strategy),
        n_jobs=1,
    )
    return time.monotonic() - begin


def heuristic(folder: Path, name: str, batches: list[int], budget: float) -> None:
    """Search with nothing known, unless that has been done; keep how long it took."""
    took = folder / f"{name}.seconds.json"
    if not took.exists():
        path_of(folder, name, "heuristic").unlink(missing_ok=True)  # half of a search
        spent = searched(folder, name, batches, "heuristic", budget)
        took.write_text(json.dumps(spent), encoding="utf-8")


def compare(folder: Path, name: str, batch: int, known: Rounds) -> dict[str, Any] | None:
    """Time the default, the schedule found and the fastest points; None if any is missing.

    Args:
        folder, name, batch: where records are, and of what.
        known: rounds of earlier passes; those of this one are added.
    """
    every, guided = (cell_of(folder, name, batch, kind) for kind in STRATEGIES[:2])
    if not (every.seconds and guided.seconds):
        return None
    points = points_of(name, batch)
    default = next(p for p, sch in points.items() if sch == every.space.default)
    found, best = guided.fastest[0], every.fastest[:FINALISTS]
    chosen = {p: points[p] for p in (default, found, *best)}
    for p, rounds in timed(name, batch, chosen).items():
        known.setdefault(p, []).extend(rounds)
    medians = {p: float(np.median(x)) for p, x in known.items()}
    winner, tuned = min(best, key=medians.__getitem__), min(medians, key=medians.__getitem__)
    return {
        "model": name,
        "batch": batch,
        "points": len(points),
        "measured": len(every.records),
        "exhaustive_s": every.spent,
        "heuristic_s": guided.spent,
        "trials": len(guided.records),
        "us_a_row": {
            "default": 1e6 * medians[default] / batch,
            "found": 1e6 * medians[found] / batch,
            "best": 1e6 * medians[winner] / batch,
        },
        "found_over_best": _ratio(known[found], known[winner]),
        "default_over_tuned": _ratio(known[default], known[tuned]),
        "found": words_of(found),
        "best": words_of(winner),
    }


def compare_all(folder: Path, cells: list[tuple[str, int]]) -> None:
    """Compare what was found for some models and sizes of batch, pass after pass."""
    rounds = {cell: Rounds() for cell in cells}
    for _ in range(PASSES):
        for cell in cells:
            text = json.dumps(compare(folder, *cell, rounds[cell]))
            (folder / "{}-{}.json".format(*cell)).write_text(text, encoding="utf-8")


def read(folder: Path, name: str, batch: int) -> dict[str, Any] | None:
    """Return what `compare` has kept of a model and size of batch; None if there is nothing."""
    path = folder / f"{name}-{batch}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _ratio(ours: list[float], theirs: list[float]) -> list[float]:
    """Return the median of the ratios of rounds, and their quartiles."""
    ratios = np.array(ours) / np.array(theirs)
    return [float(x) for x in np.quantile(ratios, (0.5, 0.25, 0.75))]


def words_of(point: Point) -> str:
    """Say what a point is in a few words."""
    tiles = f" in tiles of {point.tile}" if point.tile > 1 else ""
    block = f", blocks of {point.block}" if point.block else ""
    hops = {"loop": "", "peel": ", peeled"}[point.hops]
    cache = f", {point.cache}" if point.cache else ""
    return f"{point.layout}{tiles}{block}, {point.order} {point.walks}{hops}{cache}"


def timed(name: str, batch: int, schedules: dict[Point, Schedule]) -> Rounds:
    """Build and check schedules, and time them in turns; return seconds of a call by round."""
    forest, points = forest_of(name), list(schedules)
    setup, _ = tuning.make_setup(forest, Target(), max(BATCHES), models.get(name).rows(), 1, 1)
    batches = measure.cut_batches(setup.pool, batch)
    built = {p: build(BuildRequest.of(forest, sch, Target())) for p, sch in schedules.items()}
    turns, times = {}, {p: list[float]() for p in points}
    for p, predictor in built.items():
        measure.check_margins(setup, predictor.predict_margin, batch, False)
        turns[p] = itertools.cycle(batches)
    for seed in range(ROUNDS + 1):
        for p in random.Random(seed).sample(points, len(points)):
            built[p].predict_margin(next(turns[p]), n_jobs=1)  # back into the caches
            begin, calls = time.thread_time(), 0
            while calls == 0 or time.thread_time() - begin < SECONDS_A_ROUND:
                for rows in itertools.islice(turns[p], 1 if batch > 1 else 32):
                    built[p].predict_margin(rows, n_jobs=1)
                    calls += 1
            times[p].append((time.thread_time() - begin) / calls)
    return {p: x[1:] for p, x in times.items()}  # the first round warms up


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    heads = (
        "model",
        "rows",
        "points",
        "all, s",
        "heuristic, s",
        "tried",
        "share of time",
        "default, us a row",
        "found",
        "best",
        "found / best",
        "default / tuned",
        "what won",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|--:" * (len(heads) - 2) + "|---|"]
    for r in results:
        times = [f"{x:.3g}" for x in r["us_a_row"].values()]
        whole = "" if r["measured"] >= r["points"] else f" (of {r['points']})"
        ratios = [
            "{:.3f} ({:.3f} to {:.3f})".format(*r[key])
            for key in ("found_over_best", "default_over_tuned")
        ]
        share = f"1/{r['exhaustive_s'] / r['heuristic_s']:.0f}"
        cells = [r["model"], f"{r['batch']}", f"{r['measured']}{whole}", f"{r['exhaustive_s']:.0f}"]
        cells += [f"{r['heuristic_s']:.1f}", f"{r['trials']}", share, *times, *ratios, r["best"]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(results: list[dict[str, Any]], folder: Path) -> str:
    """Say in sentences whether the goals are met."""
    took = {r["model"]: 0.0 for r in results}
    took = {name: json.loads((folder / f"{name}.seconds.json").read_text()) for name in took}
    whole = {name: sum(r["exhaustive_s"] for r in results if r["model"] == name) for name in took}
    shares = [whole[name] / seconds for name, seconds in took.items()]
    ratios = [[r[key][0] for r in results] for key in ("found_over_best", "default_over_tuned")]
    near, good = (sum(x <= most for x in r) for r, most in zip(ratios, (1.05, 1.25), strict=True))
    found, default = (math.exp(np.mean(np.log(x))) for x in ratios)
    return (
        f"{near} of {len(results)} schedules found are within 5 % of the best (geometric mean of "
        f"the ratios {found:.3f}, at most {max(ratios[0]):.3f}), {good} defaults within 25 % of "
        f"the tuned (mean {default:.3f}, at most {max(ratios[1]):.3f}). The heuristic takes "
        f"{np.mean(list(took.values())):.1f} s on average for all sizes of a model and "
        f"{max(took.values()):.1f} s at most, start of the process included: "
        f"1/{sum(whole.values()) / sum(took.values()):.1f} of the time of the exhaustive search, "
        f"1/{min(shares):.1f} where it is least."
    )


def main() -> None:
    """Search, compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=models.NAMES)
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    parser.add_argument(
        "--budget", type=float, default=240, help="seconds for one size, by all points"
    )
    parser.add_argument("--out", type=Path, default=RECORDS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.models:
        arguments = (options.out, name, options.batches)
        if "exhaustive" in options.strategies:
            searched(*arguments, "exhaustive", options.budget * len(options.batches))
        if "heuristic" in options.strategies:
            heuristic(*arguments, options.budget)
    cells = [(name, batch) for name in options.models for batch in options.batches]
    if "compare" in options.strategies:
        compare_all(options.out, cells)
    results = [found for cell in cells if (found := read(options.out, *cell))]
    if results:
        said = summary(results, options.out)
        about = {"machine": f"{cpu_name()}, {cores()} cores, one thread", "results": results}
        (options.out / "results.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
        text = f"{table(results)}\n\n{said}\n"
        (options.out / "table.md").write_text(text, encoding="utf-8")
        print(text)
