"""Compile decision forests with TVM, exact to the bit.

    import tvm_forest
    predictor = tvm_forest.build(model)      # an XGBoost object or file
    predictor.predict(rows)

`ARCHITECTURE.md` shows how a model flows through the package; `compiler.py` is the compiler on one
page. A name is imported when it is first used, so importing the package is fast. The
logger "tvm_forest" records what was read, compiled and kept, and why code was compiled again.
"""

import logging
from typing import TYPE_CHECKING

from .system.late import import_whole
from .system.process import sources as sources  # which records the package's files as they are now

if TYPE_CHECKING:  # the same names as in `_ROOMS`, for type checkers and editors
    from .api import build as build
    from .api import default_schedules as default_schedules
    from .api import hop_schedule as hop_schedule
    from .api import load as load
    from .api import load_predictor as load_predictor
    from .api import lower as lower
    from .api import new_schedule as new_schedule
    from .api import profile as profile
    from .api import rewrite as rewrite
    from .api import tune as tune
    from .api import verify as verify
    from .api import with_depths as with_depths
    from .api.pruning import Pruned as Pruned
    from .api.pruning import prune as prune
    from .compiler import compile as compile
    from .errors import BuildError as BuildError
    from .errors import DeviceError as DeviceError
    from .errors import ForestError as ForestError
    from .errors import InputError as InputError
    from .errors import ModelFormatError as ModelFormatError
    from .errors import ScheduleError as ScheduleError
    from .errors import UnsupportedModel as UnsupportedModel
    from .estimators import ForestClassifier as ForestClassifier
    from .estimators import ForestRegressor as ForestRegressor
    from .estimators import accelerate as accelerate
    from .forest import Forest as Forest
    from .forest.profile import Profile as Profile
    from .frontends import SUPPORT as SUPPORT
    from .monitoring import Drift as Drift
    from .monitoring import Monitor as Monitor
    from .patching import patch as patch
    from .patching import unpatch as unpatch
    from .predictor.crossover import Crossover as Crossover
    from .predictor.live.warming import Warmed as Warmed
    from .predictor.live.warming import warm as warm
    from .predictor.predictor import Predictor as Predictor
    from .quantiles import QuantilePredictor as QuantilePredictor
    from .quantiles import build_quantiles as build_quantiles
    from .schedule_prims import Schedule as Schedule
    from .search.measuring import Tuned as Tuned
    from .streams import predict_file as predict_file
    from .target import Target as Target
    from .verification import Report as Report

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # users who want messages add another

_ROOMS = {
    "api": "build default_schedules hop_schedule load load_predictor lower new_schedule "
    "profile rewrite tune verify with_depths",
    "errors": "BuildError DeviceError ForestError InputError ModelFormatError ScheduleError "
    "UnsupportedModel",
    "estimators": "ForestClassifier ForestRegressor accelerate",
    "forest": "Forest",
    "forest.profile": "Profile",
    "frontends": "SUPPORT",
    "compiler": "compile",
    "monitoring": "Drift Monitor",
    "patching": "patch unpatch",
    "predictor.crossover": "Crossover",
    "predictor.live.warming": "Warmed warm",
    "predictor.predictor": "Predictor",
    "api.pruning": "Pruned prune",
    "quantiles": "QuantilePredictor build_quantiles",
    "schedule_prims": "Schedule",
    "search.measuring": "Tuned",
    "streams": "predict_file",
    "target": "Target",
    "verification": "Report",
}
"""The public names of each room."""

_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names.split()}

# `from tvm_forest import *` must work without scikit-learn, which the estimators derive from.
__all__ = sorted(_ROOM_OF.keys() - set(_ROOMS["estimators"].split()))


def __getattr__(name: str) -> object:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'tvm_forest' has no attribute {name!r}")
    return getattr(import_whole(f"tvm_forest.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
