"""What most commands begin with: a saved predictor is read, or a model is compiled."""

import argparse
from typing import Any

from .. import api
from ..errors import InputError
from ..system import archive


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
