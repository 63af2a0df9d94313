"""Modules that are imported when they are first used.

takes: the name of a module; gives: what stands for it until then.

The compiler takes a second to import, and a process that finds its code in a file or in the cache
never needs it. A room that does says so at its top, as if it imported the module:

    if TYPE_CHECKING:
        from .. import compiler
    else:
        compiler = import_late("tvm_forest.compiler")
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from .errors import BuildError


class LateModule(ModuleType):
    """Stands for a module, which it imports when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        try:
            module = import_module(self.__name__)
        except ModuleNotFoundError as error:
            if error.name != "tvm":
                raise
            raise BuildError(
                f"build: {self.__name__} needs the compiler, which is not installed; install "
                "apache-tvm, or load what Predictor.save wrote on a machine like this one"
            ) from None
        return getattr(module, name)

    def __reduce__(self) -> Any:
        """Say how to pickle it: by its name."""
        return import_late, (self.__name__,)


def import_late(name: str) -> Any:
    """Return what stands for a module of this package until it is used."""
    return LateModule(name)
