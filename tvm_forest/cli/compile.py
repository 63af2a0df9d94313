"""The command `compile`: a model as a saved predictor; what opens one, or compiles a model."""

import argparse
import itertools
from typing import Any

from .. import api, archive
from ..errors import InputError
from ..predictor.exporting.toolchain import KINDS


def run(options: argparse.Namespace) -> None:
    """Compile a model, and write what `predict` and `load_predictor` read.

    Raises:
        InputError: the output has the suffix of a library.
    """
    suffix = options.output.suffix.lower()
    if suffix in itertools.chain(*KINDS.values()):
        raise InputError(
            f"compile: argument '--output': '{options.output}' has the suffix of what `tvm-forest "
            "export` writes, and this writes a saved predictor; use that command, or name a .tvmf"
        )
    archive.check_place(options.output, "compile: argument '--output'")  # before it is compiled
    open_predictor(options).save(options.output)
    print(options.output)


def open_predictor(
    options: argparse.Namespace, model: str | None = None, wait: bool = True, schedule: Any = None
) -> Any:
    """Return the predictor of a saved one, or of a model that is compiled.

    Args:
        options: of the command.
        model: path of the model; None for that of the options.
        wait, schedule: see `tvm_forest.build`.

    Raises:
        InputError: a target is given for what is compiled already.
    """
    path = options.model if model is None else model
    if not archive.is_archive_file(path):
        return api.build(path, options.target or "llvm", schedule=schedule, wait=wait)
    if options.target is not None:
        raise InputError(
            f"{options.command}: argument '--target': {options.target!r}, but {path!r} is "
            "compiled already; give the model from which it was made"
        )
    return api.load_predictor(path, recompile=options.recompile)
