"""Compile decision forests with TVM, exact to the bit.

    import tvm_forest
    predictor = tvm_forest.build(model)      # an XGBoost object or file
    predictor.predict(rows)

`ARCHITECTURE.md` shows how a model flows through the package; `compiler.py` is the compiler on one
page. Names are imported when they are first used, so importing the package is fast.
"""

import importlib as _importlib
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
    from .forest.profile import Profile
    from .frontends import SUPPORT
    from .predictor.predictor import Predictor
    from .schedule_prims import Schedule
    from .search.measuring import Tuned
    from .target import Target
    from .verification import Report

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
    "Predictor": "predictor.predictor",
    "Profile": "forest.profile",
    "Report": "verification",
    "Schedule": "schedule_prims",
    "ScheduleError": "errors",
    "Target": "target",
    "Tuned": "search.measuring",
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
