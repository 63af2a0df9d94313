"""The command `predict`: reads files of rows and writes files of predictions."""

import argparse
import sys
from typing import Any

from .. import streams
from ..errors import InputError
from ..streams import places
from ..streams.places import addresses
from .opening import open_predictor


def run(options: argparse.Namespace) -> None:
    """Predict rows of files or of standard input, and write the predictions.

    Raises:
        InputError: a file cannot be read or written, or an argument does not fit its format.
        BrokenPipeError: nobody reads standard output any more.
        ForestError: see `open_predictor` and `streams.predict_file`.
    """
    writes_here = options.output is None or options.output == "-"
    source: Any = _open_input() if options.rows == ["-"] else options.rows
    target: Any = sys.stdout.buffer if writes_here else options.output
    target_format = options.output_format or ("csv" if writes_here else None)
    if writes_here and target_format == "npy":
        raise InputError(
            f"{places.OUTPUT}: .npy begins with the number of rows, which is known at the end; "
            "name a file, or use another format"
        )
    places.find_files(source, target, options.format, target_format)  # before a model is compiled
    predictor = open_predictor(options)
    try:
        count = streams.predict_file(
            predictor,
            source,
            target,
            options.keep,
            options.kind,
            source_format=options.format,
            target_format=target_format,
            header=options.header,
            delimiter=options.delimiter,
            decimal=options.decimal,
            missing=options.missing,
            bad_rows=options.bad_rows,
            rejects=options.rejects,
            n_jobs=options.n_jobs,
            quantiles=options.quantiles,
            progress=False if writes_here and sys.stdout.isatty() else None,
        )
    except InputError as error:
        if writes_here and isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None  # as with all other commands
        raise
    if count.skipped:
        where = (
            ""
            if options.rejects is None
            else f"; {addresses.hide_secrets(options.rejects)} says why"
        )
        print(f"tvm-forest: {count.skipped} bad rows left out{where}", file=sys.stderr)


def _open_input() -> Any:
    """Open standard input again: a reading thread may hold a lock on Python's own at exit."""
    return open(sys.stdin.fileno(), "rb", closefd=False)
