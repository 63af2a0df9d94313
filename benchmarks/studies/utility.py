"""What is lost when a construct of the language is taken away.

takes: models, or results of `gpu.speed`; gives: time of the best schedule without it over that of
the best.
"""

from __future__ import annotations

import functools
import itertools
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

import tvm_forest
from benchmarks import models
from benchmarks.checks import compare
from benchmarks.pages import report
from benchmarks.studies import Results, Study
from benchmarks.studies.choices import describe
from benchmarks.studies.shapes import PAPER
from benchmarks.timing import time_in_turns
from tvm_forest.errors import ForestError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.schedule_prims import Schedule
from tvm_forest.search.heuristic import price_points
from tvm_forest.search.space import VECTORS, Point, inner_loops
from tvm_forest.search.workload import Workload
from tvm_forest.target import parse_target

BATCH = 512
TRIED, WITHOUT, TURNS = 3, 2, 4
"""Cheapest points among which the best is looked for, and among those that lack a construct; and
times that this is done."""
ALL, SCALAR = "all", "papers"
"""Spaces: ours, and what the papers' language can say: walks hop by hop, in layouts of nodes."""
HIGHEST, DARK = 4.0, 2.2
"""Of the colours of the plot, and from where on they are dark."""
THREADS, SMALL, TOGETHER = 2, 64, 8
"""Threads and rows of the comparison of reductions, and rows that walk together."""


class Construct(NamedTuple):
    """What can be taken away.

    Attributes:
        name: of the table.
        uses: whether a point has it.
    """

    name: str
    uses: Callable[[Point], bool]


INTERLEAVE = Construct("interleaved walks", lambda p: not isinstance(p.walks, str) and p.walks > 1)
CONSTRUCTS = (
    INTERLEAVE,
    Construct("bit slicing", lambda p: p.walks == "bits"),
    Construct("walks in vectors: permutes, octets", lambda p: p.walks in ("permute", "octets")),
    Construct("rows in vector lanes", lambda p: p.walks == "gather"),
    Construct("blocks of rows", lambda p: p.block > 0),
    Construct("tiled nodes", lambda p: p.tile > 1),
    Construct("unrolled or peeled hops", lambda p: p.hops != "loop"),
    Construct("trees fetched ahead", lambda p: bool(p.cache)),
)
LAYOUT = "layout {}"

ORDERED = "terms added in the order of trees"
REDUCTIONS: dict[str, Callable[[Schedule], Schedule]] = {
    "private sums, added in vectors": lambda sch: sch.vector_reduce("t0", 8),
    "private sums, added one by one": lambda sch: sch,
    "atomic additions": lambda sch: sch.atomic_reduce("t0"),
    ORDERED: lambda sch: sch.ordered_reduce("t0"),
}
"""Ways to add up what trees give that run at the same time, and how to ask for them."""


def options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--models", nargs="+", help="real ones, and random-TREES-FEATURES-DEPTH-SEED"
    )
    parser.add_argument("--batch", type=int, default=BATCH)


class Bench:
    """One model whose schedules are built, compared with the library, and timed in turns."""

    def __init__(self, name: str, chosen: Namespace, batch: int, threads: int = 1) -> None:
        model = models.get(name, chosen.cache)
        self.forest = tvm_forest.load(model.path)
        self.batch, self.threads = batch, threads
        rows = model.rows()[: 16 * batch]
        self.batches = np.split(rows[: len(rows) // batch * batch], len(rows) // batch)
        wild = hard_rows(self.forest, 99)
        self.checked = np.concatenate([self.batches[0], np.where(np.isinf(wild), 0, wild)])
        self.expected = model.reference(self.checked)[0]
        self.rounds, self.seconds = (1, 0.001) if chosen.tiny else (9, 0.02)
        self.build = functools.cache(self._build)

    def _build(self, sch: Schedule) -> Callable[[Any], Any] | None:
        """Return what predicts margins; None if the schedule is refused.

        Raises:
            SystemExit: the margins are not those of the library.
        """
        try:
            exact = sch.keeps_order
            built = tvm_forest.build(self.forest, "llvm", sch, exact=exact, n_jobs=self.threads)
            said = compare(built.predict_margin(self.checked), self.expected)
        except ForestError:
            return None
        if said["wrong"] or (exact and said["equal"] < said["rows"]):
            raise SystemExit(f"utility: {self.forest.source}: {said}\n{sch}")
        return built.predict_margin

    def time(self, schedules: dict[Any, Schedule]) -> dict[Any, list[float]]:
        """Return seconds of a call by round; what is refused is left out."""
        built = {name: self.build(sch) for name, sch in schedules.items()}
        calls = {name: call for name, call in built.items() if call is not None}
        return time_in_turns(calls, self.batches, self.rounds, self.seconds)


def measure(chosen: Namespace) -> Results:
    """Take each construct away from the space, and time what is then the best."""
    if chosen.device == "gpu":
        raise SystemExit("utility: the study of choices has the least time of each layout of a GPU")
    names = chosen.models or (("tiny",) if chosen.tiny else PAPER)
    found: Results = {"cells": [], "reductions": []}
    for name in filter(models.at_hand, names):
        bench = Bench(name, chosen, chosen.batch)
        points = _priced(bench)
        for space in (ALL, SCALAR):
            own = [x for x in points if space == ALL or is_scalar(x[0])]
            found["cells"].append({"model": name, "space": space, **_losses(bench, own)})
        found["reductions"].append({"model": name, "ratios": _reductions(name, chosen)})
        print(f"{name}: {found['cells'][-2:]}", flush=True)
    return {"about": {"batch": chosen.batch}, **found}


def is_scalar(point: Point) -> bool:
    """Whether the papers' language can say it, but for the layout's name."""
    return not isinstance(point.walks, str) and point.layout not in VECTORS


def _priced(bench: Bench) -> list[tuple[Point, Schedule]]:
    work = Workload.of(bench.forest, parse_target("llvm"))
    return [(point, sch) for _, point, sch in price_points(work, bench.batch)]


def _losses(bench: Bench, points: list[tuple[Point, Schedule]]) -> dict[str, Any]:
    """Time the cheapest points, and the cheapest that lack what the best of them uses.

    If one of these is the fastest after all, what it uses is taken away in its turn.
    """
    tried, best = _take(points, TRIED), points[0][0]
    for turn in range(TURNS):
        rounds = bench.time(tried)
        if turn < TURNS - 1:  # the last turn is there for what the one before asked for
            best = min(rounds, key=lambda p: np.median(rounds[p]))
        used = _used(best)
        lacking = [p for x in used for p in _lacking(points, x, best, tried[best]).items()]
        if tried.keys() >= dict(lacking).keys():
            break
        tried |= lacking
    losses = {}
    for x in used:
        ratios = [_ratio(rounds[p], rounds[best]) for p in rounds if not x.uses(p)]
        if ratios:
            losses[x.name] = min(ratios)
    us = 1e6 * float(np.median(rounds[best])) / bench.batch
    return {"us": us, "best": describe(best), "losses": losses}


def _used(best: Point) -> list[Construct]:
    layout = Construct(LAYOUT.format(best.layout), lambda p: p.layout == best.layout)
    return [*(x for x in CONSTRUCTS if x.uses(best)), layout]


def _lacking(
    points: list[tuple[Point, Schedule]], lost: Construct, best: Point, sch: Schedule
) -> dict[Point, Schedule]:
    """Return the cheapest points without a construct; of the space, all scalar ones interleave."""
    found = _take(((p, x) for p, x in points if not lost.uses(p)), WITHOUT)
    if lost is INTERLEAVE:
        found[best._replace(walks=1)] = sch.without("interleave")
    return found


def _take(points: Iterable[tuple[Point, Schedule]], count: int) -> dict[Point, Schedule]:
    return dict(itertools.islice(points, count))


def _ratio(ours: list[float], best: list[float]) -> float:
    """Return the ratio of the medians of rounds."""
    return float(np.median(ours) / np.median(best))


def _reductions(name: str, chosen: Namespace) -> dict[str, float]:
    """Time ways to add up, where two threads share the trees of few rows."""
    bench = Bench(name, chosen, SMALL, THREADS)
    sch = tvm_forest.new_schedule(bench.forest).represent_as("packed")
    classes = inner_loops(sch)[:-1]
    sch = sch.tile("tree", "t0", "t1", parts=THREADS).reorder("t0", *classes, "t1", "batch")
    sch = sch.interleave("batch", TOGETHER).parallel("t0")
    rounds = bench.time({how: ask(sch) for how, ask in REDUCTIONS.items()})
    best = min(rounds, key=lambda how: np.median(rounds[how]))
    return {how: _ratio(x, rounds[best]) for how, x in rounds.items()}


def _names(results: Results, space: str) -> list[str]:
    cells = (x for x in results["cells"] if x["space"] == space)
    return list(dict.fromkeys(name for x in cells for name in x["losses"]))


def _lines(results: Results, space: str) -> Iterator[list[str]]:
    cells = [x for x in results["cells"] if x["space"] == space]
    for name in _names(results, space):
        losses = [x["losses"].get(name) for x in cells]
        mean = report.geometric_mean(1.0 if x is None else max(1.0, x) for x in losses)
        yield [name, *("." if x is None else f"{x:.2f}" for x in losses), f"{mean:.2f}"]


def _line_of_papers(results: Results, cells: list[dict[str, Any]]) -> list[str]:
    """Return what is lost if the papers' language is all that there is."""
    scalar = {x["model"]: x["us"] for x in results["cells"] if x["space"] == SCALAR}
    losses = [scalar[x["model"]] / x["us"] for x in cells]
    mean = report.geometric_mean(losses)
    return ["all but the papers' language", *(f"{x:.2f}" for x in losses), f"{mean:.2f}"]


def tables(results: Results) -> str:
    """Return losses in both spaces, and the times of the reductions."""
    names = list(dict.fromkeys(x["model"] for x in results["cells"]))
    heads, parts = ["without", *names, "mean"], []
    for space, said in (
        (ALL, "**The whole space.** Time of the best schedule without a construct over the best:"),
        (SCALAR, "**The papers' language**: walks hop by hop, no bit planes, no walks in vectors:"),
    ):
        cells = [x for x in results["cells"] if x["space"] == space]
        best = [f"{x['us']:.3g}" for x in cells]
        rows = [["best, us a row", *best, ""], *_lines(results, space)]
        if space == ALL:
            rows.append(_line_of_papers(results, cells))
        parts += [said, report.table(heads, rows)]
    ways = {how for x in results["reductions"] for how in x["ratios"]}
    rows = [
        [
            how,
            *(
                f"{x['ratios'][how]:.2f}" if how in x["ratios"] else "-"
                for x in results["reductions"]
            ),
        ]
        for how in REDUCTIONS
        if how in ways
    ]
    said = f"**Reductions.** {THREADS} threads share the trees of {SMALL} rows; over the fastest:"
    note = "A point: the best schedule does not use the construct; in the mean it counts as 1."
    return "\n\n".join([*parts, note, said, report.table(["way to add up", *names], rows)])


def draw(results: Results, figure: Any) -> None:
    """Draw a map of losses for each space."""
    panels = figure.subplots(1, 2)
    for panel, space in zip(panels, (ALL, SCALAR), strict=True):
        cells = [x for x in results["cells"] if x["space"] == space]
        names = _names(results, space)
        found = np.array([[x["losses"].get(name, np.nan) for x in cells] for name in names], float)
        image = panel.imshow(found, vmin=1, vmax=HIGHEST, cmap="viridis_r", aspect="auto")
        panel.set_xticks(range(len(cells)), [x["model"] for x in cells], rotation=60, ha="right")
        panel.set_yticks(range(len(names)), names)
        panel.set_title({ALL: "the whole space", SCALAR: "the papers' language"}[space])
        for i, j in np.argwhere(~np.isnan(found)):
            color = "white" if found[i, j] > DARK else "black"
            panel.text(j, i, f"{found[i, j]:.2g}", ha="center", va="center", color=color)
    figure.colorbar(image, ax=panels, label="time without / best")


def _mean(results: Results, space: str, name: str) -> float:
    losses = [x["losses"].get(name, 1.0) for x in results["cells"] if x["space"] == space]
    return report.geometric_mean(max(1.0, x) for x in losses)


def says(results: Results) -> str:
    """Return what agrees with the paper."""
    mean = functools.partial(_mean, results, SCALAR)
    cells = [x for x in results["cells"] if x["space"] == ALL]
    ordered = max(x["ratios"].get(ORDERED, 1.0) for x in results["reductions"])
    planes, hops = _mean(results, ALL, "bit slicing"), _line_of_papers(results, cells)[-1]
    return f"""\
In the papers' language every construct earns its place, as SilvanForge says: without interleaving
schedules take {mean(INTERLEAVE.name):.2f} times as long on average, without blocks of rows
{mean("blocks of rows"):.2f}, without unrolled or peeled hops
{mean("unrolled or peeled hops"):.2f}, without tiled nodes {mean("tiled nodes"):.2f}; and no
layout serves all models. The cache of trees, which on a CPU is a fetch ahead, is in none of the
best at this batch: trees in blocks of rows stay in the caches by themselves. The paper has gains
of up to 1.5 from its cache of rows, which is shared memory, and a CPU has no such thing. What the
papers do not have is worth more than all of that: without bit planes (which need blocks, and are
a layout, so these three lines are nearly one) schedules take {planes:.1f} times as long, and with
the papers' language alone {hops} times. Of the reductions, private sums win nearly everywhere,
and vectors add little to them with two threads, since few sums are to be joined; atomic additions
lose on a CPU, as the paper's choice of private copies suggests. To keep the order of trees, which
makes sums equal to the bit, takes at most {ordered:.2f} times as long as the fastest way."""


STUDY = Study(
    name="utility",
    title="What each construct is worth",
    shows="""\
SilvanForge (section 9.1, "Utility of Schedule Constructs") prints that all three layouts are
needed, that shared reduction gives 1.5 times on `letters` and `covtype`, and a cache of rows up
to 1.5 times, on an RTX 4060. Here: a construct is taken away from the space, and the cheapest
schedules that are left are timed beside the best, at 512 rows on one thread; and ways to add up
are compared where two threads share the trees.""",
    measure=measure,
    tables=tables,
    draw=draw,
    says={"cpu": says},
    options=options,
    size=(11, 4.4),
)
