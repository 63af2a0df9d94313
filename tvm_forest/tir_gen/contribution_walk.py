"""Emits the walk of a block of rows through all trees, for SHAP values and their interactions.

takes: ContributionTables, buffers; gives: a TIR statement.

    for the rows of a block, side by side in the lanes of vectors
        for each group of results: an output, or an output and a fixed feature
            for each terminal (a node whose children are two leaves)
                on the way down to it               compute P, and the row's answers at each node
                at it, and on the way up            compute S, and add to the sums of features

A walk keeps a stack with an entry for each slot of a path; `forest/contributions` has the formulas,
with P and S. A lane does the same operations in the same order as a block of one lane would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx

from ..forest.contributions import BITS, NODE_NUMBERS, NODE_REALS, ContributionTables
from ..layouts.protocol import NodeTest
from .builder import Builder
from .internals.names import FMA
from .ir import guard, i64, lanes, spread
from .walks.node_test import Comparer

Below = Callable[[int, Any], Any]
"""Function that returns the sum S of one child, given its side and the integration point."""

REAL = "float64"

MAX_UNROLLED = 8
"""Loops over at most this many integration points are unrolled."""

VECTORS = 2
"""Number of vectors of rows that go through a tree, one after the other, before the next tree."""


class ContributionWalk:
    """Emits the code that walks one block of rows through all trees."""

    def __init__(
        self,
        tables: ContributionTables,
        model: dict[str, Any],
        interactions: bool,
        width: int,
        fused: bool,
    ) -> None:
        self.tables, self.model, self.interactions = tables, model, interactions
        self.width, self.fused, self.n_points = width, fused, tables.n_points
        self.comparer = Comparer.on(tables.forest.comparison, None)
        self.code = Builder()

    def emit(self, rows: Any, result: Any, first_row: Any) -> tirx.Stmt:
        """Return code that stores the contributions of the block from `first_row` in `result`."""
        self._declare_stacks()
        code, features = self.code, i64(len(self.tables.players) + 1)
        groups = i64(int(result.shape[1]))
        self.rows, self.result, self.first_row = rows, result, first_row
        count = i64(1)
        if self.width > 1:
            self.sums = code.buffer("sums", (features * self.width * VECTORS,), REAL)
            count = self._turn_rows(rows, first_row)
        self._start()
        with code.repeat("group", groups) as self.group:
            with code.nest("feature", [count, features]) as (self.vector, feature):
                self._put_sum(feature, self._real(0.0))
            self._emit_tasks(groups, count)
            if self.width > 1:
                self._write(features)
        return code.finish()

    # -- memory -----------------------------------------------------------------------------------

    def _declare_stacks(self) -> None:
        code, slots, n = self.code, self.tables.n_slots + 1, self.n_points
        sizes = {"P": n, "S": 2 * n, "H": 1, "reached": 1, "left": 1, "s": 1}
        self.memory = {
            name: code.buffer(name, (i64(slots * size * self.width),), REAL)
            for name, size in sizes.items()
        }
        self.nodes = code.buffer("nodes", (i64(slots),), "int32")
        self.shares = code.buffer("shares", (i64(slots),), REAL)

    def _turn_rows(self, rows: Any, first_row: Any) -> Any:
        """Emit a copy of the block's rows with the rows in vector lanes, feature by feature.

        Lanes beyond the end repeat the last row.

        Returns:
            Number of vectors that the rows fill.
        """
        code, width = self.code, self.width
        total, columns = rows.shape
        self.turned = code.buffer("turned", (i64(int(columns) * width * VECTORS),), REAL)
        here = tirx.min(i64(width * VECTORS), total - first_row)
        count = code.hold("count", tirx.floordiv(here + (width - 1), i64(width)))
        with code.nest("column", [count, i64(width), columns]) as (vector, lane, column):
            row = tirx.min(first_row + vector * width + lane, total - 1)
            place = (vector * columns + column) * width + lane
            code.store(self.turned, rows[row, column].astype(REAL), [place])
        return count

    def _get(self, name: str, entry: Any) -> Any:
        return self.memory[name][lanes(_wide(entry) * self.width, self.width)]

    def _put(self, name: str, entry: Any, value: Any) -> None:
        place = lanes(_wide(entry) * self.width, self.width)
        self.code.store(self.memory[name], value, [place])

    def _sum(self, feature: Any) -> Any:
        """Return the load of the sum of a feature, for the current vector of rows."""
        if self.width == 1:
            return self.result[self.first_row, self.group, feature]
        entry = self.vector * (len(self.tables.players) + 1) + feature
        return self.sums[lanes(entry * self.width, self.width)]

    def _put_sum(self, feature: Any, value: Any) -> None:
        load = self._sum(feature)
        self.code.store(load.source, value, list(load.indices))

    def _real(self, value: float) -> Any:
        return self._spread(tirx.FloatImm(REAL, value))

    def _spread(self, value: Any) -> Any:
        return spread(value, self.width)

    def _number(self, node: Any, name: str) -> Any:
        place = _wide(node) * len(NODE_NUMBERS) + NODE_NUMBERS.index(name)
        return self.code.hold(name, self.model["numbers"][place])

    def _bits(self, node: Any, *names: str) -> list[Any]:
        """Return the named bit fields of a node, as int64 values."""
        bits, found = self._number(node, "bits"), []
        for name in names:
            first, count = BITS[name]
            part = (bits >> first) & ((1 << count) - 1)
            found.append(self.code.hold(name, part.astype("int64")))
        return found

    def _share(self, node: Any, name: str) -> Any:
        place = _wide(node) * len(NODE_REALS) + NODE_REALS.index(name)
        return self.code.hold(name, self.model["reals"][place])

    def _fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return a * b + c, as one fused operation if the machine fuses them."""
        return tirx.call_intrin(str(c.ty.dtype), FMA, a, b, c) if self.fused else a * b + c

    @contextmanager
    def _each_point(self) -> Iterator[Any]:
        with self.code.repeat("point", i64(self.n_points), self.n_points <= MAX_UNROLLED) as point:
            yield point

    # -- the walk ---------------------------------------------------------------------------------

    def _start(self) -> None:
        """Fill the slot above the root: an artificial parent whose right child is the root."""
        for name, value in {"H": 1.0, "reached": 1.0, "left": 0.0, "s": 0.0}.items():
            self._put(name, i64(0), self._real(value))
        self.code.store(self.shares, tirx.FloatImm(REAL, 0.0), [i64(0)])
        self.code.store(self.nodes, tirx.const(0, "int32"), [i64(0)])

    def _emit_tasks(self, groups: Any, count: Any) -> None:
        code, model, forest, group = self.code, self.model, self.tables.forest, self.group
        self.first_leaf = i64(0)
        if forest.has_vectors:
            output = tirx.floordiv(group, tirx.floordiv(groups, i64(forest.n_outputs)))
            self.first_leaf = output * self.tables.leaves[0].size
        begin = code.hold("begin", model["begins"][group].astype("int64"))
        end = code.hold("end", model["begins"][group + 1].astype("int64"))
        with code.repeat("task", end - begin) as task, code.repeat("vector", count) as self.vector:
            entry = (begin + task) * 3
            first, last, self.fixed = (
                code.hold(name, model["tasks"][entry + place])
                for place, name in enumerate(("first", "last", "fixed"))
            )
            if not self.interactions:
                self._emit_tree(first, last, None)
            else:  # interaction = (contributions with the fixed feature - those without it) / 2
                with code.repeat("known", i64(2)) as known:
                    self._emit_tree(first, last, known)

    def _emit_tree(self, first: Any, last: Any, known: Any) -> None:
        code, model = self.code, self.model
        self.known = None if known is None else code.hold("known", known.astype(REAL))
        with self._each_point() as point:
            weight = model["points"][point]
            if self.known is not None:
                weight = weight * (self.known - tirx.FloatImm(REAL, 0.5))
            self._put("P", point, self._spread(weight))
        with code.repeat("terminal", (last - first).astype("int64")) as step:
            entry = (first.astype("int64") + step) * 3
            node, before, complete = (
                code.hold(name, model["terminals"][entry + place].astype("int64"))
                for place, name in enumerate(("node", "before", "complete"))
            )
            with code.repeat("down", before) as down:
                self._enter(code.hold("inner", node + down), is_terminal=False)
            slot = self._enter(code.hold("terminal", node + before), is_terminal=True)
            with code.repeat("up", complete) as up:
                self._complete(code.hold("complete", slot - 1 - up))

    def _enter(self, node: Any, is_terminal: bool) -> Any:
        """Emit the work at a node before its children are visited; return its slot in the stack."""
        code = self.code
        slot, above, side = self._bits(node, "slot", "above", "side")
        parent, is_right = code.hold("parent", slot - 1), side > 0
        s = self._send(node, slot, above, is_right)
        share = code.hold("share", self.shares[parent])
        own = code.hold("own", self._spread(tirx.Select(is_right, 1.0 - share, share)))
        before = self._get("s", parent)
        step = code.hold("step", tirx.Select(self._spread(is_right), -before, before))
        above_node = code.hold("above", self.nodes[parent])
        factor, is_fixed = self._number(above_node, "factor"), self._is_fixed(above_node)
        code.store(self.nodes, node.astype("int32"), [slot])
        with self._each_point() as point:
            ratio = self._fma(step, self._factor(factor, point, is_fixed), own)
            place = slot * self.n_points + point
            self._put("P", place, self._get("P", place - self.n_points) * ratio)
        values = [self._leaf(node, side) for side in (0, 1)]
        if is_terminal:
            self._join(node, slot, s, side, lambda side, point: values[side])
        else:
            self._keep_leaves(node, slot, values)
        return slot

    def _send(self, node: Any, slot: Any, above: Any, is_right: Any) -> Any:
        """Emit whether the row passes all tests of the node's feature above it, and goes left here.

        Returns:
            s = reached * (left - left_share), where `reached` is 1 if the row passes these tests,
            and `left` is 1 if it goes left here; otherwise they are 0.
        """
        code, parent = self.code, slot - 1
        goes_left = self._test(node)
        went_left = code.hold("went_left", self._get("left", parent))
        went_right = self._get("reached", parent) - went_left
        self._put("H", slot, tirx.Select(self._spread(is_right), went_right, went_left))
        reached = code.hold("reached", self._get("H", above))
        left = code.hold("left", tirx.Select(goes_left, reached, self._real(0.0)))
        self._put("reached", slot, reached)
        self._put("left", slot, left)
        share = self._share(node, "left_share")
        code.store(self.shares, share, [slot])
        s = code.hold("s", self._fma(self._spread(-share), reached, left))
        self._put("s", slot, s)
        return s

    def _test(self, node: Any) -> Any:
        """Return, for each lane, whether the row goes left at a node."""
        column = self._number(node, "column").astype("int64")
        if self.width > 1:
            entry = self.vector * self.tables.forest.n_features + column
            value = self.turned[lanes(entry * self.width, self.width)]
        else:
            value = self.rows[self.first_row, column].astype(REAL)
        default = None
        if self.tables.has_default_left:
            default = self._spread(self._bits(node, "default_left")[0] > 0)
        threshold = self._spread(self._share(node, "threshold"))
        test = NodeTest(feature=column, threshold=threshold, default_left=default)
        return self.comparer.goes_left(self.code.hold("value", value), test)

    def _leaf(self, node: Any, side: int) -> Any:
        place = self.first_leaf + _wide(node) * 2 + side
        return self.code.hold("leaf", self._spread(self.model["leaves"][place]))

    def _keep_leaves(self, node: Any, slot: Any, values: list[Any]) -> None:
        """Store the values of a node's children that are leaves as their sums S."""
        for side, is_leaf in enumerate(self._bits(node, "left_is_leaf", "right_is_leaf")):
            with self.code.block(lambda body, is_leaf=is_leaf: guard(body, [is_leaf > 0])):
                with self._each_point() as point:
                    self._put("S", self._sum_place(slot + 1, i64(side), point), values[side])

    def _complete(self, slot: Any) -> None:
        """Emit the work at a node after its children have been visited."""
        node = self.code.hold("node", self.nodes[slot])
        s = self.code.hold("s", self._get("s", slot))

        def below(side: int, point: Any) -> Any:
            return self._get("S", self._sum_place(slot + 1, i64(side), point))

        self._join(node, slot, s, self._bits(node, "side")[0], below)

    def _join(self, node: Any, slot: Any, s: Any, side: Any, below: Below) -> None:
        """Emit the sums S of a node, and the addition of its contribution to its feature's sum.

        `below` returns the sum S of a child.
        """
        code = self.code
        share = code.hold("share", self._spread(self.shares[slot]))
        factor, is_fixed = self._number(node, "factor"), self._is_fixed(node)
        total = code.hold("total", self._real(0.0))
        with self._each_point() as point:
            right = code.hold("right", below(1, point))
            difference = code.hold("difference", below(0, point) - right)
            ratio = self._fma(s, self._factor(factor, point, is_fixed), share)
            self._put("S", self._sum_place(slot, side, point), self._fma(ratio, difference, right))
            weight = self._get("P", slot * self.n_points + point) * self._multiple(factor, point)
            code.put(total, self._fma(weight, difference, total))
        feature = self._source(node).astype("int64")
        self._put_sum(feature, self._fma(s, total, self._sum(feature)))

    def _source(self, node: Any) -> Any:
        """Return the index of the sum, one of each feature, that a node's contribution goes to."""
        return self.code.hold("source", self.model["sources"][_wide(self._number(node, "column"))])

    def _sum_place(self, slot: Any, side: Any, point: Any) -> Any:
        return (slot * 2 + side) * self.n_points + point

    def _is_fixed(self, node: Any) -> Any:
        """Return whether a node's feature is the fixed one; None without interactions."""
        if not self.interactions:
            return None
        return self.code.hold("is_fixed", tirx.EQ(self._source(node), self.fixed))

    def _factor(self, factor: Any, point: Any, is_fixed: Any) -> Any:
        """Return the factor g of a node, from the table; 1 or 0 if its feature is the fixed one."""
        g = self.model["factors"][_wide(factor) * (2 * self.n_points) + point]
        if is_fixed is not None:
            g = tirx.Select(is_fixed, self.known, self.code.hold("g", g))
        return self._spread(g)

    def _multiple(self, factor: Any, point: Any) -> Any:
        """Return the factor m of a node, from the table of factors."""
        place = _wide(factor) * (2 * self.n_points) + self.n_points + point
        return self._spread(self.model["factors"][place])

    def _write(self, features: Any) -> None:
        """Write the sums of a block to the result, for lanes that hold rows of the batch."""
        code, width = self.code, self.width
        count = tirx.min(i64(width * VECTORS), self.result.shape[0] - self.first_row)
        with code.nest("row", [count, features]) as (row, feature):
            vector, lane = tirx.floordiv(row, i64(width)), tirx.floormod(row, i64(width))
            total = self.sums[(vector * features + feature) * width + lane]
            code.store(self.result, total, [self.first_row + row, self.group, feature])


def _wide(index: Any) -> Any:
    return index.astype("int64") if str(index.ty.dtype) != "int64" else index
