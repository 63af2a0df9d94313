"""Decides about rows before they have walked all trees: by a threshold, a class's lead, or a rank.

takes: Stretches, a threshold or a number of rows; gives: decisions for rows that are certain.

Since links are monotone, a threshold of values corresponds to one of sums, which `find_step` finds
once. Exponentials of numpy and of compiled code may differ in their last bits. Rows whose
values are so near to a threshold that this matters are left to the whole model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import Array, Forest
from ...forest.reference import finish_sums
from .bounds import ROUNDINGS, find_step
from .stretches import Decide, Stretches
from .two_ways import TwoWays

EXACT_LINKS = ("identity", "clamp", "signed_square", "step")
"""Increasing links whose results are the same on every machine."""

RISING_LINKS = (*EXACT_LINKS, "sigmoid", "unbounded_sigmoid", "logistic", "exp", "log1p_exp")
"""Increasing links, each value of which depends on one output."""

SOFTMAX_LINKS = ("softmax", "rounded_softmax")
"""Links over all outputs that keep the order of the outputs, except that rounding may make
values equal."""

LAST_BITS = 64
"""Generous bound, in units in the last place, on differences between exponentials."""

CLEAR_LEAD = 2.0**-8
"""Lead of a margin with which its rounded probability is certain to be the larger one."""

EVERY = slice(None)
"""All outputs."""

MAX_CLASSES = 64
"""Most classes of a model for which `Leader` is used, as it needs a bound for every pair."""


def values_of_sums(forest: Forest, sums: Array) -> Array:
    """Return the values (R, C) of sums, up to the last bits of exponentials."""
    return forest.values_of(finish_sums(forest, sums.copy()))


def rises(forest: Forest) -> bool:
    """Return whether each value increases with its own sum, and depends on no other sum."""
    return forest.link in RISING_LINKS and forest.link_scale > 0


def _doubt(forest: Forest, values: Array) -> Array:
    """Return by how much values may differ from those of compiled code, (R, C)."""
    share = 0.0 if forest.link in EXACT_LINKS else LAST_BITS * float(np.finfo(values.dtype).eps)
    return np.abs(values) * values.dtype.type(share)


class Above:
    """Decides whether values are above a threshold.

    Attributes:
        yes: (S + 1, C'), for each stretch, the sum from which on a row's value, after all trees, is
            certain to be above.
        no: (S + 1, C'), the sum up to which it is certain not to be above.
        ways: the times of early stopping and of the whole model for this threshold.
    """

    def __init__(self, stretches: Stretches, threshold: Any, outputs: slice = EVERY) -> None:
        """Compute `yes` and `no`.

        Args:
            stretches: stretches of a model for which `rises` is true.
            threshold: a number, or one for each output.
            outputs: the outputs to compare, C' of them.
        """
        forest, bounds = stretches.forest, stretches.bounds
        dtype, largest = forest.sum_dtype, bounds.largest + bounds.slack

        def surely(sums: Array) -> Array:
            values = values_of_sums(forest, sums)
            return np.asarray(values - _doubt(forest, values) > threshold)

        def maybe(sums: Array) -> Array:
            values = values_of_sums(forest, sums)
            return np.asarray(values + _doubt(forest, values) > threshold)

        self.ways, last = TwoWays(), len(stretches.ends) - 1
        from_sum, to_sum = find_step(surely, largest, dtype)[1], find_step(maybe, largest, dtype)[0]
        yes = from_sum - bounds.lower + bounds.slack
        no = to_sum - bounds.upper - bounds.slack
        reachable = (bounds.last >= yes) | (bounds.first <= no)
        self._reachable = reachable[:, outputs].all(axis=1)
        self.yes = np.nextafter(yes.astype(dtype), np.array(np.inf, dtype))
        self.no = np.nextafter(no.astype(dtype), np.array(-np.inf, dtype))
        self.yes[last], self.no[last], self._reachable[last] = from_sum, to_sum, True
        self.yes, self.no, self._outputs = self.yes[:, outputs], self.no[:, outputs], outputs

    def decide(self, found: Array) -> Decide:
        """Return the `Decide` that writes decisions into `found`, bool (R, C'): True for above."""

        def write(stretch: int, places: Array, sums: Array) -> Array | None:
            if not self._reachable[stretch]:
                return None
            asked = sums[:, self._outputs]
            above = asked >= self.yes[stretch]
            found[places] = above
            undecided: Array = ~(above | (asked <= self.no[stretch])).all(axis=1)
            return undecided

        return write


class Leader:
    """Decides which class has the largest margin, or the largest probability.

    Attributes:
        ways: the times of early stopping and of the whole model.
    """

    def __init__(self, stretches: Stretches) -> None:
        """Compute the lead that a class needs after each stretch."""
        forest, bounds = stretches.forest, stretches.bounds
        trees = forest.trees_of_class[0] if forest.aggregate == "average" else 1
        factor = forest.sum_scale / max(1, trees)  # from sums to margins
        offset = np.zeros_like(bounds.slack) if forest.base_first else forest.base_score / factor
        largest = float(np.max(bounds.largest + np.abs(offset)))
        eps = float(np.finfo(forest.value_dtype or forest.sum_dtype).eps)
        self._clear = 2 * float(bounds.slack.max()) + 2 * ROUNDINGS * eps * largest
        if forest.link in SOFTMAX_LINKS:
            self._clear += CLEAR_LEAD / factor
        self._leads = bounds.least_lead + offset[:, None] - offset[None, :]
        self.ways = TwoWays()

    def decide(self, found: Array) -> Decide:
        """Return the `Decide` that writes class numbers into `found`, int64 (R,)."""

        def write(stretch: int, places: Array, sums: Array) -> Array:
            every, top = np.arange(len(sums)), sums.argmax(axis=1)
            lead = sums[every, top][:, None] - sums.astype(np.float64) + self._leads[stretch][top]
            lead[every, top] = np.inf
            found[places] = top
            undecided: Array = ~(lead.min(axis=1) > self._clear)
            return undecided

        return write


class Best:
    """Rules out rows that cannot be among the k with the largest values of an output."""

    def __init__(self, stretches: Stretches, k: int, output: int) -> None:
        self._stretches, self._k, self._output = stretches, k, output

    def decide(self, stretch: int, places: Array, sums: Array) -> Array:
        """Return which rows may still be among the k best, bool (R,); this is a `Decide`."""
        bounds, own, last = self._stretches.bounds, self._output, len(sums) - self._k
        left = np.ones(len(sums), bool)
        if last <= 0:
            return left
        score, slack = sums[:, own].astype(np.float64), bounds.slack[own]
        least = np.partition(score, last)[last] + bounds.lower[stretch, own] - slack
        most = score + (bounds.upper[stretch, own] + slack)
        below = np.flatnonzero(most < least)
        if len(below):  # by sums, but rounding may make values equal
            values = self._values(np.append(most[below], least))
            doubt = _doubt(self._stretches.forest, values)
            left[below] = ~(values[:-1] + doubt[:-1] < values[-1] - doubt[-1])
        return left

    def _values(self, sums: Array) -> Array:
        """Return the values (R,) of sums (R,) of the output."""
        forest = self._stretches.forest
        table = np.zeros((len(sums), forest.n_outputs), forest.sum_dtype)
        table[:, self._output] = sums
        return values_of_sums(forest, table)[:, self._output]


def can_lead(forest: Forest) -> bool:
    """Return whether the class of a row is decided by the order of its sums."""
    of_margins = forest.class_rule in ("argmax_margin", "top_margin")
    of_values = forest.class_rule == "argmax_probability"
    keeps_order = of_margins or (of_values and forest.link in ("identity", *SOFTMAX_LINKS))
    equal = len(set(forest.trees_of_class.tolist())) == 1 or forest.aggregate == "sum"
    is_one = not forest.targets and 1 < forest.n_outputs <= MAX_CLASSES
    return is_one and equal and keeps_order
