"""The compiled model for another machine: to be looked at and exported.

takes: code for another machine, arrays, Forest; gives: DistantPredictor.
"""

from __future__ import annotations

from typing import Any

from ..errors import DeviceError
from ..forest import Array
from ..runtime import Library
from ..runtime.results import Output
from ..schedule import Schedule
from .functions import BoundFunction, Functions
from .predictor import Predictor


class DistantFunctions(Functions):
    """Functions that nobody calls here: what TVM would load them for, this machine may not know."""

    def _bind_function(self, library: Library, name: str, sch: Schedule) -> BoundFunction:
        return BoundFunction(None, None, (), 0, 0, False, sch.keeps_order)


class DistantPredictor(Predictor):
    """A forest compiled for another machine, which is exported and does not predict here."""

    _functions_class = DistantFunctions
    _max_small_batch = 0

    def _describe_target(self) -> str:
        return str(dict(self.target.options)["mtriple"])

    def _for_rows(self, rows: Any) -> Predictor:
        """Refuse."""
        raise _error(self.target.to_dict())

    def _compute_contributions(self, name: Output, rows: Any, n_jobs: int | None) -> Array:
        """Refuse."""
        raise _error(self.target.to_dict())


def _error(target: dict[str, Any]) -> DeviceError:
    return DeviceError(
        f"predict: the code is for another machine, {target}, and does not run here; use "
        "export_library and predict there, or build with target 'llvm'"
    )
