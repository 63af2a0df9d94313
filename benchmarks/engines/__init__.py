"""The engines of the benchmark: how each makes a predictor of a model, and how it is called.

takes: Model; gives: Engine, whose `predict` is timed.

An engine of your own is a class like those of `peers.py`; `--engines module:Class` finds it.
`predict` takes numpy rows and returns what the training library's `predict` (for a classifier of
scikit-learn, `predict_proba`) returns; what a caller has to do for that counts. Rows come in the
dtype that the engine reads.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np

from benchmarks.engines import ours, peers
from benchmarks.engines.engine import Engine

__all__ = ["ENGINES", "Engine", "find", "in_dtype"]
ENGINES: dict[str, type[Engine]] = {
    "ours": ours.Ours,
    "xgboost": peers.XGBoost,
    "xgboost-dmatrix": peers.XGBoostMatrix,
    "lightgbm": peers.LightGBM,
    "catboost": peers.CatBoost,
    "scikit-learn": peers.ScikitLearn,
    "onnxruntime": peers.OnnxRuntime,
    "treelite": peers.Treelite,
    "tl2cgen": peers.TL2cgen,
    "lleaves": peers.Lleaves,
    "lignum": peers.Lignum,
    "lignum-compiled": peers.LignumCompiled,
    "daal4py": peers.Daal4py,
    "timber": peers.Timber,
    "nvforest": peers.NvForest,
    "ydf": peers.Ydf,
    "torch-gemm": ours.TorchGemm,
    "torch-trees": ours.TorchTrees,
    "torch-perfect": ours.TorchPerfect,
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
