"""Files of rows that are read at once.

takes: paths of .npy and .csv; gives: arrays.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from ..archive import HEADER_ERRORS
from ..errors import InputError
from ..forest import Array, Forest
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
    known = forest.given_names
    if known is not None and tuple(names) != known:
        wrong = next((n for n, k in zip(names, known, strict=False) if n != k), "(number of names)")
        raise InputError(
            f"{where}: column {wrong!r} differs from the model's names: {', '.join(known)}"
        )
