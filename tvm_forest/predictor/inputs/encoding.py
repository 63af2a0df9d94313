"""Encodes rows with categories, for models that identify categories by hashes of their texts.

takes: frames, arrays of objects, texts or integers, lists; gives: (R, F) arrays of numbers, or
of objects (`to_objects`).

CatBoost hashes texts as they are, integers as they are written, and bools as 1 and 0. It refuses
real numbers and missing values in a column of categories, and so does this file. Texts in a column
of numbers are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ...forest import Array, Forest
from . import frames
from .checks import NUMBERS, refusal
from .column_names import take_columns
from .named_rows import gather_named
from .roundings import pass_numbers
from .spare_columns import fit_width
from .values import unknown_category

_TEXTS = "US"
"""Kinds of string dtypes."""

_REMEDY = "categories are texts or integers; convert other values, e.g. with str"


def encode_rows(rows: Any, forest: Forest) -> Array:
    """Return rows encoded by the forest's encoder, float32 (R, row_width).

    Args:
        rows: (R, width) frame of pandas, polars or pyarrow, numpy array of objects, texts or
            integers, or list of lists.
        forest: a model that has an encoder.

    Raises:
        InputError: wrong rank, width, names or types, a category that the user refuses, or the
            package that computes the hashes is not installed.
    """
    encoder, hash_text = forest.encoder, find_hash()
    assert encoder is not None, "asked for by the caller"
    count, columns = _read(rows, forest)
    numbers = np.empty((count, len(encoder.numbers)), np.float32)
    hashes = np.empty((count, len(encoder.categories)), np.uint32)
    for place, column in enumerate(encoder.numbers.tolist()):
        with np.errstate(all="ignore"):
            numbers[:, place] = columns.read_numbers(column)
    for place, column in enumerate(encoder.categories.tolist()):
        where = _name_column(column, encoder.names)
        values, places = columns.read_categories(column)
        hashes[:, place] = _hash_column(values, places, where, hash_text)
        if column in forest.refuses_unseen:
            unseen = ~np.isin(hashes[:, place], forest.known_by_column[column])
            if unseen.any():
                row = int(np.argmax(unseen))
                category = repr(values[row if places is None else places[row]])
                raise unknown_category(row, forest, column, category)
    return encoder.encode(numbers, hashes)


def to_objects(rows: Any, forest: Forest) -> Array:
    """Return rows as an array of objects (R, width): numbers rounded to float32, and categories.

    Raises:
        InputError: wrong rank, width, names or types.
    """
    encoder = forest.encoder
    assert encoder is not None, "asked for by the caller"
    count, columns = _read(rows, forest)
    given = np.full((count, encoder.width), 0.0, object)
    for column in encoder.numbers.tolist():
        with np.errstate(all="ignore"):
            given[:, column] = columns.read_numbers(column).astype(np.float32).astype(np.float64)
    for column in encoder.categories.tolist():
        values, places = columns.read_categories(column)
        given[:, column] = values if places is None else [values[place] for place in places]
    return given


def _read(rows: Any, forest: Forest) -> tuple[int, Any]:
    """Return the number of rows, and a `ReadArray` or `ReadFrame` that reads their columns."""
    rows = gather_named(rows, forest)
    kind = frames.kind_of(rows)
    if kind is None:
        array = _to_array(rows, forest)
        return len(array), ReadArray(array, forest)
    rows = take_columns(rows, kind, forest)
    return (rows.num_rows if kind == "pyarrow" else len(rows)), frames.ReadFrame(rows, kind, forest)


def find_hash() -> Callable[[bytes], int]:
    """Return the hash function CityHash64, from a package that only models with an encoder need.

    Raises:
        InputError: it is not installed.
    """
    try:
        from clickhouse_cityhash.cityhash import CityHash64
    except ImportError:
        raise refusal(
            "the model has features of categories, whose texts are hashed by the package "
            "clickhouse-cityhash; install it, e.g. with pip install 'tvm-forest[catboost]'"
        ) from None
    hash_text: Callable[[bytes], int] = CityHash64
    return hash_text


def _to_array(rows: Any, forest: Forest) -> Array:
    """Return an array, or a list of lists, as an array (R, given_width) that may hold categories.

    Raises:
        InputError: it has another shape; or it is of floats, masked or sparse, so that it cannot
            hold categories.
    """
    if isinstance(rows, np.ma.MaskedArray) or hasattr(rows, "tocsr"):
        raise refusal(f"a {type(rows).__name__} cannot hold categories; give an array of objects")
    array = rows if isinstance(rows, np.ndarray) else _list_to_array(rows)
    array, width = fit_width(array, forest), forest.given_width
    if array.ndim != 2 or array.shape[1] != width:
        hint = "; for one row use rows.reshape(1, -1)" if array.ndim == 1 else ""
        raise refusal(f"rows must have shape (R, {width}), got {array.shape}{hint}")
    if array.dtype.kind not in "biu" + _TEXTS + "O":
        raise refusal(
            f"an array of {array.dtype} holds numbers alone, and the model has features of "
            "categories; give an array of objects or a frame"
        )
    return array


def _list_to_array(rows: Any) -> Array:
    if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) for row in rows):
        raise refusal(
            f"a {type(rows).__name__} cannot be read; give an array of objects or a frame"
        )
    if len({len(row) for row in rows}) > 1:
        raise refusal("a list of rows of different lengths; give each all columns")
    array = np.empty((len(rows), len(rows[0]) if rows else 0), object)
    for at, row in enumerate(rows):
        array[at] = row
    return array


class ReadArray:
    """Reads the columns of an array, as `frames.ReadFrame` does those of a frame."""

    def __init__(self, array: Array, forest: Forest) -> None:
        self.array, self.forest = array, forest

    def read_numbers(self, at: int) -> Array:
        """Return the numbers (R,) in column `at`, NaN in place of None; refuse other objects."""
        column = self.array[:, at]
        if column.dtype.kind in NUMBERS:
            return pass_numbers(column, self.forest)
        wrong = _find_wrong(column, (float, int, bool, np.number, np.bool_, type(None)))
        if wrong is not None or column.dtype.kind in _TEXTS:
            value = column[0] if wrong is None else wrong
            raise refusal(
                f"column {at} holds numbers, got {value!r:.80}; convert it, e.g. by float"
            )
        return column.astype(np.float64)

    def read_categories(self, at: int) -> tuple[Any, Array | None]:
        """Return the categories in column `at`.

        Either one value per row, and None; or the distinct values, and each row's index in them.
        """
        column = self.array[:, at]
        if column.dtype.kind == "O":
            return column.tolist(), None
        return _tell_apart(column)


def _tell_apart(column: Array) -> tuple[Any, Array | None]:
    """Return the distinct values of a column, and for each row the index of its value in them."""
    values, places = np.unique(column, return_inverse=True)
    return values.tolist(), places.ravel()


def _find_wrong(values: Iterable[Any], types: tuple[type, ...]) -> Any:
    """Return the first value that has none of the given types, None if there is none."""
    kinds = {kind for kind in set(map(type, values)) if not issubclass(kind, types)}
    return next((value for value in values if type(value) in kinds), None) if kinds else None


def _hash_column(
    values: Any, places: Array | None, where: str, hash_text: Callable[[bytes], int]
) -> Array:
    """Return the hashes of a column, uint32 (R,).

    Args:
        values: one category per row, or the distinct ones.
        places: the index in `values` of each row's category; None if there is one value per row.
        where: the name of the column for messages.
        hash_text: the hash function.

    Raises:
        InputError: a value is neither a text nor an integer, or see `_to_text`.
    """
    hashed: dict[Any, int] = {}
    kinds = set(map(type, values))
    for kind in kinds:
        if not issubclass(kind, str | bytes | int | np.integer | np.bool_):
            value = next(value for value in values if type(value) is kind)
            raise refusal(f"{where} holds categories, got {value!r:.80}; {_REMEDY}")
    for value in set(values):
        hashed[value] = hash_text(_to_text(value, where)) & 0xFFFFFFFF
    codes = np.fromiter(map(hashed.__getitem__, values), np.uint32, len(values))
    return codes if places is None else codes[places]


def _to_text(value: Any, where: str) -> bytes:
    """Return a category as the bytes that are hashed.

    Raises:
        InputError: a text is not valid Unicode, or an integer does not fit in 64 bits.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise refusal(f"{where}: {value!r:.80} is no text of Unicode; {_REMEDY}") from None
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise refusal(f"{where}: {value} does not fit in 64 bits; {_REMEDY}")
    return str(number).encode()


def _name_column(at: int, names: tuple[str, ...] | None) -> str:
    return f"column {at}" if names is None else f"column '{names[at]}'"
