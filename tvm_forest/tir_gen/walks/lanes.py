"""Walks several rows at once, as the lanes of vectors.

takes: leaf loops over as many rows as lanes; gives: their code.

Every stage of a hop is one vector loop over the lanes, and each variable of a single walk becomes a
buffer with an element for each lane:

    for lane in T.vectorized(16): node[lane] = root
    for hop in range(hops):
        for lane in T.vectorized(16): x[lane] = rows[r + lane, feature[node[lane]]]
        for lane in T.vectorized(16): left[lane] = x[lane] < threshold[node[lane]]
        for lane in T.vectorized(16): node[lane] = child(node[lane], left[lane])
    for lane in T.vectorized(16): out[r + lane] += leaf_value(node[lane])

TIR has no gather, so loads that differ from lane to lane become one scalar load each.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...schedule_prims.nest import Loop
from ...schedule_prims.walks import WalkForm
from ...system.values import dataclass, replace
from .. import ops
from ..builder import Builder
from ..ir import at_iteration, i64, replace_vars
from .hops import HopWalker, WalkGroup
from .walker import leaf_of

ROWS_OF_A_PART = 8
"""Number of interleaved walks in a tile of rows that does not fill the lanes."""


@dataclass(frozen=True)
class LaneWalker(HopWalker):
    """Walks the rows of a full tile as vector lanes, and other rows in small groups."""

    def lower(self, loop: tirx.For, fact: Loop, form: WalkForm) -> tirx.Stmt:
        """Lower a leaf loop: in lanes if it has as many rows as lanes, in small groups if fewer."""
        count = fact.count or 0
        full = self.lower_tile(loop, count, form)
        if isinstance(loop.extent, tirx.IntImm) and loop.extent.value == count:
            return full
        groups = self.lower_groups(loop, min(count, ROWS_OF_A_PART), form)
        return tirx.IfThenElse(loop.extent >= count, full, groups)

    def lower_tile(self, loop: tirx.For, count: int, form: WalkForm) -> tirx.Stmt:
        """Lower a full tile.

        Peeled walks become one loop over all hops, since all lanes end together.
        """
        code = Builder()
        lanes = Lanes(code, count, tirx.Var("lane", "int64"))
        body = at_iteration(loop, loop.min + lanes.lane)
        call: Any = ops.find_walk(body)
        (tree,) = self.open_trees(code, [call])
        node = lanes.hold("node", tree.root)
        comparer = replace(self.comparer, vectors=None, at_once=False)  # the lanes are rows
        walks = WalkGroup(lanes, [tree], [node], [call.args[0]], comparer)
        if form.kind == "unroll":
            for _ in range(form.hops):
                walks.hop(held=not form.even)
        else:
            with code.repeat("hop", tree.hops):
                walks.hop(held=False)
        leaf = leaf_of(tree, call, node)
        if isinstance(body, tirx.BufferStore):
            value = ops.replace_call(body.value, ops.WALKS, leaf)
            lanes.store(body.buffer, value, list(body.indices))
            return code.finish()
        leaf = lanes.hold("leaf", leaf)
        with code.repeat("row", i64(count)) as row:
            each = at_iteration(loop, loop.min + row)
            self.add_end(code, each, leaf.source[row])
        return code.finish()


@dataclass(frozen=True)
class Lanes:
    """Declares and stores variables of a vector walk, with one element for each lane.

    Attributes:
        code: where statements go.
        count: number of lanes.
        lane: TIR variable for the number of the lane, used in expressions.
    """

    code: Builder
    count: int
    lane: tirx.Var

    def hold(self, name: str, value: Any) -> Any:
        """Store a value per lane in a new buffer; return the load of one lane.

        Booleans are stored as integers: LLVM negates a stored vector of booleans, for example of 4
        lanes, by complementing a whole byte.
        """
        is_truth = str(value.ty.dtype) == "bool"
        value = value.astype("int32") if is_truth else value
        buffer = self.code.buffer(name, (self.count,), value.ty.dtype)
        self.store(buffer, value, [self.lane])
        return buffer[self.lane] != 0 if is_truth else buffer[self.lane]

    def put(self, cell: Any, value: Any) -> None:
        """Store a value for each lane in a buffer; `cell` is the load that `hold` returned."""
        self.store(cell.source, value, [self.lane])

    def store(self, buffer: Any, value: Any, indices: list[Any]) -> None:
        """Emit one vector loop with a store."""
        with self.code.lanes("lane", self.count) as lane:
            store = tirx.BufferStore(buffer, value, indices)
            self.code.add(replace_vars(store, {self.lane: lane}))
