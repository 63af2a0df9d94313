"""Forests inside Relax modules.

    import tvm_forest.relax                              # registers the operator
    bb.emit(tvm_forest.relax.predict(rows, model))       # in a function of a module

takes: models, Relax modules; gives: calls of the operator `relax.tvm_forest.predict`, modules.
"""

from importlib import import_module
from typing import Any

from . import check_target as _check_target
from . import legalize as _legalize
from . import nn
from . import operator as _operator
from .labels import labels_of
from .link_forests import LinkForests, register_linked
from .model import from_constant, to_constant
from .operator import predict
from .sklearn import from_sklearn

_operator.register()
_legalize.register()
_check_target.register()

__all__ = [
    "LinkForests",
    "from_constant",
    "from_onnx",
    "from_sklearn",
    "labels_of",
    "nn",
    "predict",
    "register_linked",
    "to_constant",
]


def __getattr__(name: str) -> Any:
    """Import modules that need ONNX or PyTorch on first use, as these may be missing."""
    if name == "from_onnx":
        return import_module(".onnx", __name__).from_onnx
    if name == "torch":
        return import_module(".torch", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
