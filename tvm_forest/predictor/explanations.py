"""Presents contributions to people: as `shap` explanations and as ranked reasons.

takes: a predictor, rows; gives: `shap.Explanation`, `Reasons`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ..errors import InputError
from ..forest import Array, Forest
from ..system.late import import_late
from .inputs import to_rows

if TYPE_CHECKING:
    from .inputs import column_names, frames, named_rows
else:
    column_names = import_late("tvm_forest.predictor.inputs.column_names")
    frames = import_late("tvm_forest.predictor.inputs.frames")
    named_rows = import_late("tvm_forest.predictor.inputs.named_rows")

Toward = Literal["any", "higher", "lower"]
TOWARDS = ("any", "higher", "lower")


class Reasons(NamedTuple):
    """The features that contribute most to each row, in descending order.

    Attributes:
        columns: int64 (R, k) or (R, C, k), indices of features; -1 for unused places.
        values: float64 of the same shape, contributions to the margin; 0 for unused places.
        names: strings of the same shape, "" for unused places; features without a name are called
            "Feature 0" and so on, as in `shap`.
    """

    columns: Array
    values: Array
    names: Array


def pick_reasons(forest: Forest, values: Array, k: int, toward: Toward) -> Reasons:
    """Return the k largest contributions of each row.

    Features that contribute nothing, or move the margin in the other direction, are not reasons.
    Equal ones are in the order of their columns.

    Args:
        forest: the model.
        values: float64 (R, C, F + 1), contributions.
        k: the largest number of reasons per row and output; capped at the number of features.
        toward: "any" counts both signs, "higher" positive and "lower" negative contributions.

    Raises:
        InputError: invalid number or direction.
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"reasons: argument 'k': expected a whole number from 1 on, got {k!r}")
    if not isinstance(toward, str) or toward not in TOWARDS:
        known = ", ".join(TOWARDS)
        raise InputError(f"reasons: argument 'toward': {toward!r} is not there (have: {known})")
    values = values[:, 0, :-1] if values.shape[1] == 1 else values[:, :, :-1]
    size = {"any": np.abs(values), "higher": values, "lower": -values}[toward]
    order = np.argsort(-size, axis=-1, kind="stable")[..., :k]
    is_reason = np.take_along_axis(size, order, axis=-1) > 0
    columns = np.where(is_reason, order, -1)
    found = np.where(is_reason, np.take_along_axis(values, order, axis=-1), 0.0)
    return Reasons(columns, found, np.array([*name_features(forest), ""])[columns])


def name_features(forest: Forest) -> list[str]:
    """Return the names of the columns that users pass, "Feature 0" and so on if they have none."""
    names = forest.given_names
    return [f"Feature {at}" for at in range(forest.given_width)] if names is None else list(names)


def make_explanation(forest: Forest, rows: Any, values: Array) -> Any:
    """Return contributions (R, C, F + 1) of rows as a `shap.Explanation`.

    Raises:
        InputError: the package shap is not installed.
    """
    try:
        import shap
    except ImportError as missing:
        raise InputError(
            f"explain: {missing.name} is missing; install it with: pip install 'tvm-forest[shap]', "
            "or use predict_contributions"
        ) from None
    alone = np.moveaxis(values, 1, 2)
    if values.shape[1] == 1:
        alone = alone[:, :, 0]
    labels, outputs = forest.labels, None
    if values.shape[1] > 1:
        told = labels is not None and len(labels) == values.shape[1] and not forest.targets
        outputs = [str(x) for x in (labels if told else range(values.shape[1]))]  # type: ignore[union-attr]
    return shap.Explanation(
        np.ascontiguousarray(alone[:, :-1]),
        base_values=np.ascontiguousarray(alone[:, -1]),
        data=_show_rows(forest, rows),
        feature_names=name_features(forest),
        output_names=outputs,
    )


def _show_rows(forest: Forest, rows: Any) -> Array:
    """Return the values of rows, (R, F), for display: categories of frames by their labels."""
    rows = named_rows.gather_named(rows, forest)
    kind = frames.kind_of(rows)
    if kind is not None:
        rows = rows if kind == "named" else column_names.take_columns(rows, kind, forest)
        columns = [_take_column(rows, kind, at) for at in range(forest.given_width)]
        if forest.encoder is not None or any(x.dtype.kind not in "biuf" for x in columns):
            shown = np.empty((len(columns[0]), len(columns)), object)
            for at, column in enumerate(columns):
                shown[:, at] = column
            return shown
    elif forest.encoder is not None:
        return np.asarray(rows, object)
    return to_rows(rows, forest)[:, : forest.row_width]


def _take_column(frame: Any, kind: str, at: int) -> Array:
    if kind == "named":
        return np.array(frame.values[at], object)
    if kind == "pandas":
        return np.asarray(frame.iloc[:, at])
    return np.asarray(frame.to_series(at) if kind == "polars" else frame.column(at))
