"""The command `profile`: how many rows of files end at each leaf of a model."""

import argparse

from .. import api
from ..streams.reading import read_rows
from ..system import archive


def run(options: argparse.Namespace) -> None:
    """Count, and write what `Profile.load` reads."""
    archive.check_place(options.output, "profile: argument '--output'")  # before it is compiled
    forest = api.load(options.model)
    counted = api.profile(forest, read_rows(options.rows, forest, "profile", options.header))
    counted.save(options.output)
    print(f"{options.output}: {counted.rows} rows at {len(counted.hits)} leaves")
