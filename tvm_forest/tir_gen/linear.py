"""Linear leaves in memory: whatever the layout, a walk ends with the number of a leaf.

takes: Forest with linear leaves; gives: the forest to be laid out, and the arrays of its leaves.

    linear_value[leaf]         what it says if a feature of its terms is missing
    linear_const[leaf]         what the sum of its terms starts from
    linear_terms[leaf]         begin and end of its terms
    linear_feature[term], linear_coefficient[term]

Layouts know nothing of this: they lay out a forest whose leaf values are numbers of leaves, which
float64 holds exactly, and the operator `tvm_forest.linear` takes the value of a walk for the number
of a leaf.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..forest import Array, Forest
from ..forest.linear import linear_fields
from .representation import BufferSpec


def numbered(forest: Forest) -> Forest:
    """Return the forest with the numbers of its leaves for values; a plain one as it is."""
    if not forest.is_linear:
        return forest
    number = np.cumsum(forest.is_leaf) - 1.0
    return replace(forest, leaf_value=np.where(forest.is_leaf, number, 0.0)[:, None])


def linear_arrays(forest: Forest) -> dict[str, Array]:
    """Return the array of each buffer by name; none for a plain forest."""
    if not forest.is_linear:
        return {}
    const, terms, feature, coefficient = linear_fields(forest)
    leaf = np.flatnonzero(forest.is_leaf)
    return {
        "linear_value": forest.leaf_value[leaf, 0],
        "linear_const": const[leaf],
        "linear_terms": terms[leaf].astype(np.int64),
        "linear_feature": np.append(feature, 0).astype(np.int32),  # for no buffer may be empty
        "linear_coefficient": np.append(coefficient, 0.0),
    }


def linear_buffers(forest: Forest) -> tuple[BufferSpec, ...]:
    """Return what the operator reads beside rows; nothing for a plain forest."""
    if not forest.is_linear:
        return ()
    leaves, terms = int(forest.is_leaf.sum()), len(linear_fields(forest)[-1]) + 1
    return (
        BufferSpec("linear_value", "float64", (leaves,)),
        BufferSpec("linear_const", "float64", (leaves,)),
        BufferSpec("linear_terms", "int64", (leaves, 2)),
        BufferSpec("linear_feature", "int32", (terms,)),
        BufferSpec("linear_coefficient", "float64", (terms,)),
    )
