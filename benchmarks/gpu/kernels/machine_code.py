"""The instructions of a kernel for sm_90, outside and inside of its loop over trees.

takes: CUDA text; gives: Code. Needs nvcc and nvdisasm, which `cycles` says how to have.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tvm_forest.runtime.gpu.cuda_compiler import OPTIONS, find_nvcc

ALU = {
    *("IADD3", "VIADD", "LOP3", "ISETP", "SEL", "SHF", "LEA", "PRMT", "FSETP", "FSEL", "VIMNMX"),
    *("IMNMX", "FMNMX", "PLOP3", "P2R", "R2P", "MOV", "VIADDMNMX", "SGXT", "BMSK", "IABS", "DSETP"),
}
LOADS = {"LDS", "LDG", "STS", "STG", "LD", "ST"}
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*);")


class Code(NamedTuple):
    """Machine code of a kernel.

    Attributes:
        outside: its instructions outside of the loop over trees.
        loop: those of that loop, for one walk.
        registers, shared: of a thread, and bytes of a block.
    """

    outside: Counter[str]
    loop: Counter[str]
    registers: int
    shared: int


class Uncounted(Exception):
    """Machine code in which the loop over trees is not found."""


def find_tool(name: str) -> str:
    """Return the path of a tool of CUDA."""
    spec = find_spec("triton")
    folders = [f"{x}/backends/nvidia/bin" for x in (spec and spec.submodule_search_locations) or ()]
    path = shutil.which(name) or next(
        filter(None, (shutil.which(name, path=x) for x in (*folders, "/usr/local/cuda/bin"))), None
    )
    if path is None:
        raise SystemExit(f"no {name} found; install CUDA's, or pip install triton, which has one")
    return path


def read_code(source: str, kernel: str, walks: float = 0, turns: int | None = None) -> Code:
    """Compile CUDA text for sm_90 and count the instructions of a kernel.

    Args:
        walks: walks of an iteration of the loop over trees; 0 for as many as leaves are added.
        turns: of that loop, if leaves are kept there, and added behind it in the order of the
            model: it has as many walks as stores.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise SystemExit("no nvcc found; install CUDA's, or pip install nvidia-cuda-nvcc")
    with tempfile.TemporaryDirectory() as folder:
        text, cubin = Path(folder, "kernels.cu"), Path(folder, "kernels.cubin")
        text.write_text(source, encoding="utf-8")
        command = [nvcc, "-cubin", "-arch=sm_90", "-std=c++17", "-Xptxas", "-v", *OPTIONS]
        done = subprocess.run(
            [*command, "-o", str(cubin), str(text)], capture_output=True, text=True, check=True
        )
        show = [find_tool("nvdisasm"), "-c", str(cubin)]
        said = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    use = re.search(rf"function '{kernel}' for.*?Used (\d+) registers([^\n]*)", done.stderr, re.S)
    assert use is not None, done.stderr
    shared = re.search(r"(\d+) bytes smem", use[2])
    part = said[said.index(f".text.{kernel}:") :]
    part = part[: part.find(".section", 1)]
    names, labels, jumps = list[str](), dict[str, int](), list[tuple[int, str]]()
    for line in part.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(names)
        elif found := INSTRUCTION.match(line):
            if found[1] == "BRA" and (to := re.search(r"`\((\.L_x_\d+)\)", found[2])):
                jumps.append((len(names), to[1]))
            names.append(found[1].split(".")[0])
    loops = [(labels[to], at + 1) for at, to in jumps if labels.get(to, at) < at]
    begin, end = _find_adding(names, loops) if turns is None else _find_walks(names, loops, turns)
    inner = [x for x in loops if begin <= x[0] and x[1] <= end and x != (begin, end)]
    body = Counter(names[begin:end])
    kept = body["STS"] + body["STG"] if turns is not None else 0
    added = walks or kept or body["FADD"] + body["DADD"]
    if not added:
        raise Uncounted("the machine code has several loops over trees, for four, two and one")
    loop = Counter({name: count / added for name, count in body.items()})
    if inner:  # the hops of a walk, whose rows are loaded from shared memory: once in `loop`
        part = names[slice(*_busiest(inner, names))]
        turns = added * max(1, part.count("LDS") / (1 if "LDG" in part else 2))
        loop = Counter({name: max(0, n - part.count(name) / added) for name, n in loop.items()})
        loop["hop"], loop["hop ALU"] = len(part) / turns, sum(x in ALU for x in part) / turns
    return Code(Counter(names) - body, loop, int(use[1]), int(shared[1]) if shared else 0)


def _find_adding(names: list[str], loops: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the innermost loop that walks trees and adds up leaves; all if there is none."""
    adding = [x for x in loops if {"FADD", "DADD"} & set(names[slice(*x)])]
    adding = [x for x in adding if "SHFL" not in names[slice(*x)]]  # the sums of a row meet there
    with_loads = [x for x in adding if set(names[slice(*x)]) & {"LDS", "LDG"}] or [(0, len(names))]
    return _busiest(with_loads, names)


def _find_walks(names: list[str], loops: list[tuple[int, int]], turns: int) -> tuple[int, int]:
    """Return the loop of walks whose leaves are kept: between two barriers, or all that is there.

    That is where most is loaded from memory of the device, and nothing is added.
    """
    barriers = [-1, *(k for k, name in enumerate(names) if name == "BAR"), len(names)]
    parts = [(first + 1, last) for first, last in pairwise(barriers)]
    walks = max(parts, key=lambda x: names[slice(*x)].count("LDG"))
    inside = [x for x in loops if walks[0] <= x[0] and x[1] <= walks[1]]
    return max(inside, key=lambda x: x[1] - x[0]) if inside and turns > 1 else walks


def _busiest(loops: list[tuple[int, int]], names: list[str]) -> tuple[int, int]:
    """Return the innermost of the loops that has most loads."""
    innermost = [
        x for x in loops if not any(x[0] <= y[0] and y[1] <= x[1] and x != y for y in loops)
    ]
    return max(innermost, key=lambda x: sum(name in LOADS for name in names[slice(*x)]))
