"""What the figures of a GPU show: goals that hold or not, the paper's graphs, CPU or GPU.

    python -m benchmarks gpu.goals results.json [results of another GPU]

takes: results of `gpu.speed`; gives: text.

The graphs are those of the SilvanForge paper (figures 6, 7, 10 and 12) as tables; the paper's
RAPIDS is nvForest here, and its Hummingbird a loop of gathers in torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu import report

LARGE = 65_536
"""Rows from which a batch is a large one."""
SMALL = 4096
"""Rows up to which a batch is a small one."""
HERE_OR_THERE = (report.DEFAULT, report.ON_CPU)


class Goal(NamedTuple):
    """A ratio that is aimed at.

    Attributes:
        text: what is compared.
        peer: whose time is divided by ours: all engines whose name begins so, the fastest of them.
        figure: of which times.
        least: the ratio.
        counts: says which batches.
    """

    text: str
    peer: str
    figure: str
    least: float
    counts: Callable[[int], bool]


GOALS = (
    Goal(f"kernels, {LARGE} rows and more", "nvforest", "kernel", 3.0, lambda n: n >= LARGE),
    Goal(f"calls, 1 to {SMALL} rows", "nvforest", "device", 1.5, lambda n: n <= SMALL),
    Goal("kernels, all batches", "xgboost", "kernel", 10.0, lambda n: True),
)


def mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [log(ratio) for ratio in ratios]
    return exp(sum(logs) / len(logs))


def time_of(cell: dict[str, Any], begin: str, figure: str) -> float | None:
    """Return the least time of the engines whose name begins so, in microseconds, or None."""
    engines = cell.get("engines", {}).items()
    times = [x[f"{figure}_us"] for name, x in engines if name.startswith(begin)]
    return min(times, default=None)


def speed_ups(
    results: dict[str, Any], peer: str, figure: str, ours: str = report.DEFAULT
) -> dict[tuple[str, int], float]:
    """Return how many times faster than a peer we are, by model and batch."""
    found = {}
    for cell in results["cells"]:
        mine, theirs = time_of(cell, ours, figure), time_of(cell, peer, figure)
        if mine is not None and theirs is not None:
            found[cell["model"], cell["batch"]] = theirs / mine
    return found


def line_of_goal(goal: Goal, results: dict[str, Any]) -> str:
    """Say whether a goal holds for the default schedules, and where it does not."""
    ratios = speed_ups(results, goal.peer, goal.figure)
    counted = {at: ratio for at, ratio in ratios.items() if goal.counts(at[1])}
    begin = f"{goal.peer} / ours, {goal.text}: at least {goal.least:g} is wanted"
    if not counted:
        return f"{begin}; nothing was measured"
    below = [f"{m} {n}: {r:.2f}" for (m, n), r in counted.items() if r < goal.least]
    said = f"mean {mean(counted.values()):.2f}, least {min(counted.values()):.2f}"
    what = f"does NOT hold in {len(below)} of {len(counted)} cells ({'; '.join(below)})"
    return f"{begin}: {said}; {what if below else 'holds'}"


def line_of_checks(results: dict[str, Any]) -> str:
    """Say whether all answers of ours were right."""
    ours = [x for x in results["engines"] if x["engine"].startswith(report.OURS)]
    wrong = [report.line_of(x) for x in ours if x.get("failed") or "why" in x]
    said = f"NOT all: {'; '.join(wrong)}" if wrong else f"all of {len(ours)} compiled models"
    return f"answers as they should be (to the bit where the order is kept): {said}"


def crossovers(results: dict[str, Any]) -> dict[str, int | None]:
    """Return by model from which batch on rows of the host are faster on the GPU; None for none.

    Models are left out of which there are no times on both.
    """
    found: dict[str, int | None] = {}
    for model in dict.fromkeys(cell["model"] for cell in results["cells"]):
        cells = [x for x in results["cells"] if x["model"] == model]
        times = [
            (x["batch"], *(time_of(x, engine, "host") for engine in HERE_OR_THERE)) for x in cells
        ]
        known = [(n, gpu, cpu) for n, gpu, cpu in times if gpu is not None and cpu is not None]
        if known:
            found[model] = next((n for n, gpu, cpu in known if gpu < cpu), None)
    return found


def lines_of_crossover(results: dict[str, Any]) -> list[str]:
    """Say for each model from which batch on rows of the host are faster on the GPU."""
    lines = []
    for model, faster in crossovers(results).items():
        where = "at no batch" if faster is None else f"from {faster} rows on"
        lines.append(f"{model}: rows of the host are faster on the GPU {where}")
    return lines


def table(title: str, ratios: dict[tuple[str, int], float]) -> list[str]:
    """Return speed-ups by model and batch, and their geometric means, as a table."""
    models, batches = (list(dict.fromkeys(at[i] for at in ratios)) for i in (0, 1))
    if not ratios:
        return []
    lines = ["", title, "", f"| model |{''.join(f' {n} |' for n in batches)}"]
    lines.append("|---|" + "--:|" * len(batches))
    for model in models:
        row = (ratios.get((model, n)) for n in batches)
        lines.append(f"| {model} |{''.join(' - |' if r is None else f' {r:.2f} |' for r in row)}")
    means = (mean(r for (_, at), r in ratios.items() if at == n) for n in batches)
    return [*lines, f"| mean |{''.join(f' {r:.2f} |' for r in means)}"]


def transfer(results: dict[str, Any], other: dict[str, Any]) -> dict[tuple[str, int], float]:
    """Return what choosing by another GPU costs: time of its choice over the least, both here."""
    there = {(x["model"], x["batch"]): x for x in other["cells"]}
    found = {}
    for cell in results["cells"]:
        at = cell["model"], cell["batch"]
        name = report.best_of(there.get(at, {}), "kernel")["schedule"]
        best = report.best_of(cell, "kernel")["after_us"]
        here = None if name is None else time_of(cell, f"{report.OURS}{name}", "kernel")
        if here is not None and best is not None:
            found[at] = here / best
    return found


def lines_of(results: dict[str, Any], other: dict[str, Any] | None = None) -> list[str]:
    """Return all that the figures show."""
    lines = ["", line_of_checks(results), *(line_of_goal(goal, results) for goal in GOALS)]
    lines += [f"{tool}: {what}" for tool, what in results.get("sanitizer", {}).items()]
    lines += lines_of_crossover(results)
    for peer, figure, number in (("nvforest", "kernel", "6"), ("torch", "host", "7")):
        for ours, what in ((report.DEFAULT, "default"), (report.OURS, "fastest schedule")):
            title = f"{peer} / ours ({what}), {figure} (figures {number} and 10 of the paper)"
            lines += table(title, speed_ups(results, peer, figure, ours))
    if other is not None:
        title = f"time of the schedule that is fastest on {other['about']['gpu']} over the best"
        lines += table(f"{title} (figure 12)", transfer(results, other))
    return lines


def main() -> None:
    """Print what the results of one GPU show, and what those of another say of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="written by gpu.speed")
    parser.add_argument("other", type=Path, nargs="?", help="the same of another GPU")
    given = parser.parse_args()
    read = [json.loads(x.read_text()) for x in (given.results, given.other) if x is not None]
    sys.stdout.write("\n".join(lines_of(*read)) + "\n")
