"""The bit-sliced layout: trees are evaluated by bit operations on 64 or more rows at once.

takes: Forest; gives: BitslicedLayout and its arrays.

Before they are walked, the rows of a block are turned into bit planes, see `planes`: the answers of
all rows to one test. A tree is complete down to its own depth d, and each node holds the number of
its test's plane. Level by level, a tournament finds for all rows at once the answer of the node
that each row has reached: the answers of the levels above select between left and right.

    slot    0 1 2 3 4 5 6          answer 0 = plane[0]
    level   0 1 1 2 2 2 2          answer 1 = answer 0 ? plane[1] : plane[2]
                                   answer 2 = answer 0 ? (answer 1 ? plane[3] : plane[4])
                                                       : (answer 1 ? plane[5] : plane[6])

That is 2^d - d - 1 selections, each one instruction for up to 512 rows, where walking takes 512 d
steps. The answers of a row are the bits of the number of its leaf, the first level's highest, left
being 1, so that leaves are numbered from right to left: after the answers 1, 0, 1 a row is at leaf
5 of the 8 of a tree of 3 levels. A tree that is deep, or mostly empty when complete, is a list of
selections instead, see `selections`. An oblivious tree, all nodes of a level of which have one
test, has a slot for each level: the plane of that test is the answer, and nothing is selected.

    slot      0                1                2
    answer 2  plane[slot 0]    answer 1  plane[slot 1]    answer 0  plane[slot 2]

Leaves are kept a second time as planes of bytes, four or eight, because a CPU with AVX-512 VBMI
looks up 64 bytes at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..errors import BuildError
from ..forest import Array, Forest
from ..system.values import dataclass, replace
from . import ANY_FOREST, WORD_NODES, tir
from .complete_trees import find_occupants, find_slot_excess
from .protocol import (
    Buffers,
    Columns,
    Expr,
    Hold,
    Layout,
    NearTree,
    read_specs,
    register,
    round_up,
)
from .row_codes import ranks
from .row_codes.planes import MIN_SPARE, PlaneCode, number_tests
from .row_codes.selections import MAX_DEPTH, MAX_PLANES, has_levels, is_listed, write_selections

MAX_LEAF_BITS = 16
"""Largest number of bits of a leaf number."""

LEAF_BITS = (6, 7, 8, 12, MAX_LEAF_BITS)
"""Bits of leaf numbers for which code is written: those of byte tables, and some larger."""

TABLE_SIZES = {"float32": (64, 128, 256), "float64": (64,)}
"""Possible sizes of leaf tables that are looked up byte by byte, in registers of 64 bytes."""

FIRST_DEPTHS, MAX_DEPTHS = (6, 7, MAX_DEPTH), 6
"""Possible greatest depths of complete trees in code, and for how many depths there is code."""

LISTED, BY_LEVELS = -1, -2
"""Values of the buffer `depth` for trees that are not complete: lists of selections, and oblivious
trees."""


@register
@dataclass(frozen=True)
class BitslicedLayout(Layout):
    """The tests of complete trees, the selections of other trees, and tables of leaves.

    Attributes:
        dtype: dtype of leaf values.
        code: how rows become planes.
        depths: depths of complete trees, deepest first, see `list_depths`.
        levels: slots of an oblivious tree, one per level of the deepest one; 0 for none.
        lists: whether some tree may be a list of selections.
        bits: bits of a leaf number.
        table: number of entries in each tree's table if leaves are looked up by bytes, else 0.
    """

    name: ClassVar[str] = "bitsliced"
    instead: ClassVar[str] = WORD_NODES
    instead_of_sets: ClassVar[str] = ANY_FOREST
    walks: ClassVar[str] = "bits"
    codes_rows: ClassVar[bool] = True
    only_for_values: ClassVar[tuple[str, ...]] = ("leaf_value", "leaf_bytes")
    dtype: str
    code: PlaneCode
    depths: tuple[int, ...]
    levels: int
    lists: bool
    bits: int
    table: int

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why a forest does not fit: too many leaves, thresholds, categories or slots.

        `pack` also refuses too many planes, which are known only with the selections.
        """
        places = forest.ask_once(_Places.of)
        if places.bits > MAX_LEAF_BITS:
            leaves = forest.leaf_counts
            most = f"the limit is {1 << MAX_LEAF_BITS}"
            return f"tree {np.argmax(leaves)} has {leaves.max()} leaves, {most}"
        return ranks.unfit(forest) or find_slot_excess(forest, places.tests + places.leaves)

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Pack the forest into arrays, see the module's docstring.

        Raises:
            BuildError: see `unfit`, or there are too many planes.
        """
        cls.check(forest)
        numbered, places = number_tests(forest), forest.ask_once(_Places.of)
        listed, flat, tests = places.listed, places.flat, numbered.code.tests
        chosen = write_selections(forest, numbered.plane, tests, listed, places.bits)
        if tests + chosen.spare > MAX_PLANES:
            raise BuildError(
                f"represent_as: layout '{cls.name}': {tests} distinct tests and {chosen.spare} "
                f"planes beside them, the limit is {MAX_PLANES}; use "
                f"represent_as('{cls.instead}')"
            )
        count = np.where(listed, chosen.counts, 0)
        node, leaf = places.fill(forest, chosen.number)
        arrays: dict[str, Array] = {
            "depth": np.select([listed, flat], [LISTED, BY_LEVELS], places.depth).astype(np.int32),
            "first": np.where(listed, np.cumsum(count) - count, places.first),
            "count": count,
            "leaf_at": places.leaf_at,
            "tests": np.append(np.where(node < 0, tests, numbered.plane[node]), 0).astype(np.int32),
            "selections": np.append(chosen.words, np.uint64(0)),
            **numbered.arrays,
            "leaf_value": np.where(leaf >= 0, forest.leaf_value[leaf, 0], 0),
            "leaf_id": np.where(leaf >= 0, forest.node_id[leaf], -1).astype(np.int32),
        }
        if places.table:
            arrays["leaf_bytes"] = split_bytes(arrays["leaf_value"].reshape(-1, places.table))
        spare = round_up(chosen.spare, MIN_SPARE, MAX_PLANES - tests)
        code, dtype = replace(numbered.code, spare=spare), str(arrays["leaf_value"].dtype)
        forms, lists = (places.depths, places.levels), bool(listed.any() or places.depths)
        return cls(
            read_specs(arrays), dtype, code, *forms, lists, places.bits, places.table
        ), arrays

    @property
    def byte_tables(self) -> Mapping[str, tuple[str, int]]:
        """By name of a buffer of bytes, the one whose values it repeats, and how many per tree."""
        return {"leaf_bytes": ("leaf_value", self.table)} if self.table else {}

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> Any:
        """Return access to a tree (BitTree), after loading its depth and the places of its data."""
        names = ("depth", "first", "count", "leaf_at")
        loads = (hold(x, tir.BufferLoad(buffers[x], [tree])) for x in names)
        return BitTree(self, buffers, *loads)

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Return tests by tree and slot, and the fields of selections, for pictures."""
        depth = np.maximum(arrays["depth"], 0).astype(np.int64)
        kinds = [arrays["depth"] == kind for kind in (LISTED, BY_LEVELS)]
        size = np.select(kinds, [0, self.levels], (1 << depth) - 1)
        tree = np.append(np.repeat(np.arange(len(size)), size), -1)
        slot = np.arange(len(tree)) - np.append(np.repeat(arrays["first"], size), 0)
        tests = {"tree": tree, "slot": slot, "plane": arrays["tests"]}
        hidden = {name: np.ma.array(x, mask=tree < 0) for name, x in tests.items()}
        fields = {
            name: (arrays["selections"] >> np.uint64(16 * k) & np.uint64(0xFFFF)).astype(np.int64)
            for k, name in enumerate(("test", "if true", "if false", "into"))
        }
        return {"tests": hidden, "selections": fields}


def list_depths(deepest: int) -> tuple[int, ...]:
    """Return the depths of complete trees for which code is emitted; none if `deepest` is -1.

    Trees that are shallower than the least of these depths are completed down to it. So many models
    have the same depths, and share code.
    """
    if deepest < 0:
        return ()
    first = next(x for x in FIRST_DEPTHS if x >= deepest)
    return tuple(range(first, max(0, first - MAX_DEPTHS), -1))


class _Places(NamedTuple):
    """The place of each tree in the buffers.

    Attributes:
        listed: bool (T,), whether the tree is a list of selections.
        flat: bool (T,), whether the tree has one slot per level.
        depth: int64 (T,), depth of the completed tree.
        depths: depths for which there is code, see `list_depths`.
        levels: number of slots of a flat tree.
        bits: bits of a leaf number.
        table: entries in each tree's table if leaves are looked up by bytes, else 0.
        size: int64 (T,), number of tests of each tree, 0 if it is listed.
        first: int64 (T,), first test of each tree.
        tests: number of tests of all trees.
        leaf_at: int64 (T,), first leaf entry of each tree.
        leaves: number of leaf entries of all trees.
    """

    listed: Array
    flat: Array
    depth: Array
    depths: tuple[int, ...]
    levels: int
    bits: int
    table: int
    size: Array
    first: Array
    tests: int
    leaf_at: Array
    leaves: int

    @classmethod
    def of(cls, forest: Forest) -> _Places:
        """Choose how each tree is stored, and count its tests and leaves."""
        ends, listed, flat = forest.leaf_counts, is_listed(forest), has_levels(forest)
        depth = forest.depths.astype(np.int64)
        levels = int(depth[flat].max(initial=0))
        bits = int(np.where(listed, np.ceil(np.log2(ends)), depth).max())
        bits = next(x for x in (*LEAF_BITS, bits) if x >= bits)
        deepest = int(depth[~listed & ~flat].max(initial=-1))
        if bits <= MAX_DEPTH and not flat.all():  # after a retraining, other trees may be listed
            deepest = bits
        depths = list_depths(deepest)
        depth = np.where(listed | flat, depth, np.maximum(depth, min(depths, default=0)))
        sizes = TABLE_SIZES.get(str(forest.leaf_value.dtype), ())
        table = next((x for x in sizes if x >= 1 << bits), 0)
        leaves = np.where(listed, ends, 1 << np.minimum(depth, MAX_LEAF_BITS))
        leaves = np.full(forest.n_trees, table) if table else leaves
        complete = (1 << np.minimum(depth, MAX_LEAF_BITS)) - 1
        size = np.select([listed, flat], [0, levels], complete)
        tests = size, np.cumsum(size) - size, int(size.sum())
        stored = np.cumsum(leaves) - leaves, int(leaves.sum())
        return cls(listed, flat, depth, depths, levels, bits, table, *tests, *stored)

    def fill(self, forest: Forest, number: Array) -> tuple[Array, Array]:
        """Return the node of each test and the leaf of each leaf entry, -1 where there is none.

        Args:
            forest: the model.
            number: int64 (N,), for a leaf of a listed tree, its place among the tree's entries.

        Returns:
            int64 (tests,) and int64 (leaves,), numbers of nodes of the forest.
        """
        tests, first, inner = self.tests, self.first, (1 << np.minimum(self.depth, 40)) - 1
        last = tests + self.leaf_at + 2 * inner  # the last slot has number 0

        def place(tree: Array, slot: Array) -> Array:
            test = slot
            if self.flat.any():  # all nodes of a level share its slot
                test = np.where(self.flat[tree], self.depth[tree] - np.frexp(slot + 1)[1], slot)
            return np.where(slot < inner[tree], first[tree] + test, last[tree] - slot)

        complete = np.flatnonzero(~self.listed)
        node, _ = find_occupants(forest, tests + self.leaves, place, complete, self.depth)
        leaf = np.flatnonzero(forest.is_leaf & self.listed[forest.node_tree])
        node[tests + self.leaf_at[forest.node_tree[leaf]] + number[leaf]] = leaf
        return node[:tests], node[tests:]


@dataclass(frozen=True)
class BitTree(NearTree):
    """Access to one tree, for `tir_gen/walks/bits.py`: planes of slots, and leaves by number.

    Attributes:
        layout: the layout.
        buffers: its buffers by name.
        depth: of a complete tree, int32; LISTED or BY_LEVELS for others.
        first: first element of the tree's tests or selections.
        count: number of its selections.
        leaf_at: first element of the tree's table of leaves.
    """

    layout: BitslicedLayout
    buffers: Buffers
    depth: Expr
    first: Expr
    count: Expr
    leaf_at: Expr

    def plane(self, slot: int) -> Expr:
        """Return the number of the plane with the answers to a slot's test, int64."""
        return tir.BufferLoad(self.buffers["tests"], [self.first + slot]).astype("int64")

    def selection(self, step: Expr) -> Expr:
        """Load the selection number `step` of the tree, counted from 0, uint64."""
        return tir.BufferLoad(self.buffers["selections"], [self.first + step])

    def leaf_value(self, number: Expr) -> Expr:
        """Load the value of a leaf by its number in the tree, counted from right to left."""
        return tir.BufferLoad(self.buffers["leaf_value"], [self.leaf_at + number])

    def leaf_id(self, number: Expr) -> Expr:
        """Load the leaf's number in the source model."""
        return tir.BufferLoad(self.buffers["leaf_id"], [self.leaf_at + number])

    def heads(self) -> list[Expr]:
        """Return loads to prefetch the first test and selection, of which a tree has only one."""
        return [self.plane(0), *([self.selection(tir.i64(0))] if self.layout.lists else [])]

    def leaf_bytes(self) -> Expr:
        """Load the first byte of the tree's leaf table; None if there is no byte table."""
        if not self.layout.table:
            return None
        item = np.dtype(self.layout.dtype).itemsize
        return tir.BufferLoad(self.buffers["leaf_bytes"], [self.leaf_at * item])


def split_bytes(values: Array) -> Array:
    """Return the bytes of values (T, n), flat: byte 0 of all values of a tree, then byte 1, ..."""
    parts = np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape, -1)
    return np.ascontiguousarray(parts.transpose(0, 2, 1)).ravel()
