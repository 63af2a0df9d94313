"""The bit-sliced layout: no walk at all, but selections among the answers of 64 rows at once.

takes: Forest; gives: BitslicedRepresentation and its arrays.

Rows are turned into planes before they are walked, once a block, see `planes`. A tree is complete
down to its own depth d, and its nodes say which plane answers their test. Level by level a
tournament finds, for all rows at once, the answer of the node that each row has reached: the
answers of the levels above choose between left and right.

    slot    0 1 2 3 4 5 6          answer 0 = plane[0]
    level   0 1 1 2 2 2 2          answer 1 = answer 0 ? plane[1] : plane[2]
                                   answer 2 = answer 0 ? (answer 1 ? plane[3] : plane[4])
                                                       : (answer 1 ? plane[5] : plane[6])

That is 2^d - d - 1 selections, each one instruction for up to 512 rows, where walking takes 512 d
steps. The answers of a row are the bits of the number of its leaf, the first level's highest, left
being 1. A tree that is deep, or mostly empty when complete, is a list of selections instead, see
`selections`, and its leaves are numbered from left to right.

Leaves of float32 are kept a second time as four planes of bytes, because a CPU with AVX-512 VBMI
looks up 64 bytes at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from tvm import tirx

from ..errors import BuildError
from ..forest import Array, Forest
from .complete_trees import check_slots, occupants
from .representation import (
    Buffers,
    BufferSpec,
    Columns,
    Expr,
    Hold,
    Representation,
    register,
)
from .row_codes.planes import PlaneCode, number_tests
from .selection_limits import MOST_DEPTH, is_listed, leaves_of_trees
from .selections import select

MOST_BITS = 16
"""Bits of the number of a leaf."""

TABLES = (64, 128, 256)
"""Entries of tables of leaves that are looked up by bytes: registers of AVX-512 hold 64 each."""


@register
@dataclass(frozen=True)
class BitslicedRepresentation(Representation):
    """Tests of complete trees, lists of selections, and tables of leaves.

    Attributes:
        trees: T.
        sizes: elements of the arrays of tests, of selections and of leaves.
        dtype: of leaf values.
        code: how rows become planes.
        depths: depths of complete trees that occur, deepest first.
        bits: of the number of a leaf.
        table: entries of each tree's table, if leaves are looked up by bytes, else 0.
    """

    name: ClassVar[str] = "bitsliced"
    walks: ClassVar[str] = "bits"
    codes_rows: ClassVar[bool] = True
    trees: int
    sizes: tuple[int, int, int]
    dtype: str
    code: PlaneCode
    depths: tuple[int, ...]
    bits: int
    table: int

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Representation, dict[str, Array]]:
        """Lay the forest out, see the module.

        Raises:
            BuildError: a tree has too many leaves, or a feature too many thresholds.
        """
        depth = forest.depths.astype(np.int64)
        ends, listed = leaves_of_trees(forest), is_listed(forest)
        bits = max(1, int(np.where(listed, np.ceil(np.log2(ends)), depth).max()))
        if bits > MOST_BITS:
            raise BuildError(
                f"represent_as: layout '{cls.name}': tree {np.argmax(ends)} has {ends.max()} "
                f"leaves, the limit is {1 << MOST_BITS}; use represent_as('packed')"
            )
        sliced = number_tests(forest, cls.name)
        chosen = select(forest, sliced.plane, sliced.code.tests, listed, bits)
        size = np.where(listed, 0, (1 << np.minimum(depth, MOST_DEPTH)) - 1)
        leaves = np.where(listed, ends, size + 1)
        table = next((x for x in TABLES if x >= 1 << bits), 0)
        if not table or forest.leaf_value.dtype != np.float32:
            table = 0
        leaf_at = np.cumsum(leaves) - leaves if not table else np.arange(forest.n_trees) * table
        leaf_size = int(leaves.sum()) if not table else forest.n_trees * table
        check_slots(cls.name, forest, int(size.sum()) + leaf_size)
        count = np.where(listed, chosen.counts, 0)
        places = _Places(listed, np.cumsum(size) - size, size, leaf_at)
        node, leaf = places.fill(forest, int(size.sum()), leaf_size, chosen.number)
        value = np.where(leaf >= 0, forest.leaf_value[leaf, 0], 0)
        arrays: dict[str, Array] = {
            "depth": np.where(listed, -1, depth).astype(np.int32),
            "first": np.where(listed, np.cumsum(count) - count, places.first),
            "count": count,
            "leaf_at": leaf_at,
            "tests": np.append(sliced.plane[node], 0).astype(np.int32),
            "selections": np.append(chosen.words, np.uint64(0)),
            "leaf_value": value,
            "leaf_id": np.where(leaf >= 0, forest.node_id[leaf], -1).astype(np.int32),
        }
        if table:
            arrays["leaf_bytes"] = _planes_of_bytes(value.reshape(-1, table))
        sizes = len(arrays["tests"]), len(arrays["selections"]), leaf_size
        depths = tuple(int(x) for x in np.unique(depth[~listed])[::-1])
        code = replace(sliced.code, spare=chosen.spare)
        rep = cls(forest.n_trees, sizes, str(value.dtype), code, depths, bits, table)
        return rep, arrays | sliced.arrays

    def value_buffers(self) -> tuple[BufferSpec, ...]:
        """Return what finds leaves, their values, and what rows are sliced with."""
        leaves = self.sizes[2]
        bytes_ = (BufferSpec("leaf_bytes", "uint8", (4 * leaves,)),) if self.table else ()
        return (*self._buffers(), BufferSpec("leaf_value", self.dtype, (leaves,)), *bytes_)

    def id_buffers(self) -> tuple[BufferSpec, ...]:
        """Return the same with the source number of every leaf in the place of its value."""
        return (*self._buffers(), BufferSpec("leaf_id", "int32", (self.sizes[2],)))

    def _buffers(self) -> tuple[BufferSpec, ...]:
        tests, selections, _ = self.sizes
        trees = (("depth", "int32"), ("first", "int64"), ("count", "int64"), ("leaf_at", "int64"))
        return (
            *(BufferSpec(name, dtype, (self.trees,)) for name, dtype in trees),
            BufferSpec("tests", "int32", (tests,)),
            BufferSpec("selections", "uint64", (selections,)),
            *self.code.buffers(),
        )

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> Any:
        """Load where the tree begins, its depth and the rest; returns a BitTree."""
        loads = (hold(x, tirx.BufferLoad(buffers[x], [tree])) for x in BitTree.FIELDS)
        return BitTree(self, buffers, *loads)

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Show tests by tree and slot, and the fields of selections."""
        listed = arrays["depth"] < 0
        size = np.where(listed, 0, (1 << np.maximum(arrays["depth"], 0).astype(np.int64)) - 1)
        tree = np.append(np.repeat(np.arange(self.trees), size), -1)
        slot = np.arange(len(tree)) - np.append(np.repeat(arrays["first"], size), 0)
        tests = {"tree": tree, "slot": slot, "plane": arrays["tests"]}
        hidden = {name: np.ma.array(x, mask=tree < 0) for name, x in tests.items()}
        fields = {
            name: (arrays["selections"] >> np.uint64(16 * k) & np.uint64(0xFFFF)).astype(np.int64)
            for k, name in enumerate(("test", "if true", "if false", "into"))
        }
        return {"tests": hidden, "selections": fields}


class _Places(NamedTuple):
    """Where each tree lies.

    Attributes:
        listed: bool (T,), whether it is a list of selections.
        first: first element of its tests.
        size: tests of a complete tree.
        leaf_at: first element of its table.
    """

    listed: Array
    first: Array
    size: Array
    leaf_at: Array

    def fill(self, forest: Forest, tests: int, leaves: int, number: Array) -> tuple[Array, Array]:
        """Return the node of every test, and the leaf of every entry of a table, -1 for none."""

        def place(tree: Array, slot: Array) -> Array:
            entry = self.leaf_at[tree] + 2 * self.size[tree] - slot  # the last slot has number 0
            return np.where(slot < self.size[tree], self.first[tree] + slot, tests + entry)

        complete = np.flatnonzero(~self.listed)
        node = occupants(forest, tests + leaves, place, complete).node
        leaf = np.flatnonzero(forest.is_leaf & self.listed[forest.node_tree])
        node[tests + self.leaf_at[forest.node_tree[leaf]] + number[leaf]] = leaf
        return node[:tests], node[tests:]


@dataclass(frozen=True)
class BitTree:
    """One tree: `bit_walk` asks it for the plane of a slot and for the leaf of a number.

    Attributes:
        rep: the layout.
        buffers: its buffers by name.
        depth: of a complete tree, int32; -1 for a list of selections.
        first: first element of the tree's tests or selections.
        count: of its selections.
        leaf_at: first element of its table.
    """

    rep: BitslicedRepresentation
    buffers: Buffers
    depth: Expr
    first: Expr
    count: Expr
    leaf_at: Expr
    FIELDS: ClassVar[tuple[str, ...]] = ("depth", "first", "count", "leaf_at")

    def plane(self, slot: int) -> Expr:
        """The plane that answers the test of a slot, int64."""
        return tirx.BufferLoad(self.buffers["tests"], [self.first + slot]).astype("int64")

    def selection(self, step: Expr) -> Expr:
        """One of the tree's selections, uint64."""
        return tirx.BufferLoad(self.buffers["selections"], [self.first + step])

    def leaf_value(self, number: Expr) -> Expr:
        """The value of a leaf."""
        return tirx.BufferLoad(self.buffers["leaf_value"], [self.leaf_at + number])

    def leaf_id(self, number: Expr) -> Expr:
        """Its number in the source model."""
        return tirx.BufferLoad(self.buffers["leaf_id"], [self.leaf_at + number])

    def leaf_bytes(self) -> Expr:
        """The first byte of the tree's leaves, None if they are not looked up by bytes."""
        if not self.rep.table:
            return None
        return tirx.BufferLoad(self.buffers["leaf_bytes"], [self.leaf_at * 4])


def _planes_of_bytes(values: Array) -> Array:
    """Return (T, 4, table) as one row: byte k of every value of a tree, for k = 0, ..., 3."""
    parts = np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape, 4)
    return np.ascontiguousarray(parts.transpose(0, 2, 1)).ravel()
