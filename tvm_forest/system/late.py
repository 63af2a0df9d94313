"""Modules that are imported on first use.

takes: the name of a module; gives: a proxy that imports it.

The compiler takes a second to import, and a process that finds its code in a file or in the cache
never needs it. A file that may need it writes at its top, in place of the import:

    if TYPE_CHECKING:
        from .. import compiler
    else:
        compiler = import_late("tvm_forest.compiler")
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any

from ..errors import BuildError
from .process.locks import importing

PACKAGE = __name__.partition(".")[0]


class LateModule(ModuleType):
    """A proxy that imports a module when an attribute is first read."""

    def __getattr__(self, name: str) -> Any:
        try:
            module = import_whole(self.__name__)
        except ModuleNotFoundError as error:
            if error.name != "tvm":
                raise
            raise BuildError(
                f"build: {self.__name__} needs the compiler, which is not installed; install "
                "apache-tvm, or load what Predictor.save wrote on a machine like this one"
            ) from None
        return getattr(module, name)

    def __reduce__(self) -> Any:
        """Support pickle, by the module's name."""
        return import_late, (self.__name__,)


class LateTable(MutableMapping[str, Any]):
    """A table of modules by name, each imported when its name is first looked up.

    Args:
        modules: the module that registers each name; others may be added.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules, self._known = dict(modules), dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        if name not in self._known and name in self._modules:
            import_module(self._modules[name])
        return self._known[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if value.__module__ != self._modules.get(name):
            self.get(name)  # import the old one now, or it would replace this one later
        self._known[name] = value

    def __delitem__(self, name: str) -> None:
        del self._known[name]
        self._modules.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._modules, **self._known})

    def __len__(self) -> int:
        return len({**self._modules, **self._known})


def import_late(name: str) -> Any:
    """Return a proxy for a module of this package, imported on first use."""
    return LateModule(name)


def import_whole(name: str) -> ModuleType:
    """Import a module, not on the main thread, so that no signal handler interrupts it.

    A module whose import was interrupted, such as TVM by Ctrl-C, cannot be imported again, since
    parts of it are registered already. Signal handlers run on the main thread, so another thread
    imports; it continues if a handler raises an exception on the main thread. Only if no thread can
    be started, or inside an import of this package, does the main thread itself import.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return module
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and name not in sys.modules and not _is_imported(sys._getframe()):
        helper = threading.Thread(target=_import, args=(name,), name=f"import of {name}")
        try:
            helper.start()
        except RuntimeError:  # the system gives no more threads, or Python ends
            if helper.ident is not None:
                raise
        else:
            helper.join()
    with importing:
        return import_module(name)


def _import(name: str) -> None:
    with importing, suppress(Exception):  # the waiting thread imports again, and raises the error
        import_module(name)


def _is_imported(frame: FrameType | None) -> bool:
    """Return whether a frame runs inside an import of a module of this package.

    An import on another thread would then wait for that import, and never end.
    """
    while frame is not None:
        is_module = frame.f_code.co_name == "<module>"
        name = str(frame.f_globals.get("__name__"))  # code of `exec` may have none
        if is_module and name.partition(".")[0] == PACKAGE:
            return True
        frame = frame.f_back
    return False
