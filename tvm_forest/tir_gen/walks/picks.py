"""Lines of LLVM's language that load features of a row, each lane another one.

takes: the dtype and width of a row, what the CPU can do; gives: the lines of a function.

Values are gathered if LLVM calls the CPU's gather fast, otherwise loaded one by one. A narrow row
is held in registers, from which one instruction picks all lanes.
"""

from __future__ import annotations

import tvm

from .llvm_types import ELEMENTS, SHORT


def write_pick(
    base: str, count: int | None, lanes: int, abilities: frozenset[str]
) -> tuple[str, list[str], str]:
    """Return the name of a function that loads features of a row, its lines, and their result.

    Args:
        base: dtype of the row.
        count: features of a row; None if that is not known.
        lanes: how many are loaded.
        abilities: what the CPU can do, in LLVM's words.
    """
    lines = _from_registers(count, lanes, abilities) if base == "float32" else None
    if lines is not None:
        return f"pick{count}_{SHORT[base]}x{lanes}", lines, "%x"
    name = f"gather_{SHORT[base]}x{lanes}"
    if "fast-gather" in abilities:
        return name, _gather(base, lanes), "%x"
    return name, _loads(base, lanes), f"%x{lanes - 1}"


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
