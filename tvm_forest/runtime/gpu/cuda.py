"""GPUs of NVIDIA, through the driver's own library.

takes: cubins or PTX; gives: a Driver. Needs libcuda and no toolkit. It uses the primary context, as
CUDA's runtime and PyTorch do, so their pointers and streams can be used here.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_void_p
from math import prod
from typing import Any

from .driver import FORKED, SMALLER
from .kernels import Arguments, BlockNeeds, LoadedKernel, Module, Size
from .shared_api import CAPTURING, SharedApiDriver

OLD_DRIVER = "update the driver, or install an older nvcc or NVRTC"
ERROR_LOG, ERROR_LOG_SIZE = 5, 6
"""Options of cuModuleLoadDataEx."""

MOST_THREADS, STATIC_SHARED, DYNAMIC_SHARED, SHARED_PERCENT = 0, 1, 8, 9
"""Kernel attributes: largest number of threads in a block, bytes of static shared memory, limit of
dynamic shared memory, and the percentage of a multiprocessor's memory used as shared memory; the
rest is its L1 cache."""

RESERVED_SHARED = 1 << 10
"""Bytes of shared memory of each block that the driver keeps for itself."""

RENEWED = (
    *("DeviceTotalMem", "MemAlloc", "MemFree", "MemcpyHtoDAsync", "MemcpyDtoHAsync"),
    *("MemcpyDtoDAsync", "EventDestroy", "CtxPushCurrent", "CtxPopCurrent"),
)
"""Functions called by their names with "_v2", since the plain names are an older interface."""


class CudaDriver(SharedApiDriver):
    """An NVIDIA GPU.

    `limits` also has the compute capability, the threads and shared memory of a multiprocessor, and
    "most_shared", the bytes of shared memory that a block may have if it asks for them.
    """

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
        **{"processor_threads": 39, "processor_shared": 81, "most_shared": 97},
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
        **CAPTURING,
    }

    def _find_handle(self) -> int:
        handle = self._ask("DeviceGet", self.device)
        context = c_void_p()
        self._call("DevicePrimaryCtxRetain", byref(context), handle)
        self.context, self._popped = context.value, byref(c_void_p())
        return handle

    def _find_architecture(self) -> str:
        return f"sm_{self.limits['major']}{self.limits['minor']}"

    def load(self, image: bytes) -> Module:
        """Load a cubin or PTX onto the GPU, and return the module.

        Raises:
            DeviceError: the driver refuses it, such as code for another GPU.
        """
        module, log = c_void_p(), ctypes.create_string_buffer(8192)
        options = (c_int * 2)(ERROR_LOG, ERROR_LOG_SIZE)
        values = (c_void_p * 2)(ctypes.addressof(log), len(log))
        before = self.enter()
        try:
            code = self._find("ModuleLoadDataEx")(byref(module), image + b"\0", 2, options, values)
        finally:
            self.leave(before)
        reason = log.value.decode(errors="replace").strip()
        here = f"on {self.architecture}, driver for CUDA {self.shown_version}"
        self._check("cuModuleLoadDataEx", code, f"{here}; {reason}".rstrip("; "))
        return Module(module, {})

    def find_kernel(self, module: Module, name: str) -> LoadedKernel:
        """Find a kernel and read the resources that it needs, see `Driver.find_kernel`."""
        kernel = super().find_kernel(module, name)
        needs = [c_int(), c_int()]
        for what, number in zip((MOST_THREADS, STATIC_SHARED), needs, strict=True):
            self._do("FuncGetAttribute", byref(number), what, kernel.handle)
        kernel.needs = BlockNeeds(*(number.value for number in needs))
        return kernel

    def _check_launch(
        self, kernel: LoadedKernel, grid: Size, block: Size, shared: int, arguments: Arguments
    ) -> None:
        limits, needs = self.limits, kernel.needs
        threads = min(limits["threads"], needs.threads)
        whole = shared + needs.shared
        self._check_block(kernel.name, block, threads, whole, limits["most_shared"])
        if whole > limits["shared"]:
            self._do("FuncSetAttribute", kernel.handle, DYNAMIC_SHARED, shared)
        percent = self._find_shared_percent(prod(grid), prod(block), whole)
        self._do("FuncSetAttribute", kernel.handle, SHARED_PERCENT, percent)

    def _find_shared_percent(self, blocks: int, threads: int, shared: int) -> int:
        """Return the percentage of a multiprocessor's memory to use as shared memory.

        By default the driver reserves shared memory for as many blocks as fit on a multiprocessor,
        even if a launch has fewer, which leaves too little for the L1 cache.
        """
        limits = self.limits
        each = min(-(-blocks // limits["processors"]), limits["processor_threads"] // threads)
        wanted = max(1, each) * (shared + RESERVED_SHARED)
        return min(100, -(-100 * wanted // limits["processor_shared"]))

    def enter(self) -> Any:
        """Make the GPU current on this thread, see `Driver.enter`."""
        current = c_void_p()
        self._call("CtxGetCurrent", byref(current))
        if current.value == self.context:
            return None
        self._call("CtxPushCurrent", self.context)
        return self.context

    def leave(self, before: Any) -> None:
        """Restore what was current before `enter`, see `Driver.leave`."""
        if before is not None:
            self._call("CtxPopCurrent", self._popped)

    def _describe_error(self, code: int) -> bytes | None:
        text = ctypes.c_char_p()
        known = self._library.cuGetErrorString(code, byref(text)) == 0
        return text.value if known else None
