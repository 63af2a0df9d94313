"""Code rows before they are walked, for layouts that ask for it.

takes: IRModule without blocks; gives: IRModule whose walks read codes.

    for b0 in range(n / 64):              for b0 in range(n / 64):
        for tree in range(100):               codes[0:64, :] = code(rows[b0 * 64 : ..., features])
            for b1 in range(64):     -->      for tree in range(100):
                S(rows[b0 * 64 + b1])             for b1 in range(64):
                                                      S(codes[b1])

Rows are coded in the outermost loop over rows that has no other kind of loop around it and reaches
a number of rows that is known, or in one further inside that is marked `cache pack`. So a row is
coded once, whatever the number of trees. Where a nest has no such loop, because a loop over trees
comes first, all rows of the call are coded ahead of it.

On a GPU the threads of a block share this work, a code each. The codes lie in shared memory where
`cache` asks for it, or where they take at most half of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..layouts.representation import Representation
from ..schedule import Schedule
from ..schedule_prims.devices import MOST_SHARED
from ..tir_gen.builder import Code, i64, tree_of
from ..tir_gen.row_coding.coders import RowCoder, coder_of
from ..tir_gen.walks.node_test import Decide
from ..tir_gen.walks.vectors import Vectors
from .cache_near import CACHE, in_blocks, on_gpu, reach, redirect_walks, walks_of
from .cpu.fuse_parallel import is_parallel
from .lower_walks import FORM
from .write_nest import KIND, with_body


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_forest.CodeRows")
@dataclass(frozen=True)
class CodeRows:
    """Code the rows of all walks of a function.

    Attributes:
        rep: layout, asked for its row code.
        comparison: "<" or "<=".
        abilities: what the CPU can do, in LLVM's words; None for another compiler.
        sch: the schedule, asked for the rows that loops can reach.
    """

    rep: Representation
    comparison: str
    abilities: frozenset[str] | None
    sch: Schedule

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Code rows where loops allow it, and ahead of everything for the walks that are left."""
        if self.rep.row_code is None:
            return func
        rows = func.params[0]
        vectors = None if self.abilities is None else Vectors(self.abilities)
        coder = coder_of(self.rep.row_code, rows, Decide(self.comparison, vectors))
        places = _Places(self.rep, self.sch, rows, coder)
        body = places.visit(func.body, ())
        body = places.coded(body, i64(0), rows.shape[0], rows.shape[0], "global")
        return func.with_body(body if vectors is None else vectors.wrap(body))


@dataclass(frozen=True)
class _Places:
    """Where rows are coded; `rows` is their buffer, `coder` writes what takes their place."""

    rep: Representation
    sch: Schedule
    rows: Any
    coder: RowCoder

    def visit(self, statement: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt:
        """Descend through loops over rows, for in others a row would be coded again and again."""
        if isinstance(statement, tirx.SeqStmt):
            return tirx.SeqStmt([self.visit(part, around) for part in statement.seq])
        if isinstance(statement, tirx.IfThenElse):
            inside = self.visit(statement.then_case, around)
            return tirx.IfThenElse(statement.condition, inside, None)
        if not _is_over_rows(statement):
            return statement
        around = (*around, statement)
        first, here, most = reach(self.sch, around, self.rows)
        if most is None or not _may_hold_codes(statement) or _is_marked_inside(statement.body):
            return with_body(statement, self.visit(statement.body, around))
        how = str(statement.annotations.get(CACHE, "prefetch"))
        fits = on_gpu(self.sch) and self.coder.row_bytes * most <= MOST_SHARED // 2
        shared = how == "shared" or fits or (how != "prefetch" and on_gpu(self.sch))
        scope, size = "shared" if shared else "global", i64(most)
        return with_body(
            statement,
            in_blocks(statement.body, lambda body: self.coded(body, first, here, size, scope)),
        )

    def coded(self, body: tirx.Stmt, first: Any, here: Any, most: Any, scope: str) -> tirx.Stmt:
        """Code `here` rows from `first` on and let the walks of `body` read codes."""
        if not walks_of(body, self.rows):
            return body
        near = self.coder.near(most, scope)
        moved, calls = redirect_walks(
            body, self.rows, lambda row: tirx.BufferLoad(near, self.coder.place(row - first))
        )
        code = Code()
        code.add(tirx.AllocBuffer(near))
        self.coder.emit(code, tree_of(calls[0], self.rep)[1], near, first, here)
        code.add(moved)
        return code.finish()


def _is_over_rows(statement: tirx.Stmt) -> bool:
    return isinstance(statement, tirx.For) and statement.annotations.get(KIND) == "batch"


def _may_hold_codes(loop: tirx.For) -> bool:
    """Leaf loops must hold a walk only, and parallel loops that are to be fused each other."""
    inner: list[Any] = []
    tvm_ffi.structural_walk(loop.body, (tirx.For, inner.append))
    fused = is_parallel(loop) and any(is_parallel(x) for x in inner)
    return FORM not in loop.annotations and not fused


def _is_marked_inside(statement: tirx.Stmt) -> bool:
    """Whether loops over rows alone lead to one that is marked to keep its rows near."""
    if isinstance(statement, tirx.SeqStmt):
        return any(_is_marked_inside(part) for part in statement.seq)
    if isinstance(statement, tirx.IfThenElse):
        return _is_marked_inside(statement.then_case)
    if not _is_over_rows(statement):
        return False
    return statement.annotations.get(CACHE, "prefetch") != "prefetch" or _is_marked_inside(
        statement.body
    )
