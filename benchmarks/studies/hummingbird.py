"""Hummingbird's three ways to walk by tensors beside compiled code (figures 7 and 9)."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from benchmarks.pages import report
from benchmarks.studies import Results, Study

MODELS = ("airline", "year", "abalone", "covtype")
BATCHES = (1, 32, 512, 4096)
THREADS = 1
WAYS = {"torch-gemm": "GEMM", "torch-trees": "tree traversal", "torch-perfect": "perfect trees"}
ENVIRONMENT = "@torch"
"""Ends the names of engines that another interpreter runs."""

KEPT = ("model", "batch", "threads", "engine", "us", "us_median", "code")


def options(parser: ArgumentParser) -> None:
    """Add the models, and where PyTorch is."""
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--python", help="interpreter that has torch, numpy and xgboost")


def measure(chosen: Namespace) -> Results:
    """Check and time all engines in turns, each in a process of its own."""
    if chosen.device == "gpu":
        raise SystemExit("study: on a GPU, the engine torch of `make bench-gpu` stands for this")
    from benchmarks import cpu

    ways = [f"{way}{ENVIRONMENT}" if chosen.python else way for way in WAYS]
    run = Namespace(
        engines=["ours", "xgboost", *ways],
        pythons=dict.fromkeys(ways, chosen.python) if chosen.python else {},
        threads=[THREADS],
        batches=[1, 32] if chosen.tiny else BATCHES,
        rounds=1 if chosen.tiny else 5,
        seconds=0.002 if chosen.tiny else 0.2,
        longest=1.0,
        patience=120.0,
        cache=chosen.cache,
    )
    results: dict[str, Any] = {"models": [], "engines": [], "cells": []}
    for name in ["tiny"] if chosen.tiny else chosen.models:
        cpu.measure(name, run, results)
    for record in (*results["engines"], *results["cells"]):
        record["engine"] = record["engine"].removesuffix(ENVIRONMENT)
    said = [
        {"model": x["model"], "engine": x["engine"], "said": x.get("verdicts", x.get("why"))}
        for x in results["engines"]
    ]
    cells = [{key: x[key] for key in KEPT if key in x} for x in results["cells"]]
    torch = version_of(chosen.python or sys.executable)
    return {"cells": cells, "answers": said, "torch": torch}


def version_of(python: str) -> str | None:
    """Return the version of PyTorch that an interpreter has."""
    code = "import importlib.metadata as m; print(m.version('torch'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return done.stdout.strip() or None


def tables(results: Results) -> str:
    """Return microseconds a row of each engine, and how many times as long the best way takes."""
    rows = []
    for (model, batch), us in report.times(results, THREADS).items():
        ways = [f"{us[way]:.3g}" if way in us else "-" for way in WAYS]
        best = min((us[way] for way in WAYS if way in us), default=None)
        ratio = "-" if best is None else f"{best / us['ours']:.1f}"
        rows.append([model, batch, f"{us['ours']:.3g}", *ways, f"{us['xgboost']:.3g}", ratio])
    heads = ["model", "rows", "ours, us a row", *WAYS.values(), "XGBoost", "best way / ours"]
    return report.table(heads, rows)


def best_over_ours(results: Results) -> dict[tuple[str, int], float]:
    """Return the fastest of the three ways over ours."""
    return {
        at: min(us[way] for way in WAYS if way in us) / us["ours"]
        for at, us in report.times(results, THREADS).items()
        if any(way in us for way in WAYS)
    }


def draw(results: Results, figure: Any) -> None:
    """Draw every way's time over ours, a panel for each model."""
    times = report.times(results, THREADS)
    names = list(dict.fromkeys(model for model, _ in times))
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for panel, name in zip(panels, names, strict=True):
        for way, title in (*WAYS.items(), ("xgboost", "XGBoost")):
            points = [
                (batch, us[way] / us["ours"])
                for (model, batch), us in times.items()
                if model == name and way in us
            ]
            if points:
                panel.plot(*zip(*points, strict=True), marker="o", markersize=3, label=title)
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.minorticks_off()
        panel.set_title(name)
        panel.set_xlabel("rows")
    panels[0].set_ylabel("times as long as ours, 1 thread")
    panels[0].legend(fontsize=7)


def says(results: Results) -> str:
    """Say how the three ways compare."""
    ratios, mean = best_over_ours(results), report.geometric_mean
    times = report.times(results, THREADS).values()
    gemm = [
        us["torch-gemm"] / min(us["torch-trees"], us["torch-perfect"])
        for us in times
        if len(WAYS.keys() & us.keys()) == len(WAYS)
    ]
    perfect = [
        us["torch-perfect"] / us["torch-trees"]
        for us in times
        if {"torch-trees", "torch-perfect"} <= us.keys()
    ]
    by_batch = ", ".join(
        f"{mean(x for (_, at), x in ratios.items() if at == n):.0f} at {n:,}" for n in BATCHES
    )
    return (
        f"The fastest of the three ways takes {mean(ratios.values()):.0f} times as long as the "
        f"default schedule on one thread ({by_batch} rows; geometric means). The paper has 6 to "
        "10 times for Hummingbird's torch backend on a GPU, copies included, and 2.5 to 3 for "
        "its TVM backend. It is slower than compiled walks here as well, by more, since tensors "
        "write all walks to memory after each hop, which a GPU's bandwidth forgives and a core's "
        "does not, and since our code for many rows is bit planes. For single rows it is the "
        "calls of PyTorch's operations, several for each hop, that take the time. Among the "
        f"ways, matrix products take {mean(gemm):.0f} times as long as the better traversal: they "
        "ask all tests of a tree, 255 where a walk asks 8. Complete trees take "
        f"{mean(perfect):.2f} times as long as trees with the numbers of children, which is why "
        "Hummingbird takes them for trees of up to 10 levels. Answers of all three are close to "
        "XGBoost's, not equal: PyTorch adds trees in an order of its own. The package itself "
        "(hummingbird-ml 0.4.12) could not be timed beside the same models: it fails at the base "
        "score of regressors of XGBoost 3.2, and leaves out that of classifiers. Torch "
        f"{results['torch']}."
    )


STUDY = Study(
    "hummingbird",
    "Hummingbird's three ways on a CPU",
    "Hummingbird turns a forest into tensor operations: matrix products (GEMM), tree traversal, "
    "or traversal of complete trees. SilvanForge's figures 7 and 9 have it on a GPU: 6 to 10 "
    "times as long with the torch backend, 4 to 8 with TorchScript, 2.5 to 3 with TVM. Here the "
    "three are written in PyTorch (`benchmarks/engines/tensor_forests.py`) and called with numpy "
    'rows, each in a process of its own. "-" stands for calls of more than a second at a smaller '
    "batch. PyTorch is in no extra of the benchmark, being large: `pip install torch`, or "
    "`--python` names an interpreter that has it.",
    measure,
    tables,
    draw,
    {"cpu": says},
    options,
    (12, 3.5),
)
