"""What the trees that a row has not walked can still add to its sums.

takes: Forest in canonical form, the rounds at which rows may stop; gives: Bounds.

    round             0 1 2 3 | 4 5 6 7 | 8 9 10 11
    stretch           0         1         2           3
    lower[1]                    the least leaves of the trees from round 4 on, added up
    least_lead[1][a, b]         what output a gains on b from round 4 on, at least

Sums of floating-point numbers are rounded after each addition. `slack` is more than what this can
change, so a bound with the slack is one of the sum that the model computes, rounding included.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...forest import Array, Forest
from ...system.process.locks import cached_property

ROUNDINGS = 4
"""What the bound of the rounding error is multiplied with: sums of bounds are rounded as well."""

HALVINGS = 200
"""Steps after which a search between floats ends, wherever it is."""


class Bounds:
    """Bounds of what is still to come.

    Attributes:
        lower, upper: float64 (S + 1, C), what the trees behind each stretch add, at least and at
            most; S stretches, of which number 0 is before the first tree.
        first, last: float64 (S + 1, C), what sums can be behind each stretch, at least and at most.
        slack: float64 (C,), more than the rounding of a sum and of these bounds together.
        largest: float64 (C,), more than the absolute value of any partial sum.
    """

    def __init__(self, forest: Forest, ends: list[int]) -> None:
        """Look at all leaves.

        Args:
            forest: in canonical form; the trees of a class are added up.
            ends: the round behind each stretch, from 0 on to the number of rounds.
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
        return bool(np.all(self.largest + self.slack < limit))  # which NaN is not either

    @cached_property
    def least_lead(self) -> Array:
        """Float64 (S + 1, C, C), what each output gains on each other one, at least."""
        if not self.forest.has_vectors:
            return self.lower[:, :, None] - self.upper[:, None, :]
        values = self.forest.leaf_value.astype(np.float64)
        gains = (self._reduce(own[:, None] - values) for own in values.T)
        return np.stack([self._tails(gain) for gain in gains], axis=1)

    def _reduce(self, values: Array) -> Array:
        """Return the least value that each tree gives, of those of nodes (N, W): (rounds, C)."""
        of_leaves = np.where(self.forest.is_leaf[:, None], values, np.inf)
        least = np.minimum.reduceat(of_leaves, self.forest.tree_offset[:-1]).astype(np.float64)
        return least.reshape(-1, self.forest.n_outputs)

    def _tails(self, of_rounds: Array) -> Array:
        """Return the sums of what comes behind each stretch."""
        tails = np.zeros((len(of_rounds) + 1, of_rounds.shape[1]))
        tails[:-1] = np.cumsum(of_rounds[::-1], axis=0)[::-1]
        return tails[self._ends]


def start_of_sums(forest: Forest) -> Array:
    """Return what sums start from, (C,), in their dtype."""
    base = forest.base_score if forest.base_first else np.zeros_like(forest.base_score)
    return base.astype(forest.sum_dtype)


def find_step(holds: Callable[[Array], Array], largest: Array, dtype: str) -> tuple[Array, Array]:
    """Find where a claim about sums, which stays true once it is, becomes true.

    Args:
        holds: from sums (1, C) to whether it is true of each.
        largest: (C,), more than any absolute value.
        dtype: of the sums.

    Returns:
        (below, from): the largest float for which it is false, and the next, for which it is true;
        infinities where it is always true, or never.
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
