"""Copy trees into the shared memory of a GPU's thread block before they are walked.

takes: a lowered function, loops over trees annotated `tvm_forest.cache`; gives: the same with
copies.

    for t0 in range(20):   # cache auto        for t0 in range(20):
        for t1 in range(5):                        near_nodes[0:end - begin] = nodes[begin:end]
            S(nodes[offset[t0 * 5 + t1]      -->   for t1 in range(5):
                    + node])                           S(near_nodes[offset[t0 * 5 + t1] + node
                                                                    - begin])

The trees of an iteration follow each other, and so do their nodes in the layouts that number the
nodes of all trees, and say in `offset` where each tree begins. Other layouts are refused.

Tahoe's shared forest (EuroSys 2021), and "SilvanForge" (SOSP 2024), section 6 on caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...errors import ScheduleError
from ...forest import Array
from ...nest import paths
from ...schedule import Schedule
from ...schedule_prims.memory import COPIED
from ...schedule_prims.replay import NAME
from ...tir_gen.builder import Code
from ...tir_gen.ir import i64, with_body
from ..annotations import CACHE, KIND, in_blocks, value_of

COPYING = ("auto", "shared")
"""What `cache` says of a loop whose trees are copied."""


def cache_trees(func: tirx.PrimFunc, sch: Schedule, arrays: dict[str, Array]) -> tirx.PrimFunc:
    """Return a function that copies trees where loops ask for it.

    Args:
        func: walks are loads already.
        sch: the schedule, asked for the trees that loops can reach.
        arrays: the model, asked how many nodes these have at most.

    Raises:
        ScheduleError: a loop asks for it, and the layout is not one that numbers nodes.
    """
    buffers = {str(buffer.name): buffer for buffer in func.params}
    asking = [loop for loop in sch.loops() if loop.kind == "tree" and loop.cache in COPYING]
    if not asking:
        return func
    if not {"offset", "nodes"} <= buffers.keys():
        name, layout = asking[0].name, repr(sch.representation)
        tiled = any(step.arguments.get("size", 1) > 1 for step in sch.rewrites)
        raise ScheduleError(
            f"cache: argument 'index': trees of '{name}' in layout {layout}{' of tiles' * tiled} "
            f"cannot be copied into shared memory; use one of {', '.join(COPIED)} without tiles, "
            f"or leave this cache out\n{sch.render(name)}"
        )
    ends = [*arrays["offset"].tolist(), len(arrays["nodes"])]
    n = func.params[0].shape[0]
    return func.with_body(_Copies(sch, n, buffers["offset"], buffers["nodes"], ends).visit(func))


@dataclass(frozen=True)
class _Copies:
    """What all copies have in common; `ends` are the first nodes of all trees, and the end."""

    sch: Schedule
    n: Any
    offset: Any
    nodes: Any
    ends: list[int]

    def visit(self, func: tirx.PrimFunc) -> tirx.Stmt:
        """Return the body of a function."""
        return self._visit(func.body, ())

    def _visit(self, s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt:
        if isinstance(s, tirx.SeqStmt):
            return tirx.SeqStmt([self._visit(part, around) for part in s.seq])
        if isinstance(s, tirx.AttrStmt):
            return tirx.AttrStmt(s.node, s.attr_key, s.value, self._visit(s.body, around))
        if isinstance(s, tirx.IfThenElse):
            return tirx.IfThenElse(s.condition, self._visit(s.then_case, around), s.else_case)
        if not isinstance(s, tirx.For) or KIND not in s.annotations:
            return s
        body, notes = self._visit(s.body, (*around, s)), s.annotations
        wanted = str(notes.get(CACHE)) in COPYING and str(notes[KIND]) == "tree"
        if wanted and self._loads(body):
            body = self._copied(body, (*around, s))
        return with_body(s, body)

    def _copied(self, body: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt:
        """Copy all trees that an iteration can reach, and let its walks read the copy."""
        trees, size = len(self.ends) - 1, self.sch.round_size
        own = (value_of(loop, self.n) for loop in around if str(loop.annotations[KIND]) == "tree")
        first: Any = sum(own, i64(0)) * size
        inside = [
            sum(loop.last or 0 for loop in path[1:] if loop.kind == "tree")
            for path in paths(self.sch[str(around[-1].annotations[NAME])])
        ]
        count = (1 + max(inside)) * size
        most = max(self.ends[min(t + count, trees)] - self.ends[t] for t in range(trees))
        begin, end = self._begin(first), self._begin(first + count)
        fields = list(self.nodes.shape[1:])
        shape = (i64(most), *fields)
        near = tirx.decl_buffer(shape, self.nodes.dtype, "near_nodes", scope="shared")
        code = Code()
        code.add(tirx.AllocBuffer(near))
        spans = [end - begin, *(x.astype("int64") for x in fields)]
        with code.nest("copy", spans, spread=True) as (node, *field):
            load = tirx.BufferLoad(self.nodes, [begin + node, *field])
            code.add(tirx.BufferStore(near, load, [node, *field]))

        def redirect(load: Any) -> Any:
            if not load.source.same_as(self.nodes):
                return load
            return tirx.BufferLoad(near, [load.indices[0] - begin, *load.indices[1:]])

        moved = tvm_ffi.structural_map(body, (tvm.ir.expr.TensorLoad, redirect))
        return in_blocks(moved, lambda inside: tirx.SeqStmt([*code.statements, inside]))

    def _begin(self, tree: Any) -> Any:
        """The first node of a tree; the end of all for those that guards leave out."""
        there = tirx.BufferLoad(self.offset, [tree])
        return tirx.if_then_else(tree < len(self.ends) - 1, there, i64(self.ends[-1]))

    def _loads(self, body: tirx.Stmt) -> bool:
        found: list[Any] = []

        def look(load: Any) -> None:
            if load.source.same_as(self.nodes):
                found.append(load)

        tvm_ffi.structural_walk(body, (tvm.ir.expr.TensorLoad, look))
        return bool(found)
