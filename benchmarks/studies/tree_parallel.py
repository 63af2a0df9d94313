"""Trees or rows shared out to threads, for small batches (section 9.4 of SilvanForge)."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

import numpy as np

from benchmarks import models
from benchmarks.pages import report
from benchmarks.studies import Results, Study
from benchmarks.timing import time_in_turns
from benchmarks.tuning.searches import forest_of

MODELS = ("abalone", "airline", "airline_ohe", "covtype", "epsilon", "higgs", "year")
BATCHES = (32, 64)
CORES = (1, 2, 4, 8, 16, 32, 64)
ROUNDS, SECONDS = 150, 0.002
THREADS = 2
LINE_NS, SLOW_LINE_NS = 15.0, 60.0
"""For a cache line of sums that another core has written, if four are fetched at a time, and if
each is waited for; assumed."""

ROWS, TREES, BOTH, ONE = "rows", "trees", "rows and trees", "one thread"
ORDERED, DEFAULT = "trees, in order", "default"


TIMED, AS_PAPER, ANY = "timed shares", "priced shares", "priced, any schedule"
PLANS = ((TIMED, LINE_NS), (TIMED, SLOW_LINE_NS), (AS_PAPER, LINE_NS), (ANY, LINE_NS))
"""What is planned: where the times of shares come from, and what a line of sums takes."""


def options(parser: ArgumentParser) -> None:
    """Add the models."""
    parser.add_argument("--models", nargs="+", default=list(MODELS))


def schedules(forest: Any) -> dict[str, Any]:
    """Return what is compared: tiles of 8 nodes, 8 rows together, one way of sharing each."""
    import tvm_forest
    from tvm_forest.schedule_prims import recipes

    start = tvm_forest.new_schedule(forest).tile_nodes(8)
    in_order = tvm_forest.with_depths(start.sort_trees(), forest)
    trees = recipes.tree_parallel(start, THREADS)
    kept = trees_in_order(start)
    return {
        ROWS: recipes.treebeard_tree_at_a_time(in_order, THREADS),
        TREES: trees.interleave("batch", 8),
        BOTH: recipes.row_and_tree_parallel(start, 1, THREADS).interleave("b1", 8),
        **({ORDERED: kept} if kept is not None else {}),
        DEFAULT: tvm_forest.default_schedules(forest),
    }


def trees_in_order(start: Any) -> Any:
    """Share trees out, and add their leaves in the order of the model; None if that is refused."""
    from tvm_forest.errors import ScheduleError

    try:
        sch = start.tile("tree", "t0", "t1", parts=THREADS)
        order = ("t0", "class", "t1", "batch") if start.round_size > 1 else ("t0", "t1", "batch")
        return sch.reorder(*order).parallel("t0").ordered_reduce("t0").interleave("batch", 8)
    except ScheduleError:
        return None


def measure(chosen: Namespace) -> Results:
    """Time two threads here, what a helper costs, and price more cores."""
    if chosen.device == "gpu":
        raise SystemExit("study: tree_parallel is about threads of a CPU")
    names = ["tiny"] if chosen.tiny else chosen.models
    batches = BATCHES[:1] if chosen.tiny else BATCHES
    rounds = 1 if chosen.tiny else ROUNDS
    cells = [cell for name in names for cell in time_model(name, batches, rounds)]
    plans = [
        {"model": name, "batch": batch, "how": how, **shares}
        for name in names
        for batch in batches
        for how, shares in plan(name, batch, rounds).items()
    ]
    return {"cells": cells, "plans": plans, "helper_us": helper_us(rounds)}


def plan(name: str, batch: int, rounds: int) -> dict[str, Any]:
    """Return the largest shares of rows and trees by the number of cores."""
    from benchmarks.studies import core_plan

    print(f"{name} {batch}: shares", flush=True)
    return {
        TIMED: core_plan.timed(name, batch, CORES, rounds, SECONDS),
        AS_PAPER: core_plan.priced(name, batch, CORES, as_paper=True),
        ANY: core_plan.priced(name, batch, CORES, as_paper=False),
    }


def time_model(name: str, batches: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    """Build every schedule, compare its margins, and time them in turns on two threads.

    Both cores have to be free for a call of two threads, and others use them, too: the least mean
    of a turn counts, not the median.
    """
    import tvm_forest

    rows, forest = models.get(name).rows(), forest_of(name)
    rows = np.ascontiguousarray(rows[:8192], forest.row_dtype)
    built = {
        way: tvm_forest.build(forest, schedule=sch, exact=False)
        for way, sch in schedules(forest).items()
    }
    for way, predictor in built.items():
        check(f"{name}, {way}", predictor, forest, rows[:64])
    calls = {
        way: lambda x, f=predictor.predict_margin: f(x, n_jobs=THREADS)
        for way, predictor in built.items()
    }
    one = built[ROWS].predict_margin
    calls[ONE] = lambda x: one(x, n_jobs=1)
    cells = []
    for batch in batches:
        parts = [rows[i : i + batch] for i in range(0, len(rows) - batch + 1, batch)]
        times = time_in_turns(calls, parts, rounds, SECONDS)
        us = {way: 1e6 * min(x) for way, x in times.items()}
        over = {way: us[ROWS] / x for way, x in us.items()}
        cells.append({"model": name, "batch": batch, "us": us, "rows_over": over})
        print(f"{name} {batch}: rows / trees {over[TREES]:.2f}", flush=True)
    return cells


def check(what: str, predictor: Any, forest: Any, rows: Any) -> None:
    """Compare with the reference walk, within the bound for sums in another order."""
    right = forest.predict_reference(rows).reshape(len(rows), -1).astype(np.float64)
    bound = predictor.tolerance(rows)
    for threads in (1, THREADS):
        margin = predictor.predict_margin(rows, n_jobs=threads).reshape(len(rows), -1)
        assert (np.abs(margin - right) <= bound).all(), f"{what}: margins differ"


def helper_us(rounds: int) -> float:
    """Return the microseconds that a second thread adds to a call that has nothing to do."""
    import tvm_forest
    from tvm_forest.forest.rewrites.ordering import take_trees
    from tvm_forest.schedule_prims import recipes

    forest = take_trees(forest_of("tiny"), np.arange(2))
    sch = recipes.tree_parallel(tvm_forest.new_schedule(forest), THREADS)
    predict = tvm_forest.build(forest, schedule=sch, exact=False).predict_margin
    calls = {n: lambda x, n=n: predict(x, n_jobs=n) for n in (1, THREADS)}
    rows = np.ascontiguousarray(models.get("tiny").rows()[:2048], np.float32)
    parts = [rows[i : i + 32] for i in range(0, len(rows), 32)]
    times = time_in_turns(calls, parts, rounds, SECONDS)
    return 1e6 * (min(times[THREADS]) - min(times[1]))


def planned(results: Results, batch: int, how: str, line_ns: float = LINE_NS) -> dict[str, float]:
    """Return rows over trees by cores, the geometric mean of the models.

    Args:
        line_ns: nanoseconds for a cache line of sums from another core.
    """
    own = [x for x in results["plans"] if x["batch"] == batch and x["how"] == how]

    def ratio(x: dict[str, Any], n: str) -> float:
        return x["rows_us"][n] / (x["trees_us"][n] + x["lines"][n] * line_ns / 1000)

    return {n: report.geometric_mean(ratio(x, n) for x in own) for n in own[0]["rows_us"]}


def tables(results: Results) -> str:
    """Return what was measured on two threads, and what is planned for more."""
    ways = list(results["cells"][0]["us"])
    rows = [
        [
            x["model"],
            x["batch"],
            *(f"{x['us'][way]:.1f}" if way in x["us"] else "-" for way in ways),
            f"{x['rows_over'][TREES]:.2f}",
            f"{x['rows_over'][BOTH]:.2f}",
        ]
        for x in results["cells"]
    ]
    heads = ["model", "rows", *(f"{way}, us a call" for way in ways)]
    heads += ["rows / trees", "rows / rows and trees"]
    parts = [f"Measured, {THREADS} threads, least mean of a turn:\n\n" + report.table(heads, rows)]
    lines = []
    for batch in dict.fromkeys(x["batch"] for x in results["plans"]):
        for how, line_ns in PLANS:
            ratios = planned(results, batch, how, line_ns)
            what = how if line_ns == LINE_NS else f"{how}, {line_ns:g} ns a line"
            lines.append([batch, what, *(f"{x:.2f}" for x in ratios.values())])
    heads = ["rows", "of", *(f"{n} cores" for n in CORES)]
    said = "Planned for more cores, rows / trees, geometric mean of the models:"
    return "\n\n".join([*parts, f"{said}\n\n" + report.table(heads, lines)])


def draw(results: Results, figure: Any) -> None:
    """Draw the measured ratios, and the planned ones by cores."""
    left, right = figure.subplots(1, 2)
    names = list(dict.fromkeys(x["model"] for x in results["cells"]))
    batches = list(dict.fromkeys(x["batch"] for x in results["cells"]))
    for k, batch in enumerate(batches):
        own = [x for x in results["cells"] if x["batch"] == batch]
        places = np.arange(len(own)) + 0.4 * k
        left.bar(places, [x["rows_over"][TREES] for x in own], 0.4, label=f"{batch} rows")
    left.set_xticks(range(len(names)), names, rotation=45)
    left.axhline(1, color="black", linewidth=0.8)
    left.set_title("rows / trees, 2 threads, measured")
    left.legend(fontsize=7)
    for batch in batches:
        for how, style in ((TIMED, "-"), (AS_PAPER, "--"), (ANY, ":")):
            ratios = planned(results, batch, how)
            label = f"{batch} rows, {how}"
            right.plot([int(n) for n in ratios], list(ratios.values()), style, label=label)
    right.set_xscale("log", base=2)
    right.axhline(1, color="black", linewidth=0.8)
    right.set_xlabel("cores")
    right.set_title("rows / trees, planned")
    right.legend(fontsize=7)


def says(results: Results) -> str:
    """Say what two cores show, and what they cannot."""
    cells, said = results["cells"], []
    for batch in BATCHES:
        own = [x["rows_over"][TREES] for x in cells if x["batch"] == batch]
        said.append(f"{report.geometric_mean(own):.2f} at {batch} rows")
    gain = report.geometric_mean(x["us"][ONE] / x["us"][ROWS] for x in cells)
    better = (min(x["us"][way] for way in (ROWS, TREES, ONE)) for x in cells)
    alone = report.geometric_mean(
        x["us"][DEFAULT] / us for x, us in zip(cells, better, strict=True)
    )
    timed, slow, free = (
        {batch: planned(results, batch, *way) for batch in BATCHES}
        for way in ((TIMED, LINE_NS), (TIMED, SLOW_LINE_NS), (ANY, LINE_NS))
    )
    few, many = BATCHES
    best, most = max(
        (x["rows_us"]["16"] / (x["trees_us"]["16"] + x["lines"]["16"] * LINE_NS / 1000), x["model"])
        for x in results["plans"]
        if x["how"] == TIMED and x["batch"] == few
    )
    return (
        f"On two threads, rows over trees is {' and '.join(said)}, where the paper has 2.2 and "
        "1.1 on 16 virtual cores. These two cores cannot show it, for two reasons: other "
        f"programs used them too, so a second thread was often late (one thread takes {gain:.2f} "
        "of the time of two that share rows, and waking an idle helper costs "
        f"{results['helper_us']:.1f} us), and with two threads each still has 16 or 32 rows, "
        "enough to walk 8 together. The paper's reasons, two to four rows a thread and trees "
        "that are fetched for these alone, begin with more cores. What one core can show is how "
        "long a share takes, which is a call of one thread: from timed shares, trees are "
        f"{timed[few]['4']:.2f} times as fast as rows on 4 cores at {few} rows, "
        f"{timed[few]['8']:.2f} on 8, {timed[few]['16']:.2f} on 16 ({best:.1f} at most, {most}) "
        f"and {timed[few]['64']:.2f} on 64; at {many} rows {timed[many]['8']:.2f}, "
        f"{timed[many]['16']:.2f} and {timed[many]['64']:.2f} on 8, 16 and 64. So the direction "
        "agrees for a few cores, and is less than the paper's: a row alone is not slow here, and "
        "the sums of many shares, which one thread adds up, outweigh shares of a few trees (if "
        f"each line of sums is waited for, it is {slow[few]['16']:.2f} and {slow[many]['16']:.2f} "
        f"on 16). Where any of our schedules may serve a share, prices give {free[few]['16']:.2f} "
        f"and {free[many]['16']:.2f} on 16: a single row that walks through many trees at once "
        "needs no trees shared out. The plan leaves out what takes time between cores, their "
        "start above all, which both ways pay. The default, which keeps the order of additions, "
        f"takes {alone:.2f} of the time of the best of these, one thread included; shared trees "
        "keep the order too if they are added by `ordered_reduce`, at the times of the column "
        f'"{ORDERED}".'
    )


STUDY = Study(
    "tree_parallel",
    "Trees or rows for the threads of a small batch",
    "Section 9.4 of SilvanForge: on 16 virtual cores, sharing out trees is 2.2 times as fast as "
    "Treebeard's sharing out of rows at 32 rows (5 at most), and 1.1 times at 64 (2 at most). "
    "Here both walk 8 rows together through tiles of 8 nodes: `treebeard_tree_at_a_time` and "
    "`tree_parallel`. More cores than two are planned: the largest share of the rows, or of the "
    "trees, is timed on one core, or priced by the cost model; a cache line of sums from another "
    "core is taken to cost 15 ns, or 60 where it is waited for.",
    measure,
    tables,
    draw,
    {"cpu": says},
    options,
)
