"""Writes LLVM IR that loads features of a row into a vector, a different one in each lane.

takes: dtype and width of a row, features of the CPU; gives: the lines of a function.

Values are gathered if LLVM calls the CPU's gathers fast, else loaded one by one. A narrow row is
held in registers, and one instruction picks all lanes from one or two of them.
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
        count: number of features in a row; None if it is not known.
        lanes: number of values to load.
        abilities: LLVM's names of the CPU's features.
    """
    lines = _from_registers(count, lanes, abilities) if base == "float32" else None
    if lines is not None:
        return f"pick{count}_{SHORT[base]}x{lanes}", lines, "%x"
    name = f"gather_{SHORT[base]}x{lanes}"
    if "fast-gather" in abilities:
        return name, _gather(base, lanes), "%x"
    return name, _loads(base, lanes), f"%x{lanes - 1}"


def _gather(base: str, lanes: int) -> list[str]:
    """Return IR lines that set %x by a gather, for a row of any width."""
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
    """Return IR lines that load the values one after the other; the last line has the result."""
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
    """Return IR lines that load the row into one or two registers, and permute them into %x.

    Return None if the row does not fit, or the CPU cannot permute lanes.
    """
    width, number = count_registers(count, abilities)
    if not 0 < number <= width // 8 or lanes > 8:
        return None
    loads = [line for k in range(number) for line in load_row(k, count or 0, width)]
    return [*loads, *pick_from_registers(number, width, lanes)]


def count_registers(count: int | None, abilities: frozenset[str]) -> tuple[int, int]:
    """Return the number of floats in a register, and the number of registers that hold a row.

    The latter is 0 if the CPU cannot permute lanes, or if `count`, the number of features, is not
    known.
    """
    wide = "avx512f" in abilities and (count is None or count > 8 or "avx2" not in abilities)
    width = 16 if wide else 8
    can_pick = wide or "avx2" in abilities
    return width, -(-count // width) if can_pick and count is not None else 0


def load_row(place: int, count: int, width: int) -> list[str]:
    """Return IR lines that load register `place` of %row as %h<place>, but not past its end."""
    load = _write_masked_load(f"%r{place}", min(count - place * width, width), width)
    at = f"%r{place} = getelementptr float, ptr %row, i64 {place * width}"
    return [at, f"%h{place} = call {load}"]


def pick_from_registers(number: int, width: int, lanes: int) -> list[str]:
    """Return IR lines that set %x to the features %feature of a row, loaded by `load_row`."""
    widen = ", ".join(f"i32 {k}" if k < lanes else "i32 poison" for k in range(width))
    cut = ", ".join(f"i32 {k}" for k in range(lanes))
    index, vector = f"<{lanes} x i32>", f"<{width} x float>"
    lines = [f"%wide = shufflevector {index} %feature, {index} poison, <{width} x i32> <{widen}>"]
    each, places = width // 8, f"<{width} x i32> %wide"
    for k in range(0, number, each):
        first, *second = [f"{vector} %h{i}" for i in range(k, min(number, k + each))]
        name = "avx512.vpermi2var.ps.512" if second else "avx512.permvar.sf.512"
        call = f"call {vector} @llvm.x86.{name if width == 16 else 'avx2.permps'}"
        lines.append(f"%g{k // each} = {call}({', '.join([first, places, *second])})")
    lines += _choose(-(-number // each), width, (width * each).bit_length() - 1)
    return [*lines, f"%x = shufflevector {vector} %all, {vector} poison, {index} <{cut}>"]


def _choose(count: int, width: int, bit: int) -> list[str]:
    """Return IR lines that select %all from %g0, %g1, ... by the bits of %wide from `bit` on."""
    vector, places, zero = f"<{width} x float>", f"<{width} x i32>", "zeroinitializer"
    lines, names = list[str](), [f"%g{k}" for k in range(count)]
    while len(names) > 1:
        lines.append(f"%s{bit} = shl {places} %wide, splat (i32 {31 - bit})")
        lines.append(f"%m{bit} = icmp slt {places} %s{bit}, {zero}")
        for k in range(0, len(names) - 1, 2):
            chosen = f"{vector} {names[k + 1]}, {vector} {names[k]}"
            lines.append(f"{names[k]}s = select <{width} x i1> %m{bit}, {chosen}")
        pairs = [f"{name}s" for name in names[: len(names) & ~1 : 2]]
        names, bit = pairs + names[len(names) & ~1 :], bit + 1
    return [*lines, f"%all = bitcast {vector} {names[0]} to {vector}"]


def _write_masked_load(pointer: str, count: int, width: int) -> str:
    vector = f"<{width} x float>"
    mask = ", ".join(f"i1 {'true' if k < count else 'false'}" for k in range(width))
    name = f"@llvm.masked.load.v{width}f32.p0"
    return (
        f"{vector} {name}(ptr {pointer}, i32 4, <{width} x i1> <{mask}>, {vector} zeroinitializer)"
    )
