"""The command line: tvm-forest info, predict, export, verify, tune, calibrate, serve, cache, demo.

takes: arguments; gives: text on the terminal, files, an exit status.

Each command is a module with a function `run`, which is imported when the command is given.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import ForestError

KINDS = ("predict", "predict_proba", "predict_margin", "apply", "predict_per_tree")
"""Methods of a Predictor that `predict --kind` can call."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors of the package become one line and exit status 2.

    Status 1 is for a `verify` that has found a difference.
    """
    options = make_parser().parse_args(arguments)
    try:
        status: int | None = import_module(f"{__name__}.{options.command}").run(options)
    except ForestError as error:
        print(f"tvm-forest: {error}", file=sys.stderr)
        return 2
    return status or 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; `command` names the one that was given."""
    parser = argparse.ArgumentParser(
        prog="tvm-forest", description="Compile decision forests and predict with them."
    )
    commands = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND", dest="command"
    )

    info = commands.add_parser("info", help="say what a model file holds")
    _add_model(info, nargs="?")
    info.add_argument("--support", action="store_true", help="say what is accepted and refused")
    info.add_argument("--why", action="store_true", help="say why a schedule is the default")

    predict = commands.add_parser("predict", help="predict rows of a file")
    _add_model(predict)
    predict.add_argument("rows", type=Path, help=".npy, or .csv of numbers with or without names")
    predict.add_argument("-o", "--output", type=Path, help=".npy or .csv; default: the terminal")
    predict.add_argument("--kind", choices=KINDS, default="predict", help="what to predict")
    _add_target(predict)
    _add_n_jobs(predict)

    export = commands.add_parser("export", help="write a shared library and a C header")
    _add_model(export)
    export.add_argument("library", type=Path, help="such as model.so; the header is model.h")
    _add_target(export, "llvm, cuda or another machine")
    export.add_argument(
        "--prefix", default="tvm_forest_", help="what C names begin with (default: tvm_forest_)"
    )

    verify = commands.add_parser(
        "verify", help="compare with the training library; exit status 1 if different"
    )
    _add_model(verify)
    verify.add_argument("rows", nargs="?", type=Path, help=".npy or .csv, see predict")
    verify.add_argument("--n-rows", type=int, default=1000, help="rows to make (default: 1000)")
    _add_target(verify)

    _add_tuning(commands)
    calibrate = commands.add_parser(
        "calibrate", help="measure this CPU, so that default schedules and searches suit it"
    )
    calibrate.add_argument("--out", type=Path, help="file to write (default: where it is read)")
    cache = commands.add_parser("cache", help="say what compiled code is kept, and where")
    cache.add_argument("--clear", action="store_true", help="remove it")
    commands.add_parser("demo", help="train, compile, predict and compare with XGBoost")
    return parser


def _add_model(command: argparse.ArgumentParser, **options: Any) -> None:
    command.add_argument("model", help="model file of XGBoost, LightGBM or ONNX", **options)


def _add_target(command: argparse.ArgumentParser, what: str = "what to compile for") -> None:
    about = f"{what}, a name or a dict as JSON (default: llvm)"
    command.add_argument("--target", type=read_target, default="llvm", help=about)


def read_target(text: str) -> Any:
    """Return a name, or the dict that a text in braces is as JSON."""
    return json.loads(text) if text.startswith("{") else text


def _add_n_jobs(command: argparse.ArgumentParser) -> None:
    command.add_argument("--n-jobs", type=int, help="threads; -1 for all cores")


def _add_tuning(commands: Any) -> None:
    tune = commands.add_parser("tune", help="search for the fastest schedules, and keep them")
    _add_model(tune)
    tune.add_argument("--rows", type=Path, help=".npy or .csv of rows like those to be predicted")
    tune.add_argument(
        "--batch-size", type=int, nargs="+", default=[1, 64, 4096], help="rows of a call"
    )
    tune.add_argument("--strategy", default="heuristic", help="heuristic, exhaustive or beam")
    budget = {"dest": "budget_s", "metavar": "BUDGET", "help": "seconds (default: 60)"}
    tune.add_argument("--budget", type=float, default=60.0, **budget)
    tune.add_argument("--trials", type=int, help="most schedules to measure for each size")
    tune.add_argument("--limit-s", type=float, default=30.0, help="seconds for one (default: 30)")
    tune.add_argument("--limit-mb", type=float, default=8192.0, help="megabytes (default: 8192)")
    tune.add_argument("--seed", type=int, default=0, help="of rows, and of the order of schedules")
    tune.add_argument("--records", default="tune.jsonl", help="file to append to; see build")
    _add_target(tune)
    _add_n_jobs(tune)
    order = {"dest": "exact", "help": "on a GPU, also schedules that add up differently"}
    tune.add_argument("--any-order", action="store_false", **order)
    tune.add_argument("--remote", help="host:port of a machine that runs `tvm-forest serve`")
    serve = commands.add_parser("serve", help="measure for `tune --remote` of other machines")
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on: who reaches it can run any code here (default: 127.0.0.1, "
        "which others do not reach; 0.0.0.0 is all of this machine)",
    )
    serve.add_argument("--port", type=int, default=9190, help="port to listen on (default: 9190)")
