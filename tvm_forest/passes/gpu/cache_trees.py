"""Copy trees into the shared memory of a GPU's thread block before they are walked.

takes: a lowered function, loops over trees with the directive `cache`; gives: the same with copies.

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

import tvm_ffi
from tvm import tirx

from ...errors import ScheduleError
from ...forest import Array
from ...layouts import COPIED
from ...tir_gen.builder import Builder
from ...tir_gen.ir import change_loop, i64, join_statements, rewrite_nest
from ..cache_near import change_in_blocks
from ..nest_facts import NestFacts
from .kernel_code import TensorLoad, loads_of

COPYING = ("auto", "shared")
"""Words of the directive `cache` for which trees are copied."""


def cache_trees(func: tirx.PrimFunc, facts: NestFacts, arrays: dict[str, Array]) -> tirx.PrimFunc:
    """Return a function that copies trees where loops ask for it.

    Args:
        func: walks are loads already.
        facts: of the loops, asked for the trees that they can reach.
        arrays: the model, asked how many nodes these have at most.

    Raises:
        ScheduleError: a loop asks for it, and the layout is not one that numbers nodes.
    """
    sch, buffers = facts.sch, {str(buffer.name): buffer for buffer in func.params}
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
    copier = _TreeCopier(facts, n, buffers["offset"], buffers["nodes"], ends)
    return func.with_body(rewrite_nest(func.body, copier.copy, inside_first=True))


@dataclass(frozen=True)
class _TreeCopier:
    """What all copies have in common.

    Attributes:
        facts: of the loops.
        n: number of rows.
        offset, nodes: the first node of each tree, and the nodes.
        ends: values of `offset`, and behind them the number of nodes.
    """

    facts: NestFacts
    n: Any
    offset: Any
    nodes: Any
    ends: list[int]

    def copy(self, s: tirx.Stmt, around: tuple[tirx.For, ...]) -> tirx.Stmt | None:
        """Let a loop that asks for it copy all trees that an iteration can reach, and walk those.

        Returns None for any other statement.
        """
        fact = self.facts.of(s)
        if fact is None or fact.kind != "tree" or fact.cache not in COPYING:
            return None
        if not loads_of(s.body, self.nodes):
            return None
        first, count = self.facts.reach("tree", (*around, s), fact.children, self.n)
        assert count is not None, "the number of trees is known"
        size = self.facts.sch.round_size
        first, count = first * size, count * size
        begin, end = self._begin(first), self._begin(first + count)
        last, fields = len(self.ends) - 1, list(self.nodes.shape[1:])
        sizes = (self.ends[min(tree + count, last)] - self.ends[tree] for tree in range(last))
        shape = (i64(max(sizes)), *fields)
        code = Builder()
        near = code.buffer("near_nodes", shape, self.nodes.dtype, "shared")
        spans = [end - begin, *(x.astype("int64") for x in fields)]
        with code.nest("copy", spans, spread=True) as (node, *field):
            code.store(near, tirx.BufferLoad(self.nodes, [begin + node, *field]), [node, *field])

        def redirect(load: Any) -> Any:
            if not load.source.same_as(self.nodes):
                return load
            return tirx.BufferLoad(near, [load.indices[0] - begin, *load.indices[1:]])

        body = tvm_ffi.structural_map(s.body, (TensorLoad, redirect))
        copied = change_in_blocks(
            self.facts, body, lambda inside: join_statements([*code.statements, inside])
        )
        return change_loop(s, body=copied)

    def _begin(self, tree: Any) -> Any:
        """Return the first node of a tree; the end of all nodes for trees that guards leave out."""
        first = tirx.BufferLoad(self.offset, [tree])
        return tirx.if_then_else(tree < len(self.ends) - 1, first, i64(self.ends[-1]))
