"""Patches classes of libraries, at once or when a library is imported.

takes: the tables of `families` and `boosters`; gives: nothing; `end` restores all methods.

Libraries that the program does not import are not imported here either.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

from .boosters import BOOSTERS, list_changers
from .families import FAMILIES
from .methods import stand_for

_MISSING = object()
_replaced: list[tuple[type, str, Any, Any]] = []
"""The patched methods: class, name, original or `_MISSING`, and replacement."""


class _Watch:
    """An import hook that patches the modules of `FAMILIES` after they have run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of `FAMILIES` by the other finders, and arrange for its patches.

        Python calls this for each import; the result is None for all other modules.
        """
        if name not in FAMILIES:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                _replace_after(spec)
                return spec
        return None


_WATCH = _Watch()


def _replace_after(spec: ModuleSpec) -> None:
    """Wrap the loader of a module, so that methods are replaced after the module has run."""
    loader: Any = spec.loader
    if not hasattr(loader, "__dict__") or not hasattr(loader, "exec_module"):
        return

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        loader.exec_module(module)
        if _WATCH in sys.meta_path:
            _replace_in(spec.name)

    loader.exec_module = exec_module


def begin() -> None:
    """Patch existing classes, and those imported later."""
    sys.meta_path.insert(0, _WATCH)
    for name in FAMILIES:
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            _replace_in(name)


def end() -> None:
    """Restore the methods that were patched, unless other code has replaced them since."""
    sys.meta_path.remove(_WATCH)
    while _replaced:
        cls, name, before, ours = _replaced.pop()
        if vars(cls).get(name) is not ours:
            continue
        if before is _MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, before)


def _replace_in(module_name: str) -> None:
    """Patch the classes of an imported module."""
    module, found = sys.modules[module_name], list[tuple[type, str, Any]]()
    place, names = BOOSTERS.get(module_name, ("", ()))
    for cls in (getattr(sys.modules.get(place), name, None) for name in names):
        if isinstance(cls, type):
            found += [(cls, name, new) for name, new in list_changers(cls).items()]
    for class_name, family in FAMILIES[module_name].items():
        cls = getattr(module, class_name, None)
        if isinstance(cls, type):  # all originals are collected before the first is replaced
            owns = {name: getattr(cls, name, None) for name in family.answers}
            found += [
                (cls, name, stand_for(cls, name, family, own))
                for name, own in owns.items()
                if isinstance(own, FunctionType)
            ]
    for cls, name, new in found:
        _replaced.append((cls, name, vars(cls).get(name, _MISSING), new))
        setattr(cls, name, new)
