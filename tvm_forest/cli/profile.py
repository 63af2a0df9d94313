"""The command `profile`: counts how many rows of files reach each leaf of a model."""

import argparse

from .. import api
from ..streams.reading import read_rows
from ..system import archive


def run(options: argparse.Namespace) -> None:
    """Count the rows at each leaf, and write the file that `Profile.load` reads.

    Raises:
        InputError: the rows cannot be read, or the output cannot be written.
        ForestError: see `tvm_forest.profile`.
    """
    archive.check_place(options.output, "profile: argument '--output'")  # before it is compiled
    forest = api.load(options.model)
    counted = api.profile(forest, read_rows(options.rows, forest, "profile", options.header))
    counted.save(options.output)
    print(f"{options.output}: {counted.rows} rows at {len(counted.hits)} leaves")
