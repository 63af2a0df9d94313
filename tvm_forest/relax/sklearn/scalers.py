"""Converts transformers that compute: scalers, normalizers, polynomials.

takes: fitted transformer, features as an expression; gives: the result of its `transform`.

Each follows the `transform` of scikit-learn 1.5 to 1.9, which works in place in the dtype of the
rows. All are equal to it to the bit for C-ordered rows, except the norms of `Normalizer` on
processors other than x86-64: NumPy adds squares in another order there, and norms are within 4 ulp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .arithmetic import Arithmetic, dtype_of, to_row


def scale_standard(do: Arithmetic, step: Any, x: Any) -> Any:
    """Convert `StandardScaler`, whose statistics are rounded to the dtype of the rows."""
    x = do.as_floats(x)
    if step.with_mean:
        x = do.change(x, relax.op.subtract, step.mean_.astype(dtype_of(x)))
    if step.with_std:
        x = do.change(x, relax.op.divide, step.scale_.astype(dtype_of(x)))
    return x


def scale_min_max(do: Arithmetic, step: Any, x: Any) -> Any:
    """Convert `MinMaxScaler`: multiply by `scale_`, add `min_`, and clip if the scaler does."""
    x = do.change(do.as_floats(x), do.multiply, step.scale_)
    x = do.change(x, relax.op.add, step.min_)
    return do.clip(x, *step.feature_range) if step.clip else x


def scale_max_abs(do: Arithmetic, step: Any, x: Any) -> Any:
    """Convert `MaxAbsScaler`: divide by `scale_`, and clip to -1 to 1 if the scaler does."""
    x = do.change(do.as_floats(x), relax.op.divide, step.scale_)
    return do.clip(x, -1.0, 1.0) if getattr(step, "clip", False) else x


def scale_robust(do: Arithmetic, step: Any, x: Any) -> Any:
    """Convert `RobustScaler`: subtract `center_` and divide by `scale_`, if the scaler has them."""
    x = do.as_floats(x)
    if step.with_centering:
        x = do.change(x, relax.op.subtract, step.center_)
    return do.change(x, relax.op.divide, step.scale_) if step.with_scaling else x


def normalize(do: Arithmetic, step: Any, x: Any) -> Any:
    """Convert `Normalizer`; norms below 10 machine epsilons are replaced by 1."""
    x = do.as_floats(x)
    own = dtype_of(x)
    if step.norm == "l2":
        norms = do.emit(relax.op.sqrt(do.sum_of_squares(x)))
    elif step.norm == "l1":
        norms = do.sum_pairwise(do.emit(relax.op.abs(x)))
    else:
        norms = do.emit(relax.op.max(relax.op.abs(x), axis=1, keepdims=True))
    tiny, one = to_row(np.array([10 * np.finfo(own).eps]), own), to_row(np.ones(1), own)
    norms = do.emit(relax.op.where(relax.op.less(norms, tiny), one, norms))
    return do.change(x, relax.op.divide, norms)


def binarize(do: Arithmetic, step: Any, x: Any) -> Any:
    """Convert `Binarizer`, which compares in NumPy's common dtype of rows and threshold."""
    wide = np.result_type(dtype_of(x), step.threshold)
    if wide.kind != "f":
        wide = np.dtype("float64")
    above = relax.op.greater(do.cast(x, wide), to_row(np.array([step.threshold]), wide))
    return do.cast(do.emit(above), dtype_of(x))


def raise_to_powers(do: Arithmetic, step: Any, x: Any) -> Any:
    """Convert `PolynomialFeatures`, which multiplies from the last factor to the first."""
    x = do.as_floats(x)
    own, powers = dtype_of(x), step.powers_
    factors = [np.repeat(np.arange(len(row)), row)[::-1] for row in powers]
    product = None
    for place in range(max(1, *map(len, factors))):
        has = np.array([len(own) > place for own in factors])
        columns = [int(own[place]) if len(own) > place else 0 for own in factors]
        factor = do.select(x, columns)
        if not has.all():
            ones = to_row(np.ones(len(has)), own)
            factor = do.emit(relax.op.where(to_row(has, "bool"), factor, ones))
        product = factor if product is None else do.multiply(product, factor)
    return product
