"""Reads the metadata of an AMD code object.

takes: the bytes of a code object (ELF64); gives: its GPU, and the resources that its kernels need.

The ELF file has a note "AMDGPU" with a document in MessagePack; only the forms that LLVM writes are
supported:

    {"amdhsa.target": "amdgcn-amd-amdhsa--gfx942",
     "amdhsa.kernels": [{".name": "predict_kernel", ".args": [{".size": 8, ...}, ...], ...}]}
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from ...errors import InputError

AMDGPU = 224
"""Machine number of AMD GPUs in an ELF header."""

NOTE, METADATA = 7, 32
"""Type code of an ELF section with notes, and of the note with the metadata."""


class KernelNeeds(NamedTuple):
    """The resources of a kernel that limit its launches.

    Attributes:
        argument_sizes: bytes of each parameter, in order, without those that the runtime adds.
        shared: bytes of shared memory that a block uses.
        threads: largest number of threads in a block.
    """

    argument_sizes: tuple[int, ...]
    shared: int
    threads: int


class CodeObject(NamedTuple):
    """The contents of a code object.

    Attributes:
        gpu: the GPU's architecture, such as "gfx942".
        kernels: resources of each kernel, by name.
        metadata: the whole MessagePack document.
    """

    gpu: str
    kernels: dict[str, KernelNeeds]
    metadata: dict[str, Any]


def read(image: bytes) -> CodeObject:
    """Return which GPU a code object is for, and what its kernels need, from its metadata.

    Raises:
        InputError: the bytes are not a code object, or are damaged.
    """
    try:
        metadata = _read_metadata(image)
        kernels = {kernel[".name"]: _read_needs(kernel) for kernel in metadata["amdhsa.kernels"]}
        gpu = str(metadata["amdhsa.target"]).rpartition("-")[2].partition(":")[0]
        return CodeObject(gpu, kernels, metadata)
    except (IndexError, KeyError, TypeError, ValueError, struct.error, StopIteration) as error:
        raise InputError(
            f"rocm: the image of {len(image)} bytes is no code object of an AMD GPU ({error}); "
            "build the model again"
        ) from error


def _read_needs(kernel: dict[str, Any]) -> KernelNeeds:
    arguments = (x for x in kernel.get(".args", []) if not x[".value_kind"].startswith("hidden_"))
    sizes = tuple(int(argument[".size"]) for argument in arguments)
    return KernelNeeds(
        sizes, kernel[".group_segment_fixed_size"], kernel[".max_flat_workgroup_size"]
    )


# -- ELF ------------------------------------------------------------------------------------------


class Section(NamedTuple):
    """A section of an ELF file, see `elf.h`; `link` is the number of an associated section."""

    kind: int
    address: int
    offset: int
    size: int
    link: int


def sections_of(image: bytes) -> list[Section]:
    """Return the sections of an ELF file in order."""
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    sections = list[Section]()
    for number in range(count):
        fields = struct.unpack_from("<IIQQQQIIQQ", image, table + number * size)
        _, kind, _, address, offset, length, link, *_ = fields
        sections.append(Section(kind, address, offset, length, link))
    return sections


def _read_metadata(image: bytes) -> dict[str, Any]:
    magic, machine = image[:4], struct.unpack_from("<H", image, 18)[0]
    if magic != b"\x7fELF" or image[4] != 2 or machine != AMDGPU:
        raise ValueError(f"it begins with {magic!r}, machine {machine}")
    note = next(section for section in sections_of(image) if section.kind == NOTE)
    name, length, kind = struct.unpack_from("<III", image, note.offset)
    if kind != METADATA or 12 + name + length > note.size:
        raise ValueError(f"a note of kind {kind}")
    start = note.offset + 12 + (name + 3) // 4 * 4
    return _unpack(image[start : start + length], 0)[0]


# -- MessagePack ----------------------------------------------------------------------------------

NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
LENGTHS = {0xD9: (str, ">B"), 0xDA: (str, ">H"), 0xDC: (list, ">H"), 0xDE: (dict, ">H")}
CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def _unpack(data: bytes, at: int) -> tuple[Any, int]:
    """Decode the value at an offset; return it and the offset after it."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte, at
    if byte in CONSTANTS:
        return CONSTANTS[byte], at
    if byte in NUMBERS:
        (number,) = struct.unpack_from(NUMBERS[byte], data, at)
        return number, at + struct.calcsize(NUMBERS[byte])
    if byte in LENGTHS:
        kind, form = LENGTHS[byte]
        (length,) = struct.unpack_from(form, data, at)
        return _unpack_several(data, at + struct.calcsize(form), kind, length)
    kind, length = (str, byte & 31) if byte >= 0xA0 else (list if byte & 16 else dict, byte & 15)
    return _unpack_several(data, at, kind, length)


def _unpack_several(data: bytes, at: int, kind: type, length: int) -> tuple[Any, int]:
    """Decode a string, list or dict of a given length; return it and the offset after it."""
    if kind is str:
        return data[at : at + length].decode(), at + length
    values = []
    for _ in range(length * (2 if kind is dict else 1)):
        value, at = _unpack(data, at)
        values.append(value)
    return (dict(zip(values[::2], values[1::2], strict=True)) if kind is dict else values), at
