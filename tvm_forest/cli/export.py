"""The command `export`: a model as a library for C."""

import argparse

from ..predictor import exporting
from ..target import parse_target
from .files import open_predictor


def run(options: argparse.Namespace) -> None:
    """Write a library and its C header, or a package of sources."""
    target = parse_target(options.target or "llvm")
    exporting.check_wishes(target, options.library, options.prefix)  # before the model is compiled
    open_predictor(options).export_library(options.library, options.prefix)
    print(*exporting.list_files(options.library), sep=", ")
