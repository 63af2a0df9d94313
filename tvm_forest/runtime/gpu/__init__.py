"""Runs GPU kernels without a compiler: launch plans and drivers.

takes: images of kernels, plans; gives: functions of arrays. Nothing here imports TVM.
"""

from typing import NamedTuple

from ...forest import Array


class ModelArray(NamedTuple):
    """An array of the model, on the host; executors copy it to the GPU once."""

    array: Array

    def numpy(self) -> Array:
        """Return the array."""
        return self.array
