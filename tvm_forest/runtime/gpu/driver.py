"""A GPU, through the library of its driver.

takes: images, numbers of bytes, arrays; gives: modules, pointers, launches, seconds.

What differs between libraries is in `shared_api`, of which CUDA and HIP have a part each, and in
`opencl`. A pointer is the integer that the library knows memory of the GPU by, and a stream the one
that it knows a queue of work by; 0 is the default stream. Work on one stream is done in order. A
call that fails raises DeviceError.
"""

from __future__ import annotations

import ctypes
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from ctypes import c_void_p
from math import prod
from typing import Any
from weakref import WeakSet

from ...errors import DeviceError
from ...forest import Array
from .kernels import Arguments, LoadedKernel, Module, Size
from .memory import MemoryPool

FORKED = (
    "a GPU that is open does not survive a fork; start processes by 'spawn', or let none but the "
    "children predict"
)
SMALLER = "use smaller tiles in the schedule"

_drivers = WeakSet[Any]()
"""All open drivers of this process."""


def _stay_behind() -> None:
    """Mark the parent's drivers as unusable in this forked child."""
    for driver in _drivers:
        driver.is_behind = True
        driver.functions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stay_behind)


class Driver(ABC):
    """One GPU.

    The first attributes are class attributes, which differ between libraries.

    Attributes:
        name: kind of the target.
        libraries: file names under which the library is searched.
        missing: error text if none is found, with {tried} for these names.
        prefix: prefix of the names of the library's functions.
        symbols: names of those functions that are not the prefix plus the name in this package.
        parameters: types of the parameters of those functions that take addresses or sizes, which
            ctypes would pass as 32 bits without.
        runtime: name of the library in messages.
        update: remedy if the library is too old.
        visible: the environment variable that hides GPUs.
        manual: where the library's errors are documented.
        remedies: remedies by error number.
        is_shared: whether memory can be shared with other libraries.
        alignment: alignment, in bytes, of arrays within one allocation.
        device: number of the GPU.
        version: version of the library, in its own encoding.
        architecture: architecture that code is compiled for, such as "sm_90".
        title: the GPU's product name.
        memory: its bytes.
        limits: "threads" and bytes of "shared" memory of a block, "processors", and more.
        pool, frames: memory that earlier calls have left for later ones: on the GPU, and for
            staging host rows, see `staging`.
        functions: functions of the library by name, cached after their first call.
        is_behind: whether a parent process opened it before a fork.
    """

    name: str
    libraries: tuple[str, ...]
    missing: str
    prefix: str
    symbols: dict[str, str]
    parameters: dict[str, tuple[Any, ...]]
    runtime: str
    update: str
    visible: str
    manual: str
    remedies: dict[int, str]
    is_shared = True
    alignment = 256
    version: int
    architecture: str
    title: str
    memory: int
    limits: dict[str, int]

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
        self._open()
        self.pool, self.frames = MemoryPool(self), deque[Any]()
        _drivers.add(self)

    @abstractmethod
    def _open(self) -> None:
        """Open the GPU, and query its properties."""

    @abstractmethod
    def _describe_error(self, code: int) -> bytes | None:
        """Return the library's words for an error."""

    @property
    def identity(self) -> str:
        """The facts on which times depend: product name, architecture, multiprocessors, memory."""
        count, size = self.limits["processors"], self.memory >> 20
        return f"{self.title}, {self.architecture}, {count} multiprocessors, {size} MB"

    @abstractmethod
    def load(self, image: bytes) -> Module:
        """Load an image; return the module."""

    @abstractmethod
    def find_kernel(self, module: Module, name: str) -> LoadedKernel:
        """Return a kernel of a module."""

    @abstractmethod
    def unload(self, module: Module) -> None:
        """Unload a module, none of whose kernels is running."""

    def enter(self) -> Any:
        """Make the GPU current on this thread.

        Return a value for `leave`, None if it already was.
        """
        return None

    def leave(self, before: Any) -> None:  # noqa: B027
        """Restore the context that was current before `enter`."""

    @abstractmethod
    def allocate(self, size: int) -> int:
        """Allocate bytes of GPU memory; return the pointer."""

    def allocate_while_captured(self, size: int) -> int:
        """Like `allocate`, while work of this thread is captured into a graph."""
        return self.allocate(size)

    def relaxed(self) -> AbstractContextManager[None]:
        """Allow this thread calls that do not affect a captured stream."""
        return nullcontext()

    @abstractmethod
    def allocate_host(self, size: int) -> int:
        """Allocate pinned host memory; return its address."""

    @abstractmethod
    def free_host(self, pointer: int) -> None:
        """Free memory from `allocate_host`."""

    @abstractmethod
    def free(self, pointer: int) -> None:
        """Free memory after all work that uses it: waits for the GPU."""

    def part(self, pointer: int, begin: int, size: int) -> int:
        """Return the pointer of a part of an allocation, at a multiple of `alignment`.

        The allocation must be freed after its parts. Uses of overlapping parts must be ordered.
        """
        return pointer + begin

    def free_part(self, pointer: int) -> None:  # noqa: B027
        """Release a part that `part` returned."""

    @abstractmethod
    def upload(self, pointer: int, array: Array, stream: int) -> None:
        """Copy a C-ordered array to the GPU; it may be modified as soon as this returns."""

    @abstractmethod
    def download(self, array: Array, pointer: int, stream: int) -> None:
        """Copy from the GPU into a C-ordered array, after earlier work on the stream."""

    @abstractmethod
    def copy(self, to: int, pointer: int, size: int, stream: int) -> None:
        """Copy within the GPU's memory, asynchronously."""

    @abstractmethod
    def copy_in(self, to: int, host: int, size: int, stream: int) -> None:
        """Between `enter` and `leave`, start a copy to the GPU from memory of `allocate_host`."""

    @abstractmethod
    def copy_out(self, host: int, pointer: int, size: int, stream: int) -> None:
        """Between `enter` and `leave`, start a copy from the GPU to memory of `allocate_host`."""

    @abstractmethod
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

    @abstractmethod
    def create_stream(self) -> int:
        """Return a stream that does not wait for the default one."""

    @abstractmethod
    def synchronize(self, stream: int) -> None:
        """Wait for all work on a stream."""

    def is_capturing(self, stream: int) -> bool:
        """Return whether work on a stream is being captured into a graph."""
        return False

    @abstractmethod
    def wait(self, stream: int, other: int) -> None:
        """Make later work on `stream` wait for the current work on `other`, asynchronously."""

    @abstractmethod
    def wait_for_all(self, stream: int) -> None:
        """Make later work on `stream` wait for all earlier work on the GPU, from any source.

        Other streams are not queried, as they may be destroyed. With old libraries the caller
        waits.
        """

    @abstractmethod
    def mark(self, stream: int, flags: int = 0) -> c_void_p:
        """Record an event after the current work on a stream; `seconds` frees it."""

    @abstractmethod
    def destroy(self, event: c_void_p) -> None:
        """Free an event."""

    @abstractmethod
    def is_done(self, event: c_void_p) -> bool:
        """Return whether the GPU has reached an event."""

    @abstractmethod
    def seconds(self, first: c_void_p, last: c_void_p) -> float:
        """Wait for two events, return the GPU seconds between them, and free them."""

    # -- calls ------------------------------------------------------------------------------------

    def symbol(self, function: str) -> str:
        """Return the library's name of a function."""
        return self.symbols.get(function, self.prefix + function)

    def _refuse_absent(self, count: int, shown: str = "") -> None:
        """Refuse a device number that does not exist; `shown` lists the devices."""
        if not 0 <= self.device < count:
            raise DeviceError(
                f"{self.name}: argument 'target': device {self.device} is not there, "
                f"{self.runtime} shows {count}{shown}; give another 'device', or check "
                f"{self.visible}"
            )

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

    def _call(self, function: str, *arguments: Any, detail: str = "") -> None:
        """Call a function of the library; `detail` describes the arguments in errors."""
        code = (self.functions.get(function) or self._find(function))(*arguments)
        if code:
            self._check(self.symbol(function), code, detail)

    def _find(self, function: str) -> Any:
        """Return a function of the library; refuses in a forked process."""
        if self.is_behind:
            raise DeviceError(f"{self.name}: this process was forked; {FORKED}")
        found = self.functions.get(function)
        if found is None:
            symbol = self.symbol(function)
            found = getattr(self._library, symbol, None)
            if found is None:
                raise DeviceError(f"{self.name}: {self.runtime} has no {symbol}; {self.update}")
            found.argtypes = self.parameters.get(function)
            self.functions[function] = found
        return found

    def _check(self, symbol: str, code: int, detail: str = "") -> None:
        """Raise the exception for an error code of the library, unless it is 0."""
        if code == 0:
            return
        reason = (self._describe_error(code) or b"unknown error").decode()
        remedy = self.remedies.get(code, f"see {self.manual}")
        call = symbol.removesuffix("_v2") + (f" ({detail})" if detail else "")
        raise DeviceError(f"{self.name}: {call} failed with {code}, {reason}; {remedy}")


def find_library(names: Sequence[str]) -> Any | None:
    """Return the first shared library that can be loaded, or None."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
