"""Turn walk operators into code, alone or several rows at a time.

takes: IRModule with `tvm_forest.walk` in stores; gives: IRModule without.

A walk of one row, with the steps of the array layout:

    node = root
    for hop in range(hops):
        node = child(node, rows[r, feature[node]] < threshold[node])
    out[r] += leaf_value(node)

A loop annotated `tvm_forest.interleave` = k becomes groups of k rows whose walks advance hop by
hop, all loads first, then all comparisons, then all steps, and a loop over the rows that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..tir_gen import ops
from ..tir_gen.representation import Representation, TreeAccess
from .code import Code

INTERLEAVE = "tvm_forest.interleave"
WALK_OPS = (ops.WALK, ops.WALK_ID)


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_forest.LowerWalks")
@dataclass(frozen=True)
class LowerWalks:
    """Lower every walk of a function.

    Attributes:
        rep: layout that emits loads and steps.
        comparison: "<" or "<=".
    """

    rep: Representation
    comparison: str

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Lower interleaved loops first, then the walks that stand alone."""
        body = tvm_ffi.structural_map(func.body, (tirx.For, self._interleaved))
        body = tvm_ffi.structural_map(body, (tirx.BufferStore, self._alone))
        return func.with_body(body)

    def _alone(self, store: tirx.BufferStore) -> tirx.Stmt:
        if find_walk(store.value) is None:
            return store
        code = Code()
        self._emit_walks(code, [store])
        return code.finish()

    def _interleaved(self, loop: tirx.For) -> tirx.Stmt:
        width = int(loop.annotations.get(INTERLEAVE, 1))
        if width == 1 or not _is_walk(loop.body):
            return loop
        dtype = loop.loop_var.ty.dtype
        extent = loop.extent.astype(dtype)
        code = Code()
        with code.repeat("group", tirx.floordiv(extent, tirx.const(width, dtype))) as group:
            first = loop.min + group * width
            self._emit_walks(code, [_at(loop, first + lane) for lane in range(width)])
        with code.repeat("rest", tirx.floormod(extent, tirx.const(width, dtype))) as rest:
            self._emit_walks(code, [_at(loop, loop.min + extent - 1 - rest)])
        return code.finish()

    def _emit_walks(self, code: Code, stores: Sequence[tirx.BufferStore]) -> None:
        """Emit walks that advance together, then their stores in order."""
        calls: list[Any] = [find_walk(store.value) for store in stores]
        tree, buffers = _tree_of(calls[0], self.rep)
        access = self.rep.tree(buffers, tree, code.hold)
        nodes = [code.hold("node", access.root) for _ in calls]
        with code.repeat("hop", access.hops):
            self._emit_hop(code, access, nodes, [call.args[0] for call in calls])
        for store, call, node in zip(stores, calls, nodes, strict=True):
            is_id = call.op.name == ops.WALK_ID
            leaf = access.leaf_id(node) if is_id else access.leaf_value(node)
            value = _replace_walk(store.value, leaf)
            code.add(tirx.BufferStore(store.buffer, value, list(store.indices)))

    def _emit_hop(
        self, code: Code, access: TreeAccess, nodes: Sequence[Any], rows: Sequence[Any]
    ) -> None:
        """One hop of every walk, stage by stage."""
        tests = [access.test(node, code.hold) for node in nodes]
        values = [
            code.hold("x", tirx.BufferLoad(row.source, [*list(row.indices)[:-1], test.feature]))
            for row, test in zip(rows, tests, strict=True)
        ]
        lefts = [
            code.hold("left", self._goes_left(value, test))
            for value, test in zip(values, tests, strict=True)
        ]
        for node, left in zip(nodes, lefts, strict=True):
            code.put(node, access.child(node, left))

    def _goes_left(self, value: Any, test: Any) -> Any:
        """An ordered comparison is false for NaN, so NaN goes right unless the node says left."""
        less = value < test.threshold if self.comparison == "<" else value <= test.threshold
        if test.default_left is None:
            return less
        return tirx.Or(less, tirx.And(test.default_left, tirx.isnan(value)))


def find_walk(expr: Any) -> Any | None:
    """Return the walk call inside an expression, or None."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (tvm.ir.Call, lambda c: found.append(c) if _is_op(c) else None))
    return found[0] if found else None


def _is_op(call: tvm.ir.Call) -> bool:
    return getattr(call.op, "name", "") in WALK_OPS


def _is_walk(statement: tirx.Stmt) -> bool:
    return isinstance(statement, tirx.BufferStore) and find_walk(statement.value) is not None


def _replace_walk(expr: Any, value: Any) -> Any:
    return tvm_ffi.structural_map(expr, (tvm.ir.Call, lambda c: value if _is_op(c) else c))


def _at(loop: tirx.For, value: Any) -> tirx.BufferStore:
    """Return the body of a loop for one value of its variable."""
    var = loop.loop_var
    swap = (tirx.Var, lambda v: value if v.same_as(var) else v)
    return tvm_ffi.structural_map(loop.body, swap)


def _tree_of(call: Any, rep: Representation) -> tuple[Any, dict[str, Any]]:
    """Return the tree number of a walk, and its buffers by the names the layout gave them."""
    _, tree, *anchors = call.args
    specs = rep.id_buffers() if call.op.name == ops.WALK_ID else rep.value_buffers()
    names = [spec.name for spec in specs]
    return tree, {name: load.source for name, load in zip(names, anchors, strict=True)}
