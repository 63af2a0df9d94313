"""The third part of a Forest: how the values of reached leaves become predictions.

takes: facts about the source library and the model; gives: OutputMeaning.
"""

from __future__ import annotations

import numpy as np

from ...system.values import dataclass, field
from ..rules import PROBABILITY_LINKS, Aggregate, Array, LabelRule, Link
from .metadata import per_model


@dataclass(frozen=True, eq=False, kw_only=True)
class OutputMeaning:
    """The rules that turn leaf values into predictions: base score, sum, link, labels, targets.

    The margin of output c is ``base_score[c]``, to which the leaf values of the trees of class c
    are added one by one, in tree order, in the dtype of `leaf_value`; with ``base_first`` False the
    base score is added last, to the sum times `sum_scale`, which is rounded before.

    Attributes:
        base_score: (C,), in margin space and in the dtype of the sum; float64 with `base_first`
            False adds it to float32 sums in float64.
        base_first: whether the sum starts from the base score.
        base_of_first: whether the base score belongs to the first round, so that a range of rounds
            without the first has a base score of 0.
        sum_scale: factor of the sum of leaf values before the base score is added; other numbers
            than 1 need `base_first` False.
        aggregate: how the leaf values of a class are combined; "average" divides their sum by the
            number of trees of the class.
        link: function from margins to values; "sorted" sorts the margins of a row in ascending
            order, "variance" takes `exp(2 * margin)` of every second output, the logarithm of a
            standard deviation. "variance" and the "coarse" links use the exponential function of
            `coarse_powers`.
        link_scale: factor of margins before a sigmoid; divisor of margins before "halving", which
            is `2 ** -margin`, and "isolation", which is `-(2 ** -margin)`.
        score_offset: number that an isolation forest's `decision_function` subtracts; or None.
        value_dtype: dtype of the values, to which margins are rounded before the link; None stands
            for the dtype of the sum.
        label_rule: how `predict` picks a class. "none": not at all; "argmax_margin": the largest
            margin; "top_margin": the same in C++; "argmax_probability": the largest probability;
            "half": whether the probability is above one half; "cut": whether the margin is at least
            `label_cut`. Under the last two, each of several outputs has a label. In numpy, NaN is
            larger than all numbers; in C++, it is the largest only if it comes first.
        label_cut: the smallest margin of the second label under the rule "cut".
        labels: (n_classes,) class labels in the dtype that `predict` returns, or None.
        targets: the number of outputs, and of labels, of each target; each target has its own
            softmax and its own label. Empty for a single target.
        leaf_id_dtype: dtype in which the source library reports leaf numbers.
        needs_end: whether a range of rounds without an end stands for the whole model, whatever its
            begin, as in estimators of XGBoost.
    """

    base_score: Array = field(metadata=per_model(10))
    base_first: bool = field(default=True, metadata=per_model(26))
    base_of_first: bool = field(default=False, metadata=per_model(47, signed_if_set=True))
    sum_scale: float = field(default=1.0, metadata=per_model(46, signed_if_set=True))
    aggregate: Aggregate = field(default="sum", metadata=per_model(27))
    link: Link = field(default="identity", metadata=per_model(28))
    link_scale: float = field(default=1.0, metadata=per_model(29))
    score_offset: float | None = field(default=None, metadata=per_model(30, signed_if_set=True))
    value_dtype: str | None = field(default=None, metadata=per_model(31))
    label_rule: LabelRule = field(default="none", metadata=per_model(32))
    label_cut: float = field(default=0.0, metadata=per_model(33))
    labels: Array | None = field(default=None, metadata=per_model(34))
    targets: tuple[int, ...] = field(default=(), metadata=per_model(35))
    leaf_id_dtype: str = field(default="int32", metadata=per_model(36))
    needs_end: bool = field(default=False, metadata=per_model(None))

    @property
    def n_outputs(self) -> int:
        """C, the number of margins of a row."""
        return len(self.base_score)

    @property
    def gives_labels(self) -> bool:
        """Whether the source library's `predict` returns labels."""
        return self.labels is not None and self.label_rule != "none"

    @property
    def gives_probabilities(self) -> bool:
        """Whether values are probabilities, or lead to them."""
        of_labels = self.label_rule in ("half", "argmax_probability")
        return of_labels or self.link in PROBABILITY_LINKS

    @property
    def class_rule(self) -> LabelRule:
        """The rule that selects a class: `label_rule`, or, without labels, that of the link."""
        if self.gives_labels:
            return self.label_rule
        if self.link.endswith("softmax"):
            return "argmax_margin"
        return "half" if self.link in ("sigmoid", "unbounded_sigmoid", "logistic") else "none"

    @property
    def last_class(self) -> int | None:
        """The largest class index that `choose_classes` can return; None without classes."""
        if self.class_rule in ("none", "half", "cut"):
            return None if self.class_rule == "none" else 1
        classes = self.n_outputs if self.labels is None else len(self.labels)
        return max(self.targets, default=classes) - 1

    @property
    def neutral_leaf(self) -> float:
        """Leaf value that changes no margin: in a sum -0.0, since -0.0 + 0.0 would be +0.0."""
        return {"min": np.inf, "max": -np.inf}.get(self.aggregate, -0.0)
