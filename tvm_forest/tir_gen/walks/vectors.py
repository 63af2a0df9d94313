"""Vector operations that TIR has no word for, as functions in LLVM's language.

takes: vector expressions; gives: calls, and the text of the functions that they call.

    pick(row, features)      values of some features of a row, a lane each
    bits(how, a, b)          bit i is the comparison of lanes i

LLVM makes of them what the CPU has: vcmpps and kmov with AVX-512, vcmpps and vmovmskps with AVX2.
Values are gathered if LLVM calls the CPU's gather fast, otherwise loaded one by one: 2.4 times
faster on `year` (90 features, array of tiles of 8 nodes, batch 4096, Zen 4). A narrow row is held
in registers, from which one instruction picks all lanes: 4 times faster than a gather on `airline`
(13 features, otherwise as before).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx

from ...layouts.row_codes.planes import position

LLVM_TYPE = {"float32": ("float", "f32"), "float64": ("double", "f64")}


@dataclass(frozen=True)
class Vectors:
    """Writes the functions, each once.

    Attributes:
        abilities: what the CPU can do, and do fast, in LLVM's words, such as "avx512f".
        functions: text of the functions that were called, by name.
    """

    abilities: frozenset[str]
    functions: dict[str, str] = field(default_factory=dict)

    def wrap(self, body: tirx.Stmt) -> tirx.Stmt:
        """Add the functions that a statement calls."""
        if not self.functions:
            return body
        text = tvm.ir.StringImm("\n".join(self.functions.values()))
        return tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", text, body)

    def bits(self, how: str, left: Any, right: Any) -> Any:
        """Compare lane by lane.

        Args:
            how: LLVM's name of a comparison of floats: "olt", "ole", "uno".
            left, right: vectors of float32 or float64.

        Returns:
            int32 expression.
        """
        base, lanes = _base_and_lanes(left)
        element, short = LLVM_TYPE[base]
        name, vector = f"tvm_forest_{how}_{short}x{lanes}", f"<{lanes} x {element}>"
        body = f"""
  %truth = fcmp {how} {vector} %left, %right
  %bits = bitcast <{lanes} x i1> %truth to i{lanes}
  %number = zext i{lanes} %bits to i32
  ret i32 %number"""
        self.define(name, "i32", f"{vector} %left, {vector} %right", body)
        return tirx.call_pure_extern("int32", name, left, right)

    def not_above(self, codes: Any, limit: Any) -> Any:
        """Return the truth of codes[i] <= limit as bit i of a uint64.

        Args:
            codes: vector of 64 uint8 or uint16.
            limit: expression of the same element type.
        """
        base, lanes = _base_and_lanes(codes)
        element = f"i{tvm.DataType(base).bits}"
        name, vector = f"tvm_forest_ule_{element}x{lanes}", f"<{lanes} x {element}>"
        spread = f"shufflevector {vector} %one, {vector} poison, <{lanes} x i32> zeroinitializer"
        body = f"""
  %one = insertelement {vector} poison, {element} %limit, i32 0
  %all = {spread}
  %truth = icmp ule {vector} %codes, %all
  %bits = bitcast <{lanes} x i1> %truth to i{lanes}
  ret i{lanes} %bits"""
        self.define(name, f"i{lanes}", f"{vector} %codes, {element} %limit", body)
        return tirx.call_pure_extern("uint64", name, codes, limit)

    def arranged(self, codes: Any) -> Any:
        """Put 64 codes, uint8 or uint16, into the order of `planes.position`."""
        base, lanes = _base_and_lanes(codes)
        vector = f"<{lanes} x i{tvm.DataType(base).bits}>"
        mask = ", ".join(f"i32 {position(place)}" for place in range(lanes))
        name = f"tvm_forest_arranged_{base}x{lanes}"
        body = f"""
  %x = shufflevector {vector} %codes, {vector} poison, <{lanes} x i32> <{mask}>
  ret {vector} %x"""
        self.define(name, vector, f"{vector} %codes", body)
        return tirx.call_pure_extern(f"{base}x{lanes}", name, codes)

    def less_where(self, low: Any, high: Any, last: Any, less: Any) -> Any:
        """Return low[i] - (less if high[i] = last else 0), for vectors of 64 uint8."""
        vector = "<64 x i8>"
        name, zeros = "tvm_forest_less_where", "<64 x i32> zeroinitializer"
        body = f"""
  %one_last = insertelement {vector} poison, i8 %last, i32 0
  %all_last = shufflevector {vector} %one_last, {vector} poison, {zeros}
  %one_less = insertelement {vector} poison, i8 %less, i32 0
  %all_less = shufflevector {vector} %one_less, {vector} poison, {zeros}
  %truth = icmp eq {vector} %high, %all_last
  %off = select <64 x i1> %truth, {vector} %all_less, {vector} zeroinitializer
  %x = sub {vector} %low, %off
  ret {vector} %x"""
        self.define(name, vector, f"{vector} %low, {vector} %high, i8 %last, i8 %less", body)
        return tirx.call_pure_extern("uint8x64", name, low, high, last, less)

    def bit(self, codes: Any, bit: int) -> Any:
        """Return one bit of 64 codes, uint8 or uint16, as the bits of a uint64."""
        base, lanes = _base_and_lanes(codes)
        element = f"i{tvm.DataType(base).bits}"
        name, vector = f"tvm_forest_bit{bit}_{element}x{lanes}", f"<{lanes} x {element}>"
        body = f"""
  %one = and {vector} %codes, splat ({element} {1 << bit})
  %truth = icmp ne {vector} %one, zeroinitializer
  %bits = bitcast <{lanes} x i1> %truth to i{lanes}
  ret i{lanes} %bits"""
        self.define(name, f"i{lanes}", f"{vector} %codes", body)
        return tirx.call_pure_extern("uint64", name, codes)

    def numbers(self, words: Sequence[Any]) -> Any:
        """Return 64 numbers whose bits stand in words, the lowest first: uint8, or uint16."""
        bits = 8 if len(words) <= 8 else 16
        name, vector = f"tvm_forest_numbers{len(words)}", f"<64 x i{bits}>"
        lines, total = [], "zeroinitializer"
        for k in range(len(words)):
            lines += [
                f"%m{k} = bitcast i64 %w{k} to <64 x i1>",
                f"%a{k} = add {vector} {total}, splat (i{bits} {1 << k})",
                f"%t{k} = select <64 x i1> %m{k}, {vector} %a{k}, {vector} {total}",
            ]
            total = f"%t{k}"
        body = "\n  " + "\n  ".join([*lines, f"ret {vector} {total}"])
        self.define(name, vector, ", ".join(f"i64 %w{k}" for k in range(len(words))), body)
        return tirx.call_pure_extern(f"uint{bits}x64", name, *words)

    def look_up(self, numbers: Any, first: Any, size: int) -> Any:
        """Look 64 values up in a table of float32 whose bytes lie in four planes.

        Args:
            numbers: vector of 64 uint8, in the order of `planes.position`.
            first: load of the first byte of the table.
            size: entries of the table: 64, 128 or 256.

        Returns:
            vector of 64 float32, in the order of rows.
        """
        name, vector = f"tvm_forest_look_up{size}", "<64 x i8>"
        lines = []
        for k in range(4):
            lines += _look_up_bytes(f"{k}", k * size, size)
        lines += _unpacked("b")
        body = "\n  " + "\n  ".join([*lines, "ret <64 x float> %value"])
        self.define(name, "<64 x float>", f"{vector} %number, ptr %table", body)
        return tirx.call_pure_extern("float32x64", name, numbers, tirx.address_of(first))

    def pick(self, row: Any, feature: Any) -> Any:
        """Load features of a row.

        Args:
            row: load of the row's first feature; its buffer has a row in its last dimension.
            feature: int32 vector.
        """
        base, lanes = str(row.source.dtype), _base_and_lanes(feature)[1]
        width = row.source.shape[-1]
        count = int(width) if isinstance(width, tirx.IntImm) else None
        element, short = LLVM_TYPE[base]
        vector, arguments = f"<{lanes} x {element}>", f"ptr %row, <{lanes} x i32> %feature"
        body = _from_registers(count, lanes, self.abilities) if base == "float32" else None
        name = f"tvm_forest_pick{count}_{short}x{lanes}"
        if body is None:
            fetch = _gather if "fast-gather" in self.abilities else _loads
            name, body = f"tvm_forest_gather_{short}x{lanes}", fetch(base, lanes)
        self.define(name, vector, arguments, body)
        return tirx.call_pure_extern(f"{base}x{lanes}", name, tirx.address_of(row), feature)

    def define(self, name: str, result: str, arguments: str, body: str) -> None:
        """Write a function, if there is none of that name."""
        head = f"define linkonce_odr {result} @{name}({arguments}) alwaysinline nounwind"
        self.functions[name] = f"{head} {{{body}\n}}"


def _base_and_lanes(vector: Any) -> tuple[str, int]:
    base, _, lanes = str(vector.ty.dtype).partition("x")
    return base, int(lanes)


def _look_up_bytes(name: str, offset: int, size: int) -> list[str]:
    """Set %b<name> to the bytes at %number of a plane of a table."""
    vector = "<64 x i8>"
    parts = [f"%t{name}_{k}" for k in range(size // 64)]
    lines = []
    for k, part in enumerate(parts):
        lines += [
            f"{part}p = getelementptr i8, ptr %table, i64 {offset + 64 * k}",
            f"{part} = load {vector}, ptr {part}p, align 1",
        ]
    if size == 64:
        permute = "@llvm.x86.avx512.permvar.qi.512"
        return [
            *lines,
            f"%b{name} = call {vector} {permute}({vector} {parts[0]}, {vector} %number)",
        ]
    permute = "@llvm.x86.avx512.vpermi2var.qi.512"
    halves = [f"%b{name}", None] if size == 128 else [f"%l{name}", f"%h{name}"]
    for half, low, high in zip(halves, parts[::2], parts[1::2], strict=False):
        arguments = f"{vector} {low}, {vector} %number, {vector} {high}"
        lines.append(f"{half} = call {vector} {permute}({arguments})")
    if size == 256:
        lines += [
            f"%s{name} = icmp slt {vector} %number, zeroinitializer",
            f"%b{name} = select <64 x i1> %s{name}, {vector} %h{name}, {vector} %l{name}",
        ]
    return lines


def _unpacked(name: str) -> list[str]:
    """Set %value to 64 floats, given their bytes 0 to 3 in four vectors."""
    half = "<64 x i8>"
    low = _unpack_mask(64, 1, 0), _unpack_mask(64, 1, 1)
    lines = []
    for pair, (a, b) in enumerate((("0", "1"), ("2", "3"))):
        for side in (0, 1):
            lines.append(
                f"%p{pair}{side} = shufflevector {half} %{name}{a}, {half} %{name}{b}, "
                f"<64 x i32> <{low[side]}>"
            )
    for k in range(4):
        side, upper = divmod(k, 2)
        mask = _unpack_mask(64, 2, upper)
        lines += [
            f"%q{k} = shufflevector {half} %p0{side}, {half} %p1{side}, <64 x i32> <{mask}>",
            f"%f{k} = bitcast {half} %q{k} to <16 x float>",
        ]
    first, rest = (", ".join(f"i32 {i}" for i in range(n)) for n in (32, 64))
    return [
        *lines,
        f"%x0 = shufflevector <16 x float> %f0, <16 x float> %f1, <32 x i32> <{first}>",
        f"%x1 = shufflevector <16 x float> %f2, <16 x float> %f3, <32 x i32> <{first}>",
        f"%value = shufflevector <32 x float> %x0, <32 x float> %x1, <64 x i32> <{rest}>",
    ]


def _unpack_mask(width: int, size: int, upper: int) -> str:
    """Interleave things of `size` bytes of the lower or upper halves of every 16 bytes."""
    places = []
    for lane in range(0, width, 16):
        for k in range(0, 8, size):
            at = lane + 8 * upper + k
            places += [*range(at, at + size), *range(width + at, width + at + size)]
    return ", ".join(f"i32 {place}" for place in places)


def _gather(base: str, lanes: int) -> str:
    """From memory, whatever the width of a row."""
    element, short = LLVM_TYPE[base]
    vector, mask = f"<{lanes} x {element}>", f"<{lanes} x i1>"
    name, size = f"@llvm.masked.gather.v{lanes}{short}.v{lanes}p0", tvm.DataType(base).itemsize
    call = f"{name}(<{lanes} x ptr> %at, i32 {size}, {mask} splat (i1 true), {vector} poison)"
    return f"""
  %index = zext <{lanes} x i32> %feature to <{lanes} x i64>
  %at = getelementptr {element}, ptr %row, <{lanes} x i64> %index
  %x = call {vector} {call}
  ret {vector} %x"""


def _loads(base: str, lanes: int) -> str:
    """From memory, one after the other."""
    element = LLVM_TYPE[base][0]
    vector, lines = f"<{lanes} x {element}>", []
    for k in range(lanes):
        lines += [
            f"%i{k} = extractelement <{lanes} x i32> %feature, i32 {k}",
            f"%w{k} = zext i32 %i{k} to i64",
            f"%p{k} = getelementptr {element}, ptr %row, i64 %w{k}",
            f"%v{k} = load {element}, ptr %p{k}",
            f"%x{k} = insertelement {vector} {f'%x{k - 1}' if k else 'poison'}, "
            f"{element} %v{k}, i32 {k}",
        ]
    return "\n  " + "\n  ".join([*lines, f"ret {vector} %x{lanes - 1}"])


def _from_registers(count: int | None, lanes: int, abilities: frozenset[str]) -> str | None:
    """From one register or two that hold the row, if they do; the row's end is not read over."""
    if count is None or lanes > 8:
        return None
    if count <= 8 and "avx2" in abilities:
        permute = "<8 x float> @llvm.x86.avx2.permps(<8 x float> %a, <8 x i32> %wide)"
        return _permute(count, 8, lanes, permute)
    if count <= 16 and "avx512f" in abilities:
        permute = "<16 x float> @llvm.x86.avx512.permvar.sf.512(<16 x float> %a, <16 x i32> %wide)"
        return _permute(count, 16, lanes, permute)
    if count <= 32 and "avx512f" in abilities:
        arguments = "<16 x float> %a, <16 x i32> %wide, <16 x float> %b"
        permute = f"<16 x float> @llvm.x86.avx512.vpermi2var.ps.512({arguments})"
        return _permute(count, 16, lanes, permute)
    return None


def _permute(count: int, width: int, lanes: int, permute: str) -> str:
    """Load the row into registers of a width, widen the indices, and cut the result."""
    widen = ", ".join(f"i32 {k}" if k < lanes else "i32 poison" for k in range(width))
    cut = ", ".join(f"i32 {k}" for k in range(lanes))
    index, vector = f"<{lanes} x i32>", f"<{width} x float>"
    second = ""
    if count > width:
        second = f"""
  %rest = getelementptr float, ptr %row, i64 {width}
  %b = call {_masked_load("%rest", count - width, width)}"""
    return f"""
  %a = call {_masked_load("%row", min(count, width), width)}{second}
  %wide = shufflevector {index} %feature, {index} poison, <{width} x i32> <{widen}>
  %all = call {permute}
  %x = shufflevector {vector} %all, {vector} poison, {index} <{cut}>
  ret <{lanes} x float> %x"""


def _masked_load(pointer: str, count: int, width: int) -> str:
    vector = f"<{width} x float>"
    mask = ", ".join(f"i1 {'true' if k < count else 'false'}" for k in range(width))
    name = f"@llvm.masked.load.v{width}f32.p0"
    return (
        f"{vector} {name}(ptr {pointer}, i32 4, <{width} x i1> <{mask}>, {vector} zeroinitializer)"
    )
