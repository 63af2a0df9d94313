"""MLflow flavour: saves and loads predictors as MLflow models, also as Python functions.

takes: models in any form, models of MLflow; gives: models of MLflow, Predictors.

    import tvm_forest.mlflow

    tvm_forest.mlflow.log_model(model, name="model", input_example=frame[:2])
    predictor = tvm_forest.mlflow.load_model("models:/...")
    function = mlflow.pyfunc.load_model("models:/...")
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import api
from ..errors import InputError
from ..forest import Forest
from ..predictor.predictor import Predictor
from ..streams.batches import find_features
from ..streams.formats import KINDS

try:
    import mlflow.models
    import mlflow.pyfunc
    from mlflow.artifacts import download_artifacts
    from mlflow.models import Model, ModelSignature, infer_signature
    from mlflow.types.schema import AnyType, ColSpec, DataType, ParamSchema, ParamSpec, Schema
except ImportError as missing:
    raise ImportError(
        f"tvm_forest.mlflow: {missing.name} is missing; install it with: pip install "
        "'tvm-forest[mlflow]'"
    ) from None

if TYPE_CHECKING:
    from mlflow.models.model import ModelInfo

FLAVOR_NAME = "tvm_forest"
_FILE = "model.tvmf"
_VERSION = sys.modules[__name__.partition(".")[0]].__version__


def get_default_pip_requirements() -> list[str]:
    """Return the requirements for predicting, without any training library."""
    return [f"tvm-forest[mlflow]=={_VERSION}"]


def save_model(
    model: Any,
    path: str | os.PathLike[str],
    mlflow_model: Model | None = None,
    signature: Any = None,
    input_example: Any = None,
    pip_requirements: Any = None,
    **options: Any,
) -> None:
    """Write an MLflow model to a folder.

    Args:
        model: a Predictor, or what `tvm_forest.build` takes.
        path: path of the folder, which must be empty, or not exist yet.
        mlflow_model: the MLflow model to which the flavour is added; None makes a new one.
        signature: the signature of the function, to which the param "kind" is added; None infers it
            from the example. False means no signature, so that MLflow drops all params.
        input_example: some rows, such as a frame; or a pair of rows and params.
        pip_requirements: requirements of the environment; None for this package alone.
        options: further arguments of `mlflow.pyfunc.save_model`, such as conda_env, code_paths,
            metadata, extra_pip_requirements.

    Raises:
        ForestError: the model cannot be compiled or saved, or refuses the example.
    """
    predictor = model if isinstance(model, Predictor) else api.build(model)
    about = Model() if mlflow_model is None else mlflow_model
    about.add_flavor(FLAVOR_NAME, version=_VERSION, data=f"data/{_FILE}")
    if signature is None and input_example is not None:
        is_pair = isinstance(input_example, tuple) and len(input_example) == 2  # rows, params
        rows, params = input_example if is_pair else (input_example, None)
        found = Function(predictor).predict(rows, params)
        signature = _allow_categories(infer_signature(rows, found, params), rows)
    if signature is not False:
        signature = _allow_kinds(signature)
    if pip_requirements is None and options.get("conda_env") is None:
        pip_requirements = get_default_pip_requirements()
    with tempfile.TemporaryDirectory() as folder:
        predictor.save(Path(folder) / _FILE)
        mlflow.pyfunc.save_model(
            os.fspath(path),
            loader_module=__name__,
            data_path=os.path.join(folder, _FILE),
            mlflow_model=about,
            signature=signature,
            input_example=input_example,
            pip_requirements=pip_requirements,
            **options,
        )


def _allow_categories(signature: Any, example: Any) -> Any:
    """Return the signature with any type for the columns of dtype `category` in the example.

    MLflow's schema would otherwise refuse texts, or this dtype, in these columns.
    """
    if not hasattr(example, "dtypes") or not hasattr(example, "columns"):
        return signature
    labelled = {name for name, dtype in example.dtypes.items() if str(dtype) == "category"}
    anything: Any = AnyType  # the class has no type annotations
    columns = [
        ColSpec(anything(), spec.name) if spec.name in labelled else spec
        for spec in signature.inputs.inputs
    ]
    return ModelSignature(Schema(columns), signature.outputs, signature.params)


def _allow_kinds(signature: ModelSignature | None) -> ModelSignature:
    """Return the signature with the param "kind": MLflow drops params that are not in it."""
    inputs, outputs, params = None, None, ParamSchema([])
    if signature is not None:
        inputs, outputs, params = signature.inputs, signature.outputs, signature.params or params
    if not any(spec.name == "kind" for spec in params.params):
        kind = ParamSpec("kind", DataType.string, "predict")
        params = ParamSchema([*params.params, kind])
    return ModelSignature(inputs, outputs, params)


def log_model(model: Any, name: str | None = None, **options: Any) -> ModelInfo:
    """Log a model in the current run, or in a new one.

    Args:
        model: see `save_model`.
        name: name of the logged model.
        options: further arguments of `save_model`, and of `mlflow.models.Model.log`, such as
            registered_model_name, params, tags, step.

    Returns:
        ModelInfo: pass its `model_uri` to `load_model`.
    """
    flavor = sys.modules[__name__]
    return Model.log(artifact_path=None, name=name, flavor=flavor, model=model, **options)


def load_model(
    model_uri: str, dst_path: str | None = None, *, recompile: bool = False
) -> Predictor:
    """Load the predictor of a model of MLflow.

    Args:
        model_uri: a URI such as "models:/m-...", "runs:/<run>/model", or the path of a folder.
        dst_path: folder to which the model is copied; None for a folder of MLflow's.
        recompile: run none of the stored code, see `tvm_forest.load_predictor`.

    Raises:
        InputError: the model does not have this flavour.
        ModelFormatError, BuildError: see `tvm_forest.load_predictor`.
    """
    folder = download_artifacts(artifact_uri=str(model_uri), dst_path=dst_path)
    flavors = Model.load(folder).flavors
    if FLAVOR_NAME not in flavors:
        raise InputError(
            f"load_model: argument 'model_uri': {model_uri!r} has the flavours "
            f"{', '.join(flavors)}; save it by tvm_forest.mlflow"
        )
    file = os.path.join(folder, flavors[FLAVOR_NAME]["data"])
    return api.load_predictor(file, recompile=recompile)


class Function:
    """A predictor in the form of a Python function (pyfunc) that MLflow calls."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor

    def get_raw_model(self) -> Predictor:
        """Return the predictor; MLflow's method of this name asks for it."""
        return self.predictor

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> Any:
        """Predict rows.

        Args:
            data: a pandas frame, whose columns are found by name and whose categories may be texts;
                or any other rows that `Predictor.predict` takes.
            params: "kind" is the name of the Predictor's method, "predict" by default.

        Raises:
            InputError: a column is missing, or the kind is unknown.
        """
        kind = (params or {}).get("kind", "predict")
        if kind not in KINDS:
            raise InputError(
                f"predict: param 'kind': {kind!r} is unknown (have: {', '.join(KINDS)})"
            )
        forest = self.predictor.forest
        if forest.given_names is not None and hasattr(data, "columns"):
            names = find_features(list(data.columns), forest, "predict: argument 'data'")
            data = _label_numbers(data[names], forest)
        return getattr(self.predictor, kind)(data)


def _label_numbers(frame: Any, forest: Forest) -> Any:
    """Return a frame in which columns of categories that are not texts have the dtype `category`.

    Without this dtype, such labels, for example numbers, would be taken for codes of categories.
    """
    known = forest.category_names.items()
    labelled = [frame.columns[i] for i, names in known if str not in set(map(type, names))]
    return frame.astype(dict.fromkeys(labelled, "category")) if labelled else frame


def _load_pyfunc(path: str) -> Function:
    """Return the function of a saved predictor; MLflow calls this."""
    return Function(api.load_predictor(path))
