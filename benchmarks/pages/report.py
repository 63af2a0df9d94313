"""Tables and plots of what `cpu.py` has measured.

takes: the dictionary that `cpu.py` writes as JSON; gives: Markdown, PNG.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

OURS = "ours"
ALIKE = "~alike"
"""What ends the name of an engine that runs a model of CatBoost of equal shape."""
LOOK_ALIKES = (f"catboost{ALIKE}", f"{OURS}{ALIKE}")
GROUPS: dict[str, Callable[[int], bool]] = {
    "512 and more": lambda batch: batch >= 512,
    "32 and 128": lambda batch: 32 <= batch < 512,
    "1 and 8": lambda batch: batch < 32,
}
"""Names of the groups of batch sizes that have a geometric mean of their own."""
CODES = {
    "absent": "the package cannot be imported",
    "other": "it takes no models of this library",
    "refused": "it refuses the model or fails",
    "slow": "it takes too long",
    "crashed": "its process dies",
}

QUIET = 0.95
"""Share of a core that one thread has on a machine without other work."""

Results = dict[str, Any]
Times = dict[str, float]
"""Microseconds a row of each engine that has a figure."""


def geometric_mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean, NaN of nothing."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def is_ours(engine: str) -> bool:
    """Whether an engine is the package, with whatever schedule."""
    return engine.partition(":")[0] == OURS


def is_look_alike(engine: str) -> bool:
    """Whether an engine runs the look-alike of a model in place of the model."""
    return engine.endswith(ALIKE)


def times(results: Results, threads: int) -> dict[tuple[str, int], Times]:
    """Return the smallest microseconds a row by model and batch size."""
    found: dict[tuple[str, int], Times] = {}
    for cell in results["cells"]:
        if cell["threads"] == threads and "us" in cell:
            found.setdefault((cell["model"], cell["batch"]), {})[cell["engine"]] = cell["us"]
    return found


def wrong_engines(results: Results) -> set[tuple[str, str]]:
    """Return (model, engine) of those whose predictions are wrong on ordinary rows."""
    return {
        (engine["model"], engine["engine"])
        for engine in results["engines"]
        if any(said.startswith("WRONG") for said in engine.get("verdicts", {}).values())
    }


def best_peer(us: Times, wrong: set[str]) -> str | None:
    """Name the fastest engine that is neither ours nor wrong, and runs this very model."""
    others = {name: t for name, t in us.items() if not (is_ours(name) or is_look_alike(name))}
    peers = {name: t for name, t in others.items() if name not in wrong}
    return min(peers, key=lambda name: peers[name]) if peers else None


def ratios(results: Results, threads: int, engine: str, over: str) -> dict[tuple[str, int], float]:
    """Return by model and batch how many times as fast `engine` is as `over`, or as the best peer.

    Args:
        over: an engine, or "best".
    """
    wrong, found = wrong_engines(results), {}
    for (model, batch), us in times(results, threads).items():
        other = over
        if over == "best":
            other = best_peer(us, {name for of, name in wrong if of == model}) or ""
        if engine in us and other in us:
            found[model, batch] = us[other] / us[engine]
    return found


def _row(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def table(heads: list[str], rows: Iterable[Iterable[Any]]) -> str:
    line = "|" + "---|" + "---:|" * (len(heads) - 1)
    return "\n".join([_row(heads), line, *map(_row, rows)])


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3g}"


def ours_and_best(results: Results, threads: int, engine: str) -> str:
    """Return the table of `engine` beside its best peer and the library that trained the model."""
    heads = ["model", "batch", engine, "best peer", "us a row", "best / ours"]
    heads += ["library", "us a row", "library / ours", "faster but wrong"]
    library = {model["name"]: model["library"] for model in results["models"]}
    wrong, rows = wrong_engines(results), []
    for (model, batch), us in times(results, threads).items():
        mine, bad = us.get(engine), {name for of, name in wrong if of == model}
        best, own = best_peer(us, bad), library[model]
        line = [model, batch, _number(mine)]
        for other in (best, own):
            time = us.get(other or "")
            ratio = None if time is None or mine is None else time / mine
            line += [other or "-", _number(time), _number(ratio)]
        limit = us.get(best or "", math.inf)
        rows.append([*line, ", ".join(n for n in us if n in bad and us[n] < limit) or "-"])
    return table(heads, rows)


def means(results: Results, threads: int) -> str:
    """Return the table of geometric means: batches in groups, over the best peer and XGBoost.

    The last column is the least ratio of any model and batch.
    """
    engines = dict.fromkeys(cell["engine"] for cell in results["cells"] if is_ours(cell["engine"]))
    rows = []
    for engine in engines:
        for over in ("best", "xgboost"):
            name = "best peer" if over == "best" else "XGBoost"
            means = _means_of(ratios(results, threads, engine, over))
            rows.append([f"{name} / {engine}", *means])
    return table(["geometric mean", *(f"batch {name}" for name in GROUPS), "least"], rows)


def list_pairs(results: Results) -> list[tuple[str, str]]:
    """List engines, and those that they are laid beside: XGBoost's versions, and look-alikes."""
    found = dict.fromkeys(cell["engine"] for cell in results["cells"])
    versions = [name for name in found if name.partition("@")[0] == "xgboost"]
    theirs, alike = LOOK_ALIKES
    return [*((OURS, name) for name in versions), (OURS, theirs), (alike, theirs)]


def equal_shapes(results: Results, threads: int) -> str:
    """Return the table of ours beside XGBoost's versions and CatBoost's models of equal shape."""
    pairs, rows = list_pairs(results), []
    alike = {model["name"]: model.get("alike", "-") for model in results["models"]}
    found = [ratios(results, threads, engine, over) for engine, over in pairs]
    for key, us in times(results, threads).items():
        line = [key[0], alike[key[0]], key[1], _number(us.get(OURS))]
        for (engine, over), ratio in zip(pairs, found, strict=True):
            time = us.get(over if engine == OURS else engine)
            line += [_number(time), _number(ratio.get(key))]
        rows.append(line)
    heads = ["model", "look-alike", "batch", OURS]
    for engine, over in pairs:
        heads += [over if engine == OURS else engine, f"{over} / {engine}"]
    return table(heads, rows)


def shape_means(results: Results, threads: int) -> str:
    """Return the geometric means of the ratios of `equal_shapes`, batches in groups."""
    rows = []
    for engine, over in list_pairs(results):
        found = ratios(results, threads, engine, over)
        rows.append([f"{over} / {engine}", *_means_of(found)])
    return table(["geometric mean", *(f"batch {name}" for name in GROUPS), "least"], rows)


def _means_of(found: dict[tuple[str, int], float]) -> list[str]:
    """Return the means of groups of batches, and the least of all."""
    groups = [[r for (_, b), r in found.items() if has(b)] for has in GROUPS.values()]
    least = min(found.values(), default=math.nan)
    return [*(_number(geometric_mean(group)) for group in groups), _number(least)]


def every_engine(results: Results, threads: int, model: str) -> str:
    """Return the table of all engines for one model, microseconds a row by batch."""
    found = {batch: us for (of, batch), us in times(results, threads).items() if of == model}
    rows = []
    for engine in results["engines"]:
        name = engine["engine"]
        if engine["model"] == model and "make_s" in engine:
            said = engine.get("verdicts", {}).get(str(threads), "-")
            rows.append([name, said, *(_number(us.get(name)) for us in found.values())])
    return table([model, "beside the library", *map(str, found)], rows)


def costs(results: Results) -> str:
    """Return the table of what it takes to make each engine, and how it does on hard rows."""
    heads = ["model", "engine", "seconds to make", "peak MB", "of that imports", "model MB"]
    rows = []
    for engine in results["engines"]:
        if "make_s" in engine:
            sizes = [engine[f"{what}_bytes"] for what in ("peak", "import", "model")]
            size = ["-" if n is None else f"{n / 1e6:.4g}" for n in sizes]
            line = [engine["model"], engine["engine"], f"{engine['make_s']:.2f}", *size]
            rows.append([*line, engine.get("hard", "-")])
    return table([*heads, "hard rows"], rows)


def reasons(results: Results) -> str:
    """List why engines have no figures, once for each reason."""
    models: dict[tuple[str, str, str], list[str]] = {}
    for engine in results["engines"]:
        if "code" in engine:
            key = (engine["engine"], engine["code"], engine["why"])
            models.setdefault(key, []).append(engine["model"])
    rows = [[*key, ", ".join(names)] for key, names in models.items()]
    text = ", ".join(f"{code}: {what}" for code, what in CODES.items())
    return table(["engine", "code", "why", "models"], rows) + f"\n\n{text}."


def share_of_core(results: Results) -> str:
    """Say how much of a core the engines had on one thread: other programs take the rest."""
    shares = [c["cores"] for c in results["cells"] if c["threads"] == 1 and "cores" in c]
    share = statistics.median(shares) if shares else math.nan
    quiet = "" if share > QUIET else "; this machine is too busy for a benchmark"
    return f"On one thread, engines had {share:.2f} of a core{quiet}."


def summary(results: Results) -> str:
    """Return what is printed: ours beside the best peer, and the geometric means."""
    parts = [share_of_core(results)]
    engines = dict.fromkeys(cell["engine"] for cell in results["cells"] if is_ours(cell["engine"]))
    for threads in results["about"]["threads"]:
        parts += [f"## Microseconds a row, {threads} thread{'s' if threads > 1 else ''}"]
        parts += [ours_and_best(results, threads, engine) for engine in engines]
        parts += [means(results, threads)]
        if any(is_look_alike(cell["engine"]) for cell in results["cells"]):
            parts += [equal_shapes(results, threads), shape_means(results, threads)]
    return "\n\n".join(parts)


def whole(results: Results) -> str:
    """Return the summary and all other tables."""
    parts = [summary(results)]
    for threads in results["about"]["threads"]:
        parts += [f"## All engines, threads: {threads}"]
        parts += [every_engine(results, threads, model["name"]) for model in results["models"]]
    parts += ["## Time, memory, hard rows", costs(results), "## Without figures", reasons(results)]
    return "\n\n".join(parts) + "\n"


def plot(results: Results, folder: Path) -> None:
    """Draw ratios against the batch size, a line for each model, a file for each thread count."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for threads in results["about"]["threads"]:
        figure, panels = pyplot.subplots(1, 2, figsize=(14, 6), layout="constrained")
        for panel, over in zip(panels, ("best", "xgboost"), strict=True):
            found = ratios(results, threads, OURS, over)
            for model in dict.fromkeys(model for model, _ in found):
                own = {batch: ratio for (of, batch), ratio in found.items() if of == model}
                panel.plot(list(own), list(own.values()), marker="o", label=model)
            panel.axhline(1, color="black", linewidth=0.8)
            panel.set(yscale="log", xlabel="rows of a batch")
            panel.set_xscale("log", base=2)
            panel.yaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_minor_formatter("{x:g}")
            panel.set_ylabel(f"{'best peer' if over == 'best' else 'XGBoost'} / ours")
            if found:
                panel.legend(fontsize="small")
        about = results["about"]
        figure.suptitle(f"{about['machine']}, {about['date']}, threads: {threads}")
        figure.savefig(folder / f"threads{threads}.png", dpi=100)
        pyplot.close(figure)
