"""The command `compile`: compiles a model and saves the predictor."""

import argparse
import itertools

import numpy as np

from ..errors import InputError
from ..predictor.exporting.toolchain import KINDS
from ..system import archive
from .opening import open_predictor


def run(options: argparse.Namespace) -> None:
    """Compile a model, and write the file that `predict` and `load_predictor` read.

    Raises:
        InputError: the output has the suffix of a library, or cannot be written.
        ForestError: see `open_predictor`.
    """
    suffix = options.output.suffix.lower()
    if suffix in itertools.chain(*KINDS.values()):
        raise InputError(
            f"compile: argument '--output': '{options.output}' has the suffix of what `tvm-forest "
            "export` writes, and this writes a saved predictor; use that command, or name a .tvmf"
        )
    archive.check_place(options.output, "compile: argument '--output'")  # before it is compiled
    predictor = open_predictor(options)
    if options.contributions:  # what is compiled before is in the file
        predictor.predict_contributions(np.empty((0, predictor.forest.given_width), object))
    predictor.save(options.output)
    print(options.output)
