"""Leaf profiles: how many rows of some data end at each leaf of a model.

takes: Forest and leaf numbers, or a file; gives: Profile, and a Forest with `hits`.

The leaves of a tree are listed in level order, left to right, which does not depend on how a
library numbers its nodes; XGBoost's depth-wise trees are numbered in this order. Two file formats
are known: the CSV that Treebeard's authors publish, and JSON, which also names the model.

    trees, rows                      {"rows": 3342, "signature": "5f0c...", "trees": [
    hits, depth, hits, depth, ...     {"hits": [90, 77, ...], "depths": [4, 4, ...]},
    ...one line a tree                ...one line a tree]}
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, ModelFormatError
from . import Array, Forest
from .rewrites.ordering import level_order

UNKNOWN = -1
"""Depth of a leaf that no row came to, in the CSV."""

_NUMBERS = re.compile(r"\s*-?\d{1,18}\s*(,\s*-?\d{1,18}\s*)*", re.ASCII)


@dataclass(frozen=True, eq=False)
class Profile:
    """Rows that ended at each leaf, for T trees with L leaves together.

    Attributes:
        hits: int64 (L,), tree by tree in the order of the source model.
        depths: int32 (L,), nodes on the way to each leaf; UNKNOWN for some leaves without hits.
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
        """T."""
        return len(self.leaf_offset) - 1

    @property
    def leaf_counts(self) -> Array:
        """Int64 (T,), leaves of each tree."""
        return np.diff(self.leaf_offset)

    @classmethod
    def of_leaves(cls, forest: Forest, ids: Array) -> Profile:
        """Count the leaves that rows ended at.

        Args:
            forest: the model as it was loaded.
            ids: (R, T), what `Predictor.apply` returns for R rows of the data: whole numbers of any
                dtype, as XGBoost reports leaves in float32.

        Raises:
            InputError: the shape or dtype is wrong, or a number is no leaf of its tree.
        """
        ids = np.asarray(ids)
        if ids.ndim != 2 or ids.shape[1] != forest.n_trees or ids.dtype.kind not in "iuf":
            raise InputError(
                f"of_leaves: argument 'ids': expected numbers of shape (R, {forest.n_trees}), got "
                f"{ids.dtype} of shape {ids.shape}; give what predictor.apply returns"
            )
        leaf = _leaves(forest)
        width = int(forest.node_id.max(initial=0)) + 2  # width - 1 and -1 are no node's number
        known = forest.node_tree[leaf] * width + forest.node_id[leaf]
        by_key = np.argsort(known, kind="stable")
        near = np.clip(ids, -1, width - 1)
        near = np.where(near == np.floor(near), near, -1).astype(np.int64)
        key = np.arange(forest.n_trees) * width + near
        found = np.searchsorted(known[by_key], key)
        place = by_key[np.minimum(found, len(leaf) - 1)] if ids.size else np.zeros(0, np.int64)
        wrong = np.argwhere(known[place].reshape(ids.shape) != key)
        if len(wrong):
            row, tree = wrong[0]
            raise InputError(
                f"of_leaves: argument 'ids': row {row} has {ids[row, tree]}, which is no leaf of "
                f"tree {tree}; give what predictor.apply of this model returns"
            )
        hits = np.bincount(place.ravel(), minlength=len(leaf))
        depths, offset = forest.node_depth[leaf], _leaf_offset(forest)
        return cls(hits, depths, offset, len(ids), forest.signature)

    def __add__(self, other: Profile) -> Profile:
        """Return the profile of the rows of both.

        Raises:
            InputError: the two are of different models.
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
            InputError: the profile is of another model; the message names the first tree that
                differs.
        """
        if self.n_trees != forest.n_trees:
            raise _misfit(f"it has {self.n_trees} trees, the model has {forest.n_trees}")
        leaf, offset = _leaves(forest), _leaf_offset(forest)
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
        """Write a file, as CSV if its name ends in .csv and as JSON otherwise.

        The file appears under its name once it is complete. The CSV does not name the model.
        """
        target = Path(path)
        trees = [
            (self.hits[begin:end].tolist(), self.depths[begin:end].tolist())
            for begin, end in zip(self.leaf_offset[:-1], self.leaf_offset[1:], strict=True)
        ]
        if _is_csv(target):
            pairs = ([str(x) for pair in zip(*tree, strict=True) for x in pair] for tree in trees)
            lines = [f"{self.n_trees}, {self.rows}", *map(", ".join, pairs), ""]
        else:
            head = json.dumps({"rows": self.rows, "signature": self.signature})
            body = ",\n".join(json.dumps({"hits": h, "depths": d}) for h, d in trees)
            lines = [head[:-1] + ', "trees": [', body, "]}", ""]
        draft = target.with_name(f".{target.name}.{os.getpid()}.draft")
        try:
            draft.write_text("\n".join(lines), encoding="utf-8")
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a file that `save` wrote, or a CSV of Treebeard's.

        Raises:
            ModelFormatError: the file is missing or damaged; the message names the line.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            what = f"cannot be read ({error}); give a file that Profile.save wrote"
            raise ModelFormatError(f"profile {path}: {what}") from None
        return _from_csv(text, path) if _is_csv(Path(path)) else _from_json(text, path)


def _leaves(forest: Forest) -> Array:
    """Return int64 (L,), the leaves tree by tree in level order."""
    order, _ = level_order(forest)
    return order[forest.is_leaf[order]]


def _leaf_offset(forest: Forest) -> Array:
    counts = np.bincount(forest.node_tree[forest.is_leaf], minlength=forest.n_trees)
    return np.concatenate([[0], np.cumsum(counts)])


def _misfit(what: str) -> InputError:
    return InputError(f"onto: argument 'profile': {what}; collect a profile of this model")


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _damaged(path: str | os.PathLike[str], line: int, what: str) -> ModelFormatError:
    return ModelFormatError(f"profile {path}: line {line}: {what}; the file is damaged")


def _from_csv(text: str, path: str | os.PathLike[str]) -> Profile:
    lines = text.rstrip().split("\n")
    for number, line in enumerate(lines, 1):
        if not _NUMBERS.fullmatch(line):
            raise _damaged(path, number, f"expected numbers with commas, got {line[:40]!r}")
    head = _integers(lines[0])
    if len(head) != 2 or min(head) < 0:
        raise _damaged(path, 1, f"expected 'trees, rows', got {lines[0][:40]!r}")
    if len(lines) - 1 != head[0]:
        raise _damaged(path, len(lines), f"{len(lines) - 1} trees follow, not {head[0]}")
    trees = [_integers(line) for line in lines[1:]]
    for number, tree in enumerate(trees, 2):
        if len(tree) % 2:
            raise _damaged(path, number, f"{len(tree)} numbers are no pairs of hits and depth")
    return _assembled(path, ((tree[::2], tree[1::2]) for tree in trees), head[1], None)


def _integers(line: str) -> list[int]:
    return [int(word) for word in line.split(",")]


def _from_json(text: str, path: str | os.PathLike[str]) -> Profile:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise _damaged(path, line, f"it is no JSON ({error})") from None
    fields = {"rows", "signature", "trees"}
    if not isinstance(data, dict) or not fields <= set(data):
        raise _damaged(path, 1, f"expected the fields {', '.join(sorted(fields))}")
    if not _are_counts([data["rows"]]) or not isinstance(data["signature"], str | None):
        raise _damaged(path, 1, "'rows' must be a number and 'signature' a text or null")
    if not isinstance(data["trees"], list):
        raise _damaged(path, 1, "'trees' must be a list")
    trees = []
    for number, tree in enumerate(data["trees"], 2):
        lists: dict[str, Any] = tree if isinstance(tree, dict) else {}
        hits, depths = lists.get("hits", 0), lists.get("depths", 0)
        if not _are_counts(hits) or not _are_counts(depths, UNKNOWN) or len(hits) != len(depths):
            raise _damaged(path, number, "expected as many whole 'hits' as 'depths'")
        trees.append((hits, depths))
    return _assembled(path, trees, data["rows"], data["signature"])


def _are_counts(values: Any, least: int = 0) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and least <= value < 1 << 62 for value in values
    )


def _assembled(
    path: str | os.PathLike[str],
    trees: Iterable[tuple[list[int], list[int]]],
    rows: int,
    signature: str | None,
) -> Profile:
    """Check the trees, which begin in line 2, and join them."""
    pairs = list(trees)
    for line, (hits, depths) in enumerate(pairs, 2):
        if not hits:
            raise _damaged(path, line, "a tree has no leaf")
        if min(hits) < 0 or min(depths) < UNKNOWN:
            raise _damaged(path, line, "a number of hits, or a depth, is negative")
        if max(depths) > np.iinfo(np.int32).max:
            raise _damaged(path, line, f"{max(depths)} is no depth of a tree")
        if any(hit and depth == UNKNOWN for hit, depth in zip(hits, depths, strict=True)):
            raise _damaged(path, line, "a leaf with hits has no depth")
        if sum(hits) != rows:
            raise _damaged(path, line, f"the hits add up to {sum(hits)}, not to {rows} rows")
    return Profile(
        hits=np.array([hit for hits, _ in pairs for hit in hits], np.int64),
        depths=np.array([depth for _, depths in pairs for depth in depths], np.int32),
        leaf_offset=np.cumsum([0, *(len(hits) for hits, _ in pairs)]),
        rows=rows,
        signature=signature,
    )
