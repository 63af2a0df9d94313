"""A walk of 16 rows in 4 trees at once, whose tables are registers.

takes: loops over trees and rows, a LevelsRepresentation; gives: statements in a Code.

Lane 16 q + r is row r in tree q. A hop of all 64 lanes:

    word[q]   = level[tree q, hop]
    rank, column, left, right = fields of node, among the bytes from first node of word[q] on
    node      = codes[column, row] >= rank ? right : left
    arrives   = node >= next inner nodes of word[q]
    leaf      = node + leaf shift of word[q], for lanes that arrive now

Lanes that have arrived go on, through whatever bytes come next, and nothing is made of it. So a
hop asks nothing, and takes the same time whatever the tests; the walk ends with its last lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any

from tvm import tirx

from ...layouts.levels import FIELDS, ROWS, LevelTree
from ..builder import Code, i64
from .byte_vectors import LANES, Permutes
from .vectors import Vectors

VBMI = "avx512vbmi"
ALL = 2**64 - 1
ZEROS = tirx.Broadcast(tirx.const(0, "uint8"), LANES)
WIDE = 48
"""Bit of a level's word that says that it is wide."""


@dataclass(frozen=True)
class PermuteWalk:
    """Rows on their way through trees.

    Attributes:
        code: where statements go.
        trees: 4 trees, which may be the same.
        codes: loads of the first rows of groups of 16, which walk side by side.
        right: LLVM's word for the comparison of a code with a rank that leads to the right.
        vectors: operations on vectors.
    """

    code: Code
    trees: list[LevelTree]
    codes: list[Any]
    right: str
    vectors: Vectors

    @property
    def in_registers(self) -> bool:
        """Whether the CPU looks bytes up in registers."""
        return VBMI in self.vectors.abilities

    def emit(self) -> list[Any]:
        """Emit the walk; returns cells with the number of each lane's leaf, one for each group."""
        hold, put, permutes = self.code.hold, self.code.put, Permutes(self.vectors)
        nodes = [hold("node", ZEROS) for _ in self.codes]
        leaves = [hold("leaf", ZEROS) for _ in self.codes]
        done = [hold("done", tirx.const(0, "uint64")) for _ in self.codes]
        hop, hops = hold("hop", i64(0)), hold("hops", self._hops())
        more = tirx.And(hop < hops, reduce(and_, done) != tirx.const(ALL, "uint64"))
        with self.code.block(lambda body: tirx.While(more, body)):
            words = [hold("word", tree.level(hop)) for tree in self.trees]
            fields = self._fields(permutes, words, nodes)
            inner, shift = (hold("byte", permutes.spread(words, k)) for k in (4, 5))
            for k, (rank, column, left, right) in enumerate(fields):
                seen = self._codes(permutes, self.codes[k], column)
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

    def _fields(self, permutes: Permutes, words: list[Any], nodes: list[Any]) -> list[list[Any]]:
        """Rank, column, left and right of every lane's node, for each group."""
        hold, code = self.code.hold, self.code
        first = [(word & tirx.const(0xFFFFFFFF, "uint64")).astype("int64") for word in words]
        first = [hold("first", x) for x in first]
        cells = [[hold(name, ZEROS) for name in FIELDS] for _ in nodes]
        each = [(x[k], y, k) for x, y in zip(cells, nodes, strict=True) for k in range(len(x))]
        if not self.in_registers:
            for cell, node, field in each:
                self._one_by_one(cell, field, first, node)
            return cells

        def look(wide: bool) -> tirx.Stmt:
            inner = Code()
            for cell, node, field in each:
                table = self.trees[0].byte(field, i64(0))
                inner.put(cell, permutes.nodes(table, first, node, wide))
            return inner.finish()

        if not self.trees[0].rep.wide:
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
                at = begin + tirx.BufferLoad(node.source, [lane]).astype("int64")
                self.code.add(tirx.BufferStore(cell.source, self.trees[0].byte(field, at), [lane]))

    def _codes(self, permutes: Permutes, load: Any, column: Any) -> Any:
        """The codes that lanes ask for; `load` is of the first row of their group."""
        codes, group = load.source, load.indices[0]
        if self.in_registers:
            first = tirx.BufferLoad(codes, [group, i64(0), i64(0)])
            return permutes.codes(first, int(codes.shape[1]), column)
        cell = self.code.hold("code", ZEROS)
        with self.code.repeat("lane", i64(LANES)) as lane:
            at = tirx.BufferLoad(column.source, [lane]).astype("int64")
            at = [group, at, tirx.floormod(lane, i64(ROWS))]
            self.code.add(tirx.BufferStore(cell.source, tirx.BufferLoad(codes, at), [lane]))
        return cell

    def leaves(self, number: Any, place: int, is_id: bool) -> Any:
        """Emit the look-up of the leaves of 16 rows in one of the trees; returns a buffer."""
        tree = self.trees[place]
        if tree.rep.table and not is_id and self.in_registers:
            first = tree.leaf_value(i64(0))
            found = Permutes(self.vectors).leaves(first, tree.rep.table, number, place)
            return self.code.hold("value", found).source
        look = tree.leaf_id if is_id else tree.leaf_value
        dtype = "int32" if is_id else tree.rep.dtype
        found = tirx.decl_buffer((ROWS,), dtype, "value", scope="global")
        self.code.add(tirx.AllocBuffer(found))
        with self.code.repeat("row", i64(ROWS)) as row:
            at = tirx.BufferLoad(number.source, [i64(place * ROWS) + row]).astype("int64")
            self.code.add(tirx.BufferStore(found, look(at), [row]))
        return found
