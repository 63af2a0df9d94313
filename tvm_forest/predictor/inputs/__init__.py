"""Converts rows that users pass to an array that compiled code can read.

takes: arrays, frames, sparse matrices, tensors, lists; gives: (R, F) numpy arrays, C order, in the
model's dtype.

No library but numpy is imported: objects of other libraries are recognised by their attributes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import RowError
from ...forest import Array, Forest
from ...system.late import import_late
from .checks import check_in_place, check_numbers, check_shape, refusal
from .objects import read_list, read_objects
from .roundings import pass_array
from .spare_columns import fit_width
from .values import check_values

if TYPE_CHECKING:
    from . import encoding, frames, named_rows, sparse
else:  # what arrays of numbers do not need
    encoding = import_late("tvm_forest.predictor.inputs.encoding")
    frames = import_late("tvm_forest.predictor.inputs.frames")
    named_rows = import_late("tvm_forest.predictor.inputs.named_rows")
    sparse = import_late("tvm_forest.predictor.inputs.sparse")


def to_rows(rows: Any, forest: Forest) -> Array:
    """Return rows as a C-ordered array of the model's row dtype; the input is never modified.

    An array that has this form already is used as it is, without a copy. Numbers of other dtypes
    are converted as the training library converts them; float64 beyond float32 becomes infinite.

    Args:
        rows: (R, F) numpy array of numbers, nested list, or any object with DLPack on the CPU;
            arrays of objects as the library takes them (see `objects`);
            frame of pandas or polars, table or record batch of pyarrow (see `frames.frame_rows`);
            matrix or array of scipy.sparse (see `sparse.sparse_rows`); one row as a dict or Series
            of pandas by the names of the columns, or several as a list of dicts. A model with an
            encoder takes rows with categories, see `encoding.encode_rows`.
        forest: the model that the rows are for.

    Raises:
        InputError: wrong rank, width, dtype, column names or categories, not on the CPU, or a
            value that the source object refuses, or the user (`Forest.refuse_unseen`).
    """
    if forest.encoder is not None:
        return encoding.encode_rows(rows, forest)
    dtype = np.dtype(forest.row_dtype)
    is_ready = type(rows) is np.ndarray and rows.dtype == dtype and rows.ndim == 2
    if is_ready and rows.shape[1] == forest.row_width:  # tried first: small calls must be fast
        array = np.ascontiguousarray(rows)
    else:
        array = _convert(rows, forest, dtype)
    if forest.looks_at_values:
        check_values(array, forest)
    return array


def to_blocks(rows: Any, forest: Forest) -> Array | sparse.SparseBlocks:
    """Return rows as `to_rows` does, but a large sparse matrix as it is, for `split_blocks`.

    `split_blocks` then converts the matrix block by block, so that it is never dense as a whole.

    Raises:
        InputError: see `to_rows`; values of a sparse matrix are checked when it is split.
    """
    if hasattr(rows, "tocsr") and sparse.are_many(rows, forest):
        return sparse.SparseBlocks(rows, forest)
    return to_rows(rows, forest)


def split_blocks(
    rows: Array | sparse.SparseBlocks, forest: Forest, multiple: int
) -> Iterator[tuple[int, Array]]:
    """Yield (index of the first row, array of rows) for each block of the rows.

    Args:
        rows: from `to_blocks`; an array is one block.
        forest: the model.
        multiple: every block begins at a multiple of this number of rows.

    Raises:
        InputError: see `to_rows`; a RowError counts rows from the first one of all blocks.
    """
    if isinstance(rows, np.ndarray):
        yield 0, rows
        return
    for begin, block in rows.split(multiple):
        try:
            yield begin, to_rows(block, forest)
        except RowError as error:
            raise RowError(error.where, begin + error.row, error.what) from None


def writable_view(array: Array) -> Array:
    """Return a view of the array marked writable, as TVM requires.

    Compiled functions only read their rows.
    """
    if array.flags.writeable or not array.size:
        return array
    memory = memoryview((ctypes.c_char * array.nbytes).from_address(array.ctypes.data))
    return np.ndarray(array.shape, array.dtype, memory)


def _convert(rows: Any, forest: Forest, dtype: np.dtype[Any]) -> Array:
    """Return rows of any kind as a C-ordered array (R, row_width) of `dtype`.

    Raises:
        InputError: see `to_rows`.
    """
    if isinstance(rows, np.ma.MaskedArray):
        raise refusal("a masked array; use rows.filled(numpy.nan)")
    array = rows if isinstance(rows, np.ndarray) else _read_object(rows, forest, dtype)
    array = fit_width(array, forest)
    check_shape(array.shape, forest)
    array = read_objects(array, forest)
    check_numbers(array.dtype, dtype)
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(pass_array(array, forest), dtype)


def _read_object(rows: Any, forest: Forest, dtype: np.dtype[Any]) -> Array:
    """Return rows that are not a numpy array as one.

    Sparse matrices, and frames that are read column by column, get `dtype`. Tensors keep their
    dtype, and lists get that of `objects.read_list`.

    Raises:
        InputError: rows that cannot be read; see also `to_rows`.
    """
    check_in_place(rows, forest)
    rows = named_rows.gather_named(rows, forest)
    kind = frames.kind_of(rows)
    if kind is not None:
        return frames.frame_rows(rows, kind, forest, dtype)
    if hasattr(rows, "tocsr"):
        return sparse.sparse_rows(rows, forest, dtype)
    try:
        if hasattr(rows, "__dlpack__") and not np.isscalar(rows):
            return np.from_dlpack(rows)
        array = read_list(rows, forest) if isinstance(rows, list | tuple) else np.asarray(rows)
        if array.dtype == object and not array.ndim:
            raise TypeError("it is no array")
        return array
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise refusal(
            f"a {type(rows).__name__} cannot be read ({error}); give a numpy array of "
            "shape (R, F) or a tensor on the CPU"
        ) from None
