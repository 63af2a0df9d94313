"""The compiled model for another machine, for inspection and export only.

takes: code for another machine, arrays, Forest; gives: DistantPredictor.
"""

from __future__ import annotations

from typing import Any

from ..errors import DeviceError
from ..forest import Array
from ..runtime import Library
from ..runtime.results import Output
from ..runtime.threads.by_batch import BoundFunction
from ..schedule_prims import Schedule
from .functions import Functions
from .predictor import Predictor


class DistantFunctions(Functions):
    """Functions that cannot be called here, because TVM may not be able to load their code."""

    def _bind_function(self, library: Library, name: str, sch: Schedule) -> BoundFunction:
        return BoundFunction(None, None, (), 0, 0, False, sch.keeps_order)


class DistantPredictor(Predictor):
    """A forest compiled for another machine, which can be exported but not called here."""

    _functions_class = DistantFunctions
    _max_small_batch = 0

    def _describe_target(self) -> str:
        return str(dict(self.target.options)["mtriple"])

    def _for_rows(self, rows: Any) -> Predictor:
        """Refuse to predict on this machine."""
        raise _error(self.target.to_dict())

    def _compute_contributions(self, name: Output, rows: Any, n_jobs: int | None) -> Array:
        """Refuse to predict on this machine."""
        raise _error(self.target.to_dict())


def _error(target: dict[str, Any]) -> DeviceError:
    return DeviceError(
        f"predict: the code is for another machine, {target}, and does not run here; use "
        "export_library and predict there, or build with target 'llvm'"
    )
