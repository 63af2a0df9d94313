"""What guided searches find beside all that there is to find (figure 11 of SilvanForge)."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import models
from benchmarks.pages import report
from benchmarks.studies import Results, Study, on_gpu
from benchmarks.tuning import search
from benchmarks.tuning.searches import RECORDS, Cell, cell_of, forest_of

MODELS, BATCHES = ("airline", "higgs", "year"), (1, 64, 512)
ALGORITHM_1 = (*models.PUBLISHED, "abalone", "airline_ohe", "covtype")
GPU_BATCHES = (512, 1024, 2048, 4096, 8192, 16384)
"""Those of the paper."""
BUDGET = 300.0
"""Seconds of the exhaustive search of a cell, at most."""
COUNTS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300)


def options(parser: ArgumentParser) -> None:
    """Add what the searches need."""
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of all points")
    parser.add_argument("--records", type=Path, default=RECORDS, help="goes on with what is there")


def measure(chosen: Namespace) -> Results:
    """Search, compare in turns, and count what draws at random would have found."""
    if chosen.device == "gpu":
        return measure_gpu(chosen)
    folder, names, batches, budget = chosen.records, chosen.models, chosen.batches, chosen.budget
    if chosen.tiny:
        folder, names, batches, budget = chosen.out / "records", ["tiny"], [64], 3.0
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        search.searched(folder, name, batches, "exhaustive", budget * len(batches))
        search.heuristic(folder, name, batches, budget)
    places = [(name, batch) for name in names for batch in batches]
    search.compare_all(folder, places)
    found = []
    for name, batch in places:
        cell = search.read(folder, name, batch)
        if cell is not None:
            found.append(cell | curves(folder, name, batch))
    estimated = [] if chosen.tiny else [x for name in ALGORITHM_1 for x in algorithm_1(name)]
    return {"cells": found, "estimated": estimated}


def curves(folder: Path, name: str, batch: int) -> dict[str, list[float]]:
    """Return what so many measurements find, as times of the best of all points.

    `guided` is what the guided search measured, one after the other, by the exhaustive search's
    clock; `drawn` the mean of the best of `COUNTS` points that are drawn at random.
    """
    every, guided = cell_of(folder, name, batch), cell_of(folder, name, batch, "heuristic")
    best = min(every.seconds.values())
    tried = [every.seconds.get(p, math.inf) for p in guided.seconds]
    paths = np.minimum.accumulate(tried) / best
    return {"guided": [float(x) for x in paths], "drawn": drawn(every, best)}


def drawn(every: Cell, best: float) -> list[float]:
    """Return the expected best of k points out of n, drawn without repetition.

    The i-th fastest is the best of k with probability C(n - i, k - 1) / C(n, k).
    """
    times = sorted(every.seconds.values())
    n = len(times)
    found = []
    for k in (k for k in COUNTS if k <= n):
        ways = (math.comb(n - 1 - i, k - 1) * x for i, x in enumerate(times))
        found.append(sum(ways) / math.comb(n, k) / best)
    return found


def algorithm_1(name: str) -> Iterable[dict[str, Any]]:
    """Run Algorithm 1 through the paper's space with estimated cycles as the clock."""
    from tvm_forest.search import silvanforge
    from tvm_forest.search.gpu_space import GpuSpace
    from tvm_forest.search.strategies import run_algorithm_1
    from tvm_forest.target import parse_target

    for batch in GPU_BATCHES:
        problem = GpuSpace.of(forest_of(name), parse_target("cuda"), batch, exact=False).problem
        tried = list[Any]()

        def cycles(point: Any, problem: Any = problem, tried: list[Any] = tried) -> float:
            tried.append(point)
            return silvanforge.estimate_cycles(point, problem)

        def allows(point: Any, problem: Any = problem) -> bool:
            return silvanforge.find_obstacle(point, problem) is None

        chosen = run_algorithm_1(silvanforge.first_phase(problem), cycles, allows)
        assert chosen is not None, f"{name}: no first point may run"
        points = list(filter(allows, silvanforge.paper_points()))
        whole = min(silvanforge.estimate_cycles(point, problem) for point in points)
        ratio = silvanforge.estimate_cycles(chosen, problem) / whole
        yield {
            "model": name,
            "batch": batch,
            "points": len(points),
            "tried": len(tried),
            "ratio": ratio,
        }


def measure_gpu(chosen: Namespace) -> Results:
    """Return what the default schedule takes over the fastest of the folder, by kernel time."""
    given, about = on_gpu.read(chosen.results)
    cells = []
    for cell in given["cells"]:
        times = on_gpu.schedule_times(cell, "kernel")
        if "default" in times:
            best = min(times, key=times.__getitem__)
            ratio = times["default"] / times[best]
            kept = {"model": cell["model"], "batch": cell["batch"], "tried": len(times)}
            cells.append(kept | {"best": best, "ratio": ratio})
    return {"about": about, "on_gpu": cells}


def tables(results: Results) -> str:
    """Return the cells, and the means of what was estimated."""
    if "on_gpu" in results:
        heads = ["model", "rows", "schedules", "default / fastest", "fastest"]
        lines = [
            [*(x[k] for k in ("model", "batch", "tried")), f"{x['ratio']:.2f}", x["best"]]
            for x in results["on_gpu"]
        ]
        return report.table(heads, lines)
    heads = ["model", "rows", "points", "all, s", "guided, s", "tried", "share of time"]
    heads += ["found / best", "default / tuned", "as many drawn / best", "fastest"]
    rows = [line_of(cell) for cell in results["cells"]]
    said = report.table(heads, rows)
    return said + ("\n\n" + estimated_table(results) if results["estimated"] else "")


def line_of(cell: dict[str, Any]) -> list[Any]:
    """Return a line of the table."""
    line = [cell["model"], cell["batch"], cell["measured"], f"{cell['exhaustive_s']:.0f}"]
    line += [f"{cell['heuristic_s']:.1f}", cell["trials"]]
    line += [f"1/{cell['exhaustive_s'] / cell['heuristic_s']:.0f}"]
    line += [f"{cell[key][0]:.3f}" for key in ("found_over_best", "default_over_tuned")]
    return [*line, f"{by_chance(cell):.2f}", cell["best"]]


def by_chance(cell: dict[str, Any]) -> float:
    """Return what as many draws as the guided search took would have found."""
    known = COUNTS[: len(cell["drawn"])]
    return float(np.interp(cell["trials"], known, cell["drawn"]))


def estimated_table(results: Results) -> str:
    """Return Algorithm 1 beside the paper's space, by estimated cycles."""
    batches = list(dict.fromkeys(x["batch"] for x in results["estimated"]))
    found = {(x["model"], x["batch"]): x for x in results["estimated"]}
    rows = []
    for name in dict.fromkeys(x["model"] for x in results["estimated"]):
        own = [found[name, batch] for batch in batches]
        tried = f"{min(x['tried'] for x in own)} to {max(x['tried'] for x in own)}"
        points = f"{min(x['points'] for x in own):,} to {max(x['points'] for x in own):,}"
        rows.append([name, points, tried, *(f"{x['ratio']:.2f}" for x in own)])
    heads = ["Algorithm 1, cycles estimated", "points", "tried", *(f"{n:,}" for n in batches)]
    return report.table(heads, rows)


def draw(results: Results, figure: Any) -> None:
    """Draw what searches have found after so many measurements, or bars for a GPU."""
    panel = figure.subplots()
    if "on_gpu" in results:
        on_gpu.draw_bars(panel, results["on_gpu"], "default / fastest schedule, kernels")
        return
    for cell in results["cells"]:
        panel.plot(COUNTS[: len(cell["drawn"])], cell["drawn"], color="tab:gray", alpha=0.6)
        label = f"{cell['model']}, {cell['batch']}"
        guided = cell["guided"]
        panel.plot(range(1, len(guided) + 1), guided, marker="o", markersize=3, label=label)
    panel.set_xscale("log")
    panel.set_xlabel("schedules measured (gray: drawn at random, expected)")
    panel.set_ylabel("time of the best so far / best of all")
    panel.set_yscale("log")
    panel.minorticks_off()
    panel.legend(fontsize=7, title="guided: model, rows")


def says(results: Results) -> str:
    """Say what was found beside the paper's figures."""
    cells = results["cells"]
    ratios = [cell["found_over_best"][0] for cell in cells]
    whole, guided = (sum(x[key] for x in cells) for key in ("exhaustive_s", "heuristic_s"))
    chance = report.geometric_mean(by_chance(cell) for cell in cells)
    estimated = [x["ratio"] for x in results["estimated"]]
    first = sum(x["default_over_tuned"][0] <= 1.05 for x in cells)
    return (
        "The paper's claim holds on this CPU: what the guided search found takes "
        f"{report.geometric_mean(ratios):.3f} times as long as the best of all points (geometric "
        f"mean, at most {max(ratios):.3f}; the paper: well within 1.05), after "
        f"{min(x['trials'] for x in cells)} to {max(x['trials'] for x in cells)} of "
        f"{min(x['measured'] for x in cells)} to {max(x['measured'] for x in cells)} measurements "
        f"and 1/{whole / guided:.0f} of the time (the paper: 1/80 to 1/100, of 5,184 points, and "
        f"28.7 s on average; here {guided / len(cells):.1f} s a cell). The first that it "
        f"measures, the default, is within 5 % in {first} of {len(cells)} cells. As many points "
        f"drawn at random would take {chance:.2f} times as long as the best, so it is the prices "
        "of the cost model that do it, and not that many schedules are good. What does not carry "
        "over is the way: the paper's CPU search is exhaustive over a handful of schedules, "
        "since they differ in parallel loops and interleaving alone; with layouts, blocks, tiles "
        "and vectors there are hundreds. Algorithm 1 was run through the paper's own GPU space "
        "with estimated cycles as its clock, which says nothing of a GPU, only of the algorithm: "
        f"by that clock its choice takes {report.geometric_mean(estimated):.2f} times the best "
        f"point's (at most {max(estimated):.2f}, at 2,048 and 4,096 rows, where it no longer "
        "tries the 20 threads for a row that the estimate still prefers)."
    )


def says_gpu(results: Results) -> str:
    """Say how far defaults are from the fastest schedule of the folder."""
    ratios = [x["ratio"] for x in results["on_gpu"]]
    near = sum(x <= 1.05 for x in ratios)
    return (
        f"Of {len(ratios)} cells, {near} defaults are within 5 % of the fastest schedule that was "
        f"taken along (geometric mean {report.geometric_mean(ratios):.2f}, at most "
        f"{max(ratios):.2f}); the paper's figure 11 has its heuristic well within 5 % of the best "
        "of 3,888 points. The folder holds some twenty schedules and no search, so this is a "
        "lower bound of what a search would gain."
    )


STUDY = Study(
    "search_quality",
    "What a search finds beside all that there is",
    "SilvanForge's figure 11 sets the schedule that its heuristic finds beside the best of all "
    "5,184: it is within 5 %, and takes 1/80 to 1/100 of the time, 6 to 167 seconds. Here every "
    "point of the space of a CPU is measured, on one thread, and beside it the guided search. "
    "What both found, and the default, is then timed again in turns (ratios are medians). Of "
    "Algorithm 1, which is for GPUs, only what it does in the paper's space can be shown here, "
    "by the estimate that orders its points.",
    measure,
    tables,
    draw,
    {"cpu": says, "gpu": says_gpu},
    options,
)
