"""Emits LLVM IR functions that look up bytes in registers, for 64 lanes at once.

takes: vector expressions; gives: calls of functions, whose text `Vectors` collects.

Lane 16 q + r is row r in tree q. For CPUs without AVX-512 VBMI, `permutes` emits loads of single
bytes instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from ...system.values import dataclass
from .leaf_tables import choose_by_bits
from .vectors import BYTES, PERMUTE, PERMUTE_TWO, Vectors, load_register

ROWS, TREES = 16, 4
"""Rows and trees that one vector holds."""
LANES = ROWS * TREES
DTYPE = f"uint8x{LANES}"
TRUTH = f"<{LANES} x i1>"
FLOATS = f"<{ROWS} x float>"
FLOAT_TWO = f"call {FLOATS} @llvm.x86.avx512.vpermi2var.ps.512"


@dataclass(frozen=True)
class Permutes:
    """Emits calls of the functions that look up bytes; `vectors` collects their text."""

    vectors: Vectors

    def nodes(self, table: Any, first: Sequence[Any], node: Any, wide: bool) -> Any:
        """Return one field of each lane's node, uint8x64.

        Args:
            table: load of the first byte of the field.
            first: first byte of the level in each of the 4 trees, int64.
            node: number of each lane's node on its level, uint8x64.
            wide: whether levels may have 65 to 128 nodes, rather than at most 64.
        """
        lines, found = [f"%high = and {BYTES} %node, splat (i8 64)"], ""
        lines.append(f"%is_high = icmp ne {BYTES} %high, zeroinitializer")
        for tree in range(TREES):
            mask = ", ".join(f"i1 {str(lane // ROWS == tree).lower()}" for lane in range(LANES))
            lines.append(f"%p{tree} = getelementptr i8, ptr %table, i64 %first{tree}")
            lines += load_register(f"t{tree}", f"%p{tree}", 0)
            lines.append(f"%x{tree} = {PERMUTE}({BYTES} %t{tree}, {BYTES} %node)")
            if wide:
                lines += load_register(f"u{tree}", f"%p{tree}", LANES)
                lines.append(f"%y{tree} = {PERMUTE}({BYTES} %u{tree}, {BYTES} %node)")
                both = f"{BYTES} %y{tree}, {BYTES} %x{tree}"
                lines.append(f"%z{tree} = select {TRUTH} %is_high, {both}")
            mine, before = f"%{'z' if wide else 'x'}{tree}", found
            found = f"%f{tree}" if tree else mine
            if tree:
                both = f"{BYTES} {mine}, {BYTES} {before}"
                lines.append(f"{found} = select {TRUTH} <{mask}>, {both}")
        begins = {f"first{tree}": begin for tree, begin in enumerate(first)}
        arguments = {"table": tirx.address_of(table), **begins, "node": node}
        return self.vectors.call(f"nodes{'_wide' * wide}", DTYPE, lines, found, **arguments)

    def spread(self, words: Sequence[Any], byte: int) -> Any:
        """Broadcast one byte of each tree's word, uint64, to all lanes of the tree."""
        lines, before = [], "poison"
        for tree in range(TREES):
            lines += [
                f"%s{tree} = lshr i64 %word{tree}, {8 * (byte & ~1)}",
                f"%h{tree} = trunc i64 %s{tree} to i16",
                f"%v{tree} = insertelement <8 x i16> {before}, i16 %h{tree}, i32 {tree}",
            ]
            before = f"%v{tree}"
        mask = ", ".join(f"i32 {2 * (lane // ROWS) + byte % 2}" for lane in range(LANES))
        lines += [
            f"%b = bitcast <8 x i16> {before} to <16 x i8>",
            f"%x = shufflevector <16 x i8> %b, <16 x i8> poison, <{LANES} x i32> <{mask}>",
        ]
        arguments = {f"word{tree}": word for tree, word in enumerate(words)}
        return self.vectors.call(f"spread{byte}", DTYPE, lines, "%x", **arguments)

    def codes(self, first: Any, columns: int, column: Any) -> Any:
        """Return the code of each lane's row in a column.

        Args:
            first: load of the first code of 16 rows, which are stored column by column.
            columns: number of columns, a multiple of 8, as two registers hold 8 columns.
            column: column of each lane, uint8x64.
        """
        row = ", ".join(f"i8 {lane % ROWS}" for lane in range(LANES))
        lines = [
            f"%shifted = shl {BYTES} %column, splat (i8 4)",
            f"%place = or {BYTES} %shifted, <{row}>",
        ]
        parts = []
        for part in range(columns // 8):
            lines += load_register(f"a{part}", "%first", 2 * LANES * part)
            lines += load_register(f"b{part}", "%first", 2 * LANES * part + LANES)
            tables = f"{BYTES} %a{part}, {BYTES} %place, {BYTES} %b{part}"
            lines.append(f"%x{part} = {PERMUTE_TWO}({tables})")
            parts.append(f"%x{part}")
        chosen, result = choose_by_bits(parts, "column", 8, BYTES, "i8")
        arguments = {"first": tirx.address_of(first), "column": column}
        return self.vectors.call(f"codes{columns}", DTYPE, lines + chosen, result, **arguments)

    def truth(self, how: str, left: Any, right: Any) -> Any:
        """Compare lane by lane, by LLVM's predicate `how`, such as "uge"; return a uint64 mask."""
        lines = (
            f"%truth = icmp {how} {BYTES} %left, %right",
            f"%bits = bitcast {TRUTH} %truth to i{LANES}",
        )
        return self.vectors.call(f"{how}{LANES}", "uint64", lines, "%bits", left=left, right=right)

    def choose(self, bits: Any, true: Any, false: Any) -> Any:
        """Select each lane from `true` or `false`, by the bits of a uint64."""
        lines = (
            f"%truth = bitcast i{LANES} %bits to {TRUTH}",
            f"%x = select {TRUTH} %truth, {BYTES} %true, {BYTES} %false",
        )
        arguments = {"bits": bits, "true": true, "false": false}
        return self.vectors.call(f"choose{LANES}", DTYPE, lines, "%x", **arguments)

    def leaves(self, first: Any, size: int, number: Any, tree: int) -> Any:
        """Look up the leaves of 16 rows in one of the 4 trees.

        Args:
            first: load of the tree's first leaf, float32.
            size: number of leaves in the table, a power of two from 32 to 256.
            number: leaf number of every lane, uint8x64.
            tree: number of the tree, 0 to 3.
        """
        cut = ", ".join(f"i32 {tree * ROWS + row}" for row in range(ROWS))
        lines = [
            f"%mine = shufflevector {BYTES} %all, {BYTES} poison, <{ROWS} x i32> <{cut}>",
            f"%number = zext <{ROWS} x i8> %mine to <{ROWS} x i32>",
        ]
        parts = []
        for part in range(size // 32):
            for name, at in (("a", 128 * part), ("b", 128 * part + 64)):
                lines += load_register(f"{name}{part}", "%first", at, FLOATS)
            tables = f"{FLOATS} %a{part}, <{ROWS} x i32> %number, {FLOATS} %b{part}"
            lines.append(f"%x{part} = {FLOAT_TWO}({tables})")
            parts.append(f"%x{part}")
        chosen, result = choose_by_bits(parts, "number", 32, FLOATS, "i32")
        arguments = {"first": tirx.address_of(first), "all": number}
        name, dtype = f"leaves{size}_{tree}", f"float32x{ROWS}"
        return self.vectors.call(name, dtype, lines + chosen, result, **arguments)
