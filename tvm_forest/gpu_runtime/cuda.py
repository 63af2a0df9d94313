"""GPUs of NVIDIA, through the driver's own library.

takes: cubins or PTX; gives: a Driver. Needs libcuda and no toolkit. The primary context is used, as
CUDA's runtime and PyTorch do, so that their pointers and streams are ours as well.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .driver import FORKED, SMALLER, Driver, LoadedKernel, Module, Size

OLD_DRIVER = "update the driver, or install an older nvcc or NVRTC"
ERROR_LOG, ERROR_LOG_SIZE = 5, 6
"""Options of cuModuleLoadDataEx."""

DYNAMIC_SHARED = 8
"""Attribute of a kernel: bytes of shared memory that its launches may ask for."""

RENEWED = (
    *("DeviceTotalMem", "MemAlloc", "MemFree", "MemcpyHtoDAsync", "MemcpyDtoHAsync"),
    *("MemcpyDtoDAsync", "EventDestroy", "CtxPushCurrent", "CtxPopCurrent"),
)
"""Functions whose old form keeps the plain name."""


class CudaDriver(Driver):
    """A GPU of NVIDIA; `limits` also have bytes of shared memory for kernels that ask for more."""

    name = "cuda"
    libraries = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")
    missing = (
        "cuda: no driver of NVIDIA found (tried {tried}); run where there is a GPU and its driver, "
        "or use target 'llvm'"
    )
    prefix = "cu"
    symbols = {name: f"cu{name}_v2" for name in RENEWED}
    attributes = {
        **{"threads": 1, "shared": 8, "processors": 16, "major": 75, "minor": 76},
        "most_shared": 97,
    }
    runtime = "the driver"
    update = "update the driver of the GPU"
    visible = "CUDA_VISIBLE_DEVICES"
    manual = "CUDA's documentation of the driver API"
    oldest = 12000
    major = 1000
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

    def _open(self) -> int:
        handle = self._ask("DeviceGet", self.device)
        self._context = ctypes.c_void_p()
        self._call("DevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        return handle

    def _find_architecture(self) -> str:
        return f"sm_{self.limits['major']}{self.limits['minor']}"

    def load(self, image: bytes) -> Module:
        """Return the module of a cubin or of PTX."""
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(8192)
        options = (ctypes.c_int * 2)(ERROR_LOG, ERROR_LOG_SIZE)
        size = ctypes.c_void_p(len(log))
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), size)
        with self._select():
            code = self._library.cuModuleLoadDataEx(
                ctypes.byref(module), image + b"\0", 2, options, values
            )
        reason = log.value.decode(errors="replace").strip()
        self._check("cuModuleLoadDataEx", code, f"on {self.architecture}; {reason}".rstrip("; "))
        return Module(module, {})

    def _prepare_launch(
        self, kernel: LoadedKernel, block: Size, shared: int, arguments: Sequence[Any]
    ) -> None:
        limits = self.limits
        self._check_block(kernel.name, block, limits["threads"], shared, limits["most_shared"])
        if shared > limits["shared"]:
            self._do("FuncSetAttribute", kernel.handle, DYNAMIC_SHARED, shared)

    @contextmanager
    def _select(self) -> Iterator[None]:
        self._call("CtxPushCurrent", self._context)
        try:
            yield
        finally:
            self._call("CtxPopCurrent", ctypes.byref(ctypes.c_void_p()))

    def _describe_error(self, code: int) -> bytes | None:
        text = ctypes.c_char_p()
        known = self._library.cuGetErrorString(code, ctypes.byref(text)) == 0
        return text.value if known else None
