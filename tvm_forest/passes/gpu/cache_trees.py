"""Copies trees into a GPU block's shared memory before they are walked.

takes: a lowered function with the directive `cache` on loops over trees; gives: the function, with
copies of trees that its loads read.

    for t0 in range(20):   # cache auto        for t0 in range(20):
        for t1 in range(5):                        near_nodes[0:end - begin] = nodes[begin:end]
            S(nodes[offset[t0 * 5 + t1]      -->   for t1 in range(5):
                    + node])                           S(near_nodes[offset[t0 * 5 + t1] + node
                                                                    - begin])

The trees of an iteration are adjacent. In layouts that number the nodes of all trees, with the
first node of each tree in `offset`, their nodes are adjacent too; `Layout.copied` names these
buffers. Other layouts are refused. If the beginning of every tree allows it, 16 bytes are copied at
once.

Tahoe's shared forest (EuroSys 2021), and "SilvanForge" (SOSP 2024), section 6 on caches.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...errors import ScheduleError
from ...layouts import COPIED
from ...layouts.protocol import find
from ...schedule_prims.directive import make_error
from ...system.values import dataclass
from ...tir_gen.builder import Builder
from ...tir_gen.ir import change_loop, i64, join_statements, lanes, rewrite_nest
from ..cache_near import change_in_blocks
from ..function_pass import NestPass, function_pass
from ..nest_facts import NestFacts
from .array_facts import STARTS
from .kernel_code import TensorLoad, loads_of

COPYING = ("auto", "shared")
"""Values of the directive `cache` for which trees are copied."""

COPY_BYTES = 16
"""Number of bytes that a thread can copy by one load and one store."""


@function_pass
class CacheTrees(NestPass):
    """Copies the trees of an iteration of loops with the directive `cache`, and reads the copies.

    Loops whose `cache` is neither "auto" nor "shared", such as "prefetch", are left unchanged.
    """

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Put copies into the loops, and read these; walks must be lowered to loads before.

        Raises:
            ScheduleError: a loop has the directive, and the layout does not support copies.
        """
        nest, buffers = self.facts.nest, {str(buffer.name): buffer for buffer in func.params}
        asking = [loop for loop in nest.loops() if loop.kind == "tree" and loop.cache in COPYING]
        if not asking:
            return func
        copied = find(nest.layout).copied
        here = [name for name in copied if name in buffers and copied[name] in buffers]
        if not here:
            raise _make_refusal(self.facts, asking[0].name)
        n, body = func.params[0].shape[0], func.body
        for name in here:
            starts, elements = copied[name], buffers[name]
            ends = [*map(int, func.attrs[STARTS][starts]), int(elements.shape[0])]
            copier = _TreeCopier(self.facts, n, buffers[starts], elements, ends)
            body = rewrite_nest(body, copier.copy, inside_first=True)
        return func.with_body(body)


def _make_refusal(facts: NestFacts, name: str) -> ScheduleError:
    """Return the exception for a layout that does not support copies."""
    layout, tiled = repr(facts.nest.layout), facts.model.tile_size > 1
    what = f"trees of '{name}' in layout {layout}{' of tiles' * tiled} cannot be copied into shared"
    advice = f"use one of {', '.join(COPIED)} without tiles, or leave this cache out"
    return make_error(facts.nest, "cache", f"argument 'index': {what} memory; {advice}", name)


@dataclass(frozen=True)
class _TreeCopier:
    """Inserts copies of parts of one buffer.

    Attributes:
        facts: facts about the loops.
        n: number of rows.
        offset: buffer with the index of each tree's first element.
        elements: buffer with the elements, such as nodes.
        ends: values of `offset`, followed by the number of elements.
    """

    facts: NestFacts
    n: Any
    offset: Any
    elements: Any
    ends: list[int]

    def copy(self, s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt | None:
        """Insert a copy of all trees that an iteration of a loop can reach, and read the copies.

        Return None for statements without the directive, and for loops that do not read the buffer.
        """
        fact = self.facts.of(s)
        if fact.kind != "tree" or fact.cache not in COPYING:
            return None
        if not loads_of(s.body, self.elements):
            return None
        first, count = self.facts.reach("tree", (*around, s), fact.children, self.n)
        assert count is not None, "the number of trees is known"
        size = self.facts.nest.round_size
        first, count = first * size, count * size
        begin, span = self._begin(first), self._begin(first + count) - self._begin(first)
        last, fields = len(self.ends) - 1, list(self.elements.shape[1:])
        sizes = (self.ends[min(tree + count, last)] - self.ends[tree] for tree in range(last))
        shape = (i64(max(sizes)), *fields)
        code = Builder()
        near = code.buffer(f"near_{self.elements.name}", shape, self.elements.dtype, "shared")
        width = self._count_together()
        spans = [tirx.floordiv(span, i64(width)), *(x.astype("int64") for x in fields)]
        if self._tree_size:
            begin = first * self._tree_size
        with code.nest("copy", spans, spread=True) as (number, *field):
            place = number * width
            load = tirx.BufferLoad(self.elements, [_together(begin + place, width), *field])
            code.store(near, load, [lanes(place, width), *field])

        def redirect(load: Any) -> Any:
            if not load.source.same_as(self.elements):
                return load
            at, *rest = load.indices
            if isinstance(at, tirx.Ramp):  # a copy further inside
                return tirx.BufferLoad(near, [_together(at.base - begin, int(at.lanes)), *rest])
            return tirx.BufferLoad(near, [at - begin, *rest])

        body = tvm_ffi.structural_map(s.body, (TensorLoad, redirect))
        copied = change_in_blocks(
            self.facts, body, lambda inside: join_statements([*code.statements, inside])
        )
        return change_loop(s, body=copied)

    @property
    def _tree_size(self) -> int:
        """The number of elements of every tree; 0 if trees differ."""
        size = self.ends[1] - self.ends[0]
        return size if self.ends == [size * tree for tree in range(len(self.ends))] else 0

    def _count_together(self) -> int:
        """Return the number of elements that a thread copies at once: those of 16 bytes, or 1."""
        item = tvm.DataType(self.elements.dtype).itemsize
        width = max(1, COPY_BYTES // item)
        whole = all(end % width == 0 for end in self.ends) and len(self.elements.shape) == 1
        return width if whole else 1

    def _begin(self, tree: Any) -> Any:
        """Return the first element of a tree; for trees past the last, the end of the buffer."""
        last = len(self.ends) - 1
        if self._tree_size:
            return tirx.min(tree, i64(last)) * self._tree_size
        first = tirx.BufferLoad(self.offset, [tree])
        return tirx.if_then_else(tree < last, first, i64(self.ends[-1]))


def _together(first: Any, count: int) -> Any:
    """Return the vector index of `count` elements from `first`, in a form that TVM sees aligned."""
    return lanes(tirx.floordiv(first, i64(count)) * count if count > 1 else first, count)
