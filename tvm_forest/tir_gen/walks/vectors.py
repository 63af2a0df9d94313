"""Vector operations that TIR has no word for, as functions in LLVM's language.

takes: vector expressions; gives: calls, and the text of the functions that they call.

    pick(row, features)      values of some features of a row, a lane each
    bits("olt", a, b)        bit i of the result is a[i] < b[i]

LLVM makes of them what the CPU has: vcmpps and kmov with AVX-512, vcmpps and vmovmskps with AVX2.
Values are gathered if LLVM calls the CPU's gather fast, otherwise loaded one by one. A narrow row
is held in registers, from which one instruction picks all lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx

ELEMENTS = {"float32": "float", "float64": "double"}
"""LLVM's names of element types that are no integers."""
SHORT = {"float32": "f32", "float64": "f64"}
"""How LLVM calls them in names of its own functions."""
BYTES = "<64 x i8>"
"""A register of AVX-512."""
PERMUTE = f"call {BYTES} @llvm.x86.avx512.permvar.qi.512"
PERMUTE_TWO = f"call {BYTES} @llvm.x86.avx512.vpermi2var.qi.512"


@dataclass(frozen=True)
class Vectors:
    """Writes functions, each once, and calls them.

    Attributes:
        abilities: what the CPU can do, and do fast, in LLVM's words, such as "avx512f".
        functions: text of the functions that were called, by name.
    """

    abilities: frozenset[str]
    functions: dict[str, str] = field(default_factory=dict)

    @property
    def permutes_bytes(self) -> bool:
        """Whether one instruction picks bytes out of two registers."""
        return "avx512vbmi" in self.abilities

    def call(
        self, name: str, dtype: str, lines: Iterable[str], result: str, **arguments: Any
    ) -> tirx.Expr:
        """Call a function, after writing it.

        Args:
            name: what it does, with which types; "tvm_forest_" is put before.
            dtype: of what it returns.
            lines: its text, in which the argument `left` is called %left.
            result: what the text calls what it returns.
            arguments: expressions.
        """
        name, returned = f"tvm_forest_{name}", _llvm_type(dtype)
        parameters = ", ".join(f"{_llvm_type_of(x)} %{key}" for key, x in arguments.items())
        head = f"define linkonce_odr {returned} @{name}({parameters}) alwaysinline nounwind"
        body = "".join(f"\n  {line}" for line in (*lines, f"ret {returned} {result}"))
        self.functions[name] = f"{head} {{{body}\n}}"
        return tirx.call_pure_extern(dtype, name, *arguments.values())

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
        lines = (
            f"%truth = fcmp {how} {_llvm_type_of(left)} %left, %right",
            f"%bits = bitcast <{lanes} x i1> %truth to i{lanes}",
            f"%number = zext i{lanes} %bits to i32",
        )
        name = f"{how}_{SHORT[base]}x{lanes}"
        return self.call(name, "int32", lines, "%number", left=left, right=right)

    def not_above(self, codes: Any, limit: Any) -> Any:
        """Return the truth of codes[i] <= limit as bit i of a uint64.

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

    def bit(self, codes: Any, bit: int) -> Any:
        """Return one bit of 64 codes, uint8 or uint16, as the bits of a uint64."""
        vector, element = _llvm_type_of(codes), _llvm_type(_base_and_lanes(codes)[0])
        lines = (
            f"%one = and {vector} %codes, splat ({element} {1 << bit})",
            f"%truth = icmp ne {vector} %one, zeroinitializer",
            "%bits = bitcast <64 x i1> %truth to i64",
        )
        return self.call(f"bit{bit}_{element}x64", "uint64", lines, "%bits", codes=codes)

    def numbers(self, words: Sequence[Any]) -> Any:
        """Return 64 numbers whose bits stand in words, the lowest first: uint8, or uint16."""
        bits = 8 if len(words) <= 8 else 16
        vector, lines, total = f"<64 x i{bits}>", list[str](), "zeroinitializer"
        for k in range(len(words)):
            lines += [
                f"%m{k} = bitcast i64 %w{k} to <64 x i1>",
                f"%a{k} = add {vector} {total}, splat (i{bits} {1 << k})",
                f"%t{k} = select <64 x i1> %m{k}, {vector} %a{k}, {vector} {total}",
            ]
            total = f"%t{k}"
        arguments = {f"w{k}": word for k, word in enumerate(words)}
        return self.call(f"numbers{len(words)}", f"uint{bits}x64", lines, total, **arguments)

    def look_up(self, numbers: Any, first: Any, size: int) -> Any:
        """Look 64 values up in a table of float32 whose bytes lie in four planes.

        Args:
            numbers: vector of 64 uint8, in the order of `planes.place_of_row`.
            first: load of the first byte of the table.
            size: entries of the table: 64, 128 or 256.

        Returns:
            vector of 64 float32, in the order of rows.
        """
        lines = [line for k in range(4) for line in _look_up_bytes(str(k), k * size, size)]
        lines += _write_transpose("b")
        arguments = {"number": numbers, "table": tirx.address_of(first)}
        return self.call(f"look_up{size}", "float32x64", lines, "%value", **arguments)

    def pick(self, row: Any, feature: Any) -> Any:
        """Load features of a row.

        Args:
            row: load of the row's first feature; its buffer has a row in its last dimension.
            feature: int32 vector.
        """
        base, lanes = str(row.source.dtype), _base_and_lanes(feature)[1]
        width = row.source.shape[-1]
        count = int(width) if isinstance(width, tirx.IntImm) else None
        lines = _from_registers(count, lanes, self.abilities) if base == "float32" else None
        name = f"pick{count}_{SHORT[base]}x{lanes}"
        result = "%x"
        if lines is None:
            name = f"gather_{SHORT[base]}x{lanes}"
            gathers = "fast-gather" in self.abilities
            lines = _gather(base, lanes) if gathers else _loads(base, lanes)
            result = "%x" if gathers else f"%x{lanes - 1}"
        arguments = {"row": tirx.address_of(row), "feature": feature}
        return self.call(name, f"{base}x{lanes}", lines, result, **arguments)


def _base_and_lanes(vector: Any) -> tuple[str, int]:
    base, _, lanes = str(vector.ty.dtype).partition("x")
    return base, int(lanes)


def _llvm_type(dtype: str) -> str:
    """Return LLVM's name of a type: "float", "i8", "<64 x i8>"."""
    base, _, lanes = dtype.partition("x")
    element = ELEMENTS.get(base) or f"i{tvm.DataType(base).bits}"
    return f"<{lanes} x {element}>" if lanes else element


def _llvm_type_of(value: Any) -> str:
    return "ptr" if isinstance(value.ty, tvm.ir.PointerType) else _llvm_type(str(value.ty.dtype))


def _spread(name: str, one: str, vector: str, value: str) -> list[str]:
    """Set all 64 lanes of a vector to a value."""
    return [
        f"{one} = insertelement {vector} poison, {value}, i32 0",
        f"{name} = shufflevector {vector} {one}, {vector} poison, <64 x i32> zeroinitializer",
    ]


def load_register(name: str, first: str, at: int, vector: str = BYTES) -> list[str]:
    """Load a register from some bytes behind a pointer."""
    return [
        f"%{name}p = getelementptr i8, ptr {first}, i64 {at}",
        f"%{name} = load {vector}, ptr %{name}p, align 1",
    ]


def _look_up_bytes(name: str, offset: int, size: int) -> list[str]:
    """Set %b<name> to the bytes at %number of a plane of a table."""
    parts = [f"t{name}_{k}" for k in range(size // 64)]
    lines = list[str]()
    for k, part in enumerate(parts):
        lines += load_register(part, "%table", offset + 64 * k)
    if size == 64:
        return [*lines, f"%b{name} = {PERMUTE}({BYTES} %{parts[0]}, {BYTES} %number)"]
    halves = ("b",) if size == 128 else ("l", "h")
    for half, low, high in zip(halves, parts[::2], parts[1::2], strict=True):
        both = f"{BYTES} %{low}, {BYTES} %number, {BYTES} %{high}"
        lines.append(f"%{half}{name} = {PERMUTE_TWO}({both})")
    if size == 256:
        lines += [
            f"%s{name} = icmp slt {BYTES} %number, zeroinitializer",
            f"%b{name} = select <64 x i1> %s{name}, {BYTES} %h{name}, {BYTES} %l{name}",
        ]
    return lines


def _write_transpose(name: str) -> list[str]:
    """Set %value to 64 floats, given their bytes 0 to 3 in four vectors."""

    def shuffle(into: str, vector: str, a: str, b: str, places: Iterable[int]) -> str:
        mask = [f"i32 {place}" for place in places]
        count = f"<{len(mask)} x i32>"
        return f"%{into} = shufflevector {vector} %{a}, {vector} %{b}, {count} <{', '.join(mask)}>"

    lines = [
        shuffle(f"p{pair}{side}", BYTES, f"{name}{2 * pair}", f"{name}{2 * pair + 1}", places)
        for pair in (0, 1)
        for side, places in enumerate((_list_interleaved(1, 0), _list_interleaved(1, 1)))
    ]
    for k in range(4):
        side, upper = divmod(k, 2)
        lines.append(shuffle(f"q{k}", BYTES, f"p0{side}", f"p1{side}", _list_interleaved(2, upper)))
        lines.append(f"%f{k} = bitcast {BYTES} %q{k} to <16 x float>")
    return [
        *lines,
        shuffle("x0", "<16 x float>", "f0", "f1", range(32)),
        shuffle("x1", "<16 x float>", "f2", "f3", range(32)),
        shuffle("value", "<32 x float>", "x0", "x1", range(64)),
    ]


def _list_interleaved(size: int, upper: int) -> list[int]:
    """Places that interleave things of `size` bytes of the lower or upper halves of 16 bytes.

    They are of two registers of 64 bytes, whose bytes are counted on.
    """
    starts = [lane + 8 * upper + k for lane in range(0, 64, 16) for k in range(0, 8, size)]
    return [
        at
        for start in starts
        for at in (*range(start, start + size), *range(64 + start, 64 + start + size))
    ]


def _gather(base: str, lanes: int) -> list[str]:
    """Load from memory, whatever the width of a row."""
    element = ELEMENTS[base]
    vector, mask = f"<{lanes} x {element}>", f"<{lanes} x i1>"
    name, size = (
        f"@llvm.masked.gather.v{lanes}{SHORT[base]}.v{lanes}p0",
        tvm.DataType(base).itemsize,
    )
    call = f"{name}(<{lanes} x ptr> %at, i32 {size}, {mask} splat (i1 true), {vector} poison)"
    return [
        f"%index = zext <{lanes} x i32> %feature to <{lanes} x i64>",
        f"%at = getelementptr {element}, ptr %row, <{lanes} x i64> %index",
        f"%x = call {vector} {call}",
    ]


def _loads(base: str, lanes: int) -> list[str]:
    """Load from memory, one after the other."""
    element, lines = ELEMENTS[base], list[str]()
    for k in range(lanes):
        before = f"%x{k - 1}" if k else "poison"
        lines += [
            f"%i{k} = extractelement <{lanes} x i32> %feature, i32 {k}",
            f"%w{k} = zext i32 %i{k} to i64",
            f"%p{k} = getelementptr {element}, ptr %row, i64 %w{k}",
            f"%v{k} = load {element}, ptr %p{k}",
            f"%x{k} = insertelement <{lanes} x {element}> {before}, {element} %v{k}, i32 {k}",
        ]
    return lines


def _from_registers(count: int | None, lanes: int, abilities: frozenset[str]) -> list[str] | None:
    """Pick from one register or two that hold the row, if they do; its end is not read over."""
    if count is None or count > 32 or lanes > 8:
        return None
    if count <= 8 and "avx2" in abilities:
        width, name, second = 8, "avx2.permps", ""
    elif "avx512f" in abilities:
        name = "avx512.vpermi2var.ps.512" if count > 16 else "avx512.permvar.sf.512"
        width, second = 16, ", <16 x float> %b" if count > 16 else ""
    else:
        return None
    widen = ", ".join(f"i32 {k}" if k < lanes else "i32 poison" for k in range(width))
    cut = ", ".join(f"i32 {k}" for k in range(lanes))
    index, vector = f"<{lanes} x i32>", f"<{width} x float>"
    lines = [f"%a = call {_write_masked_load('%row', min(count, width), width)}"]
    if second:
        lines.append(f"%rest = getelementptr float, ptr %row, i64 {width}")
        lines.append(f"%b = call {_write_masked_load('%rest', count - width, width)}")
    return [
        *lines,
        f"%wide = shufflevector {index} %feature, {index} poison, <{width} x i32> <{widen}>",
        f"%all = call {vector} @llvm.x86.{name}({vector} %a, <{width} x i32> %wide{second})",
        f"%x = shufflevector {vector} %all, {vector} poison, {index} <{cut}>",
    ]


def _write_masked_load(pointer: str, count: int, width: int) -> str:
    vector = f"<{width} x float>"
    mask = ", ".join(f"i1 {'true' if k < count else 'false'}" for k in range(width))
    name = f"@llvm.masked.load.v{width}f32.p0"
    return (
        f"{vector} {name}(ptr {pointer}, i32 4, <{width} x i1> <{mask}>, {vector} zeroinitializer)"
    )
