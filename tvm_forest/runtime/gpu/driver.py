"""A GPU, through the library of its driver.

takes: images (compiled kernels), numbers of bytes, arrays; gives: modules (loaded kernels),
pointers, launches, seconds.

CUDA and HIP implement `Driver` by `shared_api`, OpenCL by `opencl`. A pointer is the library's
integer for memory of the GPU, and a stream its integer for a queue of work; 0 is the default
stream. Work on one stream is done in order. A call that fails raises DeviceError.
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

    The attributes up to `alignment` are class attributes, which subclasses set.

    Attributes:
        name: kind of the target, such as "cuda".
        libraries: file names under which the driver's library is searched.
        missing: error text if none is found, with {tried} for these names.
        prefix: prefix of the names of the library's functions.
        symbols: names of functions in the library where they are not the prefix plus the name that
            this package uses.
        parameters: parameter types of the functions that take addresses or sizes; without them
            ctypes would pass 32 bits.
        runtime: name of the library in messages.
        update: remedy if the library is too old.
        visible: what decides which GPUs are visible, such as an environment variable.
        manual: where the library's errors are documented.
        remedies: remedies by error number.
        is_shared: whether memory can be shared with other libraries.
        alignment: alignment, in bytes, of arrays within one allocation.
        device: number of the GPU.
        version: version of the library, in its own encoding.
        architecture: architecture that code is compiled for, such as "sm_90".
        title: the GPU's product name.
        memory: bytes of memory of the GPU.
        limits: "threads" and bytes of "shared" memory of a block, "processors" (multiprocessors),
            and more.
        pool, frames: memory that calls reuse: on the GPU, and for copying host rows, see `staging`.
        turns: has one element unless several threads move a batch; a second call uses only one.
        functions: functions of the library by name, cached after their first call.
        is_behind: whether the parent process opened it before a fork, so that it cannot be used.
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
        self.turns = [None]
        _drivers.add(self)

    @abstractmethod
    def _open(self) -> None:
        """Open the GPU, and query its properties."""

    @abstractmethod
    def _describe_error(self, code: int) -> bytes | None:
        """Return the library's description of an error."""

    @property
    def identity(self) -> str:
        """A text of what timings depend on: product, architecture, multiprocessors, memory."""
        count, size = self.limits["processors"], self.memory >> 20
        return f"{self.title}, {self.architecture}, {count} multiprocessors, {size} MB"

    @abstractmethod
    def load(self, image: bytes) -> Module:
        """Load an image onto the GPU, and return the module, whose kernels can then be found.

        Args:
            image: a cubin, PTX or a code object; for OpenCL the source text.
        """

    @abstractmethod
    def find_kernel(self, module: Module, name: str) -> LoadedKernel:
        """Return the kernel of a module that has this name."""

    @abstractmethod
    def unload(self, module: Module) -> None:
        """Unload a module, none of whose kernels is running."""

    def enter(self) -> Any:
        """Make the GPU current on this thread; return a value for `leave`.

        The value is None if the GPU already was current.
        """
        return None

    def leave(self, before: Any) -> None:  # noqa: B027
        """Restore the context that was current before `enter`."""

    @abstractmethod
    def allocate(self, size: int) -> int:
        """Allocate bytes of GPU memory; return the pointer."""

    def allocate_while_captured(self, size: int) -> int:
        """Allocate memory like `allocate`, while a graph captures the work of this thread."""
        return self.allocate(size)

    def relaxed(self) -> AbstractContextManager[None]:
        """Return a context in which this thread may make calls unrelated to a captured stream.

        Without it, the library refuses some of them, such as allocations, during a capture.
        """
        return nullcontext()

    @abstractmethod
    def allocate_host(self, size: int) -> int:
        """Allocate pinned host memory; return its address."""

    @abstractmethod
    def free_host(self, pointer: int) -> None:
        """Free memory from `allocate_host`."""

    @abstractmethod
    def free(self, pointer: int) -> None:
        """Free memory; work in progress that uses it is finished first."""

    def part(self, pointer: int, begin: int, size: int) -> int:
        """Return the pointer of a part of an allocation; `begin` is a multiple of `alignment`.

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
        """Start a copy of `size` bytes within the GPU's memory, from `pointer` to `to`."""

    @abstractmethod
    def copy_in(self, to: int, host: int, size: int, stream: int) -> None:
        """Between `enter` and `leave`, start a copy to the GPU from memory of the host.

        Args:
            to: pointer to copy to.
            host: address to copy from; what lies there must not change until the copy is done.
            size: number of bytes.
            stream: stream for the copy.
        """

    @abstractmethod
    def copy_out(self, host: int, pointer: int, size: int, stream: int) -> None:
        """Between `enter` and `leave`, start a copy from the GPU to memory of `allocate_host`.

        Args:
            host: address to copy to.
            pointer: pointer to copy from.
            size: number of bytes.
            stream: stream for the copy.
        """

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
        """Between `enter` and `leave`, start a kernel; the arguments are read at once.

        Args:
            kernel: the kernel.
            grid: number of blocks in each of three dimensions.
            block: number of threads of a block in each of these.
            shared: bytes of dynamic shared memory of a block.
            arguments: values of the kernel's parameters.
            stream: stream for the work.
        """

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

        It does not touch the other streams, which may already be destroyed. Old libraries, and
        OpenCL, make the calling thread wait instead.
        """

    @abstractmethod
    def mark(self, stream: int, flags: int = 0) -> c_void_p:
        """Record an event after the current work on a stream; `seconds` or `destroy` frees it.

        `flags` are those of the library, 0 for an event that `seconds` can use.
        """

    @abstractmethod
    def destroy(self, event: c_void_p) -> None:
        """Free an event from `mark`."""

    @abstractmethod
    def is_done(self, event: c_void_p) -> bool:
        """Return whether the GPU has reached an event."""

    @abstractmethod
    def seconds(self, first: c_void_p, last: c_void_p) -> float:
        """Wait for two events, free them, and return the seconds between them on the GPU."""

    # -- calls ------------------------------------------------------------------------------------

    def symbol(self, function: str) -> str:
        """Return the library's name of a function, given the name that this package uses."""
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
        """Return a function of the library.

        Raises:
            DeviceError: the library lacks it, or this process was forked after the GPU was opened.
        """
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
        """Raise DeviceError for an error code of the library, unless it is 0, which is success."""
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
