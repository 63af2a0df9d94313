"""The other engines of the benchmark, each by the fastest call that it documents.

takes: Model; gives: Engine.
"""

from __future__ import annotations

import pickle
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines.engine import LIBRARY, Engine
from benchmarks.models.model import Model, limit_threads


class XGBoost(Engine):
    """`inplace_predict`."""

    packages = ("xgboost",)
    takes = ("xgboost",)

    def __init__(self, model: Model, argument: str) -> None:
        self.booster = model.load()
        self.predict = self.booster.inplace_predict
        self.margin = partial(self.predict, predict_type="margin")

    def use_threads(self, count: int) -> None:
        self.booster.set_param({"nthread": count})

    def model_bytes(self) -> int:
        return len(self.booster.save_raw("ubj"))


class XGBoostMatrix(XGBoost):
    """`predict` of a `DMatrix` that is made in the call."""

    def __init__(self, model: Model, argument: str) -> None:
        super().__init__(model, argument)
        self.predict = lambda rows: self.booster.predict(self.matrix(rows))
        self.margin = lambda rows: self.booster.predict(self.matrix(rows), output_margin=True)

    def use_threads(self, count: int) -> None:
        import xgboost

        super().use_threads(count)
        names = self.booster.feature_names
        self.matrix = partial(xgboost.DMatrix, nthread=count, feature_names=names)


class LightGBM(Engine):
    packages = ("lightgbm",)
    takes = ("lightgbm",)

    def __init__(self, model: Model, argument: str) -> None:
        self.booster = model.load()

    def use_threads(self, count: int) -> None:
        self.predict = partial(self.booster.predict, num_threads=count)
        self.margin = partial(self.predict, raw_score=True)

    def model_bytes(self) -> int:
        return len(self.booster.model_to_string())


class CatBoost(Engine):
    """`predict` of numpy rows, margins."""

    packages = ("catboost",)
    takes = ("catboost",)

    def __init__(self, model: Model, argument: str) -> None:
        self.model = model.load()
        self.use_threads(1)

    def use_threads(self, count: int) -> None:
        self.predict = self.margin = partial(
            self.model.predict, prediction_type="RawFormulaVal", thread_count=count
        )


class ScikitLearn(Engine):
    packages = ("sklearn",)
    takes = ("scikit-learn",)

    def __init__(self, model: Model, argument: str) -> None:
        self.path, self.estimator = model.path, model.load()
        probability = model.gives == "probability"
        self.predict = self.estimator.predict_proba if probability else self.estimator.predict

    def use_threads(self, count: int) -> None:
        limit_threads(self.estimator, count)

    def model_bytes(self) -> int:
        return self.path.stat().st_size


class OnnxRuntime(Engine):
    """Converted by onnxmltools or skl2onnx; without the label and the list of dictionaries."""

    packages = ("onnxruntime", "onnxmltools", "skl2onnx", LIBRARY)
    dtype = "float32"

    def __init__(self, model: Model, argument: str) -> None:
        self.data = _to_onnx(model.load(), model).SerializeToString()

    def use_threads(self, count: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = count, 4
        session = onnxruntime.InferenceSession(self.data, options, ["CPUExecutionProvider"])
        name, output = session.get_inputs()[0].name, session.get_outputs()[-1].name
        self.predict = lambda rows: session.run([output], {name: rows})[0]

    def model_bytes(self) -> int:
        return len(self.data)


def _to_onnx(trained: Any, model: Model) -> Any:
    if model.library == "scikit-learn":
        import skl2onnx

        plain = {id(trained): {"zipmap": False}} if model.gives == "probability" else None
        return skl2onnx.to_onnx(trained, model.rows()[:1].astype(np.float32), options=plain)
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    kind = [("rows", FloatTensorType([None, model.rows().shape[1]]))]
    if model.library == "xgboost":
        return onnxmltools.convert_xgboost(trained, initial_types=kind)
    return onnxmltools.convert_lightgbm(trained, initial_types=kind, zipmap=False)


def _to_treelite(model: Model) -> Any:
    import treelite

    if model.library == "scikit-learn":
        return treelite.sklearn.import_model(model.load())
    if model.library == "xgboost":
        return treelite.frontend.load_xgboost_model(model.path, format_choice="json")
    return treelite.frontend.load_lightgbm_model(model.path)


def _treelite_dtype(model: Model) -> str:
    return "float32" if model.library == "xgboost" else "float64"


class Treelite(Engine):
    """Treelite's interpreter, GTIL."""

    packages = ("treelite",)

    def __init__(self, model: Model, argument: str) -> None:
        self.trees, self.dtype = _to_treelite(model), _treelite_dtype(model)

    def use_threads(self, count: int) -> None:
        import treelite

        self.predict = partial(treelite.gtil.predict, self.trees, nthread=count)
        self.margin = partial(self.predict, pred_margin=True)

    def model_bytes(self) -> int:
        return len(self.trees.serialize_bytes())


class TL2cgen(Engine):
    """C code of treelite's models, 64 files, compiled by gcc."""

    packages = ("tl2cgen", "treelite")

    def __init__(self, model: Model, argument: str) -> None:
        import tl2cgen

        trees, self.dtype = _to_treelite(model), _treelite_dtype(model)
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "model.so"
        params = {"parallel_comp": min(64, trees.num_tree)}
        tl2cgen.export_lib(trees, toolchain="gcc", libpath=self.path, params=params)

    def use_threads(self, count: int) -> None:
        import tl2cgen

        predictor, matrix = tl2cgen.Predictor(self.path, nthread=count), tl2cgen.DMatrix
        self.predict = lambda rows: predictor.predict(matrix(rows))
        self.margin = lambda rows: predictor.predict(matrix(rows), pred_margin=True)

    def model_bytes(self) -> int:
        return self.path.stat().st_size


class Lleaves(Engine):
    packages = ("lleaves",)
    takes = ("lightgbm",)

    def __init__(self, model: Model, argument: str) -> None:
        import lleaves

        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "model.o"
        self.model = lleaves.Model(model_file=str(model.path))
        self.model.compile(cache=self.path)

    def use_threads(self, count: int) -> None:
        self.predict = partial(self.model.predict, n_jobs=count)

    def model_bytes(self) -> int:
        return self.path.stat().st_size


class Lignum(Engine):
    """Lignum's interpreter, `pip install pylignum`."""

    packages = ("lignum",)
    takes = ("xgboost", "lightgbm", "catboost")
    dtype = "float64"

    def __init__(self, model: Model, argument: str) -> None:
        import lignum

        self.model = lignum.load(str(model.path))

    def use_threads(self, count: int) -> None:
        self.predict = partial(self.model.predict, n_jobs=count)
        self.margin = partial(self.predict, raw_score=True)


class LignumCompiled(Lignum):
    """Lignum's C code, compiled by the system's compiler, for batches where it is faster."""

    def __init__(self, model: Model, argument: str) -> None:
        super().__init__(model, argument)
        self.model.compile(autotune=model.rows()[:4096].astype(np.float64))


class Daal4py(Engine):
    """Intel's oneDAL; takes forests of scikit-learn by way of treelite."""

    packages = ("daal4py", "treelite", LIBRARY)

    def __init__(self, model: Model, argument: str) -> None:
        import daal4py

        source = _to_treelite(model) if model.library == "scikit-learn" else model.load()
        self.model = daal4py.mb.convert_model(source)
        classifies = self.model.is_classifier_
        self.predict = self.model.predict_proba if classifies else self.model.predict

    def use_threads(self, count: int) -> None:
        import daal4py

        daal4py.daalinit(nthreads=count)

    def model_bytes(self) -> int:
        return len(pickle.dumps(self.model))


class Timber(Engine):
    """C code; on one thread only; without its optimizer, which changes predictions."""

    packages = ("timber.runtime",)
    dtype = "float32"

    def __init__(self, model: Model, argument: str) -> None:
        from timber.runtime import TimberPredictor

        hint = {"scikit-learn": "sklearn"}.get(model.library, model.library)
        self.model = TimberPredictor.from_model(model.path, format_hint=hint, optimize=False)
        self.predict = self.model.predict

    def model_bytes(self) -> int:
        return self.model._lib_path.stat().st_size


class NvForest(Engine):
    """The CPU path of nvForest; its threads are those of OpenMP."""

    packages = ("nvforest", "treelite")

    def __init__(self, model: Model, argument: str) -> None:
        import nvforest

        trees = _to_treelite(model)
        self.model = nvforest.load_from_treelite_model(trees, device="cpu")
        self.dtype = _treelite_dtype(model)
        self.predict = getattr(self.model, "predict_proba", self.model.predict)


class Ydf(Engine):
    """Yggdrasil Decision Forests, which imports forests of scikit-learn."""

    packages = ("ydf", "sklearn")
    takes = ("scikit-learn",)

    def __init__(self, model: Model, argument: str) -> None:
        import ydf

        self.model = ydf.from_sklearn(model.load())
        self.model.force_engine(None)

    def use_threads(self, count: int) -> None:
        self.predict = lambda rows: self.model.predict({"features": rows}, num_threads=count)
