"""The command `predict`: from a file of rows to predictions."""

import argparse

from .. import api
from . import files


def run(options: argparse.Namespace) -> None:
    """Predict rows of a file, and print or write what comes of it."""
    files.check_output(options.output)  # before the model is compiled
    forest = api.load(options.model)
    rows = files.read_rows(options.rows, forest, "predict")
    predictor = api.build(forest, options.target, n_jobs=options.n_jobs)
    files.write_result(getattr(predictor, options.kind)(rows), options.output)
