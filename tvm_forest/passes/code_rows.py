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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..schedule import Schedule
from ..tir_gen.ranks import WIDTH, Columns, RankCode, step_offset
from ..tir_gen.representation import Representation
from .cache_near import CACHE, reach, redirect_walks
from .code import Code, i64, tree_of
from .decide import Decide
from .fuse_parallel import is_parallel
from .lower_walks import FORM
from .vectors import Vectors
from .write_nest import KIND, with_body

TOGETHER = 8
"""Rows that are coded side by side: their searches overlap and share the first cuts."""


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
        decide = Decide(self.comparison, vectors)
        coder = _Coder(self.rep, self.rep.row_code, self.sch, rows, decide)
        body = coder.visit(func.body, ())
        body = coder.coded(body, i64(0), rows.shape[0], rows.shape[0], "global")
        return func.with_body(body if vectors is None else vectors.wrap(body))


@dataclass(frozen=True)
class _Coder:
    """See CodeRows; `rows` is the buffer of the rows, `decide` compares them with cuts."""

    rep: Representation
    row_code: RankCode
    sch: Schedule
    rows: Any
    decide: Decide

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
        scope = "shared" if statement.annotations.get(CACHE) == "shared" else "global"
        return with_body(statement, self.coded(statement.body, first, here, i64(most), scope))

    def coded(self, body: tirx.Stmt, first: Any, here: Any, most: Any, scope: str) -> tirx.Stmt:
        """Code `here` rows from `first` on and let the walks of `body` read codes."""
        shape = (most, i64(self.row_code.columns))
        near = tirx.decl_buffer(shape, self.row_code.dtype, "codes", scope=scope)
        moved, calls = redirect_walks(body, self.rows, near, first)
        if not calls:
            return body
        _, buffers = tree_of(calls[0], self.rep)
        code = Code()
        code.add(tirx.AllocBuffer(near))
        for width, begin, count in code.groups(here, TOGETHER):
            with code.repeat("group", count) as group:
                start = 0
                for columns in self.row_code.groups:
                    with code.repeat("column", i64(columns.stop - start)) as place:
                        rows = [begin + group * width + r for r in range(width)]
                        self._emit(code, buffers, columns, start + place, (near, first, rows))
                    start = columns.stop
        code.add(moved)
        return code.finish()

    def _emit(
        self, code: Code, buffers: dict[str, Any], columns: Columns, column: Any, to: Any
    ) -> None:
        """Code one column of some rows, step by step together."""
        near, first, rows = to
        cuts = buffers["cuts"]
        at = code.hold("at", tirx.BufferLoad(buffers["column_cuts"], [column]))
        feature = code.hold("feature", tirx.BufferLoad(buffers["column_feature"], [column]))
        feature = feature.astype("int64")
        xs = [
            code.hold("x", tirx.BufferLoad(self.rows, [first + r, feature]).astype(cuts.dtype))
            for r in rows
        ]
        ranks: list[Any] = [i64(0)] * len(rows)
        for step in range(columns.steps):
            base = at + step_offset(step)
            for i, (x, rank) in enumerate(zip(xs, ranks, strict=True)):
                rank = rank * WIDTH
                ranks[i] = code.hold("rank", rank + self._reached(cuts, base + rank, x))
        dtype = self.row_code.dtype
        for r, x, rank in zip(rows, xs, ranks, strict=True):
            value = rank.astype(dtype)
            if not columns.missing_left:
                value = tirx.Select(tirx.isnan(x), tirx.max_value(dtype), value)
            code.add(tirx.BufferStore(near, value, [r, column]))

    def _reached(self, cuts: Any, at: Any, x: Any) -> Any:
        """How many of the cuts from `at` on x does not lie to the left of."""
        less = self.decide.comparison == "<"
        vectors = self.decide.vectors
        if vectors is not None:
            some = tirx.BufferLoad(cuts, [tirx.Ramp(at, i64(1), WIDTH)])
            bits = vectors.bits("ole" if less else "olt", some, tirx.Broadcast(x, WIDTH))
            return tirx.popcount(bits).astype("int64")
        each = [tirx.BufferLoad(cuts, [at + place]) for place in range(WIDTH)]
        return sum(((cut <= x if less else cut < x).astype("int64") for cut in each), i64(0))


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
