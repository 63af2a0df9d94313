"""Arrays in memory of a GPU.

takes: a driver, shapes, dtypes; gives: DeviceArray, which other libraries can use without a copy.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...forest import Array
from . import dlpack
from .driver import Driver
from .memory import Piece


class DeviceArray:
    """An array in memory of a GPU, which other libraries can use by DLPack without a copy.

    The work that fills it may still be in progress; a consumer names the stream on which it will
    use the array, and that stream waits. `numpy()` copies the array to the host.

    Attributes:
        shape, dtype: shape and dtype of the array, which is C-ordered.
        nbytes: size in bytes.
        pointer: address on the GPU.
        stream: stream on which it is filled.
    """

    __slots__ = (
        *("shape", "dtype", "nbytes", "pointer", "stream"),
        *("_driver", "_piece", "_keeps", "_has_users", "__weakref__"),
    )

    def __init__(
        self,
        driver: Driver,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        stream: int,
        keeps: Any = None,
        pointer: int | None = None,
    ) -> None:
        """Allocate memory, or use that at `pointer`.

        Args:
            driver: driver of the GPU.
            shape, dtype, stream: see the attributes.
            keeps: an object that is kept alive with the array, such as the owner of the memory.
            pointer: address of memory to use; None to allocate some.
        """
        self.shape, self.dtype, self.stream = shape, dtype, stream
        self.nbytes = prod(shape) * dtype.itemsize
        self._driver, self._keeps = driver, keeps
        self._has_users = False
        self._piece: Piece | None = None
        if pointer is None:
            self._piece = driver.pool.take(self.nbytes, stream)
            pointer = self._piece.pointer
        self.pointer = pointer

    def squeeze(self, axis: int = 1) -> DeviceArray:
        """Change the shape (R, 1) to (R,) in place, and return the array itself.

        Arrays of other shapes stay as they are. `axis` is there as numpy's arrays have it, and is
        not read.
        """
        if self.shape[1:] == (1,):
            self.shape = self.shape[:1]
        return self

    def numpy(self) -> Array:
        """Return a copy on the host, after the work that fills the array."""
        array = np.empty(self.shape, self.dtype)
        if array.size:
            self._driver.download(array, self.pointer, self.stream)
        return array

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.KINDS[self._driver.name], self._driver.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule, as the array API standard defines it.

        Args:
            stream: the consumer's stream, -1 for no synchronisation; ignored for the host.
            max_version: the latest version of DLPack that the consumer reads.
            dl_device: the requested device: that of the array, or the host, (1, 0).
            copy: whether to copy; None to copy only if there is no other way.

        Raises:
            BufferError: another device, the host without a copy, or memory that no other library
                can use.
        """
        here = self.__dlpack_device__()
        if dl_device in (None, here):
            if not self._driver.is_shared:
                raise BufferError(
                    f"__dlpack__: no other library can use this memory of {self._driver.name}, "
                    f"which is in a context of its own; use numpy(), or dl_device={dlpack.HOST}"
                )
            array = self._copied() if copy else self
            if stream != -1:
                array.let_wait(to_driver_stream(stream))
            tensor = dlpack.Tensor(array.pointer, self.shape, self.dtype, here[1], array)
            return dlpack.give(tensor, here[0], max_version, is_copy=bool(copy))
        if tuple(dl_device or ()) != dlpack.HOST:
            raise BufferError(
                f"__dlpack__: argument 'dl_device': {dl_device} is neither that of the array, "
                f"{here}, nor the host, {dlpack.HOST}"
            )
        if copy is False:
            raise BufferError(
                f"__dlpack__: argument 'copy': an array on {here} gets to the host by a copy only; "
                "give copy=None"
            )
        there = self.numpy()
        tensor = dlpack.Tensor(there.ctypes.data, there.shape, there.dtype, 0, there)
        return dlpack.give(tensor, dlpack.CPU, max_version, is_copy=True)

    def _copied(self) -> DeviceArray:
        """Return a copy, made after the work that fills this array."""
        other = DeviceArray(self._driver, self.shape, self.dtype, self.stream)
        if self.nbytes:
            self._driver.copy(other.pointer, self.pointer, self.nbytes, self.stream)
        return other

    def let_wait(self, user: int) -> DeviceArray:
        """Make later work on a stream wait for this array's work; return the array."""
        if user != self.stream:
            self._driver.wait(user, self.stream)
            self._has_users = True
        return self

    def __del__(self) -> None:
        piece = getattr(self, "_piece", None)
        if piece is not None:
            self._driver.pool.give(piece, self._has_users)

    def __repr__(self) -> str:
        return f"<DeviceArray {self.shape} {self.dtype} on {self._driver.name}>"


def to_driver_stream(stream: int | None) -> int:
    """Convert DLPack's stream number to the driver's: the default stream is 1 there, 0 here."""
    return 0 if stream in (None, 1) else int(stream or 0)
