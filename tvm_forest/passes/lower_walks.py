"""Turn walk operators into code: in loops or straight lines, alone or several at a time.

takes: IRModule with `tvm_forest.walk` in stores; gives: IRModule without.

A walk of one row, with the steps of the array layout:

    node = root
    for hop in range(hops):
        node = child(node, rows[r, feature[node]] < threshold[node])
    out[r] += leaf_value(node)

The annotation `tvm_forest.walk` of a leaf loop says how it is done (see WalkForm). Walks that
advance together do so stage by stage: all loads first, then all comparisons, then all steps. They
come from a loop annotated `tvm_forest.interleave`, which becomes groups of that many iterations and
smaller ones of those that are left; with `tvm_forest.simdize` walks of a group are vector lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..schedule_prims.walks import WalkForm
from ..tir_gen import ops
from ..tir_gen.planes import WORD
from ..tir_gen.representation import Representation, TreeAccess
from .bit_walk import BitWalk
from .code import Code, find_walk, i64, is_walk, tree_of
from .decide import Decide
from .vector_walk import Lanes, emit_hop, needs_holding, resting
from .vectors import Vectors

INTERLEAVE = "tvm_forest.interleave"
SIMDIZE = "tvm_forest.simdize"
FORM = "tvm_forest.walk"


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_forest.LowerWalks")
@dataclass(frozen=True)
class LowerWalks:
    """Lower every walk of a function.

    Attributes:
        rep: layout that emits loads and steps.
        comparison: "<" or "<=".
        abilities: what the CPU can do, in LLVM's words; None for another compiler.
    """

    rep: Representation
    comparison: str
    abilities: frozenset[str] | None

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Lower the leaf loops, each in its form."""
        vectors = None if self.abilities is None else Vectors(self.abilities)
        leaves = _LeafLoops(self.rep, Decide(self.comparison, vectors))
        body = tvm_ffi.structural_map(func.body, (tirx.For, leaves.lower))
        return func.with_body(body if vectors is None else vectors.wrap(body))


@dataclass(frozen=True)
class _LeafLoops:
    """Lowers leaf loops, and keeps what their code needs beside it."""

    rep: Representation
    decide: Decide

    def lower(self, loop: tirx.For) -> tirx.Stmt:
        """Return a leaf loop in its form, and any other loop as it is."""
        if FORM not in loop.annotations:
            return loop
        form = WalkForm.parse(str(loop.annotations[FORM]))
        if isinstance(loop.body, tirx.BufferStore) and loop.kind == tirx.ForKind.SERIAL:
            if str(loop.annotations.get(SIMDIZE, "")).startswith("bits"):
                return self._bits(loop)
            if SIMDIZE in loop.annotations:
                return self._vector(loop, form)
            if INTERLEAVE in loop.annotations:
                return self._interleaved(loop, form, int(loop.annotations[INTERLEAVE]))
        return tvm_ffi.structural_map(loop, (tirx.BufferStore, lambda s: self._alone(s, form)))

    def _alone(self, store: tirx.BufferStore, form: WalkForm) -> tirx.Stmt:
        if find_walk(store.value) is None:
            return store
        code = Code()
        self._emit_walks(code, [store], form)
        return code.finish()

    def _interleaved(self, loop: tirx.For, form: WalkForm, width: int) -> tirx.Stmt:
        """Groups of `width` iterations, then what is left: in one group if its size is known."""
        extent = loop.extent.astype("int64")
        code, first = Code(), loop.min
        known = isinstance(loop.extent, tirx.IntImm)
        widths = [width, int(loop.extent) % width] if known else _halves(width)
        for size in filter(None, widths):
            groups = tirx.floordiv(extent, i64(size))
            if not (known and int(loop.extent) < size):
                with code.repeat("group", groups) as group:
                    begin = first + group * size
                    self._emit_walks(
                        code, [at_iteration(loop, begin + lane) for lane in range(size)], form
                    )
            first, extent = first + groups * size, extent - groups * size
        return code.finish()

    def _bits(self, loop: tirx.For) -> tirx.Stmt:
        """All rows through a tree at once, then their stores, 64 rows after the other."""
        count = int(str(loop.annotations[SIMDIZE]).split()[1])
        store, code = at_iteration(loop, loop.min), Code()
        call: Any = find_walk(store.value)
        accesses: list[Any] = self._accesses(code, [call])
        assert self.decide.vectors is not None, "checked by CodeRows"
        words, vectors = count // WORD, self.decide.vectors
        walk = BitWalk.begun(code, accesses[0], call.args[0], words, vectors)
        bits = walk.numbers()
        full = isinstance(loop.extent, tirx.IntImm) and loop.extent.value == count
        with code.repeat("word", tirx.ceildiv(loop.extent, i64(WORD))) as word:
            leaves = walk.leaves(bits, word, call.op.name == ops.WALK_ID)
            begin = word * WORD
            rows = (
                code.lanes("row", WORD)
                if full
                else code.repeat("row", tirx.min(loop.extent - begin, i64(WORD)))
            )
            with rows as row:
                each = at_iteration(loop, loop.min + begin + row)
                value = replace_walk(each.value, tirx.BufferLoad(leaves, [row]))
                code.add(tirx.BufferStore(each.buffer, value, list(each.indices)))
        return code.finish()

    def _vector(self, loop: tirx.For, form: WalkForm) -> tirx.Stmt:
        """A full tile as one vector walk, another row by row."""
        count = int(str(loop.annotations[SIMDIZE]).split()[1])
        rows = Code()
        with rows.repeat("row", loop.extent) as row:
            self._emit_walks(rows, [at_iteration(loop, loop.min + row)], form)
        full = self._vector_walk(loop, count, form)
        if isinstance(loop.extent, tirx.IntImm):
            return full if loop.extent.value == count else rows.finish()
        return tirx.IfThenElse(loop.extent >= count, full, rows.finish())

    def _vector_walk(self, loop: tirx.For, count: int, form: WalkForm) -> tirx.Stmt:
        """Straight lines and loops alike; a peeled walk takes all hops of its tree at once."""
        code = Code()
        lanes = Lanes(code, count, tirx.Var("lane", "int64"))
        store = at_iteration(loop, loop.min + lanes.lane)
        call: Any = find_walk(store.value)
        (access,) = self._accesses(code, [call])
        node = lanes.hold("node", access.root)
        decide = replace(self.decide, vectors=None)  # the lanes are rows
        if form.kind == "unroll":
            for _ in range(form.hops):
                emit_hop(lanes, access, node, call.args[0], decide, held=not form.even)
        else:
            with code.repeat("hop", access.hops):
                emit_hop(lanes, access, node, call.args[0], decide, held=False)
        leaf = access.leaf_id(node) if call.op.name == ops.WALK_ID else access.leaf_value(node)
        lanes.store(store.buffer, replace_walk(store.value, leaf), list(store.indices))
        return code.finish()

    # -- scalar walks -----------------------------------------------------------------------------

    def _emit_walks(self, code: Code, stores: Sequence[tirx.BufferStore], form: WalkForm) -> None:
        """Emit walks that advance together, then their stores in order."""
        calls: list[Any] = [find_walk(store.value) for store in stores]
        accesses = self._accesses(code, calls)
        walks = _Walks(
            code,
            accesses,
            [code.hold("node", access.root) for access in accesses],
            [call.args[0] for call in calls],
            self.decide,
        )
        shared = all(access is accesses[0] for access in accesses)
        if form.kind == "unroll":
            for _ in range(form.hops):
                walks.hop(held=not form.even)
        elif form.kind == "peel":
            _emit_peeled(walks, form)
        else:
            hops = accesses[0].hops
            for access in accesses[1:] if not (shared or form.even) else ():
                hops = tirx.max(hops, access.hops)
            with code.repeat("hop", hops):
                walks.hop(held=not (shared or form.even))
        for store, call, access, node in zip(stores, calls, accesses, walks.nodes, strict=True):
            leaf = access.leaf_id(node) if call.op.name == ops.WALK_ID else access.leaf_value(node)
            value = replace_walk(store.value, leaf)
            code.add(tirx.BufferStore(store.buffer, value, list(store.indices)))

    def _accesses(self, code: Code, calls: Sequence[Any]) -> list[TreeAccess]:
        """Open the tree of every walk; walks through one tree share it."""
        opened: list[tuple[Any, TreeAccess]] = []
        for call in calls:
            tree, buffers = tree_of(call, self.rep)
            known = next((a for t, a in opened if tvm_ffi.structural_equal(t, tree)), None)
            opened.append((tree, known or self.rep.tree(buffers, tree, code.hold)))
        return [access for _, access in opened]


@dataclass(frozen=True)
class _Walks:
    """Walks under way.

    Attributes:
        code: where statements go.
        accesses: the tree of each.
        nodes: the cell with the node that each has reached.
        rows: a load of each one's row.
        decide: how rows are compared with nodes.
    """

    code: Code
    accesses: list[TreeAccess]
    nodes: list[Any]
    rows: list[Any]
    decide: Decide

    def hop(self, held: bool) -> None:
        """One hop of every walk, stage by stage; `held` walks stay at their leaves."""
        hold, decide = self.code.hold, self.decide
        helds = [needs_holding(access, held) for access in self.accesses]
        places = [
            resting(access, node, hold) if held else node
            for access, node, held in zip(self.accesses, self.nodes, helds, strict=True)
        ]
        seen = [
            decide.look(access, place, row, hold)
            for access, place, row in zip(self.accesses, places, self.rows, strict=True)
        ]
        outcomes = [
            hold("outcome", decide.outcome(access, seen))
            for access, seen in zip(self.accesses, seen, strict=True)
        ]
        steps = zip(self.accesses, self.nodes, places, outcomes, helds, strict=True)
        for access, node, place, outcome, held in steps:
            child = access.child(place, outcome)
            self.code.put(node, tirx.Select(access.is_leaf(node), node, child) if held else child)

    def any_inside(self) -> Any:
        """Return whether some walk has not reached its leaf."""
        ends = [tirx.Not(a.is_leaf(n)) for a, n in zip(self.accesses, self.nodes, strict=True)]
        return tirx.any(*ends)


def _emit_peeled(walks: _Walks, form: WalkForm) -> None:
    """Some hops, with leaf tests or without, then hops while any walk is inside its tree."""
    held = len(walks.nodes) > 1
    code = walks.code
    if not form.check:
        for _ in range(form.hops):
            walks.hop(held=False)
        with code.block(lambda body: tirx.While(walks.any_inside(), body)):
            walks.hop(held)
        return
    _emit_checked(walks, form.hops, held)


def _emit_checked(walks: _Walks, hops: int, held: bool) -> None:
    if hops == 0:
        with walks.code.block(lambda body: tirx.While(walks.any_inside(), body)):
            walks.hop(held)
        return
    with walks.code.block(lambda body: tirx.IfThenElse(walks.any_inside(), body, None)):
        walks.hop(held)
        _emit_checked(walks, hops - 1, held)


def replace_walk(expr: Any, value: Any) -> Any:
    """Return an expression with its walk replaced by a value."""
    return tvm_ffi.structural_map(expr, (tvm.ir.Call, lambda c: value if is_walk(c) else c))


def _halves(width: int) -> list[int]:
    """Return a width, half of it, half of that, down to 1: 8, 4, 2, 1."""
    return [width >> k for k in range(width.bit_length())]


def at_iteration(loop: tirx.For, value: Any) -> tirx.BufferStore:
    """Return the body of a loop for one value of its variable."""
    var = loop.loop_var
    swap = (tirx.Var, lambda v: value if v.same_as(var) else v)
    return tvm_ffi.structural_map(loop.body, swap)
