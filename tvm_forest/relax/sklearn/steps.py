"""Converts the steps of a pipeline in order, with errors that name the step.

takes: fitted transformer, features; gives: features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ...errors import ForestError, ModelFormatError, UnsupportedModel
from ...frontends.objects import library_of
from . import encoders, scalers
from .arithmetic import Arithmetic, dtype_of, width_of


class Features(NamedTuple):
    """The features at one step of a pipeline.

    Attributes:
        rows: expression (n, F).
        sparse: whether scikit-learn would hold them as a sparse matrix.
        by_columns: whether NumPy would hold them column by column in memory, as it does after a
            selection by a list of columns.
    """

    rows: Any
    sparse: bool = False
    by_columns: bool = False


TRANSFORMERS: dict[str, Callable[[Arithmetic, Any, Any], Any]] = {
    "Binarizer": scalers.binarize,
    "KBinsDiscretizer": encoders.put_into_bins,
    "MaxAbsScaler": scalers.scale_max_abs,
    "MinMaxScaler": scalers.scale_min_max,
    "MissingIndicator": encoders.mark_missing,
    "Normalizer": scalers.normalize,
    "OneHotEncoder": encoders.encode_one_hot,
    "OrdinalEncoder": encoders.encode_ordinal,
    "PolynomialFeatures": scalers.raise_to_powers,
    "RobustScaler": scalers.scale_robust,
    "SimpleImputer": encoders.impute,
    "StandardScaler": scalers.scale_standard,
}
"""Functions for transformers that compute new features, by scikit-learn's class name."""
NEW_ARRAYS = ("KBinsDiscretizer", "OneHotEncoder", "OrdinalEncoder", "PolynomialFeatures")
"""Transformers whose output is always C-ordered."""
SAME_SUMS = {"l1": 7, "l2": 2, "max": 2**31}
"""Largest number of columns for which a norm does not depend on the memory order."""
PASSED_ON = -1
INEXACT = ("PCA", "TruncatedSVD", "IncrementalPCA", "FactorAnalysis", "FastICA")
"""Transformers that multiply matrices, whose sums cannot be reproduced exactly."""


def transform(do: Arithmetic, name: str, step: Any, features: Features) -> Features:
    """Return the output of a fitted transformer for features.

    Args:
        do: emits expressions.
        name: name of the step in errors.
        step: a transformer, None or "passthrough".
        features: its input.

    Raises:
        UnsupportedModel: the transformer, or a part of it, is not supported.
        ModelFormatError: it is not fitted, or damaged.
    """
    kind = type(step).__name__ if library_of(type(step)) == "sklearn" else ""
    if step is None or step == "passthrough":
        return features
    with name_step(name, step):
        if kind in PARTS:
            return PARTS[kind](do, name, step, features)
        if kind == "FunctionTransformer" and step.func is None:
            return features
        if kind not in TRANSFORMERS:
            raise NotImplementedError(_explain(step))
        if features.sparse:
            raise NotImplementedError(
                "the step before it gives a sparse matrix; train with sparse_output=False, or "
                "sparse_threshold=0"
            )
        width = getattr(step, "n_features_in_", width_of(features.rows))
        if width != width_of(features.rows):
            raise ValueError(f"it was fitted to {width} features, not {width_of(features.rows)}")
        by_columns = kind not in NEW_ARRAYS and features.by_columns
        if kind == "Normalizer" and by_columns and width > SAME_SUMS[step.norm]:
            raise NotImplementedError(
                "NumPy adds columns that were picked by a list in an order that depends on the "
                "number of rows; pick them by a slice"
            )
        rows = TRANSFORMERS[kind](do, step, features.rows)
        left_out = kind in ("SimpleImputer", "MissingIndicator") and width_of(rows) != width
        return Features(rows, _is_sparse(step), by_columns or left_out)


@contextmanager
def name_step(name: str, step: Any) -> Iterator[None]:
    """Convert Python's errors raised inside into errors of this package that name the step.

    A NotImplementedError becomes an UnsupportedModel; AttributeError and ValueError become a
    ModelFormatError. Errors of this package pass unchanged.
    """
    what = f"from_sklearn: step '{name}' ({type(step).__name__})"
    try:
        yield
    except NotImplementedError as error:
        raise UnsupportedModel(f"{what}: {error}") from None
    except ForestError:
        raise
    except (AttributeError, ValueError) as error:
        raise ModelFormatError(f"{what} is not fitted, or damaged ({error}); fit it") from error


def _explain(step: Any) -> str:
    name = type(step).__name__
    if name in INEXACT:
        return "it multiplies matrices, in an order of sums that is not known; leave it out"
    if name == "FunctionTransformer":
        return "it calls a function of Python; leave it out"
    return f"it cannot be compiled; use {', '.join(sorted({*TRANSFORMERS, *PARTS}))}"


def _is_sparse(step: Any) -> bool:
    if type(step).__name__ == "OneHotEncoder":
        return bool(step.sparse_output)
    return bool(getattr(step, "encode", "") == "onehot")


def find_width(step: Any) -> int | None:
    """Return the number of features on which a step was fitted.

    It is `PASSED_ON` for a step that passes on any number of them, and None if it is not known.
    """
    if step is None or isinstance(step, str) or type(step).__name__ == "FunctionTransformer":
        return PASSED_ON
    parts = [part for _, part in getattr(step, "steps", ())]
    if parts:
        return next((width for part in parts if (width := find_width(part)) != PASSED_ON), None)
    parts = [part for _, part in getattr(step, "transformer_list", ())]
    widths = [find_width(part) for part in parts] or [getattr(step, "n_features_in_", None)]
    return next((width for width in widths if width not in (None, PASSED_ON)), None)


# -- steps made of steps --------------------------------------------------------------------------


def _follow_pipeline(do: Arithmetic, name: str, step: Any, features: Features) -> Features:
    for inner, part in step.steps:
        features = transform(do, f"{name}.{inner}", part, features)
    return features


def _split_columns(do: Arithmetic, name: str, step: Any, features: Features) -> Features:
    weights, parts = step.transformer_weights or {}, []
    for inner, part, picked in step.transformers_:
        columns = list(step._transformer_to_input_indices[inner])
        if isinstance(part, str) and part == "drop" or not columns:
            continue
        by_columns = features.by_columns or not (isinstance(picked, slice) and picked.step is None)
        own = Features(do.select(features.rows, columns), features.sparse, by_columns)
        own = transform(do, f"{name}.{inner}", part, own)
        parts.append(_weigh(do, own, weights.get(inner)))
    return _join(do, parts, step.sparse_output_)


def _unite(do: Arithmetic, name: str, step: Any, features: Features) -> Features:
    weights = step.transformer_weights or {}
    parts = [
        _weigh(do, transform(do, f"{name}.{inner}", part, features), weights.get(inner))
        for inner, part in step.transformer_list
        if not (isinstance(part, str) and part == "drop")
    ]
    return _join(do, parts, any(part.sparse for part in parts))


def _weigh(do: Arithmetic, features: Features, weight: Any) -> Features:
    if weight is None:
        return features
    wide = np.result_type(dtype_of(features.rows), weight)
    values = np.full(width_of(features.rows), weight, wide)
    return features._replace(rows=do.change(do.cast(features.rows, wide), do.multiply, values))


def _join(do: Arithmetic, parts: list[Features], sparse: bool) -> Features:
    if not parts:
        raise NotImplementedError("it gives no columns")
    rows = do.join([part.rows for part in parts])
    return Features(rows, sparse, not sparse and all(part.by_columns for part in parts))


PARTS: dict[str, Callable[[Arithmetic, str, Any, Features], Features]] = {
    "ColumnTransformer": _split_columns,
    "FeatureUnion": _unite,
    "Pipeline": _follow_pipeline,
}
"""Functions for steps that consist of other transformers, by class name."""
