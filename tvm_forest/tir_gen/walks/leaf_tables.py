"""The leaves of rows, looked up by their numbers.

takes: words of numbers, a tree's table of leaves; gives: calls of functions in LLVM's language.

    AVX-512 with VBMI   64 rows: four tables of bytes, each out of two or four registers (vpermi2b)
    AVX-512             64 rows: float32 out of pairs of registers (vpermi2ps)
    AVX2                32 rows: four tables of 64 bytes at most, 16 at a time (vpshufb)
    NEON                16 rows: four tables of 128 bytes at most (tbl, tbx)
    else                a word of numbers, whose leaves are loaded one by one

Loads one by one are volatile: LLVM would make a gather of them where it takes the CPU's for fast,
which those of Intel are not since the microcode of 2023, nor those of AMD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import tirx

from .vectors import BYTES, PERMUTE, PERMUTE_TWO, Vectors, llvm_type, load_register

if TYPE_CHECKING:
    from ...layouts.bitsliced import BitTree

WORD_BITS, PAIR_BITS = 64, 16
"""Bits of a word, and of what is loaded of it at once where leaves are loaded one by one."""

FLOAT_TWO = "@llvm.x86.avx512.vpermi2var.ps.512"
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
        has, size = self.vectors.abilities.__contains__, 0 if self.is_id else self.tree.rep.table
        known = (("avx512vbmi", 256, 64), ("avx512f", 256, 64), ("avx2", 64, 32), ("neon", 128, 16))
        fits = (rows for ability, most, rows in known if has(ability) and 0 < size <= most)
        return next(fits, WORD_BITS // self.bits)

    def look_up(self, numbers: Any, group: Any) -> Any:
        """Return the leaves of a group of rows, a vector of values or of int32.

        Args:
            numbers: buffer of words.
            group: number of the group.
        """
        rows, vectors = self.rows, self.vectors
        count = rows * self.bits // WORD_BITS
        if count == 1:
            return self._load_one_by_one(numbers[group])
        words = numbers[tirx.Ramp(group * count, tirx.const(1, "int64"), count)]
        return self._look_up_floats(vectors.cast(words, f"uint8x{rows}"))

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
                f"%leaf{k} = load volatile {element}, ptr %place{k}",
                f"%leaves{k} = insertelement {vector} {now}, {element} %leaf{k}, i32 {k}",
            ]
            now = f"%leaves{k}"
        arguments = {"numbers": tirx.address_of(word), "table": tirx.address_of(first)}
        name = f"leaves{bits}_{dtype}"
        return self.vectors.call(name, f"{dtype}x{count}", lines, now, **arguments)

    def _look_up_floats(self, numbers: Any) -> Any:
        rows, size = self.rows, self.tree.rep.table
        if rows == 64 and "avx512vbmi" not in self.vectors.abilities:
            table, lines, result = self.tree.leaf_value(tirx.const(0, "int64")), *_pick_floats(size)
        else:
            table, lines, result = self.tree.leaf_bytes(), _pick_bytes(rows, size), "%value"
        arguments = {"number": numbers, "table": tirx.address_of(table)}
        name = f"leaves{size}x{rows}"
        return self.vectors.call(name, f"float32x{rows}", lines, result, **arguments)


# -- floats out of registers ----------------------------------------------------------------------


def _pick_floats(size: int) -> tuple[list[str], str]:
    """Pick the leaves of 64 rows out of pairs of registers of 16; returns text and result."""
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
    lines.append(_shuffle("f0", vector, *found[:2], range(32)))
    lines.append(_shuffle("f1", vector, *found[2:], range(32)))
    return [*lines, _shuffle("value", "<32 x float>", "f0", "f1", range(64))], "%value"


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


def _pick_bytes(rows: int, size: int) -> list[str]:
    """Pick the bytes of leaves out of four tables of `size`, and set %value to their floats."""
    vector, quads = f"<{rows} x i8>", f"<{rows // 4} x i32>"
    lanes = rows // LANE_BYTES
    order = [lanes * k + lane for lane in range(lanes) for k in range(4)]
    lines = [
        f"%four = bitcast {vector} %number to {quads}",
        _shuffle("placed", quads, "four", "four", order),
        f"%n = bitcast {quads} %placed to {vector}",
    ]
    pick = {64: _permute_bytes, 32: _shuffle_bytes, 16: _table_bytes}[rows]
    before: Callable[[int], list[str]] | None = {32: _shift_groups}.get(rows)
    lines += before(size) if before else []
    for byte in range(4):
        lines += pick(f"b{byte}", byte * size, size)
    return [*lines, *_join_bytes(rows)]


def _permute_bytes(name: str, offset: int, size: int) -> list[str]:
    """Set %<name> to the bytes at %n of a table, by AVX-512 VBMI."""
    vector, parts, lines = "<64 x i8>", [f"t{name}_{k}" for k in range(size // 64)], list[str]()
    for k, part in enumerate(parts):
        lines += load_register(part, "%table", offset + 64 * k)
    if size == 64:
        return [*lines, f"%{name} = {PERMUTE}({vector} %{parts[0]}, {vector} %n)"]
    halves = (name,) if size == 128 else (f"l{name}", f"h{name}")
    for half, low, high in zip(halves, parts[::2], parts[1::2], strict=True):
        lines.append(f"%{half} = {PERMUTE_TWO}({vector} %{low}, {vector} %n, {vector} %{high})")
    if size == 256:
        lines += [
            f"%s{name} = icmp slt {vector} %n, zeroinitializer",
            f"%{name} = select <64 x i1> %s{name}, {vector} %h{name}, {vector} %l{name}",
        ]
    return lines


def _shift_groups(size: int) -> list[str]:
    """Set %g<k> to numbers from 16 k on, less 16 k, with the highest bit for all others."""
    vector, lines = "<32 x i8>", list[str]()
    for group in range(size // 16):
        lines += [
            f"%d{group} = xor {vector} %n, splat (i8 {16 * group})",
            f"%g{group} = call {vector} @llvm.uadd.sat.v32i8({vector} %d{group}, "
            f"{vector} splat (i8 112))",
        ]
    return lines


def _shuffle_bytes(name: str, offset: int, size: int) -> list[str]:
    """Set %<name> to the bytes at %n of a table, by AVX2: what is of other groups gives 0."""
    lines, total, half = list[str](), "", "<16 x i8>"
    twice = ", ".join(f"i32 {k % 16}" for k in range(32))
    for group in range(size // 16):
        part = f"{name}_{group}"
        lines += load_register(f"t{part}", "%table", offset + 16 * group, half)
        lines += [
            f"%w{part} = shufflevector {half} %t{part}, {half} poison, <32 x i32> <{twice}>",
            f"%{part} = call <32 x i8> @llvm.x86.avx2.pshuf.b(<32 x i8> %w{part}, "
            f"<32 x i8> %g{group})",
        ]
        if total:
            lines.append(f"%s{part} = or <32 x i8> %{total}, %{part}")
        total = f"s{part}" if total else part
    return [*lines, f"%{name} = bitcast <32 x i8> %{total} to <32 x i8>"]


def _table_bytes(name: str, offset: int, size: int) -> list[str]:
    """Set %<name> to the bytes at %n of a table, by NEON."""
    vector, lines, found = "<16 x i8>", list[str](), ""
    for first in range(0, size, 64):
        parts = [f"t{name}_{first + 16 * k}" for k in range(4)]
        for k, part in enumerate(parts):
            lines += load_register(part, "%table", offset + first + 16 * k, vector)
        tables = ", ".join(f"{vector} %{part}" for part in parts)
        at = f"n{name}_{first}"
        lines.append(f"%{at} = sub {vector} %n, splat (i8 {first})")
        into = f"{vector} %{found}, " if found else ""
        found, kind = f"x{name}_{first}", "tbx4" if found else "tbl4"
        call = f"@llvm.aarch64.neon.{kind}.v16i8({into}{tables}, {vector} %{at})"
        lines.append(f"%{found} = call {vector} {call}")
    return [*lines, f"%{name} = bitcast {vector} %{found} to {vector}"]


def _join_bytes(rows: int) -> list[str]:
    """Set %value to floats, given their bytes in %b0 to %b3, which lie in the order of `order`."""
    vector, floats = f"<{rows} x i8>", f"<{rows // 4} x float>"
    lines = [
        _shuffle(f"p{pair}{side}", vector, f"b{2 * pair}", f"b{2 * pair + 1}", places)
        for pair in (0, 1)
        for side, places in enumerate(_interleave(rows, 1, upper) for upper in (0, 1))
    ]
    for k in range(4):
        side, upper = divmod(k, 2)
        places = _interleave(rows, 2, upper)
        lines.append(_shuffle(f"q{k}", vector, f"p0{side}", f"p1{side}", places))
        lines.append(f"%f{k} = bitcast {vector} %q{k} to {floats}")
    pair = f"<{rows // 2} x float>"
    return [
        *lines,
        _shuffle("x0", floats, "f0", "f1", range(rows // 2)),
        _shuffle("x1", floats, "f2", "f3", range(rows // 2)),
        _shuffle("value", pair, "x0", "x1", range(rows)),
    ]


def _interleave(rows: int, size: int, upper: int) -> list[int]:
    """Places that interleave things of `size` bytes of the lower or upper halves of 16 bytes.

    They are of two registers of `rows` bytes, whose bytes are counted on.
    """
    starts = (
        lane + 8 * upper + k for lane in range(0, rows, LANE_BYTES) for k in range(0, 8, size)
    )
    return [
        at
        for start in starts
        for at in (*range(start, start + size), *range(rows + start, rows + start + size))
    ]


def _shuffle(into: str, vector: str, a: str, b: str, places: Iterable[int]) -> str:
    mask = [f"i32 {place}" for place in places]
    count = f"<{len(mask)} x i32>"
    return f"%{into} = shufflevector {vector} %{a}, {vector} %{b}, {count} <{', '.join(mask)}>"
