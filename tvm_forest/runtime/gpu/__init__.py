"""Runs GPU kernels without TVM, by launch plans and the GPU's driver.

takes: images of kernels, launch plans; gives: functions that take arrays.

An image is the code of a library's kernels in the form that a driver loads: a cubin or PTX for
CUDA, a code object for HIP, source text for OpenCL.
"""

from typing import NamedTuple

from ...forest import Array


class ModelArray(NamedTuple):
    """An array of the model, on the host; executors copy it to the GPU once."""

    array: Array

    def numpy(self) -> Array:
        """Return the array; `DeviceArray` also has such a method, which copies to the host."""
        return self.array
