"""Leaf vectors and linear leaves, stored beside the layout of the trees.

takes: Forest with vectors or linear leaves; gives: the forest to be laid out, and the arrays of its
leaves.

    leaf_vectors[row, class]   the value of a leaf for each class, see `LeafTable`

    linear_value[leaf]         its value if a feature of its terms is missing
    linear_const[leaf]         the constant term
    linear_terms[leaf]         begin and end of its other terms
    linear_feature[term], linear_coefficient[term]

Layouts see a forest with one number for each leaf value: the row of `leaf_vectors`, or the number
of the linear leaf, which the dtype holds exactly. The result of a walk is then an index into
`leaf_vectors`, or an argument of the operator `tvm_forest.linear`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..forest import Array, Forest
from ..forest.linear_leaves import read_linear_fields
from ..layouts.protocol import BufferSpec, read_specs

MOST_IN_FLOAT32 = 1 << 24
"""The integers from 0 to this number are exact in float32."""


def walk_dtype(forest: Forest) -> str:
    """Return the dtype of a walk's result.

    That is a leaf's value, the number of a linear leaf, or the row of a leaf in `leaf_vectors`.
    """
    if not forest.has_vectors:
        return forest.sum_dtype
    many = len(forest.leaf_table.values) > MOST_IN_FLOAT32
    return "float64" if many else str(forest.threshold.dtype)


def with_leaf_numbers(forest: Forest) -> Forest:
    """Return the forest with leaf numbers in place of vectors and linear leaves.

    A forest whose leaves are plain numbers is returned unchanged. In place of vectors, numbers are
    rows of `leaf_vectors`; thresholds get the dtype of these numbers, and all trees class 0.
    """
    if forest.has_vectors:
        dtype = walk_dtype(forest)
        return replace(
            forest,
            leaf_value=forest.leaf_table.number[:, None].astype(dtype),
            threshold=forest.threshold.astype(dtype),
            tree_class=np.zeros(forest.n_trees, np.int32),
        )
    if not forest.is_linear:
        return forest
    number = np.cumsum(forest.is_leaf) - 1.0
    return replace(forest, leaf_value=np.where(forest.is_leaf, number, 0.0)[:, None])


def leaf_arrays(forest: Forest) -> dict[str, Array]:
    """Return the arrays of leaf vectors or linear leaves by name; none for plain leaves."""
    if forest.has_vectors:
        return {"leaf_vectors": forest.leaf_table.values}
    if not forest.is_linear:
        return {}
    const, terms, feature, coefficient = read_linear_fields(forest)
    leaf = np.flatnonzero(forest.is_leaf)
    return {
        "linear_value": forest.leaf_value[leaf, 0],
        "linear_const": const[leaf],
        "linear_terms": terms[leaf].astype(np.int64),
        "linear_feature": np.append(feature, 0).astype(np.int32),  # for no buffer may be empty
        "linear_coefficient": np.append(coefficient, 0.0),
    }


def leaf_buffers(forest: Forest) -> tuple[BufferSpec, ...]:
    """Return the names, shapes and dtypes of `leaf_arrays`."""
    return read_specs(leaf_arrays(forest))
