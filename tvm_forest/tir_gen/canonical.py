"""The canonical functions: what the forest computes, before any schedule.

takes: Forest and Representation; gives: IRModules with one S-TIR function "main" each.

    sums      margin[r, c] = base[c] + walk(tree 0 of c, r) + walk(tree 1 of c, r) + ...
              then, unless the link is the identity, value[r, :] = link(margin[r, :])
    leaves    leaf[r, t] = walk(t, r), the value or the source number of the leaf

Where leaves are linear, a value is linear(walk(t, r), r), see `linear`.

The number of rows is symbolic, model data are parameters. All loops are named like the root
indices of a schedule, and the walk stands in a block "walk" whose tree axis is a reduction (in
sums) or spatial (in leaves), so the same directives apply to both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as tb

from ..forest import Forest
from . import ops
from .linear import linear_buffers
from .links import emit_finish
from .representation import BufferSpec, Expr, Representation

Output = Literal["predict", "per_tree", "apply"]


def result_names(forest: Forest) -> tuple[str, ...]:
    """Name the buffers that "predict" writes: sums of leaves, margins, values.

    The sums are the margins unless they are divided, or the base score is added to them at last;
    the margins are the values if the link is the identity and nothing is rounded.
    """
    sums = () if forest.base_first and forest.aggregate != "average" else ("sum",)
    linked = forest.link != "identity" or forest.value_dtype is not None
    return (*sums, "margin", *(("value",) if linked else ()))


def result_dtype(forest: Forest, name: str) -> str:
    """Return the dtype of a buffer that "predict" writes."""
    return forest.value_dtype or forest.sum_dtype if name == "value" else forest.sum_dtype


def model_buffers(forest: Forest, rep: Representation, output: Output) -> tuple[BufferSpec, ...]:
    """Return what a function reads of the model: what walks read, then what linear leaves read."""
    if output == "apply":
        return rep.id_buffers()
    return (*rep.value_buffers(), *linear_buffers(forest))


def emit_canonical(forest: Forest, rep: Representation, output: Output) -> tvm.IRModule:
    """Return the module for one kind of output.

    Args:
        forest: trees stand in the order `round * C + class`.
        rep: how the model lies in memory.
        output: "predict" (rows, model ..., base, results ..., see `result_names`); "per_tree" or
            "apply" (rows, model ..., leaf).

    Emits:
        for batch, class, tree in T.grid(n, C, rounds):     # no `class` loop if C = 1
            with T.sblock("walk"):
                with T.init(): margin[r, c] = base[c]
                margin[r, c] += tvm_forest.walk(rows[r, 0], round * C + c, ...)
        ...                                                 # what `links.emit_finish` emits
    """
    n = tirx.Var("n", "int64")
    specs = model_buffers(forest, rep, output)
    with IRBuilder() as ib, tb.prim_func(s_tir=True):
        tb.func_name("main")
        rows = _parameter("rows", (n, forest.n_features), forest.row_dtype)
        model = [_parameter(spec.name, spec.shape, spec.dtype) for spec in specs]
        walks = Walks(forest, n, rows, model)
        if output in ("per_tree", "apply"):
            dtype = "int32" if output == "apply" else forest.sum_dtype
            leaf = _parameter("leaf", (n, forest.n_trees), dtype)
            _emit_leaves(walks, leaf, ops.WALK_ID if output == "apply" else ops.WALK)
        else:
            base = _parameter("base", (forest.n_outputs,), forest.base_dtype)
            shape = (n, forest.n_outputs)
            names = result_names(forest)
            results = {x: _parameter(x, shape, result_dtype(forest, x)) for x in names}
            _emit_sums(walks, base, next(iter(results.values())))
            emit_finish(forest, n, base, results)
    return tvm.IRModule({"main": ib.get()})


@dataclass(frozen=True)
class Walks:
    """What all walks of a function have in common.

    Attributes:
        forest: the model.
        n: number of rows, symbolic.
        rows: buffer of the rows.
        model: buffers of the model, see `model_buffers`.
    """

    forest: Forest
    n: Expr
    rows: Any
    model: list[Any]

    @contextmanager
    def loops(self) -> Iterator[list[Any]]:
        """Open the loops batch, class (if there is more than one) and tree."""
        classes, trees = self.forest.n_outputs, self.forest.n_trees
        counts = {"class": classes} if classes > 1 else {}
        counts["tree"] = trees // classes
        with tb.grid(self.n, *(i64(count) for count in counts.values())) as loops:
            for name, loop in zip(("batch", *counts), loops, strict=True):
                IRBuilder.name(name, loop)
            yield loops

    def axes(self, loops: list[Any], tree_axis: Any) -> tuple[Any, Any, Any]:
        """Declare the block's axes; returns row, class and the number of the tree."""
        classes = self.forest.n_outputs
        r = tb.axis.spatial(self.n, loops[0])
        c = tb.axis.spatial(i64(classes), loops[1]) if classes > 1 else i64(0)
        t = tree_axis(i64(self.forest.n_trees // classes), loops[-1])
        for name, axis in (("r", r), ("c", c), ("t", t)):
            if isinstance(axis, tirx.Var):
                IRBuilder.name(name, axis)
        return r, c, t * i64(classes) + c if classes > 1 else t

    def reads(self, r: Expr) -> list[Any]:
        """Everything a walk of row r may read; TVM cannot see through the operator."""
        whole = [buffer[tuple(slice(0, end) for end in buffer.shape)] for buffer in self.model]
        return [self.rows[r, 0 : self.forest.n_features], *whole]

    def walk(self, op: str, dtype: str, r: Expr, tree: Expr) -> Expr:
        """What row r finds at the end of a tree; buffers are named by one load each."""
        anchors = [buffer[(0,) * len(buffer.shape)] for buffer in self.model]
        leaves = len(linear_buffers(self.forest)) if op == ops.WALK else 0
        layout = anchors[: len(anchors) - leaves]
        walk = tirx.call_intrin(dtype, op, self.rows[r, 0], tree, *layout)
        if not leaves:
            return walk
        return tirx.call_intrin(dtype, ops.LINEAR, walk, self.rows[r, 0], *anchors[-leaves:])


JOIN = {"min": tirx.min, "max": tirx.max}
"""What is done with two leaf values; by default they are added."""


def _emit_sums(walks: Walks, base: Any, margin: Any) -> None:
    forest = walks.forest
    join = JOIN.get(forest.aggregate, lambda a, b: a + b)
    with walks.loops() as loops, tb.sblock("walk"):
        r, c, tree = walks.axes(loops, tb.axis.reduce)
        tb.reads(*walks.reads(r), base[c])
        tb.writes(margin[r, c])
        with tb.init():
            tb.buffer_store(margin, _start(forest, base[c]), [r, c])
        value = walks.walk(ops.WALK, forest.sum_dtype, r, tree)
        tb.buffer_store(margin, join(margin[r, c], value), [r, c])


def _start(forest: Forest, base: Any) -> Any:
    """What a sum begins with."""
    if forest.aggregate in JOIN:
        end = tirx.infinity(forest.sum_dtype)
        return end if forest.aggregate == "min" else -end
    return base if forest.base_first else tirx.FloatImm(forest.sum_dtype, 0.0)


def _emit_leaves(walks: Walks, leaf: Any, op: str) -> None:
    with walks.loops() as loops, tb.sblock("walk"):
        r, _, tree = walks.axes(loops, tb.axis.spatial)
        tb.reads(*walks.reads(r))
        tb.writes(leaf[r, tree])
        tb.buffer_store(leaf, walks.walk(op, str(leaf.dtype), r, tree), [r, tree])


def _parameter(name: str, shape: Sequence[Any], dtype: str) -> Any:
    """Declare a buffer argument that may start at any multiple of its item size."""
    return tb.arg(name, tb.buffer(tuple(shape), dtype, align=tvm.DataType(dtype).itemsize))


def i64(value: int) -> tirx.IntImm:
    """Return a constant of the index type."""
    return tirx.IntImm("int64", value)
