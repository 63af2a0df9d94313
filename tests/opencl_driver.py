"""A driver of OpenCL for tests: kernels as text, on whatever pyopencl finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class OpenCLDriver:
    """A device of pyopencl behind `gpu_runtime.driver.Driver`; pointers are numbers of buffers."""

    name, device, architecture = "opencl", 0, "any"

    def __init__(self, cl: Any) -> None:
        self.cl = cl
        self.context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
        self.queue = cl.CommandQueue(self.context)
        self.buffers: dict[int, Any] = {}

    def load(self, image: bytes) -> Any:
        options = ["-cl-fp32-correctly-rounded-divide-sqrt"]
        return self.cl.Program(self.context, image.decode()).build(options)

    def find_kernel(self, module: Any, name: str) -> Any:
        return self.cl.Kernel(module, name)

    def allocate(self, size: int) -> int:
        pointer = (1 << 40) + len(self.buffers)
        self.buffers[pointer] = self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, size)
        return pointer

    def free(self, pointer: int) -> None:
        self.buffers[pointer].release()

    def upload(self, pointer: int, array: Any, stream: int) -> None:
        self.cl.enqueue_copy(self.queue, self.buffers[pointer], array)

    def download(self, array: Any, pointer: int, stream: int) -> None:
        self.cl.enqueue_copy(self.queue, array, self.buffers[pointer])

    def launch(
        self, function: Any, grid: Any, block: Any, shared: int, arguments: Sequence[Any], _: int
    ) -> None:
        given = [self.buffers.get(x.value, np.asarray(x)[()]) for x in arguments]
        items = tuple(blocks * threads for blocks, threads in zip(grid, block, strict=True))
        function(self.queue, items, block, *given)

    def synchronize(self, stream: int) -> None:
        self.queue.finish()

    def wait(self, stream: int, other: int) -> None:
        pass
