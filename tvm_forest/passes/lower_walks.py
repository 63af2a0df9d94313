"""Lowers walk operators: the walker for each leaf loop emits its code.

takes: IRModule with `tvm_forest.walk` in stores; gives: IRModule without it.

    for tree in range(100):                       for tree in range(100):
        for b1 in range(64):             -->          for b1 in range(64):
            margin[r + b1, c] += walk                     node = root
                                                          for hop in range(hops): ...
                                                          margin[r + b1, c] += leaf_value(node)

Walks outside of leaf loops come from functions that TVM's own primitives have scheduled. They are
lowered hop by hop, or in vector lanes if their loop is vectorised.

This pass finds the leaf loops; `tir_gen.walks` emits their code.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import tirx

from ..schedule_prims.walks import WalkForm
from ..system.values import dataclass, replace
from ..tir_gen.ir import change_loop, find_all, rewrite_loops, rewrite_nest
from ..tir_gen.ops import WALKS, find_calls, find_walk
from ..tir_gen.walks import WALKERS
from ..tir_gen.walks.hops import HopWalker
from ..tir_gen.walks.lanes import LaneWalker
from ..tir_gen.walks.node_test import Comparer
from ..tir_gen.walks.walker import is_one_walk
from .function_pass import NestPass, function_pass


@function_pass
@dataclass(frozen=True)
class LowerWalks(NestPass):
    """Replaces every walk operator of a function by the code of the walk.

    Attributes:
        facts: see `NestPass`.
        abilities: the CPU's features, by LLVM's names; None for a GPU's kernels.
    """

    abilities: frozenset[str] | None

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Lower leaf loops: first those lowered together with the loop over trees around them."""
        comparer = Comparer.on(self.facts.model.comparison, self.abilities)
        shared = self._find_shared(func.body)
        body = rewrite_loops(func.body, partial(self._lower_trees, comparer, shared))
        body = rewrite_loops(body, partial(self._lower, comparer, shared))
        if find_walk(body) is not None:
            body = rewrite_nest(body, partial(self._lower_other, comparer))
        return func.with_body(comparer.wrap(body))

    def _find_shared(self, body: tirx.Stmt) -> frozenset[Any]:
        """Return the buffers that walks in several iterations of a parallel loop read."""
        shared = set[Any]()
        for loop in find_all(body, tirx.For, self.facts.is_parallel):
            own = {alloc.buffer for alloc in find_all(loop, tirx.AllocBuffer)}
            loads = (x for call in find_calls(loop, *WALKS) for x in call.args)
            shared |= {x.source for x in loads if isinstance(x, tvm.ir.TensorLoad)} - own
        return frozenset(shared)

    def _lower_trees(self, comparer: Comparer, shared: frozenset[Any], loop: tirx.For) -> tirx.Stmt:
        """Lower a loop over trees if its leaf loop's walker can; return other loops unchanged."""
        leaf, fact = loop.body, self.facts.of(loop.body)
        of_trees = self.facts.of(loop).kind == "tree" and loop.kind == tirx.ForKind.SERIAL
        if not fact.name or not of_trees or not is_one_walk(leaf.body):
            return loop
        return WALKERS[fact.simdize](self.layout, comparer, shared).lower_trees(loop, fact) or loop

    def _lower(self, comparer: Comparer, shared: frozenset[Any], loop: tirx.For) -> tirx.Stmt:
        """Lower a leaf loop by its walker; return other loops unchanged."""
        fact, form = self.facts.of(loop), self.facts.form(loop)
        if form is None:
            return loop
        comparer = replace(comparer, by_team=form.by_team)
        if is_one_walk(loop.body) and loop.kind == tirx.ForKind.SERIAL:
            return WALKERS[fact.simdize](self.layout, comparer, shared).lower(loop, fact, form)
        return change_loop(loop, body=HopWalker(self.layout, comparer).lower_body(loop.body, form))

    def _lower_other(
        self, comparer: Comparer, s: tirx.Stmt, around: tuple[tirx.For, ...]
    ) -> tirx.Stmt | None:
        """Lower a walk that was scheduled by TVM's own primitives, not by a directive.

        Return None for a loop that is not lowered as a whole, to go on with its body.
        """
        if not isinstance(s, tirx.For):
            return HopWalker(self.layout, comparer).lower_body(s, WalkForm())
        if s.kind != tirx.ForKind.VECTORIZED or find_walk(s) is None:
            return None
        if isinstance(s.body, tirx.BufferStore):
            return LaneWalker(self.layout, comparer).lower_tile(s, int(s.extent), WalkForm())
        return self._lower_other(comparer, change_loop(s, kind=tirx.ForKind.SERIAL), around)
