"""Texts that TVM writes of our functions, as they are before we change them."""

from __future__ import annotations

import functools
from typing import Any

import tvm
import tvm_ffi

import tvm_forest
from forests import drawn_forest

SYSTEMS = {"llvm": "x86_64-linux-gnu", "windows": "x86_64-pc-windows-gnu"}
"""Machines for which LLVM's text is written, whatever is at hand."""

KERNELS: dict[str, Any] = {
    "cuda": "cuda",
    "opencl": "opencl",
    "rocm": {"kind": "rocm", "mcpu": "gfx942"},
}
"""Targets whose kernels TVM writes, by kind."""


@functools.cache
def text_of(kind: str) -> str:
    """Return the text of a small forest for a kind of the table."""
    if kind in KERNELS:
        return _hear(kind)
    forest = drawn_forest(12, 4, base=(0.5,), link="log1p_exp")
    target = {"kind": "llvm", "mtriple": SYSTEMS[kind]}
    schedule = tvm_forest.new_schedule(forest).tile("batch", "b0", "b1", 64)
    schedule = schedule.parallel("b0").cache("b0")  # rows that lie in memory of the heap
    return str(tvm_forest.build(forest, target, schedule).source("ll"))


def _hear(kind: str) -> str:
    """Return the first text that TVM's code generator gives while a forest is built."""
    name, heard = f"target.build.{kind}", list[str]()
    theirs = tvm.get_global_func(name)

    def listen(mod: Any, target: Any) -> Any:
        made = theirs(mod, target)
        heard.append(str(made.inspect_source("llvm" if kind == "rocm" else "")))
        return made

    tvm_ffi.register_global_func(name, listen, override=True)
    try:
        tvm_forest.build(drawn_forest(12, 4), KERNELS[kind])
    finally:
        tvm_ffi.register_global_func(name, theirs, override=True)
    return heard[0]
