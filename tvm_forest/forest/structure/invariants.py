"""Checks the invariants of a Forest when it is made.

takes: Forest; gives: the first broken invariant as a sentence, or None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..linear_leaves import find_linear_problem
from ..rules import Array
from .metadata import Unit
from .types import find_array_problem, find_value_problem

if TYPE_CHECKING:
    from ..model import Forest


def find_problem(forest: Forest) -> str | None:
    """Return the first broken invariant as a sentence, or None."""
    problems = (
        find_array_problem,
        find_value_problem,
        _shape_problem,
        _category_problem,
        _rule_problem,
        _node_problem,
        find_linear_problem,
    )
    return next(filter(None, (find(forest) for find in problems)), None)


def _shape_problem(forest: Forest) -> str | None:
    if not len(forest.tree_offset) or forest.tree_offset[0] != 0:
        return "field 'tree_offset' does not begin with 0"
    counts: dict[Unit, int] = {"node": forest.n_nodes, "tree": forest.n_trees}
    for unit, count in counts.items():
        for name, array in forest.arrays_per(unit).items():
            if len(array) != count:
                return f"field '{name}' has {len(array)} entries for {count} {unit}s"
    if np.any(np.diff(forest.tree_offset) < 1) or forest.tree_offset[-1] != forest.n_nodes:
        return "field 'tree_offset' does not cover the nodes in order"
    if forest.n_outputs < 1 or np.any(forest.tree_class >= forest.n_outputs):
        return f"field 'tree_class' names a class beyond the {forest.n_outputs} outputs"
    if np.any(forest.tree_class < (0 if forest.leaf_value.shape[1] == 1 else -1)):
        return "field 'tree_class' is negative, but leaves hold one value"
    return None


def _rule_problem(forest: Forest) -> str | None:
    if (forest.categories or forest.derived) and forest.category_rule is None:
        return "field 'category_rule' is missing, but a node asks for categories"
    if any(not 0 <= feature < forest.n_features for feature in forest.category_names):
        return f"field 'category_names' names a feature beyond the {forest.n_features}"
    targets = forest.targets
    if targets and (min(targets) < 1 or sum(targets) != forest.n_outputs):
        return f"field 'targets' is {targets}, but there are {forest.n_outputs} outputs"
    if forest.sum_scale != 1 and (forest.base_first or not np.isfinite(forest.sum_scale)):
        return f"field 'sum_scale' is {forest.sum_scale}, and 'base_first' {forest.base_first}"
    problem = None if forest.encoder is None else forest.encoder.find_problem()
    if problem is not None:
        return f"field 'encoder': {problem}"
    if forest.encoder is not None and forest.encoder.n_columns != forest.row_width:
        return f"field 'encoder' makes {forest.encoder.n_columns} columns of {forest.row_width}"
    if forest.comparison not in ("<", "<="):
        return f"field 'comparison' is {forest.comparison!r}, expected '<' or '<='"
    if not {"nan", "inf", "category"}.issuperset(forest.refuses):
        return f"field 'refuses' is {forest.refuses!r}, expected 'nan', 'inf' or 'category'"
    return None


def _category_problem(forest: Forest) -> str | None:
    """Return what is wrong with sets of categories: no whole numbers, or no such node or column.

    None if nothing is wrong.
    """
    for name, count, sets in (
        ("categories", forest.n_nodes, forest.categories.items()),
        ("derived", forest.row_width, forest.derived),
        ("known_categories", forest.row_width, forest.known_categories.items()),
        ("listed_categories", forest.row_width, forest.listed_categories),
    ):
        for at, members in sets:
            whole = all(isinstance(x, int) and abs(x) < 1 << 53 for x in (at, *members))
            if not whole or not 0 <= at < count:
                return f"field '{name}' has {members!r:.80} for {at!r:.20} of {count}"
    return None


def _node_problem(forest: Forest) -> str | None:
    if forest.n_trees == 0:
        return None
    size = np.diff(forest.tree_offset)[forest.node_tree]
    inner = ~forest.is_leaf
    for name, child in (("left", forest.left), ("right", forest.right)):
        wrong = inner & ((child < 1) | (child >= size))
        if wrong.any():
            return f"{forest.name_first(wrong)} has {name} child {child[np.argmax(wrong)]}"
    wrong = inner & ((forest.feature < 0) | (forest.feature >= forest.n_features))
    if wrong.any():
        feature = forest.feature[np.argmax(wrong)]
        return f"{forest.name_first(wrong)} tests feature {feature} of {forest.n_features}"
    wrong = inner & np.isnan(forest.threshold)
    if wrong.any():
        return f"{forest.name_first(wrong)} has a threshold that is not a number"
    if forest.is_level_ordered:
        return None
    parents = _count_parents(forest)
    if np.any(parents > 1):  # checked first: `node_depth` could take forever otherwise
        return f"{forest.name_first(parents > 1)} has two parents"
    wrong = (forest.node_depth < 0) | (parents != (forest.node_depth > 0))
    if wrong.any():
        return f"{forest.name_first(wrong)} is part of a cycle or no path leads to it"
    return None


def _count_parents(forest: Forest) -> Array:
    """Return int64 (N,), how many inner nodes name a node as their child."""
    inner = np.flatnonzero(~forest.is_leaf)
    base = forest.tree_offset[forest.node_tree[inner]]
    children = np.concatenate([base + forest.left[inner], base + forest.right[inner]])
    return np.bincount(children, minlength=forest.n_nodes)
