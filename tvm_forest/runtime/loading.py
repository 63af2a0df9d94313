"""What stored machine code is, and what it needs of the machine at hand.

takes: nothing; gives: MachineCode, what this system is, and what its processor can do.

A shared library needs apache-tvm-ffi and nothing of TVM: the code of the pool is linked into it.
"""

from __future__ import annotations

import functools
import platform
import sys
from typing import Any, NamedTuple

from ..target import cpu_abilities
from .linked import read_version

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


@functools.cache
def known_instructions() -> frozenset[str]:
    """Return the features of the CPU that Linux reports, in LLVM's words."""
    names = (LLVM_NAMES.get(flag, flag.replace("_", "")) for flag in cpu_abilities())
    return frozenset(name for text in names for name in text.split())


def describe_system() -> dict[str, Any]:
    """Return what all code depends on that runs without TVM."""
    machine = {"system": sys.platform, "machine": platform.machine()}
    return {"interface": INTERFACE, **machine, "ffi": read_version()}
