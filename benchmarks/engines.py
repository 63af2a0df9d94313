"""The engines of the benchmark: how each makes a predictor of a model, and how it is called.

takes: Model; gives: Engine, whose `predict` is timed.

An engine of your own is a class like those below; `--engines module:Class` finds it. `predict`
takes numpy rows and returns what the training library's `predict` (for a classifier of
scikit-learn, `predict_proba`) returns; what a caller has to do for that counts. Rows come in the
dtype that the engine reads.
"""

from __future__ import annotations

import importlib
import pickle
import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from models import Model, limit_threads
from timing import cores

EVERY = ("xgboost", "lightgbm", "scikit-learn")
LIBRARY = "library"


class Engine:
    """One engine and one model.

    Attributes:
        packages: modules that it needs; they are imported before the clock runs. LIBRARY stands
            for the one that trained the model.
        takes: libraries whose models it reads.
        must_equal: whether a margin that differs in one bit ends the benchmark with status 1.
        dtype: of the rows that it reads; None for the dtype in which the library compares.
        predict: what is timed.
        margin: gives margins, or None if the engine does not tell them.
    """

    packages: tuple[str, ...] = ()
    takes: tuple[str, ...] = EVERY
    must_equal = False
    dtype: str | None = None
    predict: Callable[[Any], Any]
    margin: Callable[[Any], Any] | None = None

    def __init__(self, model: Model, argument: str) -> None:
        """Make a predictor; `argument` is what follows the colon behind the engine's name."""
        raise NotImplementedError

    @classmethod
    def modules(cls, model: Model) -> list[str]:
        """List the modules to import for a model; a pickle needs its library in any case."""
        pickled = model.library == "scikit-learn"
        library = "sklearn" if pickled else model.library
        packages = (*cls.packages, LIBRARY) if pickled else cls.packages
        return [library if name == LIBRARY else name for name in packages]

    def use_threads(self, count: int) -> None:
        """Use so many threads from now on, or fewer if the engine cannot."""

    def model_bytes(self) -> int | None:
        """Return the size of the model in memory, or of the file that holds it."""
        return None


class Ours(Engine):
    """The package.

    `ours:FILE.json` and `ours:NAME` build with a schedule, `ours:mcpu=x86-64-v3` for another CPU.
    """

    packages = ("tvm_forest", "tvm")
    takes = (*EVERY, "catboost")

    def __init__(self, model: Model, argument: str) -> None:
        import tvm_forest

        source = model.load() if model.library == "scikit-learn" else model.path
        forest = tvm_forest.load(source)
        option, _, cpu = argument.partition("=")
        target: Any = {"kind": "llvm", "mcpu": cpu} if option == "mcpu" else "llvm"
        sch = _schedule(argument, forest) if argument and option != "mcpu" else None
        self.must_equal = sch is None or sch.keeps_order
        self.predictor = tvm_forest.build(forest, target, sch, exact=self.must_equal)
        probability = model.gives == "probability"
        self.predict = self.predictor.predict_proba if probability else self.predictor.predict
        if model.library == "catboost":  # whose margins are asked for
            self.predict = self.predictor.predict_margin
        self.margin = self.predict if probability else self.predictor.predict_margin

    def use_threads(self, count: int) -> None:
        # As many as there are: the predictor decides, as it does for callers who say nothing.
        self.predictor.n_jobs = None if count >= cores() else count

    def model_bytes(self) -> int:
        return self.predictor.model_bytes


def _schedule(argument: str, forest: Any) -> Any:
    import tvm_forest

    if argument.endswith(".json"):
        return tvm_forest.Schedule.from_json(Path(argument).read_text(encoding="utf-8"))
    from layouts import LAYOUTS
    from schedules import SCHEDULES, blocked

    start = tvm_forest.new_schedule(forest)
    if argument in LAYOUTS:
        return blocked(LAYOUTS[argument](start)).interleave("b1", 8)
    if argument not in SCHEDULES:
        known = ", ".join((*SCHEDULES, *LAYOUTS))
        raise ValueError(f"'{argument}' is no .json file and no schedule (have: {known})")
    return SCHEDULES[argument](start)


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


class TorchTrees(Engine):
    """Hummingbird's tree traversal in PyTorch, which `pip install torch` adds; see there."""

    packages = ("torch", "tvm_forest")
    takes = ("xgboost",)
    dtype = "float32"
    way = "trees"

    def __init__(self, model: Model, argument: str) -> None:
        import tvm_forest
        from tensor_forests import TensorForest

        tensors = TensorForest(tvm_forest.load(model.path), self.way)
        self.predict, self.margin = tensors.predict, tensors.margin

    def use_threads(self, count: int) -> None:
        import torch

        torch.set_num_threads(count)


class TorchGemm(TorchTrees):
    """Hummingbird's matrix products."""

    way = "gemm"


class TorchPerfect(TorchTrees):
    """Hummingbird's traversal of complete trees."""

    way = "perfect"


ENGINES: dict[str, type[Engine]] = {
    "ours": Ours,
    "xgboost": XGBoost,
    "xgboost-dmatrix": XGBoostMatrix,
    "lightgbm": LightGBM,
    "catboost": CatBoost,
    "scikit-learn": ScikitLearn,
    "onnxruntime": OnnxRuntime,
    "treelite": Treelite,
    "tl2cgen": TL2cgen,
    "lleaves": Lleaves,
    "lignum": Lignum,
    "lignum-compiled": LignumCompiled,
    "daal4py": Daal4py,
    "timber": Timber,
    "nvforest": NvForest,
    "ydf": Ydf,
    "torch-gemm": TorchGemm,
    "torch-trees": TorchTrees,
    "torch-perfect": TorchPerfect,
}


def find(name: str) -> tuple[type[Engine], str]:
    """Return the class of an engine, and the argument behind the colon.

    What follows `~` or `@` names the same engine for another model, or in another environment.
    """
    head, _, tail = name.partition(":")
    head = re.split("[~@]", head)[0]
    if head in ENGINES:
        return ENGINES[head], tail
    return getattr(importlib.import_module(head), tail), ""


def in_dtype(rows: Any, dtype: str | None) -> Any:
    """Return the rows in the dtype that an engine reads."""
    return rows if dtype is None else np.ascontiguousarray(rows, dtype)
