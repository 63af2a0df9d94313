"""Bytes out of registers, for 64 lanes at once: functions in LLVM's language.

takes: vector expressions; gives: calls of functions that `Vectors` keeps.

A lane is one of 16 rows in one of 4 trees: lane 16 q + r is row r in tree q. Without AVX-512 VBMI
the walk does the same byte by byte, see `permute_walk`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from .vectors import Vectors

ROWS, TREES = 16, 4
"""Rows and trees of a vector."""
LANES = ROWS * TREES
BYTES = f"<{LANES} x i8>"
TRUTH = f"<{LANES} x i1>"
PERMUTE = f"call {BYTES} @llvm.x86.avx512.permvar.qi.512"
PERMUTE_TWO = f"call {BYTES} @llvm.x86.avx512.vpermi2var.qi.512"
FLOATS = f"<{ROWS} x float>"
FLOAT_TWO = f"call {FLOATS} @llvm.x86.avx512.vpermi2var.ps.512"


@dataclass(frozen=True)
class Permutes:
    """Writes the functions, each once; `vectors` keeps them."""

    vectors: Vectors

    def nodes(self, table: Any, first: Sequence[Any], node: Any, wide: bool) -> Any:
        """Look a field of each lane's node up.

        Args:
            table: load of the first byte of the field.
            first: where the level begins in each of the 4 trees, int64.
            node: number of each lane's node on its level, uint8x64.
            wide: whether levels may have more than 64 nodes; they have at most 128.
        """
        lines, found = [f"%high = and {BYTES} %node, splat (i8 64)"], ""
        lines.append(f"%is_high = icmp ne {BYTES} %high, zeroinitializer")
        for tree in range(TREES):
            mask = _lanes(lambda lane, tree=tree: f"i1 {str(lane // ROWS == tree).lower()}")
            lines.append(f"%p{tree} = getelementptr i8, ptr %table, i64 %first{tree}")
            lines += _load(f"t{tree}", f"%p{tree}", 0)
            lines.append(f"%x{tree} = {PERMUTE}({BYTES} %t{tree}, {BYTES} %node)")
            if wide:
                lines += _load(f"u{tree}", f"%p{tree}", LANES)
                lines.append(f"%y{tree} = {PERMUTE}({BYTES} %u{tree}, {BYTES} %node)")
                both = f"{BYTES} %y{tree}, {BYTES} %x{tree}"
                lines.append(f"%z{tree} = select {TRUTH} %is_high, {both}")
            mine, before = f"%{'z' if wide else 'x'}{tree}", found
            found = f"%f{tree}" if tree else mine
            if tree:
                both = f"{BYTES} {mine}, {BYTES} {before}"
                lines.append(f"{found} = select {TRUTH} <{mask}>, {both}")
        name = f"tvm_forest_nodes{'_wide' * wide}"
        numbers = ", ".join(f"i64 %first{tree}" for tree in range(TREES))
        self._define(
            name, f"ptr %table, {numbers}, {BYTES} %node", [*lines, f"ret {BYTES} {found}"]
        )
        return _call(name, tirx.address_of(table), *first, node)

    def spread(self, words: Sequence[Any], byte: int) -> Any:
        """Return one byte of each tree's word, uint64, in all lanes of the tree."""
        lines, before = [], "poison"
        for tree in range(TREES):
            lines += [
                f"%s{tree} = lshr i64 %word{tree}, {8 * (byte & ~1)}",
                f"%h{tree} = trunc i64 %s{tree} to i16",
                f"%v{tree} = insertelement <8 x i16> {before}, i16 %h{tree}, i32 {tree}",
            ]
            before = f"%v{tree}"
        mask = _lanes(lambda lane: f"i32 {2 * (lane // ROWS) + byte % 2}")
        lines += [
            f"%b = bitcast <8 x i16> {before} to <16 x i8>",
            f"%x = shufflevector <16 x i8> %b, <16 x i8> poison, <{LANES} x i32> <{mask}>",
            f"ret {BYTES} %x",
        ]
        name = f"tvm_forest_spread{byte}"
        self._define(name, ", ".join(f"i64 %word{tree}" for tree in range(TREES)), lines)
        return _call(name, *words)

    def codes(self, first: Any, columns: int, column: Any) -> Any:
        """Return the code of each lane's row in a column.

        Args:
            first: load of the first code: of 16 rows, column by column.
            columns: number of columns, a multiple of 8: two registers hold so many.
            column: uint8x64.
        """
        row = _lanes(lambda lane: f"i8 {lane % ROWS}")
        lines = [
            f"%shifted = shl {BYTES} %column, splat (i8 4)",
            f"%place = or {BYTES} %shifted, <{row}>",
        ]
        parts = []
        for part in range(columns // 8):
            lines += _load(f"a{part}", "%first", 2 * LANES * part)
            lines += _load(f"b{part}", "%first", 2 * LANES * part + LANES)
            tables = f"{BYTES} %a{part}, {BYTES} %place, {BYTES} %b{part}"
            lines.append(f"%x{part} = {PERMUTE_TWO}({tables})")
            parts.append(f"%x{part}")
        lines += _chosen(parts, "column", 8, BYTES, "i8")
        name = f"tvm_forest_codes{columns}"
        self._define(name, f"ptr %first, {BYTES} %column", lines)
        return _call(name, tirx.address_of(first), column)

    def truth(self, how: str, left: Any, right: Any) -> Any:
        """Compare lane by lane; `how` is LLVM's name of a comparison of integers. A uint64."""
        name = f"tvm_forest_{how}{LANES}"
        lines = [
            f"%truth = icmp {how} {BYTES} %left, %right",
            f"%bits = bitcast {TRUTH} %truth to i{LANES}",
            f"ret i{LANES} %bits",
        ]
        self._define(name, f"{BYTES} %left, {BYTES} %right", lines, f"i{LANES}")
        return _call(name, left, right, dtype="uint64")

    def choose(self, bits: Any, true: Any, false: Any) -> Any:
        """Return a lane of one vector or the other, by the bits of a uint64."""
        lines = [
            f"%truth = bitcast i{LANES} %bits to {TRUTH}",
            f"%x = select {TRUTH} %truth, {BYTES} %true, {BYTES} %false",
            f"ret {BYTES} %x",
        ]
        name = f"tvm_forest_choose{LANES}"
        self._define(name, f"i{LANES} %bits, {BYTES} %true, {BYTES} %false", lines)
        return _call(name, bits, true, false)

    def leaves(self, first: Any, size: int, number: Any, tree: int) -> Any:
        """Look the leaves of 16 rows in one of the 4 trees up.

        Args:
            first: load of the tree's first leaf, float32.
            size: leaves of the table, a power of two from 32 to 256.
            number: leaf of every lane, uint8x64.
        """
        cut = ", ".join(f"i32 {tree * ROWS + row}" for row in range(ROWS))
        lines = [
            f"%mine = shufflevector {BYTES} %all, {BYTES} poison, <{ROWS} x i32> <{cut}>",
            f"%number = zext <{ROWS} x i8> %mine to <{ROWS} x i32>",
        ]
        parts = []
        for part in range(size // 32):
            for name, at in (("a", 128 * part), ("b", 128 * part + 64)):
                lines += _load(f"{name}{part}", "%first", at, FLOATS)
            tables = f"{FLOATS} %a{part}, <{ROWS} x i32> %number, {FLOATS} %b{part}"
            lines.append(f"%x{part} = {FLOAT_TWO}({tables})")
            parts.append(f"%x{part}")
        lines += _chosen(parts, "number", 32, FLOATS, "i32")
        name = f"tvm_forest_leaves{size}_{tree}"
        self._define(name, f"ptr %first, {BYTES} %all", lines, FLOATS)
        return _call(name, tirx.address_of(first), number, dtype=f"float32x{ROWS}")

    def _define(self, name: str, arguments: str, lines: list[str], result: str = BYTES) -> None:
        self.vectors.define(name, result, arguments, "\n  " + "\n  ".join(lines))


def _call(name: str, *arguments: Any, dtype: str = f"uint8x{LANES}") -> Any:
    return tirx.call_pure_extern(dtype, name, *arguments)


def _lanes(of: Any) -> str:
    return ", ".join(of(lane) for lane in range(LANES))


def _load(name: str, first: str, at: int, vector: str = BYTES) -> list[str]:
    """Load a register from some bytes behind a pointer."""
    return [
        f"%{name}p = getelementptr i8, ptr {first}, i64 {at}",
        f"%{name} = load {vector}, ptr %{name}p, align 1",
    ]


def _chosen(parts: list[str], by: str, bit: int, vector: str, element: str) -> list[str]:
    """Choose among vectors, lane by lane, by the bits of a number from one bit on, and return."""
    count = vector[1 : vector.index(" ")]
    numbers, lines = f"<{count} x {element}>", []
    while len(parts) > 1:
        lines += [
            f"%bit{bit} = and {numbers} %{by}, splat ({element} {bit})",
            f"%is{bit} = icmp ne {numbers} %bit{bit}, zeroinitializer",
        ]
        chosen = []
        for low, high in zip(parts[::2], parts[1::2], strict=False):
            name = f"{low}_{bit}"
            both = f"{vector} {high}, {vector} {low}"
            lines.append(f"{name} = select <{count} x i1> %is{bit}, {both}")
            chosen.append(name)
        parts, bit = chosen + parts[len(parts) & ~1 :], 2 * bit
    return [*lines, f"ret {vector} {parts[0]}"]
