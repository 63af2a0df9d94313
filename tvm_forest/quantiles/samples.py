"""The samples of a quantile forest: which training rows are in each leaf, and their targets.

takes: a fitted estimator of quantile-forest, or leaves and targets of training rows; gives:
LeafSamples.

Node `i` of tree `t` has the number `offsets[t] + i`; its samples are the entries of `ranks` from
`starts[number]` to `starts[number + 1] - 1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from ..forest import Array, Forest
from ..frontends.refusals import unsupported
from ..system.values import dataclass

Default = float | list[float] | str | None
"""What `predict` returns by default: one quantile, several, or the mean ("mean" or None)."""

MAX_SHORT = 1 << 16
"""Largest number of training rows whose ranks fit in two bytes."""

FIELDS = {
    "values": ("float64",),
    "offsets": ("int64",),
    "starts": ("int64",),
    "ranks": ("uint16", "int32"),
    "order": ("int32",),
}
"""The arrays of samples by name, and their dtypes."""


@dataclass(frozen=True, eq=False)
class LeafSamples:
    """Samples of T trees with M nodes together, of N training rows with C targets.

    Attributes:
        values: float64 (C, N), the targets, ascending.
        offsets: int64 (T,), the number of the first node of each tree.
        starts: int64 (M + 1,), where the samples of each node begin.
        ranks: uint16 or int32 (C, S), for each sample the index of its target in `values`.
        order: int32 (N,), the training row of each rank of the first target; empty if values are
            not those of training rows.
        single: whether each leaf has one sample, for which quantile-forest has a rule of its own.
        default: what `predict` returns by default.
    """

    values: Array
    offsets: Array
    starts: Array
    ranks: Array
    order: Array
    single: bool
    default: Default

    @property
    def n_outputs(self) -> int:
        """C, the number of targets."""
        return len(self.values)

    @property
    def sizes(self) -> Array:
        """Int64 (M,), number of samples of each node."""
        return np.diff(self.starts)


def count_nodes(forest: Forest) -> Array:
    """Return int64 (T,), for each tree of the source model, its largest node number plus one."""
    tree = forest.tree_id[forest.node_tree]
    counts = np.zeros(tree.max(initial=-1) + 1, np.int64)
    np.maximum.at(counts, tree[tree >= 0], forest.node_id[tree >= 0].astype(np.int64) + 1)
    return counts


def check_samples(samples: LeafSamples, counts: Array) -> None:
    """Check that compiled code would stay within the arrays of samples, which come from a file.

    Args:
        samples: the arrays.
        counts: see `count_nodes`.

    Raises:
        ValueError: an array has another shape or dtype, or an index would lead outside of one.
    """
    arrays = {name: getattr(samples, name) for name in FIELDS}
    n_ranks, ends = samples.values.shape[1], np.append(samples.offsets, len(samples.starts) - 1)
    is_inside = (
        all(str(x.dtype) in FIELDS[name] and x.flags.c_contiguous for name, x in arrays.items())
        and len(samples.offsets) == len(counts)
        and (np.diff(ends) >= counts).all()
        and (samples.offsets >= 0).all()
        and samples.starts[0] == 0
        and (np.diff(samples.starts) >= 0).all()
        and samples.ranks.shape == (samples.n_outputs, samples.starts[-1])
        and all((0 <= x).all() and (x < n_ranks).all() for x in (samples.ranks, samples.order))
        and len(samples.order) in (0, n_ranks)
    )
    if not is_inside:
        raise ValueError("samples are not those of the forest")


def read_library(model: Any) -> LeafSamples:
    """Return the samples of a fitted estimator of quantile-forest.

    Raises:
        UnsupportedModel: the estimator predicts by other samples than those that it stores, targets
            differ in their samples, or a leaf lacks its only sample or its bounds.
    """
    kept, counts = model.forest_, [tree.tree_.node_count for tree in model.estimators_]
    values, leaves = np.asarray(kept.y_train), np.asarray(kept.y_train_leaves)
    single = model.max_samples_leaf == 1
    if single and isinstance(model.max_samples_leaf, float):
        what = "1.0 keeps all samples, of which quantiles read the first of each leaf"
        raise unsupported("max_samples_leaf", what, "train with 1 or None")
    parts, sizes = [], []
    for tree, count in enumerate(counts):
        places = leaves[tree, :count].transpose(1, 0, 2)
        used = places > 0
        if not (used == used[0]).all():
            raise unsupported("forest_", "targets have samples of their own", "train it again")
        sizes.append(used[0].sum(axis=1))
        parts.append(np.stack([own[used[0]] for own in places]) - 1)
    is_leaf = np.concatenate([tree.tree_.children_left < 0 for tree in model.estimators_])
    if single and not np.concatenate(sizes)[is_leaf].all():
        raise unsupported("forest_", "a leaf has no sample", "train it without weights of zero")
    starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    ranks, order = np.concatenate(parts, axis=1), np.asarray(model.sorter_)[:, 0].astype(np.int32)
    if model.monotonic_cst is not None:
        bounds = np.concatenate([x[:k] for x, k in zip(kept.y_bound_leaves, counts, strict=True)])
        low, high = np.repeat(bounds, np.diff(starts), axis=0).T
        clipped = np.clip(values[0][ranks[0]], low, high)
        if np.isnan(clipped).any():
            raise unsupported("monotonic_cst", "a leaf has no bounds", "train without it")
        values, ranks = (x[None] for x in np.unique(clipped, return_inverse=True))
        order = np.zeros(0, np.int32)
    return _make(values, counts, starts, ranks, order, single, model.default_quantiles)


def read_targets(where: str, targets: Any, n_rows: int) -> Array:
    """Convert the targets of rows to float64 (N, C).

    Raises:
        InputError: the targets are not finite numbers, or not one for each row.
    """
    try:
        values = np.asarray(targets, np.float64)
    except (TypeError, ValueError):
        values = np.full(n_rows, np.nan)
    if values.shape[:1] != (n_rows,) or values.ndim > 2 or not np.isfinite(values).all():
        raise InputError(
            f"{where}: argument 'targets': expected finite numbers of shape ({n_rows},) or "
            f"({n_rows}, C), got shape {values.shape}; give one for each row"
        )
    return values if values.ndim == 2 else values[:, None]


def collect_samples(
    leaves: Array, targets: Array, widths: Array, drawn: Sequence[Array] | None, default: Default
) -> LeafSamples:
    """Make samples from training rows, given the leaves that they reach.

    Args:
        leaves: (N, T), the leaf of each row in each tree.
        targets: float64 (N, C), the targets of the rows.
        widths: (T,), see `count_nodes`.
        drawn: for each tree, the rows that it drew, possibly several times; None for all rows, once
            each.
        default: what `predict` returns by default.
    """
    n_rows, n_trees = leaves.shape
    order = np.argsort(targets, axis=0, kind="stable")
    rank_of = np.empty_like(order)
    np.put_along_axis(rank_of, order, np.arange(n_rows)[:, None], axis=0)
    parts, sizes = [], []
    for tree in range(n_trees):
        rows = np.arange(n_rows) if drawn is None else np.asarray(drawn[tree])
        own = leaves[rows, tree]
        rows = rows[np.lexsort((rank_of[rows, 0], own))]
        sizes.append(np.bincount(own, minlength=widths[tree]))
        parts.append(rank_of[rows].T)
    starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    values = np.take_along_axis(targets, order, axis=0).T
    ranks = np.concatenate(parts, axis=1)
    return _make(values, widths, starts, ranks, order[:, 0].astype(np.int32), False, default)


def _make(
    values: Array,
    counts: Any,
    starts: Array,
    ranks: Array,
    order: Array,
    single: bool,
    default: Default,
) -> LeafSamples:
    """Return LeafSamples with arrays of the right dtypes.

    `counts` is as from `count_nodes`; the others are attributes of `LeafSamples`.
    """
    dtype = np.uint16 if values.shape[1] <= MAX_SHORT else np.int32
    offsets = np.cumsum([0, *counts])[:-1].astype(np.int64)
    ranks = np.ascontiguousarray(ranks, dtype)
    values = np.ascontiguousarray(values, np.float64)
    default = default if default is None or isinstance(default, str) else _to_plain(default)
    return LeafSamples(values, offsets, starts.astype(np.int64), ranks, order, single, default)


def _to_plain(quantiles: Any) -> float | list[float]:
    """Return quantiles as numbers or lists that JSON can store."""
    plain: float | list[float] = np.asarray(quantiles, np.float64).tolist()
    return plain
