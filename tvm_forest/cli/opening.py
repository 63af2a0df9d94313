"""Loads a saved predictor or compiles a model, which most commands begin with."""

import argparse
from typing import Any

from .. import api
from ..errors import InputError
from ..forest.profile import Profile
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
        InputError: a target or a profile is given for what is compiled already.
        ForestError: see `tvm_forest.build`, `Profile.load` and `tvm_forest.load_predictor`.
    """
    path, profile = options.model if model is None else model, getattr(options, "profile", None)
    if not archive.is_archive_file(path):
        hits = None if profile is None else Profile.load(profile)
        target = options.target or "llvm"
        return api.build(path, target, schedule=schedule, wait=wait, profile=hits)
    for name, given in (("target", options.target), ("profile", profile)):
        if given is not None:
            raise InputError(
                f"{options.command}: argument '--{name}': {str(given)!r}, but {path!r} is compiled "
                "already; give the model from which it was made"
            )
    return api.load_predictor(path, recompile=options.recompile)
