"""The leaves of rows, looked up by their numbers.

takes: words of numbers, a tree's table of leaves; gives: calls of functions in LLVM's language.

    AVX-512 with VBMI   64 rows: four tables of bytes, each out of two or four registers (vpermi2b)
    AVX-512             64 rows: float32 out of pairs of registers (vpermi2ps)
    AVX2                64 rows: four tables of 64 bytes at most, 16 at a time (vpshufb)
    NEON                64 rows: four tables of 128 bytes at most (tbl, tbx)
    else                a word of numbers, whose leaves are loaded one by one

Loads one by one are written one by one: LLVM makes gathers of a loop where it takes those of a CPU
for fast, which Intel's are not since the microcode of 2023, nor are AMD's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tvm import tirx

from ..ir import lanes
from .llvm_types import llvm_type
from .vectors import BYTES, PERMUTE, PERMUTE_TWO, Vectors, load_register

if TYPE_CHECKING:
    from ...layouts.bitsliced import BitTree

NUMBERS_IN_WORD = 8
"""Numbers of eight bits in a word."""

WORD_BITS, PAIR_BITS = 64, 16
"""Bits of a word, and of what is loaded of it at once where leaves are loaded one by one."""

FLOAT_TWO = "@llvm.x86.avx512.vpermi2var.ps.512"
TABLE_ROWS = NUMBERS_IN_WORD * NUMBERS_IN_WORD
"""Rows that are looked up together in a table that registers hold."""

Picker = Callable[[int, int], list[str]]

LANE_BYTES = 16
"""Bytes of the parts of a register that are unpacked each by itself."""


@dataclass(frozen=True)
class LeafTable:
    """How the leaves of a tree are looked up.

    Attributes:
        vectors: operations on vectors.
        tree: access to leaves by number.
        is_id: whether rows ask for numbers in the source model, not for values.
        bits: bits of a number, 8 or 16.
    """

    vectors: Vectors
    tree: BitTree
    is_id: bool
    bits: int

    @property
    def rows(self) -> int:
        """Rows that are looked up at once."""
        return WORD_BITS // self.bits if self._how is None else TABLE_ROWS

    @property
    def _how(self) -> Callable[[int], list[str]] | None:
        """What writes the look-up in registers, if these hold the table."""
        size = 0 if self.is_id else self.tree.rep.table
        abilities = self.vectors.abilities
        fits = (write for name, most, write in WAYS if name in abilities and 0 < size <= most)
        return next(fits, None)

    def look_up(self, numbers: Any, group: Any) -> Any:
        """Return the leaves of a group of rows, a vector of values or of int32.

        Args:
            numbers: buffer of words.
            group: number of the group.
        """
        write = self._how
        if write is None:
            return self._load_one_by_one(numbers[group])
        words = numbers[lanes(group * NUMBERS_IN_WORD, NUMBERS_IN_WORD)]
        size, zero = self.tree.rep.table, tirx.const(0, "int64")
        table = self.tree.leaf_value(zero) if write is _pick_floats else self.tree.leaf_bytes()
        number = self.vectors.cast(words, f"uint8x{TABLE_ROWS}")
        arguments = {"number": number, "table": tirx.address_of(table)}
        name, dtype = f"leaves{size}", f"float32x{TABLE_ROWS}"
        return self.vectors.call(name, dtype, write(size), "%value", **arguments)

    def _load_one_by_one(self, word: Any) -> Any:
        """Load leaves by one number after the other; two of eight bits are loaded together."""
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


# -- floats out of registers ----------------------------------------------------------------------


def _pick_floats(size: int) -> list[str]:
    """Set %value to the leaves of 64 rows, out of pairs of registers of 16."""
    vector, index, lines, found = "<16 x float>", "<16 x i32>", list[str](), list[str]()
    for first in range(0, size, 16):
        lines += load_register(f"t{first}", "%table", 4 * first, vector)
    for row in range(0, 64, 16):
        parts, by = list[str](), f"index{row}"
        lines.append(_shuffle(f"some{row}", BYTES, "number", "number", range(row, row + 16)))
        lines.append(f"%{by} = zext <16 x i8> %some{row} to {index}")
        for first in range(0, size, 32):
            tables = f"{vector} %t{first}, {index} %{by}, {vector} %t{first + 16}"
            parts.append(f"%x{row}_{first}")
            lines.append(f"{parts[-1]} = call {vector} {FLOAT_TWO}({tables})")
        chosen, result = choose_by_bits(parts, by, 32, vector, "i32")
        lines += chosen
        found.append(result.removeprefix("%"))
    lines.append(_shuffle("f0", vector, found[0], found[1], range(32)))
    lines.append(_shuffle("f1", vector, found[2], found[3], range(32)))
    return [*lines, _shuffle("value", "<32 x float>", "f0", "f1", range(64))]


def choose_by_bits(
    parts: list[str], by: str, bit: int, vector: str, element: str
) -> tuple[list[str], str]:
    """Choose among vectors, lane by lane, by the bits of a number from one bit on.

    Returns:
        the text, and what it calls the result.
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


def _pick_bytes(pick: Picker, width: int, size: int) -> list[str]:
    """Set %value to the leaves of 64 rows, out of four tables of `size` bytes.

    Args:
        pick: sets %b<byte>_<piece> to the bytes of the rows of each register, given a byte.
        width: bytes of a register.
        size: entries of the table.
    """
    vector, quads = f"<{width} x i8>", f"<{width // 4} x i32>"
    parts, pieces, lines = width // LANE_BYTES, TABLE_ROWS // width, list[str]()
    order = [parts * k + part for part in range(parts) for k in range(4)]
    for piece in range(pieces):
        rows = range(width * piece, width * (piece + 1))
        lines += [
            _shuffle(f"rows{piece}", BYTES, "number", "number", rows),
            f"%four{piece} = bitcast {vector} %rows{piece} to {quads}",
            _shuffle(f"placed{piece}", quads, f"four{piece}", f"four{piece}", order),
            f"%n{piece} = bitcast {quads} %placed{piece} to {vector}",
        ]
    for byte in range(4):
        lines += pick(byte, size)
    for piece in range(pieces):
        lines += _join_bytes(width, piece)
    found, floats = [f"value{piece}" for piece in range(pieces)], width
    while len(found) > 1:
        vector, half = f"<{floats} x float>", found[::2]
        floats *= 2
        lines += [
            _shuffle(f"{a}_{floats}", vector, a, b, range(floats))
            for a, b in zip(half, found[1::2], strict=True)
        ]
        found = [f"{name}_{floats}" for name in half]
    return [*lines, f"%value = bitcast <64 x float> %{found[0]} to <64 x float>"]


def _permute_bytes(byte: int, size: int) -> list[str]:
    """Set %b<byte>_0 to the bytes at %n0 of a table, by AVX-512 VBMI."""
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
    """Set %b<byte>_<piece> to the bytes at %n<piece> of a table, by AVX2.

    16 bytes at a time are looked up by numbers whose highest bit is set where they are of other
    bytes, which gives 0.
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
    """Set %b<byte>_<piece> to the bytes at %n<piece> of a table, by NEON."""
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


def _join_bytes(width: int, piece: int) -> list[str]:
    """Set %value<piece> to floats, given their bytes in %b0_<piece> to %b3_<piece>."""
    parts, lines = width // LANE_BYTES, list[str]()
    bytes_, pairs, floats = f"<{width} x i8>", f"<{width // 2} x i16>", f"<{width // 4} x float>"

    def interleave(count: int, upper: int) -> list[int]:
        """Places that interleave the lower or upper halves of the parts of two registers."""
        half = count // parts // 2
        starts = (half * (2 * part + upper) for part in range(parts))
        firsts = (start + k for start in starts for k in range(half))
        return [at for first in firsts for at in (first, first + count)]

    for side, upper in ((side, upper) for side in (0, 1) for upper in (0, 1)):
        name = f"p{side}{upper}_{piece}"
        a, b = (f"b{2 * side + k}_{piece}" for k in (0, 1))
        lines.append(_shuffle(f"y{name}", bytes_, a, b, interleave(width, upper)))
        lines.append(f"%{name} = bitcast {bytes_} %y{name} to {pairs}")
    for k in range(4):
        a, b = (f"p{side}{k // 2}_{piece}" for side in (0, 1))
        name = f"f{k}_{piece}"
        lines.append(_shuffle(f"y{name}", pairs, a, b, interleave(width // 2, k % 2)))
        lines.append(f"%{name} = bitcast {pairs} %y{name} to {floats}")
    for half in (0, 1):
        a, b = (f"f{2 * half + k}_{piece}" for k in (0, 1))
        lines.append(_shuffle(f"x{half}_{piece}", floats, a, b, range(width // 2)))
    a, b = (f"x{half}_{piece}" for half in (0, 1))
    pair = f"<{width // 2} x float>"
    return [*lines, _shuffle(f"value{piece}", pair, a, b, range(width))]


def _shuffle(into: str, vector: str, a: str, b: str, places: Iterable[int]) -> str:
    mask = [f"i32 {place}" for place in places]
    count = f"<{len(mask)} x i32>"
    return f"%{into} = shufflevector {vector} %{a}, {vector} %{b}, {count} <{', '.join(mask)}>"


WAYS: tuple[tuple[str, int, Callable[[int], list[str]]], ...] = (
    ("avx512vbmi", 256, partial(_pick_bytes, _permute_bytes, 64)),
    ("avx512f", 256, _pick_floats),
    ("avx2", 64, partial(_pick_bytes, _shuffle_bytes, 32)),
    ("neon", 128, partial(_pick_bytes, _table_bytes, 16)),
)
"""What a CPU must be able to do, the most entries of a table that pay, and what writes the look-up;
the best comes first."""
