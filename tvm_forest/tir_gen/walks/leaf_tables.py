"""Looks up the leaf values of rows by leaf number.

takes: words of leaf numbers, a tree's table of leaves; gives: calls of LLVM IR functions.

    AVX-512 with VBMI   64 rows: a table for each byte of a leaf, in one, two or four registers
                        (vpermb, vpermi2b)
    AVX-512             64 rows: values from pairs of registers (vpermi2ps, vpermi2pd)
    AVX2                64 rows: four tables of at most 64 bytes, 16 at a time (vpshufb)
    NEON                64 rows: four tables of at most 128 bytes (tbl, tbx)
    other CPUs          the rows of one word of numbers; leaves are loaded one by one

Single loads are unrolled: LLVM would turn a loop into gathers if its model of the CPU calls gathers
fast. They are slow on Intel since the microcode of 2023, and on AMD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from tvm import DataType, tirx

from ...system.values import dataclass
from ..ir import lanes
from .llvm_types import llvm_type
from .vectors import BYTES, PERMUTE, PERMUTE_TWO, Vectors, load_register

if TYPE_CHECKING:
    from ...layouts.bitsliced import BitTree

NUMBERS_IN_WORD = 8
"""Number of 8-bit leaf numbers in a 64-bit word."""

WORD_BITS, PAIR_BITS = 64, 16
"""Bits of a word of leaf numbers, and of the part of it that is loaded at once if leaves are loaded
one by one."""

PAIRS = {"float32": ("float", "i32", "ps"), "float64": ("double", "i64", "pd")}
"""LLVM's type, the integer type of that size, and the suffix of the two-register permute, by dtype
of the leaves."""

TABLE_ROWS = NUMBERS_IN_WORD * NUMBERS_IN_WORD
"""Number of rows whose leaves are looked up at once in a table held in registers."""

Picker = Callable[[int, int], list[str]]
Way = Callable[[int, str], list[str]]

LANE_BYTES = 16
"""Bytes of a 128-bit lane of a register; unpack instructions work within each lane."""


@dataclass(frozen=True)
class LeafLookUp:
    """Chooses and emits the look-up of a tree's leaves.

    Attributes:
        vectors: operations on vectors.
        tree: access to leaves by number.
        is_id: whether to return the leaves' numbers in the source model instead of their values.
        bits: bits of a leaf number, 8 or 16.
    """

    vectors: Vectors
    tree: BitTree
    is_id: bool
    bits: int

    @property
    def rows(self) -> int:
        """Number of rows that are looked up at once: 64, or those of one word of numbers."""
        return WORD_BITS // self.bits if self._how is None else TABLE_ROWS

    @property
    def _how(self) -> Way | None:
        """The function that writes a look-up in registers; None if no way of `WAYS` is usable."""
        layout = self.tree.layout
        size, able = 0 if self.is_id else layout.table, self.vectors.abilities
        return next(
            (way for name, most, way in WAYS if name in able and 0 < size <= most[layout.dtype]),
            None,
        )

    def look_up(self, numbers: Any, group: Any) -> Any:
        """Return the leaves of a group of rows, a vector of values or of int32.

        Args:
            numbers: buffer of words with leaf numbers, uint64.
            group: number of the group of `rows` rows.
        """
        write = self._how
        if write is None:
            return self._load_one_by_one(numbers[group])
        words = numbers[lanes(group * NUMBERS_IN_WORD, NUMBERS_IN_WORD)]
        size, dtype, zero = self.tree.layout.table, self.tree.layout.dtype, tirx.const(0, "int64")
        table = self.tree.leaf_value(zero) if write is _pick_values else self.tree.leaf_bytes()
        number = self.vectors.cast(words, f"uint8x{TABLE_ROWS}")
        arguments = {"number": number, "table": tirx.address_of(table)}
        name, values = f"leaves{size}_{dtype}", f"{dtype}x{TABLE_ROWS}"
        return self.vectors.call(name, values, write(size, dtype), "%value", **arguments)

    def _load_one_by_one(self, word: Any) -> Any:
        """Load the leaves for a word of numbers one by one; 8-bit numbers are read in pairs."""
        bits, zero = self.bits, tirx.const(0, "int64")
        first = self.tree.leaf_id(zero) if self.is_id else self.tree.leaf_value(zero)
        dtype, count, pair = str(first.ty.dtype), WORD_BITS // self.bits, PAIR_BITS // self.bits
        element, vector = llvm_type(dtype), llvm_type(f"{dtype}x{count}")
        lines, now = list[str](), "poison"
        for k in range(count):
            if k % pair == 0:
                lines += load_register(f"pair{k}", "%numbers", k * bits // 8, f"i{PAIR_BITS}")
                lines.append(f"%both{k} = zext i{PAIR_BITS} %pair{k} to i64")
            lines += [
                f"%rest{k} = lshr i64 %both{k - k % pair}, {k % pair * bits}",
                f"%at{k} = and i64 %rest{k}, {(1 << bits) - 1}",
                f"%place{k} = getelementptr {element}, ptr %table, i64 %at{k}",
                f"%leaf{k} = load {element}, ptr %place{k}",
                f"%leaves{k} = insertelement {vector} {now}, {element} %leaf{k}, i32 {k}",
            ]
            now = f"%leaves{k}"
        arguments = {"numbers": tirx.address_of(word), "table": tirx.address_of(first)}
        name = f"leaves{bits}_{dtype}"
        return self.vectors.call(name, f"{dtype}x{count}", lines, now, **arguments)


# -- values out of registers ----------------------------------------------------------------------


def _pick_values(size: int, dtype: str) -> list[str]:
    """Return IR lines that set %value to the leaves of 64 rows, by two-register permutes."""
    element, integer, ending = PAIRS[dtype]
    width = WORD_BITS * NUMBERS_IN_WORD // DataType(dtype).bits
    vector, index, lines = f"<{width} x {element}>", f"<{width} x {integer}>", list[str]()
    call, found = f"call {vector} @llvm.x86.avx512.vpermi2var.{ending}.512", list[str]()
    for first in range(0, size, width):
        at = DataType(dtype).itemsize * first
        lines += load_register(f"t{first}", "%table", at, vector)
    for row in range(0, TABLE_ROWS, width):
        parts, by = list[str](), f"index{row}"
        rows = range(row, row + width)
        lines.append(_shuffle(f"some{row}", BYTES, "number", "number", rows))
        lines.append(f"%{by} = zext <{width} x i8> %some{row} to {index}")
        for first in range(0, size, 2 * width):
            tables = f"{vector} %t{first}, {index} %{by}, {vector} %t{first + width}"
            parts.append(f"%x{row}_{first}")
            lines.append(f"{parts[-1]} = {call}({tables})")
        chosen, result = choose_by_bits(parts, by, 2 * width, vector, integer)
        lines += chosen
        found.append(result.removeprefix("%"))
    joined, whole = _concatenate(found, width, element)
    values = f"<{TABLE_ROWS} x {element}>"
    return [*lines, *joined, f"%value = bitcast {values} %{whole} to {values}"]


def _concatenate(parts: list[str], width: int, element: str) -> tuple[list[str], str]:
    """Return IR lines that concatenate vectors, and the name of the result."""
    lines = list[str]()
    while len(parts) > 1:
        vector, width = f"<{width} x {element}>", 2 * width
        halves = list(zip(parts[::2], parts[1::2], strict=True))
        parts = [f"{a}_{width}" for a, _ in halves]
        lines += [
            _shuffle(name, vector, a, b, range(width))
            for name, (a, b) in zip(parts, halves, strict=True)
        ]
    return lines, parts[0]


def choose_by_bits(
    parts: list[str], by: str, bit: int, vector: str, element: str
) -> tuple[list[str], str]:
    """Select among vectors, lane by lane, by the bits of a number.

    Args:
        parts: IR names of the vectors.
        by: name of the vector with the numbers, without %.
        bit: value of the first bit that counts, such as 8.
        vector: type of the vectors.
        element: integer type of the numbers.

    Returns:
        IR lines, and the name of their result.
    """
    count = vector[1 : vector.index(" ")]
    numbers, lines = f"<{count} x {element}>", []
    while len(parts) > 1:
        lines += [
            f"%{by}_bit{bit} = and {numbers} %{by}, splat ({element} {bit})",
            f"%{by}_is{bit} = icmp ne {numbers} %{by}_bit{bit}, zeroinitializer",
        ]
        chosen = []
        for low, high in zip(parts[::2], parts[1::2], strict=False):
            name = f"{low}_{bit}"
            both = f"{vector} {high}, {vector} {low}"
            lines.append(f"{name} = select <{count} x i1> %{by}_is{bit}, {both}")
            chosen.append(name)
        parts, bit = chosen + parts[len(parts) & ~1 :], 2 * bit
    return lines, parts[0]


# -- bytes out of registers -----------------------------------------------------------------------


def _pick_bytes(pick: Picker, width: int, size: int, dtype: str) -> list[str]:
    """Return IR lines that set %value to 64 leaves, from byte tables of `size` entries.

    Unpacking permutes the rows within a register, so rows are reordered beforehand to compensate.

    Args:
        pick: returns lines that set %b<byte>_<piece> to that byte of each row's leaf.
        width: bytes of a register.
        size: entries of the table.
        dtype: dtype of the leaves.
    """
    item = DataType(dtype).itemsize
    together = LANE_BYTES // item
    vector, some = f"<{width} x i8>", f"<{width // together} x i{8 * together}>"
    parts, pieces, lines = width // LANE_BYTES, TABLE_ROWS // width, list[str]()
    order = [parts * k + part for part in range(parts) for k in range(item)]
    for piece in range(pieces):
        rows = range(width * piece, width * (piece + 1))
        lines += [
            _shuffle(f"rows{piece}", BYTES, "number", "number", rows),
            f"%some{piece} = bitcast {vector} %rows{piece} to {some}",
            _shuffle(f"placed{piece}", some, f"some{piece}", f"some{piece}", order),
            f"%n{piece} = bitcast {some} %placed{piece} to {vector}",
        ]
    for byte in range(item):
        lines += pick(byte, size)
    element, found = PAIRS[dtype][0], list[str]()
    for piece in range(pieces):
        joined, values = _join_bytes(width, piece, item, element)
        lines += joined
        found += values
    joined, whole = _concatenate(found, width // item, element)
    every = f"<{TABLE_ROWS} x {element}>"
    return [*lines, *joined, f"%value = bitcast {every} %{whole} to {every}"]


def _permute_bytes(byte: int, size: int) -> list[str]:
    """Return IR lines that look up the bytes at %n0 by AVX-512 VBMI, into %b<byte>_0."""
    name, parts, lines = f"b{byte}_0", [f"t{byte}_{k}" for k in range(size // 64)], list[str]()
    for k, part in enumerate(parts):
        lines += load_register(part, "%table", byte * size + 64 * k)
    if size == 64:
        return [*lines, f"%{name} = {PERMUTE}({BYTES} %{parts[0]}, {BYTES} %n0)"]
    halves = (name,) if size == 128 else (f"l{name}", f"h{name}")
    for half, low, high in zip(halves, parts[::2], parts[1::2], strict=True):
        lines.append(f"%{half} = {PERMUTE_TWO}({BYTES} %{low}, {BYTES} %n0, {BYTES} %{high})")
    if size == 256:
        lines += [
            f"%s{name} = icmp slt {BYTES} %n0, zeroinitializer",
            f"%{name} = select <64 x i1> %s{name}, {BYTES} %h{name}, {BYTES} %l{name}",
        ]
    return lines


def _shuffle_bytes(byte: int, size: int) -> list[str]:
    """Return IR lines that look up the bytes at %n<piece> by AVX2, into %b<byte>_<piece>.

    Each look-up covers 16 bytes of the table; indices into other parts get their highest bit set,
    which gives 0.
    """
    vector, half, lines = "<32 x i8>", "<16 x i8>", list[str]()
    twice = [*range(16), *range(16)]
    totals = [""] * (TABLE_ROWS // 32)
    for group in range(size // 16):
        part = f"t{byte}_{group}"
        lines += load_register(f"h{part}", "%table", byte * size + 16 * group, half)
        lines.append(_shuffle(part, half, f"h{part}", f"h{part}", twice))
        for piece, total in enumerate(totals):
            at = f"b{byte}_{piece}_{group}"
            lines += [
                f"%d{at} = xor {vector} %n{piece}, splat (i8 {16 * group})",
                f"%g{at} = call {vector} @llvm.uadd.sat.v32i8({vector} %d{at}, "
                f"{vector} splat (i8 112))",
                f"%x{at} = call {vector} @llvm.x86.avx2.pshuf.b({vector} %{part}, {vector} %g{at})",
                f"%s{at} = or {vector} %x{at}, {f'%{total}' if total else 'zeroinitializer'}",
            ]
            totals[piece] = f"s{at}"
    ends = enumerate(totals)
    return lines + [f"%b{byte}_{k} = bitcast {vector} %{x} to {vector}" for k, x in ends]


def _table_bytes(byte: int, size: int) -> list[str]:
    """Return IR lines that look up the bytes at %n<piece> by NEON, into %b<byte>_<piece>."""
    vector, lines, totals = "<16 x i8>", list[str](), [""] * (TABLE_ROWS // 16)
    for first in range(0, size, 64):
        parts = [f"t{byte}_{first + 16 * k}" for k in range(4)]
        for k, part in enumerate(parts):
            lines += load_register(part, "%table", byte * size + first + 16 * k, vector)
        tables = ", ".join(f"{vector} %{part}" for part in parts)
        for piece, total in enumerate(totals):
            at = f"b{byte}_{piece}_{first}"
            into, kind = (f"{vector} %{total}, ", "tbx4") if total else ("", "tbl4")
            lines += [
                f"%n{at} = sub {vector} %n{piece}, splat (i8 {first})",
                f"%{at} = call {vector} @llvm.aarch64.neon.{kind}.v16i8({into}{tables}, "
                f"{vector} %n{at})",
            ]
            totals[piece] = at
    ends = enumerate(totals)
    return lines + [f"%b{byte}_{k} = bitcast {vector} %{x} to {vector}" for k, x in ends]


def _join_bytes(width: int, piece: int, item: int, element: str) -> tuple[list[str], list[str]]:
    """Return IR lines that join the bytes %b<byte>_<piece> to values, and the vectors' names.

    Each round interleaves pairs of registers, which doubles the size of their elements.
    """
    parts, lines, bits = width // LANE_BYTES, list[str](), 8
    # for each byte of a leaf, the registers that hold it
    groups = [[f"b{byte}_{piece}"] for byte in range(item)]
    while len(groups) > 1:
        count = width * 8 // bits
        vector, wider = f"<{count} x i{bits}>", f"<{count // 2} x i{2 * bits}>"
        joined = list[list[str]]()
        for low, high in zip(groups[::2], groups[1::2], strict=True):
            joined.append([])
            for (a, b), upper in (
                (pair, k) for pair in zip(low, high, strict=True) for k in (0, 1)
            ):
                name = f"{a}{'lu'[upper]}"
                lines += [
                    _shuffle(f"y{name}", vector, a, b, _interleave(count, parts, upper)),
                    f"%{name} = bitcast {vector} %y{name} to {wider}",
                ]
                joined[-1].append(name)
        groups, bits = joined, 2 * bits
    count = width // item
    values = [f"v{name}" for name in groups[0]]
    for name, value in zip(groups[0], values, strict=True):
        lines.append(f"%{value} = bitcast <{count} x i{bits}> %{name} to <{count} x {element}>")
    return lines, values


def _interleave(count: int, parts: int, upper: int) -> list[int]:
    """Return the shuffle indices that interleave lower or upper halves of two registers."""
    half = count // parts // 2
    starts = (half * (2 * part + upper) for part in range(parts))
    return [at for start in starts for k in range(half) for at in (start + k, start + k + count)]


def _shuffle(into: str, vector: str, a: str, b: str, places: Iterable[int]) -> str:
    mask = [f"i32 {place}" for place in places]
    count = f"<{len(mask)} x i32>"
    return f"%{into} = shufflevector {vector} %{a}, {vector} %{b}, {count} <{', '.join(mask)}>"


WAYS: tuple[tuple[str, dict[str, int], Way], ...] = (
    ("avx512vbmi", {"float32": 256, "float64": 256}, partial(_pick_bytes, _permute_bytes, 64)),
    ("avx512f", {"float32": 256, "float64": 64}, _pick_values),
    ("avx2", {"float32": 64, "float64": 0}, partial(_pick_bytes, _shuffle_bytes, 32)),
    ("neon", {"float32": 128, "float64": 0}, partial(_pick_bytes, _table_bytes, 16)),
)
"""Ways to look up leaves in registers, the fastest first: the CPU feature that a way needs, the
largest table for which it is faster than loads by dtype, and the function that writes it."""
