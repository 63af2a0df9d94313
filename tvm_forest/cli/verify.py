"""The command `verify`: compares predictions with the training library's."""

import argparse

from .. import api
from ..streams.reading import read_rows


def run(options: argparse.Namespace) -> int:
    """Print the report of a comparison; return 1 if something differs, else 0.

    Raises:
        ForestError: see `tvm_forest.verify`; or the file of rows cannot be read.
    """
    rows = None
    if options.rows is not None:
        rows = read_rows(options.rows, api.load(options.model), "verify", options.header)
    report = api.verify(options.model, rows, target=options.target, n_rows=options.n_rows)
    print(report)
    return 0 if report.ok else 1
