"""Some rows of a file, with the columns that are kept beside their predictions.

takes: names of columns, values; gives: `Batch`, whose rows a Predictor takes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from ..errors import InputError, RowError
from ..forest import Forest

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
    """

    rows: Any
    kept: list[Any]
    length: int


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
    """

    names: list[str] | None

    def batches(self, columns: Columns, size: int) -> Iterator[Batch]:
        """Yield one batch or more, of at most `size` rows; one without rows for an empty file.

        Raises:
            InputError: damaged, or values of the wrong kind.
        """
        ...

    def fraction(self) -> float | None:
        """Return how much is read, from 0 to 1; None if nobody knows."""
        ...


OpenRows = Callable[[Any, str, Forest], RowFile]
"""Opens rows from what is open in binary; the text begins messages."""


def choose_columns(
    names: list[str] | None, forest: Forest, keep: Sequence[str], where: str
) -> Columns:
    """Return which columns of a file the model takes, and which are kept.

    A model with names takes its columns by name, and others are left out. A model without names
    takes all that are not kept, in their order, but for the index of a frame of pandas.

    Raises:
        InputError: a column is missing or occurs twice, or the file names none and some are kept.
    """
    if names == []:  # an empty file
        return Columns(list(forest.given_names or ()), tuple(keep))
    if names is None:
        if keep:
            raise InputError(
                f"{where}: its columns have no names, so none can be kept; leave --keep"
            )
        return Columns(None, ())
    features = forest.given_names
    if features is None:
        features = tuple(n for n in names if n not in keep and not _INDEX.fullmatch(n))
        if len(features) == forest.given_width + 1 and not features[0].strip():
            features = features[1:]  # what pandas calls it in CSV
    columns = Columns(list(features), tuple(keep))
    check_present(columns.wanted, names, where)
    if len(features) != forest.given_width:
        raise InputError(
            f"{where}: {len(features)} columns are left for a model with {forest.given_width} "
            f"features: {list_some(features)}; keep the others with --keep"
        )
    return columns


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
    """Return the error about a row of a batch that says its place among all, `first` before."""
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


def take_columns(
    batch: Any, columns: Columns, forest: Forest, arrow: ModuleType, categories: Iterable[str] = ()
) -> Batch:
    """Return what is used of a record batch; texts among the rows become categories.

    So do the columns of which it is known that they hold the labels of categories.
    """
    names = columns.features or []
    rows = [
        _to_feature(batch.column(name), i in forest.category_names, name in categories, arrow)
        for i, name in enumerate(names)
    ]
    kept = [batch.column(name) for name in columns.kept]
    kept = [x.dictionary_decode() if hasattr(x, "dictionary") else x for x in kept]
    return Batch(arrow.Table.from_arrays(rows, names), kept, batch.num_rows)


def _to_feature(column: Any, is_category: bool, is_labels: bool, arrow: ModuleType) -> Any:
    """Return a column as `inputs` reads it: numbers, or labels with a dictionary."""
    types = arrow.types
    if types.is_dictionary(column.type):
        return column
    if types.is_null(column.type):
        column = column.cast(arrow.string() if is_category else arrow.float64())
    if is_labels or types.is_string(column.type) or types.is_large_string(column.type):
        return column.dictionary_encode()
    return column


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
