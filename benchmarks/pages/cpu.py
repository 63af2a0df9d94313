"""Put the figures of `cpu.py` into docs: a page for each vendor of CPUs, one of them in README.md.

    python -m benchmarks pages.cpu build/cpu/results.json [MORE ...]

Several files are runs for different models, one after the other on the same machine; of a model
that is in several, the last one counts; `--only` leaves tables that another run has written, and
`--page` names another page than that of the vendor. A table stands between
`<!-- figures: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import ROOT, models
from benchmarks.pages import report
from tvm_forest.target import cpu_vendor

PAGES = {
    "AuthenticAMD": ("docs/cpu.md", True),
    "GenuineIntel": ("benchmarks/results/cpu_intel.md", False),
}
"""By vendor, and whether its figures are those of README.md."""

SHOWN = {
    "airline": ("airline, 100 trees of depth 8, 13 features", (1, 32, 4096)),
    "year": ("year, 100 trees of depth 0 to 8, 90 features", (1, 4096)),
    "epsilon": ("epsilon, 100 trees of depth 8, 2,000 features", (1, 4096)),
    "letters": ("letters, 26 x 1,000 trees, 16 features", (1, 32, 4096)),
}
"""Models and batches of README.md, and what it says of each."""


def merged(files: list[Path]) -> dict[str, Any]:
    """Return the results of several runs as one."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    last = {model["name"]: k for k, run in enumerate(runs) for model in run["models"]}

    def kept(what: str, key: str) -> list[Any]:
        found = [x for k, run in enumerate(runs) for x in run[what] if last[x[key]] == k]
        return sorted(found, key=lambda x: models.NAMES.index(x[key]))

    lists = {"models": kept("models", "name"), "engines": kept("engines", "model")}
    return {**runs[0], **lists, "cells": kept("cells", "model")}


def beside_each_other(results: dict[str, Any], threads: int) -> str:
    """Return a table with a line for each model: ours, and the ratio to the best peer."""
    us, best = report.times(results, threads), report.ratios(results, threads, "ours", "best")
    batches = sorted({batch for _, batch in us})
    rows = [
        [name, *(f"{us[name, b]['ours']:.3g} ({best[name, b]:.2g})" for b in batches)]
        for name in dict.fromkeys(model for model, _ in us)
    ]
    return report.table(["model", *(f"{batch:,}" for batch in batches)], rows)


def few(results: dict[str, Any]) -> str:
    """Return the table of README.md."""
    us, wrong = report.times(results, 1), report.wrong_engines(results)
    rows = []
    for name, (said, batches) in SHOWN.items():
        for batch in batches:
            times = us[name, batch]
            best = report.best_peer(times, {engine for of, engine in wrong if of == name}) or ""
            mine, other, xgb = times["ours"], times[best], times["xgboost"]
            shown = [_short(mine), f"{best} {_short(other)}", f"{other / mine:.3g} x"]
            line = [f"{batch:,}", *shown, _short(xgb), f"{xgb / mine:.3g} x"]
            rows.append([said if batch == batches[0] else "", *line])
    return report.table(["model", "batch", "tvm_forest", "best other", "", "XGBoost", ""], rows)


def _short(us: float) -> str:
    return f"{us:,.0f}" if us >= 100 else f"{us:.3g}"


def page_of(pages: dict[str, Any]) -> Any:
    """Return what is named for the vendor of this CPU."""
    if cpu_vendor() not in pages:
        raise SystemExit(f"no page for CPUs of {cpu_vendor()!r} (have: {', '.join(pages)})")
    return pages[cpu_vendor()]


def write(path: Path, tables: dict[str, str]) -> None:
    """Put tables into a page."""
    text = path.read_text(encoding="utf-8")
    for name, table in tables.items():
        mark = re.compile(rf"(<!-- figures: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = mark.subn(lambda m, table=table: f"{m[1]}{table}\n{m[2]}", text)
        if count != 1:
            raise SystemExit(f"{path}: {count} places for '{name}', there must be one")
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Read results, write pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path, help="results.json of one run or several")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="tables to write")
    parser.add_argument("--page", help="another page, such as benchmarks/results/cpu_avx2.md")
    chosen = parser.parse_args()
    results = merged(chosen.results)
    page, is_shown = (chosen.page, False) if chosen.page else page_of(PAGES)
    tables: dict[str, Callable[[], str]] = {
        "one thread": lambda: report.ours_and_best(results, 1, "ours"),
        "means on one thread": lambda: report.means(results, 1),
        "two threads": lambda: beside_each_other(results, 2),
        "means on two threads": lambda: report.means(results, 2),
    }
    if any(report.is_look_alike(cell["engine"]) for cell in results["cells"]):
        tables["equal shapes"] = lambda: report.equal_shapes(results, 1)
        tables["means of equal shapes"] = lambda: report.shape_means(results, 1)
    only = chosen.only or tables
    write(ROOT / page, {name: tables[name]() for name in only})
    if is_shown and not chosen.only:
        write(ROOT / "README.md", {"few": few(results)})
