"""Batches of rows from files, and the choice of the columns that are used.

takes: column names, values; gives: `Batch`, with rows for a Predictor, and the columns to keep:
those that are written beside the predictions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..errors import InputError, RowError
from ..forest import Forest
from .formats import Reading

MAX_NUMBERS = 1 << 20
"""Most numbers of a batch, so that batches of wide models have fewer rows."""

_INDEX = re.compile(r"__index_level_\d+__")  # pandas' name of a frame's index in Parquet


class Texts(list[str]):
    """A column of texts; unlike a list, it is known to hold texts even if it is empty."""


class Batch(NamedTuple):
    """Consecutive rows of a file, some of which may have been left out.

    Attributes:
        rows: (R, F) array of numbers or objects, or a pyarrow table with the model's columns.
        kept: for each kept column its R values, a pyarrow array or a list.
        length: R.
        bad: for each row that was left out, its place among all rows of the batch, from 0, and what
            is wrong with it.
    """

    rows: Any
    kept: list[Any]
    length: int
    bad: dict[int, str] = {}

    @property
    def span(self) -> int:
        """Number of rows of the file that the batch covers, including those that were left out."""
        return self.length + len(self.bad)

    def find_place(self, row: int) -> int:
        """Return the place of row `row` among all rows of the batch, including those left out."""
        if not self.bad:
            return row
        return int(np.delete(np.arange(self.span), list(self.bad))[row])

    def cut(self, begin: int, end: int) -> Batch:
        """Return a batch with the rows `begin` to `end - 1`."""
        is_table = hasattr(self.rows, "schema")
        rows = self.rows.slice(begin, end - begin) if is_table else self.rows[begin:end]
        return Batch(rows, [column[begin:end] for column in self.kept], len(rows))


class Columns(NamedTuple):
    """The columns of a file that are used.

    Attributes:
        features: names of the model's columns, in its order; None if the file has no names, so that
            the model reads all columns.
        kept: names of the kept columns.
    """

    features: list[str] | None
    kept: tuple[str, ...]

    @property
    def wanted(self) -> list[str]:
        """Names of the columns that the model reads and of those that are kept, each once."""
        return list(dict.fromkeys([*(self.features or ()), *self.kept]))


class RowFile(Protocol):
    """An open file of rows.

    Attributes:
        names: names of its columns; None if the file has no names, [] if it is empty.
        added: the last of these names, for columns whose values come from folder names.
    """

    names: list[str] | None
    added: tuple[str, ...]

    def batches(self, columns: Columns, size: int) -> Iterator[Batch]:
        """Yield batches of at most `size` rows; for an empty file, one batch without rows.

        Raises:
            InputError: the file is damaged, or holds values of the wrong kind.
        """
        ...

    def fraction(self) -> float | None:
        """Return the fraction of the file that is read, from 0 to 1; None if it is unknown."""
        ...


OpenRows = Callable[[Any, str, Forest, Reading], RowFile]
"""Opens a binary file object as rows; the text is the beginning of messages."""


def choose_columns(
    names: list[str] | None,
    forest: Forest,
    reading: Reading,
    where: str,
    added: Sequence[str] = (),
) -> Columns:
    """Return which columns of a file the model reads, and which are kept.

    A model with column names reads these, and ignores others. A model without names reads all
    columns in their order, except those kept by name, the index of a pandas frame, and the columns
    `added` from folder names.

    Raises:
        InputError: a column is missing or occurs twice, the number of columns is not the
            model's, or the file has no names but columns are to be kept.
    """
    keep = reading.keep
    if names == []:  # an empty file
        return Columns(list(forest.given_names or ()), keep)
    if names is None:
        if keep or reading.keeps_all:
            raise InputError(
                f"{where}: its columns have no names, so none can be kept; leave --keep"
            )
        return Columns(None, ())
    features = find_features(names, forest, where)
    if features is None:
        others = set(added) if reading.keeps_all else {*added, *keep}
        features = [n for n in names if n not in others and not _INDEX.fullmatch(n)]
        if len(features) == forest.given_width + 1 and not features[0].strip():
            features = features[1:]  # pandas' index in CSV has no name
    columns = Columns(features, keep)
    check_present(columns.wanted, names, where)
    if len(features) != forest.given_width:
        raise InputError(
            f"{where}: {len(features)} columns are left for a model with {forest.given_width} "
            f"features: {list_some(features)}; keep the others with --keep"
        )
    return columns


def find_features(names: Sequence[str], forest: Forest, where: str) -> list[str] | None:
    """Return the names of the model's columns as the file spells them, in the model's order.

    The result is None if the model has no names of columns.

    Raises:
        InputError: a column is missing or occurs twice.
    """
    if forest.given_names is None:
        return None
    spelled = forest.spell(names)
    check_present(forest.given_names, spelled, where)
    own = dict(zip(spelled, names, strict=True))
    return [own[name] for name in forest.given_names]


def check_present(wanted: Sequence[str], names: Sequence[str], where: str) -> None:
    """Raise InputError unless each wanted column occurs exactly once."""
    missing = [name for name in wanted if name not in set(names)]
    if missing:
        raise InputError(f"{where}: no column {list_some(missing)} (have: {list_some(names)})")
    counts = Counter(names)
    doubled = [name for name in wanted if counts[name] > 1]
    if doubled:
        raise InputError(f"{where}: column {list_some(doubled)} occurs twice; rename one of them")


def locate_row(error: RowError, where: str, first: int, of: str = "") -> InputError:
    """Return an error that gives the number of a refused row in its file.

    Args:
        error: its `row` is counted from the beginning of the batch.
        where: beginning of the message.
        first: number in the file of the batch's first row.
        of: text to put after the row's number.
    """
    return InputError(f"{where}: row {first + error.row}{of} (counted from 0), {error.what}")


def list_some(names: Sequence[str]) -> str:
    """Return up to 8 names as text for messages."""
    return ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")


def import_arrow(where: str) -> ModuleType:
    """Return the module pyarrow.

    Raises:
        InputError: it is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        raise InputError(
            f"{where}: pyarrow is needed for this; pip install 'tvm-forest[streams]'"
        ) from None
    return pyarrow


def find_added(names: Sequence[str], reading: Reading) -> dict[str, Any]:
    """Return values of columns from folder names, by name, for those that the file lacks."""
    return {name: x for name, x in reading.folders.items() if name not in names}


def take_columns(
    batch: Any, columns: Columns, arrow: ModuleType, categories: Iterable[str] = ()
) -> Batch:
    """Return a batch with the wanted columns of a record batch.

    Columns in `categories`, which hold category labels, are dictionary-encoded.
    """
    names = columns.features or []
    rows = [batch.column(name) for name in names]
    rows = [
        x.dictionary_encode() if name in categories and not hasattr(x, "dictionary") else x
        for name, x in zip(names, rows, strict=True)
    ]
    rows = [_to_float(x, arrow) if arrow.types.is_decimal(x.type) else x for x in rows]
    kept = [batch.column(name) for name in columns.kept]
    kept = [x.dictionary_decode() if hasattr(x, "dictionary") else x for x in kept]
    return Batch(arrow.Table.from_arrays(rows, names), kept, batch.num_rows)


def _to_float(decimals: Any, arrow: ModuleType) -> Any:
    """Return decimals as the nearest float64; parsing their digits loses nothing."""
    return decimals.cast(arrow.string()).cast(arrow.float64())


def label_rows(columns: dict[str, Any], where: str) -> Any:
    """Return a pyarrow table of columns: arrays of numbers, or lists of labels and None.

    Raises:
        InputError: pyarrow is not installed; the message begins with `where`.
    """
    arrow = import_arrow(f"{where}: categories by name")
    arrays = []
    for values in columns.values():
        array = arrow.array(values)
        array = array.cast(arrow.string()) if arrow.types.is_null(array.type) else array
        arrays.append(array.dictionary_encode() if isinstance(values, list) else array)
    return arrow.Table.from_arrays(arrays, list(columns))


def path_of(file: Any) -> str | None:
    """Return the path of an open file, None for a stream."""
    name = getattr(file, "name", None)
    return name if isinstance(name, str) else None


def native_of(file: Any) -> Any:
    """Return the path of an open file, or pyarrow's own file object for it; None without either."""
    return path_of(file) or getattr(getattr(file, "raw", None), "native", None)
