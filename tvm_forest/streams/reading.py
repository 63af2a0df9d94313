"""Reads the rows of all files batch by batch, ahead of their prediction.

takes: `Part`s, a model; gives: batches with the numbers of their rows, or all rows at once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from ..errors import InputError
from ..forest import Forest
from .batches import Batch, OpenRows, choose_columns, import_arrow, list_some
from .formats import TEXTS, Reading
from .places.sources import Part, find_sources, open_part

T = TypeVar("T")

DEPTH = 1
"""Items in the queue between the threads, besides the one that is being read."""

_WAIT_S = 0.1  # between two checks whether the reader should end

ALL = "all"
"""The word that users give to keep all columns."""


MAX_ROWS = 1 << 16
"""Most rows of a batch in `read_rows`, which returns all rows."""


class ReadBatch(NamedTuple):
    """A batch with facts about its file.

    Attributes:
        part: the file.
        keep: names of the columns that are kept.
        has_names: whether the file's columns have names.
        batch: the rows.
        first_row: number of the batch's first row in the file, from 0.
        fraction: fraction of all files that is read; None if unknown.
    """

    part: Part
    keep: tuple[str, ...]
    has_names: bool
    batch: Batch
    first_row: int
    fraction: float | None


def check_reading(reading: Reading, parts: list[Part]) -> None:
    """Raise InputError for options that are invalid, or that the format of a file does not have."""
    kinds = {part.format for part in parts}
    for name, given, formats, which in (
        ("header", reading.header, ("csv", "tsv"), "CSV and tab-separated values"),
        ("delimiter", reading.delimiter, ("csv",), "CSV"),
        ("decimal", reading.decimal, ("csv", "tsv"), "CSV and tab-separated values"),
        ("missing", tuple(reading.missing), TEXTS, "CSV, tab-separated values and JSON lines"),
    ):
        if given not in (None, (), ".") and not kinds <= {*formats}:
            raise InputError(
                f"predict: argument '{name}': {given!r}, and only {which} have one; leave it out"
            )
    for name, sign in (("delimiter", reading.delimiter or ","), ("decimal", reading.decimal)):
        if len(sign) != 1 or sign.isalnum() or sign in '"\r\n\0+-' or sign == "_":
            raise InputError(
                f"predict: argument '{name}': {sign!r} is no sign for this; give one such as ';'"
            )
    if reading.decimal == (reading.delimiter or ("," if "csv" in kinds else "\t")):
        raise InputError(
            f"predict: argument 'decimal': {reading.decimal!r} is between the fields as well; say "
            "--delimiter (delimiter=';')"
        )


def read_parts(
    parts: list[Part], forest: Forest, reading: Reading, size: int
) -> Iterator[ReadBatch]:
    """Yield the batches of all files, of at most `size` rows each.

    Raises:
        InputError: a file is damaged or lacks a column, or the columns to keep are not those of the
            first file.
    """
    types: dict[str, str] | None = None
    for number, part in enumerate(parts):
        with open_part(part) as file:
            own = reading._replace(folders=part.folders)
            rows = find_reader(part.format)(file, part.where, forest, own)
            reading = _name_kept(reading, rows.names, part, is_first=not number)
            columns = choose_columns(rows.names, forest, reading, part.where, rows.added)
            row = 0
            for batch in rows.batches(columns, size):
                found = _list_types(columns.kept, batch)
                types = types or found
                _check_types(types, found, part, parts[0])
                fraction = rows.fraction()
                done = None if fraction is None else (number + fraction) / len(parts)
                yield ReadBatch(part, columns.kept, rows.names is not None, batch, row, done)
                row += batch.span


def _name_kept(reading: Reading, names: list[str] | None, part: Part, is_first: bool) -> Reading:
    """Return the options, in which the first file's column names replace "keep all columns".

    Raises:
        InputError: a later file has other columns.
    """
    if not reading.keeps_all or not names:
        return reading
    if is_first and ALL in names:  # a column of this name
        return reading._replace(keep=(ALL,), keeps_all=False)
    if not reading.keep:
        return reading._replace(keep=tuple(names))
    others = [name for name in names if name not in reading.keep]
    if others:
        raise InputError(
            f"{part.where}: column {list_some(others)}, which the first file lacks, and all are "
            "kept; give files with equal columns, or name those to keep"
        )
    return reading


def _list_types(keep: tuple[str, ...], batch: Batch) -> dict[str, str]:
    """Return the pyarrow types of kept columns by name; columns of text files have none."""
    columns = zip(keep, batch.kept, strict=True)
    return {name: str(x.type) for name, x in columns if hasattr(x, "type")}


def _check_types(known: dict[str, str], found: dict[str, str], part: Part, first: Part) -> None:
    for name, kind in found.items():
        if known.get(name, kind) != kind:
            raise InputError(
                f"{part.where}: kept column '{name}' is {kind}, but {known[name]} in "
                f"'{first.place}'; give files with equal columns"
            )


def find_reader(name: str) -> OpenRows:
    """Return the class that reads a format; modules of other formats are not imported."""
    if name in ("parquet", "arrow"):
        from . import arrow_files

        return arrow_files.ParquetRows if name == "parquet" else arrow_files.ArrowRows
    if name == "npy":
        from .npy_files import NpyRows

        return NpyRows
    if name == "jsonl":
        from .text_rows import JsonRows

        return JsonRows
    from . import separated_rows

    return separated_rows.SeparatedRows if name == "csv" else separated_rows.TabbedRows


def read_rows(path: str | Path, forest: Forest, command: str, header: bool | None = None) -> Any:
    """Return all rows of a file, or of the files of a folder or pattern, at once.

    Args:
        path: see `predict_file`.
        forest: the model.
        command: name of the command, with which messages begin.
        header: whether the first lines of text files name the columns; None to find out.

    Returns:
        (R, F) numbers or objects, or a pyarrow table.

    Raises:
        InputError: see `predict_file`.
    """
    parts = find_sources(path, None, command).parts
    reads = read_parts(parts, forest, Reading(header=header), MAX_ROWS)
    found = [read.batch.rows for read in reads]
    if all(isinstance(rows, np.ndarray) for rows in found):
        return np.concatenate(found)
    return import_arrow(command).concat_tables(found)


# -- reading while others compute ----------------------------------------------------------------


@contextmanager
def read_ahead(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """Yield an iterator over items that a thread reads ahead.

    The thread ends with the block, or later if it waits for a pipe.

    An exception of the original iterator is raised by this one, at the same item.
    """
    reader = _ReadAhead(items)
    thread = threading.Thread(target=reader.run, name="tvm-forest-reader", daemon=True)
    thread.start()
    try:
        yield reader.take()
    finally:
        reader.ended.set()
        thread.join(10 * _WAIT_S)  # a thread that waits for a silent pipe cannot be ended


class _ReadAhead(Generic[T]):
    """The state that the reading and the consuming thread share."""

    def __init__(self, items: Iterator[T]) -> None:
        self.ended = threading.Event()
        self._items = items
        self._queue: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(DEPTH)

    def run(self) -> None:
        """Put items into the queue until there are no more, or `ended` is set."""
        try:
            for item in self._items:
                self._put((item, None))
                if self.ended.is_set():
                    return
            self._put((None, StopIteration()))
        except BaseException as error:  # it is raised by `take`
            self._put((None, error))
        finally:
            getattr(self._items, "close", bool)()

    def take(self) -> Iterator[T]:
        """Yield the items that the thread has read."""
        while True:
            item, error = self._queue.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            assert item is not None
            yield item

    def _put(self, entry: tuple[T | None, BaseException | None]) -> None:
        while not self.ended.is_set():
            try:
                return self._queue.put(entry, timeout=_WAIT_S)
            except queue.Full:
                continue
