"""The command `calibrate`: times operations on this CPU, for the choice of schedules."""

import argparse

from rich.console import Console
from rich.progress import Progress

from ..errors import InputError
from ..search.machines import VARIABLE, own_file
from ..search.measuring.calibrating import calibrate
from ..system import archive
from ..target import parse_target


def run(options: argparse.Namespace) -> None:
    """Time this CPU's operations, and write them to `--out`, or to the user's own machine file.

    `build` and `tune` read the user's own file from then on.

    Raises:
        InputError: the file cannot be written; or `--out` is missing, and the user's own file is
            turned off.
        BuildError: TVM cannot compile.
    """
    file = own_file() if options.out is None else options.out
    if file is None:
        raise InputError(
            f"calibrate: the environment variable {VARIABLE} is 'off'; name a file by --out"
        )
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("calibrating")
        machine = calibrate(
            parse_target("llvm"), lambda done, all: progress.update(task, completed=done, total=all)
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    archive.write_file(file, machine.to_json().encode(), "calibrate: argument '--out'")
    print(f"{machine.name}: {len(machine.nanoseconds)} operations, written to {file}")
