"""A driver of OpenCL for tests: kernels as text, on whatever pyopencl finds."""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Any

import numpy as np

from tvm_forest.gpu_runtime.kernels import Arguments, LoadedKernel
from tvm_forest.gpu_runtime.memory import MemoryPool

FIRST = 1 << 40
"""Pointers are numbers from here on; no number of a launch is as large."""


class OpenCLDriver:
    """A device of pyopencl behind `gpu_runtime.driver.Driver`."""

    name, device, architecture, memory, version = "opencl", 0, "any", 1 << 30, 0

    def __init__(self, cl: Any) -> None:
        self.cl = cl
        self.context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
        self.queue = cl.CommandQueue(self.context)
        self.buffers: dict[int, Any] = {}
        self.next = FIRST
        self.pool, self.frames = MemoryPool(self), deque[Any]()
        self.host: dict[int, Any] = {}

    def load(self, image: bytes) -> Any:
        options = ["-cl-fp32-correctly-rounded-divide-sqrt"]
        return self.cl.Program(self.context, image.decode()).build(options)

    def find_kernel(self, module: Any, name: str) -> LoadedKernel:
        return LoadedKernel(self.cl.Kernel(module, name), name)

    def allocate(self, size: int) -> int:
        pointer, self.next = self.next, self.next + (size // 4096 + 1) * 4096
        flags = self.cl.mem_flags.READ_WRITE
        self.buffers[pointer] = self.cl.Buffer(self.context, flags, max(1, size))
        return pointer

    def free(self, pointer: int) -> None:
        self.buffers.pop(pointer).release()

    def allocate_host(self, size: int) -> int:
        memory = np.zeros(size, np.uint8)
        self.host[memory.ctypes.data] = memory
        return memory.ctypes.data

    def free_host(self, pointer: int) -> None:
        del self.host[pointer]

    def place(self, pointer: int) -> tuple[Any, int]:
        """Return the buffer of a pointer, and how far it lies inside."""
        first = max(x for x in self.buffers if x <= pointer)
        return self.buffers[first], pointer - first

    def upload(self, pointer: int, array: Any, stream: int) -> None:
        self.copy_in(pointer, array.ctypes.data, array.nbytes, stream)

    def download(self, array: Any, pointer: int, stream: int) -> None:
        self.copy_out(array.ctypes.data, pointer, array.nbytes, stream)

    def copy_in(self, to: int, host: int, size: int, stream: int) -> None:
        buffer, offset = self.place(to)
        self.cl.enqueue_copy(self.queue, buffer, bytes_at(host, size), dst_offset=offset)

    def copy_out(self, host: int, pointer: int, size: int, stream: int) -> None:
        buffer, offset = self.place(pointer)
        self.cl.enqueue_copy(self.queue, bytes_at(host, size), buffer, src_offset=offset)

    def launch(
        self, kernel: Any, grid: Any, block: Any, shared: int, arguments: Arguments, stream: int
    ) -> None:
        pairs = zip(arguments.values(), arguments.dtypes, strict=True)
        given = [self.part(x) if x >= FIRST else dtype.type(x) for x, dtype in pairs]
        items = tuple(blocks * threads for blocks, threads in zip(grid, block, strict=True))
        kernel.handle(self.queue, items, block, *given)

    def part(self, pointer: int) -> Any:
        buffer, offset = self.place(pointer)
        return buffer[offset:] if offset else buffer

    def enter(self) -> None:
        pass

    def leave(self, before: None) -> None:
        pass

    def create_stream(self) -> int:
        return 0

    def is_capturing(self, stream: int) -> bool:
        return False

    def synchronize(self, stream: int) -> None:
        self.queue.finish()

    def wait(self, stream: int, other: int) -> None:
        pass


def bytes_at(address: int, size: int) -> Any:
    return np.ndarray((size,), np.uint8, (ctypes.c_char * size).from_address(address))
