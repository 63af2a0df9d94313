"""Our own exponentials and logarithms for exported machine code.

takes: LLVM's text of functions; gives: the same with our functions in place of a C library's.

C libraries have other last bits: Zig's `expf` differs from glibc's for one float in ten. Code that
is exported calls none, so that a library gives the same values wherever it runs. Python calls the
C library at hand, as the training libraries do.
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
"""LLVM's replacement for exp2 unless optimisation is off."""

NAME = re.compile(r"@([\w.]+)")


def with_own_functions(text: str) -> str:
    """Return LLVM IR that calls no function of a C library except `fma`.

    That is exact everywhere, and an instruction where a processor has it.
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
    """Return a function that applies one of ours to each vector lane."""
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
    """Return the texts of functions and their dependencies that are not declared yet."""
    known, texts, waiting = _read_parts(), dict[str, str](), sorted(wanted)
    while waiting:
        name = waiting.pop()
        if name not in texts and name not in declared:
            texts[name] = known[name]
            waiting += [x for x in NAME.findall(known[name]) if x in known]
    return list(texts.values())


@functools.cache
def _read_parts() -> dict[str, str]:
    """Return the texts of functions, declarations and the table, by name."""
    parts = {"tvmf_powers": _write_table()}
    text = re.sub(r" *;.*", "", FILE.read_text("ascii"))
    for part in re.split(r"^(?=define|declare)", text, flags=re.MULTILINE)[1:]:
        parts[NAME.findall(part)[0]] = part
    return parts


def _write_table() -> str:
    """Return the table of exponentials as LLVM IR."""
    entries = (f"[2 x i64] [i64 {beyond}, i64 {bits}]" for beyond, bits in list_powers())
    kind = f"[{ENTRIES} x [2 x i64]]"
    return f"@tvmf_powers = internal constant {kind} [{', '.join(entries)}]\n"


def list_powers() -> list[tuple[int, int]]:
    """Return the bits of 2^(i / 128): what it is beyond a double, as its share, and a double.

    The bits of the double are less i / 128 of the step of an exponent, so that whole numbers of
    steps of 1 / 128 can be added to them.
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
