"""The outputs of a forest in a module: their types, and the functions that compute them.

takes: Forest, type of the rows, names of outputs; gives: types; expressions over results.

    margin        (n, C)      as `Predictor.predict_margin`, with one column for each output
    value         (n, C)      margins after the link, such as the probability of the second class
    probability   (n, C), or (n, 2) for two classes: as `Predictor.predict_proba`
    label         (n,), or (n, targets): numbers; for labels that are strings, their indices in
                  `Forest.labels`, int64
    leaf          (n, T)      as `Predictor.apply`
    per_tree      (n, T), or (n, T, C) for leaf vectors: as `Predictor.predict_per_tree`
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi

from ..errors import InputError, UnsupportedModel
from ..forest import Array, Forest
from ..runtime.results import SUMS, Output, result_dtype, result_names
from .comparison import is_nan, order_of, order_of_number, order_with_nan_last
from .model import to_tensor_constant

OUTPUTS = ("margin", "value", "probability", "label", "leaf", "per_tree")
WHERE = "relax.tvm_forest.predict"
_FUNCTION_OF: dict[str, Output] = {"leaf": "apply", "per_tree": "per_tree"}


def function_of(output: str) -> Output:
    """Return the name of the compiled function from whose results an output is made."""
    return _FUNCTION_OF.get(output, SUMS)


def check_outputs(forest: Forest, outputs: list[str]) -> None:
    """Refuse outputs that are unknown, or that the model does not have.

    Raises:
        InputError: there is no output, or an unknown one.
        UnsupportedModel: the model has no probabilities, or no labels.
    """
    unknown = [name for name in outputs if name not in OUTPUTS]
    if unknown or not outputs:
        what = f"{unknown[0]!r} is unknown" if unknown else "none is named"
        raise InputError(f"{WHERE}: argument 'outputs': {what}; use {', '.join(OUTPUTS)}")
    gives = {"label": forest.gives_labels, "probability": forest.gives_probabilities}
    lacking = [name for name in outputs if not gives.get(name, True)]
    if lacking:
        raise UnsupportedModel(
            f"{WHERE}: argument 'outputs': the model '{forest.source}' gives no {lacking[0]}; use "
            "value or margin"
        )


# -- types ----------------------------------------------------------------------------------------


def type_of(forest: Forest, output: str, n: Any, vdevice: Any = None) -> relax.TensorType:
    """Return the type of an output for n rows, on a device `vdevice`; None for the first one."""
    columns, trees = forest.n_outputs, _count_source_trees(forest)
    value = result_dtype(forest, result_names(forest)[-1])
    shape, dtype = {
        "margin": ((n, columns), forest.sum_dtype),
        "value": ((n, columns), value),
        "probability": ((n, max(2, columns)), value),
        "label": ((n, *_label_columns(forest)), str(label_table(forest).dtype)),
        "leaf": ((n, trees), forest.leaf_id_dtype),
        "per_tree": ((n, trees, columns)[: 3 if forest.has_vectors else 2], forest.sum_dtype),
    }[output]
    return relax.TensorType(shape, dtype, vdevice=vdevice)


def _count_source_trees(forest: Forest) -> int:
    return len(np.unique(forest.tree_id[forest.tree_id >= 0]))


def _label_columns(forest: Forest) -> tuple[int, ...]:
    """Return the shape of labels after the row dimension."""
    if forest.label_rule in ("half", "cut"):
        return (forest.n_outputs,) if forest.n_outputs > 1 else ()
    return (len(forest.targets),) if forest.targets else ()


def label_table(forest: Forest) -> Array:
    """Return the numbers that a module outputs for `Forest.labels`, (labels,).

    TVM has no tensors of strings, so for string labels these are the indices 0, 1, ...
    """
    labels = forest.labels if forest.labels is not None else np.zeros(0, np.int64)
    return labels if labels.dtype.kind in "iufb" else np.arange(len(labels))


# -- expressions ----------------------------------------------------------------------------------


def assemble(
    bb: relax.BlockBuilder, forest: Forest, output: str, results: list[Any], columns: Array
) -> Any:
    """Return the expression of an output, made from the results of a compiled function.

    Args:
        bb: builder for further computations.
        forest: the model.
        output: one of `OUTPUTS`.
        results: expressions of the function's results: those of `result_names`, or one of leaves.
        columns: (T, W), which columns of "per_tree" or "apply" belong to each tree, see
            `BatchFunction`.
    """
    if function_of(output) != SUMS:
        return _order_leaves(bb, forest, output, results[0], columns)
    named = dict(zip(result_names(forest), results, strict=True))
    margin, value = named["margin"], results[-1]
    if output == "label":
        table = to_tensor_constant(label_table(forest))
        choose = partial(_choose_labels, forest)
        return bb.call_te(choose, margin, value, table, primfunc_name_hint="labels")
    if output == "probability" and forest.n_outputs == 1:
        return bb.call_te(_add_complement, value)
    return margin if output == "margin" else value


def _order_leaves(
    bb: relax.BlockBuilder, forest: Forest, output: str, leaves: Any, columns: Array
) -> Any:
    """Return leaf numbers, or leaf values, in the order of the source model's trees.

    Args:
        bb, forest, columns: see `assemble`.
        output: "leaf" or "per_tree".
        leaves: the function's result, by place `round * C + class`.
    """
    dtype = forest.leaf_id_dtype if output == "leaf" else forest.sum_dtype
    width = forest.n_outputs if output == "per_tree" and forest.has_vectors else 1
    places = columns[:, :width].ravel()

    def order(leaves: te.Tensor, places: te.Tensor) -> te.Tensor:
        shape = (leaves.shape[0], len(columns), width)
        if width == 1:
            return te.compute(shape[:2], lambda r, t: leaves[r, places[t]].astype(dtype))
        return te.compute(shape, lambda r, t, c: leaves[r, places[t * width + c]].astype(dtype))

    return bb.call_te(order, leaves, to_tensor_constant(places))


def _add_complement(value: te.Tensor) -> te.Tensor:
    """Return the probabilities of both classes, (n, 2), from that of the second."""
    one = tirx.const(1, value.dtype)
    return te.compute(
        (value.shape[0], 2), lambda r, c: tirx.Select(c > 0, value[r, 0], one - value[r, 0])
    )


def _choose_labels(
    forest: Forest, margin: te.Tensor, value: te.Tensor, labels: te.Tensor
) -> te.Tensor:
    """Return the label of each row from its margins or values.

    It follows `forest.reference.choose_labels`.

    Args:
        forest: the model.
        margin, value: (n, C), margins and values.
        labels: see `label_table`.
    """
    n, rule = margin.shape[0], forest.label_rule
    if rule == "cut":
        cut, columns = order_of_number(forest.label_cut, margin.dtype), _label_columns(forest)
        return te.compute(
            (n, *columns), lambda r, *c: labels[_as_place(_reaches(margin(r, *c or (0,)), cut))]
        )
    if rule == "half":
        half, columns = tirx.const(0.5, value.dtype), _label_columns(forest)
        return te.compute(
            (n, *columns), lambda r, *c: labels[_as_place(value(r, *c or (0,)) > half)]
        )
    scores = value if rule == "argmax_probability" else margin
    targets = forest.targets or (forest.n_outputs,)
    begins = np.cumsum([0, *targets])
    places = [
        _find_largest(scores, int(begin), count, skips_nan=rule == "top_margin")
        for begin, count in zip(begins, targets, strict=False)
    ]
    chosen = [_look_up(labels, at) for at in places]
    return topi.stack(chosen, axis=1) if forest.targets else chosen[0]


def _look_up(table: te.Tensor, places: te.Tensor) -> te.Tensor:
    return te.compute(places.shape, lambda r: table[places[r]])


def _as_place(condition: Any) -> Any:
    return tirx.Cast("int64", condition)


def _reaches(x: Any, cut: Any) -> Any:
    """Return whether x >= cut, where the cut is given as `order_of_number`; False for NaN."""
    return tirx.all(order_of(x) >= cut, tirx.Not(is_nan(x)))


def _find_largest(scores: te.Tensor, begin: int, count: int, skips_nan: bool) -> te.Tensor:
    """Return the index in `scores` of the column with the largest score, int64 (n,).

    Of equal scores the first is chosen; NaN is larger than all numbers. With `skips_nan`, that
    holds for the first column only, and NaN in other columns is ignored.

    Args:
        scores: (n, C).
        begin, count: the first column to compare, and the number of columns.
        skips_nan: see above.
    """
    column = te.reduce_axis((0, count), "column")

    def order(score: Any) -> Any:
        place = order_with_nan_last(score)
        if not skips_nan:
            return place
        return tirx.Select(tirx.all(is_nan(score), column.var > 0), _lowest(place.ty.dtype), place)

    pick = te.comm_reducer(_pick_larger, _before_all)
    place = tirx.const(begin, "int64") + column.var.astype("int64")
    return te.compute(
        (scores.shape[0],),
        lambda r: pick((place, order(scores[r, begin + column])), axis=column),
        name="largest",
    )[0]


def _pick_larger(a: Any, b: Any) -> tuple[Any, Any]:
    """Return that of two pairs (column, order of its score) with the larger score.

    If the scores are equal, it is the one with the smaller column.
    """
    (i, x), (j, y) = a, b
    takes_a = tirx.any(x > y, tirx.all(tirx.EQ(x, y), i < j))
    return tirx.Select(takes_a, i, j), tirx.Select(takes_a, x, y)


def _before_all(place: str, score: str) -> tuple[Any, Any]:
    """Return a pair (column, order of its score) that `_pick_larger` never prefers."""
    return tirx.max_value(place), _lowest(score)


def _lowest(dtype: Any) -> Any:
    """Return an integer below `order_of` all scores."""
    return -tirx.max_value(dtype)
