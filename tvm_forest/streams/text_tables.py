"""Writes predictions as CSV, tab-separated values and JSON lines.

takes: columns; gives: text from which numbers read back with the same bits.
"""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

from ..errors import InputError, RowError
from .formats import Predicted


class TextTable:
    """Base class of text files of predictions, which are written line by line."""

    def __init__(self, file: Any, where: str, has_names: bool) -> None:
        """Prepare to write to a binary file object.

        Args:
            file: the file object.
            where: beginning of messages.
            has_names: whether the columns of the rows have names.
        """
        self._file, self._where, self._has_names = file, where, has_names
        self._is_new = True

    def write(self, kept: dict[str, Any], predicted: Predicted) -> None:
        """Append rows: kept columns by name, and predictions."""
        columns = {name: self._to_list(name, values) for name, values in kept.items()}
        columns |= {name: values.tolist() for name, values in predicted.columns.items()}
        self._file.write(self._to_text(columns).encode())
        self._is_new = False

    def close(self) -> None:
        """Do nothing: everything is written."""

    def abandon(self) -> None:
        """Do nothing: there is nothing to free."""

    def _to_text(self, columns: dict[str, list[Any]]) -> str:
        raise NotImplementedError

    def _to_list(self, name: str, values: Any) -> list[Any]:
        """Return a kept column as a list of values that text can hold.

        Raises:
            InputError: the column holds lists, objects or bytes.
        """
        if isinstance(values, list):
            return values
        import pyarrow

        types, kind = pyarrow.types, values.type
        if types.is_float16(kind):
            return values.cast(pyarrow.float32()).to_pylist()
        is_number = types.is_integer(kind) or types.is_floating(kind)
        if is_number or types.is_boolean(kind) or types.is_null(kind) or types.is_string(kind):
            return values.to_pylist()
        try:
            if types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind):
                raise ValueError("text has no form for it")
            return values.cast(pyarrow.string()).to_pylist()
        except (ValueError, NotImplementedError) as error:
            raise InputError(
                f"{self._where}: kept column '{name}' of type {kind}: {error}; write Parquet or "
                "Arrow"
            ) from None


class SeparatedTable(TextTable):
    """A CSV file; its first line names the columns if the columns of the rows have names."""

    delimiter = ","

    def _to_list(self, name: str, values: Any) -> list[Any]:
        if isinstance(values, list) and any(isinstance(value, dict | list) for value in values):
            raise InputError(
                f"{self._where}: kept column '{name}' holds lists or objects, which this format "
                "lacks; write JSON lines"
            )
        return super()._to_list(name, values)

    def _to_text(self, columns: dict[str, list[Any]]) -> str:
        text = io.StringIO()
        writer = csv.writer(text, delimiter=self.delimiter, lineterminator="\n")
        if self._is_new and self._has_names:
            writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        return text.getvalue()


class TabbedTable(SeparatedTable):
    """A file of tab-separated values."""

    delimiter = "\t"


class JsonTable(TextTable):
    """A file of JSON lines, an object for each row.

    NaN, which JSON lacks, becomes null. Infinities are refused, and so are lists that hold NaN.
    """

    def _to_text(self, columns: dict[str, list[Any]]) -> str:
        for name, values in columns.items():
            columns[name] = [self._to_json(name, x) if type(x) is float else x for x in values]
        rows = zip(*columns.values(), strict=True)
        return "".join(
            self._write_row(at, dict(zip(columns, row, strict=True))) for at, row in enumerate(rows)
        )

    def _write_row(self, at: int, row: dict[str, Any]) -> str:
        try:
            return f"{json.dumps(row, allow_nan=False)}\n"
        except ValueError:
            raise RowError(
                self._where, at, "a list or an object holds NaN or an infinity, which JSON lacks"
            ) from None

    def _to_json(self, name: str, value: float) -> float | None:
        if math.isinf(value):
            raise InputError(
                f"{self._where}: column '{name}' is {value}, which JSON lacks; write another format"
            )
        return None if math.isnan(value) else value
