"""Some rows of a file, with the columns that are kept beside their predictions.

takes: names of columns, values; gives: `Batch`, whose rows a Predictor takes.
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

_INDEX = re.compile(r"__index_level_\d+__")  # what pandas calls the index of a frame in Parquet


class Texts(list[str]):
    """A column of texts, also if there are none."""


class Batch(NamedTuple):
    """Some rows that follow each other in a file.

    Attributes:
        rows: (R, F) array of numbers or objects, or a table of pyarrow with the model's columns.
        kept: for each kept column its R values, an array of pyarrow or a list.
        length: R.
        bad: what is wrong with rows among them that are left out, by their places among all.
    """

    rows: Any
    kept: list[Any]
    length: int
    bad: dict[int, str] = {}

    @property
    def span(self) -> int:
        """How many rows of the file these are, with those that are left out."""
        return self.length + len(self.bad)

    def find_place(self, row: int) -> int:
        """Return the place among all of one of the rows."""
        if not self.bad:
            return row
        return int(np.delete(np.arange(self.span), list(self.bad))[row])

    def cut(self, begin: int, end: int) -> Batch:
        """Return some of the rows, of which none is left out."""
        is_table = hasattr(self.rows, "schema")
        rows = self.rows.slice(begin, end - begin) if is_table else self.rows[begin:end]
        return Batch(rows, [column[begin:end] for column in self.kept], len(rows))


class Columns(NamedTuple):
    """Which columns of a file are used.

    Attributes:
        features: names of the model's columns in its order; None for all, without names.
        kept: names of the kept columns.
    """

    features: list[str] | None
    kept: tuple[str, ...]

    @property
    def wanted(self) -> list[str]:
        """The names of all, each once."""
        return list(dict.fromkeys([*(self.features or ()), *self.kept]))


class RowFile(Protocol):
    """An open file of rows.

    Attributes:
        names: of its columns; None where the file has no names, empty for a file without a line.
        added: the last of the names, whose values are those of the file's folders.
    """

    names: list[str] | None
    added: tuple[str, ...]

    def batches(self, columns: Columns, size: int) -> Iterator[Batch]:
        """Yield one batch or more, of at most `size` rows; one without rows for an empty file.

        Raises:
            InputError: damaged, or values of the wrong kind.
        """
        ...

    def fraction(self) -> float | None:
        """Return how much is read, from 0 to 1; None if that is unknown."""
        ...


OpenRows = Callable[[Any, str, Forest, Reading], RowFile]
"""Opens rows from what is open in binary; the text begins messages."""


def choose_columns(
    names: list[str] | None,
    forest: Forest,
    reading: Reading,
    where: str,
    added: Sequence[str] = (),
) -> Columns:
    """Return which columns of a file the model takes, and which are kept.

    A model with names takes its columns by name, and others are left out. A model without names
    takes all that are not kept by name, in their order, but for the index of a frame of pandas, and
    for the last ones, `added`, that folders give.

    Raises:
        InputError: a column is missing or occurs twice, or the file names none and some are kept.
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
            features = features[1:]  # what pandas calls it in CSV
    columns = Columns(features, keep)
    check_present(columns.wanted, names, where)
    if len(features) != forest.given_width:
        raise InputError(
            f"{where}: {len(features)} columns are left for a model with {forest.given_width} "
            f"features: {list_some(features)}; keep the others with --keep"
        )
    return columns


def find_features(names: Sequence[str], forest: Forest, where: str) -> list[str] | None:
    """Return which names are those of the model's columns, in its order; None if it has no names.

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
    """Raise InputError unless each wanted column is there once."""
    missing = [name for name in wanted if name not in set(names)]
    if missing:
        raise InputError(f"{where}: no column {list_some(missing)} (have: {list_some(names)})")
    counts = Counter(names)
    doubled = [name for name in wanted if counts[name] > 1]
    if doubled:
        raise InputError(f"{where}: column {list_some(doubled)} occurs twice; rename one of them")


def locate_row(error: RowError, where: str, first: int, of: str = "") -> InputError:
    """Return the error about a row of a batch with its place among all rows, from `first` on."""
    return InputError(f"{where}: row {first + error.row}{of} (counted from 0), {error.what}")


def list_some(names: Sequence[str]) -> str:
    """Return names as messages show them."""
    return ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")


def import_arrow(where: str) -> ModuleType:
    """Return pyarrow.

    Raises:
        InputError: it is missing.
    """
    try:
        import pyarrow
    except ImportError:
        raise InputError(
            f"{where}: pyarrow is needed for this; pip install 'tvm-forest[streams]'"
        ) from None
    return pyarrow


def find_added(names: Sequence[str], reading: Reading) -> dict[str, Any]:
    """Return the columns that folders give, and the file has not itself."""
    return {name: x for name, x in reading.folders.items() if name not in names}


def take_columns(
    batch: Any, columns: Columns, arrow: ModuleType, categories: Iterable[str] = ()
) -> Batch:
    """Return what is used of a record batch.

    Columns of which it is known that they hold the labels of categories become dictionaries.
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
    """Return decimals as the nearest float64, by way of their digits, which are all of them."""
    return decimals.cast(arrow.string()).cast(arrow.float64())


def label_rows(columns: dict[str, Any], where: str) -> Any:
    """Return columns as a table: arrays of numbers, and lists of labels or None."""
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
    """Return what pyarrow reads best of an open file: its path, or a file of its own, or None."""
    return path_of(file) or getattr(getattr(file, "raw", None), "native", None)
