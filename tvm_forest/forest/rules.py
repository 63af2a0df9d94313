"""The names of the rules by which training libraries predict.

takes: nothing; gives: the types of those fields of Forest that hold such a name, and CategoryRule.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..system.values import dataclass

WEIGHTED = " dart"
"""End of `Forest.source` of XGBoost's models whose trees have weights other than 1."""

LEAF = -1
"""Value of `Trees.feature`, `left` and `right` at leaves."""

Array = npt.NDArray[Any]
Comparison = Literal["<", "<="]
Link = Literal[
    "identity",
    "sigmoid",
    "unbounded_sigmoid",
    "logistic",
    "exp",
    "softmax",
    "rounded_softmax",
    "plain_softmax",
    "clamp",
    "step",
    "log1p_exp",
    "signed_square",
    "sorted",
    "coarse_exp",
    "coarse_softmax",
    "variance",
    "isolation",
    "halving",
]
Aggregate = Literal["sum", "average", "min", "max"]
LabelRule = Literal["none", "argmax_margin", "top_margin", "argmax_probability", "half", "cut"]
Output = Literal["margin", "value", "apply", "per_tree"]

PROBABILITY_LINKS: tuple[Link, ...] = (
    *("sigmoid", "unbounded_sigmoid", "logistic", "clamp"),
    *("softmax", "rounded_softmax", "plain_softmax", "coarse_softmax"),
)
"""Links whose values are probabilities."""

LINK_ULPS: dict[Link, int] = {
    "identity": 0,
    "clamp": 0,
    "step": 0,
    "signed_square": 0,
    "sorted": 0,
    "sigmoid": 4,
    "unbounded_sigmoid": 4,
    "logistic": 4,  # ulp of 1, since onnxruntime subtracts from 1
    "exp": 2,
    "softmax": 4,
    "rounded_softmax": 4,  # ulp of float32, to which its powers are rounded
    "plain_softmax": 6,  # it multiplies powers of full size by the inverse of their sum
    "log1p_exp": 4,
    **dict.fromkeys(("coarse_exp", "coarse_softmax", "variance"), 0),  # see `coarse_powers`
    "isolation": 2,
    "halving": 2,
}
"""By link, the largest difference from the training library's value, in ulp.

It is not zero where the library's `exp` and ours round differently.
"""

ZERO = np.float32(1e-35)
"""Largest distance from zero that LightGBM treats as zero."""


@dataclass(frozen=True)
class CategoryRule:
    """The source library's rule for testing a value against a set of categories.

    A category is a value truncated toward zero; a negative value is no category.

    Attributes:
        members_go: where a row goes whose category is in the set; others go to the other side.
        negative_fractions: whether -0.5 is category 0; if not, it is no category.
        fractions_missing: whether a value that is no whole number counts as missing.
        fractions_none: whether a value that is no whole number is no category.
        highest: values from this number on are no category.
    """

    members_go: Literal["left", "right"]
    negative_fractions: bool = False
    fractions_missing: bool = False
    fractions_none: bool = False
    highest: int = 1 << 24

    def codes(self, values: Array) -> Array:
        """Return the category of each value, int64; -1 for values that are none, such as NaN."""
        with np.errstate(invalid="ignore"):
            none = ~(values > -1 if self.negative_fractions else values >= 0)
            none |= ~(values < self.highest)
            if self.fractions_none:
                none |= values != np.trunc(values)
        return np.where(none, -1, np.where(none, 0, values).astype(np.int64))
