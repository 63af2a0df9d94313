"""Forests inside Relax modules.

    import tvm_forest.relax                              # registers the operator
    bb.emit(tvm_forest.relax.predict(rows, model))       # in a function of a module

takes: models, Relax modules; gives: calls of the operator, modules.
"""

from . import legalize as _legalize
from . import operator as _operator
from .labels import labels_of
from .link_forests import LinkForests, register_linked
from .model import from_constant, to_constant
from .operator import predict
from .sklearn import from_sklearn

_operator.register()
_legalize.register()

__all__ = [
    "LinkForests",
    "from_constant",
    "from_sklearn",
    "labels_of",
    "predict",
    "register_linked",
    "to_constant",
]
