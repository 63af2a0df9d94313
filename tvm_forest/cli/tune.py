"""The command `tune`: searches for the fastest schedules."""

import argparse

from .. import api
from ..streams.reading import read_rows


def run(options: argparse.Namespace) -> None:
    """Search, print the schedules that were found, and print the call that uses them.

    Raises:
        ForestError: see `tvm_forest.tune`; or the file of rows cannot be read.
    """
    arguments = dict(vars(options))  # the names are those of `api.tune`, except these five
    model, rows, header = (arguments.pop(name) for name in ("model", "rows", "header"))
    del arguments["command"], arguments["verbose"]
    forest = api.load(model)
    rows = None if rows is None else read_rows(rows, forest, "tune", header)
    tuned = api.tune(forest, rows=rows, **arguments)
    for smallest, schedule in tuned.schedules.items():
        print(f"batches of {smallest} and more:\n{schedule}\n")
    print(tuned)
    if not tuned.finished:
        print("ended before the search did; run it again to go on")
    target = "" if options.target == "llvm" else f"{options.target!r}, "
    order = ", exact=False" if not options.exact else ""
    records = f"records={options.records!r}{order}"
    print(f"use it: tvm_forest.build({model!r}, {target}{records})")
