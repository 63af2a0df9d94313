"""What an AMD code object says of itself.

takes: the bytes of a code object (ELF64); gives: the GPU it is for, and its kernels.

ELF has a note "AMDGPU" with a document in MessagePack, of which the few forms are read that LLVM
writes. `<kernel>.kd` names 64 bytes that tell the hardware how to start the kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import InputError

MACHINE = 224
"""AMDGPU, in the header of ELF."""

NOTE, DYNAMIC_SYMBOLS, METADATA = 7, 11, 32
"""Types of sections, and of the note."""


@dataclass(frozen=True)
class Kernel:
    """A kernel.

    Attributes:
        arguments: name and bytes of each parameter, in order; not those that the runtime adds.
        vgprs, sgprs: registers of a thread, and of threads in step.
        spills: values that did not fit into registers.
        shared: bytes of shared memory of a block.
        private: bytes of memory of a thread, 0 if registers hold all.
        threads: the most that a block may have.
        wavefront: threads in step.
        descriptor: the 64 bytes of `<name>.kd`.
    """

    arguments: tuple[tuple[str, int], ...]
    vgprs: int
    sgprs: int
    spills: int
    shared: int
    private: int
    threads: int
    wavefront: int
    descriptor: bytes

    @property
    def flushes_denormals(self) -> bool:
        """Whether denormal numbers of any width would be taken for zero."""
        (first,) = struct.unpack_from("<I", self.descriptor, 48)  # COMPUTE_PGM_RSRC1
        return first >> 16 & 0xF != 0xF


@dataclass(frozen=True)
class CodeObject:
    """What a code object holds.

    Attributes:
        gpu: the processor, such as "gfx942".
        flags: ELF's e_flags; the lowest 8 bits are the number of the processor.
        version: of the form of code objects.
        kernels: by name.
    """

    gpu: str
    flags: int
    version: int
    kernels: dict[str, Kernel]


def read(image: bytes) -> CodeObject:
    """Read a code object.

    Raises:
        InputError: it is none, or damaged.
    """
    try:
        return _read(image)
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise InputError(
            f"rocm: the image of {len(image)} bytes is no code object of an AMD GPU ({error}); "
            "build the model again"
        ) from error


def _read(image: bytes) -> CodeObject:
    magic, machine = image[:4], struct.unpack_from("<H", image, 18)[0]
    if magic != b"\x7fELF" or image[4] != 2 or machine != MACHINE:
        raise ValueError(f"it begins with {magic!r}, machine {machine}")
    (flags,) = struct.unpack_from("<I", image, 48)
    sections = list(_sections(image))
    about = next(_metadata(image, *place) for kind, *place in sections if kind == NOTE)
    symbols = dict(_symbols(image, sections))
    kernels = {x[".name"]: _kernel(image, x, symbols, sections) for x in about["amdhsa.kernels"]}
    gpu = str(about["amdhsa.target"]).rpartition("-")[2].partition(":")[0]
    return CodeObject(gpu, flags, image[8] + 2, kernels)


def _kernel(
    image: bytes, about: dict[str, Any], symbols: dict[str, int], sections: list[Section]
) -> Kernel:
    address = symbols[about[".symbol"]]
    start = next(
        place + address - begin
        for _, place, size, _, begin in sections
        if begin <= address < begin + size
    )
    asked = [x for x in about.get(".args", []) if not x[".value_kind"].startswith("hidden_")]
    given = tuple((str(x.get(".name", "")), int(x[".size"])) for x in asked)
    return Kernel(
        given,
        about[".vgpr_count"],
        about[".sgpr_count"],
        about[".vgpr_spill_count"] + about[".sgpr_spill_count"],
        about[".group_segment_fixed_size"],
        about[".private_segment_fixed_size"],
        about[".max_flat_workgroup_size"],
        about[".wavefront_size"],
        image[start : start + 64],
    )


# -- ELF ------------------------------------------------------------------------------------------

Section = tuple[int, int, int, int, int]
"""Type, place in the file, bytes, number of the section that belongs to it, address."""


def _sections(image: bytes) -> Iterator[Section]:
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    for number in range(count):
        fields = struct.unpack_from("<IIQQQQII", image, table + number * size)
        _, kind, _, address, place, length, link, _ = fields
        yield kind, place, length, link, address


def _symbols(image: bytes, sections: list[Section]) -> Iterator[tuple[str, int]]:
    _, place, size, link, _ = next(x for x in sections if x[0] == DYNAMIC_SYMBOLS)
    names = sections[link][1]
    for entry in range(place, place + size, 24):
        name, _, _, _, address, _ = struct.unpack_from("<IBBHQQ", image, entry)
        yield image[names + name : image.index(b"\0", names + name)].decode(), address


def _metadata(image: bytes, place: int, size: int, *_: int) -> dict[str, Any]:
    name, length, kind = struct.unpack_from("<III", image, place)
    if kind != METADATA or 12 + name + length > size:
        raise ValueError(f"a note of kind {kind}")
    start = place + 12 + (name + 3) // 4 * 4
    return _unpacked(image[start : start + length], 0)[0]


# -- MessagePack ----------------------------------------------------------------------------------

NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
LENGTHS = {0xD9: (str, ">B"), 0xDA: (str, ">H"), 0xDC: (list, ">H"), 0xDE: (dict, ">H")}
CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def _unpacked(data: bytes, at: int) -> tuple[Any, int]:
    """Return the value at a place, and the place behind it."""
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
        return _collected(data, at + struct.calcsize(form), kind, length)
    kind, length = (str, byte & 31) if byte >= 0xA0 else (list if byte & 16 else dict, byte & 15)
    return _collected(data, at, kind, length)


def _collected(data: bytes, at: int, kind: type, length: int) -> tuple[Any, int]:
    if kind is str:
        return data[at : at + length].decode(), at + length
    values = []
    for _ in range(length * (2 if kind is dict else 1)):
        value, at = _unpacked(data, at)
        values.append(value)
    return (dict(zip(values[::2], values[1::2], strict=True)) if kind is dict else values), at
