"""Predicts with numpy, slowly and simply: compiled code must give the same bits.

takes: Forest, rows; gives: leaves, margins, values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .c_functions import NumberFunction, apply_c_function, apply_numpy_function
from .coarse_powers import COARSE_LINKS, are_alone, sum_powers, take_powers
from .linear_leaves import evaluate_leaves
from .memberships import read_rule
from .rules import Array, Link, Output

if TYPE_CHECKING:
    from .model import Forest

WALKS = 1 << 16
"""Rows times trees to walk at once; with more, numpy's arrays would not fit in the caches."""

LARGEST_POWER = {"float32": 88.7, "float64": np.inf}
"""By dtype, the largest argument of `exp` in a sigmoid.

XGBoost has this bound, so that `exp` stays finite in float32.
"""


def predict(forest: Forest, rows: Array, output: Output) -> Array:
    """Return an output of rows (R, row_width), as `Forest.predict_reference` describes it."""
    rows = cast_rows(forest, rows)
    ends = walk_trees(forest, rows)
    if output == "apply":
        return forest.node_id[ends].astype(forest.leaf_id_dtype)
    leaves = evaluate_leaves(forest, rows, ends) if forest.is_linear else forest.leaf_value[ends]
    if output == "per_tree":
        return leaves[:, :, 0] if leaves.shape[2] == 1 else leaves
    margin = aggregate_leaves(forest, leaves)
    return margin if output == "margin" else forest.values_of(margin)


def cast_rows(forest: Forest, rows: Array) -> Array:
    """Cast rows (R, row_width) of any dtype to the row dtype, and prepare them for walks (R, F)."""
    with np.errstate(over="ignore"):
        return forest.prepare_rows(np.asarray(rows).astype(forest.row_dtype))


def walk_trees(forest: Forest, rows: Array) -> Array:
    """Return the leaf, int64 (R, T), that each row (R, F) reaches in each tree."""
    step = max(1, WALKS // max(1, forest.n_trees))
    ends = [_walk(forest, rows[begin : begin + step]) for begin in range(0, len(rows), step)]
    return np.concatenate(ends) if ends else np.zeros((0, forest.n_trees), np.int64)


def _walk(forest: Forest, rows: Array) -> Array:
    node = np.tile(forest.tree_offset[:-1], (len(rows), 1))
    row, tree = np.nonzero(~forest.is_leaf[node])
    while row.size:
        at = node[row, tree]
        left = goes_left(forest, rows[row, forest.feature[at]], at)
        at = forest.tree_offset[tree] + np.where(left, forest.left[at], forest.right[at])
        node[row, tree] = at
        walking = ~forest.is_leaf[at]
        row, tree = row[walking], tree[walking]
    return node


def goes_left(forest: Forest, value: Array, node: Array) -> Array:
    """Return bool (R,), whether each row goes left at its node.

    Args:
        forest: the model.
        value: (R,), the value of the feature that the node tests.
        node: int (R,), numbers of inner nodes through the whole forest.
    """
    threshold = forest.threshold[node]
    left = value < threshold if forest.comparison == "<" else value <= threshold
    for test in forest.categories.keys() & set(node.tolist() if forest.categories else ()):
        rule, here = read_rule(forest), node == test
        member = np.isin(rule.codes(value[here]), forest.categories[test])
        left[here] = member == (rule.members_go == "left")
    return np.where(np.isnan(value), forest.default_left[node], left)


def aggregate_leaves(forest: Forest, leaves: Array) -> Array:
    """Combine the leaf values (R, T, W) of every row, tree by tree; return margins (R, C)."""
    start = forest.base_score if forest.base_first else np.zeros_like(forest.base_score)
    if forest.aggregate in ("min", "max"):
        start = np.full_like(start, forest.neutral_leaf)
    margin = np.repeat(start[None, :], len(leaves), axis=0).astype(forest.sum_dtype)
    join = {"min": np.minimum, "max": np.maximum}.get(forest.aggregate, np.add)
    with np.errstate(over="ignore", invalid="ignore"):  # linear leaves can be infinite
        for tree, target in enumerate(forest.tree_class):
            to = slice(None) if target < 0 else slice(target, target + 1)
            margin[:, to] = join(margin[:, to], leaves[:, tree])
    return finish_sums(forest, margin)


def finish_sums(forest: Forest, margin: Array) -> Array:
    """Turn sums of leaf values (R, C) into margins: average, scale, base score; in place."""
    if forest.aggregate == "average":
        margin /= np.maximum(1, forest.trees_of_class).astype(margin.dtype)
    if forest.sum_scale != 1:
        margin *= margin.dtype.type(forest.sum_scale)
    if not forest.base_first:
        margin += forest.base_score
    return margin


def choose_classes(forest: Forest, margin: Array, value: Array) -> Array:
    """Return the index of each row's label, int64, given margins and values (R, C).

    With several targets, an index counts from the first label of its target. If the forest has no
    labels, it is the index of the chosen output. The shape is that of `choose_labels`.

    Raises:
        ValueError: the forest is not a classifier.
    """
    rule = forest.class_rule
    if rule == "none":
        raise ValueError("the forest gives no classes")
    if rule in ("half", "cut"):
        score = value if rule == "half" else margin
        score = score[:, 0] if score.shape[1] == 1 else score  # each of several is a yes or no
        return (score > 0.5 if rule == "half" else score >= forest.label_cut).astype(np.int64)
    scores = split_by_target(value if rule == "argmax_probability" else margin, forest)
    if rule == "top_margin":
        scores = [_rank_nan_as_cpp(score) for score in scores]
    chosen = [np.argmax(score, axis=1) for score in scores]
    return np.stack(chosen, axis=1) if forest.targets else chosen[0]


def choose_labels(forest: Forest, margin: Array, value: Array) -> Array:
    """Return the labels of rows, given margins and values (R, C).

    The shape is (R,), or (R, k) for k targets, or for k outputs of which each has a label.

    Raises:
        ValueError: the forest has no labels.
    """
    return name_classes(forest, choose_classes(forest, margin, value))


def name_classes(forest: Forest, classes: Array) -> Array:
    """Return the labels for the indices that `choose_classes` returns.

    Raises:
        ValueError: the forest has no labels.
    """
    labels, rule = forest.labels, forest.label_rule
    if labels is None or rule == "none":
        raise ValueError("the forest gives no labels")
    if rule in ("half", "cut") or not forest.targets:
        return labels[classes]
    choices = zip(split_by_target(labels[None, :], forest), classes.T, strict=True)
    return np.stack([own[0, chosen] for own, chosen in choices], axis=1)


def _rank_nan_as_cpp(score: Array) -> Array:
    """Return scores (R, C) with -inf for NaN beyond column 0: in C++, only a first NaN wins."""
    ranked = np.where(np.isnan(score), -np.inf, score)
    ranked[:, 0] = score[:, 0]
    return ranked


def split_by_target(outputs: Array, forest: Forest) -> list[Array]:
    """Split outputs (R, C) into one array of columns for each target."""
    return _split(outputs, forest.targets)


def _split(outputs: Array, targets: tuple[int, ...]) -> list[Array]:
    return np.split(outputs, np.cumsum(targets)[:-1], axis=1) if targets else [outputs]


def apply_link(
    link: Link,
    margin: Array,
    scale: float = 1.0,
    targets: tuple[int, ...] = (),
    call: NumberFunction = apply_numpy_function,
) -> Array:
    """Apply a link to margins (R, C) and return values of their dtype.

    Args:
        link: the name of the link.
        margin: (R, C).
        scale: see `OutputMeaning.link_scale`.
        targets: see `OutputMeaning.targets`.
        call: `apply_numpy_function` or `apply_c_function`, which compute exponentials.
    """
    if link in COARSE_LINKS:
        values = _take_coarse_powers(link, margin.astype(np.float64), targets)
        return values.astype(margin.dtype)
    if link.endswith("softmax"):
        return np.concatenate(
            [_softmax(link, own, call) for own in _split(margin, targets)], axis=1
        )
    if link in _EXACT:
        return _EXACT[link](margin)
    one = margin.dtype.type(1)
    if link in ("sigmoid", "unbounded_sigmoid"):
        power = -margin if scale == 1 else -margin.dtype.type(scale) * margin
        bound = LARGEST_POWER[str(margin.dtype)] if link == "sigmoid" else np.inf
        own = apply_c_function if margin.dtype == np.float64 else call  # CatBoost calls C
        with np.errstate(over="ignore"):
            return one / (one + own("exp", np.minimum(power, margin.dtype.type(bound))))
    if link == "logistic":  # onnxruntime: never a power above zero
        above = one / (one + call("exp", -np.abs(margin)))
        return np.where(margin < 0, one - above, above)
    if link == "exp":
        return call("exp", margin)
    if link == "log1p_exp":
        return call("log1p", call("exp", margin))
    assert link in ("isolation", "halving"), f"no link named {link!r}"
    halved = call("exp2", -(margin / margin.dtype.type(scale)))
    return halved if link == "halving" else -halved


_EXACT: dict[Link, Callable[[Array], Array]] = {
    "identity": lambda margin: margin,
    "clamp": lambda margin: np.clip(margin, 0, margin.dtype.type(1)),
    "sorted": lambda margin: np.sort(margin, axis=1, kind="stable"),
    "signed_square": lambda margin: np.sign(margin) * margin * margin,
    "step": lambda margin: (margin > 0).astype(margin.dtype),
}
"""Links that give the same bits on every machine."""


def _take_coarse_powers(link: Link, margin: Array, targets: tuple[int, ...]) -> Array:
    """Implement `apply_link` for CatBoost's links, which use its own exponential function.

    CatBoost applies the function to one output of all rows at once, but for a softmax to all
    outputs of one row.
    """
    if link == "coarse_softmax":
        found = [sum_powers(own) for own in _split(margin, targets)]
        return np.concatenate([powers / total for _, total, powers in found], axis=1)
    alone = are_alone(len(margin))[:, None]
    if link == "coarse_exp":
        return take_powers(margin, alone)
    value = margin.copy()
    value[:, 1::2] = take_powers(2 * margin[:, 1::2], alone)
    return value


def _softmax(link: Link, margin: Array, call: NumberFunction) -> Array:
    if link == "plain_softmax":
        powers = call("exp", margin)
        inverse = margin.dtype.type(1) / np.cumsum(powers, axis=1)[:, -1:]  # from left to right
        return np.minimum(powers * inverse, margin.dtype.type(1))
    dtype = np.float32 if link == "rounded_softmax" else margin.dtype
    distance = margin - margin.max(axis=1, keepdims=True).astype(dtype)
    powers = call("exp", distance).astype(dtype)
    if call is apply_c_function:  # from left to right
        total = np.cumsum(powers, axis=1, dtype=np.float64)[:, -1:]
    else:
        total = powers.sum(axis=1, keepdims=True, dtype=np.float64)
    return powers.astype(margin.dtype) / total.astype(dtype)
