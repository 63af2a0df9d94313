"""The GPU backends, by kind of target.

takes: Target; gives: Backend. A saved predictor needs this file, so it does not import TVM.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

from ..errors import DeviceError
from ..runtime.gpu import cuda_compiler
from ..runtime.gpu.cuda import CudaDriver
from ..runtime.gpu.driver import Driver
from ..runtime.gpu.hip import HipDriver
from ..runtime.gpu.library import Backend
from ..runtime.gpu.opencl import OpenCLDriver
from ..target import Target

DEFAULT_GPUS = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")
"""GPUs of AMD that code is made for if none is named or present: one of each generation, CDNA 2, 3
and 4, and RDNA 2, 3 and 4. A GPU runs only the code that was made for its own name."""

DRIVERS: dict[str, Any] = {"cuda": CudaDriver, "rocm": HipDriver, "opencl": OpenCLDriver}


@functools.cache
def open_driver(kind: str, device: int) -> Driver:
    """Return the driver of a GPU; all predictors of the process share it.

    Raises:
        DeviceError: there is no such GPU.
    """
    opened: Driver = DRIVERS[kind](device)
    return opened


def find_backend(target: Target) -> Backend:
    """Return the Backend that opens the driver of a target's GPU, and makes code from kernels."""
    device = dict(target.options).get("device", 0)
    ways: dict[str, Any] = {"cuda": cuda_compiler.compile_cuda, "rocm": _refuse_to_translate}
    return Backend(lambda: open_driver(target.kind, device), ways.get(target.kind, _keep_text))


def _refuse_to_translate(source: str, architecture: str, driver: int | None) -> NoReturn:
    raise DeviceError(
        f"rocm: the GPU is a {architecture}, and code was made for the default list "
        f"{', '.join(DEFAULT_GPUS)}; build with target {{'kind': 'rocm', 'mcpu': '{architecture}'}}"
    )


def _keep_text(source: str, architecture: str, driver: int | None) -> bytes:
    return source.encode()
