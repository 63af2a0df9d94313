"""Reads and writes Parquet and Arrow IPC, with pyarrow.

takes: open files; gives: batches of their rows, and files of predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from ..errors import InputError, RowError
from ..forest import Array, Forest
from ..system import archive
from .batches import Batch, Columns, Texts, find_added, import_arrow, native_of, take_columns
from .formats import AS_IS, Predicted, Reading

MAX_GROUP_ROWS = 1 << 18
"""Most rows of a row group in a file of predictions."""

MAX_GROUP_BYTES = 1 << 25
"""Bytes of buffered predictions from which they are written as a row group."""

BUFFER_BYTES = 1 << 16
"""Bytes of each column of a Parquet file to read at once, instead of a whole row group."""

_IPC_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


@contextmanager
def _refuse_damaged(where: str, locate: Callable[[], str] = str) -> Iterator[None]:
    """Turn pyarrow's errors about a file into InputError; `locate` gives the place in the file."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, TypeError, NotImplementedError, MemoryError) as error:
        raise InputError(f"{where}{locate()}: cannot be read: {error}") from None


class Taken:
    """Converts record batches of a file to batches with the columns that are used.

    Attributes:
        names, added: see `RowFile`.
    """

    def __init__(self, names: list[str], forest: Forest, reading: Reading, arrow: Any) -> None:
        folders = find_added(names, reading)
        self.names, self.added = [*names, *folders], tuple(folders)
        self._folders, self._arrow = folders, arrow
        self._has_categories = bool(
            forest.category_rule
            or forest.category_names
            or forest.pandas_categories
            or forest.encoder
        )

    def list_own(self, columns: Columns) -> list[str]:
        """Return the names of wanted columns that are in the file, not added from folder names."""
        return [name for name in columns.wanted if name not in self._folders]

    def take(self, batch: Any, columns: Columns, categories: Collection[str] = ()) -> Batch:
        """Return a batch with the wanted columns of a record batch.

        Columns named in `categories` hold category labels.
        """
        for name in columns.wanted:
            if name in self._folders:
                value = self._folders[name]
                kind = self._arrow.string() if value is None else None
                column = self._arrow.repeat(self._arrow.scalar(value, kind), batch.num_rows)
                batch = batch.append_column(name, column)
        if not self._has_categories:  # dictionary-encoded numbers are not categories
            for name in columns.features or ():
                batch = self._decode(batch, batch.schema.get_field_index(name))
        return take_columns(batch, columns, self._arrow, categories)

    def _decode(self, batch: Any, at: int) -> Any:
        kind, types = batch.schema.field(at).type, self._arrow.types
        if not types.is_dictionary(kind) or not (
            types.is_integer(kind.value_type)
            or types.is_floating(kind.value_type)
            or types.is_decimal(kind.value_type)
        ):
            return batch
        return batch.set_column(at, batch.schema.names[at], batch.column(at).dictionary_decode())


class ParquetRows:
    """Rows of a Parquet file, read a few pages at a time."""

    def __init__(self, file: Any, where: str, forest: Forest, reading: Reading = AS_IS) -> None:
        """Read the names of the columns, from the footer of the file.

        Raises:
            InputError: the file is damaged or a pipe, or pyarrow is not installed.
        """
        self._arrow, self._where = import_arrow(where), where
        if not file.seekable():
            raise InputError(
                f"{where}: Parquet is read from its end, which a pipe does not give; name a file, "
                "or pipe Arrow IPC"
            )
        from pyarrow import parquet

        with _refuse_damaged(where):
            place = native_of(file) or file
            far = self._is_far = place is not file and not isinstance(place, str)
            self._file = parquet.ParquetFile(place, pre_buffer=far, buffer_size=BUFFER_BYTES)
            schema = self._file.schema_arrow
        self._taken = Taken(list(schema.names), forest, reading, self._arrow)
        self.names: list[str] | None = self._taken.names
        self.added = self._taken.added
        about = (schema.pandas_metadata or {}).get("columns", ())
        # Parquet stores the labels themselves, so numeric labels look like numbers.
        self._categories = {x["name"] for x in about if x["pandas_type"] == "categorical"}
        self._done = 0

    def batches(self, columns: Columns, size: int) -> Iterator[Batch]:
        """Yield batches of at most `size` rows, as described at `RowFile.batches`."""
        with _refuse_damaged(self._where, self._locate):
            if not self._file.metadata.num_rows:
                empty = self._arrow.RecordBatch.from_pylist([], schema=self._file.schema_arrow)
                yield self._take(empty, columns)
            own = self._taken.list_own(columns)
            # From a remote store, a whole row group is fetched at once.
            groups = range(self._file.num_row_groups) if self._is_far else [None]
            for group in groups:
                part = None if group is None else [group]
                for batch in self._file.iter_batches(size, part, own):
                    yield self._take(batch, columns)
                    self._done += batch.num_rows
        if self._done != self._file.metadata.num_rows:
            raise InputError(
                f"{self._where}: {self._done} rows instead of {self._file.metadata.num_rows}; the "
                "file is damaged"
            )

    def fraction(self) -> float | None:
        """Return the share of the file that has been read, from 0 to 1."""
        return self._done / max(1, self._file.metadata.num_rows)

    def _take(self, batch: Any, columns: Columns) -> Batch:
        return self._taken.take(batch, columns, self._categories)

    def _locate(self) -> str:
        """Return the place in the file for error messages: row group and row."""
        begin, about = 0, self._file.metadata
        for group in range(about.num_row_groups):
            begin += about.row_group(group).num_rows
            if self._done < begin:
                return f": row group {group}, after row {self._done}"
        return ""


class ArrowRows:
    """Rows of Arrow IPC, a file or a stream."""

    def __init__(self, file: Any, where: str, forest: Forest, reading: Reading = AS_IS) -> None:
        """Read the names of the columns, from the schema of the file.

        Raises:
            InputError: the file is damaged, or a pipe unless it holds a stream; or pyarrow is not
                installed.
        """
        self._arrow, self._where = import_arrow(where), where
        self._file, self._done = file, 0
        self._part, self._total = 0, 0  # record batches
        self._is_file = file.peek(len(_IPC_MAGIC)).startswith(_IPC_MAGIC)
        if self._is_file and not file.seekable():
            raise InputError(
                f"{where}: an IPC file is read from its end, which a pipe does not give; name the "
                "file, or pipe an IPC stream"
            )
        if self._is_file:  # mapped pages are read when they are used
            place = native_of(file) or file
            self._file = self._arrow.memory_map(place) if isinstance(place, str) else place
        with _refuse_damaged(where):
            self._taken = Taken(list(self._open(None).schema.names), forest, reading, self._arrow)
        self.names: list[str] | None = self._taken.names
        self.added = self._taken.added

    def _open(self, wanted: list[int] | None) -> Any:
        ipc = self._arrow.ipc
        options = ipc.IpcReadOptions(included_fields=wanted or [])
        if self._is_file:
            return ipc.open_file(self._file, options=options)
        if wanted is None:  # the schema is the first message, which is read only once
            self._tail = _Tail(self._file)
            self._stream = ipc.open_stream(self._tail)
        return self._stream

    def batches(self, columns: Columns, size: int) -> Iterator[Batch]:
        """Yield batches of at most `size` rows, as described at `RowFile.batches`."""
        assert self.names is not None
        with _refuse_damaged(self._where, lambda: f": after row {self._done}"):
            opened = self._open([self.names.index(x) for x in self._taken.list_own(columns)])
            if self._is_file:
                self._total = opened.num_record_batches
            for number, batch in enumerate(self._list(opened), 1):
                batch.validate(full=True)  # a damaged file could make it read outside of buffers
                for begin in range(0, batch.num_rows, size):
                    part = batch.slice(begin, size)
                    yield self._taken.take(part, columns)
                    self._done += part.num_rows
                self._part = number
            if not self._is_file and self._tail.last != _END_OF_STREAM:
                raise ValueError("the mark at the end of the stream is missing")
            if not self._done:
                empty = self._arrow.RecordBatch.from_pylist([], schema=opened.schema)
                yield self._taken.take(empty, columns)

    def _list(self, opened: Any) -> Iterator[Any]:
        if self._is_file:
            return (opened.get_batch(i) for i in range(opened.num_record_batches))
        return iter(opened)

    def fraction(self) -> float | None:
        """Return the share of the file that has been read, or None if it is not known."""
        return self._part / self._total if self._total else None


class _Tail:
    """A stream that records its last bytes, since pyarrow accepts a stream that is cut off.

    Attributes:
        last: the last 8 bytes that were read.
    """

    closed = False

    def __init__(self, file: Any) -> None:
        self._file, self.last = file, b""

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.last = (self.last + data[-len(_END_OF_STREAM) :])[-len(_END_OF_STREAM) :]
        return bytes(data)


class ArrowTable:
    """Base class of the files of predictions in Parquet and Arrow IPC."""

    _max_rows = MAX_GROUP_ROWS

    def __init__(self, file: Any, where: str) -> None:
        """Prepare to write to a binary file object; `where` begins messages.

        Raises:
            InputError: pyarrow is not installed.
        """
        self._arrow, self._where, self._file = import_arrow(where), where, file
        self._schema: Any = None
        self._writer: Any = None
        self._waiting: list[Any] = []

    def write(self, kept: dict[str, Any], predicted: Predicted) -> None:
        """Append rows: kept columns by name, and predictions."""
        columns = {**kept, **predicted.columns}
        arrays = [self._to_array(name, values) for name, values in columns.items()]
        if self._schema is None:
            fields = zip(columns, (x.type for x in arrays), strict=True)
            self._schema = self._arrow.schema(list(fields))
            self._writer = self._open(self._schema)
        batch = self._arrow.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._waiting.append(batch)
        waiting = sum(x.nbytes for x in self._waiting)
        rows = sum(x.num_rows for x in self._waiting)
        if rows >= self._max_rows or waiting >= MAX_GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        """Write buffered rows and the end of the file."""
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Close the writer after an error; the file is incomplete."""
        if self._writer is not None:
            self._writer.close()

    def _open(self, schema: Any) -> Any:
        raise NotImplementedError

    def _flush(self) -> None:
        if self._waiting:
            table = self._arrow.Table.from_batches(self._waiting)
            self._waiting = []
            self._writer.write_table(table, MAX_GROUP_ROWS)

    def _to_array(self, name: str, values: Any) -> Any:
        """Return a column as a pyarrow array, with the type that it had in earlier batches.

        Raises:
            InputError: its type differs, or a value does not fit.
        """
        known = None if self._schema is None else self._schema.field(name).type
        if isinstance(values, self._arrow.Array):
            array = values
        else:
            wanted = known or (self._arrow.string() if _is_text(values) else None)
            array = self._convert(name, values, wanted)
        if known is not None and array.type != known:
            raise InputError(
                f"{self._where}: column '{name}' is {array.type}, but {known} in the rows before; "
                "give files with equal types"
            )
        return array

    def _convert(self, name: str, values: Any, wanted: Any) -> Any:
        """Return values as a pyarrow array, after a check that no value was changed.

        pyarrow infers the type of a column from its first values, and truncates later values that
        do not fit.

        Raises:
            RowError, InputError: a value does not fit.
        """
        try:
            array = self._arrow.array(values, wanted)
            given = values.tolist() if isinstance(values, np.ndarray) else values
            if not _may_differ(values) or _are_equal(given, array.to_pylist()):
                return array
        except (ValueError, TypeError, OverflowError) as error:
            wanted, why = wanted or self._type_of_first(values), f" ({error})"
        else:
            wanted, why = array.type, ""
        for row, value in enumerate(values):
            try:
                if _are_equal(value, self._arrow.array([value], wanted)[0].as_py()):
                    continue
            except (ValueError, TypeError, OverflowError) as error:
                why = f" ({error})"
            into = "" if wanted is None else f" into {wanted}, the type of the rows before"
            what = f"column '{name}': {archive.shorten(value)} does not fit{into}{why}"
            raise RowError(self._where, row, f"{what}; write JSON lines, which has no types")
        raise InputError(f"{self._where}: column '{name}': {wanted}{why}; write JSON lines")

    def _type_of_first(self, values: Any) -> Any:
        """Return the pyarrow type of the first value that is not None; None if there is none."""
        first = next((value for value in values if value is not None), None)
        with suppress(ValueError, TypeError, OverflowError):
            return self._arrow.array([first]).type
        return None


def _may_differ(values: Any) -> bool:
    """Return whether values can be of several types, so that one may not fit the column's."""
    return values.dtype == object if isinstance(values, np.ndarray) else not _is_text(values)


def _are_equal(given: Any, held: Any) -> bool:
    """Return whether pyarrow holds a value unchanged; a key that a dict lacks counts as None."""
    if isinstance(given, dict) and isinstance(held, dict):
        names = given.keys() | held.keys()
        return all(_are_equal(given.get(name), held.get(name)) for name in names)
    if isinstance(given, list) and isinstance(held, list):
        return len(given) == len(held) and all(map(_are_equal, given, held))
    if isinstance(given, bool) is not isinstance(held, bool):  # in Python True equals 1
        return False
    return bool(given == held) or (given != given and held != held)


def _is_text(values: Sequence[Any] | Array) -> bool:
    """Return whether a column holds texts, by its Python type or dtype, even if it is empty."""
    is_array = isinstance(values, np.ndarray) and values.dtype.kind == "U"
    return is_array or isinstance(values, Texts)


class ParquetTable(ArrowTable):
    """A Parquet file of predictions."""

    def _open(self, schema: Any) -> Any:
        from pyarrow import parquet

        texts = [field.name for field in schema if self._arrow.types.is_string(field.type)]
        return parquet.ParquetWriter(self._file, schema, use_dictionary=texts)  # rest repeats less


class ArrowFileTable(ArrowTable):
    """An Arrow IPC file of predictions."""

    def _open(self, schema: Any) -> Any:
        return self._arrow.ipc.new_file(self._file, schema)


class ArrowStreamTable(ArrowTable):
    """An Arrow IPC stream of predictions; every batch is written without delay."""

    _max_rows = 0

    def _open(self, schema: Any) -> Any:
        return self._arrow.ipc.new_stream(self._file, schema)
