"""Leaf profiles: how many rows of some data end at each leaf of a model.

takes: Forest and leaf numbers, or a file; gives: Profile, and a Forest with `hits`.

The leaves of a tree are listed in level order, left to right, which does not depend on how a
library numbers its nodes; XGBoost's depth-wise trees are numbered in this order.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..errors import InputError, ModelFormatError
from ..system.archive import replace_file
from ..system.values import dataclass, replace
from . import Array, Forest
from .profile_files import UNKNOWN, ProfileText, format_profile, parse_profile
from .rewrites.ordering import order_by_level

__all__ = ["UNKNOWN", "Profile"]


@dataclass(frozen=True, eq=False)
class Profile:
    """The number of rows that ended at each leaf, for T trees with L leaves together.

    Attributes:
        hits: int64 (L,), tree by tree in the order of the source model.
        depths: int32 (L,), hops to each leaf; may be UNKNOWN for leaves without hits.
        leaf_offset: int64 (T + 1,), where the leaves of each tree begin.
        rows: number of rows; every tree's hits add up to it.
        signature: `Forest.signature` of the model, or None.
    """

    hits: Array
    depths: Array
    leaf_offset: Array
    rows: int
    signature: str | None = None

    def __post_init__(self) -> None:
        for name in ("hits", "depths", "leaf_offset"):
            frozen = getattr(self, name).view()
            frozen.flags.writeable = False
            object.__setattr__(self, name, frozen)

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.leaf_offset) - 1

    @property
    def leaf_counts(self) -> Array:
        """Int64 (T,), the number of leaves of each tree."""
        return np.diff(self.leaf_offset)

    @classmethod
    def of_leaves(cls, forest: Forest, ids: Array) -> Profile:
        """Return the profile of some rows, given the leaves at which they ended.

        Args:
            forest: the model as it was loaded.
            ids: (R, T), what `Predictor.apply` returns for R rows of the data: whole numbers of any
                dtype, as XGBoost reports leaves in float32.

        Raises:
            InputError: the shape or dtype is wrong, or a number is no leaf of its tree.
        """
        ids = np.asarray(ids)
        counter = LeafCounter(forest)
        hits = counter.count(ids)
        return cls(hits, counter.depths, counter.offset, len(ids), forest.signature)

    def __add__(self, other: Profile) -> Profile:
        """Return the profile of the rows of both profiles together.

        Raises:
            InputError: the profiles are of different models.
        """
        if not isinstance(other, Profile):
            return NotImplemented
        signatures = {self.signature, other.signature} - {None}
        same_trees = np.array_equal(self.leaf_offset, other.leaf_offset)
        both = (self.depths, other.depths) if same_trees else (np.zeros(1), np.ones(1))
        if len(signatures) > 1 or np.any((both[0] != both[1]) & (np.minimum(*both) != UNKNOWN)):
            raise InputError(
                f"Profile: argument 'other': it is of another model ({other.n_trees} trees, "
                f"{len(other.hits)} leaves) than this one ({self.n_trees} trees, {len(self.hits)} "
                "leaves); add profiles of one model only"
            )
        return replace(
            self,
            hits=self.hits + other.hits,
            depths=np.maximum(*both),
            rows=self.rows + other.rows,
            signature=next(iter(signatures), None),
        )

    def onto(self, forest: Forest) -> Forest:
        """Return the forest with this profile as its `hits`.

        Args:
            forest: the model as it was loaded.

        Raises:
            InputError: the profile is of another model; the message says what differs, such as the
                leaves of a tree.
        """
        if self.n_trees != forest.n_trees:
            raise _misfit(f"it has {self.n_trees} trees, the model has {forest.n_trees}")
        leaf, offset = _list_leaves(forest)
        wrong = self.leaf_counts != np.diff(offset)
        if wrong.any():
            tree = int(np.argmax(wrong))
            counts = f"{self.leaf_counts[tree]} leaves, in the model {np.diff(offset)[tree]}"
            raise _misfit(f"its tree {tree} has {counts}")
        depth = forest.node_depth[leaf]
        wrong = (self.depths != depth) & (self.depths != UNKNOWN)
        if wrong.any():
            at = int(np.argmax(wrong))
            tree = int(forest.node_tree[leaf[at]])
            where = f"leaf {at - offset[tree]} of its tree {tree} has depth {self.depths[at]}"
            raise _misfit(f"{where}, in the model {depth[at]}")
        if self.signature not in (None, forest.signature):
            raise _misfit("all its trees have the model's shape, but their signatures differ")
        hits = np.zeros(forest.n_nodes, np.int64)
        hits[leaf] = self.hits
        return replace(forest, hits=hits)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile to a file: CSV if its name ends in .csv, JSON otherwise.

        The file appears under its name once it is complete. The CSV leaves out the signature.

        Raises:
            OSError: the file cannot be written.
        """
        hits, depths = (
            [part.tolist() for part in np.split(leaves, self.leaf_offset[1:-1])]
            for leaves in (self.hits, self.depths)
        )
        trees = list(zip(hits, depths, strict=True))[: self.n_trees]
        text = format_profile(ProfileText(self.rows, self.signature, trees), Path(path))
        replace_file(Path(path), text.encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile from a file that `save` wrote, or from one of Treebeard's CSV files.

        Raises:
            ModelFormatError: the file cannot be read; or it is damaged, and the message names the
                line.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            what = f"cannot be read ({error}); give a file that Profile.save wrote"
            raise ModelFormatError(f"profile {path}: {what}") from None
        rows, signature, trees = parse_profile(text, Path(path))
        return cls(
            hits=np.array([hit for hits, _ in trees for hit in hits], np.int64),
            depths=np.array([depth for _, depths in trees for depth in depths], np.int32),
            leaf_offset=np.cumsum([0, *(len(hits) for hits, _ in trees)]),
            rows=rows,
            signature=signature,
        )


class LeafCounter:
    """Counts how many rows reach each leaf of a model.

    Attributes:
        leaf: int64 (L,), the nodes that are leaves, in the order of a profile.
        depths: int32 (L,), see `Profile.depths`.
        offset: int64 (T + 1,), see `Profile.leaf_offset`.
    """

    def __init__(self, forest: Forest) -> None:
        self.leaf, self.offset = _list_leaves(forest)
        self.depths = forest.node_depth[self.leaf]
        # The last number of each tree and -1 are no node's.
        self._width = int(forest.node_id.max(initial=0)) + 2
        keys = forest.node_tree[self.leaf] * self._width + forest.node_id[self.leaf]
        self._by_key = np.argsort(keys, kind="stable")
        self._keys = keys[self._by_key]

    def count(self, ids: Array) -> Array:
        """Return how many rows reach each leaf, int64 (L,), given `ids` as for `of_leaves`.

        Raises:
            InputError: see `Profile.of_leaves`.
        """
        n_trees, width = len(self.offset) - 1, self._width
        if ids.ndim != 2 or ids.shape[1] != n_trees or ids.dtype.kind not in "iuf":
            raise InputError(
                f"of_leaves: argument 'ids': expected numbers of shape (R, {n_trees}), got "
                f"{ids.dtype} of shape {ids.shape}; give what predictor.apply returns"
            )
        near = np.clip(ids, -1, width - 1)
        near = np.where(near == np.floor(near), near, -1).astype(np.int64)
        key = np.arange(n_trees) * width + near
        at = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        wrong = np.argwhere(self._keys[at] != key)
        if len(wrong):
            row, tree = wrong[0]
            raise InputError(
                f"of_leaves: argument 'ids': row {row} has {ids[row, tree]}, which is no leaf of "
                f"tree {tree}; give what predictor.apply of this model returns"
            )
        counts = np.bincount(at.ravel(), minlength=len(self.leaf))
        hits = np.empty_like(counts)
        hits[self._by_key] = counts
        return hits


def with_hits(forest: Forest, profile: Profile | None) -> Forest:
    """Return a forest with the hits of a profile, or the forest itself if `profile` is None.

    Raises:
        InputError: `profile` is not a Profile, or is of another model.
    """
    if profile is None:
        return forest
    if not isinstance(profile, Profile):
        raise InputError(
            f"build: argument 'profile': expected a Profile, got {type(profile).__name__}; make "
            "one with tvm_forest.profile(model, rows)"
        )
    return profile.onto(forest)


def _list_leaves(forest: Forest) -> tuple[Array, Array]:
    """Return the leaves tree by tree in level order, int64 (L,), and where those of a tree begin.

    The latter has T + 1 entries; the last is L.
    """
    order, _ = order_by_level(forest)
    leaf = order[forest.is_leaf[order]]
    return leaf, np.searchsorted(forest.node_tree[leaf], np.arange(forest.n_trees + 1))


def _misfit(what: str) -> InputError:
    return InputError(f"onto: argument 'profile': {what}; collect a profile of this model")
