"""The model: everything that decides the bits of a prediction, and the reference walk.

takes: arrays; gives: Forest, the high-level IR of the compiler and the oracle of its tests.
"""

from .model import Forest
from .reference import apply_link, choose_classes, choose_labels, split_by_target
from .rules import LEAF, Aggregate, Array, CategoryRule, Comparison, LabelRule, Link, Output
from .structure.trees import node_depths

__all__ = [
    "LEAF",
    "Aggregate",
    "Array",
    "CategoryRule",
    "Comparison",
    "Forest",
    "LabelRule",
    "Link",
    "Output",
    "apply_link",
    "split_by_target",
    "choose_classes",
    "choose_labels",
    "node_depths",
]
