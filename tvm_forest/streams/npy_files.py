"""Reads and writes numpy's .npy files.

takes: open .npy files; gives: batches of their rows, and files of predictions.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib import format as npy

from ..errors import InputError
from ..forest import Array, Forest
from ..system.archive import HEADER_ERRORS
from .batches import Batch, Columns, path_of
from .formats import AS_IS, Predicted, Reading

_READ_HEADER = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def _is_length(value: Any) -> bool:
    return type(value) is int and value >= 0


class NpyRows:
    """Rows of a two-dimensional array in a .npy file."""

    names: list[str] | None = None
    added: tuple[str, ...] = ()

    def __init__(self, file: Any, where: str, forest: Forest, reading: Reading = AS_IS) -> None:
        """Read the shape and the dtype of the array, from the header of the file.

        Raises:
            InputError: the file is damaged, the array is not (R, F) numbers, or its rows are not
                one after the other in a stream.
        """
        self._file, self._where, self._done = file, where, 0
        try:
            version = npy.read_magic(file)
            if version not in _READ_HEADER:
                raise ValueError(f"version {version} of the format is unknown")
            shape, is_by_columns, dtype = _READ_HEADER[version](file)
        except (OSError, ValueError, EOFError, *HEADER_ERRORS) as error:
            raise InputError(f"{where}: cannot be read: {error}") from None
        if len(shape) != 2 or not all(_is_length(n) for n in shape) or dtype.kind not in "fiub":
            raise InputError(
                f"{where}: an array of shape {shape} and dtype {dtype}; save numbers, (R, F)"
            )
        self._shape, self._dtype = shape, dtype
        self._mapped = self._map() if is_by_columns else None

    def _map(self) -> Array:
        """Map an array in Fortran order into memory, as its rows are spread over the file.

        Raises:
            InputError: the file is a stream, or damaged.
        """
        name = path_of(self._file)
        if name is None:
            raise InputError(
                f"{self._where}: rows in Fortran order cannot be read one after the other; name a "
                "file, or save numpy.ascontiguousarray(rows)"
            )
        try:
            return np.load(name, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{self._where}: cannot be read: {error}") from None

    def batches(self, columns: Columns, size: int) -> Iterator[Batch]:
        """Yield batches of at most `size` rows, as described at `RowFile.batches`."""
        length, width = self._shape
        for self._done in range(0, max(1, length), size):
            count = min(size, length - self._done)
            if self._mapped is not None:
                yield Batch(np.array(self._mapped[self._done : self._done + count]), [], count)
                continue
            wanted = count * width * self._dtype.itemsize
            try:
                data = self._file.read(wanted)
            except (OSError, MemoryError, OverflowError) as error:
                raise InputError(f"{self._where}: cannot be read: {error}") from None
            if len(data) < wanted:
                raise InputError(
                    f"{self._where}: ends within the rows {self._done} to {self._done + count - 1} "
                    f"of {length}; the file is damaged"
                )
            rows = np.frombuffer(data, self._dtype).reshape(count, width)
            yield Batch(rows, [], count)

    def fraction(self) -> float | None:
        """Return the share of the file that has been read, from 0 to 1."""
        return self._done / max(1, self._shape[0])


class NpyTable:
    """A .npy file of predictions, whose header is rewritten once the number of rows is known."""

    def __init__(self, file: Any, where: str) -> None:
        """Prepare to write to a binary file object.

        Raises:
            InputError: it is not seekable, as the number of rows is written at the end.
        """
        self._file, self._where, self._length = file, where, 0
        self._form: tuple[Any, ...] = ()
        if not file.seekable():
            raise InputError(
                f"{where}: .npy begins with the number of rows, which is known at the end; name a "
                "file, or use another format"
            )

    def write(self, kept: dict[str, Any], predicted: Predicted) -> None:
        """Append predictions.

        Raises:
            InputError: there are kept columns, or predictions that are not one array of numbers or
                texts.
        """
        result = predicted.result
        if kept:
            raise InputError(f"{self._where}: .npy holds no kept columns; use another format")
        if not isinstance(result, np.ndarray) or result.dtype == object:
            raise InputError(
                f"{self._where}: .npy holds one array of numbers or texts of one length; use "
                "another format for reasons, several targets and labels of other kinds"
            )
        if not self._form:
            self._form = (result.dtype, result.shape[1:])
            self._file.write(self._make_header())
        self._file.write(np.ascontiguousarray(result).data if result.size else b"")
        self._length += len(result)

    def close(self) -> None:
        """Write the header again, with the number of rows."""
        self._file.seek(0)
        self._file.write(self._make_header())

    def abandon(self) -> None:
        """Do nothing: there is nothing to free."""

    def _make_header(self) -> bytes:
        """Return the header; numpy pads it, so its length does not change with the row count."""
        dtype, shape = self._form
        about = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False}
        header = io.BytesIO()
        npy.write_array_header_1_0(header, {**about, "shape": (self._length, *shape)})
        return header.getvalue()
