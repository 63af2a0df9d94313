"""Files of rows and of predictions.

takes: paths of .npy and .csv; gives: arrays, and files.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from .. import archive
from ..errors import InputError
from ..forest import Array, Forest

OUTPUT = "predict: argument '--output'"


def read_rows(path: Path, forest: Forest, command: str) -> Any:
    """Read rows from .npy or .csv; errors name the command.

    A first line of a .csv that holds no numbers names the columns; empty fields are missing values.

    Raises:
        InputError: no such file, another kind of file, or text that is no number.
    """
    where = f"{command}: rows file '{path}'"
    if path.suffix not in (".npy", ".csv"):
        raise InputError(f"{where}: suffix {path.suffix!r} is unknown; use .npy or .csv")
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        return _read_csv(path, where, forest)
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: cannot be read: {error}") from None


def _read_csv(path: Path, where: str, forest: Forest) -> Array:
    with path.open(newline="", encoding="utf-8") as file:
        lines = [(number, line) for number, line in enumerate(csv.reader(file), 1) if line]
    if lines and not any(_is_number(field) for field in lines[0][1]):
        _check_header(lines.pop(0)[1], where, forest)
    rows = np.empty((len(lines), forest.row_width), np.float64)
    for i, (number, line) in enumerate(lines):
        if len(line) != forest.row_width:
            raise InputError(
                f"{where}: line {number} has {len(line)} fields, the model has "
                f"{forest.row_width} features"
            )
        wrong = next((x for x in line if x.strip() and not _is_number(x)), None)
        if wrong is not None:
            raise InputError(f"{where}: line {number}: {wrong!r} is no number")
        rows[i] = [float(field) if field.strip() else np.nan for field in line]
    return rows


def _check_header(names: list[str], where: str, forest: Forest) -> None:
    """Columns must be those of the model, if it names any."""
    known = forest.feature_names
    if known is not None and tuple(names) != known:
        wrong = next((n for n, k in zip(names, known, strict=False) if n != k), "(number of names)")
        raise InputError(
            f"{where}: column {wrong!r} differs from the model's names: {', '.join(known)}"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_output(path: Path | None) -> None:
    """Raise InputError unless predictions can be written there: a .npy, a .csv, or the terminal."""
    if path is not None:
        if path.suffix not in (".npy", ".csv"):
            raise InputError(f"{OUTPUT}: suffix {path.suffix!r} is unknown; use .npy or .csv")
        archive.check_place(path, OUTPUT)


def write_result(result: Array, path: Path | None) -> None:
    """Write predictions to a file, which appears whole or not at all, or to the terminal.

    CSV text reads back to the same bits.
    """
    data = io.BytesIO()
    if path is not None and path.suffix == ".npy":
        np.save(data, result)
    else:
        lines = (map(repr, np.atleast_1d(line).tolist()) for line in result)
        data.write("".join(",".join(line) + "\n" for line in lines).encode())
    if path is None:
        print(data.getvalue().decode(), end="")
    else:
        archive.write_file(path, data.getvalue(), OUTPUT)
