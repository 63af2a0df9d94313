"""Emits vector operations that TIR lacks, as LLVM IR functions.

takes: vector expressions; gives: calls, and the text of the called functions.

    pick(row, features)      values of some features of a row, one in each lane
    bits("olt", a, b)        bit i of the result is a[i] < b[i]

LLVM selects the CPU's instructions: vcmpps and kmov with AVX-512, vcmpps and vmovmskps with AVX2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import tirx

from ...system.values import dataclass, field
from ..internals.names import IMPORT_LLVM
from .llvm_types import SHORT, llvm_type
from .picks import write_pick

BYTES = "<64 x i8>"
"""LLVM type of an AVX-512 register of bytes."""
SELECT = 0b11001010
"""Truth table of `mask ? a : b` for vpternlog, where the mask is the highest bit of the index."""
REGISTER_BITS = {2: 128, 4: 256, 8: 512}
"""Register width in bits, by number of 64-bit words."""
PERMUTE = f"call {BYTES} @llvm.x86.avx512.permvar.qi.512"
PERMUTE_TWO = f"call {BYTES} @llvm.x86.avx512.vpermi2var.qi.512"


@dataclass(frozen=True)
class Vectors:
    """Collects LLVM IR functions, each once, and emits their calls.

    Attributes:
        abilities: LLVM's names of the CPU's features and tuning hints, such as "avx512f" and
            "fast-gather".
        functions: text of the functions called so far, by name.
    """

    abilities: frozenset[str]
    functions: dict[str, str] = field(default_factory=dict)

    @property
    def permutes_bytes(self) -> bool:
        """Whether one instruction picks bytes from two registers."""
        return "avx512vbmi" in self.abilities

    @property
    def words(self) -> int:
        """Number of 64-bit words in a vector register."""
        return 8 if "avx512f" in self.abilities else 4 if "avx2" in self.abilities else 2

    @property
    def selects_bits(self) -> bool:
        """Whether one instruction selects each bit from one of two registers by a third."""
        return {"avx512f", "avx512vl"} <= self.abilities

    def call(
        self, name: str, dtype: str, lines: Iterable[str], result: str, **arguments: Any
    ) -> tirx.Expr:
        """Call a function, and keep its text for `wrap`.

        Args:
            name: operation and its types; "tvm_forest_" is prepended.
            dtype: dtype of the result.
            lines: body of the function; an argument `left` is %left there.
            result: IR value to return.
            arguments: expressions of the arguments, by name.
        """
        name, returned = f"tvm_forest_{name}", llvm_type(dtype)
        parameters = ", ".join(f"{_llvm_type_of(x)} %{key}" for key, x in arguments.items())
        head = f"define linkonce_odr {returned} @{name}({parameters}) alwaysinline nounwind"
        body = "".join(f"\n  {line}" for line in (*lines, f"ret {returned} {result}"))
        self.functions[name] = f"{head} {{{body}\n}}"
        return tirx.call_pure_extern(dtype, name, *arguments.values())

    def wrap(self, body: tirx.Stmt) -> tirx.Stmt:
        """Attach the text of all collected functions to a statement."""
        if not self.functions:
            return body
        text = tvm.ir.StringImm("\n".join(self.functions.values()))
        return tirx.AttrStmt(tirx.IntImm("int32", 0), IMPORT_LLVM, text, body)

    def bits(self, how: str, left: Any, right: Any) -> Any:
        """Compare floats lane by lane; bit i of the result is the outcome of lane i.

        Args:
            how: LLVM's predicate for floats: "olt", "ole" or "uno".
            left, right: vectors of float32 or float64.

        Returns:
            int32 expression.
        """
        base, lanes = _base_and_lanes(left)
        lines = (
            f"%truth = fcmp {how} {_llvm_type_of(left)} %left, %right",
            f"%bits = bitcast <{lanes} x i1> %truth to i{lanes}",
            f"%number = zext i{lanes} %bits to i32",
        )
        name = f"{how}_{SHORT[base]}x{lanes}"
        return self.call(name, "int32", lines, "%number", left=left, right=right)

    def count(self, how: str, left: Any, right: Any) -> Any:
        """Count how many of 16 lanes compare true; see `bits`. Returns an int32."""
        base, lanes = _base_and_lanes(left)
        lines = [f"%truth = fcmp {how} {_llvm_type_of(left)} %left, %right"]
        name = f"count_{how}_{SHORT[base]}x{lanes}"
        lines += _count_lanes(tvm.DataType(base).bits, self.abilities)
        return self.call(name, "int32", lines, "%count", left=left, right=right)

    def select(self, mask: Any, chosen: Any, other: Any) -> Any:
        """Select each bit from one of two words, or vectors of words: `chosen` where `mask` is 1.

        Where one instruction does this, it is named explicitly, because LLVM spends half of its
        time on matching deep trees of plain bit operations.
        """
        lanes = _base_and_lanes(mask)[1]
        if not self.selects_bits or lanes not in REGISTER_BITS:
            return (mask & chosen) | (tirx.bitwise_not(mask) & other)
        name = f"llvm.x86.avx512.pternlog.q.{REGISTER_BITS[lanes]}"
        table = tirx.const(SELECT, "int32")
        return tirx.call_llvm_pure_intrin(mask.ty.dtype, name, mask, chosen, other, table)

    def select_more(self, mask: Any, more: Any, less: Any) -> Any:
        """Select like `select`, by two operations at most; `more` must have all bits of `less`."""
        return self.select(mask, more, less) if self.selects_bits else less | (more & mask)

    def not_above(self, codes: Any, limit: Any) -> Any:
        """Return a uint64 whose bit i is codes[i] <= limit.

        Args:
            codes: vector of 64 uint8 or uint16.
            limit: expression of the same element type.
        """
        vector, element = _llvm_type_of(codes), _llvm_type_of(limit)
        lines = (
            *_spread("%all", "%one", vector, f"{element} %limit"),
            f"%truth = icmp ule {vector} %codes, %all",
            "%bits = bitcast <64 x i1> %truth to i64",
        )
        return self.call(f"ule_{element}x64", "uint64", lines, "%bits", codes=codes, limit=limit)

    def interleave(self, low: Any, high: Any) -> Any:
        """Return 64 16-bit numbers as words, from vectors of 64 low and 64 high bytes."""
        places = ", ".join(f"i32 {k // 2 + 64 * (k % 2)}" for k in range(128))
        both = f"{BYTES} %low, {BYTES} %high"
        lines = (
            f"%pairs = shufflevector {both}, <128 x i32> <{places}>",
            "%x = bitcast <128 x i8> %pairs to <16 x i64>",
        )
        return self.call("interleave", "uint64x16", lines, "%x", low=low, high=high)

    def less_where(self, low: Any, high: Any, last: Any, less: Any) -> Any:
        """Return low[i] - (less if high[i] = last else 0), for vectors of 64 uint8."""
        lines = (
            *_spread("%all_last", "%one_last", BYTES, "i8 %last"),
            *_spread("%all_less", "%one_less", BYTES, "i8 %less"),
            f"%truth = icmp eq {BYTES} %high, %all_last",
            f"%off = select <64 x i1> %truth, {BYTES} %all_less, {BYTES} zeroinitializer",
            f"%x = sub {BYTES} %low, %off",
        )
        arguments = {"low": low, "high": high, "last": last, "less": less}
        return self.call("less_where", "uint8x64", lines, "%x", **arguments)

    def cast(self, value: Any, dtype: str) -> Any:
        """Return a bit cast of a value to another type."""
        name = f"{str(value.ty.dtype)}_as_{dtype}"
        line = f"%x = bitcast {_llvm_type_of(value)} %value to {llvm_type(dtype)}"
        return self.call(name, dtype, [line], "%x", value=value)

    def exchange_lanes(self, low: Any, high: Any, distance: int, side: int) -> Any:
        """Return one of the two vectors that result from exchanging lanes between two vectors.

        Lanes k and k + distance of a vector form a pair. In the result, each pair is low[k] and
        high[k] if `side` is 0, or low[k + distance] and high[k + distance] if it is 1.
        """
        dtype, count = str(low.ty.dtype), _base_and_lanes(low)[1]
        places = [
            k & ~distance | side * distance | (count if k & distance else 0) for k in range(count)
        ]
        vector, mask = _llvm_type_of(low), ", ".join(f"i32 {k}" for k in places)
        line = f"%x = shufflevector {vector} %low, {vector} %high, <{count} x i32> <{mask}>"
        return self.call(f"lanes{distance}_{side}_{dtype}", dtype, [line], "%x", low=low, high=high)

    def transpose_bits(self, rows: Any) -> Any:
        """Transpose a uint64x8: bit i of byte b of lane k becomes bit k of byte b of lane i."""
        vector, rest, lines, now = "<8 x i64>", "splat (i64 -1)", list[str](), "%rows"
        for by, lower in ((1, 0x55), (2, 0x33), (4, 0x0F)):
            upper = [bool(k & by) for k in range(8)]
            masks = [0x0101010101010101 * (lower ^ 255 if up else lower) for up in upper]
            kept = f"<{', '.join(f'i64 {mask}' for mask in masks)}>"
            others = f"<8 x i32> <{', '.join(f'i32 {k ^ by}' for k in range(8))}>"
            where = f"<8 x i1> <{', '.join(f'i1 {up}'.lower() for up in upper)}>"
            lines += [
                f"%other{by} = shufflevector {vector} {now}, {vector} poison, {others}",
                f"%left{by} = shl {vector} %other{by}, splat (i64 {by})",
                f"%right{by} = lshr {vector} %other{by}, splat (i64 {by})",
                f"%moved{by} = select {where}, {vector} %right{by}, {vector} %left{by}",
                f"%old{by} = and {vector} {now}, {kept}",
                f"%lost{by} = xor {vector} {kept}, {rest}",
                f"%new{by} = and {vector} %moved{by}, %lost{by}",
                f"%row{by} = or {vector} %old{by}, %new{by}",
            ]
            now = f"%row{by}"
        return self.call("transpose_bits", "uint64x8", lines, now, rows=rows)

    def join_bits(self, words: Sequence[Any]) -> Any:
        """Return 64 8-bit numbers as uint64x8, from up to 8 words of their bits, lowest first.

        Bit 8 b + i of each word belongs to the number 8 i + b.
        """
        lines, total = list[str](), "zeroinitializer"
        for k in range(len(words)):
            lines += [
                f"%m{k} = bitcast i64 %w{k} to <64 x i1>",
                f"%a{k} = or {BYTES} {total}, splat (i8 {1 << k})",
                f"%t{k} = select <64 x i1> %m{k}, {BYTES} %a{k}, {BYTES} {total}",
            ]
            total = f"%t{k}"
        places = ", ".join(f"i32 {k % 8 * 8 + k // 8}" for k in range(64))
        lines += [
            f"%rows = shufflevector {BYTES} {total}, {BYTES} poison, <64 x i32> <{places}>",
            f"%x = bitcast {BYTES} %rows to <8 x i64>",
        ]
        arguments = {f"w{k}": word for k, word in enumerate(words)}
        return self.call(f"join_bits{len(words)}", "uint64x8", lines, "%x", **arguments)

    def pick(self, row: Any, feature: Any) -> Any:
        """Load some features of a row into vector lanes.

        Args:
            row: load of the row's first feature; the last dimension of its buffer is the features.
            feature: numbers of the features, an int32 vector.
        """
        base, lanes = str(row.source.dtype), _base_and_lanes(feature)[1]
        width = row.source.shape[-1]
        count = int(width) if isinstance(width, tirx.IntImm) else None
        name, lines, result = write_pick(base, count, lanes, self.abilities)
        arguments = {"row": tirx.address_of(row), "feature": feature}
        return self.call(name, f"{base}x{lanes}", lines, result, **arguments)


def _base_and_lanes(vector: Any) -> tuple[str, int]:
    base, _, lanes = str(vector.ty.dtype).partition("x")
    return base, int(lanes or 1)


def _llvm_type_of(value: Any) -> str:
    return "ptr" if isinstance(value.ty, tvm.ir.PointerType) else llvm_type(str(value.ty.dtype))


def _spread(name: str, one: str, vector: str, value: str) -> list[str]:
    """Return IR lines that broadcast a value to 64 lanes."""
    return [
        f"{one} = insertelement {vector} poison, {value}, i32 0",
        f"{name} = shufflevector {vector} {one}, {vector} poison, <64 x i32> zeroinitializer",
    ]


def load_register(name: str, first: str, at: int, vector: str = BYTES) -> list[str]:
    """Return IR lines that load %name, a register, at a byte offset from a pointer."""
    return [
        f"%{name}p = getelementptr i8, ptr {first}, i64 {at}",
        f"%{name} = load {vector}, ptr %{name}p, align 1",
    ]


def _count_lanes(bits: int, abilities: frozenset[str]) -> list[str]:
    """Return IR lines that set %count to the number of true lanes among the 16 of %truth.

    With AVX2, lanes are packed to bytes, see `_count_pairs`. Without the instruction popcnt, and on
    processors other than x86, ones are summed.

    Args:
        bits: size of the lanes that were compared.
        abilities: LLVM's names of the CPU's features.
    """
    if "sse2" not in abilities:
        return [
            "%ones = zext <16 x i1> %truth to <16 x i32>",
            "%count = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %ones)",
        ]
    if "popcnt" not in abilities:
        return [
            "%ones = zext <16 x i1> %truth to <16 x i8>",
            "%sums = call <2 x i64> @llvm.x86.sse2.psad.bw("
            "<16 x i8> %ones, <16 x i8> zeroinitializer)",
            "%sum = call i64 @llvm.vector.reduce.add.v2i64(<2 x i64> %sums)",
            "%count = trunc i64 %sum to i32",
        ]
    if "avx2" in abilities and "avx512f" not in abilities:
        return _count_pairs(bits)
    return [
        "%bits = bitcast <16 x i1> %truth to i16",
        "%all = zext i16 %bits to i32",
        "%count = call i32 @llvm.ctpop.i32(i32 %all)",
    ]


def _count_pairs(bits: int) -> list[str]:
    """Return IR lines that set %count to the number of true lanes, for AVX2.

    Packing leaves two bytes for each lane, so twice the number of lanes is counted.
    """
    words = bits // 2
    lines = [
        f"%wide = sext <16 x i1> %truth to <16 x i{bits}>",
        f"%all = bitcast <16 x i{bits}> %wide to <{words} x i32>",
    ]
    for k in range(words // 8):
        places = ", ".join(f"i32 {8 * k + lane}" for lane in range(8))
        both = f"<{words} x i32> %all, <{words} x i32> poison"
        lines.append(f"%r{k} = shufflevector {both}, <8 x i32> <{places}>")
    for k in range(0, words // 8, 2):
        both = f"<8 x i32> %r{k}, <8 x i32> %r{k + 1}"
        lines.append(f"%p{k} = call <16 x i16> @llvm.x86.avx2.packssdw({both})")
    if bits == 32:
        lines.append("%bytes = bitcast <16 x i16> %p0 to <32 x i8>")
    else:
        both = "<16 x i16> %p0, <16 x i16> %p2"
        lines.append(f"%bytes = call <32 x i8> @llvm.x86.avx2.packsswb({both})")
    return [
        *lines,
        "%signs = call i32 @llvm.x86.avx2.pmovmskb(<32 x i8> %bytes)",
        "%twice = call i32 @llvm.ctpop.i32(i32 %signs)",
        "%count = lshr i32 %twice, 1",
    ]
