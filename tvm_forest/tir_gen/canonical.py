"""The canonical functions: what the forest computes, before any schedule.

takes: Forest and Representation; gives: IRModules with one S-TIR function "main" each.

    sums      margin[r, c] = base[c] + walk(tree 0 of c, r) + walk(tree 1 of c, r) + ...
              then, unless the link is the identity, value[r, :] = link(margin[r, :])
    leaves    leaf[r, t] = walk(t, r), the value or the source number of the leaf

Where leaves are linear, a value is linear(walk(t, r), r), and where they hold vectors, it is
leaf_vectors[walk(t, r), c], so that one walk serves all classes, see `leaves`.

The number of rows is symbolic, model data are parameters. All loops are named like the root
indices of a schedule, and the walk stands in a block "walk" whose tree axis is a reduction (in
sums) or spatial (in leaves), so the same directives apply to both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as tb

from ..errors import UnsupportedModel
from ..forest import Array, Forest
from ..layouts.representation import BufferSpec, Expr, Representation
from . import ops
from .ir import i64
from .leaves import leaf_buffers, walk_dtype
from .links import emit_epilogue

Output = Literal["predict", "per_tree", "apply"]

SUMS: Output = "predict"
OF_LEAVES: tuple[Output, ...] = ("per_tree", "apply")
"""Outputs that say what each leaf says; they are compiled when a user first asks for them."""
OUTPUTS: tuple[Output, ...] = (SUMS, *OF_LEAVES)


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
    """Return the buffers of the model that a function reads: those of walks, then of leaves."""
    if output == "apply":
        return rep.id_buffers()
    return (*rep.value_buffers(), *leaf_buffers(forest))


def check_forest(forest: Forest) -> None:
    """Refuse by name what a Forest can say and this package cannot compile yet.

    Raises:
        UnsupportedModel: as said.
    """
    refused = {
        "n_features": forest.n_features == 0,
        "threshold": forest.threshold.dtype != forest.leaf_value.dtype and not forest.has_vectors,
    }
    field = next((name for name, fires in refused.items() if fires), None)
    if field is not None:
        value = getattr(forest, field)
        shown = f"{value.dtype} {value.shape}" if hasattr(value, "shape") else repr(value)
        raise UnsupportedModel(
            f"build: argument 'model': field '{field}': {shown} cannot be compiled yet; "
            "predict with Forest.predict_reference or the source library"
        )


def emit_canonical(forest: Forest, rep: Representation, output: Output) -> tvm.IRModule:
    """Return the module for one kind of output.

    Args:
        forest: trees stand in the order `round * C + class`; of vectors, each is a round.
        rep: how the model lies in memory.
        output: "predict" (rows, model ..., base, results ..., see `result_names`); "per_tree" or
            "apply" (rows, model ..., leaf).

    Emits:
        for batch, class, tree in T.grid(n, C, rounds):     # `class` last for vectors, not if C = 1
            with T.sblock("walk"):
                with T.init(): margin[r, c] = base[c]
                margin[r, c] += tvm_forest.walk(rows[r, 0], round * C + c, ...)
        ...                                                 # what `links.emit_epilogue` emits
    """
    n = tirx.Var("n", "int64")
    specs = model_buffers(forest, rep, output)
    with IRBuilder() as ib, tb.prim_func(s_tir=True):
        tb.func_name("main")
        width = forest.row_width if rep.codes_rows else forest.n_features
        rows = _parameter("rows", (n, width), forest.row_dtype)
        model = [_parameter(spec.name, spec.shape, spec.dtype) for spec in specs]
        walks = WalkBlock(forest, n, rows, model)
        if output in ("per_tree", "apply"):
            dtype = "int32" if output == "apply" else forest.sum_dtype
            columns = forest.n_trees // forest.round_size * forest.n_outputs
            leaf = _parameter("leaf", (n, columns), dtype)
            _emit_leaves(walks, leaf, ops.WALK_ID if output == "apply" else ops.WALK)
        else:
            base = _parameter("base", (forest.n_outputs,), forest.base_dtype)
            shape = (n, forest.n_outputs)
            names = result_names(forest)
            results = {x: _parameter(x, shape, result_dtype(forest, x)) for x in names}
            _emit_sums(walks, base, next(iter(results.values())))
            emit_epilogue(forest, n, base, results)
    return tvm.IRModule({"main": ib.get()})


@dataclass(frozen=True)
class WalkBlock:
    """The block "walk" of a function under construction.

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
    def loops(self) -> Iterator[dict[str, Any]]:
        """Open the loops batch, class (if there is more than one) and tree."""
        counts: dict[str, Expr] = {"batch": self.n, "class": i64(self.forest.n_outputs)}
        counts["tree"] = i64(self.forest.n_trees // self.forest.round_size)
        order = ("batch", "tree", "class") if self.forest.has_vectors else tuple(counts)
        names = [x for x in order if x != "class" or self.forest.n_outputs > 1]
        with tb.grid(*(counts[name] for name in names)) as loops:
            for name, loop in zip(names, loops, strict=True):
                IRBuilder.name(name, loop)
            yield dict(zip(names, loops, strict=True))

    def axes(self, loops: dict[str, Any], tree_axis: Any) -> tuple[Any, Any, Any]:
        """Declare the block's axes; returns row, class and round."""
        classes = i64(self.forest.n_outputs)
        r = tb.axis.spatial(self.n, loops["batch"])
        c = tb.axis.spatial(classes, loops["class"]) if "class" in loops else i64(0)
        t = tree_axis(i64(self.forest.n_trees // self.forest.round_size), loops["tree"])
        for name, axis in (("r", r), ("c", c), ("t", t)):
            if isinstance(axis, tirx.Var):
                IRBuilder.name(name, axis)
        return r, c, t

    def place(self, t: Expr, c: Expr) -> Expr:
        """Return the column of a round t and class c; where leaves hold one value, its tree."""
        classes = self.forest.n_outputs
        return t * i64(classes) + c if classes > 1 else t

    def reads(self, r: Expr) -> list[Any]:
        """Return all that a walk of row r may read, which TVM cannot see inside the operator."""
        whole = [buffer[tuple(slice(0, end) for end in buffer.shape)] for buffer in self.model]
        return [self.rows[r, 0 : self.rows.shape[1]], *whole]

    def walk(self, op: str, r: Expr, t: Expr, c: Expr) -> Expr:
        """Return the value that row r adds to class c in round t, or the number of its leaf."""
        anchors = [buffer[(0,) * len(buffer.shape)] for buffer in self.model]
        leaves = len(leaf_buffers(self.forest)) if op == ops.WALK else 0
        layout = anchors[: len(anchors) - leaves]
        tree = t if self.forest.has_vectors else self.place(t, c)
        dtype = "int32" if op == ops.WALK_ID else walk_dtype(self.forest)
        walk = tirx.call_intrin(dtype, op, self.rows[r, 0], tree, *layout)
        if not leaves:
            return walk
        if self.forest.has_vectors:
            return self.model[-1][walk.astype("int64"), c]
        return tirx.call_intrin(dtype, ops.LINEAR, walk, self.rows[r, 0], *anchors[-leaves:])


JOIN = {"min": tirx.min, "max": tirx.max}
"""How two leaf values are joined, by the forest's aggregate; by default they are added."""


def _emit_sums(walks: WalkBlock, base: Any, margin: Any) -> None:
    forest = walks.forest
    join = JOIN.get(forest.aggregate, lambda a, b: a + b)
    with walks.loops() as loops, tb.sblock("walk"):
        r, c, t = walks.axes(loops, tb.axis.reduce)
        tb.reads(*walks.reads(r), base[c])
        tb.writes(margin[r, c])
        with tb.init():
            tb.buffer_store(margin, _initial_sum(forest, base[c]), [r, c])
        value = walks.walk(ops.WALK, r, t, c)
        tb.buffer_store(margin, join(margin[r, c], value), [r, c])


def _initial_sum(forest: Forest, base: Any) -> Any:
    """Return the value that a sum has before the first tree."""
    if forest.aggregate in JOIN:
        end = tirx.infinity(forest.sum_dtype)
        return end if forest.aggregate == "min" else -end
    return base if forest.base_first else tirx.FloatImm(forest.sum_dtype, 0.0)


def _emit_leaves(walks: WalkBlock, leaf: Any, op: str) -> None:
    with walks.loops() as loops, tb.sblock("walk"):
        r, c, t = walks.axes(loops, tb.axis.spatial)
        place = walks.place(t, c)
        tb.reads(*walks.reads(r))
        tb.writes(leaf[r, place])
        tb.buffer_store(leaf, walks.walk(op, r, t, c), [r, place])


def _parameter(name: str, shape: Sequence[Any], dtype: str) -> Any:
    """Declare a buffer argument that may start at any multiple of its item size."""
    return tb.arg(name, tb.buffer(tuple(shape), dtype, align=tvm.DataType(dtype).itemsize))


def columns_of_trees(forest: Forest) -> Array:
    """Return which columns of "per_tree" and "apply" each tree of the source model has.

    Returns:
        int64 (T, W), places `round * C + class`; W is 1, or C where leaves hold vectors.
    """
    known = np.flatnonzero(forest.tree_id >= 0)
    order = known[np.argsort(forest.tree_id[known], kind="stable")]
    if forest.has_vectors:
        return order[:, None] * forest.n_outputs + np.arange(forest.n_outputs)
    trees = len(np.unique(forest.tree_id[known]))
    return order.reshape(trees, -1) if trees else order.reshape(0, 1)
