"""Modules, kernels and arguments for launches.

takes: handles of the driver's library, values; gives: Module, LoadedKernel, and Arguments, whose
memory a launch reads.
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
    """An image, the compiled kernels of a library, that a driver has loaded onto its GPU.

    Attributes:
        handle: what the driver's library identifies it by.
        needs: resources of each kernel according to the image, by name; empty if `find_kernel`
            queries the library for them.
    """

    handle: Any
    needs: dict[str, Any]


class BlockNeeds(NamedTuple):
    """A kernel's largest number of threads in a block, and its bytes of static shared memory."""

    threads: int
    shared: int


@dataclass
class LoadedKernel:
    """A kernel of a module.

    Attributes:
        handle: what the driver's library identifies it by.
        name: name in the image.
        needs: resources that it needs, according to the image or the driver's library.
        checked: grid, block and bytes of dynamic shared memory of the last launch that was checked.
    """

    handle: Any
    name: str
    needs: Any = None
    checked: tuple[Size, Size, int] | None = field(default=None, compare=False)


class Arguments:
    """The arguments of a kernel, in the memory format of launches.

    Attributes:
        dtypes: dtypes of the parameters; addresses are integers.
        places: addresses of the values.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        """Allocate room for the values; each kind is "pointer" or a dtype."""
        self.dtypes = [np.dtype("uint64" if kind == "pointer" else kind) for kind in kinds]
        self._form = Struct("@" + "0Q".join(dtype.char for dtype in self.dtypes))  # 8 bytes apart
        self._memory = ctypes.create_string_buffer(8 * max(1, len(kinds)))
        first = ctypes.addressof(self._memory)
        places = (first + 8 * number for number in range(len(kinds)))
        self.places = (ctypes.c_void_p * len(kinds))(*places)

    def set(self, *values: int) -> None:
        """Write the value of each parameter, in order, to the memory that a launch reads."""
        self._form.pack_into(self._memory, 0, *values)

    def values(self) -> tuple[Any, ...]:
        """Return the values that were set."""
        return self._form.unpack_from(self._memory)
