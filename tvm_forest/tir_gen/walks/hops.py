"""Walks hop by hop, as loops or unrolled code, one walk at a time or several interleaved.

takes: leaf loops; gives: their code. A walk of one row, with the steps of the array layout:

    node = root
    for hop in range(hops):
        node = child(node, rows[r, feature[node]] < threshold[node])
    out[r] += leaf_value(node)

Interleaved walks advance stage by stage: first all loads, then all comparisons, then all steps.
They are the iterations of a loop with `interleave`, in groups of that size; the remainder goes in
smaller groups.

With leaf vectors, a leaf loop may contain loops over classes. These come after the walk, whose leaf
is the same for all classes:

    leaf = leaf_value(node)
    for c in range(7):
        out[r, c] += leaf_vectors[leaf, c]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from tvm import tirx

from ...layouts.protocol import Hold, TreeAccess
from ...schedule_prims.nest import Loop
from ...schedule_prims.walks import WalkForm
from ...system.values import dataclass
from .. import ops
from ..builder import Builder
from ..ir import at_iteration, change_loop, find_stores, guard, i64, mentions
from .node_test import Comparer
from .walker import Walker, is_one_walk, leaf_of

if TYPE_CHECKING:
    from .lanes import Lanes


FEWER = 4
"""A remainder of trees of at most 1 / 4 of the interleaved walks goes in a group of that size."""


@dataclass(frozen=True)
class HopWalker(Walker):
    """Walks rows one by one, or a few interleaved."""

    def lower(self, loop: tirx.For, fact: Loop, form: WalkForm) -> tirx.Stmt:
        """Lower a leaf loop, in groups if its walks are interleaved."""
        if fact.interleave > 1 and fact.kind == "tree" and not isinstance(loop.extent, tirx.IntImm):
            return self.lower_trees_in_groups(loop, fact.interleave, form)
        if fact.interleave > 1:
            return self.lower_groups(loop, fact.interleave, form)
        return change_loop(loop, body=self.lower_body(loop.body, form))

    def lower_body(self, body: tirx.Stmt, form: WalkForm) -> tirx.Stmt:
        """Lower one walk, with the conditions and statements around it."""
        if isinstance(body, tirx.IfThenElse):
            return tirx.IfThenElse(body.condition, self.lower_body(body.then_case, form), None)
        if isinstance(body, tirx.SeqStmt) and not is_one_walk(body):
            return tirx.SeqStmt([self.lower_body(part, form) for part in body.seq])
        if ops.find_walk(body) is None:
            return body
        code = Builder()
        self.emit_walks(code, [body], form)
        return code.finish()

    def lower_trees_in_groups(self, loop: tirx.For, width: int, form: WalkForm) -> tirx.Stmt:
        """Walk groups of `width` trees, for a number of trees known at run time, then the rest.

        The group of the rest is filled up with the last tree, whose extra results are not stored.
        It is a quarter as wide if that is enough.
        """
        code, extent = Builder(), loop.extent
        groups = tirx.floordiv(extent, i64(width))
        with code.repeat("group", groups) as group:
            each = [at_iteration(loop, group * width + lane) for lane in range(width)]
            self.emit_walks(code, each, form)
        first, few = groups * width, max(1, width // FEWER)
        of_sizes = [(few, first, first + few), (width, first + few, first + width)]
        for size, above, most in of_sizes if few < width - 1 else of_sizes[:1]:
            places = [first + lane for lane in range(size)]
            each = [at_iteration(loop, tirx.min(place, extent - 1)) for place in places]
            with code.block(lambda s, x=above, y=most: guard(s, [x < extent, extent <= y])):
                self.emit_walks(code, each, form, [place < extent for place in places])
        return code.finish()

    def lower_groups(self, loop: tirx.For, width: int, form: WalkForm) -> tirx.Stmt:
        """Walk groups of `width` iterations, then the rest.

        The rest is one group if its size is known, else groups of a half, a quarter, and so on.
        """
        extent = loop.extent.astype("int64")
        code, first = Builder(), loop.min
        known = isinstance(loop.extent, tirx.IntImm)
        widths = [width, int(loop.extent) % width] if known else _halves(width)
        # a GPU thread keeps its sums in registers, which only constant indices can address
        on_gpu = self.comparer.vectors is None
        in_registers = known and on_gpu and _stores_by(loop)
        for size in filter(None, widths):
            groups = tirx.floordiv(extent, i64(size))
            if not (known and int(loop.extent) < size):
                with code.repeat("group", groups, unrolled=in_registers) as group:
                    begin = first + group * size
                    each = [at_iteration(loop, begin + lane) for lane in range(size)]
                    self.emit_walks(code, each, form)
            first, extent = first + groups * size, extent - groups * size
        return code.finish()

    def emit_walks(
        self,
        code: Builder,
        bodies: Sequence[tirx.Stmt],
        form: WalkForm,
        inside: Sequence[Any] = (),
    ) -> None:
        """Emit interleaved walks, then their stores in order.

        Args:
            code: where statements go.
            bodies: for each walk, the body of the leaf loop.
            form: how hops are unrolled or peeled.
            inside: for each walk, the condition under which its result is stored; empty for always.
        """
        calls: list[Any] = [ops.find_walk(body) for body in bodies]
        trees = self.open_trees(code, calls)
        nodes = [code.hold("node", tree.root) for tree in trees]
        rows = [call.args[0] for call in calls]
        walks = WalkGroup(code, trees, nodes, rows, self.comparer)
        shared = all(tree is trees[0] for tree in trees)
        if form.kind == "unroll":
            for _ in range(form.hops):
                walks.hop(held=not form.even)
        elif form.kind == "peel":
            walks.emit_peeled(code, form)
        else:
            hops = trees[0].hops
            for tree in trees[1:] if not (shared or form.even) else ():
                hops = tirx.max(hops, tree.hops)
            with code.repeat("hop", hops):
                walks.hop(held=not (shared or form.even))
        ends = zip_longest(bodies, calls, trees, nodes, inside)
        for body, call, tree, node, condition in ends:
            with code.block(lambda s, c=condition: s if c is None else guard(s, [c])):
                leaf = leaf_of(tree, call, node)
                alone = isinstance(body, tirx.BufferStore)
                self.add_end(code, body, leaf if alone else code.hold("leaf", leaf))


@dataclass(frozen=True)
class WalkGroup:
    """A group of walks that advance together.

    Attributes:
        cells: declares variables; `Lanes` declares a buffer with an element for each lane.
        trees: tree access of each walk.
        nodes: variable with the current node of each walk.
        rows: load of each walk's row.
        comparer: emits the comparisons of rows with nodes.
    """

    cells: Builder | Lanes
    trees: list[TreeAccess]
    nodes: list[Any]
    rows: list[Any]
    comparer: Comparer

    def hop(self, held: bool) -> None:
        """Emit one hop of every walk, stage by stage.

        With `held`, walks that have reached their leaves stay there.
        """
        hold, comparer = self.cells.hold, self.comparer
        helds = [needs_holding(tree, held) for tree in self.trees]
        places = [
            resting_place(tree, node, hold) if held else node
            for tree, node, held in zip(self.trees, self.nodes, helds, strict=True)
        ]
        loaded = [
            comparer.load(tree, place, row, hold)
            for tree, place, row in zip(self.trees, places, self.rows, strict=True)
        ]
        outcomes = [
            hold("outcome", comparer.outcome(tree, test))
            for tree, test in zip(self.trees, loaded, strict=True)
        ]
        steps = zip(self.trees, self.nodes, places, outcomes, helds, strict=True)
        for tree, node, place, outcome, held in steps:
            child = tree.child(place, outcome)
            self.cells.put(node, tirx.Select(tree.is_leaf(node), node, child) if held else child)

    def any_inside(self) -> Any:
        """Return the condition that at least one walk has not reached its leaf."""
        ends = [tirx.Not(tree.is_leaf(x)) for tree, x in zip(self.trees, self.nodes, strict=True)]
        return tirx.any(*ends)

    def emit_peeled(self, code: Builder, form: WalkForm) -> None:
        """Emit the peeled hops, with or without leaf tests, then a loop until all walks end."""
        if form.check:
            self._emit_checked(code, form.hops)
            return
        for _ in range(form.hops):
            self.hop(held=False)
        self._emit_checked(code, 0)

    def _emit_checked(self, code: Builder, hops: int) -> None:
        """Emit `hops` hops, each under a leaf test, then a loop of hops until all walks end."""

        def wrap(body: tirx.Stmt) -> tirx.Stmt:
            inside = self.any_inside()
            return tirx.IfThenElse(inside, body, None) if hops else tirx.While(inside, body)

        with code.block(wrap):
            self.hop(held=len(self.nodes) > 1)
            if hops:
                self._emit_checked(code, hops - 1)


def resting_place(tree: TreeAccess, node: Any, hold: Hold) -> Any:
    """Return the node whose test a walk loads: `tree.rest` in place of a leaf, if there is one."""
    if tree.rest is None:
        return node
    return hold("place", tirx.Select(tree.is_leaf(node), tree.rest, node))


def needs_holding(tree: TreeAccess, uneven: bool) -> bool:
    """Return whether a hop could lead away from a leaf, so that walks must be held there.

    Args:
        tree: access to the tree.
        uneven: whether some walks of the group may end before others.
    """
    return not tree.stays and (uneven or not tree.padded)


def _stores_by(loop: tirx.For) -> bool:
    """Return whether the elements that a loop stores to depend on its variable."""
    places = [index for store in find_stores(loop.body) for index in store.indices]
    return mentions(places, {loop.loop_var})


def _halves(width: int) -> list[int]:
    """Return a width and its halves down to 1, such as 8, 4, 2, 1."""
    return [width >> k for k in range(width.bit_length())]
