"""A walk whose rows are the lanes of vectors.

takes: a leaf loop over as many rows as there are lanes; gives: statements in a Code.

Every stage is one vector loop over the lanes, and what a scalar walk keeps in a cell is a buffer of
one element per lane:

    for lane in T.vectorized(16): node[lane] = root
    for hop in range(hops):
        for lane in T.vectorized(16): x[lane] = rows[r + lane, feature[node[lane]]]
        for lane in T.vectorized(16): left[lane] = x[lane] < threshold[node[lane]]
        for lane in T.vectorized(16): node[lane] = child(node[lane], left[lane])
    for lane in T.vectorized(16): out[r + lane] += leaf_value(node[lane])

TIR has no gather, so loads that differ from lane to lane become one scalar load each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx

from ...layouts.representation import TreeAccess
from ..builder import Code
from .node_test import Decide


@dataclass(frozen=True)
class Lanes:
    """The lanes of a vector walk.

    Attributes:
        code: where statements go.
        count: number of lanes.
        lane: variable that stands for the lane in expressions.
    """

    code: Code
    count: int
    lane: tirx.Var

    def hold(self, name: str, value: Any) -> Any:
        """Store a value of every lane in a new buffer; returns the load of one lane."""
        buffer = tirx.decl_buffer((self.count,), value.ty.dtype, name, scope="global")
        self.code.add(tirx.AllocBuffer(buffer))
        self.store(buffer, value, [self.lane])
        return tirx.BufferLoad(buffer, [self.lane])

    def put(self, cell: Any, value: Any) -> None:
        """Overwrite a buffer that `hold` made."""
        self.store(cell.source, value, [self.lane])

    def store(self, buffer: Any, value: Any, indices: list[Any]) -> None:
        """Emit one vector loop with a store."""
        with self.code.lanes("lane", self.count) as lane:
            swap = (tirx.Var, lambda v: lane if v.same_as(self.lane) else v)
            self.code.add(tvm_ffi.structural_map(tirx.BufferStore(buffer, value, indices), swap))


def emit_hop(
    lanes: Lanes, access: TreeAccess, node: Any, row: Any, decide: Decide, held: bool
) -> None:
    """One hop of all lanes; with `held`, lanes at their leaf stay there."""
    held = needs_holding(access, held)
    place = resting(access, node, lanes.hold) if held else node
    seen = decide.look(access, place, row, lanes.hold)
    # held, for TVM turns not (a < b) into b <= a; as a number, for LLVM gets the complement of a
    # byte for the negation of a vector of truth values (seen with 4 lanes)
    outcome = lanes.hold("outcome", decide.outcome(access, seen).astype("int32"))
    child = access.child(place, outcome != 0 if access.tile_size == 1 else outcome)
    lanes.put(node, tirx.Select(access.is_leaf(node), node, child) if held else child)


def resting(access: TreeAccess, node: Any, hold: Any) -> Any:
    """Where a walk looks that may have ended."""
    if access.rest is None:
        return node
    return hold("place", tirx.Select(access.is_leaf(node), access.rest, node))


def needs_holding(access: TreeAccess, uneven: bool) -> bool:
    """Whether a step could lead away from a leaf; `uneven` walks take more hops than some trees."""
    return not access.stays and (uneven or not access.padded)
