"""The command line: tvm-forest info | predict | export | verify | tune | serve | demo.

takes: arguments; gives: text on the terminal, files, an exit status.
"""

from __future__ import annotations

import argparse
import io
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ForestError, InputError

if TYPE_CHECKING:
    from .forest import Array, Forest
    from .predictor.predictor import Predictor

OUTPUT = "predict: argument '--output'"
OUTPUTS = ("predict", "predict_proba", "predict_margin", "apply", "predict_per_tree")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors of the package become one line and exit status 2.

    Status 1 is for a `verify` that has found a difference.
    """
    options = _parser().parse_args(arguments)
    try:
        status: int | None = options.run(options)
    except ForestError as error:
        print(f"tvm-forest: {error}", file=sys.stderr)
        return 2
    return status or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tvm-forest", description="Compile decision forests and predict with them."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    info = commands.add_parser("info", help="say what a model file holds")
    info.add_argument("model", nargs="?", help="model file of XGBoost, LightGBM or ONNX")
    info.add_argument("--support", action="store_true", help="say what is accepted and refused")
    info.add_argument("--why", action="store_true", help="say why a schedule is the default")
    info.set_defaults(run=_info)

    predict = commands.add_parser("predict", help="predict rows of a file")
    predict.add_argument("model", help="model file of XGBoost, LightGBM or ONNX")
    predict.add_argument("rows", type=Path, help=".npy, or .csv of numbers with or without names")
    predict.add_argument("-o", "--output", type=Path, help=".npy or .csv; default: the terminal")
    predict.add_argument("--kind", choices=OUTPUTS, default="predict", help="what to predict")
    predict.add_argument("--target", default="llvm", help="what to compile for (default: llvm)")
    predict.add_argument("--n-jobs", type=int, help="threads; -1 for all cores")
    predict.set_defaults(run=_predict)

    export = commands.add_parser("export", help="write a shared library and a C header")
    export.add_argument("model", help="model file of XGBoost, LightGBM or ONNX")
    export.add_argument("library", type=Path, help="such as model.so; the header is model.h")
    export.add_argument("--target", default="llvm", help="llvm or cuda (default: llvm)")
    export.add_argument(
        "--prefix", default="tvm_forest_", help="what C names begin with (default: tvm_forest_)"
    )
    export.set_defaults(run=_export)

    verify = commands.add_parser(
        "verify", help="compare with the training library; exit status 1 if different"
    )
    verify.add_argument("model", help="model file of XGBoost, LightGBM or ONNX")
    verify.add_argument("rows", nargs="?", type=Path, help=".npy or .csv, see predict")
    verify.add_argument("--n-rows", type=int, default=1000, help="rows to make (default: 1000)")
    verify.add_argument("--target", default="llvm", help="what to compile for (default: llvm)")
    verify.set_defaults(run=_verify)

    _add_tune(commands)
    demo = commands.add_parser("demo", help="train, compile, predict and compare with XGBoost")
    demo.set_defaults(run=_demo)
    return parser


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser("tune", help="search for the fastest schedules, and keep them")
    tune.add_argument("model", help="model file of XGBoost, LightGBM or ONNX")
    tune.add_argument("--rows", type=Path, help=".npy or .csv of rows like those to be predicted")
    tune.add_argument(
        "--batch-size", type=int, nargs="+", default=[1, 64, 4096], help="rows of a call"
    )
    tune.add_argument("--strategy", default="heuristic", help="heuristic, exhaustive or beam")
    tune.add_argument("--budget", type=float, default=60.0, help="seconds (default: 60)")
    tune.add_argument("--trials", type=int, help="most schedules to measure for each size")
    tune.add_argument("--limit-s", type=float, default=30.0, help="seconds for one (default: 30)")
    tune.add_argument("--limit-mb", type=float, default=8192.0, help="megabytes (default: 8192)")
    tune.add_argument("--seed", type=int, default=0, help="of rows, and of the order of schedules")
    tune.add_argument("--records", default="tune.jsonl", help="file to append to; see build")
    tune.add_argument("--target", default="llvm", help="what to compile for (default: llvm)")
    tune.add_argument("--n-jobs", type=int, help="threads; -1 for all cores")
    tune.add_argument(
        "--any-order", action="store_true", help="on a GPU, also schedules that add up differently"
    )
    tune.add_argument("--remote", help="host:port of a machine that runs `tvm-forest serve`")
    tune.set_defaults(run=_tune)
    serve = commands.add_parser("serve", help="measure for `tune --remote` of other machines")
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on: who reaches it can run any code"
        " here (default: 127.0.0.1, which others do not reach; 0.0.0.0 is all of this machine)",
    )
    serve.add_argument("--port", type=int, default=9190, help="port to listen on (default: 9190)")
    serve.set_defaults(run=_serve)


# -- info -----------------------------------------------------------------------------------------


def _info(options: argparse.Namespace) -> None:
    from . import api

    if options.support:
        return _print_support()
    if options.model is None:
        raise InputError("info: argument 'model': missing; give a model file, or --support")
    forest = api.load(options.model)
    _print_table(options.model, describe(forest))
    for smallest, schedule in api.default_schedules(forest).items():
        print(f"\nbatches of {smallest} and more:\n{schedule}")
    if options.why:
        from .search.heuristic import explain
        from .target import Target

        print("", *explain(forest, Target()), sep="\n")


def describe(forest: Forest) -> dict[str, str]:
    """Return what is worth knowing of a model, as text by name."""
    import numpy as np

    depths = forest.depths
    inner = ~forest.is_leaf
    used = np.unique(forest.feature[inner]).size
    missing = int(np.count_nonzero(forest.default_left & inner))
    leaves = int(forest.is_leaf.sum())
    span = f"{depths.min()} to {depths.max()}, mean {depths.mean():.1f}" if depths.size else "-"
    return {
        "model": forest.source,
        "features": f"{forest.row_width}, of which {used} are tested",
        "outputs": str(forest.n_outputs),
        "rounds": str(forest.n_rounds),
        "trees": str(forest.n_trees),
        "depth": span,
        "nodes": f"{forest.n_nodes}, of which {leaves} are leaves",
        "distinct thresholds": str(len(forest.tests)),
        "missing to the left": f"{missing} nodes",
        "comparison": f"{forest.threshold.dtype} {forest.comparison}",
        "link": forest.link,
        "base score": ", ".join(f"{x:.9g}" for x in forest.base_score[:4])
        + (", ..." if forest.n_outputs > 4 else ""),
    }


def _print_table(title: str, entries: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    for name, text in entries.items():
        table.add_row(name, text)
    Console().print(table)


def _print_support() -> None:
    from .frontends import SUPPORT

    widths = [max(map(len, column)) for column in zip(*(row[:4] for row in SUPPORT), strict=True)]
    for row in SUPPORT:
        parts = (text.ljust(width) for text, width in zip(row, widths, strict=False))
        print("  ".join([*parts, row.note]).rstrip())


# -- predict --------------------------------------------------------------------------------------


def _predict(options: argparse.Namespace) -> None:
    from . import api

    if options.output is not None:
        check_output(options.output)
    forest = api.load(options.model)
    rows = read_rows(options.rows, forest)
    predictor = api.build(forest, options.target, n_jobs=options.n_jobs)
    result = getattr(predictor, options.kind)(rows)
    if options.output is None:
        write_text(result, sys.stdout)
    else:
        write_result(result, options.output)


def read_rows(path: Path, forest: Forest, command: str = "predict") -> Any:
    """Read rows from .npy or .csv; errors name the command.

    A first line of a .csv that holds no numbers names the columns; empty fields are missing values.

    Raises:
        InputError: no such file, another kind of file, or text that is no number.
    """
    import numpy as np

    where = f"{command}: rows file '{path}'"
    if path.suffix not in (".npy", ".csv"):
        raise InputError(f"{where}: suffix {path.suffix!r} is unknown; use .npy or .csv")
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        return _read_csv(path, where, forest)
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: cannot be read: {error}") from None


def _read_csv(path: Path, where: str, forest: Forest) -> Array:
    import csv

    import numpy as np

    with path.open(newline="", encoding="utf-8") as file:
        lines = [(number, line) for number, line in enumerate(csv.reader(file), 1) if line]
    if lines and not any(_is_number(field) for field in lines[0][1]):
        _check_header(lines.pop(0)[1], where, forest)
    rows = np.empty((len(lines), forest.row_width), np.float64)
    for i, (number, line) in enumerate(lines):
        if len(line) != forest.row_width:
            raise InputError(
                f"{where}: line {number} has {len(line)} fields, the model has "
                f"{forest.row_width} features"
            )
        wrong = next((x for x in line if x.strip() and not _is_number(x)), None)
        if wrong is not None:
            raise InputError(f"{where}: line {number}: {wrong!r} is no number")
        rows[i] = [float(field) if field.strip() else np.nan for field in line]
    return rows


def _check_header(names: list[str], where: str, forest: Forest) -> None:
    """Columns must be those of the model, if it names any."""
    known = forest.feature_names
    if known is not None and tuple(names) != known:
        wrong = next((n for n, k in zip(names, known, strict=False) if n != k), "(number of names)")
        raise InputError(
            f"{where}: column {wrong!r} differs from the model's names: {', '.join(known)}"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def write_text(result: Array, file: Any) -> None:
    """Write predictions as CSV text that reads back to the same bits."""
    import numpy as np

    for line in result:
        print(*(np.asarray(x).item().__repr__() for x in np.atleast_1d(line)), sep=",", file=file)


def write_result(result: Array, path: Path) -> None:
    """Write predictions to a file of `check_output`, which appears whole or not at all."""
    import numpy as np

    from . import archive

    data, text = io.BytesIO(), io.StringIO()
    if path.suffix == ".npy":
        np.save(data, result)
    else:
        write_text(result, text)
    archive.write_file(path, data.getvalue() or text.getvalue().encode(), OUTPUT)


def check_output(path: Path) -> None:
    """Raise InputError unless the path is that of a .npy or .csv that can be written."""
    from . import archive

    if path.suffix not in (".npy", ".csv"):
        raise InputError(f"{OUTPUT}: suffix {path.suffix!r} is unknown; use .npy or .csv")
    archive.check_place(path, OUTPUT)


# -- export ---------------------------------------------------------------------------------------


def _export(options: argparse.Namespace) -> None:
    from . import api
    from .predictor import exporting

    exporting.check_wishes(options.library, options.prefix)  # before the model is compiled
    api.build(options.model, options.target).export_library(options.library, options.prefix)
    print(f"{options.library}, {options.library.with_suffix('.h')}")


# -- verify ---------------------------------------------------------------------------------------


def _verify(options: argparse.Namespace) -> int:
    from . import api

    rows = None
    if options.rows is not None:
        rows = read_rows(options.rows, api.load(options.model), "verify")
    report = api.verify(options.model, rows, target=options.target, n_rows=options.n_rows)
    print(report)
    return 0 if report.ok else 1


# -- tune -----------------------------------------------------------------------------------------


def _tune(options: argparse.Namespace) -> None:
    from . import api

    forest = api.load(options.model)
    tuned = api.tune(
        forest,
        options.target,
        options.batch_size,
        None if options.rows is None else read_rows(options.rows, forest, "tune"),
        options.strategy,
        budget_s=options.budget,
        trials=options.trials,
        seed=options.seed,
        records=options.records,
        n_jobs=options.n_jobs,
        limit_s=options.limit_s,
        limit_mb=options.limit_mb,
        exact=not options.any_order,
        remote=options.remote,
    )
    for smallest, schedule in tuned.schedules.items():
        print(f"batches of {smallest} and more:\n{schedule}\n")
    print(tuned)
    if not tuned.finished:
        print("ended before the search did; run it again to go on")
    target = "" if options.target == "llvm" else f"{options.target!r}, "
    order = ", exact=False" if options.any_order else ""
    records = f"records={options.records!r}{order}"
    print(f"use it: tvm_forest.build({options.model!r}, {target}{records})")


def _serve(options: argparse.Namespace) -> None:
    from .search.measuring import remote

    server = remote.serve(options.host, options.port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # or the server would stay
    print(f"measuring for others at {options.host}:{server.port}; Ctrl-C ends it", flush=True)
    try:
        threading.Event().wait()
    finally:
        server.terminate()


# -- demo -----------------------------------------------------------------------------------------


def _demo(options: argparse.Namespace) -> None:
    """Train on a data set that scikit-learn ships, compile, compare bit for bit, time."""
    try:
        import xgboost
        from sklearn.datasets import load_breast_cancer
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise InputError(
            f"demo: {error.name} is missing; install it with: pip install xgboost scikit-learn"
        ) from None
    import numpy as np

    from . import api
    from .probe_rows import hard_rows, typical_rows

    data = load_breast_cancer()
    train, test, target, _ = train_test_split(
        data.data.astype(np.float32), data.target, random_state=0
    )
    model = xgboost.XGBClassifier(n_estimators=500, max_depth=6, learning_rate=0.05, random_state=0)
    print("training an XGBClassifier of 500 trees on the Wisconsin breast cancer data ...")
    model.fit(train, target)
    begin = time.perf_counter()
    predictor = api.build(model)
    print(f"compiled in {time.perf_counter() - begin:.1f} s, the import of TVM included\n")
    for smallest, schedule in predictor.schedules.items():
        print(f"batches of {smallest} and more:\n{schedule}\n")
    rows = np.concatenate([test, hard_rows(predictor.forest, 4000)])
    _prove_equal(predictor, model, rows)
    print("\ntime per call on one thread, distinct batches in rotation:")
    model.set_params(n_jobs=1)
    for size in (1, 64, 4096):
        batches = [typical_rows(predictor.forest, size, seed) for seed in range(8)]
        ours = _best_time(lambda rows: predictor.predict_margin(rows, n_jobs=1), batches)
        theirs = _best_time(lambda rows: model.predict(rows, output_margin=True), batches)
        print(
            f"  batch {size:5}: tvm_forest {ours * 1e6:9.1f} us,  XGBoost {theirs * 1e6:9.1f} us,"
            f"  ratio {theirs / ours:5.1f}"
        )


def _prove_equal(predictor: Predictor, model: Any, rows: Array) -> None:
    """Compare margins and labels with XGBoost's own; a difference is an error."""
    import numpy as np

    ours, theirs = predictor.predict_margin(rows), model.predict(rows, output_margin=True)
    equal = int(np.count_nonzero(ours.view(np.uint32) == theirs.view(np.uint32)))
    print(f"margins equal to XGBoost's bit for bit: {equal} of {len(rows)} rows")
    print("(test rows, then rows on thresholds, beside them, NaN, infinities, denormals)")
    if equal != len(rows):
        row = int(np.argmax(ours != theirs))
        raise ForestError(
            f"demo: row {row}: margin {ours[row]!r} differs from XGBoost's {theirs[row]!r}; "
            "please report this"
        )
    labels = int(np.count_nonzero(predictor.predict(rows) == model.predict(rows)))
    print(f"labels equal: {labels} of {len(rows)}")


def _best_time(function: Callable[[Any], Any], batches: Sequence[Any], repeats: int = 5) -> float:
    """Return seconds of one call, the best of some rounds over all batches."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for batch in batches:
            function(batch)
        times.append((time.perf_counter() - begin) / len(batches))
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
