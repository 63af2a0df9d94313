"""Hard rows for the models of a sweep, and the kinds in which users may give them."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

import _path  # noqa: F401 (what tests share)
from models import is_dart
from sweep_drawn import Drawn, frame_of
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows, typical_rows
from tvm_forest.forest.rules import ZERO
from tvm_forest.frontends.ydf.columns import find_sayable

SPARSE = ("csr_matrix", "csr_array", "csc_matrix", "coo_array")
LARGEST = float(np.finfo(np.float32).max)
ODD = (-1, -0.5, 0.5, 1.999, 31.5, 2.0**24, 2.0**31, 1e9, -1e9, np.nan)
"""Numbers for columns of categories, most of which are none."""


def drawn_rows(drawn: Drawn, forest: Forest, rng: Any, n: int) -> Any:
    """Rows (n, F) of thresholds, of what the model was trained on, and odd codes.

    They hold nothing that the model refuses, and for DART of XGBoost no infinities, see `models`.
    """
    dtype, seed = forest.row_dtype, int(rng.integers(1 << 30))
    hard = hard_rows(forest, n - n // 2, seed)
    typical = typical_rows(forest, n // 4, seed, 0.05)
    with np.errstate(all="ignore"):
        seen = drawn.rows[rng.integers(len(drawn.rows), size=n // 2 - n // 4)].astype(dtype)
    rows = np.concatenate([hard, typical, seen])
    for place in drawn.labels:
        chosen = rng.random(n) < 0.2
        rows[chosen, place] = rng.choice(np.array(ODD, dtype), int(chosen.sum()))
    if drawn.said.get("missing") is not None:
        rows[rng.random(rows.shape) < 0.1] = drawn.said["missing"]
    if forest.source.startswith("ydf"):  # which takes texts, and booleans that are not missing
        rows[~find_sayable(forest, drawn.model, rows)] = 0
    return _finite(drawn, forest, rows)


def _finite(drawn: Drawn, forest: Forest, rows: Any, sparse: bool = False) -> Any:
    """Replace what the model, or its library, refuses."""
    bounded = getattr(drawn.model, "is_categorical_", None)  # to an encoder, which takes no inf
    if is_dart(drawn.model) or "inf" in forest.refuses or sparse:
        bounded = np.ones(rows.shape[1], bool)
    if bounded is not None:
        rows = np.where(np.isinf(rows) & bounded, np.sign(rows) * 3e38, rows).astype(rows.dtype)
    if "inf" in forest.refuses:
        rows = np.where(np.isnan(rows), rows, np.clip(rows, -LARGEST, LARGEST))
    no_nan = "nan" in forest.refuses or (sparse and forest.source.startswith("scikit-learn"))
    return np.nan_to_num(rows, nan=0.5) if no_nan else rows


def in_kind(kind: str, drawn: Drawn, forest: Forest, rows: Any) -> Any:
    """Return rows like these as users may have them, of fewer numbers where a kind asks for it."""
    if kind == "float64":  # halves of them a little above what float32 holds
        above = np.random.default_rng(1).random(rows.shape) < 0.5
        rows = rows.astype(kind)
        return np.where(above & (rows < LARGEST), np.nextafter(rows, np.inf), rows)
    if kind == "float32":
        with np.errstate(all="ignore"):
            return _finite(drawn, forest, rows.astype(kind))
    if kind == "whole":
        return np.clip(np.nan_to_num(rows), -1e6, 1e6).astype(np.int64)
    if kind == "mixed frame":
        return _mixed(rows, forest)
    if kind in SPARSE:
        absent = np.random.default_rng(len(rows)).random(rows.shape) < 0.5
        absent |= np.abs(rows) <= ZERO  # where LightGBM contradicts itself
        return getattr(scipy.sparse, kind)(np.where(absent, 0, _finite(drawn, forest, rows, True)))
    rows = rows.copy()
    for place, names in drawn.labels.items():
        if names is not None:
            code = np.nan_to_num(rows[:, place], nan=-1, posinf=-1, neginf=-1)
            known = (code >= 0) & (code < len(names))
            rows[:, place] = np.where(known, np.floor(code), np.nan)
    return _named(frame_of(rows, drawn.labels), forest)


def _named(frame: Any, forest: Forest) -> Any:
    if forest.feature_names:
        frame.columns = list(forest.feature_names)
    return frame


def _mixed(rows: Any, forest: Forest) -> Any:
    """Return a frame whose columns have different dtypes."""
    frame, whole = frame_of(rows, {}), np.nan_to_num(rows)
    for i in range(rows.shape[1]):
        with np.errstate(all="ignore"):
            columns = (
                np.clip(rows[:, i], -LARGEST, LARGEST).astype("float32"),
                np.clip(whole[:, i], -(2.0**31), 2.0**31).astype("int64"),
                np.clip(whole[:, i], -9999, 9999).astype("int16"),
                whole[:, i] > 0,
                rows[:, i],
            )
        frame[f"f{i}"] = columns[(i + rows.shape[1]) % len(columns)]
    return _named(frame, forest)
