"""GPUs of NVIDIA, through the driver's own library.

takes: cubins or PTX; gives: a Driver. Needs libcuda and no toolkit; see `driver.Driver` for what
the methods do. The primary context is used, as CUDA's runtime and PyTorch do, so that their
pointers and streams are ours as well.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import DeviceError
from ..forest import Array
from .driver import Size

LIBRARIES = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")

OLDEST = 12000
"""Driver versions count 1000 * major + 10 * minor."""

OLD_DRIVER = "update the driver, or install an older nvcc or NVRTC"
REMEDIES = {
    1: "map the loop over rows to grid.x, or predict fewer rows: y and z have 65535 blocks at most",
    2: "predict fewer rows at a time, or free memory of the GPU",
    100: "check with nvidia-smi that a GPU is visible, and CUDA_VISIBLE_DEVICES",
    200: OLD_DRIVER,
    209: "the code is for another GPU; build with its 'arch' in the target, or leave 'arch' out",
    222: OLD_DRIVER,
    500: "build the model again",
    701: "use smaller tiles in the schedule",
}
"""What helps against errors of the driver, by their numbers."""

ATTRIBUTES = {"threads": 1, "shared": 8, "major": 75, "minor": 76, "most_shared": 97}
ERROR_LOG, ERROR_LOG_SIZE = 5, 6
DYNAMIC_SHARED = 8
NO_TIMING = 2
NOT_READY = 600

Pointer = ctypes.c_uint64


class CudaDriver:
    """A GPU of NVIDIA.

    Attributes:
        name: "cuda".
        device: its number.
        architecture: such as "sm_90".
        title: what NVIDIA calls it.
        limits: threads and bytes of shared memory of a block.
    """

    name = "cuda"

    def __init__(self, device: int = 0, library: str | None = None) -> None:
        """Open a GPU.

        Args:
            device: its number, as CUDA_VISIBLE_DEVICES leaves them.
            library: path of libcuda; None for the installed one.

        Raises:
            DeviceError: no driver, a driver that is too old, or no such GPU.
        """
        self._cuda = _library((library,) if library else LIBRARIES)
        self.device = device
        version, handle, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        if version.value < OLDEST:
            raise DeviceError(
                f"cuda: the driver is for CUDA {_dotted(version.value)}, needed is "
                f"{_dotted(OLDEST)} or newer; update the driver of the GPU"
            )
        self._call("cuInit", 0)
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if not 0 <= device < count.value:
            raise DeviceError(
                f"cuda: argument 'target': device {device} is not there, the driver shows "
                f"{count.value}; give another 'device', or check CUDA_VISIBLE_DEVICES"
            )
        self._call("cuDeviceGet", ctypes.byref(handle), device)
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        self.limits = {name: self._attribute(code, handle) for name, code in ATTRIBUTES.items()}
        self.architecture = f"sm_{self.limits['major']}{self.limits['minor']}"
        title = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", title, len(title), handle)
        self.title = title.value.decode(errors="replace")

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
            code = self._cuda.cuModuleLoadDataEx(
                ctypes.byref(module), image + b"\0", 2, options, values
            )
        said = log.value.decode(errors="replace").strip()
        self._check("cuModuleLoadDataEx", code, f"on {self.architecture}; {said}".rstrip("; "))
        return module

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        """Return a kernel of a module."""
        function = ctypes.c_void_p()
        with self._current():
            code = self._cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        self._check("cuModuleGetFunction", code, f"kernel '{name}'")
        return function

    def allocate(self, size: int) -> int:
        """Return the address of so many bytes of the GPU's memory."""
        pointer = Pointer()
        with self._current():
            code = self._cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(max(1, size)))
        self._check("cuMemAlloc", code, f"{size} bytes")
        return pointer.value

    def free(self, pointer: int) -> None:
        """Give memory back; waits for the GPU."""
        with self._current():
            self._call("cuMemFree_v2", Pointer(pointer))

    def upload(self, pointer: int, array: Array, stream: int) -> None:
        """Copy a C-ordered array to the GPU."""
        place, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        with self._current():
            self._call("cuMemcpyHtoDAsync_v2", Pointer(pointer), place, size, _stream(stream))

    def download(self, array: Array, pointer: int, stream: int) -> None:
        """Copy from the GPU into a C-ordered array."""
        place, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        with self._current():
            self._call("cuMemcpyDtoHAsync_v2", place, Pointer(pointer), size, _stream(stream))
            self._call("cuStreamSynchronize", _stream(stream))

    def launch(
        self,
        function: Any,
        grid: Size,
        block: Size,
        shared: int,
        arguments: Sequence[Any],
        stream: int,
    ) -> None:
        """Start a kernel."""
        self._check_limits(block, shared)
        places = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        with self._current():
            if shared > self.limits["shared"]:
                self._call("cuFuncSetAttribute", function, DYNAMIC_SHARED, shared)
            code = self._cuda.cuLaunchKernel(
                function, *grid, *block, shared, _stream(stream), places, None
            )
        self._check("cuLaunchKernel", code, f"grid {grid}, block {block}, {shared} bytes shared")

    def _check_limits(self, block: Size, shared: int) -> None:
        threads = block[0] * block[1] * block[2]
        for what, wanted, most in (
            ("threads per block", threads, self.limits["threads"]),
            ("bytes of shared memory per block", shared, self.limits["most_shared"]),
        ):
            if wanted > most:
                raise DeviceError(
                    f"cuda: {wanted} {what}, the GPU allows {most}; use smaller tiles in the "
                    "schedule"
                )

    def synchronize(self, stream: int) -> None:
        """Wait for all work on a stream."""
        with self._current():
            self._call("cuStreamSynchronize", _stream(stream))

    def wait(self, stream: int, other: int) -> None:
        """Let later work on `stream` wait for what is on `other` now."""
        event = ctypes.c_void_p()
        with self._current():
            self._call("cuEventCreate", ctypes.byref(event), NO_TIMING)
            self._call("cuEventRecord", event, _stream(other))
            self._call("cuStreamWaitEvent", _stream(stream), event, 0)
            self._call("cuEventDestroy_v2", event)

    def copy(self, to: int, pointer: int, size: int, stream: int) -> None:
        """Copy within the GPU's memory; the caller does not wait."""
        with self._current():
            given = (Pointer(to), Pointer(pointer), ctypes.c_size_t(size), _stream(stream))
            self._call("cuMemcpyDtoDAsync_v2", *given)

    def mark(self, stream: int) -> ctypes.c_void_p:
        """Return an event behind all work on a stream; `seconds` gives it back."""
        event = ctypes.c_void_p()
        with self._current():
            self._call("cuEventCreate", ctypes.byref(event), 0)
            self._call("cuEventRecord", event, _stream(stream))
        return event

    def is_done(self, event: ctypes.c_void_p) -> bool:
        """Return whether the GPU has come to an event."""
        with self._current():
            code = self._cuda.cuEventQuery(event)
        if code != NOT_READY:
            self._check("cuEventQuery", code)
        return code != NOT_READY

    def seconds(self, first: ctypes.c_void_p, last: ctypes.c_void_p) -> float:
        """Wait for two events, return the seconds between them, and give them back."""
        time = ctypes.c_float()
        with self._current():
            self._call("cuEventSynchronize", last)
            self._call("cuEventElapsedTime", ctypes.byref(time), first, last)
            for event in (first, last):
                self._call("cuEventDestroy_v2", event)
        return time.value / 1000

    # -- calls ------------------------------------------------------------------------------------

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Use the GPU's context on the calling thread, and the caller's own afterwards."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._cuda, name)
        except AttributeError:
            raise DeviceError(
                f"cuda: the driver has no {name}; update the driver of the GPU"
            ) from None
        self._check(name, function(*arguments))

    def _check(self, name: str, code: int, about: str = "") -> None:
        if code == 0:
            return
        text = ctypes.c_char_p()
        known = self._cuda.cuGetErrorString(code, ctypes.byref(text)) == 0 and text.value
        said = known.decode() if known else "unknown error"
        about = f" ({about})" if about else ""
        remedy = REMEDIES.get(code, "see CUDA's documentation of the driver API")
        raise DeviceError(f"cuda: {name}{about} failed with {code}, {said}; {remedy}")


def _library(names: Sequence[str]) -> Any:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DeviceError(
        f"cuda: no driver of NVIDIA found (tried {', '.join(names)}); run where there is a GPU and "
        "its driver, or use target 'llvm'"
    )


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _stream(stream: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(stream)
