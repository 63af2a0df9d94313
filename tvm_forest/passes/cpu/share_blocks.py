"""Shares the code of blocks of rows between a function with threads and its serial twin.

takes: IRModule; gives: IRModule.

    def predict_parallel(args):            def predict_parallel_0(b0, n, table, rows, margin):
        parallel b0 in range(n):               S
            S                       -->    def predict_parallel(args):
                                               parallel b0 in range(n): predict_parallel_0(b0, ...)
                                           def predict(args):
                                               for b0 in range(n): predict_parallel_0(b0, ...)

So LLVM compiles the code of a block once for both functions.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import GlobalVar

from ...tir_gen.internals.names import PACKED
from ...tir_gen.ir import change_loop, rewrite_loops
from ..function_pass import NestPass, expanding_pass
from .outline import SYMBOL, Functions, outline

TWIN = "tvm_forest.twin"
"""Attribute of a function with parallel loops: the name of its twin, which has no threads."""


def make_twin(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the serial twin of a function, under the name in the function's attribute `TWIN`."""
    return make_serial(func).with_attr(SYMBOL, str(func.attrs[TWIN])).without_attr(TWIN)


def make_serial(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the same function with serial loops in place of its parallel ones."""

    def serial(loop: tirx.For) -> tirx.For:
        return change_loop(loop, kind=tirx.ForKind.SERIAL) if _is_parallel(loop) else loop

    return func.with_body(rewrite_loops(func.body, serial))


def _is_parallel(loop: tirx.For) -> bool:
    return loop.kind == tirx.ForKind.PARALLEL


@expanding_pass
class AddTwins(NestPass):
    """Adds the serial twins of functions with parallel loops.

    If trees run in parallel, code outside of the parallel loops uses what these compute, so the two
    functions share no bodies of loops: the attribute that names the twin is removed.
    """

    def expand(self, var: GlobalVar, func: tirx.PrimFunc) -> Functions:
        """Return a function and its twin if the function has the attribute `TWIN`, else nothing."""
        if not _has_twin(func):
            return {}
        shared = not any(x.kind == "tree" and x.parallel for x in self.facts.nest.loops())
        twin = GlobalVar(str(func.attrs[TWIN]))
        return {var: func if shared else func.without_attr(TWIN), twin: make_twin(func)}


@tvm.transform.module_pass(opt_level=0, name="tvm_forest.DropTwins")
class DropTwins:
    """Removes twins, since `ShareBlocks` makes them again with shared code."""

    def transform_module(self, mod: tvm.IRModule, ctx: Any) -> tvm.IRModule:
        """Return the module without twins."""
        twins = {str(func.attrs[TWIN]) for func in mod.functions.values() if _has_twin(func)}
        kept = {var: func for var, func in mod.functions.items() if var.name_hint not in twins}
        return tvm.IRModule(kept)


@expanding_pass
class ShareBlocks:
    """Moves the bodies of parallel loops into functions, and adds serial twins that call these."""

    def expand(self, var: GlobalVar, func: tirx.PrimFunc) -> Functions:
        """Return the function, its twin, and the functions of blocks, which both of them call."""
        if not _has_twin(func):
            return {}
        blocks: Functions = {}

        def move(loop: tirx.For) -> tirx.For:
            if not _is_parallel(loop):
                return loop
            block = GlobalVar(f"{var.name_hint}_{len(blocks)}")
            blocks[block], call = outline(block, loop.body, func.attrs["target"])
            return change_loop(loop, body=call)

        twin, func = str(func.attrs[TWIN]), func.with_body(rewrite_loops(func.body, move))
        alone = make_twin(func).with_attr(SYMBOL, PACKED + twin)
        return {var: func, GlobalVar(twin): alone, **blocks}


def _has_twin(func: Any) -> bool:
    return TWIN in (func.attrs or {})
