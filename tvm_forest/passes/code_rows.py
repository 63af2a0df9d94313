"""Inserts the coding of rows before they are walked, for layouts with a row code.

takes: IRModule without blocks; gives: IRModule whose walks read codes instead of rows.

    for b0 in range(n / 64):              for b0 in range(n / 64):
        for tree in range(100):               codes[0:64, :] = code(rows[b0 * 64 : ..., features])
            for b1 in range(64):     -->      for tree in range(100):
                S(rows[b0 * 64 + b1])             for b1 in range(64):
                                                      S(codes[b1])

Rows are coded in the outermost loop over rows that is inside loops over rows only and covers a
known number of rows, or in one further inside with the directive `cache`. So each row is coded
once, however many trees there are. If a nest has no such loop, because a loop over trees comes
first or is fused with the one over rows, all rows of the call are coded before the nest. If walks
take rows in groups, which are counted from the first row of a block, every iteration of a fused
loop codes its rows.

On a GPU, the threads of a block share this work, one code each. The codes are in shared memory if
`cache` requests it, or if they take at most half of the shared memory of a block.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ..schedule_prims.devices import MAX_SHARED_BYTES
from ..schedule_prims.nest import Loop
from ..system.values import dataclass
from ..tir_gen import ops
from ..tir_gen.builder import Builder
from ..tir_gen.ir import change_loop, find_loops, i64, rewrite_nest
from ..tir_gen.row_coding.coders import coder_of
from ..tir_gen.row_coding.searches import RowCoder
from ..tir_gen.walks.node_test import Comparer
from .cache_near import Around, change_in_blocks, redirect_walks, walks_of
from .function_pass import NestPass, function_pass
from .nest_facts import NestFacts


@function_pass
@dataclass(frozen=True)
class CodeRows(NestPass):
    """Puts the coding of rows before the walks of a function, which then read the codes.

    A function whose layout has no row code is returned unchanged.

    Attributes:
        facts: see `NestPass`.
        abilities: the CPU's features, by LLVM's names; None for a GPU's kernels.
    """

    abilities: frozenset[str] | None

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Code rows inside loops where possible; before all loops for the remaining walks."""
        if self.layout.row_code is None:
            return func
        rows, comparer = func.params[0], Comparer.on(self.facts.model.comparison, self.abilities)
        places = _RowCoding(self.facts, rows, coder_of(self.layout.row_code, rows, comparer))
        body = rewrite_nest(func.body, places.code_in_loop)
        body = places.with_codes(body, i64(0), rows.shape[0], rows.shape[0], "global")
        return func.with_body(comparer.wrap(body))


@dataclass(frozen=True)
class _RowCoding:
    """Inserts the coding of rows.

    Attributes:
        facts: facts about the loops.
        rows: buffer of the rows.
        coder: emits the statements that code rows.
    """

    facts: NestFacts
    rows: Any
    coder: RowCoder

    def code_in_loop(self, s: tirx.Stmt, around: Around) -> tirx.Stmt | None:
        """Return a loop over rows with the coding of rows put into it; None to try loops inside it.

        A loop for which `_ends_fused` holds is treated alike. Other statements are returned as they
        are, without a look inside, where rows would be coded again in every iteration.
        """
        facts = self.facts
        is_place = facts.of(s).kind == "batch" or self._ends_fused(s, around)
        if not isinstance(s, tirx.For) or not is_place:
            return s
        first, here, most = facts.rows((*around, s), self.rows.shape[0])
        if most is None or not self._may_hold_codes(s) or _is_packed_inside(facts.of(s)):
            return None
        how = facts.of(s).cache or "prefetch"
        fits = self.coder.row_bytes * most <= MAX_SHARED_BYTES // 2
        shared = how == "shared" or (facts.on_gpu and (fits or how != "prefetch"))
        scope, size = "shared" if shared else "global", i64(most)
        body = change_in_blocks(
            facts, s.body, lambda body: self.with_codes(body, first, here, size, scope)
        )
        return change_loop(s, body=body)

    def with_codes(
        self, body: tirx.Stmt, first: Any, here: Any, most: Any, scope: str
    ) -> tirx.Stmt:
        """Return `body` with its walks reading codes, after the coding of `here` rows from `first`.

        Args:
            body: code with walks.
            first: index of the first row that is coded.
            here: number of rows that are coded.
            most: the largest value of `here`, for which the buffer of codes has room.
            scope: memory scope of the codes.
        """
        calls = walks_of(body, self.rows)
        if not calls:
            return body
        near, code = self.coder.declare(most, scope), Builder()
        code.add(tirx.AllocBuffer(near))
        _, buffers = ops.tree_of(calls[0], self.facts.model.layout)
        self.coder.emit(code, buffers, near, first, here)
        code.add(redirect_walks(body, self.rows, lambda row: near[self.coder.place(row - first)]))
        return code.finish()

    def _may_hold_codes(self, loop: tirx.For) -> bool:
        """Return whether rows may be coded inside a loop.

        They may not in a leaf loop, nor in a parallel loop that is fused with one inside.
        """
        parallel = self.facts.is_parallel
        fused = parallel(loop) and any(map(parallel, find_loops(loop.body)))
        return self.facts.form(loop) is None and not fused

    def _ends_fused(self, s: tirx.Stmt, around: Around) -> bool:
        """Return whether a loop is fused with the one around it, and walks take rows in groups.

        Then each iteration of the fused loop codes the rows that it needs, though others may too.
        """
        fused = all(map(self.facts.is_parallel, (s, *around[-1:])))
        return bool(around) and fused and self.coder.in_blocks


def _is_packed_inside(loop: Loop) -> bool:
    """Return whether a loop inside copies rows: its `cache` is set, and is not "prefetch".

    Only loops over rows count, and none of them inside a loop over classes or trees.
    """
    inside = [x for x in loop.children if x.kind == "batch"]
    return any(x.cache not in (None, "prefetch") or _is_packed_inside(x) for x in inside)
