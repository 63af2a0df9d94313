"""Counts the rows that are left out, and lists them in a file with reasons.

takes: files, numbers of rows, reasons; gives: their count, and a file with a line for each.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..errors import InputError
from .batches import Texts
from .formats import ARROW_STREAM, find_table
from .places import Files, refuse_unwritable
from .places.addresses import Address, check_place, open_replacement, to_place
from .places.packing import name_packed, pack
from .places.sources import Part, to_pure

WHERE = "predict: argument '--rejects'"
_NOTHING: Any = SimpleNamespace(columns={})  # predictions without columns


class RowCount(int):
    """The number of predicted rows.

    Attributes:
        skipped: number of rows that were left out.
    """

    skipped = 0


class Rejects:
    """Counts rows that are left out, and writes them to a file with the columns file, row, reason.

    Attributes:
        count: number of rows that were left out.
    """

    def __init__(self, path: Path | Address | None) -> None:
        """Begin to count; without a path, no file is written."""
        self.count, self._path, self._stack = 0, path, ExitStack()
        self._table: Any = None

    def __enter__(self) -> Rejects:
        if self._path is not None:
            kind, packed = name_packed(to_pure(self._path), None, WHERE, "its suffix")
            is_path = self._path.suffix.lower() != ARROW_STREAM
            with refuse_unwritable(self._path, WHERE):
                draft = self._stack.enter_context(open_replacement(self._path, WHERE))
                file = self._stack.enter_context(pack(draft, packed, WHERE))
                self._table = find_table(kind, is_path, True)(file, WHERE)
        return self

    def __exit__(self, *about: Any) -> None:
        with suppress(OSError):  # after an error, writing the rest may fail as well
            self._stack.__exit__(*about)

    def add(self, part: Part, reasons: dict[int, str]) -> None:
        """Count rows of the file `part`, and write why they are left out.

        Args:
            part: the file.
            reasons: the reason for each row, by the row's number in the file, from 0.

        Raises:
            InputError: the file of rejects cannot be written.
        """
        self.count += len(reasons)
        if self._table is None or not reasons:
            return
        rows = sorted(reasons)
        name = str(part.place) if isinstance(part.place, Path | Address) else "-"
        self._write(Texts([name] * len(rows)), rows, Texts([reasons[row] for row in rows]))

    def finish(self) -> None:
        """Complete the file, so that it appears under its name.

        Raises:
            InputError: it cannot be written.
        """
        if self._table is None:
            return
        if not self.count:
            self._write(Texts(), [], Texts())  # the columns' names only
        with refuse_unwritable(self._path, WHERE):
            self._table.close()
            self._stack.close()

    def _write(self, files: Texts, rows: list[int], reasons: Texts) -> None:
        with refuse_unwritable(self._path, WHERE):
            self._table.write({"file": files, "row": rows, "reason": reasons}, _NOTHING)


def check_rejects(place: Any, files: Files) -> Path | Address | None:
    """Return the path or address of the file of rejects; None if none was given.

    Raises:
        InputError: it cannot be written, is a file of rows or of predictions, or a .npy file.
    """
    if place is None:
        return None
    path = to_place(place, WHERE)
    places = [files.target, *(part.place for part in files.parts)]
    if path.resolve() in [other.resolve() for other in places if isinstance(other, Path | Address)]:
        raise InputError(f"{WHERE}: '{path}' is a file of rows or of predictions; name another one")
    if name_packed(to_pure(path), None, WHERE, "its suffix")[0] == "npy":
        raise InputError(f"{WHERE}: .npy holds numbers alone; write CSV, JSON lines or Parquet")
    check_place(path, WHERE)
    return path
