"""How soon our search, and TVM's MetaSchedule, come near the best schedule known."""

from __future__ import annotations

import math
import random
import tempfile
import threading
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tvm

import tvm_forest
from benchmarks import models, timing
from benchmarks.pages import report
from benchmarks.studies import Results, Study
from benchmarks.tuning import metaschedule
from tvm_forest.search.records import read_records

MODELS, BATCHES = ("airline", "higgs", "year", "abalone"), (64, 512, 4096)
TRIALS = 36
"""Of MetaSchedule in each cell; its rounds are of eight, so there may be a few more."""
NEAR = 1.05
ROUNDS, SECONDS = 25, 0.03
TICKS = (1, 2, 5, 10, 20, 50)
WHO = {"ours": "ours", "metaschedule": "MetaSchedule"}


class Effort(NamedTuple):
    """How much is tried in each cell.

    Attributes:
        trials, layouts: of MetaSchedule.
        budget: seconds of our search, at most.
    """

    trials: int
    layouts: tuple[str, ...] = metaschedule.LAYOUTS
    budget: float = 300.0


def options(parser: ArgumentParser) -> None:
    """Add what the searches need."""
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--trials", type=int, default=TRIALS, help="of MetaSchedule, in each cell")


def measure(chosen: Namespace) -> Results:
    """Search in both ways, and time what they found in turns."""
    if chosen.device == "gpu":
        raise SystemExit("study: metaschedule is a study of CPUs")
    names, batches, effort = chosen.models, chosen.batches, Effort(chosen.trials)
    if chosen.tiny:
        names, batches, effort = ["tiny"], [64], Effort(1, ("packed",), 2.0)
    metaschedule.prepare()
    cells = []
    for name in filter(models.at_hand, names):
        model = models.get(name, chosen.cache)
        forest, rows = tvm_forest.load(model.path), model.rows()
        for batch in batches:
            found = _search(forest, rows, batch, effort)
            cells.append({"model": name, "batch": batch, **found})
            print(tables({"cells": cells[-1:]}), flush=True)
    processor = tvm.target.codegen.llvm_get_system_cpu()
    machine = f"{timing.cpu_name()} ({processor}), {timing.cores()} cores"
    return {"about": {"machine": machine}, "cells": cells}


def _search(forest: Any, rows: Any, batch: int, effort: Effort) -> dict[str, Any]:
    """Return what both searches have tried, and seconds of a call of what each has found."""
    count = metaschedule.BATCHES
    batches = np.ascontiguousarray(rows[: count * batch]).reshape(count, batch, -1)
    found = {"ours": _tune(forest, rows, batch, effort.budget)}
    found["metaschedule"] = metaschedule.search(forest, batches, effort.trials, effort.layouts)
    schedules = {"default": None, **{who: x.best for who, x in found.items()}}
    built = {who: tvm_forest.build(forest, schedule=sch) for who, sch in schedules.items()}
    times = _time_in_turns(built, batches)
    cell: dict[str, Any] = {"default": times["default"]}
    for who, (tried, _) in found.items():
        known = [[_rounded(x.seconds), round(x.cpu, 2)] for x in tried]
        best = {"layout": built[who].schedule.layout, "seconds": times[who]}
        cell[who] = {**best, "schedule": str(built[who].schedule), "trials": known}
    return cell


def _rounded(seconds: float) -> float | None:
    """Return what JSON can hold; None for a schedule that was refused."""
    return None if math.isinf(seconds) else float(f"{seconds:.4g}")


def _tune(forest: Any, rows: Any, batch: int, budget: float) -> metaschedule.Found:
    """Search with `tune`, and note when each of its trials is done."""
    ended, noted = threading.Event(), list[metaschedule.Trial]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        path.touch()
        place = metaschedule.begin_log(path)

        def watch() -> None:
            while not ended.wait(0.02):
                lines = path.read_bytes().count(b"\n")
                while len(noted) < lines:
                    noted.append(metaschedule.note(place, 0.0))

        watcher = threading.Thread(target=watch)
        watcher.start()
        common: Any = {"n_jobs": 1, "progress": False, "budget_s": budget, "limit_s": 60.0}
        try:
            tuned = tvm_forest.tune(forest, batch_size=batch, rows=rows, records=path, **common)
        finally:
            ended.set()
            watcher.join()
        records = read_records(path)
        noted += [metaschedule.note(place, 0.0)] * (len(records) - len(noted))
    trials = [x._replace(seconds=r.time) for x, r in zip(noted, records, strict=True)]
    return metaschedule.Found(trials, tuned.schedules)


def _time_in_turns(built: dict[str, Any], batches: Any) -> dict[str, float]:
    """Return the least seconds of a call of each, after comparing all margins."""
    margins = {who: [x.predict_margin(b) for b in batches] for who, x in built.items()}
    for who, each in margins.items():
        assert all(map(np.array_equal, each, margins["default"])), f"{who}: wrong margins"
    times: dict[str, list[float]] = {who: [] for who in built}
    for seed in range(ROUNDS):
        for who in random.Random(seed).sample(list(built), len(built)):
            predict = built[who].predict_margin
            calls = [lambda b=b, f=predict: f(b, n_jobs=1) for b in batches]
            times[who].append(metaschedule.time_calls(calls, SECONDS))
    return {who: min(each) for who, each in times.items()}


def best_of(cell: dict[str, Any]) -> float:
    """Return seconds of a call of the best schedule known."""
    return min(cell["default"], *(cell[who]["seconds"] for who in WHO))


def path_of(cell: dict[str, Any], who: str) -> list[tuple[float, float]]:
    """Return after how many seconds of a search its best is how many times the best known.

    MetaSchedule times functions, and the turns, as ours, calls from Python; what these take besides
    is the difference in the times of what a search found.
    """
    tried = [(math.inf if x is None else x, cpu) for x, cpu in cell[who]["trials"]]
    besides = cell[who]["seconds"] - min(x for x, _ in tried)
    paths = (np.minimum.accumulate([x for x, _ in tried]) + besides) / best_of(cell)
    return [(cpu, float(ratio)) for (_, cpu), ratio in zip(tried, paths, strict=True)]


def find_near(cell: dict[str, Any], who: str) -> tuple[int, float] | None:
    """Return after how many trials and seconds a search is near the best known; None for never."""
    paths = path_of(cell, who)
    found = (n for n, (_, ratio) in enumerate(paths) if ratio <= NEAR)
    n = next(found, None)
    return None if n is None else (n + 1, paths[n][0])


def tables(results: Results) -> str:
    """Return the cells."""
    heads = ["model", "rows", "best known, ns a row", "default / best"]
    for name in WHO.values():
        heads += [f"{name}: trials", "seconds", "near after trials", "and seconds"]
        heads += ["found / best", "layout"]
    return report.table(heads, map(line_of, results["cells"]))


def line_of(cell: dict[str, Any]) -> list[Any]:
    """Return a line of the table."""
    best = best_of(cell)
    line = [cell["model"], cell["batch"], f"{1e9 * best / cell['batch']:.0f}"]
    line += [f"{cell['default'] / best:.2f}"]
    for who in WHO:
        found, near = cell[who], find_near(cell, who)
        line += [len(found["trials"]), f"{found['trials'][-1][1]:.1f}"]
        line += [near[0], f"{near[1]:.1f}"] if near else ["-", "-"]
        line += [f"{found['seconds'] / best:.2f}", found["layout"]]
    return line


def draw(results: Results, figure: Any) -> None:
    """Draw what each search has found after so many seconds."""
    panels = figure.subplots(1, len(BATCHES), sharey=True, squeeze=False)[0]
    colours = dict(zip(WHO, ("tab:blue", "tab:orange"), strict=True))
    for panel, batch in zip(panels, BATCHES, strict=True):
        for cell in (x for x in results["cells"] if x["batch"] == batch):
            for who, colour in colours.items():
                # the earliest of equals, so that a plot stays small
                steps = dict(reversed([(ratio, cpu) for cpu, ratio in path_of(cell, who)]))
                end = [cell[who]["trials"][-1][1]]
                style = {"where": "post", "color": colour, "linewidth": 1}
                panel.step([*steps.values()][::-1] + end, [*steps][::-1] + [min(steps)], **style)
        panel.axhline(NEAR, color="tab:gray", linewidth=0.8)
        panel.set(xscale="log", yscale="log", title=f"{batch:,} rows", xlabel="CPU seconds")
        panel.minorticks_off()
        panel.set_xticks(TICKS, map(str, TICKS))
        panel.set_yticks(TICKS, map(str, TICKS))
    for who, colour in colours.items():
        panels[0].plot([], [], color=colour, label=WHO[who])
    panels[0].set_ylabel("best so far / best known")
    panels[0].legend(fontsize=7)


def says(results: Results) -> str:
    """Say which search comes near the best, and how soon."""
    cells = results["cells"]
    near = {who: [x for cell in cells if (x := find_near(cell, who))] for who in WHO}
    trials, seconds = ({who: [x[i] for x in near[who]] for who in WHO} for i in (0, 1))
    ends = [[cpu for _, cpu in cell["metaschedule"]["trials"]] for cell in cells]
    tried, spent = sum(map(len, ends)), [x[-1] for x in ends]
    run = float(np.median(np.concatenate([np.diff(x) for x in ends])))  # rounds run at their end
    loss = report.geometric_mean(x["metaschedule"]["seconds"] / best_of(x) for x in cells)
    own = report.geometric_mean(x["ours"]["seconds"] / best_of(x) for x in cells)
    far = [f"`{x['model']}` at {x['batch']:,} rows" for x in cells if not find_near(x, "ours")]
    missed = " and ".join(far) or "none"
    planes = sum(x["metaschedule"]["layout"] == "bitsliced" for x in cells)

    def said(numbers: list[Any]) -> str:
        return f"{min(numbers):.3g} to {max(numbers):.3g}" if numbers else "no"

    return f"""\
Our search comes within 5 % of the best known in {len(near["ours"])} of {len(cells)} cells, after
{said(trials["ours"])} trials and {said(seconds["ours"])} s; it misses {missed}. MetaSchedule comes
near in {len(near["metaschedule"])}, after {said(trials["metaschedule"])} trials and
{said(seconds["metaschedule"])} s. What they have found in the end takes {own:.2f} and {loss:.2f}
times as long as the best (geometric means). A trial of MetaSchedule takes {sum(spent) / tried:.2g}
CPU seconds, {run:.2g} of them to run it; the rest is to draw it, to start processes and to compile.
Its space is smaller than ours: three layouts, with nodes one by one. It ends with bit planes in
{planes} of {len(cells)} cells, whose task comes third in a round and has at most four points, so
what counts is how soon it has its turn. Its model of costs sees a walk as one call, where our
prices know what a hop costs: ours begins with the layout that is expected to be best. What
MetaSchedule found is built by `build(model, schedule=...)` and gives the same bits.

Older papers on TVM tune whole networks in Relay. Relay is gone from TVM, and Relax has taken its
place; [forests in Relax](relax.md) are built with schedules of ours. So MetaSchedule is compared
where it works on one function, the one that [`lower` gives](tvm_schedules.md)."""


STUDY = Study(
    "metaschedule",
    "Our search beside TVM's MetaSchedule",
    """\
SilvanForge and Treebeard bring searches of their own. TVM has one for all that it compiles,
MetaSchedule, with a cost model that it trains on the way. Here it searches among schedules of our
canonical functions, as it comes: evolutionary, XGBoost as the model of costs, and processes of its
own to build and to run. Each of three layouts is a task, and they take turns; splits and orders of
loops are TVM's, and [our annotations](tvm_schedules.md) say how walks are done. Beside it is
`tune`, with its heuristic. A schedule counts if its margins are those of the model to the bit.
One thread; times of calls are the thread's own CPU time, since other work ran on the machine, and
seconds of a search are CPU seconds of all its processes. Before its first search, MetaSchedule
reads all of TVM's tensor intrinsics, which takes some 23 CPU seconds; they do not count. What both
have found, and the default, is timed again in turns (the least of 25 rounds). The fastest of the
three is the best known, and a search is near it when it has a schedule within 5 %.""",
    measure,
    tables,
    draw,
    {"cpu": says},
    options,
    (10, 3.4),
)
