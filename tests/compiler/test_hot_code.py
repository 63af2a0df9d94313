"""What the code of hot loops is made of, read in the assembly for CPUs that need not be at hand."""

from __future__ import annotations

import functools
import platform
import re

import pytest
import tvm

import tvm_forest
from forests import full_forest
from schedules import in_blocks
from tvm_forest.errors import BuildError
from tvm_forest.target import Target, parse_target
from tvm_forest.targets import cpu

TRIPLES = {"neoverse-v1": "aarch64-linux-gnu"}
LOADS = {
    "x86-64": r"movss\t\(",
    "x86-64-v2": r"insertps\t\$\d+, \(",
    "x86-64-v3": r"vinsertps\t\$\d+, \(",
    "neoverse-v1": r"ldr\ts\d+, \[x\d+, [xw]\d+",
}
"""Loads of leaves one by one."""
PLANES = {
    "x86-64": ("psadbw", "pxor"),
    "x86-64-v2": ("pmovmskb", "popcnt", "pxor"),
    "x86-64-v3": ("vpmovmskb", "popcnt", "vpackssdw", "ymm"),
    "cascadelake": ("vpternlog", "vperm(?:d|ps)", "zmm"),
    "icelake-server": ("vpternlog", "vperm(?:d|ps)", "zmm"),
    "znver4": ("vpternlog", "vperm(?:d|ps)", "zmm"),
    "neoverse-v1": ("addv", "eor"),
}
"""What codes rows, makes planes of codes and numbers of planes."""
IN_REGISTERS = {
    "x86-64-v3": (6, "vpshufb"),
    "cascadelake": (8, "vperm[it]2ps"),
    "icelake-server": (8, "vperm(?:[it]2)?b"),
    "znver4": (8, "vperm(?:[it]2)?b"),
    "neoverse-v1": (7, r"tb[lx]\t.*\{ v\d+\.16b, v\d+\.16b, v\d+\.16b, v\d+\.16b"),
}
"""The deepest trees whose leaves are looked up in registers, and by what."""
GATHER = re.compile(r"\tv?p?gather\w+\t|\tld1\w+\t.*\[[xz]\d+.*z\d+", re.MULTILINE)


def assembly(mcpu: str, depth: int) -> str:
    """Compile blocks of rows in bits for one CPU, whatever the one at hand is."""
    spec = {"kind": "llvm", "mcpu": mcpu, "mtriple": TRIPLES.get(mcpu, "x86_64-linux-gnu")}
    forest = full_forest(3, depth)
    sch = in_blocks(forest, "bitsliced", 512).parallel("b0")
    return tvm_forest.build(forest, spec, sch).source("asm")


@functools.cache
def functions(mcpu: str, depth: int) -> dict[str, str]:
    """Return the assembly of each function, by name."""
    text = assembly(mcpu, depth)
    parts = re.split(r"^(?:\.L)?(_\w+|predict\w+):", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def block_of(mcpu: str, depth: int) -> str:
    """The function of a block of rows."""
    made = functions(mcpu, depth)
    return next(made[name] for name in made if name.endswith("predict_parallel_0"))


def has(text: str, instruction: str) -> bool:
    return re.search(rf"\t(?:\w+\t.*)?{instruction}", text) is not None


CPUS = [(mcpu, depth) for mcpu in PLANES for depth in (6, 8)]


@pytest.mark.slow
@pytest.mark.parametrize(("mcpu", "depth"), CPUS)
@pytest.mark.cases(4)
def test_blocks_of_bits_are_made_of_the_instructions_that_a_cpu_is_fast_at(
    mcpu: str, depth: int
) -> None:
    text = block_of(mcpu, depth)
    assert [x for x in PLANES[mcpu] if not has(text, x)] == []
    most, look_up = IN_REGISTERS.get(mcpu, (0, ""))
    if depth <= most:
        assert has(text, look_up)
    else:
        assert has(text, LOADS[mcpu])
        assert not (look_up and has(text, look_up))
    assert not GATHER.search(text)


@pytest.mark.slow
@pytest.mark.parametrize("mcpu", ["x86-64-v3", "cascadelake", "x86-64-v2", "neoverse-v1"])
@pytest.mark.cases(1)
def test_one_thread_and_many_run_the_same_code_of_a_block(mcpu: str) -> None:
    made = functions(mcpu, 6)
    (block,) = (name for name in made if name.endswith("predict_parallel_0"))
    call = re.compile(rf"\t(?:callq?|jmp|bl?)\t\S*{block}\b")
    callers = {name for name, text in made.items() if call.search(text)}
    assert callers == {"__tvm_ffi_predict", "__tvm_parallel_lambda"}
    for name, text in made.items():
        assert name == block or not any(has(text, x) for x in ("psadbw", "vpternlog", "addv"))


@pytest.mark.slow
def test_a_block_gives_back_the_memory_that_it_has_taken() -> None:
    text = block_of("x86-64-v3", 6)
    assert "TVMBackendAllocWorkspace" in text
    assert "TVMBackendFreeWorkspace" in text


@pytest.mark.slow
def test_leaves_are_loaded_one_by_one_where_llvm_may_gather(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LLVM takes the gathers of this CPU for fast; others compile our code with their own flags."""
    monkeypatch.setattr(cpu, "NO_SLP", "-vectorize-slp:bool=1")
    monkeypatch.setattr(cpu, "NO_LOOPS", "-vectorize-loops:bool=1")
    text = assembly("skylake", 7)
    assert has(text, LOADS["x86-64-v3"])
    assert not GATHER.search(text)


def test_gathers_would_be_found() -> None:
    """Of LLVM's vectoriser, where it takes those of a CPU for fast."""
    lines = ("\tvgatherdps\t(%rax,%ymm1,4), %ymm0", "\tld1w\t{ z0.s }, p0/z, [x8, z1.s, uxtw #2]")
    assert all(map(GATHER.search, lines))
    assert not GATHER.search("\tvpermt2ps\t%zmm1\n\tld1r\t{ v0.4s }, [x8]\n\tldr\ts0, [x8]")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names a CPU of x86-64")
def test_what_a_virtual_machine_hides_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {"avx512f": False, "avx512dq": False, "avx512bw": False, "fma": False, "avxvnni": True}
    codegen = tvm.target.codegen
    monkeypatch.setattr(codegen, "llvm_get_system_cpu", lambda: "skylake-avx512")
    monkeypatch.setattr(cpu, "_find_features", lambda: hidden)
    here = cpu.tvm_target(Target())
    assert {x for x in cpu.abilities(here) if x.startswith(("avx512", "fma"))} == set()
    assert "avx2" in cpu.abilities(here)
    with pytest.raises(BuildError, match=r"\(skylake-avx512\) lacks avx512\w+.*leave 'mcpu' out"):
        cpu.tvm_target(parse_target({"kind": "llvm", "mcpu": "skylake-avx512"}))
    named = parse_target({"kind": "llvm", "mcpu": "x86-64-v2"})
    assert "avx2" not in cpu.abilities(cpu.tvm_target(named))
