"""Converts rows that are a sparse matrix or array of scipy.

takes: sparse matrices and arrays; gives: dense (R, F) arrays, of all rows or block by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...errors import InputError
from ...forest import Array, Forest
from .checks import check_in_place, check_numbers, check_shape, refusal
from .roundings import pass_entries

BLOCK_BYTES = 1 << 22
"""Bytes of a block of dense rows (4 MiB), small enough to stay in the CPU's caches."""


def sparse_rows(rows: Any, forest: Forest, dtype: np.dtype[Any]) -> Array:
    """Return a sparse matrix or array as a dense array, with `forest.absent` where it has no entry.

    Explicit zeros stay zeros. Other formats are converted to CSR by `tocsr`, which adds up
    duplicates of COO, as the training libraries do. Of duplicates in CSR and CSC a library takes
    the first or the last, so they are refused.

    Args:
        rows: any object with a method `tocsr`.
        forest: the model.
        dtype: the dtype of the result.

    Raises:
        InputError: wrong shape or dtype, an entry outside the matrix, two in one place, or one
            that is not zero and no farther from zero than `forest.sparse_above`.
    """
    check_numbers(rows.dtype, dtype)
    if forest.spares_columns and len(rows.shape) == 2 and rows.shape[1] > forest.row_width:
        rows = rows.tocsr()[:, : forest.row_width]
    check_shape(rows.shape, forest)
    try:
        _check_places(rows)
        matrix = rows.tocsr()
        line = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        column = np.asarray(matrix.indices[: len(line)])
        dense = np.full(matrix.shape, forest.absent, dtype)
        with np.errstate(all="ignore"):
            dense[line, column] = pass_entries(matrix.data[: len(line)], rows, forest)
    except (IndexError, ValueError) as error:
        raise _damaged(error) from None
    _check_sizes(matrix.data[: len(line)], forest)
    filled = np.zeros(matrix.shape, bool)
    filled[line, column] = True
    if np.count_nonzero(filled) != len(line):
        raise refusal("a sparse matrix with two entries in one place; use rows.sum_duplicates()")
    return dense


class SparseBlocks:
    """A sparse matrix of many rows, which is made dense block by block.

    `len` returns its number of rows.
    """

    def __init__(self, rows: Any, forest: Forest) -> None:
        """Check the matrix, and round its entries as the training library does; it stays sparse.

        Two entries in one place, and entries near zero, are refused when their block is made dense.

        Raises:
            InputError: wrong shape or dtype, an entry outside the matrix, or a matrix that is
                refused by `check_in_place`.
        """
        dtype = np.dtype(forest.row_dtype)
        check_in_place(rows, forest)
        check_numbers(rows.dtype, dtype)
        if not forest.spares_columns:
            check_shape(rows.shape, forest)
        self._row_bytes = max(1, forest.row_width * dtype.itemsize)
        try:
            _check_places(rows)
            matrix = rows.tocsr()
            entries = pass_entries(matrix.data, rows, forest)
            if entries is not matrix.data:
                parts = (entries, matrix.indices, matrix.indptr)
                matrix = type(matrix)(parts, shape=matrix.shape)
        except (IndexError, ValueError) as error:
            raise _damaged(error) from None
        self._matrix = matrix

    def __len__(self) -> int:
        return int(self._matrix.shape[0])

    def split(self, multiple: int) -> Iterator[tuple[int, Any]]:
        """Yield (index of the first row, sparse rows) for each block.

        Every block begins at a multiple of `multiple` rows.
        """
        step = -(-BLOCK_BYTES // (multiple * self._row_bytes)) * multiple
        for begin in range(0, len(self), step):
            yield begin, self._matrix[begin : begin + step]


def are_many(rows: Any, forest: Forest) -> bool:
    """Return whether rows are a sparse matrix so large that it is converted block by block."""
    if not hasattr(rows, "tocsr") or forest.encoder is not None or len(rows.shape) != 2:
        return False
    itemsize = np.dtype(forest.row_dtype).itemsize
    return bool(rows.shape[0] * forest.row_width * itemsize > 2 * BLOCK_BYTES)


def _damaged(error: Exception) -> InputError:
    return refusal(f"the sparse matrix is damaged ({error}); make it again")


def _check_sizes(entries: Array, forest: Forest) -> None:
    """Raise InputError for a nonzero entry no farther from zero than `forest.sparse_above`."""
    if not forest.sparse_above:
        return
    small = (entries != 0) & (np.abs(entries) <= forest.sparse_above)
    if small.any():
        raise refusal(
            f"a sparse matrix with the entry {entries[np.argmax(small)]}, which LightGBM does "
            "not take for zero as it does in arrays; give 0 or an array"
        )


def _check_places(rows: Any) -> None:
    """Raise ValueError unless all positions are whole and inside the matrix.

    At others, scipy would read foreign memory.
    """
    form, shape = getattr(rows, "format", ""), rows.shape
    if form == "coo":
        entries = len(rows.data)
        places = [("row", rows.row, shape[0]), ("column", rows.col, shape[1])]
    elif form in ("csr", "csc", "bsr"):
        if form == "bsr":
            shape = tuple(np.floor_divide(shape, rows.blocksize))
        lines, width = shape[::-1] if form == "csc" else shape
        ends = np.asarray(rows.indptr)
        entries = int(ends[-1]) if ends.shape == (lines + 1,) else -1
        if entries > len(rows.data) or ends[:1].any() or np.any(ends[1:] < ends[:-1]):
            entries = -1
        if entries < 0 or ends.dtype.kind != "i":
            raise ValueError("'indptr' does not fit")
        name = "row" if form == "csc" else "column"
        places = [(name, rows.indices[:entries], width)]
    else:
        return
    for name, place, size in places:
        numbers = np.asarray(place)
        if numbers.shape != (entries,) or numbers.dtype.kind != "i":
            raise ValueError(f"expected {entries} {name}s, got {numbers.dtype} {numbers.shape}")
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < size:
            wrong = numbers.min() if numbers.min() < 0 else numbers.max()
            raise ValueError(f"{name} {wrong} is {'negative' if wrong < 0 else f'not of {size}'}")
