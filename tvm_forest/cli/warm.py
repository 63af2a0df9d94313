"""The command `warm`: compiles code in advance for models that will be trained later."""

import argparse

from rich.console import Console
from rich.progress import Progress

from ..predictor.live.warming import warm


def run(options: argparse.Namespace) -> None:
    """Compile the code, with a progress bar.

    Raises:
        InputError: the cache is off, similar models cannot be generated, or the file cannot be
            written.
        BuildError: see `tvm_forest.warm`.
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
