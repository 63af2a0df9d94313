"""Copies rows, or prefetches rows and trees, before walks use them.

takes: IRModule without blocks, loops with the directive `cache`; gives: IRModule.

    for b0 in range(8):   # cache pack        for b0 in range(8):
        S(rows[b0 * 64 + b1, ...])      -->       near[0:64, :] = rows[b0 * 64 : b0 * 64 + 64, :]
                                                  S(near[b1, ...])

    for tree in range(100):   # cache prefetch     for tree in range(100):
        S(tree)                              -->       prefetch(first nodes of tree + 1)
                                                       S(tree)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..tir_gen import ir, ops
from ..tir_gen.builder import Builder
from ..tir_gen.row_coding.searches import bring_rows_near
from .function_pass import NestPass, function_pass
from .nest_facts import NestFacts

LINE_BYTES = 64
"""Bytes of a cache line, which one prefetch loads."""

Around = tuple[tirx.For, ...]
"""The loops around a statement, outermost first."""


@function_pass
class CacheNear(NestPass):
    """Puts copies or prefetches into loops that have the directive `cache`, innermost first.

    On a GPU it only copies rows: nothing is prefetched, and `CacheTrees` copies trees. Rows that
    have been coded are not copied, since their codes are near already.
    """

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Put copies and prefetches at the beginning of the bodies of loops with `cache`."""
        rows = func.params[0]

        def cache(s: tirx.Stmt, around: Around) -> tirx.Stmt | None:
            how, of_trees = self.facts.of(s).cache, self.facts.of(s).kind == "tree"
            if not how:
                return None
            if how == "prefetch" or of_trees:
                if self.facts.on_gpu:  # threads hide loads; `CacheTrees` copies trees
                    return None
                body = self._with_prefetch(s, rows, around, whole=how == "stream")
                return ir.change_loop(s, body=body)
            if self.layout.row_code is not None:  # codes are near already
                return None
            return ir.change_loop(s, body=self._pack_rows(s, rows, around))

        return func.with_body(ir.rewrite_nest(func.body, cache, inside_first=True))

    def _pack_rows(self, loop: tirx.For, rows: Any, around: Around) -> tirx.Stmt:
        """Return the body of a loop, preceded by a copy of the rows that it reads."""
        first, here, most = self.facts.rows((*around, loop), rows.shape[0])
        assert most is not None, "the directive refuses row loops without bound"
        code = Builder()
        if self.facts.on_gpu:
            near = bring_rows_near(code, "near", rows, first, most)
        else:
            features = rows.shape[1]
            scope = "shared" if self.facts.of(loop).cache == "shared" else "global"
            near = code.buffer("near", (most, features), rows.dtype, scope)
            with code.nest("copy", [here, features.astype("int64")]) as (r, f):
                code.store(near, rows[first + r, f], [r, f])

        def pack(inside: tirx.Stmt) -> tirx.Stmt:
            reads = redirect_walks(inside, rows, lambda r: near[r - first, ir.i64(0)])
            return ir.join_statements([*code.statements, reads])

        return change_in_blocks(self.facts, loop.body, pack)

    def _with_prefetch(self, loop: tirx.For, rows: Any, around: Around, whole: bool) -> tirx.Stmt:
        """Return the body of a loop, preceded by a prefetch of the next iteration's data.

        A loop over trees prefetches the next tree: with `whole` all of it, if its layout can list
        the cache lines, else its first nodes. A loop over rows prefetches the next rows. The last
        iteration prefetches its own data.
        """
        var = loop.loop_var
        following = tirx.min(var + 1, loop.extent.astype(var.ty.dtype) - 1)
        code = Builder()
        if self.facts.of(loop).kind == "tree":
            self._prefetch_tree(code, loop.body, {var: following}, whole)
        else:
            self._prefetch_rows(code, rows, (*around, loop), {var: following})
        code.add(loop.body)
        return code.finish()

    def _prefetch_tree(
        self, code: Builder, body: tirx.Stmt, step: dict[Any, Any], whole: bool
    ) -> None:
        call = ops.find_walk(body)
        if call is None:
            return
        tree, buffers = ops.tree_of(call, self.layout)
        begins = {x.loop_var: tirx.const(0, x.loop_var.ty.dtype) for x in ir.find_loops(body)}
        access = self.layout.tree(buffers, ir.replace_vars(tree, begins | step), code.hold)
        lines = access.lines() if whole else []
        for count, load_of in lines:
            with code.repeat("line", ir.i64(count)) as line:
                code.add(_prefetch(_address(load_of(line))))
        for load in () if lines else access.heads():
            code.add(_prefetch(_address(load)))

    def _prefetch_rows(
        self, code: Builder, rows: Any, around: Around, step: dict[Any, Any]
    ) -> None:
        first, here, most = self.facts.rows(around, rows.shape[0])
        first = ir.replace_vars(first, step)
        here = ir.replace_vars(here, step) if most is not None else ir.i64(1)
        a_line = LINE_BYTES // tvm.DataType(rows.dtype).itemsize
        lines = tirx.floordiv(rows.shape[1].astype("int64") + (a_line - 1), ir.i64(a_line))
        with code.nest("line", [here, lines]) as (r, line):
            load = rows[first + r, line * a_line]
            code.add(_prefetch(tirx.address_of(load)))


def change_in_blocks(
    facts: NestFacts, body: tirx.Stmt, change: Callable[[tirx.Stmt], tirx.Stmt]
) -> tirx.Stmt:
    """Return `body` with `change` applied inside the loops over GPU blocks that it begins with."""
    if isinstance(body, tirx.For) and facts.level(body) == "grid":
        return ir.change_loop(body, body=change_in_blocks(facts, body.body, change))
    return change(body)


def walks_of(body: tirx.Stmt, rows: Any) -> list[tvm.ir.Call]:
    """Return the calls of walks, inside a statement, that read this buffer of rows."""
    calls = ops.find_calls(body, *ops.WALKS)
    return [call for call in calls if call.args[0].source.same_as(rows)]


def redirect_walks(body: tirx.Stmt, rows: Any, near: Callable[[Any], Any]) -> tirx.Stmt:
    """Return code whose walks read `near(r)`, a load from a copy, in place of row r of `rows`."""

    def redirect(call: tvm.ir.Call) -> tvm.ir.Call:
        if not (ops.is_call(call, *ops.WALKS) and call.args[0].source.same_as(rows)):
            return call
        row, *rest = call.args
        return tirx.call_intrin(call.ty, call.op, near(row.indices[0]), *rest)

    return tvm_ffi.structural_map(body, (tvm.ir.Call, redirect))


def _address(load: Any) -> Any:
    """Return the address of a load, which a layout may have wrapped in a cast."""
    while not hasattr(load, "source"):
        load = load.value if isinstance(load, tirx.Cast) else load.args[0]
    return tirx.address_of(load)


def _prefetch(address: Any) -> tirx.Stmt:
    """Return a prefetch for reading, into all levels of the data cache."""
    flags = [tirx.const(value, "int32") for value in (0, 3, 1)]
    return tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch.p0", address, *flags))
