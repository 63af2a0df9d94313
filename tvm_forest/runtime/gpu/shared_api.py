"""The API that CUDA's driver and the HIP runtime share, under nearly the same names.

takes: a library; gives: SharedApiDriver, the base class of the drivers in `cuda` and `hip`.

This file uses the names of CUDA without "cu" and "_v2", such as "MemAlloc"; `Driver.symbol` turns
them into the library's names ("cuMemAlloc_v2", "hipMalloc"). Pointers are addresses in memory of
the GPU, and other libraries of the process can use these pointers and streams.
"""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from typing import Any

from ...errors import DeviceError
from ...forest import Array
from .driver import Driver
from .kernels import Arguments, LoadedKernel, Module, Size
from .memory import NO_TIMING

_copy = (c_void_p, c_void_p, c_size_t, c_void_p)
_out = POINTER(c_void_p)
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "MemAlloc": (_out, c_size_t),
    **dict.fromkeys(("MemFree", "MemFreeHost", "StreamSynchronize"), (c_void_p,)),
    "MemHostAlloc": (_out, c_size_t, c_uint),
    **dict.fromkeys(("MemcpyHtoDAsync", "MemcpyDtoHAsync", "MemcpyDtoDAsync"), _copy),
    "ModuleGetFunction": (_out, c_void_p, c_char_p),
    "FuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "FuncSetAttribute": (c_void_p, c_int, c_int),
    "CtxPushCurrent": (c_void_p,),
    "CtxRecordEvent": (c_void_p, c_void_p),
    "StreamCreate": (_out, c_uint),
    "StreamIsCapturing": (c_void_p, POINTER(c_int)),
    "StreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "EventCreate": (_out, c_uint),
    "EventRecord": (c_void_p, c_void_p),
    **dict.fromkeys(("EventQuery", "EventDestroy", "EventSynchronize"), (c_void_p,)),
    "EventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
}
"""Parameter types of functions that take addresses or sizes, see `Driver.parameters`."""

NON_BLOCKING = 1
"""Flag of a new stream that does not wait for the default stream."""

RELAXED = 2
"""Capture mode of a thread that allows all calls unrelated to a captured stream."""

NOT_READY = 600
"""Code that a query returns for unfinished work."""

CAPTURING = dict.fromkeys(
    range(900, 909),
    "while a graph is captured, predict rows that are on the GPU, on the stream that is captured, "
    "and read results afterwards",
)
"""Remedies for the errors of calls during a graph capture."""


class SharedApiDriver(Driver):
    """A GPU behind CUDA's driver or the HIP runtime.

    The first three attributes are class attributes, which differ between the two.

    Attributes:
        attributes: the library's codes of the device attributes that become `limits`.
        oldest: oldest supported version of the library.
        major: difference between the numbers of one major version and the next: 12040 is 12.4 of
            CUDA, whose `major` is 1000.
        version: version number of the library.
        context: the library's context for work on the GPU; None if it has none.
    """

    attributes: dict[str, int]
    oldest: int
    major: int
    parameters = PARAMETERS
    context: int | None = None

    def _open(self) -> None:
        self._call("Init", 0)
        self.version = self._ask("DriverGetVersion")
        if self.version < self.oldest:
            needed = _format_version(self.oldest, self.major)
            raise DeviceError(
                f"{self.name}: {self.runtime} is of version {self.shown_version}, needed is "
                f"{needed} or newer; {self.update}"
            )
        self._refuse_absent(self._ask("DeviceGetCount"))
        handle = self._find_handle()
        codes = self.attributes.items()
        self.limits = {name: self._ask("DeviceGetAttribute", code, handle) for name, code in codes}
        self.architecture = self._find_architecture()
        title, size = ctypes.create_string_buffer(256), c_size_t()
        self._call("DeviceGetName", title, len(title), handle)
        self._call("DeviceTotalMem", byref(size), handle)
        self.title, self.memory = title.value.decode(errors="replace"), size.value

    @abstractmethod
    def _find_handle(self) -> int:
        """Open the GPU, and return the library's handle of it."""

    @abstractmethod
    def _find_architecture(self) -> str:
        """Return the architecture that code is compiled for."""

    @abstractmethod
    def _check_launch(
        self, kernel: LoadedKernel, grid: Size, block: Size, shared: int, arguments: Arguments
    ) -> None:
        """Refuse an impossible launch; CUDA also sets the kernel's limit of shared memory here."""

    @property
    def shown_version(self) -> str:
        """The version of the library, such as "12.4"."""
        return _format_version(self.version, self.major)

    def find_kernel(self, module: Module, name: str) -> LoadedKernel:
        """Find a kernel of a module by its name, see `Driver.find_kernel`."""
        handle = c_void_p()
        arguments = (byref(handle), module.handle, name.encode())
        self._do("ModuleGetFunction", *arguments, detail=f"kernel '{name}'")
        return LoadedKernel(handle, name, module.needs.get(name))

    def unload(self, module: Module) -> None:
        """Unload a module, see `Driver.unload`."""
        self._do("ModuleUnload", module.handle)

    def allocate(self, size: int) -> int:
        """Allocate memory of the GPU, see `Driver.allocate`."""
        pointer = c_void_p()
        self._do("MemAlloc", byref(pointer), max(1, size), detail=f"{size} bytes")
        return pointer.value or 0

    def allocate_while_captured(self, size: int) -> int:
        """Allocate memory while a graph captures work, see `Driver.allocate_while_captured`."""
        with self.relaxed():
            return self.allocate(size)

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Allow calls that are unrelated to a captured stream, see `Driver.relaxed`."""
        mode = c_int(RELAXED)
        self._do("ThreadExchangeStreamCaptureMode", byref(mode))
        try:
            yield
        finally:
            self._do("ThreadExchangeStreamCaptureMode", byref(mode))

    def allocate_host(self, size: int) -> int:
        """Allocate memory of the host, see `Driver.allocate_host`."""
        pointer = c_void_p()
        self._do("MemHostAlloc", byref(pointer), size, 0, detail=f"{size} bytes")
        return pointer.value or 0

    def free_host(self, pointer: int) -> None:
        """Free memory of the host, see `Driver.free_host`."""
        self._do("MemFreeHost", pointer)

    def free(self, pointer: int) -> None:
        """Free memory of the GPU, see `Driver.free`."""
        self._do("MemFree", pointer)

    def upload(self, pointer: int, array: Array, stream: int) -> None:
        """Copy an array to the GPU, see `Driver.upload`."""
        self._do("MemcpyHtoDAsync", pointer, array.ctypes.data, array.nbytes, stream)

    def download(self, array: Array, pointer: int, stream: int) -> None:
        """Copy from the GPU into an array, see `Driver.download`."""
        self._do("MemcpyDtoHAsync", array.ctypes.data, pointer, array.nbytes, stream)
        self.synchronize(stream)
        self.pool.let_go()

    def copy(self, to: int, pointer: int, size: int, stream: int) -> None:
        """Start a copy within the GPU's memory, see `Driver.copy`."""
        self._do("MemcpyDtoDAsync", to, pointer, size, stream)

    def copy_in(self, to: int, host: int, size: int, stream: int) -> None:
        """Start a copy from the host to the GPU, see `Driver.copy_in`."""
        self._call("MemcpyHtoDAsync", to, host, size, stream)

    def copy_out(self, host: int, pointer: int, size: int, stream: int) -> None:
        """Start a copy from the GPU to the host, see `Driver.copy_out`."""
        self._call("MemcpyDtoHAsync", host, pointer, size, stream)

    def launch(
        self,
        kernel: LoadedKernel,
        grid: Size,
        block: Size,
        shared: int,
        arguments: Arguments,
        stream: int,
    ) -> None:
        """Start a kernel, see `Driver.launch`."""
        if kernel.checked != (grid, block, shared):
            self._check_launch(kernel, grid, block, shared, arguments)
            kernel.checked = grid, block, shared
        launch = self.functions.get("LaunchKernel") or self._find("LaunchKernel")
        on = c_void_p(stream) if stream else None
        code = launch(kernel.handle, *grid, *block, shared, on, arguments.places, None)
        if code:
            detail = f"'{kernel.name}', grid {grid}, block {block}, {shared} bytes shared"
            self._check(self.symbol("LaunchKernel"), code, detail)

    def create_stream(self) -> int:
        """Create a stream, see `Driver.create_stream`."""
        stream = c_void_p()
        self._do("StreamCreate", byref(stream), NON_BLOCKING)
        return stream.value or 0

    def synchronize(self, stream: int) -> None:
        """Wait for all work on a stream, see `Driver.synchronize`."""
        self._do("StreamSynchronize", stream)

    def is_capturing(self, stream: int) -> bool:
        """Return whether work on a stream is being captured, see `Driver.is_capturing`."""
        status = c_int()
        if stream:  # the default one cannot be
            self._do("StreamIsCapturing", stream, byref(status))
        return status.value != 0

    def wait(self, stream: int, other: int) -> None:
        """Make a stream wait for the work on another one, see `Driver.wait`."""
        event = self.mark(other, NO_TIMING)
        self._do("StreamWaitEvent", stream, event, 0)
        self._do("EventDestroy", event)

    def wait_for_all(self, stream: int) -> None:
        """Make a stream wait for all work on the GPU, see `Driver.wait_for_all`."""
        if self.context is not None and hasattr(self._library, self.symbol("CtxRecordEvent")):
            event = c_void_p()
            self._do("EventCreate", byref(event), NO_TIMING)
            try:
                with self.relaxed():
                    self._do("CtxRecordEvent", self.context, event)
                self._do("StreamWaitEvent", stream, event, 0)
            finally:
                self._do("EventDestroy", event)
        else:
            self._do("CtxSynchronize")

    def mark(self, stream: int, flags: int = 0) -> c_void_p:
        """Record an event on a stream, see `Driver.mark`."""
        event = c_void_p()
        self._do("EventCreate", byref(event), flags)
        self._do("EventRecord", event, stream)
        return event

    def destroy(self, event: c_void_p) -> None:
        """Free an event, see `Driver.destroy`."""
        self._do("EventDestroy", event)

    def is_done(self, event: c_void_p) -> bool:
        """Return whether the GPU has reached an event, see `Driver.is_done`."""
        before = self.enter()
        try:
            code = int(self._find("EventQuery")(event))
        finally:
            self.leave(before)
        if code != NOT_READY:
            self._check(self.symbol("EventQuery"), code)
        return code != NOT_READY

    def seconds(self, first: c_void_p, last: c_void_p) -> float:
        """Return the seconds between two events, see `Driver.seconds`."""
        milliseconds = c_float()
        self._do("EventSynchronize", last)
        self._do("EventElapsedTime", byref(milliseconds), first, last)
        for event in (first, last):
            self._do("EventDestroy", event)
        return milliseconds.value / 1000

    def _ask(self, function: str, *arguments: Any) -> int:
        """Call a query of the library; return the number that it writes to its first argument."""
        number = c_int()
        self._call(function, byref(number), *arguments)
        return number.value

    def _do(self, function: str, *arguments: Any, detail: str = "") -> None:
        """Call a function of the library with this GPU current."""
        before = self.enter()
        try:
            self._call(function, *arguments, detail=detail)
        finally:
            self.leave(before)


def _format_version(version: int, major: int) -> str:
    return f"{version // major}.{version % major // (major // 100)}"
