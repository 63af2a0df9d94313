"""The command line: tvm-forest info, predict, compile, export, verify, tune and others.

takes: arguments; gives: text on the terminal, files, an exit status.

Each command is a module with a function `run`, which is imported when the command is given.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from ..errors import ForestError
from ..streams.formats import FORMATS, KINDS
from ..system.process.ending import ENDING

LIMITS = (
    ("max_batch", 4096, "most rows of requests that are predicted together"),
    ("max_delay_ms", 0.0, "most milliseconds that an idle server waits for more requests"),
    ("max_body_mb", 16.0, "most megabytes of a request"),
    ("max_answer_mb", 64.0, "most megabytes that an answer could have"),
    ("max_queue", 1000, "most requests that wait"),
    ("max_queue_mb", 512.0, "most megabytes of these and of their answers"),
    ("timeout_s", 30.0, "most seconds in which a request comes, or an answer is taken"),
    ("watch_s", 0.0, "seconds between two looks for newer files of models; 0 for none"),
)
"""Options of `serve` that are fields of its Settings, with their defaults and descriptions."""

STOPPING = [*ENDING, *(getattr(signal, name) for name in ("SIGHUP",) if hasattr(signal, name))]
"""Signals before whose effect a command cleans up; a second one ends the process at once."""

OPTIONAL = {"rich": "rich", "tvm": "apache-tvm"}
"""Packages that only some commands need, and their names for pip."""

PACKAGE = sys.modules[__name__.partition(".")[0]]


INTERRUPTED, UNREAD = 130, 141
"""Exit statuses after Ctrl-C, and when the reader of the output is gone, as shells define them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors of the package become one line and exit status 2.

    Status 1: `verify` found a difference; 130: Ctrl-C; 141: nobody reads the output any more. The
    command `run` returns the status of the program that it runs, and passes on its exceptions.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    place = next((at for at, word in enumerate(words) if word[:1] != "-"), len(words))
    asks_help = words[place + 1 : place + 2] in (["-h"], ["--help"])
    if words[place : place + 1] == ["run"] and not asks_help:
        _show_log(make_parser().parse_args(words[: place + 1]).verbose)
        status: int = import_module("..patching.running", __name__).run(words[place + 1 :])
        return status
    try:
        try:
            return _run(words)
        finally:
            sys.stdout.flush()  # or Python flushes at exit, and reports a closed pipe
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):  # discard what is not written yet
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return UNREAD


def _run(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    _show_log(options.verbose)
    try:
        with unwind_when_stopped():
            status: int | None = import_module(f"{__name__}.{options.command}").run(options)
    except ForestError as error:
        print(f"tvm-forest: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in OPTIONAL:
            raise
        about = f"{options.command}: needs {name}, which is not installed"
        print(f"tvm-forest: {about}; run pip install {OPTIONAL[name]}", file=sys.stderr)
        return 2
    return status or 0


@contextmanager
def unwind_when_stopped() -> Iterator[None]:
    """Leave the block by SystemExit at a signal of `STOPPING`, then end the process by it."""
    came: list[int] = []

    def stop(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        came.append(number)
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()  # others set no handlers
    ours = [x for x in STOPPING if is_main and signal.getsignal(x) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
        if came:
            os.kill(os.getpid(), came[0])


def _show_log(times: int) -> None:
    """Write log messages of the package to standard error: INFO for one -v, DEBUG for two."""
    if times:
        logging.basicConfig(format="%(name)s: %(message)s")
        level = logging.INFO if times == 1 else logging.DEBUG
        logging.getLogger(PACKAGE.__name__).setLevel(level)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; its result has the given command's name as `command`."""
    parser = argparse.ArgumentParser(
        prog="tvm-forest", description="Compile decision forests and predict with them."
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="say what is done; twice: and what is decided",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {PACKAGE.__version__}")
    commands = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND", dest="command", parser_class=_Command
    )

    info = commands.add_parser("info", help="say what a model file holds")
    _add_model(info, nargs="?")
    info.add_argument("--support", action="store_true", help="say what is accepted and refused")
    info.add_argument("--why", action="store_true", help="say why a schedule is the default")
    info.add_argument("--stages", action="store_true", help="print a function after every pass")
    about = "which one, such as predict_from_1 (default: predict, for the largest batches)"
    info.add_argument("--function", default="predict", help=about)
    _add_target(info, "what the schedules of a model file are for")

    _add_predict(commands)
    compile_ = commands.add_parser("compile", help="write a saved predictor, which is a model too")
    _add_model(compile_)
    compile_.add_argument("-o", "--output", type=Path, required=True, help="such as model.tvmf")
    compile_.add_argument("--profile", type=Path, help="of training rows, for a server's metrics")
    compile_.add_argument("--contributions", action="store_true", help="with SHAP values")
    _add_recompile(compile_)
    _add_target(compile_, default=None)
    _add_warm(commands)
    _add_export(commands)
    about = "compare with the training library; exit status 1 if different"
    verify = commands.add_parser("verify", help=about)
    _add_model(verify)
    verify.add_argument("rows", nargs="?", help="file, folder or pattern, see predict")
    _add_header(verify)
    verify.add_argument("--n-rows", type=int, default=1000, help="rows to make (default: 1000)")
    _add_target(verify)

    _add_profile(commands)
    _add_run(commands)
    _add_serve(commands)
    _add_tuning(commands)
    calibrate = commands.add_parser(
        "calibrate", help="measure this CPU, so that default schedules and searches suit it"
    )
    calibrate.add_argument("--out", type=Path, help="file to write (default: where it is read)")
    cache = commands.add_parser("cache", help="say what compiled code is kept, and where")
    cache.add_argument("--clear", action="store_true", help="remove it")
    commands.add_parser("demo", help="train, compile, predict and compare with XGBoost")
    return parser


class _Command(argparse.ArgumentParser):
    """The parser of a command, which lets an option of several words stand before files.

    Of `--keep id name model.tvmf rows.csv`, argparse would keep four columns, and miss two files.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words; if that fails, try to give the last words of such an option to the files."""
        first: str | None = None
        for words in self._list_readings(list(args)):
            try:
                return super().parse_known_args(words, copy.copy(namespace))
            except _Wrong as error:
                first = first or str(error)
        super().error(first or "")

    def _list_readings(self, words: list[str]) -> Iterator[list[str]]:
        """Yield the words, then variants with the last 1, 2, ... words of an option before it."""
        yield words
        several = {x for own in self._actions if own.nargs == "+" for x in own.option_strings}
        options = [at for at, word in enumerate(words) if word[:1] == "-" and word != "-"]
        for at in [at for at in options if words[at] in several][-1:]:
            end = next((place for place in options if place > at), len(words))
            earlier = reversed(options[: options.index(at)])
            first = [at, *takewhile(lambda place: words[place] in several, earlier)][-1]
            for cut in range(end - 1, at + 1, -1):
                yield [*words[:first], *words[cut:end], *words[first:cut], *words[end:]]

    def error(self, message: str) -> NoReturn:
        """Raise the error of one variant, instead of ending the process."""
        raise _Wrong(message)


class _Wrong(Exception):
    """A parsing error of one variant of the words."""


def _add_model(command: argparse.ArgumentParser, **options: Any) -> None:
    about = (
        "model file of XGBoost, LightGBM, CatBoost, ONNX or treelite, folder of a model of YDF, or "
        "a saved predictor (.tvmf); models of scikit-learn are compiled in Python"
    )
    command.add_argument("model", help=about, **options)


def _add_header(command: argparse.ArgumentParser) -> None:
    about = "whether the first line of CSV names the columns (default: where there is no doubt)"
    command.add_argument("--header", action=argparse.BooleanOptionalAction, help=about)


def _add_text(predict: argparse.ArgumentParser) -> None:
    """Add the options for text formats, and for rows that cannot be read or predicted."""
    predict.add_argument("--delimiter", help="between the fields of CSV (default: a comma)")
    predict.add_argument("--decimal", default=".", help="before fractions in CSV (default: .)")
    about = "texts that stand for missing values, such as NA"
    predict.add_argument(
        "--missing", nargs="+", action="extend", default=[], metavar="TEXT", help=about
    )
    about = "what becomes of rows that cannot be read or predicted (default: refuse)"
    predict.add_argument("--bad-rows", choices=["refuse", "skip"], default="refuse", help=about)
    about = "file of those that are skipped, with their numbers and why"
    predict.add_argument("--rejects", metavar="FILE", help=about)


def _add_recompile(command: argparse.ArgumentParser) -> None:
    about = "run none of the code of a saved predictor, and compile its model anew"
    command.add_argument("--recompile", action="store_true", help=about)


def _add_warm(commands: Any) -> None:
    """Add the command `warm`."""
    warm = commands.add_parser("warm", help="compile what models like one need, before they come")
    _add_model(warm)
    warm.add_argument("--processes", type=int, help="how many compile at once (default: all cores)")
    about = "write a bundle of the code, which TVM_FOREST_KERNELS names to processes without TVM"
    warm.add_argument("--out", type=Path, metavar="FILE", help=about)
    _add_target(warm, "what it is compiled for", None)


def _add_predict(commands: Any) -> None:
    predict = commands.add_parser("predict", help="predict rows of files")
    _add_model(predict)
    names = ", ".join(suffix for suffixes in FORMATS.values() for suffix in suffixes)
    about = f"files ({names}; text also .gz or .zst), folders, patterns, or - for the input"
    predict.add_argument("rows", nargs="+", help=about)
    about = "file or folder, by its suffix (default: the terminal, as CSV; - with another format)"
    predict.add_argument("-o", "--output", help=about)
    predict.add_argument("--format", choices=FORMATS, help="of the rows (default: by the suffix)")
    predict.add_argument("--output-format", choices=FORMATS, help="of predictions, likewise")
    about = "columns of the rows to write before the predictions; all for all of them"
    predict.add_argument(
        "--keep", nargs="+", action="extend", default=[], metavar="COLUMN", help=about
    )
    _add_header(predict)
    _add_text(predict)
    predict.add_argument("--kind", choices=KINDS, default="predict", help="what to predict")
    about = "of --kind predict_quantiles, with commas between them (default: the model's own)"
    predict.add_argument("--quantiles", type=read_quantiles, default=(), help=about)
    _add_recompile(predict)
    _add_target(predict, default=None)
    _add_n_jobs(predict)


def _add_profile(commands: Any) -> None:
    profile = commands.add_parser("profile", help="count how many rows end at each leaf")
    _add_model(profile)
    profile.add_argument("rows", help="file, folder or pattern, see predict")
    _add_header(profile)
    about = "file for Profile.load, .json or .csv"
    profile.add_argument("-o", "--output", type=Path, required=True, help=about)


def _add_run(commands: Any) -> None:
    """Add the command `run`; `patching.running` parses its words, as most are the program's."""
    about = "run a program of Python, unedited, whose fitted forests predict by compiled code"
    usage = "%(prog)s [-h] [--after-s S] (script.py | -m module) [argument ...]"
    commands.add_parser("run", help=about, usage=usage, description=about.capitalize())


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser("serve", help="answer requests of the Open Inference Protocol V2")
    about = "files of models, as path, name=path or name:version=path; of versions the last serves"
    serve.add_argument("models", nargs="+", metavar="MODEL", help=about)
    about = "address to listen on (default: 127.0.0.1, which other machines do not reach)"
    serve.add_argument("--host", default="127.0.0.1", help=about)
    serve.add_argument("--port", type=int, default=8080, help="0 for any (default: 8080)")
    about = "port of gRPC beside HTTP, 0 for any (default: none)"
    serve.add_argument("--grpc-port", type=int, metavar="PORT", help=about)
    serve.add_argument("--access-log", action="store_true", help="log a line for each request")
    serve.add_argument("--token-file", type=Path, help="file of what clients have to know")
    about = "let clients load models anew from their files, and unload them"
    serve.add_argument("--allow-load", action="store_true", help=about)
    about = "answer at once, by the slow reference walk until models are compiled"
    serve.add_argument("--no-wait", action="store_true", help=about)
    about = "files of a certificate and its key, for TLS"
    serve.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"), help=about)
    for name, default, about in LIMITS:
        option = f"--{name.replace('_', '-')}"
        text = f"{about} (default: {default:g})"
        serve.add_argument(option, type=type(default), default=default, help=text)
    _add_recompile(serve)
    _add_target(serve, default=None)
    _add_n_jobs(serve)


def _add_target(
    command: argparse.ArgumentParser,
    what: str = "what to compile for",
    default: str | None = "llvm",
) -> None:
    about = f"{what}, a name or a dict as JSON (default: llvm)"
    command.add_argument("--target", type=read_target, default=default, help=about)


def read_target(text: str) -> Any:
    """Return the value of --target: a name, or the dict of a JSON text that begins with a brace."""
    return json.loads(text) if text.startswith("{") else text


def read_quantiles(text: str) -> tuple[float, ...]:
    """Return the numbers of a text such as "0.1,0.9"."""
    return tuple(float(number) for number in text.split(","))


def _add_export(commands: Any) -> None:
    export = commands.add_parser("export", help="write a library, or a package of a language")
    _add_model(export)
    about = "model.so (header: model.h), .a, .o or .zip; with --to a folder"
    export.add_argument("library", nargs="?", type=Path, help=about)
    # A default would overwrite the path that was given as a positional argument.
    option = export.add_argument("-o", "--output", dest="library", type=Path, help="the same")
    option.default = argparse.SUPPRESS
    export.add_argument("--to", help="language of a package: c, cpp, go, java, node or rust")
    _add_recompile(export)
    _add_target(export, "llvm, cuda or another machine", None)
    about = "what C names begin with (default: tvm_forest_)"
    export.add_argument("--prefix", default="tvm_forest_", help=about)
    export.add_argument("--contributions", action="store_true", help="with SHAP values")


def _add_n_jobs(command: argparse.ArgumentParser) -> None:
    command.add_argument("--n-jobs", type=int, help="threads; -1 for all cores")


def _add_tuning(commands: Any) -> None:
    tune = commands.add_parser("tune", help="search for the fastest schedules, and keep them")
    _add_model(tune)
    tune.add_argument("--rows", help="file of rows like those that will come")
    _add_header(tune)
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
    tune.add_argument("--remote", help="host:port of a machine that runs `tvm-forest rpc`")
    rpc = commands.add_parser("rpc", help="measure for `tune --remote` of other machines")
    rpc.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on: who reaches it can run any code here (default: 127.0.0.1, "
        "which others do not reach; 0.0.0.0 is all of this machine)",
    )
    rpc.add_argument("--port", type=int, default=9190, help="port to listen on (default: 9190)")
