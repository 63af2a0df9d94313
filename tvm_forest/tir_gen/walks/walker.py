"""Defines the interface of all walkers.

takes: a leaf loop of the schedule and its TIR; gives: the code of its walks, or a ScheduleError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, ClassVar

import tvm
import tvm_ffi
from tvm import tirx

from ...errors import ScheduleError
from ...layouts.protocol import Layout
from ...schedule_prims import Schedule
from ...schedule_prims.nest import Loop
from ...schedule_prims.walks import LANE_COUNTS, WalkForm
from ...system.values import dataclass
from .. import ops
from ..builder import Builder
from ..ir import at_iteration, change_loop, find_all, i64, mentions, rewrite_loops, step_of
from .node_test import Comparer

MAX_CLASS_LANES = 32
"""Largest number of classes that become one vector; LLVM vectorizes longer loops by itself."""


@dataclass(frozen=True)
class Walker:
    """Base class: one way of walking.

    Attributes:
        layout: emits loads and steps.
        comparer: emits the comparisons of rows with nodes.
        shared: buffers that concurrent walks also read, so that no walk may write to them.
    """

    layout: Layout
    comparer: Comparer
    shared: frozenset[Any] = frozenset()

    @classmethod
    def check(cls, sch: Schedule, loops: Sequence[Loop]) -> None:
        """Refuse nests with leaf loops that this walker cannot handle; the base class refuses none.

        Raises:
            ScheduleError: there is such a leaf loop.
        """

    @classmethod
    def computed_rows(cls, extent: Any, count: int) -> Any | None:
        """Return the number of rows that the code of a leaf loop computes, for walkers with groups.

        A walker that takes rows in groups may compute more rows than the loop has; the sums of a
        group should then be adjacent in memory. Other walkers return None.

        Args:
            extent: number of rows of the loop.
            count: the largest number of rows that it may have.
        """
        return None

    def lower_trees(self, trees: tirx.For, fact: Loop) -> tirx.Stmt | None:
        """Lower a leaf loop and the loop over trees around it; return None to have `lower` called.

        Args:
            trees: the loop over trees; the leaf loop is its body.
            fact: facts of the schedule about the leaf loop.
        """
        return None

    def lower(self, loop: tirx.For, fact: Loop, form: WalkForm) -> tirx.Stmt:
        """Return the code of a leaf loop: its walks, and the stores that use their leaves.

        Args:
            loop: the leaf loop, whose body is one walk, see `is_one_walk`.
            fact: facts of the schedule about the loop.
            form: how the hops of its walks are unrolled or peeled.
        """
        raise NotImplementedError

    # -- for all ways of walking ------------------------------------------------------------------

    def open_trees(self, code: Builder, calls: Sequence[Any]) -> list[Any]:
        """Return access to the tree of every walk; walks through the same tree share it."""
        opened: list[tuple[Any, Any]] = []
        for call in calls:
            tree, buffers = ops.tree_of(call, self.layout)
            known = next((a for t, a in opened if tvm_ffi.structural_equal(t, tree)), None)
            opened.append((tree, known or self.layout.tree(buffers, tree, code.hold)))
        return [access for _, access in opened]

    def add_end(self, code: Builder, body: tirx.Stmt, leaf: Any) -> None:
        """Emit the statement that uses the leaf of a walk, by the body of its leaf loop.

        On a CPU, loops over adjacent classes become vectors.
        """
        if self.comparer.vectors is not None and not isinstance(body, tirx.BufferStore):
            body = rewrite_loops(body, _in_lanes)
        code.add(ops.replace_call(body, ops.WALKS, leaf))


def keep_sum(code: Builder, loop: tirx.For) -> tuple[tirx.For, Any]:
    """Make a loop over trees add to a variable instead of a row's element of a buffer.

    Returns:
        The changed loop, and a function that emits the store of the variable after it; for other
        loops, the loop itself and a function that does nothing.
    """
    store = loop.body
    is_sum = isinstance(store, tirx.BufferStore) and ops.is_call(store.value, ops.REDUCE)
    if not is_sum or mentions(store.indices, {loop.loop_var}):
        return loop, lambda: None
    place = list(store.indices)
    element = store.buffer[place]
    cell = code.hold("sum", ops.begin_kept(element, store.value))
    value = ops.add_to_kept(cell, store.value)
    body = tirx.BufferStore(cell.source, value, list(cell.indices))
    total = ops.end_kept(element, cell, store.value)
    return change_loop(loop, body=body), lambda: code.store(store.buffer, total, place)


def leaf_of(access: Any, call: Any, node: Any) -> Any:
    """Return the result of a walk: the leaf's value, or its number in the source model."""
    return access.leaf_id(node) if ops.is_call(call, ops.WALK_ID) else access.leaf_value(node)


def look_up_leaves(
    code: Builder, tree: Any, is_id: bool, count: int, number: Callable[[Any], Any]
) -> Any:
    """Emit the look-up of leaf values or numbers, row by row; return their buffer.

    Args:
        code: where statements go.
        tree: access to leaves by number.
        is_id: whether to look up the leaves' numbers in the source model instead of their values.
        count: number of rows.
        number: function of a row that returns the load of its leaf number.
    """
    leaves = code.buffer("leaf", (count,), "int32" if is_id else tree.layout.dtype)
    with code.repeat("row", i64(count)) as row:
        at = number(row).astype("int64")
        code.store(leaves, tree.leaf_id(at) if is_id else tree.leaf_value(at), [row])
    return leaves


def is_one_walk(body: tirx.Stmt) -> bool:
    """Return whether a body is a walk with the store of its leaf, or with loops over classes."""
    if isinstance(body, tirx.SeqStmt):
        return all(map(is_one_walk, body.seq))
    return isinstance(body, (tirx.BufferStore, tirx.For)) and ops.find_walk(body) is not None


def _in_lanes(loop: tirx.For) -> tirx.For:
    """Vectorize a loop over classes if they are adjacent in all buffers it touches."""
    var, count, store = loop.loop_var, loop.extent, loop.body
    small = isinstance(count, tirx.IntImm) and 1 < count.value <= MAX_CLASS_LANES
    serial = loop.kind == tirx.ForKind.SERIAL and isinstance(store, tirx.BufferStore)
    if not (small and serial):
        return loop
    for place in (store, *find_all(store.value, tvm.ir.expr.TensorLoad)):
        *outer, last = place.indices
        if any(step_of(x, var) != 0 for x in outer) or step_of(last, var) not in (0, 1):
            return loop
    return change_loop(loop, kind=tirx.ForKind.VECTORIZED)


@dataclass(frozen=True)
class BlockWalker(Walker):
    """Base class of walkers that take rows in groups, from blocks of a known size."""

    how: ClassVar[str]
    """The argument of `simdize` that selects this walker."""

    def store_rows(
        self,
        code: Builder,
        loop: tirx.For,
        first: Any,
        count: int,
        full: bool,
        leaves: Any,
    ) -> None:
        """Emit the leaf loop's body for a group of at most `count` rows with known leaves.

        Args:
            code: where statements go.
            loop: the leaf loop.
            first: iteration of the loop for the group's first row.
            count: rows of a full group.
            full: whether every group is full.
            leaves: buffer with the leaf of each row.
        """
        some = tirx.min(loop.extent - first, i64(count))
        with code.lanes("row", count) if full else code.repeat("row", some) as row:
            each = at_iteration(loop, loop.min + first + row)
            self.add_end(code, each, leaves[row])

    @classmethod
    def check(cls, sch: Schedule, loops: Sequence[Loop]) -> None:
        """Refuse blocks of an unknown number of rows, and loops that begin within a group."""
        endless = next((loop for loop in loops if not _is_in_blocks(sch.path(loop.name))), None)
        if endless is not None:
            raise ScheduleError(
                f"represent_as: argument 'name': {sch.layout!r} codes rows in blocks of a "
                f"known size, but no loop around the trees of '{endless.name}' has one; tile "
                f"'batch', and put the loop over blocks outermost\n{sch.render(endless.name)}"
            )
        least = LANE_COUNTS[cls.how][0]
        begins = (begin for loop in loops for begin in _begins_in_block(sch.path(loop.name)))
        name, rows = next((x for x in begins if x[1] % least), ("", 0))
        if rows:
            raise ScheduleError(
                f"simdize: argument 'how': {cls.how!r} takes groups of {least} rows, but '{name}' "
                f"begins at multiples of {rows} in a block; tile by multiples of {least}\n"
                f"{sch.render(name)}"
            )


def _is_in_blocks(path: tuple[Loop, ...]) -> bool:
    """Return whether a loop over rows is outermost, and blocks have a constant number of rows.

    So every loop over rows inside a loop over classes or trees must have a constant count.
    """
    outer = list(takewhile(lambda loop: loop.kind == "batch", path))
    inside = [loop for loop in path[len(outer) :] if loop.kind == "batch"]
    return bool(outer) and all(loop.count is not None for loop in inside)


def _begins_in_block(path: tuple[Loop, ...]) -> Iterator[tuple[str, int]]:
    """Yield (name of a loop, number of rows) for the loops over rows inside a block.

    The numbers are the loop's start and, unless it is the innermost, its step: if groups of rows
    divide all of them, no iteration begins within a group.
    """
    rows = [loop for loop in path if loop.kind == "batch"]
    block = next(k for k in range(len(rows)) if all(x.count is not None for x in rows[k + 1 :]))
    for loop in rows[block + 1 :]:
        yield loop.name, loop.start
        if loop is not rows[-1] and isinstance(loop.step, int):
            yield loop.name, loop.step
