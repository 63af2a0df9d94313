"""Converts whole pipelines of scikit-learn to Relax modules.

takes: fitted pipeline that ends with a forest; gives: IRModule.

    mod = tvm_forest.relax.from_sklearn(make_pipeline(StandardScaler(), forest).fit(rows, target))
    ex = tvm.compile(LinkForests()(mod), "llvm")

Transformers become Relax operators, and the last step becomes `relax.tvm_forest.predict`. Objects
are recognised by the names of their classes; scikit-learn is not imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from ... import frontends
from ...errors import InputError, ModelFormatError, UnsupportedModel
from ...forest import Forest
from ...frontends.objects import library_of
from ...frontends.refusals import name_in_errors
from ...schedule_prims.batches import Schedules
from ..labels import attach_labels
from ..operator import predict
from .arithmetic import Arithmetic, dtype_of, to_row
from .steps import PASSED_ON, Features, find_width, transform

DTYPES = ("float64", "float32", "int64", "int32")
METHODS = ("predict", "predict_proba", "decision_function", "score_samples")
WHERE = "from_sklearn: argument"
TAKES_SPARSE = ("sklearn", "lightgbm")
"""Libraries whose forests read an entry missing in a sparse matrix as zero."""


def from_sklearn(
    pipeline: Any,
    n_features: int | None = None,
    dtype: str | None = None,
    outputs: str | Sequence[str] = "predict",
    schedule: Schedules | None = None,
) -> tvm.IRModule:
    """Convert a fitted pipeline to a module that computes its predictions.

    Features, leaves, sums and labels are equal to those of scikit-learn to the bit. The module does
    not check its rows: those that scikit-learn refuses, such as infinities, get some result.

    Args:
        pipeline: a fitted `sklearn.pipeline.Pipeline` whose last step is a forest that
            `tvm_forest.load` takes, or such a forest. Before it, in any nesting: scalers,
            `Normalizer`, `Binarizer`, `SimpleImputer`, `MissingIndicator`, `OneHotEncoder`,
            `OrdinalEncoder`, `KBinsDiscretizer`, `PolynomialFeatures`, `ColumnTransformer`,
            `FeatureUnion`; all of numbers.
        n_features: number of columns of the rows; None for that of the training data.
        dtype: dtype of the rows: "float64" (also None), "float32", "int64" or "int32". As in
            scikit-learn, steps may compute in it, so results may depend on it.
        outputs: "predict", "predict_proba", "decision_function" or "score_samples", or several.
        schedule: how to evaluate the forest, see `tvm_forest.build`.

    Returns:
        IRModule: `main(rows: Tensor((n, F), dtype))` returns the same as the method of that name,
        or a tuple if `outputs` names several. For string labels it returns their indices, int64;
        `labels_of(module)["predict"]` holds the strings.

    Raises:
        InputError: an argument is unknown, or the last step has no such method.
        UnsupportedModel: a step cannot be compiled exactly; the error names it.
        ModelFormatError: a step is not fitted, or is not a model.
        ScheduleError: see `tvm_forest.relax.predict`.
    """
    names = [outputs] if isinstance(outputs, str) else list(outputs)
    steps = _list_steps(pipeline)
    name, last = steps[-1]
    _check_outputs(names, name, last)
    with name_in_errors(f"from_sklearn: step '{name}' ({type(last).__name__})"):
        forest = frontends.load(last)
    width = _count_features(steps, n_features)
    kind = "float64" if dtype is None else str(dtype)
    if kind not in DTYPES:
        raise InputError(f"{WHERE} 'dtype': {kind!r} is unknown; use {', '.join(DTYPES)}")
    bb, n = relax.BlockBuilder(), tirx.Var("n", "int64")
    rows = relax.Var("rows", relax.TensorType((n, width), kind))
    with bb.function("main", [rows]):
        with bb.dataflow():
            do, features = Arithmetic(bb), Features(rows)
            for inner, step in steps[:-1]:
                features = transform(do, inner, step, features)
            features = _fit_rows(do, name, last, forest, features)
            parts = _predict(do, last, forest, features, names, schedule)
            result = bb.emit_output(parts[0] if len(parts) == 1 else relax.Tuple(parts))
        bb.emit_func_output(result)
    return attach_labels(bb.get(), _texts(forest, names))


def _list_steps(pipeline: Any) -> list[tuple[str, Any]]:
    """Return the (name, step) pairs; a pipeline as the last step is replaced by its own steps."""
    if type(pipeline).__name__ != "Pipeline" or library_of(type(pipeline)) != "sklearn":
        return [(type(pipeline).__name__.lower(), pipeline)]
    *first, (name, last) = pipeline.steps
    return [*first, *((f"{name}.{x}" if x != name else x, y) for x, y in _list_steps(last))]


def _check_outputs(names: list[str], name: str, last: Any) -> None:
    """Refuse outputs that are not methods of the last step.

    Raises:
        InputError: there is such an output, or none at all.
    """
    for output in names or [""]:
        if output not in METHODS:
            raise InputError(f"{WHERE} 'outputs': {output!r} is unknown; use {', '.join(METHODS)}")
        if not hasattr(last, output) and hasattr(last, "predict"):
            what = f"step '{name}' ({type(last).__name__})"
            raise InputError(f"{WHERE} 'outputs': {what} has no {output}; use predict")


def _count_features(steps: list[tuple[str, Any]], given: int | None) -> int:
    """Return the number of features in a row.

    Raises:
        InputError: the given number is not that of the training data.
        ModelFormatError: no number is given, and the first step is not fitted.
    """
    name, step = next(pair for pair in steps if find_width(pair[1]) != PASSED_ON)
    fitted = find_width(step)
    if given is None and fitted is None:
        what = f"from_sklearn: step '{name}' ({type(step).__name__})"
        raise ModelFormatError(f"{what} is not fitted; fit it, or give n_features")
    if given is not None and fitted is not None and given != fitted:
        raise InputError(
            f"{WHERE} 'n_features': the pipeline was fitted to {fitted}, not {given}; leave it out"
        )
    return int(given or fitted or 0)


def _fit_rows(do: Arithmetic, name: str, last: Any, forest: Forest, features: Features) -> Any:
    """Convert features to the dtype of a forest, as its library does.

    Raises:
        UnsupportedModel: the features are sparse, and the library reads absent entries as missing.
    """
    library, rows = library_of(type(last)), features.rows
    if features.sparse and library not in TAKES_SPARSE:
        raise UnsupportedModel(
            f"from_sklearn: step '{name}' ({type(last).__name__}): it is given a sparse matrix, "
            "whose zeros it takes as missing; train with sparse_output=False, or sparse_threshold=0"
        )
    if library == "lightgbm" and dtype_of(rows).kind != "f":
        rows = do.cast(rows, "float32")
    return do.cast(rows, forest.row_dtype)


# -- outputs --------------------------------------------------------------------------------------


def _predict(
    do: Arithmetic,
    last: Any,
    forest: Forest,
    rows: Any,
    names: list[str],
    schedule: Schedules | None,
) -> list[Any]:
    """Return expressions of what the last step's methods `names` return.

    Raises:
        UnsupportedModel: `predict_proba` of several targets, which is a list of arrays.
    """
    isolates = type(last).__name__ == "IsolationForest"
    meaning = {
        "predict": "label" if _gives_labels(forest) else "value",
        "predict_proba": "probability",
        "decision_function": "value" if isolates else "margin",
        "score_samples": "value",
    }
    if "predict_proba" in names and forest.targets:
        raise UnsupportedModel(f"{WHERE} 'outputs': predict_proba of several targets is no array")
    needed = list(dict.fromkeys(meaning[name] for name in names))
    call = do.emit(predict(rows, forest, needed, schedule))
    parts = [call] if len(needed) == 1 else [do.emit(call[i]) for i in range(len(needed))]
    found = dict(zip(needed, parts, strict=True))
    results = {}
    for name in names:
        result = found[meaning[name]]
        if isolates and name == "decision_function":
            result = do.emit(relax.op.subtract(result, to_row(np.array([last.offset_]), "float64")))
        if meaning[name] in ("value", "margin") and forest.n_outputs == 1:
            result = do.emit(relax.op.squeeze(result, axis=[1]))
        results[name] = result
    return [results[name] for name in names]


def _gives_labels(forest: Forest) -> bool:
    return forest.labels is not None and forest.label_rule != "none"


def _texts(forest: Forest, names: list[str]) -> dict[str, Any]:
    """Return the string labels by the name of their output, "predict".

    Empty if labels are numbers, or if labels are not among the outputs.
    """
    labels = forest.labels
    is_text = labels is not None and labels.dtype.kind not in "iufb"
    return {"predict": labels} if is_text and "predict" in names and _gives_labels(forest) else {}
