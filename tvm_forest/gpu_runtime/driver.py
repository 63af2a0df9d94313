"""A GPU, through the library of its driver.

takes: images, numbers of bytes, arrays; gives: modules, pointers, launches, seconds.

CUDA's driver and the HIP runtime have the same functions under nearly the same names. This file
uses the names of CUDA without "cu" and "_v2", such as "MemAlloc"; `Driver.symbol` says what the
library calls them ("cuMemAlloc_v2", "hipMalloc"). What else differs is in `cuda` and `hip`. A
stream is the integer that the library knows it by; 0 is the default stream. Work on one stream is
done in order. A call that fails raises DeviceError.
"""

from __future__ import annotations

import ctypes
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_float, c_int, c_size_t, c_void_p
from math import prod
from typing import Any
from weakref import WeakSet

from ..errors import DeviceError
from ..forest import Array
from .kernels import Arguments, LoadedKernel, Module, Size
from .memory import NO_TIMING, MemoryPool
from .parameters import FORKED, NON_BLOCKING, NOT_READY, PARAMETERS, RELAXED, SMALLER, find_library

_drivers = WeakSet[Any]()
"""All that are open in this process."""


def _stay_behind() -> None:
    """Let no driver of the parent call its library: this is the child of a fork."""
    for driver in _drivers:
        driver.is_behind = True
        driver.functions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stay_behind)


class Driver(ABC):
    """One GPU.

    The first attributes are of the class, and say what differs between libraries.

    Attributes:
        name: kind of the target.
        libraries: names under which the library is looked for.
        missing: message where none is found, with {tried} for these names.
        prefix: how the names of the library's functions begin.
        symbols: names of those functions whose name is not the prefix and the name in this file.
        attributes: the library's numbers of the facts in `limits`.
        runtime: what messages call the library.
        update: what helps if it is too old.
        visible: the environment variable that hides GPUs.
        manual: where its errors are explained.
        oldest: its oldest version that will do.
        major: by how much its version grows from one major version to the next.
        remedies: what helps against its errors, by their numbers.
        device: number of the GPU.
        architecture: what code is made for, such as "sm_90".
        title: what its maker calls it.
        memory: its bytes.
        version: of the library, as it counts.
        limits: "threads" and bytes of "shared" memory of a block, "processors", and more.
        pool, frames: memory that calls have left for the next ones: that of the GPU, and room for
            rows of the host, see `staging`.
        context: what the library knows all work on the GPU by; None where it does not.
        functions: of the library, as far as they were called, by name.
        is_behind: whether it was opened by a process that this one was forked from.
    """

    name: str
    libraries: tuple[str, ...]
    missing: str
    prefix: str
    symbols: dict[str, str]
    attributes: dict[str, int]
    runtime: str
    update: str
    visible: str
    manual: str
    oldest: int
    major: int
    remedies: dict[int, str]
    context: int | None = None

    def __init__(self, device: int = 0, library: str | None = None) -> None:
        """Open a GPU.

        Args:
            device: its number, among those that are visible.
            library: path of the driver's library; None for the installed one.

        Raises:
            DeviceError: no library, one that is too old, or no such GPU.
        """
        tried = (library,) if library else self.libraries
        self._library: Any = find_library(tried)
        self.functions: dict[str, Any] = {}
        self.device, self.is_behind = device, False
        if self._library is None:
            raise DeviceError(self.missing.format(tried=", ".join(tried)))
        self._call("Init", 0)
        self.version = self._ask("DriverGetVersion")
        if self.version < self.oldest:
            needed = _format_version(self.oldest, self.major)
            raise DeviceError(
                f"{self.name}: {self.runtime} is of version {self.shown_version}, needed is "
                f"{needed} or newer; {self.update}"
            )
        count = self._ask("DeviceGetCount")
        if not 0 <= device < count:
            raise DeviceError(
                f"{self.name}: argument 'target': device {device} is not there, {self.runtime} "
                f"shows {count}; give another 'device', or check {self.visible}"
            )
        handle = self._open()
        codes = self.attributes.items()
        self.limits = {name: self._ask("DeviceGetAttribute", code, handle) for name, code in codes}
        self.architecture = self._find_architecture()
        title, size = ctypes.create_string_buffer(256), c_size_t()
        self._call("DeviceGetName", title, len(title), handle)
        self._call("DeviceTotalMem", byref(size), handle)
        self.title, self.memory = title.value.decode(errors="replace"), size.value
        self.pool, self.frames = MemoryPool(self), deque[Any]()
        _drivers.add(self)

    @abstractmethod
    def _open(self) -> int:
        """Open the GPU, and return what the library knows it by."""

    @abstractmethod
    def _find_architecture(self) -> str:
        """Return what code for the GPU is made for."""

    @abstractmethod
    def load(self, image: bytes) -> Module:
        """Return the module of an image."""

    @abstractmethod
    def _check_launch(
        self, kernel: LoadedKernel, block: Size, shared: int, arguments: Arguments
    ) -> None:
        """Refuse a launch that cannot be, and allow what it needs."""

    @abstractmethod
    def enter(self) -> Any:
        """Use the GPU on the calling thread; return what `leave` takes, None if it was in use."""

    @abstractmethod
    def leave(self, before: Any) -> None:
        """Use what the caller used before `enter`, which said so."""

    @abstractmethod
    def _describe_error(self, code: int) -> bytes | None:
        """Return the library's words for an error."""

    @property
    def identity(self) -> str:
        """What times depend on: maker's name, architecture, multiprocessors, memory."""
        count, size = self.limits["processors"], self.memory >> 20
        return f"{self.title}, {self.architecture}, {count} multiprocessors, {size} MB"

    @property
    def shown_version(self) -> str:
        """The version of the library, such as "12.4"."""
        return _format_version(self.version, self.major)

    def find_kernel(self, module: Module, name: str) -> LoadedKernel:
        """Return a kernel of a module."""
        handle = c_void_p()
        arguments = (byref(handle), module.handle, name.encode())
        self._do("ModuleGetFunction", *arguments, detail=f"kernel '{name}'")
        return LoadedKernel(handle, name, module.needs.get(name))

    def unload(self, module: Module) -> None:
        """Give a module back, of whose kernels none runs any more."""
        self._do("ModuleUnload", module.handle)

    def allocate(self, size: int) -> int:
        """Return the address of so many bytes of the GPU's memory."""
        pointer = c_void_p()
        self._do("MemAlloc", byref(pointer), max(1, size), detail=f"{size} bytes")
        return pointer.value or 0

    def allocate_while_captured(self, size: int) -> int:
        """Do what `allocate` does while work of this thread becomes a graph."""
        with self.relaxed():
            return self.allocate(size)

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Allow this thread what does not touch a stream whose work becomes a graph."""
        mode = c_int(RELAXED)
        self._do("ThreadExchangeStreamCaptureMode", byref(mode))
        try:
            yield
        finally:
            self._do("ThreadExchangeStreamCaptureMode", byref(mode))

    def allocate_host(self, size: int) -> int:
        """Return the address of memory of the host that copies read and write by themselves."""
        pointer = c_void_p()
        self._do("MemHostAlloc", byref(pointer), size, 0, detail=f"{size} bytes")
        return pointer.value or 0

    def free_host(self, pointer: int) -> None:
        """Give memory of `allocate_host` back."""
        self._do("MemFreeHost", pointer)

    def free(self, pointer: int) -> None:
        """Give memory back, once no work uses it any more: waits for the GPU."""
        self._do("MemFree", pointer)

    def upload(self, pointer: int, array: Array, stream: int) -> None:
        """Copy a C-ordered array to the GPU; it may change as soon as this returns."""
        self._do("MemcpyHtoDAsync", pointer, array.ctypes.data, array.nbytes, stream)

    def download(self, array: Array, pointer: int, stream: int) -> None:
        """Copy from the GPU into a C-ordered array; waits for the work before it."""
        self._do("MemcpyDtoHAsync", array.ctypes.data, pointer, array.nbytes, stream)
        self.synchronize(stream)
        self.pool.let_go()

    def copy(self, to: int, pointer: int, size: int, stream: int) -> None:
        """Copy within the GPU's memory; the caller does not wait."""
        self._do("MemcpyDtoDAsync", to, pointer, size, stream)

    def copy_in(self, to: int, host: int, size: int, stream: int) -> None:
        """Between `enter` and `leave`, start a copy to the GPU from memory of `allocate_host`."""
        self._call("MemcpyHtoDAsync", to, host, size, stream)

    def copy_out(self, host: int, pointer: int, size: int, stream: int) -> None:
        """Between `enter` and `leave`, start a copy from the GPU to memory of `allocate_host`."""
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
        """Between `enter` and `leave`, start a kernel; the arguments are read at once."""
        if kernel.checked != (block, shared):
            self._check_launch(kernel, block, shared, arguments)
            kernel.checked = block, shared
        launch = self.functions.get("LaunchKernel") or self._find("LaunchKernel")
        on = c_void_p(stream) if stream else None
        code = launch(kernel.handle, *grid, *block, shared, on, arguments.places, None)
        if code:
            detail = f"'{kernel.name}', grid {grid}, block {block}, {shared} bytes shared"
            self._check(self.symbol("LaunchKernel"), code, detail)

    def create_stream(self) -> int:
        """Return a stream that does not wait for the default one."""
        stream = c_void_p()
        self._do("StreamCreate", byref(stream), NON_BLOCKING)
        return stream.value or 0

    def synchronize(self, stream: int) -> None:
        """Wait for all work on a stream."""
        self._do("StreamSynchronize", stream)

    def is_capturing(self, stream: int) -> bool:
        """Return whether work on a stream is not done but becomes a graph."""
        status = c_int()
        if stream:  # the default one cannot be
            self._do("StreamIsCapturing", stream, byref(status))
        return status.value != 0

    def wait(self, stream: int, other: int) -> None:
        """Let later work on `stream` wait for what is on `other` now; the caller does not wait."""
        event = self.mark(other, NO_TIMING)
        self._do("StreamWaitEvent", stream, event, 0)
        self._do("EventDestroy", event)

    def wait_for_all(self, stream: int) -> None:
        """Let later work on `stream` wait for all that the GPU was given before, by whomever.

        No other stream is asked, which may be destroyed. Old libraries let the caller wait.
        """
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
        """Return an event behind the work that is on a stream now; `seconds` gives it back."""
        event = c_void_p()
        self._do("EventCreate", byref(event), flags)
        self._do("EventRecord", event, stream)
        return event

    def destroy(self, event: c_void_p) -> None:
        """Give an event back."""
        self._do("EventDestroy", event)

    def is_done(self, event: c_void_p) -> bool:
        """Return whether the GPU has come to an event."""
        before = self.enter()
        try:
            code = int(self._find("EventQuery")(event))
        finally:
            self.leave(before)
        if code != NOT_READY:
            self._check(self.symbol("EventQuery"), code)
        return code != NOT_READY

    def seconds(self, first: c_void_p, last: c_void_p) -> float:
        """Wait for two events, return the GPU's seconds between them, and give them back."""
        milliseconds = c_float()
        self._do("EventSynchronize", last)
        self._do("EventElapsedTime", byref(milliseconds), first, last)
        for event in (first, last):
            self._do("EventDestroy", event)
        return milliseconds.value / 1000

    # -- calls ------------------------------------------------------------------------------------

    def symbol(self, function: str) -> str:
        """Return what the library calls a function."""
        return self.symbols.get(function, self.prefix + function)

    def _check_block(self, name: str, block: Size, threads: int, shared: int, limit: int) -> None:
        """Refuse a block of more than `threads` threads or `limit` bytes of shared memory."""
        for what, wanted, allowed in (
            ("threads per block", prod(block), threads),
            ("bytes of shared memory per block", shared, limit),
        ):
            if wanted > allowed:
                raise DeviceError(
                    f"{self.name}: kernel '{name}' takes {wanted} {what}, {allowed} are allowed on "
                    f"{self.title} ({self.architecture}); {SMALLER}"
                )

    def _ask(self, function: str, *arguments: Any) -> int:
        """Return the number that a function of the library writes to its first argument."""
        number = c_int()
        self._call(function, byref(number), *arguments)
        return number.value

    def _do(self, function: str, *arguments: Any, detail: str = "") -> None:
        """Call a function of the library on this GPU."""
        before = self.enter()
        try:
            self._call(function, *arguments, detail=detail)
        finally:
            self.leave(before)

    def _call(self, function: str, *arguments: Any, detail: str = "") -> None:
        """Call a function of the library; `detail` is what an error says of the arguments."""
        code = (self.functions.get(function) or self._find(function))(*arguments)
        if code:
            self._check(self.symbol(function), code, detail)

    def _find(self, function: str) -> Any:
        """Return a function of the library; there is none for a process that was forked."""
        if self.is_behind:
            raise DeviceError(f"{self.name}: this process was forked; {FORKED}")
        found = self.functions.get(function)
        if found is None:
            symbol = self.symbol(function)
            found = getattr(self._library, symbol, None)
            if found is None:
                raise DeviceError(f"{self.name}: {self.runtime} has no {symbol}; {self.update}")
            found.argtypes = PARAMETERS.get(function)
            self.functions[function] = found
        return found

    def _check(self, symbol: str, code: int, detail: str = "") -> None:
        """Raise what an error of the library means; 0 is none."""
        if code == 0:
            return
        reason = (self._describe_error(code) or b"unknown error").decode()
        remedy = self.remedies.get(code, f"see {self.manual}")
        call = symbol.removesuffix("_v2") + (f" ({detail})" if detail else "")
        raise DeviceError(f"{self.name}: {call} failed with {code}, {reason}; {remedy}")


def _format_version(version: int, major: int) -> str:
    return f"{version // major}.{version % major // (major // 100)}"
