"""Repeat the experiments of the papers, and write the page docs/studies.md.

    python -m benchmarks study NAME [--tiny] [--out FOLDER]
    python -m benchmarks study all                               # or: make studies
    python -m benchmarks study NAME --device gpu --results build/gpu/results.json
    python -m benchmarks study NAME --draw                       # tables and plot of old results
    python -m benchmarks study NAME --more --models airline      # beside what other runs found
    python -m benchmarks study --page
    python -m benchmarks study --plots FOLDER                    # those that the site shows

A study is a file in `benchmarks/studies/`. It writes NAME.DEVICE.json into docs/studies or `--out`,
beside it a plot, NAME.DEVICE.svg, which the site draws anew, and prints its tables. For a GPU it
reads what the folder of `make bench-gpu` has measured there. `--tiny` takes the smallest models and
little time: it shows that a study runs, and its figures mean nothing. The page is made of all
results that docs/studies holds; `all` measures every study, and writes the page if the results lie
there.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import io
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import models, studies
from benchmarks.studies import DEVICES, FOLDER, Study
from benchmarks.timing import cores, cpu_name

PAGE = FOLDER.parent / "studies.md"
EVERY = "all"
PACKAGES = ("apache-tvm", "numpy", "xgboost")
HEAD = """\
# What the papers showed, repeated

SilvanForge (SOSP 2024) and Treebeard (MICRO 2022) are the papers whose language and rewrites this
package has. Here their experiments are repeated, on the machine that each section names. The page
is written by `python -m benchmarks study --page` from the results in `docs/studies`, whose files
have the last command and all versions; `make studies` measures them again. [How it is
measured](measuring.md) holds here too: answers are compared before anything is timed, batches
rotate, and what is compared runs in turns. Other work ran on the machine; studies ran one at a
time, at the highest priority, and ratios are those of medians.
"""


def about(words: list[str]) -> dict[str, Any]:
    """Return the facts of the machine and of this run."""
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{cpu_name()}, {cores()} cores",
        "versions": versions,
        "command": " ".join(["python -m benchmarks study", *words]),
    }


def measure(study: Study, chosen: argparse.Namespace, words: list[str]) -> dict[str, Any]:
    """Measure, and keep the results."""
    results = {"about": about(words)}
    found = study.measure(chosen)
    results["about"] |= found.pop("about", {})
    results |= found
    old = read(chosen.out, study.name, chosen.device) if chosen.more else None
    if old is not None:
        if old["about"]["machine"] != results["about"]["machine"]:
            raise SystemExit(f"study: {chosen.out} has results of {old['about']['machine']}")
        results = joined(old, results)
    chosen.out.mkdir(parents=True, exist_ok=True)
    path = path_of(chosen.out, study.name, chosen.device, "json")
    path.write_text(to_text(results), encoding="utf-8")
    return results


def to_text(results: dict[str, Any]) -> str:
    """Return JSON that has a line for each entry of each list."""
    lines = []
    for key, found in results.items():
        said = json.dumps(found)
        if isinstance(found, list) and found:
            said = "[\n" + ",\n".join(json.dumps(x) for x in found) + "\n]"
        lines.append(f"{json.dumps(key)}: {said}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def joined(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return new results, and in their lists what old ones say of models that they lack."""
    measured = {x["model"] for found in new.values() if isinstance(found, list) for x in found}
    kept = {
        key: [x for x in found if x["model"] not in measured]
        for key, found in old.items()
        if isinstance(found, list)
    }
    return new | {key: [*found, *new.get(key, [])] for key, found in kept.items()}


def path_of(folder: Path, name: str, device: str, suffix: str) -> Path:
    """Return where results or the plot of a study are kept."""
    return folder / f"{name}.{device}.{suffix}"


def read(folder: Path, name: str, device: str) -> dict[str, Any] | None:
    """Return the results of a study; None if there are none."""
    path = path_of(folder, name, device, "json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def draw(study: Study, results: dict[str, Any]) -> str:
    """Return the plot as SVG; equal results give an equal text."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams |= {"svg.hashsalt": study.name, "svg.fonttype": "none", "font.size": 9}
    figure = pyplot.figure(figsize=study.size, layout="constrained")
    study.draw(results, figure)
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return written.getvalue()


def draw_all(folder: Path) -> None:
    """Write the plots of all results that docs/studies holds into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(FOLDER.glob("*.json")):
        name, device = path.stem.split(".")
        plot = draw(studies.find(name), read(FOLDER, name, device) or {})
        path_of(folder, name, device, "svg").write_text(plot, encoding="utf-8")


def section(study: Study, folder: Path) -> str:
    """Return the section of a study: what it is, and for each device table, plot and paragraph."""
    parts = [f"## {study.title}", study.shows]
    for device, title in DEVICES.items():
        results = read(folder, study.name, device)
        if results is None:
            continue
        run = results["about"]
        said = study.says[device]
        by = f"`python -m benchmarks study {study.name}`"
        parts += [f"**{title}**: {run['machine']}, {run['date']}, by {by}."]
        parts += [study.tables(results)]
        parts += [f"![{study.title}](studies/{path_of(Path(), study.name, device, 'svg')})"]
        parts += [said if isinstance(said, str) else said(results)]
    return "\n\n".join(parts)


def page() -> str:
    """Return the page."""
    sections = [section(studies.find(name), FOLDER) for name in studies.NAMES]
    return "\n\n".join([HEAD.rstrip(), *sections]) + "\n"


def read_options(words: list[str]) -> argparse.Namespace:
    """Read the command line; what a study has of its own comes after its name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    about_page = "write docs/studies.md, or another file, and nothing else"
    parser.add_argument("--page", nargs="?", type=Path, const=PAGE, help=about_page)
    parser.add_argument("--plots", type=Path, help="draw all results into a folder")
    if "--page" in words or "--plots" in words:
        return parser.parse_args(words)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name in (*studies.NAMES, EVERY):
        command = commands.add_parser(name, help="of all studies" if name == EVERY else None)
        add = command.add_argument
        add("--tiny", action="store_true", help="take the smallest models and little time")
        add("--draw", action="store_true", help="measure nothing, print and draw what is there")
        add("--device", choices=DEVICES, default="cpu", help="where it is measured")
        add("--results", type=Path, help="of gpu.speed, for --device gpu")
        add("--cache", type=Path, default=models.CACHE, help="folder for models")
        add("--more", action="store_true", help="keep what results say of other models")
        add("--out", type=Path, default=FOLDER, help="folder for results and plot")
        if name != EVERY:
            studies.find(name).options(command)
    return parser.parse_args(words)


def run(words: list[str]) -> None:
    """Run one study: measure, print, draw."""
    chosen = read_options(words)
    if chosen.device == "gpu" and not (chosen.draw or chosen.results):
        raise SystemExit("study: --device gpu needs --results of `make bench-gpu`")
    study, old = studies.find(chosen.name), chosen.draw
    results = read(chosen.out, chosen.name, chosen.device) if old else measure(study, chosen, words)
    if results is None:
        raise SystemExit(f"study: no results of {study.name} in {chosen.out}")
    print(study.tables(results), flush=True)
    plot = path_of(chosen.out, study.name, chosen.device, "svg")
    plot.write_text(draw(study, results), encoding="utf-8")


def main() -> None:
    """Run the studies that are asked for, or write the page."""
    words = sys.argv[1:]
    chosen = read_options(words)
    if chosen.plots:
        draw_all(chosen.plots)
    elif not chosen.page:
        for name in studies.NAMES if chosen.name == EVERY else [chosen.name]:
            run([name, *words[1:]])
    if chosen.page or (not chosen.plots and chosen.name == EVERY and chosen.out == FOLDER):
        (chosen.page or PAGE).write_text(page(), encoding="utf-8")
