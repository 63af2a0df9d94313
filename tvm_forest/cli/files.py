"""Files that commands are given: rows that are read at once, models, and saved predictors.

takes: paths; gives: arrays, Predictors.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np

from .. import api, archive
from ..archive import HEADER_ERRORS
from ..errors import InputError
from ..forest import Array, Forest
from ..streams.batches import check_present, list_some
from ..streams.headers import is_number, names_columns


def read_rows(path: Path, forest: Forest, command: str, header: bool | None = None) -> Any:
    """Read rows from .npy or .csv; errors name the command.

    Empty fields of a .csv are missing values.

    Args:
        path: of the file.
        forest: the model.
        command: begins messages.
        header: whether the first line of a .csv names the columns, see `names_columns`.

    Raises:
        InputError: no such file, another kind of file, or text that is no number.
    """
    where = f"{command}: rows file '{path}'"
    if path.suffix not in (".npy", ".csv"):
        raise InputError(f"{where}: suffix {path.suffix!r} is unknown; use .npy or .csv")
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        return _read_csv(path, where, forest, header)
    except (OSError, ValueError, EOFError, csv.Error, *HEADER_ERRORS) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: cannot be read: {error}") from None


def _read_csv(path: Path, where: str, forest: Forest, header: bool | None) -> Array:
    with path.open(newline="", encoding="utf-8") as file:
        lines = [(number, line) for number, line in enumerate(csv.reader(file), 1) if line]
    if lines and names_columns(lines[0][1], forest, where, header):
        _check_header(lines.pop(0)[1], where, forest)
    encoder = forest.encoder
    texts = set() if encoder is None else set(encoder.categories.tolist())
    rows = np.empty((len(lines), forest.given_width), object if texts else np.float64)
    for i, (number, line) in enumerate(lines):
        if len(line) != forest.given_width:
            raise InputError(
                f"{where}: line {number} has {len(line)} fields, the model has "
                f"{forest.given_width} features"
            )
        numbers = [x for at, x in enumerate(line) if at not in texts]
        wrong = next((x for x in numbers if x.strip() and not is_number(x)), None)
        if wrong is not None:
            raise InputError(f"{where}: line {number}: {wrong!r} is no number")
        rows[i] = [
            field if at in texts else float(field) if field.strip() else np.nan
            for at, field in enumerate(line)
        ]
    return rows


def _check_header(names: list[str], where: str, forest: Forest) -> None:
    """Columns must be those of the model, if it names any."""
    known, spelled = forest.given_names, forest.spell(names)
    if known is None or tuple(spelled) == known:
        return
    check_present(known, spelled, where)
    others = [name for name in spelled if name not in known]
    what = f"no column {list_some(others)}" if others else f"its columns as {list_some(known)}"
    raise InputError(f"{where}: the model has {what}; write the columns in its order")


def open_predictor(options: argparse.Namespace, model: str | None = None, wait: bool = True) -> Any:
    """Return the predictor of a saved one, or of a model that is compiled.

    Args:
        options: of the command.
        model: path of the model; None for that of the options.
        wait: see `tvm_forest.build`.

    Raises:
        InputError: a target is given for what is compiled already.
    """
    path = options.model if model is None else model
    if not archive.is_archive_file(path):
        return api.build(path, options.target or "llvm", wait=wait)
    if options.target is not None:
        raise InputError(
            f"{options.command}: argument '--target': {options.target!r}, but {path!r} is "
            "compiled already; give the model from which it was made"
        )
    return api.load_predictor(path, recompile=options.recompile)
