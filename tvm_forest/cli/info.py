"""The command `info`: prints facts about a model file and the schedules that predict it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from .. import api
from ..errors import InputError
from ..forest import Forest
from ..forest.structure.facts import describe
from ..frontends import SUPPORT
from ..predictor import saving
from ..schedule_prims import Schedule
from ..schedule_prims.batches import PARALLEL
from ..search import heuristic
from ..system import archive
from ..target import Target, parse_target

if TYPE_CHECKING:
    from ..compiler import Lowered


def run(options: argparse.Namespace) -> None:
    """Print facts about a model and its default schedules, or what kinds of models are accepted.

    Raises:
        InputError: no model is given, or `--function` names none of its functions.
        ForestError: see `tvm_forest.load`, `tvm_forest.lower` and `saving.read_saved`.
    """
    if options.support:
        return _print_support()
    if options.model is None:
        raise InputError("info: argument 'model': missing; give a model file, or --support")
    if archive.is_archive_file(options.model):
        forest, schedules, target = _print_saved(options.model)
    else:
        forest, target = api.load(options.model), parse_target(options.target)
        _print_table(options.model, describe(forest))
        schedules = api.default_schedules(forest, target)
    for smallest, schedule in schedules.items():
        print(f"\nbatches of {smallest} and more:\n{schedule}")
    if options.why:
        print("", *heuristic.explain(forest, target), sep="\n")
    if options.stages:
        _print_stages(api.lower(forest, schedules, target), options.function)


def _print_saved(path: str) -> tuple[Forest, dict[int, Schedule], Target]:
    """Print facts about a saved predictor; return its model, schedules and target.

    None of its code is run.
    """
    saved, needs, version = saving.read_saved(path)
    made_for = ", ".join(f"{name} {value}" for name, value in needs.items())
    target = json.dumps(saved.target.to_dict())
    about = {"saved by": f"tvm_forest {version}", "target": target, "code for": made_for}
    _print_table(path, {**describe(saved.forest), **about})
    return saved.forest, saved.schedules, saved.target


def _print_stages(lowered: Lowered, name: str) -> None:
    """Print a function after every pass that changes it, and the names of the other passes.

    A function's variant without threads is made from the one with threads in a late pass; before
    that pass, the one with threads is shown.

    Raises:
        InputError: there is no function `name`.
    """
    functions = {var.name_hint for var in lowered.after.get_global_vars()}
    if name not in functions:
        what = f"there is none {name!r} (have: {', '.join(sorted(functions))})"
        raise InputError(f"info: argument '--function': {what}")
    before = ""
    for stage, module in lowered.stages.items():
        here = {var.name_hint: func for var, func in module.functions.items()}
        names = (name, name + PARALLEL, name.removesuffix(PARALLEL))
        shown = next((here[x] for x in names if x in here), None)
        if shown is None:
            continue
        text = _script(shown)
        if text == before:
            print(f"{stage}: no change")
        else:
            print(f"\n{stage}\n{'-' * len(stage)}\n{text}\n")
        before = text


def _script(func: Any) -> str:
    """Return the TVMScript of a function, without the header that all functions share."""
    lines = func.script(show_meta=False).splitlines()
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def _print_table(title: str, entries: dict[str, str]) -> None:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, text in entries.items():
        table.add_row(name, text)
    console = Console()
    with console.capture() as captured:
        console.print(table)
    print(captured.get(), end="")  # rich would exit with a status of its own if the pipe is closed


def _print_support() -> None:
    widths = [max(map(len, column)) for column in zip(*(row[:4] for row in SUPPORT), strict=True)]
    for row in SUPPORT:
        parts = (text.ljust(width) for text, width in zip(row, widths, strict=False))
        print("  ".join([*parts, row.note]).rstrip())
