"""Compile decision forests with TVM, exact to the bit.

    import tvm_forest
    predictor = tvm_forest.build(model)      # an XGBoost object or file
    predictor.predict(rows)

`ARCHITECTURE.md` shows how a model flows through the package; `lower.py` is the compiler on one
page. Names are imported when they are first used, so importing the package is fast.
"""

import importlib as _importlib
import sys as _sys
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import (
        build,
        default_schedule,
        default_schedules,
        load,
        load_predictor,
        lower,
        new_schedule,
        profile,
        rewrite,
        tune,
        verify,
        with_depths,
    )
    from .errors import (
        BuildError,
        ForestError,
        InputError,
        ModelFormatError,
        ScheduleError,
        UnsupportedModel,
    )
    from .estimators import ForestClassifier as ForestClassifier
    from .estimators import ForestRegressor as ForestRegressor
    from .forest import Forest
    from .frontends import SUPPORT
    from .profile import Profile
    from .runtime import Predictor
    from .schedule_prims import Schedule
    from .target import Target
    from .tuning import Tuned
    from .verify import Report

__version__ = "0.1.0"

_HOME = {
    "SUPPORT": "frontends",
    "BuildError": "errors",
    "Forest": "forest",
    "ForestClassifier": "estimators",
    "ForestError": "errors",
    "ForestRegressor": "estimators",
    "InputError": "errors",
    "ModelFormatError": "errors",
    "Predictor": "runtime",
    "Profile": "profile",
    "Report": "verify",
    "Schedule": "schedule_prims",
    "ScheduleError": "errors",
    "Target": "target",
    "Tuned": "tuning",
    "UnsupportedModel": "errors",
    "build": "api",
    "default_schedule": "api",
    "default_schedules": "api",
    "load": "api",
    "load_predictor": "api",
    "lower": "api",
    "new_schedule": "api",
    "profile": "api",
    "rewrite": "api",
    "tune": "api",
    "verify": "api",
    "with_depths": "api",
}

# Not the estimators: `import *` shall work without scikit-learn.
__all__ = [
    "BuildError",
    "Forest",
    "ForestError",
    "InputError",
    "ModelFormatError",
    "Predictor",
    "Profile",
    "Report",
    "SUPPORT",
    "Schedule",
    "ScheduleError",
    "Target",
    "Tuned",
    "UnsupportedModel",
    "build",
    "default_schedule",
    "default_schedules",
    "load",
    "load_predictor",
    "lower",
    "new_schedule",
    "profile",
    "rewrite",
    "tune",
    "verify",
    "with_depths",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'tvm_forest' has no attribute {name!r}")
    return getattr(_importlib.import_module(f"tvm_forest.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)


class _Package(_ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        """Keep the import of a module such as `lower` from hiding the function of that name."""
        if name not in _HOME or not isinstance(value, _ModuleType):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Let functions that name the package travel by cloudpickle, which knows plain modules."""
        return _importlib.import_module, (self.__name__,)


_sys.modules[__name__].__class__ = _Package
