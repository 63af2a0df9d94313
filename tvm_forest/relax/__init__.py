"""Forests inside Relax modules.

    import tvm_forest.relax                              # registers the operator
    bb.emit(tvm_forest.relax.predict(rows, model))       # in a function of a module

takes: models, Relax modules; gives: calls of the operator, modules.
"""

from typing import Any

from . import legalize as _legalize
from . import operator as _operator
from .link_forests import LinkForests
from .model import from_constant, to_constant
from .operator import predict

_operator.register()
_legalize.register()

__all__ = ["LinkForests", "from_constant", "from_onnx", "labels_of", "predict", "to_constant"]


def __getattr__(name: str) -> Any:
    """Import what reads ONNX models when it is first used."""
    if name in ("from_onnx", "labels_of"):
        from . import onnx

        return getattr(onnx, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
