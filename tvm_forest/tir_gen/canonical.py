"""Emits the canonical functions: what a forest computes, before any schedule.

takes: Forest and Layout; gives: IRModules with one S-TIR function "main" each.

    sums      margin[r, c] = base[c] + walk(tree 0 of c, r) + walk(tree 1 of c, r) + ...
              then, unless the link is the identity, value[r, :] = link(margin[r, :])
    leaves    leaf[r, t] = walk(t, r), the value of the leaf, or its number in the source model

A sum is a reduction, by the operator `reduce` of `ops`. The `init` of its block writes the value
that it starts from.

With linear leaves, a value is linear(walk(t, r), r). With leaf vectors it is leaf_vectors[walk(t,
r), c], so that one walk serves all classes, see `runtime.leaves`.

The number of rows is symbolic, the model's arrays are parameters. Loops have the names of a
schedule's root loops, and the walk is in a block "walk" whose tree axis is a reduction (in sums) or
spatial (in leaves), so the same directives apply to both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as tb

from ..forest import Forest
from ..layouts.protocol import Expr, Layout
from ..runtime.leaves import leaf_buffers, walk_dtype
from ..runtime.results import (
    OF_LEAVES,
    RESUMED,
    SIZES,
    Output,
    link_arrays,
    model_buffers,
    result_dtype,
    result_names,
)
from . import ops
from .attributes import with_model_facts
from .ir import i64, name_of_var
from .links import emit_epilogue


def emit_canonical(
    forest: Forest,
    layout: Layout,
    output: Output,
    steps: Sequence[dict[str, Any]] = (),
) -> tvm.IRModule:
    """Return the module for one kind of output.

    Args:
        forest: the model, with trees in the order `round * C + class`; with leaf vectors, each tree
            is a round.
        layout: how the model lies in memory.
        output: the output, which decides the parameters. "predict" and "resume": (rows, model ...,
            base, tables ..., sizes, results ...), see `link_arrays`, `SIZES` and `result_names`.
            "per_tree" and "apply": (rows, model ..., leaf).
        steps: trace steps that rewrote the model and chose its layout.

    Raises:
        BuildError: see `with_model_facts`.

    Emits:
        for batch, class, tree in T.grid(n, C, rounds):     # `class` last for vectors, not if C = 1
            with T.sblock("walk"):
                with T.init(): margin[r, c] = base[c]       # "resume": margin[r, c], as it is
                margin[r, c] = tvm_forest.reduce(
                    margin[r, c], tvm_forest.walk(rows[r, 0], round * C + c, ...), 0.0, "add"
                )
        ...                                                 # what `links.emit_epilogue` emits
    """
    n = tirx.Var("n", "int64")
    with IRBuilder() as ib, tb.prim_func(s_tir=True):
        tb.func_name("main")
        width = forest.row_width if layout.codes_rows else forest.n_features
        rows = _parameter("rows", (n, width), forest.row_dtype)
        specs = model_buffers(forest, layout, output)
        model = [_parameter(spec.name, spec.shape, spec.dtype) for spec in specs]
        if output in OF_LEAVES:
            dtype = "int32" if output == "apply" else forest.sum_dtype
            columns = forest.n_trees // forest.round_size * forest.n_outputs
            leaf = _parameter("leaf", (n, columns), dtype)
            _emit_walks(forest, output, rows, model, leaf)
        else:
            base = _parameter("base", (forest.n_outputs,), forest.base_dtype)
            made_with = link_arrays(forest).items()
            tables = [_parameter(name, x.shape, str(x.dtype)) for name, x in made_with]
            _parameter(SIZES, (1,), "int64")
            shape = (n, forest.n_outputs)
            names = result_names(forest)
            results = {x: _parameter(x, shape, result_dtype(forest, x)) for x in names}
            _emit_walks(forest, output, rows, model, results[names[0]], base)
            emit_epilogue(forest, n, base, results, *tables)
    func = with_model_facts(ib.get(), forest, layout, output, list(steps))
    return tvm.IRModule({"main": func})


def _emit_walks(
    forest: Forest, output: Output, rows: Any, model: list[Any], result: Any, base: Any = None
) -> None:
    """Emit the block "walk" in loops "batch", "class" (if there are several) and "tree".

    Args:
        forest, output: see `emit_canonical`.
        rows: buffer of the rows.
        model: buffers of the model, see `model_buffers`.
        result: buffer (rows, classes) of sums, or (rows, columns) of leaf values or numbers.
        base: buffer of the base scores, for sums only.
    """
    classes, rounds = forest.n_outputs, forest.n_trees // forest.round_size
    counts = {"batch": rows.shape[0], "class": i64(classes), "tree": i64(rounds)}
    order = ("batch", "tree", "class") if forest.has_vectors else tuple(counts)
    names = [name for name in order if name != "class" or classes > 1]
    with tb.grid(*(counts[name] for name in names)) as variables:
        loops = dict(zip(names, variables, strict=True))
        with tb.sblock("walk"):
            axes = {"r": tb.axis.spatial(counts["batch"], loops["batch"])}
            if "class" in loops:
                axes["c"] = tb.axis.spatial(counts["class"], loops["class"])
            tree_axis = tb.axis.spatial if base is None else tb.axis.reduce
            axes["t"] = tree_axis(counts["tree"], loops["tree"])
            for name, variable in (loops | axes).items():
                IRBuilder.name(name_of_var(name), variable)
            r, c, t = axes["r"], axes.get("c", i64(0)), axes["t"]
            column = t * i64(classes) + c if classes > 1 else t
            # the operator hides from TVM which elements a walk reads
            whole = [buffer[tuple(slice(0, end) for end in buffer.shape)] for buffer in model]
            reads = [rows[r, 0 : rows.shape[1]], *whole]
            tree = t if forest.has_vectors else column
            value = _walk(forest, output, rows[r, 0], tree, c, model)
            if base is None:
                tb.reads(*reads)
                tb.writes(result[r, column])
                tb.buffer_store(result, value, [r, column])
            else:
                tb.reads(*reads, base[c])
                tb.writes(result[r, c])
                with tb.init():
                    resumes = output == RESUMED
                    start = result[r, c] if resumes else _initial_sum(forest, base[c])
                    tb.buffer_store(result, start, [r, c])
                total = ops.reduce(result[r, c], value, _joining(forest))
                tb.buffer_store(result, total, [r, c])


def _walk(forest: Forest, output: Output, row: Expr, tree: Expr, c: Expr, model: list[Any]) -> Expr:
    """Return the leaf value that a row reaches, for class c; for "apply", the leaf's number.

    Args:
        forest, output, model: see `_emit_walks`.
        row: load of the row's first value.
        tree: number of the tree.
        c: number of the class.
    """
    anchors = [buffer[(0,) * len(buffer.shape)] for buffer in model]
    if output == "apply":
        return tirx.call_intrin("int32", ops.WALK_ID, row, tree, *anchors)
    dtype, layout = walk_dtype(forest), len(anchors) - len(leaf_buffers(forest))
    walk = tirx.call_intrin(dtype, ops.WALK, row, tree, *anchors[:layout])
    if forest.has_vectors:
        return model[-1][walk.astype("int64"), c]
    if forest.is_linear:
        return tirx.call_intrin(dtype, ops.LINEAR, walk, row, *anchors[layout:])
    return walk


def _joining(forest: Forest) -> str:
    """Return the kind of reduction that combines leaf values: minimum, maximum, or addition."""
    return forest.aggregate if forest.aggregate in (ops.MIN, ops.MAX) else ops.ADD


def _initial_sum(forest: Forest, base: Any) -> Any:
    """Return the value that the sum starts from, before the first tree."""
    how = _joining(forest)
    starts_from_base = how == ops.ADD and forest.base_first
    return base if starts_from_base else tirx.FloatImm(forest.sum_dtype, ops.INITIAL[how])


def _parameter(name: str, shape: Sequence[Any], dtype: str) -> Any:
    """Declare a buffer argument that may start at any multiple of its item size."""
    return tb.arg(name, tb.buffer(tuple(shape), dtype, align=tvm.DataType(dtype).itemsize))
