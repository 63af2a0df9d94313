"""Lists the instruction sets that a library's code needs, for the check in `processor.c`.

takes: Target; gives: the macro that lists those that not every processor has.
"""

from __future__ import annotations

from ...target import Target
from ...targets import cpu

AVX, AVX512, APX = 0x6, 0xE6, 0x80000
"""Masks for the register XCR0, whose bits are set for registers that the system saves: vectors of
256 bits, vectors of 512 bits, and general registers 16 to 31."""

X86 = {
    (1, 0, "c"): "sse3 0, ssse3 9, cx16 13, sse4.1 19, sse4.2 20, movbe 22, popcnt 23",
    (7, 0, "b"): "bmi 3, bmi2 8, adx 19",
    (7, 0, "c"): "gfni 8",
    (0x80000001, 0, "c"): "sahf 0, lzcnt 5, sse4a 6, prfchw 8, lwp 15, tbm 21",
    (7, 1, "a"): "cmpccxadd 7, movrs 31",
}
X86_AVX = {
    (1, 0, "c"): "fma 12, avx 28, f16c 29",
    (7, 0, "b"): "avx2 5",
    (7, 1, "a"): "avxvnni 4, avxifma 23",
    (7, 1, "d"): "avxvnniint8 4, avxneconvert 5, avxvnniint16 10",
    (0x80000001, 0, "c"): "xop 11, fma4 16",
}
X86_AVX512 = {
    (7, 0, "b"): "avx512f 16, avx512dq 17, avx512ifma 21, avx512cd 28, avx512bw 30, avx512vl 31",
    (7, 0, "c"): (
        "avx512vbmi 1, avx512vbmi2 6, avx512vnni 11, avx512bitalg 12, avx512vpopcntdq 14"
    ),
    (7, 0, "d"): "avx512vp2intersect 8, avx512fp16 23",
    (7, 1, "a"): "avx512bf16 5",
    (7, 1, "d"): "avx10.1 19",
    (0x24, 0, "b"): "avx10.2 1",
}
X86_APX = {(7, 1, "d"): "ccmp 21, egpr 21, ndd 21, nf 21, ppx 21, push2pop2 21, zu 21"}
"""For leaf, subleaf and register of `cpuid`: LLVM's names of instruction sets, and their bits."""

TABLES = {0: X86, AVX: X86_AVX, AVX512: X86_AVX512, APX: X86_APX}

BASELINE = frozenset("64bit 64bit-mode cmov cx8 mmx nopl sse sse2 x87".split())
"""Instruction sets that every x86-64 processor has."""

AARCH64 = (
    (
        "crc 7, lse 8, fullfp16 9, rdm 12, jsconv 13, complxnum 14, rcpc 15, dotprod 20, sve 22, "
        "fp16fml 23, lse2 25, rcpc-immo 26, flagm 27"
    ),
    "sve2 1, altnzcv 7, fptoint 8, i8mm 13, bf16 14, cssc 34, mops 43, rcpc3 46",
)
RISCV = ("v 21",)
"""The same for the words AT_HWCAP and AT_HWCAP2, which Linux passes to programs. Instruction sets
without a bit in them are not checked."""


def list_abilities(target: Target) -> str:
    """Return the value of the macro `ABILITIES(A)` for a CPU target, see `processor.c`."""
    options = dict(target.options)
    needed = cpu.instructions(cpu.tvm_target(target))
    triple = str(options.get("mtriple", ""))
    found = list[str]()
    if triple.startswith(("aarch64", "riscv")):
        words = AARCH64 if triple.startswith("aarch64") else RISCV
        for word, text in enumerate(words):
            found += [f'A("{name}", {word}, {bit})' for name, bit in _read(text) if name in needed]
    elif needed & {"64bit"}:
        for state, table in TABLES.items():
            for (leaf, part, register), text in table.items():
                place = f"{leaf}, {part}, {'abcd'.index(register)}"
                bits = [each for each in _read(text) if each[0] in needed]
                found += [f'A("{name}", {place}, {bit}, {state})' for name, bit in bits]
    return " ".join(found)


def _read(text: str) -> list[tuple[str, int]]:
    """Return each instruction set and its bit, from a text of a table such as "fma 12, avx 28"."""
    pairs = (pair.split() for pair in text.split(", "))
    return [(name, int(bit)) for name, bit in pairs]
