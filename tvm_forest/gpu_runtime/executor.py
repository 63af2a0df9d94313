"""Run plans on a GPU.

takes: a driver, an image, plans; gives: results, in memory of the GPU or of the host.

The arrays of the model are copied to the GPU once. Memory that a call needs is taken from what
earlier calls on the same stream have left, and given back as soon as the work is started: the work
of a stream is done in order, so the next call cannot write to it too early.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from ..errors import DeviceError
from ..forest import Array
from . import dlpack
from .driver import Driver
from .plan import Allocate, HostLoop, HostStep, Launch, Plan, SizeExpr, Values, evaluate

MIN_PIECE = 512
"""Bytes of the smallest piece of memory of a pool; larger ones are powers of two."""


class MemoryPool:
    """Memory of a GPU, kept for the next call.

    A piece belongs to a stream, and whoever takes it again does so on that stream, after the work
    that used it last. There is no lock: the garbage collector gives memory back whenever it likes,
    also on a thread that is taking some. Each step is one call of a dict or deque, which is atomic.
    """

    def __init__(self, driver: Driver) -> None:
        """Begin with nothing."""
        self._driver = driver
        self._free: dict[tuple[int, int], deque[int]] = {}

    def take(self, size: int, stream: int) -> int:
        """Return the address of so many bytes or more."""
        rounded = _round_up(size)
        with suppress(IndexError):
            return self._free_pieces(stream, rounded).pop()
        try:
            return self._driver.allocate(rounded)
        except DeviceError:  # perhaps pieces of other sizes take all memory
            self.drop()
            return self._driver.allocate(rounded)

    def drop(self) -> None:
        """Give the driver back what is not in use."""
        for free in tuple(self._free.values()):
            with suppress(IndexError):
                while True:
                    self._driver.free(free.pop())

    def give(self, pointer: int, size: int, stream: int) -> None:
        """Return what `take` gave for the same size and stream."""
        self._free_pieces(stream, _round_up(size)).append(pointer)

    def _free_pieces(self, stream: int, rounded: int) -> deque[int]:
        return self._free.setdefault((stream, rounded), deque())


def _round_up(size: int) -> int:
    return max(MIN_PIECE, 1 << (size - 1).bit_length())


class DeviceArray:
    """An array in memory of a GPU, that other libraries take by DLPack without a copy.

    The work that fills it may still be under way; who takes it says on which stream it will be
    used, and that stream waits. `numpy()` copies it to the host.

    Attributes:
        shape, dtype: of the array, which is C-ordered.
        nbytes: its size.
        pointer: its address.
        stream: on which it is filled.
    """

    def __init__(
        self,
        executor: Executor,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        stream: int,
        keeps: Any = None,
    ) -> None:
        """Take memory; `keeps` is what the work on it reads, and lives as long."""
        self.shape, self.dtype, self.stream = shape, dtype, stream
        self.nbytes = prod(shape) * dtype.itemsize
        self._executor, self._keeps, self._users = executor, keeps, set[int]()
        self.pointer = executor.pool.take(self.nbytes, stream)

    def squeeze(self) -> DeviceArray:
        """Return itself as (R,) if it is (R, 1)."""
        self.shape = self.shape[:1] if self.shape[1:] == (1,) else self.shape
        return self

    def numpy(self) -> Array:
        """Return a copy on the host; waits for the work."""
        array = np.empty(self.shape, self.dtype)
        if array.size:
            self._executor.driver.download(array, self.pointer, self.stream)
        return array

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.KINDS[self._executor.driver.name], self._executor.device

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """Return a capsule; `stream` is the consumer's, -1 for one that does not wait."""
        kind, number = self.__dlpack_device__()
        user = to_driver_stream(stream)
        if user != self.stream and stream != -1:
            self._executor.driver.wait(user, self.stream)
            self._users.add(user)
        tensor = dlpack.Tensor(self.pointer, self.shape, self.dtype, number, self)
        return dlpack.give(tensor, kind)

    def __del__(self) -> None:
        if not hasattr(self, "pointer"):
            return
        with suppress(DeviceError):  # the driver may be gone by now
            for user in self._users:  # they may still read it
                self._executor.driver.wait(self.stream, user)
            self._executor.pool.give(self.pointer, self.nbytes, self.stream)

    def __repr__(self) -> str:
        return f"<DeviceArray {self.shape} {self.dtype} on {self._executor.driver.name}>"


def to_driver_stream(stream: int | None) -> int:
    """Return a stream as drivers know it; DLPack has 1 for CUDA's default one."""
    return 0 if stream in (None, -1, 1) else int(stream or 0)


class Executor:
    """Kernels on a GPU, with the memory that they use.

    Attributes:
        driver: of the GPU.
        device: number of the GPU.
        pool: memory for calls.
    """

    def __init__(self, driver: Driver, image: bytes) -> None:
        """Load an image."""
        self.driver, self.pool = driver, MemoryPool(driver)
        self.device = int(getattr(driver, "device", 0))
        self._module = driver.load(image)
        self._kernels: dict[str, Any] = {}
        self._copies: dict[int, tuple[Array, int]] = {}  # by `id`: arrays of the model, addresses
        self._lock = threading.Lock()

    def __del__(self) -> None:
        with suppress(DeviceError, AttributeError):  # the driver may be gone by now
            self.pool.drop()
            for _, pointer in self._copies.values():
                self.driver.free(pointer)

    def pointer_of(self, array: Array) -> int:
        """Return where an array of the model is on the GPU; copies it if it was not asked for."""
        with self._lock:
            if id(array) not in self._copies:
                pointer = self.driver.allocate(array.nbytes)
                self.driver.upload(pointer, np.ascontiguousarray(array), 0)
                self.driver.synchronize(0)
                self._copies[id(array)] = array, pointer
            return self._copies[id(array)][1]

    def run(self, plan: Plan, pointers: Sequence[int], values: Values, stream: int) -> None:
        """Do what a plan says.

        Args:
            plan: launches of kernels of the image.
            pointers: where the plan's parameters are.
            values: "n", the number of rows, and the arrays of the model by name; nothing is
                launched for no rows.
            stream: on which the work is done, in order.

        Raises:
            DeviceError: the driver refuses a call.
        """
        if values["n"] < 1:
            return
        places = dict(zip(plan.parameters, pointers, strict=True))
        pieces: list[tuple[int, int]] = []  # addresses and sizes
        try:
            self._run_steps(plan.steps, places, values, stream, pieces)
        finally:
            for pointer, size in pieces:
                self.pool.give(pointer, size, stream)

    def _run_steps(
        self,
        steps: tuple[HostStep, ...],
        places: dict[str, int],
        values: Values,
        stream: int,
        pieces: list[tuple[int, int]],
    ) -> None:
        """Do some steps, and note the pieces of memory that they take."""
        for step in steps:
            if isinstance(step, HostLoop):
                for turn in range(evaluate(step.count, values)):
                    inside = {**values, step.variable: turn}
                    self._run_steps(step.steps, dict(places), inside, stream, pieces)
            elif isinstance(step, Allocate):
                size = evaluate(step.size, values)
                places[step.name] = self.pool.take(size, stream)
                pieces.append((places[step.name], size))
            else:
                self._launch(step, places, values, stream)

    def _launch(self, step: Launch, places: Mapping[str, int], values: Values, stream: int) -> None:
        grid, block = (tuple(evaluate(x, values) for x in size) for size in (step.grid, step.block))
        if min(grid) < 1:
            return
        arguments = [
            ctypes.c_uint64(places[expr]) if kind == "pointer" else _number(kind, expr, values)
            for kind, expr in step.arguments
        ]
        shared = evaluate(step.shared, values)
        kernel = self._kernel(step.kernel)
        self.driver.launch(kernel, grid, block, shared, arguments, stream)

    def _kernel(self, name: str) -> Any:
        if name not in self._kernels:
            self._kernels[name] = self.driver.find_kernel(self._module, name)
        return self._kernels[name]


def _number(dtype: str, expr: SizeExpr, values: Values) -> Any:
    """Return the value of an expression as ctypes has it for a dtype."""
    return np.ctypeslib.as_ctypes_type(np.dtype(dtype))(evaluate(expr, values))
