"""Walks 16 rows through 4 trees at once, by byte permutes of tables in registers.

takes: a loop over trees with a leaf loop inside; gives: their code.

Lane 16 q + r is row r in tree q. A hop of all 64 lanes:

    word[q]   = level[tree q, hop]
    rank, column, left, right = fields of node, among the bytes from first node of word[q] on
    node      = codes[column, row] >= rank ? right : left
    arrives   = node >= next inner nodes of word[q]
    leaf      = node + leaf shift of word[q], for lanes that arrive now

The row codes of 16 rows and the nodes of a level are tables in registers, from which one AVX-512
instruction picks a byte for every lane. Lanes that have arrived at a leaf go on with meaningless
bytes, and their results are ignored. So a hop has no branch and takes the same time for all rows;
the walk ends when the last lane has arrived.
"""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, ClassVar

from tvm import sym, tirx

from ...errors import ScheduleError
from ...schedule_prims import Schedule
from ...schedule_prims.nest import Loop
from ...schedule_prims.walks import WalkForm
from ...system.values import dataclass
from .. import ops
from ..builder import Builder
from ..ir import at_iteration, guard, i64
from .byte_vectors import LANES, ROWS, TREES, Permutes
from .walker import BlockWalker, look_up_leaves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...layouts.levels import LevelTree

ALL_DONE = 2**64 - 1
ZEROS = tirx.Broadcast(tirx.const(0, "uint8"), LANES)
FIELDS = ("rank", "column", "left", "right")
"""Fields of a node, in the order of their numbers in `LevelTree.byte`."""
WIDE = 48
"""Bit of a level's word that marks a wide level."""
GROUPS_ABREAST = 2
"""Number of groups of rows that walk side by side, to hide the latency of each group's hops."""


@dataclass(frozen=True)
class PermuteWalker(BlockWalker):
    """Walks rows 16 at a time, through up to 4 trees at once."""

    how: ClassVar[str] = "permute"

    @classmethod
    def check(cls, sch: Schedule, loops: Sequence[Loop]) -> None:
        """Refuse the nests that `BlockWalker.check` refuses, and models with leaf vectors.

        The layout stores one number per leaf.
        """
        if sch.vectors:
            raise ScheduleError(
                f"represent_as: argument 'name': {sch.layout!r} looks up one number for a "
                "leaf, but the leaves of this model hold vectors; choose another layout\n"
                f"{sch.render(loops[0].name)}"
            )
        super().check(sch, loops)

    @classmethod
    def computed_rows(cls, extent: Any, count: int) -> Any | None:
        """Return the number of rows rounded up to whole groups of 16."""
        return tirx.ceildiv(extent, i64(ROWS)) * ROWS

    def lower_trees(self, trees: tirx.For, fact: Loop) -> tirx.Stmt | None:
        """Walk the trees of a loop four at a time, and the remainder together."""
        code, always = Builder(), tirx.const(True, "bool")
        whole = tirx.floordiv(trees.extent, i64(TREES))
        with code.repeat("four", whole) as four:
            each = [four * TREES + k for k in range(TREES)]
            self._emit(code, [at_iteration(trees, trees.min + x) for x in each], [always] * TREES)
        left = trees.extent - whole * TREES
        if not sym.Analyzer().can_prove_equal(left, 0):
            each = [whole * TREES + k for k in range(TREES)]
            inside = [x < trees.extent for x in each]
            leaves = [at_iteration(trees, tirx.min(x, trees.extent - 1)) for x in each]
            with code.block(lambda body: guard(body, [left > 0])):
                self._emit(code, leaves, inside)
        return code.finish()

    def lower(self, loop: tirx.For, fact: Loop, form: WalkForm) -> tirx.Stmt:
        """Walk one tree, if the loop around the leaf loop is not over trees."""
        code = Builder()
        self._emit(code, [loop], [tirx.const(True, "bool")])
        return code.finish()

    def _emit(self, code: Builder, leaves: list[Any], inside: list[Any]) -> None:
        """Walk rows through up to 4 trees at once, then store the leaves, tree by tree.

        Args:
            code: where statements go.
            leaves: a leaf loop for each tree.
            inside: for each tree, the condition that it belongs to the loop, and is not the last
                tree repeated to fill the lanes.
        """
        calls: list[Any] = [ops.find_walk(leaf.body.value) for leaf in leaves]
        trees: list[Any] = self.open_trees(code, calls)
        vectors = self.comparer.vectors
        assert vectors is not None, "checked by CodeRows"
        right = "uge" if self.comparer.comparison == "<" else "ugt"
        is_id, groups = (
            ops.is_call(calls[0], ops.WALK_ID),
            tirx.ceildiv(leaves[0].extent, i64(ROWS)),
        )
        whole = (tirx.EQ(tirx.floormod(leaf.extent, i64(ROWS)), i64(0)) for leaf in leaves)
        full = [sym.Analyzer().can_prove(x) for x in whole]
        for width, begin, count in code.groups(groups, GROUPS_ABREAST):
            with code.repeat("group", count) as group:
                firsts = [(begin + group * width + k) * ROWS for k in range(width)]
                stores = [at_iteration(leaves[0], leaves[0].min + first) for first in firsts]
                walks: list[Any] = [ops.find_walk(store.value) for store in stores]
                codes = [walk.args[0] for walk in walks]
                walk = PermuteWalk(code, (trees * TREES)[:TREES], codes, right, Permutes(vectors))
                for first, number in zip(firsts, walk.emit(), strict=True):
                    for k, leaf in enumerate(leaves):
                        with code.block(lambda body, k=k: guard(body, [inside[k]])):
                            found = walk.leaves(number, k, is_id)
                            self.store_rows(code, leaf, first, ROWS, full[k], found)


@dataclass(frozen=True)
class PermuteWalk:
    """Emits the walk of groups of 16 rows through 4 trees.

    Attributes:
        code: where statements go.
        trees: 4 trees, which may be the same.
        codes: for each group of rows that walk side by side, the load of its first row's codes.
        right: LLVM's predicate on (code, rank) that is true if the row goes right.
        permutes: emits the look-ups of bytes.
    """

    code: Builder
    trees: list[LevelTree]
    codes: list[Any]
    right: str
    permutes: Permutes

    def emit(self) -> list[Any]:
        """Emit the walk; return a variable with the lanes' leaf numbers for each group of rows."""
        hold, put, permutes = self.code.hold, self.code.put, self.permutes
        nodes = [hold("node", ZEROS) for _ in self.codes]
        leaves = [hold("leaf", ZEROS) for _ in self.codes]
        done = [hold("done", tirx.const(0, "uint64")) for _ in self.codes]
        hop, hops = hold("hop", i64(0)), hold("hops", self._hops())
        more = tirx.And(hop < hops, reduce(and_, done) != tirx.const(ALL_DONE, "uint64"))
        with self.code.block(lambda body: tirx.While(more, body)):
            words = [hold("word", tree.level(hop)) for tree in self.trees]
            fields = self._fields(words, nodes)
            inner, shift = (hold("byte", permutes.spread(words, k)) for k in (4, 5))
            for k, (rank, column, left, right) in enumerate(fields):
                seen = self._codes(self.codes[k], column)
                goes_right = permutes.truth(self.right, seen, rank)
                put(nodes[k], permutes.choose(goes_right, right, left))
                arrives = permutes.truth("uge", nodes[k], inner) & tirx.bitwise_not(done[k])
                arrives = hold("arrives", arrives)
                put(leaves[k], permutes.choose(arrives, nodes[k] + shift, leaves[k]))
                put(done[k], done[k] | arrives)
            put(hop, hop + 1)
        return leaves

    def _hops(self) -> Any:
        return reduce(tirx.max, [tree.hops for tree in self.trees]).astype("int64")

    def _fields(self, words: list[Any], nodes: list[Any]) -> list[list[Any]]:
        """Load rank, column, left and right of every lane's node, for each group of rows."""
        hold, code = self.code.hold, self.code
        first = [(word & tirx.const(0xFFFFFFFF, "uint64")).astype("int64") for word in words]
        first = [hold("first", x) for x in first]
        cells = [[hold(name, ZEROS) for name in FIELDS] for _ in nodes]
        each = [(x[k], y, k) for x, y in zip(cells, nodes, strict=True) for k in range(len(x))]
        if not self.permutes.vectors.permutes_bytes:
            for cell, node, field in each:
                self._one_by_one(cell, field, first, node)
            return cells

        def look(wide: bool) -> tirx.Stmt:
            inner = Builder()
            for cell, node, field in each:
                table = self.trees[0].byte(field, i64(0))
                inner.put(cell, self.permutes.nodes(table, first, node, wide))
            return inner.finish()

        if not self.trees[0].layout.wide:
            code.add(look(False))
            return cells
        flags = tirx.shift_right(reduce(or_, words), tirx.const(WIDE, "uint64"))
        wide = flags != tirx.const(0, "uint64")
        code.add(tirx.IfThenElse(wide, look(True), look(False)))
        return cells

    def _one_by_one(self, cell: Any, field: int, first: list[Any], node: Any) -> None:
        for tree, begin in enumerate(first):
            with self.code.repeat("row", i64(ROWS)) as row:
                lane = i64(tree * ROWS) + row
                at = begin + node.source[lane].astype("int64")
                self.code.store(cell.source, self.trees[0].byte(field, at), [lane])

    def _codes(self, load: Any, column: Any) -> Any:
        """Load the code of each lane's row in the lane's column.

        `load` is that of the first row of the group.
        """
        codes, group = load.source, load.indices[0]
        if self.permutes.vectors.permutes_bytes:
            first = codes[group, i64(0), i64(0)]
            return self.permutes.codes(first, int(codes.shape[1]), column)
        cell = self.code.hold("code", ZEROS)
        with self.code.repeat("lane", i64(LANES)) as lane:
            at = column.source[lane].astype("int64")
            at = [group, at, tirx.floormod(lane, i64(ROWS))]
            self.code.store(cell.source, codes[at], [lane])
        return cell

    def leaves(self, number: Any, place: int, is_id: bool) -> Any:
        """Emit the look-up of the leaves of 16 rows in tree `place`; return their buffer."""
        tree = self.trees[place]
        if tree.layout.table and not is_id and self.permutes.vectors.permutes_bytes:
            first = tree.leaf_value(i64(0))
            found = self.permutes.leaves(first, tree.layout.table, number, place)
            return self.code.hold("value", found).source
        return look_up_leaves(
            self.code,
            tree,
            is_id,
            ROWS,
            lambda row: number.source[i64(place * ROWS) + row],
        )
