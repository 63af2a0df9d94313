"""Bounds on what the trees that a row has not walked yet can add to its sums.

takes: Forest in canonical form, the rounds at which rows may stop; gives: Bounds.

    round             0 1 2 3 | 4 5 6 7 | 8 9 10 11
    stretch           0         1         2           3
    lower[1]                    the least leaves of the trees from round 4 on, added up
    least_lead[1][a, b]         least that output a gains on output b from round 4 on

Floating-point sums are rounded after each addition. `slack` is larger than the rounding error, so a
bound widened by it also holds for the rounded sum that the model computes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...forest import Array, Forest
from ...system.process.locks import cached_property

ROUNDINGS = 4
"""Safety factor of the bound on rounding errors, since sums of bounds are rounded, too."""

HALVINGS = 200
"""Most steps of a bisection between two floats."""


class Bounds:
    """Bounds on what the remaining trees add, for each of S stretches after which a row may stop.

    Index 0 of the first axis stands for the state before the first tree.

    Attributes:
        lower, upper: float64 (S + 1, C), least and most that the trees after a stretch add.
        first, last: float64 (S + 1, C), smallest and largest possible sum after a stretch.
        slack: float64 (C,), upper bound on the rounding errors of a sum and these bounds together.
        largest: float64 (C,), upper bound on the absolute value of any partial sum.
    """

    def __init__(self, forest: Forest, ends: list[int]) -> None:
        """Compute the bounds from the leaves.

        Args:
            forest: a forest in canonical form, whose trees of a class are added up.
            ends: (S + 1,), 0 and the round at which each stretch ends; the last is all rounds.
        """
        self.forest, self._ends = forest, ends
        least, most = self._reduce(forest.leaf_value), -self._reduce(-forest.leaf_value)
        start = start_of_sums(forest).astype(np.float64)
        with np.errstate(invalid="ignore"):  # leaves may be infinite
            self.lower, self.upper = self._tails(least), self._tails(most)
            self.first = start + self.lower[0] - self.lower
            self.last = start + self.upper[0] - self.upper
        self.largest = abs(start) + np.maximum(abs(least), abs(most)).sum(axis=0)
        steps = ROUNDINGS * (len(least) + 2)
        self.slack = steps * np.finfo(forest.sum_dtype).eps * self.largest

    @cached_property
    def are_finite(self) -> bool:
        """Whether no sum can overflow."""
        limit = np.finfo(self.forest.sum_dtype).max / ROUNDINGS
        return bool(np.all(self.largest + self.slack < limit))  # False for NaN

    @cached_property
    def least_lead(self) -> Array:
        """Float64 (S + 1, C, C): [s, a, b] is the least that output a gains on b."""
        if not self.forest.has_vectors:
            return self.lower[:, :, None] - self.upper[:, None, :]
        values = self.forest.leaf_value.astype(np.float64)
        gains = (self._reduce(own[:, None] - values) for own in values.T)
        return np.stack([self._tails(gain) for gain in gains], axis=1)

    def _reduce(self, values: Array) -> Array:
        """Return each tree's least leaf value, (rounds, C), from the values of nodes, (N, W)."""
        of_leaves = np.where(self.forest.is_leaf[:, None], values, np.inf)
        least = np.minimum.reduceat(of_leaves, self.forest.tree_offset[:-1]).astype(np.float64)
        return least.reshape(-1, self.forest.n_outputs)

    def _tails(self, of_rounds: Array) -> Array:
        """Return the sums (S + 1, C) of values (rounds, C) over the rounds after each stretch."""
        tails = np.zeros((len(of_rounds) + 1, of_rounds.shape[1]))
        tails[:-1] = np.cumsum(of_rounds[::-1], axis=0)[::-1]
        return tails[self._ends]


def start_of_sums(forest: Forest) -> Array:
    """Return the numbers that sums start from, (C,), in the dtype of sums: base score or zeros."""
    base = forest.base_score if forest.base_first else np.zeros_like(forest.base_score)
    return base.astype(forest.sum_dtype)


def find_step(holds: Callable[[Array], Array], largest: Array, dtype: str) -> tuple[Array, Array]:
    """Find by bisection where a monotone condition on sums, such as "value > 0.5", becomes true.

    Args:
        holds: returns, for sums (1, C), whether the condition is true of each. If it is true of a
            sum, it must be true of all larger ones.
        largest: (C,), upper bound on the absolute values of sums.
        dtype: dtype of the sums.

    Returns:
        Two arrays (C,): the largest float for which the condition is false, and the next float, for
        which it is true. Both are -inf if it is always true, inf if it never is.
    """
    high = np.asarray(largest, dtype)[None, :]
    low = -high
    always, never = holds(low), ~holds(high)
    for _ in range(HALVINGS):
        middle = low / 2 + high / 2
        if np.all((middle <= low) | (middle >= high)):
            break
        is_true = holds(middle)
        low, high = np.where(is_true, low, middle), np.where(is_true, middle, high)
    below, above = np.where(never, np.inf, low), np.where(always, -np.inf, high)
    return np.where(always, -np.inf, below)[0], np.where(never, np.inf, above)[0]
