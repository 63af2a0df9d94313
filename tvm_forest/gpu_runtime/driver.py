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
from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any, NamedTuple

from ..errors import DeviceError
from ..forest import Array

Size = tuple[int, ...]
"""x, y and z of a grid (in blocks) or of a block (in threads)."""

NO_TIMING = 2
NOT_READY = 600
FORKED = (
    "a GPU that is open does not survive a fork; start processes by 'spawn', or let none but the "
    "children predict"
)
SMALLER = "use smaller tiles in the schedule"


class Module(NamedTuple):
    """An image that was loaded.

    Attributes:
        handle: what the library knows it by.
        needs: what the image says of each kernel, by name; empty if the library checks launches.
    """

    handle: ctypes.c_void_p
    needs: dict[str, Any]


class LoadedKernel(NamedTuple):
    """A kernel of a module: its handle in the library, its name, and what the image says of it."""

    handle: ctypes.c_void_p
    name: str
    needs: Any = None


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
        limits: "threads" and bytes of "shared" memory of a block, "processors", and more.
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
        self.device, self._process = device, os.getpid()
        if self._library is None:
            raise DeviceError(self.missing.format(tried=", ".join(tried)))
        self._call("Init", 0)
        version = self._ask("DriverGetVersion")
        if version < self.oldest:
            here, needed = (_format_version(x, self.major) for x in (version, self.oldest))
            raise DeviceError(
                f"{self.name}: {self.runtime} is of version {here}, needed is {needed} or newer; "
                f"{self.update}"
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
        title, size = ctypes.create_string_buffer(256), ctypes.c_size_t()
        self._call("DeviceGetName", title, len(title), handle)
        self._call("DeviceTotalMem", ctypes.byref(size), handle)
        self.title, self.memory = title.value.decode(errors="replace"), size.value

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
    def _prepare_launch(
        self, kernel: LoadedKernel, block: Size, shared: int, arguments: Sequence[Any]
    ) -> None:
        """Refuse a launch that cannot be, and allow what it needs."""

    @abstractmethod
    def _select(self) -> AbstractContextManager[None]:
        """Use the GPU on the calling thread, and the caller's own afterwards."""

    @abstractmethod
    def _describe_error(self, code: int) -> bytes | None:
        """Return the library's words for an error."""

    @property
    def identity(self) -> str:
        """What times depend on: maker's name, architecture, multiprocessors, memory."""
        count, size = self.limits["processors"], self.memory >> 20
        return f"{self.title}, {self.architecture}, {count} multiprocessors, {size} MB"

    def find_kernel(self, module: Module, name: str) -> LoadedKernel:
        """Return a kernel of a module."""
        handle = ctypes.c_void_p()
        arguments = (ctypes.byref(handle), module.handle, name.encode())
        self._do("ModuleGetFunction", *arguments, detail=f"kernel '{name}'")
        return LoadedKernel(handle, name, module.needs.get(name))

    def allocate(self, size: int) -> int:
        """Return the address of so many bytes of the GPU's memory."""
        pointer, count = ctypes.c_void_p(), ctypes.c_size_t(max(1, size))
        self._do("MemAlloc", ctypes.byref(pointer), count, detail=f"{size} bytes")
        return pointer.value or 0

    def free(self, pointer: int) -> None:
        """Give memory back, once no work uses it any more: waits for the GPU."""
        self._do("MemFree", ctypes.c_void_p(pointer))

    def upload(self, pointer: int, array: Array, stream: int) -> None:
        """Copy a C-ordered array to the GPU; it may change as soon as this returns."""
        self._copy("MemcpyHtoDAsync", pointer, array.ctypes.data, array.nbytes, stream)

    def download(self, array: Array, pointer: int, stream: int) -> None:
        """Copy from the GPU into a C-ordered array; waits for the work before it."""
        self._copy("MemcpyDtoHAsync", array.ctypes.data, pointer, array.nbytes, stream)
        self.synchronize(stream)

    def copy(self, to: int, pointer: int, size: int, stream: int) -> None:
        """Copy within the GPU's memory; the caller does not wait."""
        self._copy("MemcpyDtoDAsync", to, pointer, size, stream)

    def launch(
        self,
        kernel: LoadedKernel,
        grid: Size,
        block: Size,
        shared: int,
        arguments: Sequence[Any],
        stream: int,
    ) -> None:
        """Start a kernel with values of ctypes, in its order of parameters."""
        self._prepare_launch(kernel, block, shared, arguments)
        places = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        detail = f"'{kernel.name}', grid {grid}, block {block}, {shared} bytes shared"
        sizes, on = (*grid, *block, shared), ctypes.c_void_p(stream)
        self._do("LaunchKernel", kernel.handle, *sizes, on, places, None, detail=detail)

    def synchronize(self, stream: int) -> None:
        """Wait for all work on a stream."""
        self._do("StreamSynchronize", ctypes.c_void_p(stream))

    def wait(self, stream: int, other: int) -> None:
        """Let later work on `stream` wait for what is on `other` now; the caller does not wait."""
        event = self.mark(other, NO_TIMING)
        self._do("StreamWaitEvent", ctypes.c_void_p(stream), event, 0)
        self._do("EventDestroy", event)

    def mark(self, stream: int, flags: int = 0) -> ctypes.c_void_p:
        """Return an event behind the work that is on a stream now; `seconds` gives it back."""
        event = ctypes.c_void_p()
        self._do("EventCreate", ctypes.byref(event), flags)
        self._do("EventRecord", event, ctypes.c_void_p(stream))
        return event

    def is_done(self, event: ctypes.c_void_p) -> bool:
        """Return whether the GPU has come to an event."""
        symbol = self.symbol("EventQuery")
        with self._select():
            code = int(getattr(self._library, symbol)(event))
        if code != NOT_READY:
            self._check(symbol, code)
        return code != NOT_READY

    def seconds(self, first: ctypes.c_void_p, last: ctypes.c_void_p) -> float:
        """Wait for two events, return the GPU's seconds between them, and give them back."""
        milliseconds = ctypes.c_float()
        self._do("EventSynchronize", last)
        self._do("EventElapsedTime", ctypes.byref(milliseconds), first, last)
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
                    f"{self.name}: kernel '{name}' takes {wanted} {what}, {allowed} are allowed; "
                    f"{SMALLER}"
                )

    def _copy(self, function: str, to: int, source: int, size: int, stream: int) -> None:
        places = (ctypes.c_void_p(to), ctypes.c_void_p(source))
        self._do(function, *places, ctypes.c_size_t(size), ctypes.c_void_p(stream))

    def _ask(self, function: str, *arguments: Any) -> int:
        """Return the number that a function of the library writes to its first argument."""
        number = ctypes.c_int()
        self._call(function, ctypes.byref(number), *arguments)
        return number.value

    def _do(self, function: str, *arguments: Any, detail: str = "") -> None:
        """Call a function of the library on this GPU."""
        with self._select():
            self._call(function, *arguments, detail=detail)

    def _call(self, function: str, *arguments: Any, detail: str = "") -> None:
        """Call a function of the library; `detail` is what an error says of the arguments."""
        if os.getpid() != self._process:
            raise DeviceError(f"{self.name}: this process was forked; {FORKED}")
        symbol = self.symbol(function)
        call = getattr(self._library, symbol, None)
        if call is None:
            raise DeviceError(f"{self.name}: {self.runtime} has no {symbol}; {self.update}")
        self._check(symbol, call(*arguments), detail)

    def _check(self, symbol: str, code: int, detail: str = "") -> None:
        """Raise what an error of the library means; 0 is none."""
        if code == 0:
            return
        reason = (self._describe_error(code) or b"unknown error").decode()
        remedy = self.remedies.get(code, f"see {self.manual}")
        call = symbol.removesuffix("_v2") + (f" ({detail})" if detail else "")
        raise DeviceError(f"{self.name}: {call} failed with {code}, {reason}; {remedy}")


def find_library(names: Sequence[str]) -> Any | None:
    """Return the first shared library of some names that is there, or None."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _format_version(version: int, major: int) -> str:
    return f"{version // major}.{version % major // (major // 100)}"
