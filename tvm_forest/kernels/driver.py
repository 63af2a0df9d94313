"""What the driver of a GPU has to offer.

takes: images, numbers of bytes, arrays; gives: modules, pointers, launches.

A stream is the integer that the driver's library knows it by; 0 is the default stream. Work on one
stream is done in order. What fails raises DeviceError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..forest import Array

Size = tuple[int, int, int]


class Driver(Protocol):
    """One GPU."""

    name: str

    def load(self, image: bytes) -> Any:
        """Return the module of an image."""

    def function(self, module: Any, name: str) -> Any:
        """Return a kernel of a module."""

    def allocate(self, size: int) -> int:
        """Return the address of so many bytes of the GPU's memory."""

    def free(self, pointer: int) -> None:
        """Give memory back, once no work uses it any more."""

    def upload(self, pointer: int, array: Array, stream: int) -> None:
        """Copy a C-ordered array to the GPU; it may change as soon as this returns."""

    def download(self, array: Array, pointer: int, stream: int) -> None:
        """Copy from the GPU into a C-ordered array; waits for the work before it."""

    def launch(
        self,
        function: Any,
        grid: Size,
        block: Size,
        shared: int,
        arguments: Sequence[Any],
        stream: int,
    ) -> None:
        """Start a kernel with values of ctypes, in its order of parameters."""

    def synchronize(self, stream: int) -> None:
        """Wait for all work on a stream."""

    def wait(self, stream: int, other: int) -> None:
        """Let later work on `stream` wait for what is on `other` now; the caller does not wait."""
