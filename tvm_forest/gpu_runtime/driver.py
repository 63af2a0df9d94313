"""A GPU, through the library of its driver.

takes: images, numbers of bytes, arrays; gives: modules, pointers, launches, seconds.

CUDA and HIP have the same functions under different names; what differs is in `cuda` and `hip`. A
stream is the integer that the library knows it by; 0 is the default stream. Work on one stream is
done in order. What fails raises DeviceError.
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

Size = tuple[int, int, int]

NO_TIMING = 2
NOT_READY = 600
FORKED = (
    "a GPU that is open does not survive a fork; start processes by 'spawn', or let none but the "
    "children predict"
)
SMALLER = "use smaller tiles in the schedule"


class Names(NamedTuple):
    """What one library calls the functions that both have, and the words of its errors.

    Attributes:
        runtime: what the library is.
        update: what helps if it is too old.
        visible: the variable that hides GPUs.
        manual: where its errors are explained.
        oldest: its oldest version that will do.
        major: what its versions count for a major one.
    """

    init: str
    version: str
    devices: str
    title: str
    memory: str
    function: str
    allocate: str
    free: str
    upload: str
    download: str
    copy: str
    launch: str
    synchronize: str
    event: str
    record: str
    wait: str
    query: str
    finish: str
    elapsed: str
    forget: str
    runtime: str
    update: str
    visible: str
    manual: str
    oldest: int
    major: int


class Function(NamedTuple):
    """A kernel: what the library knows it by, its name, and what its code says of it."""

    handle: ctypes.c_void_p
    name: str
    about: Any = None


class Driver(ABC):
    """One GPU.

    Attributes:
        name: kind of the target.
        names: of the library's functions.
        remedies: what helps against its errors, by their numbers.
        device: number of the GPU.
        architecture: what code is made for, such as "sm_90".
        title: what its maker calls it.
        memory: its bytes.
        limits: threads and bytes of shared memory of a block, and more.
    """

    name: str
    names: Names
    remedies: dict[int, str]
    architecture: str
    title: str
    memory: int
    limits: dict[str, int]

    def __init__(self, device: int, library: Any) -> None:
        """Open a GPU.

        Args:
            device: its number, among those that are visible.
            library: of the driver.

        Raises:
            DeviceError: a driver that is too old, or no such GPU.
        """
        self._library, self.device, names = library, device, self.names
        self._process = os.getpid()
        version, count = ctypes.c_int(), ctypes.c_int()
        self._call(names.init, 0)
        self._call(names.version, ctypes.byref(version))
        if version.value < names.oldest:
            found, needed = (_dotted(x, names.major) for x in (version.value, names.oldest))
            raise DeviceError(
                f"{self.name}: {names.runtime} is of version {found}, needed is {needed} or newer; "
                f"{names.update}"
            )
        self._call(names.devices, ctypes.byref(count))
        if not 0 <= device < count.value:
            raise DeviceError(
                f"{self.name}: argument 'target': device {device} is not there, {names.runtime} "
                f"shows {count.value}; give another 'device', or check {names.visible}"
            )

    @abstractmethod
    def load(self, image: bytes) -> Any:
        """Return the module of an image."""

    @abstractmethod
    def function(self, module: Any, name: str) -> Function:
        """Return a kernel of a module."""

    @abstractmethod
    def _prepare(self, function: Function, block: Size, shared: int, given: Sequence[Any]) -> None:
        """Refuse a launch that cannot be, and allow what it needs."""

    @abstractmethod
    def _current(self) -> AbstractContextManager[None]:
        """Use the GPU on the calling thread, and the caller's own afterwards."""

    @abstractmethod
    def _said(self, code: int) -> bytes | None:
        """Return the library's words for an error."""

    @property
    def identity(self) -> str:
        """What times depend on: maker's name, architecture, multiprocessors, memory."""
        count, size = self.limits["processors"], self.memory >> 20
        return f"{self.title}, {self.architecture}, {count} multiprocessors, {size} MB"

    def _ask_name_and_memory(self, handle: Any) -> None:
        title, size = ctypes.create_string_buffer(256), ctypes.c_size_t()
        self._call(self.names.title, title, len(title), handle)
        self._call(self.names.memory, ctypes.byref(size), handle)
        self.title, self.memory = title.value.decode(errors="replace"), size.value

    def _function(self, module: ctypes.c_void_p, name: str, about: Any = None) -> Function:
        handle, what = ctypes.c_void_p(), f"kernel '{name}'"
        found = ctypes.byref(handle)
        self._do(self.names.function, found, module, name.encode(), about=what)
        return Function(handle, name, about)

    def allocate(self, size: int) -> int:
        """Return the address of so many bytes of the GPU's memory."""
        pointer, wanted = ctypes.c_void_p(), ctypes.c_size_t(max(1, size))
        self._do(self.names.allocate, ctypes.byref(pointer), wanted, about=f"{size} bytes")
        return pointer.value or 0

    def free(self, pointer: int) -> None:
        """Give memory back, once no work uses it any more: waits for the GPU."""
        self._do(self.names.free, ctypes.c_void_p(pointer))

    def upload(self, pointer: int, array: Array, stream: int) -> None:
        """Copy a C-ordered array to the GPU; it may change as soon as this returns."""
        place, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        to, on = ctypes.c_void_p(pointer), ctypes.c_void_p(stream)
        self._do(self.names.upload, to, place, size, on)

    def download(self, array: Array, pointer: int, stream: int) -> None:
        """Copy from the GPU into a C-ordered array; waits for the work before it."""
        place, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        source, on = ctypes.c_void_p(pointer), ctypes.c_void_p(stream)
        self._do(self.names.download, place, source, size, on)
        self.synchronize(stream)

    def copy(self, to: int, pointer: int, size: int, stream: int) -> None:
        """Copy within the GPU's memory; the caller does not wait."""
        ends, on = (ctypes.c_void_p(x) for x in (to, pointer)), ctypes.c_void_p(stream)
        self._do(self.names.copy, *ends, ctypes.c_size_t(size), on)

    def launch(
        self,
        function: Function,
        grid: Size,
        block: Size,
        shared: int,
        arguments: Sequence[Any],
        stream: int,
    ) -> None:
        """Start a kernel with values of ctypes, in its order of parameters."""
        self._prepare(function, block, shared, arguments)
        places = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        about = f"'{function.name}', grid {grid}, block {block}, {shared} bytes shared"
        sizes, on = (*grid, *block, shared), ctypes.c_void_p(stream)
        self._do(self.names.launch, function.handle, *sizes, on, places, None, about=about)

    def synchronize(self, stream: int) -> None:
        """Wait for all work on a stream."""
        self._do(self.names.synchronize, ctypes.c_void_p(stream))

    def wait(self, stream: int, other: int) -> None:
        """Let later work on `stream` wait for what is on `other` now; the caller does not wait."""
        event = self.mark(other, NO_TIMING)
        self._do(self.names.wait, ctypes.c_void_p(stream), event, 0)
        self._do(self.names.forget, event)

    def mark(self, stream: int, flags: int = 0) -> ctypes.c_void_p:
        """Return an event behind the work that is on a stream now; `seconds` gives it back."""
        event = ctypes.c_void_p()
        self._do(self.names.event, ctypes.byref(event), flags)
        self._do(self.names.record, event, ctypes.c_void_p(stream))
        return event

    def is_done(self, event: ctypes.c_void_p) -> bool:
        """Return whether the GPU has come to an event."""
        with self._current():
            code = int(getattr(self._library, self.names.query)(event))
        if code != NOT_READY:
            self._check(self.names.query, code)
        return code != NOT_READY

    def seconds(self, first: ctypes.c_void_p, last: ctypes.c_void_p) -> float:
        """Wait for two events, return the GPU's seconds between them, and give them back."""
        milliseconds = ctypes.c_float()
        self._do(self.names.finish, last)
        self._do(self.names.elapsed, ctypes.byref(milliseconds), first, last)
        for event in (first, last):
            self._do(self.names.forget, event)
        return milliseconds.value / 1000

    # -- calls ------------------------------------------------------------------------------------

    def _check_block(self, name: str, block: Size, most: int, shared: int, limit: int) -> None:
        """Compare what a kernel takes with what it may."""
        for what, wanted, allowed in (
            ("threads per block", prod(block), most),
            ("bytes of shared memory per block", shared, limit),
        ):
            if wanted > allowed:
                raise DeviceError(
                    f"{self.name}: kernel '{name}' takes {wanted} {what}, {allowed} are allowed; "
                    f"{SMALLER}"
                )

    def _do(self, name: str, *arguments: Any, about: str = "") -> None:
        """Call a function of the library on this GPU."""
        with self._current():
            self._call(name, *arguments, about=about)

    def _call(self, name: str, *arguments: Any, about: str = "") -> None:
        if os.getpid() != self._process:
            raise DeviceError(f"{self.name}: this process was forked; {FORKED}")
        function = getattr(self._library, name, None)
        if function is None:
            raise DeviceError(
                f"{self.name}: {self.names.runtime} has no {name}; {self.names.update}"
            )
        self._check(name, function(*arguments), about)

    def _check(self, name: str, code: int, about: str = "") -> None:
        if code == 0:
            return
        said = (self._said(code) or b"unknown error").decode()
        remedy = self.remedies.get(code, f"see {self.names.manual}")
        name = name.removesuffix("_v2") + (f" ({about})" if about else "")
        raise DeviceError(f"{self.name}: {name} failed with {code}, {said}; {remedy}")


def open_library(names: Sequence[str], missing: str) -> Any:
    """Return the first library that is there.

    Raises:
        DeviceError: there is none; `missing` says what was looked for, and what helps.
    """
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DeviceError(missing.format(tried=", ".join(names)))


def _dotted(version: int, major: int) -> str:
    return f"{version // major}.{version % major // (major // 100)}"
