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

from ..errors import DeviceError
from ..forest import Array
from .kernels import Arguments, LoadedKernel, Module, Size
from .memory import MemoryPool

FORKED = (
    "a GPU that is open does not survive a fork; start processes by 'spawn', or let none but the "
    "children predict"
)
SMALLER = "use smaller tiles in the schedule"

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
        symbols: names of those functions whose name is not the prefix and the name in this package.
        parameters: types of the parameters of those functions that take addresses or sizes, which
            ctypes would pass as 32 bits without.
        runtime: what messages call the library.
        update: what helps if it is too old.
        visible: the environment variable that hides GPUs.
        manual: where its errors are explained.
        remedies: what helps against its errors, by their numbers.
        is_shared: whether other libraries can use its memory, and it theirs.
        alignment: bytes that arrays in one piece of memory must lie apart by a multiple of.
        device: number of the GPU.
        version: of the library, as it counts.
        architecture: what code is made for, such as "sm_90".
        title: what its maker calls it.
        memory: its bytes.
        limits: "threads" and bytes of "shared" memory of a block, "processors", and more.
        pool, frames: memory that calls have left for the next ones: that of the GPU, and room for
            rows of the host, see `staging`.
        functions: of the library, as far as they were called, by name.
        is_behind: whether it was opened by a process that this one was forked from.
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
        """Open the GPU, and find the facts about it."""

    @abstractmethod
    def _describe_error(self, code: int) -> bytes | None:
        """Return the library's words for an error."""

    @property
    def identity(self) -> str:
        """What times depend on: maker's name, architecture, multiprocessors, memory."""
        count, size = self.limits["processors"], self.memory >> 20
        return f"{self.title}, {self.architecture}, {count} multiprocessors, {size} MB"

    @abstractmethod
    def load(self, image: bytes) -> Module:
        """Return the module of an image."""

    @abstractmethod
    def find_kernel(self, module: Module, name: str) -> LoadedKernel:
        """Return a kernel of a module."""

    @abstractmethod
    def unload(self, module: Module) -> None:
        """Give a module back, of whose kernels none runs any more."""

    def enter(self) -> Any:
        """Use the GPU on the calling thread; return what `leave` takes, None if it was in use."""
        return None

    def leave(self, before: Any) -> None:  # noqa: B027
        """Use what the caller used before `enter`, which said so."""

    @abstractmethod
    def allocate(self, size: int) -> int:
        """Return the pointer of so many bytes of the GPU's memory."""

    def allocate_while_captured(self, size: int) -> int:
        """Do what `allocate` does while work of this thread becomes a graph."""
        return self.allocate(size)

    def relaxed(self) -> AbstractContextManager[None]:
        """Allow this thread what does not touch a stream whose work becomes a graph."""
        return nullcontext()

    @abstractmethod
    def allocate_host(self, size: int) -> int:
        """Return the address of memory of the host that copies read and write by themselves."""

    @abstractmethod
    def free_host(self, pointer: int) -> None:
        """Give memory of `allocate_host` back."""

    @abstractmethod
    def free(self, pointer: int) -> None:
        """Give memory back, once no work uses it any more: waits for the GPU."""

    def part(self, pointer: int, begin: int, size: int) -> int:
        """Return the pointer of a part of memory, which begins at a multiple of `alignment`.

        The memory may be given back after its parts only. What uses parts that overlap has to be
        in order.
        """
        return pointer + begin

    def free_part(self, pointer: int) -> None:  # noqa: B027
        """Give back what `part` returned."""

    @abstractmethod
    def upload(self, pointer: int, array: Array, stream: int) -> None:
        """Copy a C-ordered array to the GPU; it may change as soon as this returns."""

    @abstractmethod
    def download(self, array: Array, pointer: int, stream: int) -> None:
        """Copy from the GPU into a C-ordered array; waits for the work before it."""

    @abstractmethod
    def copy(self, to: int, pointer: int, size: int, stream: int) -> None:
        """Copy within the GPU's memory; the caller does not wait."""

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
        """Return whether work on a stream is not done but becomes a graph."""
        return False

    @abstractmethod
    def wait(self, stream: int, other: int) -> None:
        """Let later work on `stream` wait for what is on `other` now; the caller does not wait."""

    @abstractmethod
    def wait_for_all(self, stream: int) -> None:
        """Let later work on `stream` wait for all that the GPU was given before, by whomever.

        No other stream is asked, which may be destroyed. Old libraries let the caller wait.
        """

    @abstractmethod
    def mark(self, stream: int, flags: int = 0) -> c_void_p:
        """Return an event behind the work that is on a stream now; `seconds` gives it back."""

    @abstractmethod
    def destroy(self, event: c_void_p) -> None:
        """Give an event back."""

    @abstractmethod
    def is_done(self, event: c_void_p) -> bool:
        """Return whether the GPU has come to an event."""

    @abstractmethod
    def seconds(self, first: c_void_p, last: c_void_p) -> float:
        """Wait for two events, return the GPU's seconds between them, and give them back."""

    # -- calls ------------------------------------------------------------------------------------

    def symbol(self, function: str) -> str:
        """Return what the library calls a function."""
        return self.symbols.get(function, self.prefix + function)

    def _refuse_absent(self, count: int, shown: str = "") -> None:
        """Refuse a number that none of `count` GPUs has; `shown` lists them."""
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
            found.argtypes = self.parameters.get(function)
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


def find_library(names: Sequence[str]) -> Any | None:
    """Return the first shared library of some names that is there, or None."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
