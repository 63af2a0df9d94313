"""Runs launch plans on a GPU.

takes: a driver, an image, plans, arrays of a model; gives: results, in memory of the GPU.

The arrays of the model are copied to the GPU once. A plan is bound once to kernels and to these
arrays, which makes it a Python function with sizes and addresses as literals:

    def run(take, stream, n, p0, p1):         # rows and results; 139648: where the nodes are
        t0 = take((n + 7) // 8 * 416)
        launch_0(stream, ((n + 7) // 8, 1, 1), (8, 13, 1), 0, 139648, t0, p0, p1, n)

A call takes temporary memory from a pool for its stream, and returns it as soon as the work is
started: the work of a stream is done in order, so the next call cannot write to it too early. Only
memory used by a captured graph is kept as long as the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from ...errors import DeviceError
from ...forest import Array
from ...system.process.locks import make_lock
from .arrays import DeviceArray
from .driver import Driver
from .kernels import Arguments, LoadedKernel, Size
from .memory import Piece
from .plan import Launch, Plan, write_python

Shapes = Sequence[tuple[tuple[int, ...], np.dtype[Any]]]


class Executor:
    """The kernels of a GPU library, with the model arrays that they read.

    Attributes:
        driver: driver of the GPU.
        captured: memory used by graphs, freed with the model.
    """

    def __init__(self, driver: Driver, image: bytes) -> None:
        """Load an image, the compiled kernels of the library, onto the driver's GPU.

        Raises:
            DeviceError: the driver refuses the image.
            InputError: the image for a GPU of AMD is no code object.
        """
        self.driver, self.captured = driver, list[int]()
        self._module = driver.load(image)
        self._kernels: dict[str, LoadedKernel] = {}
        self._copies: dict[int, tuple[Array, int]] = {}  # by `id`: arrays of the model, addresses
        self._lock = make_lock()

    def __del__(self) -> None:
        with suppress(DeviceError, AttributeError):  # the driver may be gone by now
            for pointer in (*self.captured, *(pointer for _, pointer in self._copies.values())):
                self.driver.free(pointer)
            self.driver.unload(self._module)

    def bind(self, plan: Plan, model: Sequence[Array], stream: int) -> BoundPlan:
        """Bind a plan to arrays of the model, which are copied to the GPU.

        Raises:
            DeviceError: the driver refuses a call, or the stream is being captured into a graph.
        """
        if self.driver.is_capturing(stream):
            raise DeviceError(
                f"{self.driver.name}: the model is not on the GPU yet, and cannot be copied while "
                "a graph is captured; predict some rows once before"
            )
        with self._lock:
            pointers = [self._pointer_of(array) for array in model]
            for launch in plan.launches:
                if launch.kernel not in self._kernels:
                    kernel = self.driver.find_kernel(self._module, launch.kernel)
                    self._kernels[launch.kernel] = kernel
        return BoundPlan(self, plan, model, pointers, self._kernels)

    def _pointer_of(self, array: Array) -> int:
        """Return the GPU address of a model array; copies it on first use."""
        if id(array) not in self._copies:
            pointer = self.driver.allocate(array.nbytes)
            self.driver.upload(pointer, np.ascontiguousarray(array), 0)
            self.driver.synchronize(0)
            self._copies[id(array)] = array, pointer
        return self._copies[id(array)][1]


class BoundPlan:
    """A launch plan bound to its kernels and to the model's arrays on the GPU.

    Attributes:
        driver: driver of the GPU.
        model: arrays of the model that it reads, on the host.
    """

    def __init__(
        self,
        executor: Executor,
        plan: Plan,
        model: Sequence[Array],
        pointers: Sequence[int],
        kernels: dict[str, LoadedKernel],
    ) -> None:
        """Compile the plan to a Python function; `pointers` are GPU addresses of `model`."""
        self._executor, self.driver, self.model = executor, executor.driver, model
        rows, *others = plan.parameters
        names = dict(zip(others, pointers, strict=False))
        arrays = dict(zip(others, model, strict=False))
        given = [rows, *others[len(model) :]]
        launchers = [BoundLaunch(self.driver, kernels[x.kernel], x) for x in plan.launches]
        self._run = write_python(plan, given, names, arrays, launchers)
        self._takes_memory = bool(plan.allocations)

    def run(self, rows: int, results: Sequence[int], n: int, stream: int) -> None:
        """Between `Driver.enter` and `leave`, start the work for n rows.

        Args:
            rows: GPU address of the first row.
            results: GPU addresses of the results.
            n: number of rows; nothing is launched for none.
            stream: stream for the work.

        Raises:
            DeviceError: the driver refuses a call.
        """
        if n < 1:
            return
        if not self._takes_memory:
            self._run(None, stream, n, rows, *results)
            return
        pool, pieces = self.driver.pool, list[Piece]()

        def take(size: int) -> int:
            if stream and self.driver.is_capturing(stream):
                return self.take_for_graph(size)
            pieces.append(piece := pool.take(size, stream))
            return piece.pointer

        try:
            self._run(take, stream, n, rows, *results)
        finally:
            for piece in pieces:
                pool.give(piece)

    def start(
        self, rows: int, n: int, results: Shapes, stream: int, keeps: Any
    ) -> list[DeviceArray]:
        """Start the work for n rows on the GPU, and return the result arrays.

        Args:
            rows: GPU address of the first row.
            n: number of rows.
            results: shape and dtype of each result.
            stream: stream for the work.
            keeps: owner of the rows, kept alive until they are read.
        """
        driver, arrays = self.driver, list[DeviceArray]()
        before = driver.enter()
        try:
            is_captured = stream != 0 and driver.is_capturing(stream)
            pointer, kept = None, None
            for shape, dtype in results:
                if is_captured:  # the graph may run as long as its results exist
                    pointer = self.take_for_graph(dtype.itemsize * prod(shape))
                    kept = keeps, self
                arrays.append(DeviceArray(driver, shape, dtype, stream, kept, pointer))
            self.run(rows, [array.pointer for array in arrays], n, stream)
            if not is_captured and keeps is not None and type(keeps) is not DeviceArray:
                driver.pool.let_go()
                driver.pool.hold(stream, keeps)  # our own arrays know the stream that reads them
        finally:
            driver.leave(before)
        return arrays

    def take_for_graph(self, size: int) -> int:
        """Return the address of new memory for a captured graph, kept as long as the model.

        No other call uses it, since the graph may run at any time.
        """
        pointer = self.driver.allocate_while_captured(size)
        self._executor.captured.append(pointer)
        return pointer


class BoundLaunch:
    """A step of a plan that launches a kernel, with buffers for its arguments.

    Several threads may call it at once.
    """

    def __init__(self, driver: Driver, kernel: LoadedKernel, step: Launch) -> None:
        self._launch: Callable[..., None] = driver.launch
        self._kernel, self._kinds = kernel, [kind for kind, _ in step.arguments]
        self._idle = deque[Arguments]()

    def __call__(self, stream: int, grid: Size, block: Size, shared: int, *values: int) -> None:
        """Start the kernel, unless the grid is empty."""
        if min(grid) < 1:
            return
        try:
            arguments = self._idle.pop()
        except IndexError:  # other threads use all that there are
            arguments = Arguments(self._kinds)
        arguments.set(*values)
        self._launch(self._kernel, grid, block, shared, arguments, stream)
        self._idle.append(arguments)
