"""Rows of scipy.sparse.

takes: sparse matrices and arrays; gives: dense (R, F) arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..forest import Array, Forest
from .checks import check_numbers, check_shape, refusal


def sparse_rows(rows: Any, forest: Forest, dtype: np.dtype[Any]) -> Array:
    """Return the rows of a sparse matrix or array, with `forest.absent` where it has no entry.

    Explicit zeros are zeros. Formats other than CSR go through `tocsr`, which adds up duplicates
    of COO, as the training libraries do; of CSR and CSC they take the first or the last one, by
    format and library, so duplicates are refused there.

    Args:
        rows: anything with `tocsr`.
        forest: the model.
        dtype: of the result.

    Raises:
        InputError: wrong shape or dtype, an entry outside the matrix, or two in one place.
    """
    check_shape(rows.shape, forest)
    check_numbers(rows.dtype, dtype)
    try:
        matrix = rows.tocsr()
        line = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        column = np.asarray(matrix.indices[: len(line)])
        if np.any(column < 0):
            raise IndexError(f"column {column.min()} is negative")
        dense = np.full(matrix.shape, forest.absent, dtype)
        with np.errstate(all="ignore"):
            dense[line, column] = matrix.data[: len(line)]
    except (IndexError, ValueError) as error:
        raise refusal(f"the sparse matrix is damaged ({error}); make it again") from None
    taken = np.zeros(matrix.shape, bool)
    taken[line, column] = True
    if np.count_nonzero(taken) != len(line):
        raise refusal("a sparse matrix with two entries in one place; use rows.sum_duplicates()")
    return dense
