"""Stored machine code becomes a library again.

takes: MachineCode; gives: a library; what this system is, and what its processor can do.

A shared library needs apache-tvm-ffi and nothing of TVM: the code of the pool is linked into it.
"""

from __future__ import annotations

import functools
import platform
import sys
from pathlib import Path
from typing import Any, NamedTuple

import tvm_ffi

from ..target import cpu_abilities

INTERFACE = 5
"""Counts the ways in which a Predictor has called compiled functions; code for others is made anew.
"""

LINKED = "so"
"""The form of code that is a shared library."""

KERNELS = "kernels"
"""The form of code that is a KernelLibrary."""

LLVM_NAMES = {
    "3dnowprefetch": "prfchw",
    "abm": "lzcnt",
    "bmi1": "bmi",
    "fpu": "x87",
    "lahf_lm": "sahf",
    "lm": "64bit 64bit-mode",
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
}
"""How LLVM calls what Linux calls otherwise; other names differ by underscores alone."""


class MachineCode(NamedTuple):
    """Code that can be stored.

    Attributes:
        form: LINKED, a shared library, "ll", LLVM bitcode, or KERNELS.
        data: the code.
        made_for: the system, interfaces and instructions that it needs.
    """

    form: str
    data: bytes
    made_for: dict[str, Any]


class LinkedLibrary:
    """The functions of a shared library.

    Attributes:
        mod: the module of tvm_ffi that holds them.
        code: what was loaded.
    """

    def __init__(self, mod: Any, code: MachineCode) -> None:
        self.mod, self.code = mod, code

    def __getitem__(self, name: str) -> Any:
        """Return a function."""
        return self.mod.get_function(name)


def load_linked(code: MachineCode, file: Path) -> LinkedLibrary:
    """Return the library of some code, of which a file was written."""
    # It is unmapped when nothing holds it or a function of it any more.
    return LinkedLibrary(tvm_ffi.load_module(str(file), keep_module_alive=False), code)


@functools.cache
def known_instructions() -> frozenset[str]:
    """Return what Linux tells of the CPU at hand, in LLVM's words."""
    names = (LLVM_NAMES.get(flag, flag.replace("_", "")) for flag in cpu_abilities())
    return frozenset(name for text in names for name in text.split())


def describe_system() -> dict[str, Any]:
    """Return what all code depends on that runs without TVM."""
    ffi = ".".join(tvm_ffi.__version__.split(".")[:2])  # the versions of its binary interface
    machine = {"system": sys.platform, "machine": platform.machine()}
    return {"interface": INTERFACE, **machine, "ffi": ffi}
