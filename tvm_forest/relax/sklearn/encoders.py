"""Converts transformers that compare: imputers, encoders, bins.

takes: fitted transformer, features as an expression; gives: the result of its `transform`.

A module cannot raise an error for an unknown category, as some transformers do: its one-hot columns
are zeros instead, and its ordinal number is NaN, or 0 if the transformer's dtype is of integers.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from tvm import relax

from ...forest import Array
from ..model import to_tensor_constant
from .arithmetic import Arithmetic, dtype_of, to_row, width_of


def is_nan(value: Any) -> bool:
    """Return whether a value is NaN."""
    return bool(isinstance(value, float | np.floating) and value != value)


# -- missing values -------------------------------------------------------------------------------


def impute(do: Arithmetic, step: Any, x: Any) -> Any:
    """Convert `SimpleImputer`; integers become float64 if it fills in means or medians."""
    if step.strategy not in ("most_frequent", "constant"):
        x = do.as_floats(x)
    missing = _find_missing(do, step.missing_values, x)
    statistics = np.asarray(step.statistics_)
    kept = np.arange(len(statistics))
    if not step.keep_empty_features:
        kept = np.flatnonzero([not is_nan(value) for value in statistics])
    fill = statistics[kept].astype(getattr(step, "_fill_dtype", step._fit_dtype))
    shown = do.select(x, list(kept))
    out = relax.op.where(do.select(missing, list(kept)), to_row(fill, dtype_of(x)), shown)
    if not step.add_indicator:
        return do.emit(out)
    return do.join([do.emit(out), do.select(missing, list(step.indicator_.features_))])


def mark_missing(do: Arithmetic, step: Any, x: Any) -> Any:
    """Convert `MissingIndicator`: return a flag per value, for the columns that it selected."""
    return do.select(_find_missing(do, step.missing_values, x), list(step.features_))


def _find_missing(do: Arithmetic, value: Any, x: Any) -> Any:
    if is_nan(value) and dtype_of(x).kind == "f":
        return do.emit(relax.op.isnan(x))
    if is_nan(value):  # whole numbers are never NaN
        return do.emit(relax.op.not_equal(x, x))
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise NotImplementedError(f"missing_values={value!r} is no number")
    wide = np.result_type(dtype_of(x), value)
    return do.emit(relax.op.equal(do.cast(x, wide), to_row(np.array([value]), wide)))


# -- categories -----------------------------------------------------------------------------------


def encode_one_hot(do: Arithmetic, step: Any, x: Any) -> Any:
    """Convert `OneHotEncoder`, including dropped, infrequent and unknown categories."""
    answers = _ask_encoder(step)
    widths = step._n_features_outs
    ends = np.cumsum(widths)
    blocks = [answers[:, end - width : end] for end, width in zip(ends, widths, strict=True)]
    places = np.stack([b.any(axis=1) * (_first_one(b) + 1) for b in blocks], axis=1)
    code = _look_up(do, step.categories_, places, x)
    return _spread(do, code, widths, 1, step.dtype)


def _first_one(block: Array) -> Array:
    return block.argmax(axis=1) if block.shape[1] else np.zeros(len(block), int)


def encode_ordinal(do: Arithmetic, step: Any, x: Any) -> Any:
    """Convert `OrdinalEncoder`, including unknown and missing categories."""
    answers = _ask_encoder(step)
    if step.handle_unknown == "error" and answers.dtype.kind == "f":
        answers[-1] = np.nan
    count, width = answers.shape
    places = np.tile(np.arange(count)[:, np.newaxis], width)
    code = _look_up(do, step.categories_, places, x)
    at = do.emit(relax.op.add(code, to_row(np.arange(width) * count, "int64")))
    return do.emit(relax.op.take(to_tensor_constant(answers.T.ravel()), at, 0, "clip"))


def _ask_encoder(step: Any) -> Array:
    """Return the encoder's output for rows of known categories, and for one of unknown ones.

    Row k holds category k of each column, or the column's last category if it has fewer. The last
    row holds unknown categories; if the encoder refuses these, its output is taken to be 0.
    """
    odd = [c.dtype for c in step.categories_ if c.dtype.kind not in "iuf"]
    if odd:
        raise NotImplementedError(f"categories of dtype {odd[0]} are no numbers")
    count = max(map(len, step.categories_))
    columns = []
    for known in step.categories_:
        other = next(i for i in range(len(known) + 1) if i not in known)
        last = known[0] if step.handle_unknown == "error" else other
        columns.append([*known, *known[-1:].repeat(count - len(known)), last])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = step.transform(np.array(columns).T)
    answers = np.array(answers.toarray() if hasattr(answers, "toarray") else answers)
    if step.handle_unknown == "error":
        answers[-1] = 0
    return answers


def _look_up(do: Arithmetic, categories: list[Array], places: Array, x: Any) -> Any:
    """Return a number for each value, int64 (n, F).

    Args:
        do: emits expressions.
        categories: the categories of each column.
        places: (count + 1, F), for each column the numbers to return for its categories 0, 1, ...,
            and in the last row that for all other values.
        x: features (n, F).
    """
    wide = np.result_type(dtype_of(x), *categories)
    count = len(places) - 1
    known = np.stack([np.pad(c.astype(wide), (0, count - len(c)), "edge") for c in categories])
    more = (places[:-1] - places[-1]).T.astype("int64")
    for column, own in enumerate(categories):
        more[column, len(own) :] = 0
    value = do.emit(relax.op.expand_dims(do.cast(x, wide), 2))
    found = do.emit(relax.op.equal(value, to_tensor_constant(known[np.newaxis])))
    if wide.kind == "f" and np.isnan(known).any():
        both = relax.op.logical_and(
            relax.op.isnan(value), to_tensor_constant(np.isnan(known)[np.newaxis])
        )
        found = do.emit(relax.op.logical_or(found, both))
    nothing = to_tensor_constant(np.zeros((1, 1, 1), "int64"))
    chosen = do.emit(relax.op.where(found, to_tensor_constant(more[np.newaxis]), nothing))
    total = do.emit(relax.op.sum(chosen, axis=2))
    return do.emit(relax.op.add(total, to_row(places[-1], "int64")))


def _spread(do: Arithmetic, code: Any, widths: Any, first: int, dtype: Any) -> Any:
    """Return one-hot columns for numbers (n, F), in a dtype.

    Column k of `code` becomes `widths[k]` columns, for the numbers `first`, `first + 1`, ...
    """
    owner = np.repeat(np.arange(len(widths)), widths)
    number = np.concatenate([np.arange(first, first + width) for width in widths])
    hot = relax.op.equal(do.select(code, list(owner)), to_row(number, "int64"))
    return do.cast(do.emit(hot), dtype)


# -- bins -----------------------------------------------------------------------------------------


def put_into_bins(do: Arithmetic, step: Any, x: Any) -> Any:
    """Convert `KBinsDiscretizer`: a value's bin is the number of inner edges that are <= it."""
    x = do.as_floats(x) if step.dtype is None else do.cast(x, step.dtype)
    inner = [np.asarray(edges)[1:-1] for edges in step.bin_edges_]
    wide = np.result_type(dtype_of(x), *inner)
    edges = np.full((1, width_of(x), max(1, *map(len, inner))), np.nan, wide)
    for column, own in enumerate(inner):
        edges[0, column, : len(own)] = own
    value = do.emit(relax.op.expand_dims(do.cast(x, wide), 2))
    below = do.emit(relax.op.less_equal(to_tensor_constant(edges), value))
    code = do.emit(relax.op.sum(do.cast(below, "int64"), axis=2))
    if step.encode == "ordinal":
        return do.cast(code, dtype_of(x))
    return _spread(do, code, step.n_bins_, 0, dtype_of(x))
