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

from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx

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
        self._define(name, "i32", f"{vector} %left, {vector} %right", body)
        return tirx.call_pure_extern("int32", name, left, right)

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
        self._define(name, vector, arguments, body)
        return tirx.call_pure_extern(f"{base}x{lanes}", name, tirx.address_of(row), feature)

    def _define(self, name: str, result: str, arguments: str, body: str) -> None:
        head = f"define linkonce_odr {result} @{name}({arguments}) alwaysinline nounwind"
        self.functions[name] = f"{head} {{{body}\n}}"


def _base_and_lanes(vector: Any) -> tuple[str, int]:
    base, _, lanes = str(vector.ty.dtype).partition("x")
    return base, int(lanes)


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
