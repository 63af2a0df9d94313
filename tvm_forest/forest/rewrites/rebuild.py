"""Builds a forest from nodes of another: the one place that copies the fields of nodes.

takes: Forest, numbers of its nodes; gives: Forest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .. import Array, Forest


def take_nodes(forest: Forest, source: Array, blank: Array | None = None, **changes: Any) -> Forest:
    """Return the forest whose node i is a copy of node ``source[i]``.

    Args:
        forest: the forest that has the nodes.
        source: int (N',), numbers of nodes through the whole forest.
        blank: bool (N',), nodes whose fields become 0.
        **changes: fields with other values, such as links that lead elsewhere.
    """
    fields = {name: array[source] for name, array in forest.arrays_per("node").items()}
    if blank is not None:
        for array in fields.values():
            array[blank] = 0
    tests = np.flatnonzero(np.isin(source, list(forest.categories))) if forest.categories else ()
    categories = {int(new): forest.categories[int(source[new])] for new in tests}
    return replace(forest, **{**fields, "categories": categories, **changes})
