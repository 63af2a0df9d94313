"""The layout of levels: tables of bytes, which registers hold, for 16 rows in 4 trees at once.

takes: Forest; gives: LevelsRepresentation and its arrays.

The inner nodes of a level are numbered from 0, and have four bytes each:

    rank, column     the test, as in the ranked layout
    left, right      places among the nodes of the next level: inner nodes first, then leaves

So one instruction of AVX-512 VBMI finds a byte for each of 64 lanes, if a level has up to 64 inner
nodes, and two if it has up to 128. Every level of a tree has a word:

    bits 48   47 ... 40      39 ... 32          31 ... 0
    wide      leaf shift     next inner nodes   first node

A place that is not below the number of the next inner nodes is a leaf, whose number in its tree is
that place plus the shift, modulo 256. A tree that is a single leaf has a node that leads to this
leaf on both sides. Behind the last node there are 256 zeros, for lanes that have arrived and go on.
Walks are in `permute_walk`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from tvm import tirx

from ..errors import BuildError
from ..forest import Array, Forest
from .level_limits import MOST, REGISTER, excess
from .representation import (
    Buffers,
    BufferSpec,
    Columns,
    Expr,
    Hold,
    Representation,
    register,
)
from .row_codes.ranks import RankCode, rank_tests
from .selection_limits import leaves_of_trees

ROWS, TREES = 16, 4
"""Rows and trees of a vector of 64 bytes."""

FIELDS = ("rank", "column", "left", "right")
TABLES = (32, 64, 128, 256)
"""Leaves of a tree that are looked up among floats in registers: two of them hold 32."""


@register
@dataclass(frozen=True)
class LevelsRepresentation(Representation):
    """Bytes of all inner nodes, level by level and tree by tree, and tables of leaves.

    Attributes:
        trees: T.
        sizes: elements of the arrays of levels, of nodes and of leaves.
        dtype: of leaf values.
        code: how rows are coded.
        wide: whether some level has more than 64 inner nodes.
        table: leaves that are looked up in registers, 0 if they are not.
    """

    name: ClassVar[str] = "levels"
    walks: ClassVar[str] = "permute"
    trees: int
    sizes: tuple[int, int, int]
    dtype: str
    code: RankCode
    wide: bool
    table: int

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Representation, dict[str, Array]]:
        """Lay the forest out, see the module.

        Raises:
            BuildError: a byte cannot count the thresholds of a feature, the columns, the inner
                nodes of a level or the leaves of a tree.
        """
        unfit = excess(forest)
        if unfit is not None:
            raise BuildError(
                f"represent_as: layout '{cls.name}': {unfit}; use represent_as('ranked')"
            )
        ranked = rank_tests(forest, cls.name)
        depth = np.maximum(forest.depths.astype(np.int64), 1)
        leaves = leaves_of_trees(forest)
        numbered = _number(forest, np.cumsum(depth) - depth, int(depth.sum()))
        inner, base = numbered.inner, forest.tree_offset[forest.node_tree[numbered.inner]]
        children = [numbered.place[base + side[inner]] for side in (forest.left, forest.right)]
        sides = np.where(forest.is_leaf[inner], 0, np.array(children))
        fields = [ranked.rank[inner], ranked.column[inner], *sides]
        floats = forest.leaf_value.dtype == np.float32
        table = next(x for x in TABLES if x >= leaves.max(initial=1)) if floats else 0
        arrays: dict[str, Array] = {
            "depth": depth.astype(np.int32),
            "first_level": np.cumsum(depth) - depth,
            "first_leaf": np.cumsum(leaves) - leaves,
            "levels": np.append(numbered.words, np.zeros(int(depth.max()), np.uint64)),
            "nodes": np.pad(np.array(fields, np.uint8), ((0, 0), (0, MOST))),
            "leaf_value": np.pad(forest.leaf_value[numbered.leaf, 0], (0, table)),
            "leaf_id": forest.node_id[numbered.leaf],
        }
        sizes = len(arrays["levels"]), arrays["nodes"].shape[1], len(arrays["leaf_value"])
        code, dtype = replace(ranked.code, lanes=ROWS), str(forest.leaf_value.dtype)
        rep = cls(forest.n_trees, sizes, dtype, code, numbered.wide, table)
        return rep, arrays | ranked.arrays

    def value_buffers(self) -> tuple[BufferSpec, ...]:
        """Return levels, nodes, leaf values, and what rows are coded with."""
        return (*self._buffers(), BufferSpec("leaf_value", self.dtype, (self.sizes[2],)))

    def id_buffers(self) -> tuple[BufferSpec, ...]:
        """Return the same with the source number of every leaf in the place of its value."""
        return (*self._buffers(), BufferSpec("leaf_id", "int32", (self.sizes[2] - self.table,)))

    def _buffers(self) -> tuple[BufferSpec, ...]:
        return (
            BufferSpec("depth", "int32", (self.trees,)),
            BufferSpec("first_level", "int64", (self.trees,)),
            BufferSpec("first_leaf", "int64", (self.trees,)),
            BufferSpec("levels", "uint64", (self.sizes[0],)),
            BufferSpec("nodes", "uint8", (len(FIELDS), self.sizes[1])),
            *self.code.buffers(),
        )

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> Any:
        """Load where the tree begins and how deep it is; returns a LevelTree."""
        names = ("depth", "first_level", "first_leaf")
        loads = (hold(x, tirx.BufferLoad(buffers[x], [tree])) for x in names)
        return LevelTree(self, buffers, *loads)

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Show the fields of levels and of nodes, without those behind the last one."""
        words = arrays["levels"].astype(np.int64)[: int(arrays["depth"].sum())]
        nodes = dict(zip(FIELDS, arrays["nodes"][:, :-MOST], strict=True))
        levels = {
            "first node": words & 0xFFFFFFFF,
            "next inner nodes": words >> 32 & 255,
            "leaf shift": words >> 40 & 255,
            "wide": words >> 48,
        }
        return {"levels": levels, "nodes": nodes}


class _Numbered(NamedTuple):
    """The nodes of a forest, numbered.

    Attributes:
        inner: int64, inner nodes in the order of their bytes, and trees that are single leaves.
        leaf: int64, leaves in the order of their table.
        place: int64 (N,), place of every node on its level.
        words: uint64, word of every level.
        wide: whether some level has more than 64 inner nodes.
    """

    inner: Array
    leaf: Array
    place: Array
    words: Array
    wide: bool


def _number(forest: Forest, first: Array, levels: int) -> _Numbered:
    """Number nodes; `first` is the number of each tree's first level, of so many in all."""
    root = forest.hop_depth == 0
    level = first[forest.node_tree] + forest.hop_depth
    above = np.where(root, level, level - 1)
    inner, begin = _grouped(np.flatnonzero(~forest.is_leaf | root), level, levels)
    leaf, end = _grouped(np.flatnonzero(forest.is_leaf), above, levels)
    count = np.bincount(level[~forest.is_leaf], minlength=levels)
    following = np.append(count[1:], 0)
    following[np.append(first[1:], levels) - 1] = 0
    place = np.zeros(forest.n_nodes, np.int64)
    place[inner] = np.arange(len(inner)) - begin[level[inner]]
    place[leaf] = following[above[leaf]] + np.arange(len(leaf)) - end[above[leaf]]
    number = end - np.repeat(end[first], np.diff(first, append=levels))
    wide = count > REGISTER
    words = begin | following << 32 | (number - following & 255) << 40 | wide << 48
    return _Numbered(inner, leaf, place, words.astype(np.uint64), bool(wide.any()))


def _grouped(nodes: Array, group: Array, groups: int) -> tuple[Array, Array]:
    """Sort nodes by their group; returns them, and where each group begins."""
    order = nodes[np.argsort(group[nodes], kind="stable")]
    count = np.bincount(group[nodes], minlength=groups)
    return order, np.cumsum(count) - count


@dataclass(frozen=True)
class LevelTree:
    """One tree: `permute_walk` asks it for words of levels and for leaves.

    Attributes:
        rep: the layout.
        buffers: its buffers by name.
        hops: depth of the tree, int32.
        first_level: its first level.
        first_leaf: its first leaf.
    """

    rep: LevelsRepresentation
    buffers: Buffers
    hops: Expr
    first_level: Expr
    first_leaf: Expr

    def level(self, hop: Expr) -> Expr:
        """The word of a level, uint64; behind the last one, of another tree or 0."""
        return tirx.BufferLoad(self.buffers["levels"], [self.first_level + hop])

    def byte(self, field: int, node: Expr) -> Expr:
        """A field of a node that is counted from the first one of all trees."""
        return tirx.BufferLoad(self.buffers["nodes"], [tirx.IntImm("int64", field), node])

    def leaf_value(self, number: Expr) -> Expr:
        """The value of a leaf."""
        return tirx.BufferLoad(self.buffers["leaf_value"], [self.first_leaf + number])

    def leaf_id(self, number: Expr) -> Expr:
        """Its number in the source model."""
        return tirx.BufferLoad(self.buffers["leaf_id"], [self.first_leaf + number])

    def heads(self) -> list[Expr]:
        """The first levels."""
        return [self.level(tirx.IntImm("int64", 0))]
