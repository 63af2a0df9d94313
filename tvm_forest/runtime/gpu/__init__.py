"""Runs GPU kernels without TVM, by launch plans and the GPU's driver.

takes: images of kernels, launch plans; gives: functions that take arrays.
"""

from typing import NamedTuple

from ...forest import Array


class ModelArray(NamedTuple):
    """An array of the model, on the host; executors copy it to the GPU once."""

    array: Array

    def numpy(self) -> Array:
        """Return the array."""
        return self.array
