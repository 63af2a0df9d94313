"""GPUs of NVIDIA, through the driver's own library.

takes: cubins or PTX; gives: a Driver. Needs libcuda and no toolkit. The primary context is used, as
CUDA's runtime and PyTorch do, so that their pointers and streams are ours as well.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .driver import FORKED, SMALLER, Driver, Function, Names, Size, open_library

LIBRARIES = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")
MISSING = (
    "cuda: no driver of NVIDIA found (tried {tried}); run where there is a GPU and its driver, or "
    "use target 'llvm'"
)

OLD_DRIVER = "update the driver, or install an older nvcc or NVRTC"

ATTRIBUTES = {"threads": 1, "shared": 8, "processors": 16, "major": 75, "minor": 76}
ATTRIBUTES |= {"most_shared": 97}
ERROR_LOG, ERROR_LOG_SIZE = 5, 6
DYNAMIC_SHARED = 8


class CudaDriver(Driver):
    """A GPU of NVIDIA; `limits` also have bytes of shared memory for kernels that ask for more."""

    name = "cuda"
    names = Names(
        init="cuInit",
        version="cuDriverGetVersion",
        devices="cuDeviceGetCount",
        title="cuDeviceGetName",
        memory="cuDeviceTotalMem_v2",
        function="cuModuleGetFunction",
        allocate="cuMemAlloc_v2",
        free="cuMemFree_v2",
        upload="cuMemcpyHtoDAsync_v2",
        download="cuMemcpyDtoHAsync_v2",
        copy="cuMemcpyDtoDAsync_v2",
        launch="cuLaunchKernel",
        synchronize="cuStreamSynchronize",
        event="cuEventCreate",
        record="cuEventRecord",
        wait="cuStreamWaitEvent",
        query="cuEventQuery",
        finish="cuEventSynchronize",
        elapsed="cuEventElapsedTime",
        forget="cuEventDestroy_v2",
        runtime="the driver",
        update="update the driver of the GPU",
        visible="CUDA_VISIBLE_DEVICES",
        manual="CUDA's documentation of the driver API",
        oldest=12000,
        major=1000,
    )
    remedies = {
        1: "map the loop over rows to grid.x, or predict fewer rows: y and z have 65535 blocks at "
        "most",
        2: "predict fewer rows at a time, or free memory of the GPU",
        3: FORKED,
        100: "check with nvidia-smi that a GPU is visible, and CUDA_VISIBLE_DEVICES",
        200: OLD_DRIVER,
        209: "the code is for another GPU; build with its 'arch' in the target, or leave 'arch' "
        "out",
        222: OLD_DRIVER,
        500: "build the model again",
        701: SMALLER,
    }

    def __init__(self, device: int = 0, library: str | None = None) -> None:
        """Open a GPU.

        Args:
            device: its number, as CUDA_VISIBLE_DEVICES leaves them.
            library: path of libcuda; None for the installed one.

        Raises:
            DeviceError: no driver, a driver that is too old, or no such GPU.
        """
        super().__init__(device, open_library((library,) if library else LIBRARIES, MISSING))
        handle = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(handle), device)
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        self.limits = {name: self._attribute(code, handle) for name, code in ATTRIBUTES.items()}
        self.architecture = f"sm_{self.limits['major']}{self.limits['minor']}"
        self._ask_name_and_memory(handle)

    def _attribute(self, code: int, handle: ctypes.c_int) -> int:
        found = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(found), code, handle)
        return found.value

    def load(self, image: bytes) -> ctypes.c_void_p:
        """Return the module of a cubin or of PTX."""
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(8192)
        options = (ctypes.c_int * 2)(ERROR_LOG, ERROR_LOG_SIZE)
        size = ctypes.c_void_p(len(log))
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), size)
        with self._current():
            code = self._library.cuModuleLoadDataEx(
                ctypes.byref(module), image + b"\0", 2, options, values
            )
        said = log.value.decode(errors="replace").strip()
        self._check("cuModuleLoadDataEx", code, f"on {self.architecture}; {said}".rstrip("; "))
        return module

    def function(self, module: ctypes.c_void_p, name: str) -> Function:
        """Return a kernel of a module."""
        return self._function(module, name)

    def _prepare(self, function: Function, block: Size, shared: int, given: Sequence[Any]) -> None:
        limits = self.limits
        self._check_block(function.name, block, limits["threads"], shared, limits["most_shared"])
        if shared > limits["shared"]:
            self._do("cuFuncSetAttribute", function.handle, DYNAMIC_SHARED, shared)

    @contextmanager
    def _current(self) -> Iterator[None]:
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _said(self, code: int) -> bytes | None:
        text = ctypes.c_char_p()
        known = self._library.cuGetErrorString(code, ctypes.byref(text)) == 0
        return text.value if known else None
