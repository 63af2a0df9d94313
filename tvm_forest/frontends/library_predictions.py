"""Predicts with the training library itself.

takes: model as it was loaded, its Forest, rows; gives: LibraryPredictions, or why there are none.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..forest import Array, Forest
from ..forest.rules import WEIGHTED
from ..system.process.scratch import make_folder
from ..system.values import dataclass
from . import onnx
from .catboost import read_numbers
from .onnx.graph import read_tree_op
from .onnx.nodes import MODES
from .ydf.columns import find_sayable, to_columns


@dataclass(frozen=True)
class LibraryPredictions:
    """Predictions of a library, for N of R rows.

    Attributes:
        library: name and version.
        row_mask: bool (R,), true for the N rows that the library accepts.
        margin, value: (N, C), or None where the library does not return them.
        labels: (N,) or (N, C), or None.
        leaves: a function that returns the leaf numbers (T,) of one row, or None.
        note: why rows are left out.
    """

    library: str
    row_mask: Array
    margin: Array | None = None
    value: Array | None = None
    labels: Array | None = None
    leaves: Callable[[Array], Array | None] = lambda row: None
    note: str = ""


def predict_by_library(model: Any, forest: Forest, rows: Array) -> LibraryPredictions | str:
    """Let the training library predict.

    Args:
        model: the file or object that was loaded.
        forest: the Forest that was loaded from it.
        rows: (R, row_width) in the row dtype, without values that the forest refuses; as users pass
            them if the forest has an encoder.

    Returns:
        LibraryPredictions, made by one thread if several would change bits; or a text that says why
        there are none: the model is a Forest or a list, the library is not installed, or it fails.
    """
    library = forest.source.partition(" ")[0]
    if isinstance(model, list | tuple):
        return "a list of models is no library's; verify each of them"
    if isinstance(model, Forest) or library not in _PREDICT:
        return "the model is a Forest, which no library knows"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _PREDICT[library](model, forest, rows)
    except ImportError as error:
        return f"the package '{error.name}' is not installed"
    except Exception as error:  # libraries raise what they like
        return f"{library} fails: {(str(error).splitlines() or [type(error).__name__])[0][:200]}"


def _predict_by_xgboost(model: Any, forest: Forest, rows: Array) -> LibraryPredictions:
    import xgboost

    if isinstance(model, str | os.PathLike):
        model = xgboost.Booster({"nthread": 1}, model_file=os.fspath(model))
    library, row_mask, note = f"xgboost {xgboost.__version__}", np.ones(len(rows), bool), ""
    objective = forest.source.removeprefix("xgboost ").removesuffix(WEIGHTED)
    by_classes = objective == "multi:softmax"  # gives labels, where others give values
    if not isinstance(model, xgboost.Booster):
        margin = _as_columns(model.predict(rows, output_margin=True))
        if forest.labels is None:
            return LibraryPredictions(library, row_mask, margin, _as_columns(model.predict(rows)))
        value = None if by_classes else _as_probability(model.predict_proba(rows), forest)
        return LibraryPredictions(library, row_mask, margin, value, model.predict(rows))
    if '"name":"dart"' in model.save_config():  # rounds otherwise in place
        row_mask, note = row_mask & ~np.isinf(rows).any(axis=1), "a DMatrix refuses infinities"
        matrix = _make_matrix(model, rows[row_mask])
        margin, value = (model.predict(matrix, output_margin=raw) for raw in (True, False))
    else:
        margin, value = (
            model.inplace_predict(rows, predict_type=kind, validate_features=False)
            for kind in ("margin", "value")
        )

    def leaves(row: Array) -> Array:
        return model.predict(_make_matrix(model, row[None, :]), pred_leaf=True).ravel()

    values, labels = (None, value) if by_classes else (_as_columns(value), None)
    return LibraryPredictions(library, row_mask, _as_columns(margin), values, labels, leaves, note)


def _make_matrix(model: Any, rows: Array) -> Any:
    import xgboost

    names, types = model.feature_names, model.feature_types
    return xgboost.DMatrix(rows, feature_names=names, feature_types=types, enable_categorical=True)


def _predict_by_lightgbm(model: Any, forest: Forest, rows: Array) -> LibraryPredictions:
    import lightgbm

    if isinstance(model, str | os.PathLike):
        model = lightgbm.Booster(model_file=os.fspath(model))
    booster = model if isinstance(model, lightgbm.Booster) else model.booster_
    margin = _as_columns(booster.predict(rows, raw_score=True))
    return LibraryPredictions(
        f"lightgbm {lightgbm.__version__}",
        np.ones(len(rows), bool),
        margin / forest.n_rounds if forest.aggregate == "average" else margin,
        _as_columns(booster.predict(rows)),
        None if forest.labels is None else model.predict(rows),
        lambda row: np.ravel(booster.predict(row[None, :], pred_leaf=True)),
    )


def _predict_by_sklearn(model: Any, forest: Forest, rows: Array) -> LibraryPredictions:
    import sklearn

    if "n_jobs" in model.get_params():  # more threads add in any order
        model = copy.copy(model).set_params(n_jobs=1)
    row_mask, note = np.ones(len(rows), bool), ""
    if getattr(model, "is_categorical_", None) is not None:
        row_mask &= ~np.isinf(rows[:, model.is_categorical_]).any(axis=1)
        note = "the encoder of categories refuses infinities"
    rows = _with_texts(rows[row_mask], model, forest)
    labels = None if forest.labels is None else model.predict(rows)
    if forest.link == "isolation":
        margin, value = None, model.score_samples(rows)
    else:
        value = model.predict(rows) if labels is None else model.predict_proba(rows)
        margin = value
        if hasattr(model, "_loss"):  # boosting
            margin = model._raw_predict(rows)
    return LibraryPredictions(
        f"scikit-learn {sklearn.__version__}",
        row_mask,
        None if margin is None else _as_columns(margin),
        _as_probability(value, forest),
        labels,
        lambda row: model.apply(row[None, :]).ravel() if hasattr(model, "apply") else None,
        note,
    )


def _with_texts(rows: Array, model: Any, forest: Forest) -> Any:
    """Return rows as a frame with category labels, if the model was trained on strings."""
    if not forest.category_names:
        return rows
    import pandas

    frame = pandas.DataFrame(rows, columns=getattr(model, "feature_names_in_", None))
    for feature, names in forest.category_names.items():
        label = {float(code): name for code, name in enumerate(names)}
        texts = [x if x != x else label.get(x, "other") for x in rows[:, feature].tolist()]
        frame.isetitem(feature, pandas.Series(texts, dtype=object))  # which tells None from NaN
    return frame


def _predict_by_onnx(model: Any, forest: Forest, rows: Array) -> LibraryPredictions:
    """Predict by onnxruntime, without rows for which it is wrong.

    It truncates fractions that are tested for a set, and sends NaN at NEQ nodes to the true branch.
    """
    import onnxruntime

    data: Any = model.SerializeToString() if onnx.is_model(model) else model
    if not isinstance(data, bytes):
        data = Path(data).read_bytes()
    op, row_mask, notes = read_tree_op(data), np.ones(len(rows), bool), list[str]()
    modes = [f"BRANCH_{mode}".encode() for mode in MODES]
    if op.kind == "TreeEnsemble":
        used = {modes[code] for code in op.tensor("nodes_modes", dtype="uint8")}
    else:
        used = set(op.texts("nodes_modes"))
    if b"BRANCH_NEQ" in used:
        row_mask &= ~np.isnan(rows).any(axis=1)
        notes.append("onnxruntime is wrong about NaN at NEQ")
    if b"BRANCH_MEMBER" in used:
        whole = np.isnan(rows) | (rows == np.trunc(rows))
        row_mask &= whole.all(axis=1)
        notes.append("fractions in sets")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_outputs()]
    *labels, scores = session.run(names, {session.get_inputs()[0].name: rows[row_mask]})
    if not isinstance(scores, np.ndarray):  # a ZipMap
        scores = np.array([list(row.values()) for row in scores], np.float32)
    value = _as_probability(scores, forest)
    same = forest.link == "identity" and str(scores.dtype) == forest.sum_dtype
    return LibraryPredictions(
        f"onnxruntime {onnxruntime.__version__}",
        row_mask,
        value if same else None,
        value,
        np.array(labels[0]) if labels else None,
        note="; ".join(notes),
    )


def _as_columns(array: Any) -> Array:
    """Return predictions as one array (R, C); several targets may have an array each, in a list."""
    array = np.concatenate(array, axis=1) if isinstance(array, list) else np.asarray(array)
    return array.reshape(len(array), -1)


def _as_probability(value: Any, forest: Forest) -> Array:
    """Return probabilities (R, C); of two columns only the second if the forest has one output."""
    value = _as_columns(value)
    return value[:, -1:] if forest.n_outputs == 1 else value


def _predict_by_treelite(model: Any, forest: Forest, rows: Array) -> LibraryPredictions:
    import treelite

    if isinstance(model, str | os.PathLike):
        model = treelite.Model.deserialize(os.fspath(model))

    def outputs(pred_margin: bool) -> Array:  # treelite pads targets to the same number of classes
        padded = treelite.gtil.predict(model, rows, nthread=1, pred_margin=pred_margin)
        sizes = forest.targets or (padded.shape[2],) * padded.shape[1]
        return np.concatenate([padded[:, at, :size] for at, size in enumerate(sizes)], axis=1)

    return LibraryPredictions(
        f"treelite {treelite.__version__}",
        np.ones(len(rows), bool),
        outputs(True),
        outputs(False),
        leaves=lambda row: treelite.gtil.predict_leaf(model, row[None, :])[0],
    )


def _predict_by_ydf(model: Any, forest: Forest, rows: Array) -> LibraryPredictions:
    import ydf

    if isinstance(model, str | os.PathLike):
        model = ydf.load_model(os.fspath(model))
    row_mask = find_sayable(forest, model, rows)
    columns = to_columns(forest, model, rows[row_mask])
    value = _as_columns(model.predict(columns, num_threads=1))
    return LibraryPredictions(
        f"ydf {ydf.__version__}",
        row_mask,
        value if forest.link == "identity" else None,
        value,
        note="" if row_mask.all() else "no texts for odd codes, no missing booleans",
    )


def _predict_by_catboost(model: Any, forest: Forest, rows: Array) -> LibraryPredictions:
    import catboost

    by_loss = isinstance(model, str | os.PathLike | bytes)
    if by_loss:
        model = _load_catboost(model)

    def ask(kind: str) -> Array:
        return np.asarray(catboost.CatBoost.predict(model, rows, kind, thread_count=1))

    margin = _as_columns(ask("RawFormulaVal"))
    kinds = {"coarse_exp": "Exponent", "variance": "RMSEWithUncertainty"}
    is_class = forest.link in ("sigmoid", "coarse_softmax")
    kind = "Probability" if is_class else kinds.get(forest.link, "RawFormulaVal")
    value, labels = ask(kind), None
    if forest.gives_labels:
        labels = ask("Class") if by_loss else np.asarray(model.predict(rows, thread_count=1))
    return LibraryPredictions(
        f"catboost {catboost.__version__}",
        np.ones(len(rows), bool),
        margin,
        _as_probability(value, forest),
        labels,
        lambda row: np.ravel(model.calc_leaf_indexes(_make_pool(model, row), thread_count=1)),
    )


def _load_catboost(model: Any) -> Any:
    """Load a CatBoost file, and correct the numbers that CatBoost misreads in JSON.

    CatBoost reads one number in ten with an error in the last place.

    Raises:
        ValueError: a JSON file has tables that CatBoost misreads and whose numbers cannot be set.
    """
    import catboost

    data = model if isinstance(model, bytes) else Path(model).read_bytes()
    if data.startswith(b"CBM1"):
        return catboost.CatBoost().load_model(blob=data)
    with make_folder("verify") as folder:
        path = folder / "model.json"
        path.write_bytes(data)
        loaded = catboost.CatBoost().load_model(str(path), format="json")
    if b'"BinarizedTargetMeanValue"' in data or b'"FloatTargetMeanValue"' in data:
        raise ValueError("it reads the fractions in tables of means in JSON files as 0")
    leaves, (scale, bias) = read_numbers(data)
    loaded.set_leaf_values(leaves)
    loaded.set_scale_and_bias(scale, bias)
    return loaded


def _make_pool(model: Any, row: Array) -> Any:
    import catboost

    return catboost.Pool(row[None, :], cat_features=model.get_cat_feature_indices() or None)


_PREDICT: dict[str, Callable[[Any, Forest, Array], LibraryPredictions]] = {
    "catboost": _predict_by_catboost,
    "xgboost": _predict_by_xgboost,
    "lightgbm": _predict_by_lightgbm,
    "scikit-learn": _predict_by_sklearn,
    "onnx": _predict_by_onnx,
    "treelite": _predict_by_treelite,
    "ydf": _predict_by_ydf,
}
