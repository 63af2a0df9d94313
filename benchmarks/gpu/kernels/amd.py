"""What a code object says of its kernels, for tables and tests; see `code_object`."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from tvm_forest.runtime.gpu import code_object

DYNAMIC_SYMBOLS = 11
"""Type of the section that names the addresses of an ELF file."""

SYMBOL = struct.Struct("<IBBHQQ")


class AmdKernel(NamedTuple):
    """A kernel.

    Attributes:
        metadata: what LLVM notes of it.
        descriptor: the 64 bytes of `<name>.kd`, which tell the hardware how to start it.
    """

    metadata: dict[str, Any]
    descriptor: bytes

    @property
    def spills(self) -> int:
        """Values that did not fit into registers."""
        return int(self.metadata[".vgpr_spill_count"] + self.metadata[".sgpr_spill_count"])

    @property
    def flushes_denormals(self) -> bool:
        """Whether denormal numbers of any width would be taken for zero."""
        (first,) = struct.unpack_from("<I", self.descriptor, 48)  # COMPUTE_PGM_RSRC1
        return bool(first >> 16 & 0xF != 0xF)


def read_kernels(image: bytes) -> dict[str, AmdKernel]:
    """Return the kernels of a code object, by name."""
    sections = code_object.sections_of(image)
    symbols = next(section for section in sections if section.kind == DYNAMIC_SYMBOLS)
    names, addresses = sections[symbols.link].offset, dict[str, int]()
    for entry in range(symbols.offset, symbols.offset + symbols.size, SYMBOL.size):
        name, _, _, _, address, _ = SYMBOL.unpack_from(image, entry)
        addresses[image[names + name : image.index(b"\0", names + name)].decode()] = address
    kernels = {}
    for metadata in code_object.read(image).metadata["amdhsa.kernels"]:
        address = addresses[metadata[".symbol"]]
        holds = (x for x in sections if x.address <= address < x.address + x.size)
        section = next(holds)
        start = section.offset + address - section.address
        kernels[metadata[".name"]] = AmdKernel(metadata, image[start : start + 64])
    return kernels
