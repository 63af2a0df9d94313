"""The bit-sliced layout: no walk at all, but selections among the answers of 64 rows at once.

takes: Forest; gives: BitslicedLayout and its arrays.

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
from ..values import dataclass, replace
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
"""Bits of the number of a leaf."""

LEAF_BITS = (6, 7, 8, 12, MAX_LEAF_BITS)
"""Bits of the numbers of leaves that code has: those of tables of bytes, and some beyond."""

TABLE_SIZES = {"float32": (64, 128, 256), "float64": (64,)}
"""Entries of tables of leaves that are looked up by bytes: registers of AVX-512 hold 64 each."""

FIRST_DEPTHS, MAX_DEPTHS = (6, 7, MAX_DEPTH), 6
"""The deepest complete trees that code is written for, and for how many depths it is."""

LISTED, BY_LEVELS = -1, -2
"""What stands in the place of the depth of trees that are not complete: of lists of selections, and
of oblivious trees."""


@register
@dataclass(frozen=True)
class BitslicedLayout(Layout):
    """Tests of complete trees, lists of selections, and tables of leaves.

    Attributes:
        dtype: of leaf values.
        code: how rows become planes.
        depths: depths of complete trees, deepest first, see `list_depths`.
        levels: slots of oblivious trees, as many as the deepest of them has levels; 0 for none.
        lists: whether some tree may be a list of selections.
        bits: of the number of a leaf.
        table: entries of each tree's table, if leaves are looked up by bytes, else 0.
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
        """Return why not: too many leaves of a tree, or thresholds or categories of a feature.

        `pack` refuses too many planes, which only the selections tell.
        """
        places = _Places.of(forest)
        if places.bits > MAX_LEAF_BITS:
            leaves = forest.leaf_counts
            most = f"the limit is {1 << MAX_LEAF_BITS}"
            return f"tree {np.argmax(leaves)} has {leaves.max()} leaves, {most}"
        return ranks.unfit(forest) or find_slot_excess(forest, places.tests + places.leaves)

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Lay the forest out, see the module.

        Raises:
            BuildError: see `unfit`, or there are too many planes.
        """
        cls.check(forest)
        numbered, places = number_tests(forest), _Places.of(forest)
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
            arrays["leaf_bytes"] = _split_bytes(arrays["leaf_value"].reshape(-1, places.table))
        spare = round_up(chosen.spare, MIN_SPARE, MAX_PLANES - tests)
        code, dtype = replace(numbered.code, spare=spare), str(arrays["leaf_value"].dtype)
        forms, lists = (places.depths, places.levels), bool(listed.any() or places.depths)
        return cls(
            read_specs(arrays), dtype, code, *forms, lists, places.bits, places.table
        ), arrays

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> Any:
        """Load where the tree begins, its depth and the rest; returns a BitTree."""
        names = ("depth", "first", "count", "leaf_at")
        loads = (hold(x, tir.BufferLoad(buffers[x], [tree])) for x in names)
        return BitTree(self, buffers, *loads)

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Show tests by tree and slot, and the fields of selections."""
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
    """Return the depths for which code for complete trees up to a depth is written; -1 for none.

    They are the same for many models, whose code is then the same: trees that are shallower than
    the last one are completed down to it.
    """
    if deepest < 0:
        return ()
    first = next(x for x in FIRST_DEPTHS if x >= deepest)
    return tuple(range(first, max(0, first - MAX_DEPTHS), -1))


class _Places(NamedTuple):
    """Where each tree lies.

    Attributes:
        listed: bool (T,), whether it is a list of selections.
        flat: bool (T,), whether it has a slot for each level.
        depth: int64 (T,), of the tree when it is complete.
        depths: for which there is code, see `list_depths`.
        levels: slots of a flat tree.
        bits: of the number of a leaf.
        table: entries of the table of each tree, if leaves are looked up by bytes, else 0.
        leaf_at: int64 (T,), first entry of each tree.
        leaves: entries of all trees together.
    """

    listed: Array
    flat: Array
    depth: Array
    depths: tuple[int, ...]
    levels: int
    bits: int
    table: int
    leaf_at: Array
    leaves: int

    @classmethod
    def of(cls, forest: Forest) -> _Places:
        """Count the tests and leaves of each tree."""
        ends, listed, flat = forest.leaf_counts, is_listed(forest), has_levels(forest)
        depth = forest.depths.astype(np.int64)
        levels = int(depth[flat].max(initial=0))
        bits = int(np.where(listed, np.ceil(np.log2(ends)), depth).max())
        bits = next(x for x in (*LEAF_BITS, bits) if x >= bits)
        deepest = int(depth[~listed & ~flat].max(initial=-1))
        if bits <= MAX_DEPTH and not flat.all():  # which trees are listed changes with trainings
            deepest = bits
        depths = list_depths(deepest)
        depth = np.where(listed | flat, depth, np.maximum(depth, min(depths, default=0)))
        sizes = TABLE_SIZES.get(str(forest.leaf_value.dtype), ())
        table = next((x for x in sizes if x >= 1 << bits), 0)
        leaves = np.where(listed, ends, 1 << np.minimum(depth, MAX_LEAF_BITS))
        leaves = np.full(forest.n_trees, table) if table else leaves
        at = np.cumsum(leaves) - leaves
        return cls(listed, flat, depth, depths, levels, bits, table, at, int(leaves.sum()))

    @property
    def size(self) -> Array:
        """Int64 (T,), tests of each tree, 0 if it is listed."""
        complete = (1 << np.minimum(self.depth, MAX_LEAF_BITS)) - 1
        return np.select([self.listed, self.flat], [0, self.levels], complete)

    @property
    def tests(self) -> int:
        """Tests of all trees together."""
        return int(self.size.sum())

    @property
    def first(self) -> Array:
        """Int64 (T,), first test of each tree."""
        return np.cumsum(self.size) - self.size

    def fill(self, forest: Forest, number: Array) -> tuple[Array, Array]:
        """Return the node of every test, and the leaf of every entry of a table, -1 for none.

        Args:
            forest: the model.
            number: int64 (N,), number of each leaf of a listed tree.
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
    """One tree; `tir_gen/walks/bits.py` gets planes of slots and leaves by number from it.

    Attributes:
        layout: the layout.
        buffers: its buffers by name.
        depth: of a complete tree, int32; LISTED or BY_LEVELS for others.
        first: first element of the tree's tests or selections.
        count: of its selections.
        leaf_at: first element of its table.
    """

    layout: BitslicedLayout
    buffers: Buffers
    depth: Expr
    first: Expr
    count: Expr
    leaf_at: Expr

    def plane(self, slot: int) -> Expr:
        """The plane that answers the test of a slot, int64."""
        return tir.BufferLoad(self.buffers["tests"], [self.first + slot]).astype("int64")

    def selection(self, step: Expr) -> Expr:
        """One of the tree's selections, uint64."""
        return tir.BufferLoad(self.buffers["selections"], [self.first + step])

    def leaf_value(self, number: Expr) -> Expr:
        """The value of a leaf."""
        return tir.BufferLoad(self.buffers["leaf_value"], [self.leaf_at + number])

    def leaf_id(self, number: Expr) -> Expr:
        """Its number in the source model."""
        return tir.BufferLoad(self.buffers["leaf_id"], [self.leaf_at + number])

    def heads(self) -> list[Expr]:
        """The first tests and selections, of which the tree has one or the other."""
        return [self.plane(0), *([self.selection(tir.i64(0))] if self.layout.lists else [])]

    def leaf_bytes(self) -> Expr:
        """The first byte of the tree's leaves, None if they are not looked up by bytes."""
        if not self.layout.table:
            return None
        item = np.dtype(self.layout.dtype).itemsize
        return tir.BufferLoad(self.buffers["leaf_bytes"], [self.leaf_at * item])


def _split_bytes(values: Array) -> Array:
    """Return (T, B, table) as one row: byte k of every value of a tree, for k = 0, ..., B - 1."""
    parts = np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape, -1)
    return np.ascontiguousarray(parts.transpose(0, 2, 1)).ravel()
