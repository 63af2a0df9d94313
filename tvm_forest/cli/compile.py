"""The command `compile`: a model as a saved predictor."""

import argparse

from .. import archive
from .models import open_predictor


def run(options: argparse.Namespace) -> None:
    """Compile a model, and write what `predict` and `load_predictor` read."""
    archive.check_place(options.output, "compile: argument '--output'")  # before it is compiled
    open_predictor(options).save(options.output)
    print(options.output)
