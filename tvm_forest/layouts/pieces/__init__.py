"""The layout of pieces: parts of trees with up to 7 tests, each stored within one cache line.

takes: Forest; gives: PiecesLayout and its arrays.

A walk through a forest that exceeds the caches waits for one cache line at each step. So a step
decides as many tests as a line of 64 bytes has room for:

    bytes 0 ... 27    28 ... 29    30       31      32 ... 38    39    40 ... 63
    thresholds        code         sides    base    features     0     exits

That is 7 thresholds of float32, 7 features of a byte, bit i of `sides` if a missing value goes left
at test i, and 8 exits of 3 bytes. An exit with bit 23 is a leaf, and its other bits are the number
of the leaf's value: most models have far fewer distinct values than leaves. Other exits lead to a
piece: 4 times its line plus its place in this line, counted from `base`, in units of `UNIT` lines.

A piece begins with its root and repeatedly takes in the node with the largest subtree, so it may
have any shape. Small pieces share a line, see `shapes`: its `code` encodes the shapes of its
pieces. All tests of a line are compared at once; `shapes` has a row for each piece of a code, which
leads from the outcome, a number below 128, to the exit in `ends`.

Trees lie in groups of 16, and those of a group level by level. Thresholds of float64 are
narrowed, which needs rows of float32. Walks are in `tir_gen/walks/pieces.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ...forest import Array, Forest
from ...system.values import dataclass
from .. import ANY_FOREST, tir
from ..linked_nodes import any_default_left
from ..protocol import Buffers, Columns, Expr, Hold, Layout, NearTree, read_specs, register
from . import shapes
from .lines import (
    GROUP,
    LEAF_BIT,
    LINE,
    MAX_FEATURES,
    MAX_GROUP_NODES,
    MAX_NODES,
    MAX_VALUES,
    PLACE_BITS,
    SPARE_EXITS,
    join_bytes,
)
from .packing import Nodes, count_values, lay_out_group, number_values


@dataclass(frozen=True)
class PieceTree(NearTree):
    """Access to a tree, for `tir_gen/walks/pieces.py`: addresses and leaves.

    Attributes:
        layout: the layout.
        buffers: its buffers by name.
        tree: number of the tree.
    """

    layout: PiecesLayout
    buffers: Buffers
    tree: Expr

    @property
    def root(self) -> Expr:
        """Load the first piece, uint32: 4 times its line plus its place."""
        return self.load("roots", self.tree)

    def load(self, name: str, *place: Expr) -> Expr:
        """Load the element of a buffer, such as a table, at the indices `place`."""
        return tir.BufferLoad(self.buffers[name], list(place))

    def first(self, name: str) -> Expr:
        """Load the first element of a buffer, to take its address."""
        return self.load(name, *(tir.i64(0) for _ in self.buffers[name].shape))

    def leaf_value(self, number: Expr) -> Expr:
        """Load the value of a leaf, by its number, int64."""
        return self.load("leaf_value", number)

    def leaf_id(self, exit: Expr) -> Expr:
        """Load a leaf's number in the source model.

        Args:
            exit: int64, 8 * line + number of the exit in this line that leads to the leaf.
        """
        return self.load("leaf_id", exit)


@register
@dataclass(frozen=True)
class PiecesLayout(Layout):
    """Lines of 7 tests and 8 exits, and distinct values of leaves.

    Attributes:
        dtype: dtype of leaf values.
        any_default_left: whether some node sends a missing value to the left.
        has_bases: whether some exits count from another line than line 0 of the buffer.
    """

    name: ClassVar[str] = "pieces"
    instead: ClassVar[str] = ANY_FOREST
    walks: ClassVar[str] = "pieces"
    only_for_ids: ClassVar[tuple[str, ...]] = ("leaf_id",)
    dtype: str
    any_default_left: bool
    has_bases: bool

    @classmethod
    def unfit(cls, forest: Forest) -> str | None:
        """Return why a forest does not fit: rows are not float32, or a count is too high."""
        if forest.row_dtype != "float32":
            return f"rows are {forest.row_dtype}, but a line holds float32 only"
        trees, largest = forest.n_trees, int(np.diff(forest.tree_offset).max())
        leaves = int(forest.is_leaf.sum())
        counts = (
            (forest.n_features, "features", MAX_FEATURES),
            (largest, "nodes of the largest tree", MAX_GROUP_NODES),
            (forest.n_nodes + SPARE_EXITS * trees, "nodes, with 40 for each tree,", MAX_NODES),
            (count_values(forest) if leaves > MAX_VALUES else 0, "values of leaves", MAX_VALUES),
        )
        return cls.find_excess(counts)

    @classmethod
    def pack(cls, forest: Forest) -> tuple[Layout, dict[str, Array]]:
        """Pack the forest into arrays, see the module's docstring.

        Raises:
            BuildError: see `unfit`.
        """
        cls.check(forest)
        values, exits = number_values(forest)
        lines, ids, roots, at, bases = list[Array](), list[Array](), list[Array](), 0, 0
        size = min(GROUP, MAX_GROUP_NODES // int(np.diff(forest.tree_offset).max()))
        for begin in range(0, forest.n_trees, size):
            nodes = Nodes.of(forest, begin, begin + size, exits)
            some, leaf_ids = lay_out_group(nodes, nodes.roots, at)
            lines.append(some)
            ids.append(leaf_ids)
            roots.append(nodes.pointer[nodes.roots])
            at, bases = at + len(some), int(some["base"][0])
        tables = shapes.tabulate()
        arrays = {
            "lines": np.concatenate(lines).view(np.uint8).reshape(-1, LINE.itemsize),
            "roots": np.concatenate(roots),
            "ends": tables.ends.ravel(),
            "shapes": tables.rows.ravel(),
            "leaf_value": values,
            "leaf_id": np.concatenate(ids),
        }
        facts = (str(values.dtype), any_default_left(forest), bases > 0)
        return cls(read_specs(arrays), *facts), arrays

    def tree(self, buffers: Buffers, tree: Expr, hold: Hold) -> Any:
        """Return access to the tree number `tree` (PieceTree)."""
        return PieceTree(self, buffers, tree)

    def describe(self, arrays: Mapping[str, Array]) -> dict[str, Columns]:
        """Return the fields of lines, for pictures."""
        lines = arrays["lines"].view(LINE)[:, 0]
        exits = join_bytes(lines["exits"])
        leaf = exits >> LEAF_BIT > 0
        columns: Columns = {
            name: lines[name] for name in ("code", "sides", "base", "threshold", "feature")
        }
        columns["line"] = np.ma.array(exits >> PLACE_BITS, mask=leaf)
        columns["value"] = np.ma.array(exits & (1 << LEAF_BIT) - 1, mask=~leaf)
        return {"lines": columns}
