"""Our own exponentials and logarithms for exported machine code.

takes: LLVM IR; gives: the same IR with our functions in place of those of a C library.

C libraries differ in the last bits: Zig's `expf` differs from glibc's for one float in ten.
Exported code calls none, so that it gives the same values wherever it runs. Code that runs in
Python calls the C library at hand, as the training libraries do.
"""

from __future__ import annotations

import functools
import re
import struct
from decimal import Decimal, localcontext
from pathlib import Path

from ..tir_gen.internals import names

FILE = Path(__file__).with_name("powers.ll")

ENTRIES = 128
"""Entries of the table of exponentials."""

POWER_OF_TWO = r"@llvm\.pow\.f(32|64)\((?:float|double) 2\.000000e\+00, "
"""Pattern of the call pow(2, x), which LLVM's optimiser replaces by exp2 unless it is off."""

NAME = re.compile(r"@([\w.]+)")


def with_own_functions(text: str) -> str:
    """Return LLVM IR that calls no power or logarithm of a C library.

    Our functions call `fma`, which is exact in every C library, and an instruction on processors
    that have it.
    """
    text = re.sub(POWER_OF_TWO, r"@llvm.exp2.f\1(", text)
    called = dict[str, tuple[str, int]]()

    def rename(found: re.Match[str]) -> str:
        power, lanes, bits, logarithm, short = found.groups()
        own = f"tvmf_{power or logarithm}_float{bits or (32 if short else 64)}"
        name = f"{own}_v{lanes}" if lanes else own
        called[name] = own, int(lanes or 0)
        return f"@{name}"

    text = re.sub(rf"^declare .*{names.POWER}.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(names.POWER, rename, text)
    if not called:
        return text
    added = [_apply_to_lanes(name, *own) for name, own in called.items() if own[1]]
    declared = set(re.findall(r"^declare .*?@([\w.]+)\(", text, flags=re.MULTILINE))
    return "\n".join([text, *added, *_collect({own for own, _ in called.values()}, declared)])


def _apply_to_lanes(name: str, own: str, lanes: int) -> str:
    """Return LLVM IR of the function `name`, which applies `own`, one of ours, to each lane.

    The lanes are those of a vector of `lanes` floats.
    """
    one = "float" if own.endswith("32") else "double"
    many, lines, made = f"<{lanes} x {one}>", list[str](), "poison"
    for k in range(lanes):
        lines += [
            f"  %x{k} = extractelement {many} %x, i64 {k}",
            f"  %y{k} = call {one} @{own}({one} %x{k})",
            f"  %made{k} = insertelement {many} {made}, {one} %y{k}, i64 {k}",
        ]
        made = f"%made{k}"
    head = f"define internal {many} @{name}({many} %x) noinline {{"
    return "\n".join([head, *lines, f"  ret {many} {made}", "}", ""])


def _collect(wanted: set[str], declared: set[str]) -> list[str]:
    """Return the texts of functions and of all that they use, except names already declared."""
    known, texts, waiting = _read_parts(), dict[str, str](), sorted(wanted)
    while waiting:
        name = waiting.pop()
        if name not in texts and name not in declared:
            texts[name] = known[name]
            waiting += [x for x in NAME.findall(known[name]) if x in known]
    return list(texts.values())


@functools.cache
def _read_parts() -> dict[str, str]:
    """Return the texts of our functions, their declarations and the table, by name."""
    parts = {"tvmf_powers": _write_table()}
    text = re.sub(r" *;.*", "", FILE.read_text("ascii"))
    for part in re.split(r"^(?=define|declare)", text, flags=re.MULTILINE)[1:]:
        parts[NAME.findall(part)[0]] = part
    return parts


def _write_table() -> str:
    """Return the table of powers of two that exponentials look up, as LLVM IR."""
    entries = (f"[2 x i64] [i64 {beyond}, i64 {bits}]" for beyond, bits in list_powers())
    kind = f"[{ENTRIES} x [2 x i64]]"
    return f"@tvmf_powers = internal constant {kind} [{', '.join(entries)}]\n"


def list_powers() -> list[tuple[int, int]]:
    """Return two 64-bit integers for each power 2^(i / 128), i from 0 to 127.

    They are the bits of two float64 numbers: the relative error of the float64 nearest to the
    power, and that float64. From the latter, (i << 52) / 128 is subtracted: adding (k << 52) / 128
    for k = 128 n + i then gives the bits of 2^(k / 128).
    """
    entries = []
    with localcontext() as context:
        context.prec = 50
        for i in range(ENTRIES):
            power = Decimal(2) ** (Decimal(i) / ENTRIES)
            near = float(power)
            beyond = float(power / Decimal(near) - 1)
            entries.append((_bits_of(beyond), _bits_of(near) - (i << 52) // ENTRIES))
    return entries


def _bits_of(x: float) -> int:
    return int.from_bytes(struct.pack("<d", x), "little", signed=True)
