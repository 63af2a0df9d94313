"""The command `warm`: code for models that are to come."""

import argparse

from rich.console import Console
from rich.progress import Progress

from ..predictor.live.warming import warm


def run(options: argparse.Namespace) -> None:
    """Compile, with a bar that shows how far it is.

    Raises:
        InputError: there is no cache, such models cannot be drawn, or the file cannot be written.
    """
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("compiling")
        found = warm(
            options.model,
            options.target or "llvm",
            processes=options.processes,
            out=options.out,
            done=lambda done, models: progress.update(task, completed=done, total=models),
        )
    print(f"{found.models} models drawn, for {found.compiled} of which code was compiled")
