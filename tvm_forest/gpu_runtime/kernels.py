"""What a driver loads and launches.

takes: handles, values; gives: Module, LoadedKernel, and Arguments where a launch reads them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

Size = tuple[int, ...]
"""x, y and z of a grid (in blocks) or of a block (in threads)."""


class Module(NamedTuple):
    """An image that was loaded.

    Attributes:
        handle: what the library knows it by.
        needs: what the image says of each kernel, by name; empty if the library is asked.
    """

    handle: Any
    needs: dict[str, Any]


class BlockNeeds(NamedTuple):
    """Threads that a kernel may have at most, and bytes of shared memory that it declares."""

    threads: int
    shared: int


@dataclass
class LoadedKernel:
    """A kernel of a module.

    Attributes:
        handle: what the library knows it by.
        name: in the image.
        needs: what the image or the library says of it.
        checked: grid, block and bytes of dynamic shared memory of the launch that was checked last.
    """

    handle: Any
    name: str
    needs: Any = None
    checked: tuple[Size, Size, int] | None = field(default=None, compare=False)


class Arguments:
    """Values for the parameters of a kernel, where a launch reads them.

    Attributes:
        dtypes: of the parameters; addresses are numbers too.
        places: addresses of the values.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        """Make room for values; each kind is "pointer" or a dtype."""
        self.dtypes = [np.dtype("uint64" if kind == "pointer" else kind) for kind in kinds]
        self._form = Struct("@" + "0Q".join(dtype.char for dtype in self.dtypes))  # 8 bytes apart
        self._memory = ctypes.create_string_buffer(8 * max(1, len(kinds)))
        first = ctypes.addressof(self._memory)
        places = (first + 8 * number for number in range(len(kinds)))
        self.places = (ctypes.c_void_p * len(kinds))(*places)

    def set(self, *values: int) -> None:
        """Write the value of each parameter."""
        self._form.pack_into(self._memory, 0, *values)

    def values(self) -> tuple[Any, ...]:
        """Return what was written."""
        return self._form.unpack_from(self._memory)
