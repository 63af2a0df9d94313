"""The command `export`: a model as a shared library."""

import argparse

from .. import api
from ..predictor import exporting
from ..target import parse_target


def run(options: argparse.Namespace) -> None:
    """Write a shared library and its C header."""
    target = parse_target(options.target)
    exporting.check_wishes(target, options.library, options.prefix)  # before the model is compiled
    api.build(options.model, target).export_library(options.library, options.prefix)
    written = [options.library, options.library.with_suffix(".h")]
    print(*written[: 1 if options.library.suffix == ".o" else 2], sep=", ")
