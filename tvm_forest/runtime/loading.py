"""Stored machine code, and the machine that it needs.

takes: nothing; gives: MachineCode, facts of this system, the instruction sets of its processor.

A shared library needs apache-tvm-ffi, but not TVM: the code of the thread pool is linked into it.
"""

from __future__ import annotations

import functools
import platform
import sys
from typing import Any, NamedTuple

from ..target import cpu_abilities
from .linked import read_version

INTERFACE = 9
"""Version of the calling convention of compiled functions.

Stored code of another version is compiled again.
"""

LINKED = "so"
"""Form of code: a shared library."""

KERNELS = "kernels"
"""Form of code: a KernelLibrary, for a GPU."""

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
"""LLVM's names of CPU features, by Linux's names, where more than underscores differ."""


class MachineCode(NamedTuple):
    """Machine code in a form that can be stored.

    Attributes:
        form: LINKED, a shared library, "ll", LLVM bitcode, or KERNELS.
        data: the code.
        made_for: the system, interfaces and instructions that it needs.
    """

    form: str
    data: bytes
    made_for: dict[str, Any]


@functools.cache
def known_instructions() -> frozenset[str]:
    """Return the CPU features that the system reports, by LLVM's names."""
    names = (LLVM_NAMES.get(flag, flag.replace("_", "")) for flag in cpu_abilities())
    return frozenset(name for text in names for name in text.split())


def describe_system() -> dict[str, Any]:
    """Return the facts about this system that must match before stored code may be loaded."""
    machine = {"system": sys.platform, "machine": platform.machine()}
    return {"interface": INTERFACE, **machine, "ffi": read_version()}
