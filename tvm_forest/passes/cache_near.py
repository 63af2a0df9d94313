"""Bring rows and trees near before they are used.

takes: IRModule without blocks, loops annotated `tvm_forest.cache`; gives: IRModule.

    for b0 in range(8):   # cache pack        for b0 in range(8):
        S(rows[b0 * 64 + b1, ...])      -->       near[0:64, :] = rows[b0 * 64 : b0 * 64 + 64, :]
                                                  S(near[b1, ...])

    for tree in range(100):   # cache prefetch     for tree in range(100):
        S(tree)                              -->       prefetch(first nodes of tree + 1)
                                                       S(tree)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..layouts.representation import Representation
from ..nest import paths
from ..schedule import Schedule
from ..tir_gen.builder import Code, find_walk, i64, is_walk, tree_of
from ..tir_gen.row_coding.coders import row_pitch
from .ir import GPU, guarded
from .write_nest import KIND, NAME, value_of, with_body

CACHE = "tvm_forest.cache"
LINE = 64
"""Bytes that one prefetch brings."""


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_forest.CacheNear")
@dataclass(frozen=True)
class CacheNear:
    """Act on every annotated loop, outermost first.

    Attributes:
        rep: layout, asked for what a walk reads first.
        sch: the schedule, asked for the rows that loops can reach.
    """

    rep: Representation
    sch: Schedule

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Visit the nest with the loops around in mind."""
        return func.with_body(self._visit(func.body, func.params[0], ()))

    def _visit(self, statement: tirx.Stmt, rows: Any, around: tuple[tirx.For, ...]) -> tirx.Stmt:
        if isinstance(statement, tirx.SeqStmt):
            return tirx.SeqStmt([self._visit(part, rows, around) for part in statement.seq])
        if isinstance(statement, tirx.IfThenElse):
            inside = self._visit(statement.then_case, rows, around)
            return tirx.IfThenElse(statement.condition, inside, None)
        if not isinstance(statement, tirx.For):
            return statement
        around = (*around, statement)
        body = self._visit(statement.body, rows, around)
        how = str(statement.annotations.get(CACHE, ""))
        if how == "prefetch" or (how and str(statement.annotations[KIND]) == "tree"):
            if on_gpu(self.sch):  # hides loads behind other threads; `cache_trees` copies trees
                return with_body(statement, body)
            body = self._prefetch(body, rows, around, how == "stream")
        elif how and self.rep.row_code is None:  # codes are near already
            body = self._pack(body, rows, around)
        return with_body(statement, body)

    def _pack(self, body: tirx.Stmt, rows: Any, around: tuple[tirx.For, ...]) -> tirx.Stmt:
        first, here, most = reach(self.sch, around, rows)
        assert most is not None, "the directive refuses row loops without bound"
        spread, features = on_gpu(self.sch), rows.shape[1]
        shared = spread or str(around[-1].annotations[CACHE]) == "shared"
        pitch = i64(row_pitch(int(features), rows.dtype)) if spread else features
        scope = "shared" if shared else "global"
        near = tirx.decl_buffer((most, pitch), rows.dtype, "near", scope=scope)
        code = Code()
        code.add(tirx.AllocBuffer(near))
        spans = [i64(most) if spread else here, features.astype("int64")]
        with code.nest("copy", spans, spread) as (r, f):
            copy = tirx.BufferStore(near, tirx.BufferLoad(rows, [first + r, f]), [r, f])
            code.add(guarded(copy, [first + r < rows.shape[0]] if spread else []))

        def packed(inside: tirx.Stmt) -> tirx.Stmt:
            moved, _ = redirect_walks(
                inside, rows, lambda r: tirx.BufferLoad(near, [r - first, i64(0)])
            )
            return tirx.SeqStmt([*code.statements, moved])

        return in_blocks(body, packed)

    def _prefetch(
        self, body: tirx.Stmt, rows: Any, around: tuple[tirx.For, ...], whole: bool
    ) -> tirx.Stmt:
        """What the next iteration reads, or reads first; the last one asks for its own again."""
        loop = around[-1]
        var = loop.loop_var
        following = tirx.min(var + 1, loop.extent.astype(var.ty.dtype) - 1)
        code = Code()
        if str(loop.annotations[KIND]) == "tree":
            self._prefetch_tree(code, body, (var, following), whole)
        else:
            self._prefetch_rows(code, rows, around, var, following)
        code.add(body)
        return code.finish()

    def _prefetch_tree(
        self, code: Code, body: tirx.Stmt, step: tuple[Any, Any], whole: bool
    ) -> None:
        call = _first_walk(body)
        if call is None:
            return
        tree, buffers = tree_of(call, self.rep)
        inner: list[Any] = []
        tvm_ffi.structural_walk(body, (tirx.For, lambda x: inner.append(x.loop_var)))

        def begin(v: tirx.Var) -> Any:
            if v.same_as(step[0]):
                return step[1]
            return tirx.const(0, v.ty.dtype) if any(v.same_as(x) for x in inner) else v

        tree = tvm_ffi.structural_map(tree, (tirx.Var, begin))
        access = self.rep.tree(buffers, tree, code.hold)
        lines = access.lines() if whole else []
        for count, load_of in lines:
            with code.repeat("line", i64(count)) as line:
                code.add(_prefetch(_address(load_of(line))))
        for load in () if lines else access.heads():
            code.add(_prefetch(_address(load)))

    def _prefetch_rows(
        self, code: Code, rows: Any, around: tuple[tirx.For, ...], var: Any, following: Any
    ) -> None:
        first, here, most = reach(self.sch, around, rows)
        swap = (tirx.Var, lambda v: following if v.same_as(var) else v)
        first = tvm_ffi.structural_map(first, swap)
        here = tvm_ffi.structural_map(here, swap) if most is not None else i64(1)
        a_line = LINE // tvm.DataType(rows.dtype).itemsize
        lines = tirx.floordiv(rows.shape[1].astype("int64") + (a_line - 1), i64(a_line))
        with code.nest("line", [here, lines]) as (r, line):
            load = tirx.BufferLoad(rows, [first + r, line * a_line])
            code.add(_prefetch(tirx.address_of(load)))


def in_blocks(body: tirx.Stmt, change: Callable[[tirx.Stmt], tirx.Stmt]) -> tirx.Stmt:
    """Change what each block of a GPU does: what is inside of further loops over the grid."""
    if isinstance(body, tirx.For) and str(body.annotations.get(GPU, "")).startswith("grid"):
        return with_body(body, in_blocks(body.body, change))
    return change(body)


def on_gpu(sch: Schedule) -> bool:
    """Return whether loops are mapped to a GPU."""
    return any(loop.gpu for loop in sch.loops())


def reach(sch: Schedule, around: tuple[tirx.For, ...], rows: Any) -> tuple[Any, Any, int | None]:
    """First row of an iteration of the last loop, how many rows there are here, and at most."""
    loop, n = around[-1], rows.shape[0]
    outer = [x for x in around if str(x.annotations[KIND]) == "batch"]
    first = sum((value_of(x, n) for x in outer), i64(0))
    below = paths(sch[str(loop.annotations[NAME])])
    inside = [[x for x in path[1:] if x.kind == "batch"] for path in below]
    if any(x.last is None for path in inside for x in path):
        return first, n - first, None
    most = 1 + max(sum(x.last or 0 for x in path) for path in inside)
    return first, tirx.max(i64(0), tirx.min(i64(most), n - first)), most


def walks_of(body: tirx.Stmt, rows: Any) -> list[tvm.ir.Call]:
    """Return the walks that read a buffer of rows."""
    calls: list[tvm.ir.Call] = []
    tvm_ffi.structural_walk(
        body, (tvm.ir.Call, lambda x: calls.append(x) if _reads(x, rows) else None)
    )
    return calls


def redirect_walks(
    body: tirx.Stmt, rows: Any, near: Callable[[Any], Any]
) -> tuple[tirx.Stmt, list[tvm.ir.Call]]:
    """Let walks read `near(row)` in the place of a row; returns also the walks as they were."""

    def redirect(call: tvm.ir.Call) -> tvm.ir.Call:
        if not _reads(call, rows):
            return call
        row, *rest = call.args
        return tirx.call_intrin(call.ty, call.op, near(row.indices[0]), *rest)

    return tvm_ffi.structural_map(body, (tvm.ir.Call, redirect)), walks_of(body, rows)


def _reads(call: tvm.ir.Call, rows: Any) -> bool:
    return is_walk(call) and call.args[0].source.same_as(rows)


def _first_walk(body: tirx.Stmt) -> Any | None:
    found: list[Any] = []
    tvm_ffi.structural_walk(body, (tirx.BufferStore, lambda s: found.append(find_walk(s.value))))
    return next((call for call in found if call is not None), None)


def _address(load: Any) -> Any:
    """Address of a load, which a layout may have wrapped in a change of type."""
    while not hasattr(load, "source"):
        load = load.value if isinstance(load, tirx.Cast) else load.args[0]
    return tirx.address_of(load)


def _prefetch(address: Any) -> tirx.Stmt:
    """A read that will come, into all levels of the data cache."""
    flags = [tirx.const(value, "int32") for value in (0, 3, 1)]
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch.p0", address, *flags))
