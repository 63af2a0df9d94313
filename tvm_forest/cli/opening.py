"""Loads a saved predictor or compiles a model, which most commands begin with."""

import argparse
from typing import Any

from .. import api
from ..errors import InputError
from ..system import archive


def open_predictor(
    options: argparse.Namespace, model: str | None = None, wait: bool = True, schedule: Any = None
) -> Any:
    """Load a saved predictor, or compile a model.

    Args:
        options: the options of the command.
        model: path of the model or saved predictor; None for `options.model`.
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
