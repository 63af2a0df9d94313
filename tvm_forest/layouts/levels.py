"""The layout of levels: byte tables held in registers, for 16 rows in 4 trees at once.

takes: Forest; gives: LevelsLayout and its arrays.

The inner nodes of a level are numbered from 0, and have four bytes each:

    rank, column     the test, as in the ranked layout
    left, right      places among the nodes of the next level: inner nodes first, then leaves

So one instruction of AVX-512 VBMI finds a byte for each of 64 lanes, if a level has up to 64 inner
nodes, and two if it has up to 128. Every level of a tree has a word:

    bits 48   47 ... 40      39 ... 32          31 ... 0
    wide      leaf shift     next inner nodes   first node

A place that is not below the number of the next inner nodes is a leaf, whose number in its tree is
that place plus the shift, modulo 256. A tree that is a single leaf has a node that leads to this
leaf on both sides. 256 zeros follow the last node, for lanes that go on after reaching their leaf.
Walks are in `tir_gen/walks/permutes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ..forest import Array, Forest
from ..system.values import dataclass, replace
from . import CODED, REGISTER, tir
from .protocol import Buffers, Columns, Expr, Hold, Layout, NearTree, read_specs, register
from .row_codes.ranks import RankCode, rank_tests

MAX_INNER = 2 * REGISTER
"""Largest number of inner nodes on one level of a tree, since a byte numbers their children."""

MAX_BYTE = 256
"""Number of values of a byte: the most columns of coded rows, and the most leaves of a tree."""

ROWS, TREES = 16, 4
"""Number of rows, and of trees, whose bytes fill a vector of 64 bytes."""

COLUMNS = 8
"""Number of columns of 16 rows that fill two registers."""

NODE_FIELDS = ("rank", "column", "left", "right")
"""Fields of a node; each has a buffer, so that code does not depend on the number of nodes."""

TABLE_SIZES = (64, 128, 256)
"""Leaf counts of trees whose leaves are looked up in registers: four of them hold 64 floats."""


@register
@dataclass(frozen=True)
class LevelsLayout(Layout):
    """The bytes of all inner nodes, tree by tree and level by level, and tables of leaves.

    Attributes:
        dtype: dtype of leaf values.
        code: how rows are coded.
        wide: whether some level has more than 64 inner nodes.
        table: number of leaves that are looked up in registers, 0 for none.
    """

    name: ClassVar[str] = "levels"
    instead: ClassVar[str] = CODED
    walks: ClassVar[str] = "permute"
    dtype: str
    code: RankCode
    wide: bool
    table: int

    @staticmethod
    def widest_level(forest: Forest) -> int:
        """Return the greatest number of inner nodes on one level of a tree."""
        return forest.widest_level

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why a forest does not fit: a count is too high, or it has membership columns."""
        if forest.derived:
            return "memberships in sets of categories"
        cuts = forest.cuts_per_column
        counts = (
            (int(cuts.max(initial=0)), "thresholds of a feature", MAX_BYTE - 1),
            (len(cuts), "columns", MAX_BYTE),
            (cls.widest_level(forest), "inner nodes on a level of a tree", MAX_INNER),
            (int(forest.leaf_counts.max(initial=0)), "leaves of a tree", MAX_BYTE),
        )
        return cls.find_excess(counts)

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Pack the forest into arrays, see the module's docstring.

        Raises:
            BuildError: see `unfit`.
        """
        cls.check(forest)
        ranked = rank_tests(forest)
        depth = np.maximum(forest.depths.astype(np.int64), 1)
        leaves = forest.leaf_counts
        first = np.cumsum(depth) - depth
        inner, leaf, place, words = _number_nodes(forest, first, int(depth.sum()))
        base = forest.tree_offset[forest.node_tree[inner]]
        children = [place[base + side[inner]] for side in (forest.left, forest.right)]
        sides = np.where(forest.is_leaf[inner], 0, np.array(children))
        bytes_ = (x.astype(np.uint8) for x in (ranked.codes, ranked.tests.column))
        fields = [*(ranked.tests.spread(x)[inner] for x in bytes_), *sides]
        floats = forest.leaf_value.dtype == np.float32
        table = next(x for x in TABLE_SIZES if x >= leaves.max(initial=1)) if floats else 0
        arrays: dict[str, Array] = {
            "depth": depth.astype(np.int32),
            "first_level": first,
            "first_leaf": np.cumsum(leaves) - leaves,
            "levels": np.append(words, np.zeros(int(depth.max()), np.uint64)),
            **dict(zip(map(_name_field, range(len(fields))), _pad_fields(fields), strict=True)),
            **ranked.arrays,
            "leaf_value": np.pad(forest.leaf_value[leaf, 0], (0, table)),
            "leaf_id": forest.node_id[leaf],
        }
        code, dtype = (
            replace(ranked.code, lanes=ROWS, multiple=COLUMNS),
            str(forest.leaf_value.dtype),
        )
        return cls(
            read_specs(arrays), dtype, code, bool(np.any(words >> np.uint64(48))), table
        ), arrays

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> Any:
        """Return access to a tree (LevelTree): loads its first level and leaf, and its depth."""
        names = ("depth", "first_level", "first_leaf")
        return LevelTree(
            self, buffers, *(hold(x, tir.BufferLoad(buffers[x], [tree])) for x in names)
        )

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Return the fields of levels and nodes, without the padding, for pictures."""
        words = arrays["levels"].astype(np.int64)[: int(arrays["depth"].sum())]
        count = int((words >> 32 & 255).sum()) + len(arrays["depth"])
        nodes = {
            _name_field(k): {name: arrays[_name_field(k)][:count]}
            for k, name in enumerate(NODE_FIELDS)
        }
        levels = {
            "first node": words & 0xFFFFFFFF,
            "next inner nodes": words >> 32 & 255,
            "leaf shift": words >> 40 & 255,
            "wide": words >> 48,
        }
        return {"levels": levels, **nodes}


def _name_field(field: int) -> str:
    """Return the name of the buffer of a field, which is an index in `NODE_FIELDS`."""
    return f"node_{NODE_FIELDS[field]}"


def _pad_fields(fields: list[Array]) -> list[Array]:
    """Pad node fields with zeros, for lanes that go on after reaching their leaf."""
    return [np.pad(field, (0, MAX_BYTE)).astype(np.uint8) for field in fields]


def _number_nodes(forest: Forest, first: Array, levels: int) -> tuple[Array, Array, Array, Array]:
    """Number the nodes of each level.

    Args:
        forest: the model.
        first: int64 (T,), number of each tree's first level.
        levels: levels of all trees.

    Returns:
        int64, the nodes that have bytes, in their order: inner nodes, and leaves that are roots;
        int64, leaves in the order of their table; int64 (N,), place of every node on its level;
        uint64 (levels,), word of every level.
    """
    root = forest.hop_depth == 0
    level = first[forest.node_tree] + forest.hop_depth
    above = np.where(root, level, level - 1)
    inner, begin = _group_nodes(np.flatnonzero(~forest.is_leaf | root), level, levels)
    leaf, end = _group_nodes(np.flatnonzero(forest.is_leaf), above, levels)
    count = np.bincount(level[~forest.is_leaf], minlength=levels)
    following = np.append(count[1:], 0)
    following[np.append(first[1:], levels) - 1] = 0
    place = np.zeros(forest.n_nodes, np.int64)
    place[inner] = np.arange(len(inner)) - begin[level[inner]]
    place[leaf] = following[above[leaf]] + np.arange(len(leaf)) - end[above[leaf]]
    number = end - np.repeat(end[first], np.diff(first, append=levels))
    words = begin | following << 32 | (number - following & 255) << 40 | (count > REGISTER) << 48
    return inner, leaf, place, words.astype(np.uint64)


def _group_nodes(nodes: Array, group: Array, groups: int) -> tuple[Array, Array]:
    """Return the nodes sorted by group, and for each group the index of its first node in them.

    Args:
        nodes: int64, numbers of nodes through the whole forest.
        group: (N,), the number of every node's group.
        groups: number of groups.
    """
    own = group[nodes].astype(np.min_scalar_type(groups))  # small types are sorted much faster
    order = nodes[np.argsort(own, kind="stable")]
    count = np.bincount(own, minlength=groups)
    return order, np.cumsum(count) - count


@dataclass(frozen=True)
class LevelTree(NearTree):
    """Access to one tree, for `tir_gen/walks/permutes.py`: words of levels, and leaves.

    Attributes:
        layout: the layout.
        buffers: its buffers by name.
        hops: depth of the tree, int32.
        first_level: index of the word of its first level.
        first_leaf: index of its first leaf among those of all trees.
    """

    layout: LevelsLayout
    buffers: Buffers
    hops: Expr
    first_level: Expr
    first_leaf: Expr

    def level(self, hop: Expr) -> Expr:
        """Load the word of the level `hop`, from 0, uint64; past the last it is meaningless."""
        return tir.BufferLoad(self.buffers["levels"], [self.first_level + hop])

    def byte(self, field: int, node: Expr) -> Expr:
        """Load a field, an index in `NODE_FIELDS`, of a node; nodes count over all trees."""
        return tir.BufferLoad(self.buffers[_name_field(field)], [node])

    def leaf_value(self, number: Expr) -> Expr:
        """Load the value of a leaf, whose number is counted in its tree."""
        return tir.BufferLoad(self.buffers["leaf_value"], [self.first_leaf + number])

    def leaf_id(self, number: Expr) -> Expr:
        """Load the leaf's number in the source model."""
        return tir.BufferLoad(self.buffers["leaf_id"], [self.first_leaf + number])

    def heads(self) -> list[Expr]:
        """Return a load of the word of the first level, to prefetch it."""
        return [self.level(tir.i64(0))]
