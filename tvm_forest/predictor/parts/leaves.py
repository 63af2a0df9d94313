"""The methods of a Predictor that give a number or a value for each tree.

takes: Predictor, rows, a range of rounds; gives: numbers and values of the leaves that rows reach.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import Array
from ...runtime.results import Output
from .rounds import refuse_which

OF_TREES = (
    "of the columns that this gives, one for each tree, take those of the trees that you want"
)


class LeafMethods:
    """Leaf numbers, and leaf values, by tree of the source model."""

    def apply(
        self: Any,
        rows: Any,
        n_jobs: int | None = None,
        iteration_range: tuple[int, int] | None = None,
        *,
        which: None = None,
    ) -> Array:
        """Return the number of the leaf that every row reaches in every tree.

        Args:
            rows, n_jobs, iteration_range: see `predict`.
            which: is refused; of the result, take the columns of the trees that you want.

        Returns:
            (R, T), numbers of the source model's nodes, in its order of trees.

        Raises:
            InputError: rows, n_jobs or iteration_range of the wrong kind, or `which` is given.
            UnsupportedModel: some rounds of an isolation forest.

        Examples:
            >>> predictor.apply(rows).shape  # a leaf for each of 15 trees
            (150, 15)
        """
        refuse_which("apply", which, OF_TREES)
        now = self._present or self
        ids: Array = now._leaves("apply", rows, n_jobs, iteration_range)[:, :, 0]
        return ids.astype(now.forest.leaf_id_dtype)

    def predict_per_tree(
        self: Any,
        rows: Any,
        n_jobs: int | None = None,
        iteration_range: tuple[int, int] | None = None,
        *,
        which: None = None,
    ) -> Array:
        """Return the leaf value that every tree adds to the margin, or to the sum of an average.

        Args:
            rows, n_jobs, iteration_range: see `predict`.
            which: is refused; of the result, take the columns of the trees that you want.

        Returns:
            (R, T), in the source model's order of trees; (R, T, C) if leaves hold vectors.

        Raises:
            InputError: rows, n_jobs or iteration_range of the wrong kind, or `which` is given.
            UnsupportedModel: some rounds of an isolation forest.

        Examples:
            >>> predictor.predict_per_tree(rows).shape
            (150, 15)
        """
        refuse_which("predict_per_tree", which, OF_TREES)
        leaves: Array = (self._present or self)._leaves("per_tree", rows, n_jobs, iteration_range)
        return leaves[:, :, 0] if leaves.shape[2] == 1 else leaves

    def _leaves(
        self: Any,
        name: Output,
        rows: Any,
        n_jobs: int | None = None,
        iteration_range: tuple[int, int] | None = None,
    ) -> Array:
        """Return (R, T, W), leaf numbers or values for each tree of the source model.

        T are the trees of the range; W is 1, or C if leaves hold vectors.
        """
        jobs, whole = self.n_jobs if n_jobs is None else n_jobs, self._reach(iteration_range)
        leaves = whole._for_rows(rows)._compute_leaves(name, rows, jobs)
        places = whole._columns_of(iteration_range)
        in_order = np.array_equal(places.ravel(), np.arange(leaves.shape[1]))
        return leaves.reshape(len(leaves), *places.shape) if in_order else leaves[:, places]

    def _compute_leaves(self: Any, name: Output, rows: Any, n_jobs: int | None) -> Array:
        """Return (R, places), leaf numbers or values by place `round * C + class`."""
        leaves: Array = self._functions.compute_leaves(name, rows, n_jobs)
        return leaves
