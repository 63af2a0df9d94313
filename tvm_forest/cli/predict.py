"""The command `predict`: from a file of rows to predictions."""

import argparse
import sys

from .. import api
from . import files


def run(options: argparse.Namespace) -> None:
    """Predict rows of a file, and print or write what comes of it."""
    if options.output is not None:
        files.check_output(options.output)
    forest = api.load(options.model)
    rows = files.read_rows(options.rows, forest)
    predictor = api.build(forest, options.target, n_jobs=options.n_jobs)
    result = getattr(predictor, options.kind)(rows)
    if options.output is None:
        files.write_text(result, sys.stdout)
    else:
        files.write_result(result, options.output)
