"""What the best schedules choose, and how the times of a space are distributed.

takes: models, real and random, or results of `gpu.speed`; gives: the best point of each search,
times of a sample of its space.
"""

from __future__ import annotations

import json
import tempfile
from argparse import ArgumentParser, Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
from benchmarks import models
from benchmarks.gpu import report as gpu_report
from benchmarks.pages import report
from benchmarks.studies import Results, Study
from benchmarks.studies.shapes import PAPER
from tvm_forest.search import measuring as tuning
from tvm_forest.search.heuristic import find_spaces
from tvm_forest.search.space import Point
from tvm_forest.target import Target

RANDOM = (
    *("random-100-8-6-0", "random-100-512-8-0", "random-400-64-7-0"),
    *("random-1000-8-8-0", "random-1000-64-6-0", "random-1000-512-7-0"),
)
BATCH, SECONDS = 512, 6.0
NEAR = (1.1, 1.5, 2.0)
"""Times of the best within which points are counted."""
GPU_FIELDS = ("layout", "rows of a block", "rows of a thread", "tree threads", "interleave")
"""Of the names of candidates in `gpu/folder.py`: "template packed 32 1 10 4"."""


def options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--models", nargs="+", help="real ones, and random-TREES-FEATURES-DEPTH-SEED")
    add("--batches", nargs="+", type=int, default=[BATCH])
    add("--seconds", type=float, default=SECONDS, help="of each of two searches of a batch")


def measure(chosen: Namespace) -> Results:
    """Search guided by prices, then measure points at random; or read what a GPU found."""
    if chosen.device == "gpu":
        return _read(chosen)
    names = chosen.models or (["tiny"] if chosen.tiny else [*PAPER, *RANDOM])
    limits = {"budget_s": 60.0, "trials": 2} if chosen.tiny else {"budget_s": chosen.seconds}
    cells = []
    for name in filter(models.at_hand, names):
        for batch in chosen.batches:
            cells.append(_search(name, batch, limits, chosen))
            print(f"{name} {batch}: {cells[-1]['tried']} points tried", flush=True)
    return {"cells": cells}


def _search(name: str, batch: int, limits: dict[str, Any], chosen: Namespace) -> dict[str, Any]:
    model = models.get(name, chosen.cache)
    forest, rows = tvm_forest.load(model.path), model.rows()
    space = find_spaces(forest, Target(), [batch], n_jobs=1)[batch]
    points = {sch: point for point, sch in space.points().items()}
    times: dict[Point, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for strategy in ("heuristic", "exhaustive"):
            path = Path(folder) / f"{strategy}.jsonl"
            words = (forest, Target(), [batch], rows, strategy)
            kept = {"records": path, "n_jobs": 1, "seed": 1, "progress": False}
            found = tuning.tune(*words, **kept, **limits)
            for record in found.records:
                if record.seconds is not None and record.schedule in points:
                    point = points[record.schedule]
                    times[point] = min(record.seconds, times.get(point, np.inf))
    best = min(times, key=times.__getitem__)
    return {
        "model": name,
        "batch": batch,
        "points": len(points),
        "tried": len(times),
        "us": 1e6 * times[best] / batch,
        "best": describe(best),
        "ratios": sorted(round(x / times[best], 3) for x in times.values()),
        "layouts": _least_by_layout(times),
    }


def describe(point: Point) -> dict[str, str]:
    """Return the choices of a point in words."""
    together = str(point.walks) if isinstance(point.walks, str) else f"{point.walks} {point.order}"
    hops = {"loop": "a loop", "peel": "first ones peeled"}[point.hops]
    return {
        "layout": point.layout,
        "nodes of a tile": str(point.tile),
        "rows of a block": str(point.block or "all"),
        "interleave": together,
        "hops": "none" if isinstance(point.walks, str) and point.walks == "bits" else hops,
        "cache": point.cache or "none",
        "reduction": "in order",
    }


def _least_by_layout(times: dict[Point, float]) -> dict[str, float]:
    least = min(times.values())
    found: dict[str, float] = {}
    for point, seconds in times.items():
        found[point.layout] = min(round(seconds / least, 3), found.get(point.layout, np.inf))
    return found


def _read(chosen: Namespace) -> Results:
    given = json.loads(chosen.results.read_text(encoding="utf-8"))
    cells = []
    for cell in given["cells"]:
        begin, key = gpu_report.OURS, "kernel_us"
        engines = cell.get("engines", {}).items()
        times = {
            x.removeprefix(begin): y[key] for x, y in engines if x.startswith(begin) and key in y
        }
        if not times:
            continue
        best = min(times, key=times.__getitem__)
        least: dict[str, float] = {}
        for name, us in times.items():
            layout = read_name(name).get("layout", name)
            least[layout] = min(us / times[best], least.get(layout, np.inf))
        cells.append(
            {
                "model": cell["model"],
                "batch": cell["batch"],
                "points": len(times),
                "tried": len(times),
                "us": times[best] / cell["batch"],
                "best": {"schedule": best.split(" ")[0], **read_name(best)},
                "ratios": sorted(round(x / times[best], 3) for x in times.values()),
                "layouts": least,
            }
        )
    return {
        "about": {"machine": given["about"]["gpu"], "date": given["about"]["date"]},
        "cells": cells,
    }


def read_name(name: str) -> dict[str, str]:
    """Return what the name of a candidate says of its choices."""
    recipe, *words = name.split(" ")
    if recipe == "template":
        return dict(zip(GPU_FIELDS, words, strict=True))
    known = [word for word in words if word not in ("data", "forest", "shared", "partial")]
    return {"layout": known[-1]} if known else {}


def tables(results: Results) -> str:
    """Return how often the best choose what, the best of each model, and how many come near."""
    cells = results["cells"]
    counts: dict[str, Counter[str]] = {}
    for cell in cells:
        for what, value in cell["best"].items():
            counts.setdefault(what, Counter())[value] += 1
    shares = [
        [what, ", ".join(f"{value}: {n}" for value, n in found.most_common())]
        for what, found in counts.items()
    ]
    fields = list(counts)
    lines = []
    for cell in cells:
        near = [sum(x <= most for x in cell["ratios"]) / len(cell["ratios"]) for most in NEAR]
        half = float(np.median(cell["ratios"]))
        begin = [
            cell["model"],
            cell["batch"],
            f"{cell['us']:.3g}",
            f"{cell['tried']} of {cell['points']}",
        ]
        best = [cell["best"].get(what, "-") for what in fields]
        lines.append([*begin, *(f"{x:.0%}" for x in near), f"{half:.2f}", *best])
    heads = ["model", "batch", "best, us a row", "points tried"]
    heads += [*(f"within {x:g}x" for x in NEAR), "median / best", *fields]
    return "\n\n".join(
        [
            f"What the best schedules of {len(cells)} searches choose, and how many do:",
            report.table(["choice", "schedules"], shares),
            "Each search: points within 1.1, 1.5 and 2 times the best, and the best point.",
            report.table(heads, lines),
        ]
    )


def draw(results: Results, figure: Any) -> None:
    """Draw the distribution of normalised times, and the least of each layout (figure 5)."""
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.3])
    for cell in results["cells"]:
        ratios = cell["ratios"]
        style = "--" if cell["model"].startswith(models.RANDOM) else "-"
        share = np.arange(1, len(ratios) + 1) / len(ratios)
        left.step(ratios, share, style, where="post", linewidth=1)
    left.set(xscale="log", xlabel="time / best of the model", ylabel="share of the points tried")
    left.set_title("each line a search; dashed: random models")
    left.xaxis.set_major_formatter("{x:g}")
    layouts = sorted({x for cell in results["cells"] for x in cell["layouts"]})
    found = [[cell["layouts"].get(x, np.nan) for x in layouts] for cell in results["cells"]]
    image = right.imshow(np.array(found, float), vmin=1, vmax=5, cmap="viridis_r", aspect="auto")
    right.set_xticks(range(len(layouts)), layouts, rotation=60, ha="right")
    right.set_yticks(range(len(found)), [x["model"] for x in results["cells"]])
    figure.colorbar(image, ax=right, label="least time of the layout / best")


def says(results: Results) -> str:
    """Return what agrees with the paper."""
    cells = results["cells"]
    near = [sum(x <= NEAR[0] for x in cell["ratios"]) / len(cell["ratios"]) for cell in cells]
    half = [float(np.median(cell["ratios"])) for cell in cells]
    planes = [cell for cell in cells if cell["best"]["layout"] == "bitsliced"]
    others = {cell["best"]["layout"] for cell in cells} - {"bitsliced"}
    return f"""\
Figure 5 holds: {np.mean(near):.0%} of the points come within a tenth of the best, and half of
them take more than {report.geometric_mean(half):.1f} times as long (a part of each sample was
chosen for its price, so the space as a whole is worse still). What wins is another matter. In the
paper `array` is best for 60 % of the models; here bit planes are best for {len(planes)} of
{len(cells)} at 512 rows, and {" or ".join(f"`{x}`" for x in sorted(others))} where random trees
have too many distinct tests for them. The right plot shows what each layout of nodes would cost:
among these none serves all, as the paper says. Rows of a block are as many as there are, or 64 to
256, so that what is read of a tree serves many rows; hops are unrolled where walks go hop by hop.
The reduction is no choice here: a point must add trees in the order of the model, so that its
sums are those of the training library; [the constructs](#what-each-construct-is-worth) compare
reductions."""


SAYS_GPU = """\
Candidates of the benchmark's folder: points of the paper's template, the schedules of other
systems, and our defaults."""

STUDY = Study(
    name="choices",
    title="What the best schedules choose",
    shows="""\
Figure 5 of SilvanForge shows how the times of all schedules of its space are distributed: few
are near the best. Section 9.1 says what the best choose on an RTX 4060: `array` 60 %, `sparse`
30 %, `reorg` 10 %. Here: for each model a search guided by prices, and then points drawn at
random, on one thread.""",
    measure=measure,
    tables=tables,
    draw=draw,
    says={"cpu": says, "gpu": SAYS_GPU},
    options=options,
    size=(11, 4.6),
)
