"""From how many rows on a GPU is faster than the CPU (section 10.2 of SilvanForge).

Without a GPU this is an estimate: kernels as results/gpu_cycles.md has them, what the host does in
a call as docs/gpu.md has it, and what driver and bus take is assumed. The CPU is measured.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from typing import Any

import numpy as np

from benchmarks import RESULTS, models
from benchmarks.gpu import goals
from benchmarks.pages import report
from benchmarks.studies import Results, Study, on_gpu
from benchmarks.timing import time_in_turns
from benchmarks.tuning.searches import forest_of

MODELS = ("airline", "epsilon", "higgs", "year")
"""Those of results/gpu_cycles.md of which all trees were counted."""

BATCHES = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 4096)
ROUNDS, SECONDS = 60, 0.003
HOST_US = 17.0
"""Of Python, ctypes and numpy in a call with rows of the host, measured with a driver that does
nothing (docs/gpu.md)."""

DRIVER_US = {"least": 5.0, "likely": 10.0, "most": 20.0}
"""Of two copies, a launch and the wait for them, in the driver and on the bus; assumed."""

BUS_BYTES_US = 25_000.0
"""Bytes that the bus moves in a microsecond, 25 GB/s; assumed."""

ONE, TWO = "ours, 1 thread", "ours, 2 threads"
TREEBEARD, XGBOOST = "Treebeard's, 1 thread", "XGBoost, 1 thread"
PLANNED, PLANNED_TREEBEARD = "ours, 16 cores, planned", "Treebeard's, 16 cores, planned"
CORES = 16
"""That are planned: the paper's CPU has as many virtual ones."""
KERNEL = re.compile(r"([\d,.]+) us")


def options(parser: ArgumentParser) -> None:
    """Add the models."""
    parser.add_argument("--models", nargs="+", default=list(MODELS))


def measure(chosen: Namespace) -> Results:
    """Time the CPU and estimate the GPU, or read what a GPU took."""
    if chosen.device == "gpu":
        given, about = on_gpu.read(chosen.results)
        return {"about": about, "from_rows": goals.crossovers(given), "calls": calls_of(given)}
    names = ["tiny"] if chosen.tiny else chosen.models
    batches, rounds = ((1, 64), 1) if chosen.tiny else (BATCHES, ROUNDS)
    kernels = {"tiny": {1: 1.0, 4096: 2.0}} if chosen.tiny else read_kernels()
    cells = [
        {"model": name, "batch": batch, "cpu_us": us, "gpu_us": gpu_us(name, batch, kernels[name])}
        for name in names
        for batch, us in time_model(name, batches, rounds).items()
    ]
    return {"cells": cells}


def calls_of(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return microseconds of a call with rows of the host, here and there."""
    found = []
    for cell in given["cells"]:
        times = [goals.time_of(cell, engine, "host") for engine in goals.HERE_OR_THERE]
        if None not in times:
            names = {"model": cell["model"], "batch": cell["batch"]}
            found.append(names | {"gpu_us": times[0], "cpu_us": times[1]})
    return found


def read_kernels() -> dict[str, dict[int, float]]:
    """Return by model and rows the microseconds of the default's kernel on an H100, counted."""
    text = (RESULTS / "gpu_cycles.md").read_text(encoding="utf-8")
    found: dict[str, dict[int, float]] = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        name, lines = part.split("\n", 1)[0], part.splitlines()
        heads = [i for i, line in enumerate(lines) if line.startswith("| rows |")]
        if not heads:
            continue
        place = [x.strip() for x in lines[heads[0]].split("|")].index("default")
        for line in lines[heads[0] + 2 :]:
            if not line.startswith("|"):
                break
            cells = line.split("|")
            us = KERNEL.search(cells[place])
            if us is not None:
                rows = int(cells[1].replace(",", ""))
                found.setdefault(name, {})[rows] = float(us[1].replace(",", ""))
    return found


def gpu_us(name: str, batch: int, kernel: dict[int, float]) -> dict[str, float]:
    """Return the estimate of a call, by what the driver is taken to need."""
    rows, us = np.log(list(kernel)), np.log(list(kernel.values()))
    walks = float(np.exp(np.interp(np.log(batch), rows, us)))
    forest = forest_of(name)
    size = batch * np.dtype("float32").itemsize * (forest.n_features + forest.n_outputs)
    return {key: HOST_US + x + size / BUS_BYTES_US + walks for key, x in DRIVER_US.items()}


def time_model(name: str, batches: tuple[int, ...], rounds: int) -> dict[int, dict[str, float]]:
    """Return microseconds of a call, the least mean of a turn, by batch and by who serves it."""
    import tvm_forest
    from benchmarks.studies import core_plan
    from tvm_forest.schedule_prims import recipes

    forest, booster = forest_of(name), models.get(name).load()
    booster.set_param({"nthread": 1})
    rows = np.ascontiguousarray(models.get(name).rows()[:8192], np.float32)
    start = tvm_forest.new_schedule(forest).tile_nodes(8)
    in_order = tvm_forest.with_depths(start.sort_trees(), forest)
    treebeard = recipes.treebeard_tree_at_a_time(in_order)
    ours = tvm_forest.build(forest)
    theirs = tvm_forest.build(forest, schedule=treebeard, exact=False)
    right = forest.predict_reference(rows[:64]).ravel()
    assert np.array_equal(ours.predict_margin(rows[:64]).ravel(), right), f"{name}: margins differ"
    off = np.abs(theirs.predict_margin(rows[:64]).ravel() - right.astype(np.float64))
    assert (off <= theirs.tolerance(rows[:64]).ravel()).all(), f"{name}: margins differ"
    calls = {
        ONE: lambda x: ours.predict(x, n_jobs=1),
        TWO: lambda x: ours.predict(x, n_jobs=2),
        TREEBEARD: lambda x: theirs.predict(x, n_jobs=1),
        XGBOOST: booster.inplace_predict,
    }
    found = {}
    for batch in batches:
        parts = [rows[i : i + batch] for i in range(0, len(rows) - batch + 1, batch)][:512]
        times = time_in_turns(calls, parts, rounds, SECONDS)
        found[batch] = {who: 1e6 * min(x) for who, x in times.items()}
        found[batch][PLANNED] = core_plan.rows_us(name, batch, CORES, as_paper=False)
        found[batch][PLANNED_TREEBEARD] = core_plan.rows_us(name, batch, CORES, as_paper=True)
        print(f"{name} {batch}: {found[batch][ONE]:.1f} us", flush=True)
    return found


def find_crossover(cells: list[dict[str, Any]], who: str, driver: str) -> int | None:
    """Return from how many rows on the GPU is expected to be faster, None for no batch timed.

    Between two sizes of batch, times go as straight lines of logarithms.
    """
    before: tuple[float, float] | None = None
    for cell in cells:
        lead = float(np.log(cell["cpu_us"][who] / cell["gpu_us"][driver]))
        at = float(np.log(cell["batch"]))
        if lead > 0:
            if before is None:
                return int(cell["batch"])
            share = -before[1] / (lead - before[1])
            return int(np.ceil(np.exp(before[0] + share * (at - before[0]))))
        before = (at, lead)
    return None


def table_of(results: Results) -> dict[str, dict[str, list[int | None]]]:
    """Return crossovers by model and by who serves the CPU, from the least to the most driver."""
    found = {}
    for name in dict.fromkeys(cell["model"] for cell in results["cells"]):
        cells = [cell for cell in results["cells"] if cell["model"] == name]
        found[name] = {
            who: [find_crossover(cells, who, driver) for driver in DRIVER_US]
            for who in cells[0]["cpu_us"]
        }
    return found


def tables(results: Results) -> str:
    """Return from how many rows on the GPU is faster."""
    if "from_rows" in results:
        rows = [
            [x["model"], x["batch"], f"{x['gpu_us']:.1f}", f"{x['cpu_us']:.1f}"]
            for x in results["calls"]
        ]
        said = report.table(["model", "rows", "GPU, us a call", "CPU, us a call"], rows)
        lines = [[m, "never" if n is None else n] for m, n in results["from_rows"].items()]
        return report.table(["model", "faster on the GPU from rows"], lines) + "\n\n" + said
    found = table_of(results)
    who = list(next(iter(found.values())))
    lines = [[name, *(words_of(row[x]) for x in who)] for name, row in found.items()]
    return (
        "Rows from which on the GPU is estimated to be faster than the CPU with this code; in "
        f"brackets for {DRIVER_US['least']:g} and {DRIVER_US['most']:g} us of the driver:\n\n"
        + report.table(["model", *who], lines)
    )


def words_of(found: list[int | None]) -> str:
    """Say a crossover and its bounds."""
    words = ["-" if n is None else f"{n:,}" for n in found]
    return f"{words[1]} ({words[0]} to {words[2]})"


def draw(results: Results, figure: Any) -> None:
    """Draw times of a call by rows, a panel for each model."""
    if "from_rows" in results:
        draw_gpu(results, figure)
        return
    names = list(dict.fromkeys(cell["model"] for cell in results["cells"]))
    for panel, name in zip(np.atleast_1d(figure.subplots(1, len(names))), names, strict=True):
        cells = [cell for cell in results["cells"] if cell["model"] == name]
        rows = [cell["batch"] for cell in cells]
        for who in cells[0]["cpu_us"]:
            panel.plot(rows, [cell["cpu_us"][who] for cell in cells], label=who)
        least, likely, most = ([x["gpu_us"][k] for x in cells] for k in DRIVER_US)
        panel.plot(rows, likely, color="black", label="GPU, estimated")
        panel.fill_between(rows, least, most, color="black", alpha=0.15)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.minorticks_off()
        panel.set_title(name)
        panel.set_xlabel("rows")
    figure.axes[0].set_ylabel("microseconds a call")
    figure.axes[0].legend(fontsize=6)


def draw_gpu(results: Results, figure: Any) -> None:
    """Draw the measured times of a call on both."""
    panel = figure.subplots()
    for k, name in enumerate(results["from_rows"]):
        cells = [x for x in results["calls"] if x["model"] == name]
        rows, color = [x["batch"] for x in cells], f"C{k}"
        panel.plot(rows, [x["gpu_us"] for x in cells], color=color, label=name)
        panel.plot(rows, [x["cpu_us"] for x in cells], "--", color=color)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.minorticks_off()
    panel.set_xlabel("rows")
    panel.set_ylabel("microseconds a call (dashed: CPU)")
    panel.legend(fontsize=7)


def says(results: Results) -> str:
    """Say where the crossover is expected, beside the paper's guess."""
    found = table_of(results)

    def likely(who: str) -> str:
        known = sorted(row[who][1] for row in found.values() if row[who][1] is not None)
        beyond = f"up to {BATCHES[-1]:,} rows"
        if not known:
            return f"never {beyond}"
        span = f"{known[0]:,}" if known[0] == known[-1] else f"{known[0]:,} to {known[-1]:,}"
        never = len(found) - len(known)
        span += " rows" if span != "1" else " row"
        return span + f" (for {never} of {len(found)} models never {beyond})" * (never > 0)

    return (
        "This is an estimate; only the CPU was measured, and `make bench-gpu` measures both. The "
        "authors expect the crossover close to 100 rows in most cases. With Treebeard's schedule "
        f"it is {likely(TREEBEARD)} on one thread here, and {likely(PLANNED_TREEBEARD)} on 16 "
        "cores, the paper's number of them, as planned without what their start takes: their "
        f"guess lies between. It moves with the CPU code: our default gives {likely(ONE)} on one "
        f"thread, {likely(TWO)} on two, and {likely(PLANNED)} on 16. Against XGBoost's "
        "`inplace_predict`, whose calls cost more than a GPU's before the first row is walked, "
        f"it is {likely(XGBOOST)}. What decides is not the kernel, which takes 1 to 5 us up to "
        f"4,096 rows, but the call: {HOST_US + DRIVER_US['likely']:.0f} us for Python, driver and "
        "launch, and the bus. Rows of 2,000 columns (epsilon) cost a core as much as they cost "
        "the bus, hence few rows there. `Crossover` takes 100 rows unless it is told another "
        "number, which is the right size for one thread and too few for many."
    )


def says_gpu(results: Results) -> str:
    """Say where the crossover was found."""
    known = [n for n in results["from_rows"].values() if n is not None]
    never = [name for name, n in results["from_rows"].items() if n is None]
    said = f"from {min(known):,} to {max(known):,} rows on" if known else "at no batch"
    more = f" Never at the batches timed: {', '.join(never)}." if never else ""
    return (
        f"Rows of the host are faster on this GPU {said}; the authors expect close to 100 rows in "
        "most cases. Only the sizes of batch in the table were timed, so the crossover lies "
        f"between the one named and the one before it.{more}"
    )


STUDY = Study(
    "crossover",
    "A CPU or a GPU",
    "Section 10.2 of SilvanForge expects a GPU to be faster than the CPU from close to 100 rows "
    "on, and suggests a parameter for it, which is `Crossover` here. The page of a GPU measures "
    "calls with rows of the host on both. Where there is no GPU, the GPU's part is estimated: "
    "the kernel of the default schedule on an H100 by [counted "
    "cycles](../benchmarks/results/gpu_cycles.md), 17 us for "
    "the Python of a call (measured with a driver that does nothing), 10 us for driver, launch "
    "and copies (assumed; 5 to 20 are drawn), and rows at 25 GB/s.",
    measure,
    tables,
    draw,
    {"cpu": says, "gpu": says_gpu},
    options,
    (13, 4),
)
