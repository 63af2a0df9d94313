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

Where leaves hold vectors, a leaf loop may have loops over classes inside. These follow the walk,
whose end is the same for all classes:

    leaf = leaf_value(node)
    for c in range(7):
        out[r, c] += leaf_vectors[leaf, c]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from ..layouts.levels import ROWS, TREES
from ..layouts.representation import Representation, TreeAccess
from ..layouts.row_codes.planes import WORD
from ..schedule_prims.walks import WalkForm
from ..tir_gen import ops
from ..tir_gen.builder import Code, find_walk, i64, is_walk, tree_of
from ..tir_gen.walks.bits import BitWalk
from ..tir_gen.walks.lanes import Lanes, emit_hop, needs_holding, resting
from ..tir_gen.walks.node_test import Decide
from ..tir_gen.walks.permutes import PermuteWalk
from ..tir_gen.walks.vectors import Vectors
from .ir import mentions
from .write_nest import KIND, with_body

INTERLEAVE = "tvm_forest.interleave"
SIMDIZE = "tvm_forest.simdize"
OF_A_PART = 8
"""Rows that walk together where a tile is not full of lanes."""
FORM = "tvm_forest.walk"
ABREAST = 2
"""Groups of rows that a permuted walk takes side by side, to hide that each hop waits for the one
before it."""


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
        body = tvm_ffi.structural_map(func.body, (tirx.For, leaves.lower_trees))
        body = tvm_ffi.structural_map(body, (tirx.For, leaves.lower))
        return func.with_body(body if vectors is None else vectors.wrap(body))


@dataclass(frozen=True)
class _LeafLoops:
    """Lowers leaf loops, and keeps what their code needs beside it."""

    rep: Representation
    decide: Decide

    @property
    def on_gpu(self) -> bool:
        """Whether sums are registers, which are named by constants."""
        return self.decide.vectors is None

    def lower_trees(self, loop: tirx.For) -> tirx.Stmt:
        """Return a loop over trees with a permuted walk lowered, and any other loop as it is."""
        leaf = loop.body
        if not isinstance(leaf, tirx.For) or loop.kind != tirx.ForKind.SERIAL:
            return loop
        if loop.annotations.get(KIND) != "tree" or not _is_permuted(leaf):
            return loop
        code = Code()
        with code.repeat("four", tirx.ceildiv(loop.extent, i64(TREES))) as four:
            inside = [four * TREES + k < loop.extent for k in range(TREES)]
            each = [tirx.min(four * TREES + k, loop.extent - 1) for k in range(TREES)]
            leaves = [at_iteration(loop, loop.min + tree) for tree in each]
            self._permuted(code, leaves, inside)
        return code.finish()

    def lower(self, loop: tirx.For) -> tirx.Stmt:
        """Return a leaf loop in its form, and any other loop as it is."""
        if FORM not in loop.annotations:
            return loop
        form = WalkForm.parse(str(loop.annotations[FORM]))
        if _is_one_walk(loop.body) and loop.kind == tirx.ForKind.SERIAL:
            if str(loop.annotations.get(SIMDIZE, "")).startswith("bits"):
                return self._bits(loop)
            if _is_permuted(loop):
                code = Code()
                self._permuted(code, [loop], [tirx.const(True, "bool")])
                return code.finish()
            if SIMDIZE in loop.annotations:
                return self._vector(loop, form)
            if INTERLEAVE in loop.annotations:
                return self._interleaved(loop, form, int(loop.annotations[INTERLEAVE]))
        return with_body(loop, self._alone(loop.body, form))

    def _add_end(self, code: Code, body: tirx.Stmt, leaf: Any) -> None:
        """Emit what is done with the end of a walk; loops over classes become vectors."""
        if self.decide.vectors is not None and not isinstance(body, tirx.BufferStore):
            body = tvm_ffi.structural_map(body, (tirx.For, _in_lanes))
        code.add(replace_walk(body, leaf))

    def _alone(self, body: tirx.Stmt, form: WalkForm) -> tirx.Stmt:
        """Lower the walk behind what guards it and what was put before it."""
        if isinstance(body, tirx.IfThenElse):
            return tirx.IfThenElse(body.condition, self._alone(body.then_case, form), None)
        if isinstance(body, tirx.SeqStmt) and not _is_one_walk(body):
            return tirx.SeqStmt([self._alone(part, form) for part in body.seq])
        if find_walk(body) is None:
            return body
        code = Code()
        self._emit_walks(code, [body], form)
        return code.finish()

    def _interleaved(self, loop: tirx.For, form: WalkForm, width: int) -> tirx.Stmt:
        """Groups of `width` iterations, then what is left: in one group if its size is known."""
        extent = loop.extent.astype("int64")
        code, first = Code(), loop.min
        known = isinstance(loop.extent, tirx.IntImm)
        widths = [width, int(loop.extent) % width] if known else _halves(width)
        in_registers = known and self.on_gpu and _stores_by(loop)
        for size in filter(None, widths):
            groups = tirx.floordiv(extent, i64(size))
            if not (known and int(loop.extent) < size):
                with code.repeat("group", groups, unrolled=in_registers) as group:
                    begin = first + group * size
                    self._emit_walks(
                        code, [at_iteration(loop, begin + lane) for lane in range(size)], form
                    )
            first, extent = first + groups * size, extent - groups * size
        return code.finish()

    def _bits(self, loop: tirx.For) -> tirx.Stmt:
        """All rows through a tree at once, then their stores, 64 rows after the other."""
        count = int(str(loop.annotations[SIMDIZE]).split()[1])
        code = Code()
        call: Any = find_walk(at_iteration(loop, loop.min))
        accesses: list[Any] = self._accesses(code, [call])
        assert self.decide.vectors is not None, "checked by CodeRows"
        words, vectors = count // WORD, self.decide.vectors
        walk = BitWalk.begun(code, accesses[0], call.args[0], words, vectors)
        bits = walk.numbers()
        full = isinstance(loop.extent, tirx.IntImm) and loop.extent.value == count
        full = full and isinstance(loop.body, tirx.BufferStore)
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
                self._add_end(code, each, tirx.BufferLoad(leaves, [row]))
        return code.finish()

    def _permuted(self, code: Code, leaves: list[Any], inside: list[Any]) -> None:
        """Rows through up to 4 trees at once, 16 by 16, then the stores, tree by tree."""
        calls: list[Any] = [find_walk(leaf.body.value) for leaf in leaves]
        trees: list[Any] = self._accesses(code, calls)
        assert self.decide.vectors is not None, "checked by `lower`"
        right, vectors = "uge" if self.decide.comparison == "<" else "ugt", self.decide.vectors
        is_id = calls[0].op.name == ops.WALK_ID
        for width, begin, count in code.groups(tirx.ceildiv(leaves[0].extent, i64(ROWS)), ABREAST):
            with code.repeat("group", count) as group:
                firsts = [(begin + group * width + k) * ROWS for k in range(width)]
                stores = [at_iteration(leaves[0], leaves[0].min + first) for first in firsts]
                walks: list[Any] = [find_walk(store.value) for store in stores]
                codes = [walk.args[0] for walk in walks]
                walk = PermuteWalk(code, (trees * TREES)[:TREES], codes, right, vectors)
                for first, number in zip(firsts, walk.emit(), strict=True):
                    for k, leaf in enumerate(leaves):
                        with code.block(lambda body, k=k: tirx.IfThenElse(inside[k], body, None)):
                            values = walk.leaves(number, k, is_id)
                            self._store(code, leaf, first, values)

    def _store(self, code: Code, leaf: tirx.For, first: Any, values: Any) -> None:
        """The stores of 16 rows from `first` on, or of those that there are."""
        full = sym.Analyzer().can_prove(tirx.EQ(tirx.floormod(leaf.extent, i64(ROWS)), i64(0)))
        some = tirx.min(leaf.extent - first, i64(ROWS))
        with code.lanes("row", ROWS) if full else code.repeat("row", some) as row:
            each = at_iteration(leaf, leaf.min + first + row)
            value = replace_walk(each.value, tirx.BufferLoad(values, [row]))
            code.add(tirx.BufferStore(each.buffer, value, list(each.indices)))

    def _vector(self, loop: tirx.For, form: WalkForm) -> tirx.Stmt:
        """A full tile as one vector walk, another in groups of few rows."""
        count = int(str(loop.annotations[SIMDIZE]).split()[1])
        full = self._vector_walk(loop, count, form)
        if isinstance(loop.extent, tirx.IntImm) and loop.extent.value == count:
            return full
        groups = self._interleaved(loop, form, min(count, OF_A_PART))
        return tirx.IfThenElse(loop.extent >= count, full, groups)

    def _vector_walk(self, loop: tirx.For, count: int, form: WalkForm) -> tirx.Stmt:
        """Straight lines and loops alike; a peeled walk takes all hops of its tree at once."""
        code = Code()
        lanes = Lanes(code, count, tirx.Var("lane", "int64"))
        body = at_iteration(loop, loop.min + lanes.lane)
        call: Any = find_walk(body)
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
        if isinstance(body, tirx.BufferStore):
            lanes.store(body.buffer, replace_walk(body.value, leaf), list(body.indices))
            return code.finish()
        leaf = lanes.hold("leaf", leaf)
        with code.repeat("row", i64(count)) as row:
            each = at_iteration(loop, loop.min + row)
            self._add_end(code, each, tirx.BufferLoad(leaf.source, [row]))
        return code.finish()

    # -- scalar walks -----------------------------------------------------------------------------

    def _emit_walks(self, code: Code, bodies: Sequence[tirx.Stmt], form: WalkForm) -> None:
        """Emit walks that advance together, then their stores in order."""
        calls: list[Any] = [find_walk(body) for body in bodies]
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
        for body, call, access, node in zip(bodies, calls, accesses, walks.nodes, strict=True):
            leaf = access.leaf_id(node) if call.op.name == ops.WALK_ID else access.leaf_value(node)
            alone = isinstance(body, tirx.BufferStore)
            self._add_end(code, body, leaf if alone else code.hold("leaf", leaf))

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


def replace_walk(node: Any, value: Any) -> Any:
    """Return an expression or statement with its walk replaced by a value."""
    return tvm_ffi.structural_map(node, (tvm.ir.Call, lambda c: value if is_walk(c) else c))


def _is_one_walk(body: tirx.Stmt) -> bool:
    """Whether a body is a walk and its store, or those that loops over classes do with its end."""
    if isinstance(body, tirx.SeqStmt):
        return all(map(_is_one_walk, body.seq))
    if isinstance(body, tirx.For):
        return body.annotations.get(KIND) == "class"
    return isinstance(body, tirx.BufferStore)


def _stores_by(loop: tirx.For) -> bool:
    """Whether the iterations of a loop store to places of their own."""
    found: list[Any] = []
    look = (tirx.BufferStore, lambda store: found.extend(store.indices))
    tvm_ffi.structural_walk(loop.body, look)
    return mentions(found, {loop.loop_var})


def _is_permuted(loop: tirx.For) -> bool:
    how = str(loop.annotations.get(SIMDIZE, ""))
    return how.startswith("permute") and isinstance(loop.body, tirx.BufferStore)


def _halves(width: int) -> list[int]:
    """Return a width, half of it, half of that, down to 1: 8, 4, 2, 1."""
    return [width >> k for k in range(width.bit_length())]


MOST_LANES = 32
"""Classes of one vector; LLVM finds longer loops by itself, and unrolls shorter ones."""


def _in_lanes(loop: tirx.For) -> tirx.For:
    """Make a loop over classes a vector if these lie side by side in all that it touches."""
    var, count, store = loop.loop_var, loop.extent, loop.body
    small = isinstance(count, tirx.IntImm) and 1 < count.value <= MOST_LANES
    serial = loop.kind == tirx.ForKind.SERIAL and isinstance(store, tirx.BufferStore)
    if not (small and serial):
        return loop
    touched = [list(store.indices)]
    look = (tvm.ir.expr.TensorLoad, lambda load: touched.append(list(load.indices)))
    tvm_ffi.structural_walk(store.value, look)
    for *outer, last in touched:
        steps = [_step(index, var) for index in outer]
        if any(step != 0 for step in steps) or _step(last, var) not in (0, 1):
            return loop
    return tirx.For(var, loop.min, count, tirx.ForKind.VECTORIZED, store)


def _step(index: Any, var: tirx.Var) -> int | None:
    """How far an index moves from one iteration to the next; None if unevenly."""
    linear = sym.detect_linear_equation(index, [var])
    return int(linear[0]) if len(linear) == 2 and isinstance(linear[0], tirx.IntImm) else None


def at_iteration(loop: tirx.For, value: Any) -> tirx.Stmt:
    """Return the body of a loop for one value of its variable; loops inside get their own."""
    inner: list[Any] = []
    tvm_ffi.structural_walk(loop.body, (tirx.For, lambda x: inner.append(x.loop_var)))
    swaps = [(loop.loop_var, value), *((v, tirx.Var(v.name, v.ty)) for v in inner)]

    def swap(var: tirx.Var) -> Any:
        return next((new for old, new in swaps if old.same_as(var)), var)

    return tvm_ffi.structural_map(loop.body, (tirx.Var, swap))
