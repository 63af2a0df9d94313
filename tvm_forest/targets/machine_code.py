"""Machine code: compiled, stored as bytes, and loaded again.

takes: lowered IRModule and Target; gives: a library. takes: a library; gives: MachineCode, and a
library again.

Where a compiler is at hand that can link, the code is a shared library, which loads in less than a
millisecond. Elsewhere it is LLVM bitcode, which TVM translates anew in about half a second.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import tvm
from tvm.support import cc

from ..gpu_runtime.library import KernelLibrary
from ..target import Target
from . import Library, cpu, cuda, opencl, rocm, simt

INTERFACE = 2
"""Counts the ways in which a Predictor has called compiled functions; code for others is made anew.
"""

LINKED = "so"
"""The form of code that is a shared library."""

KERNEL_TARGETS: dict[str, Any] = {module.KIND: module for module in (cuda, rocm, opencl, simt)}
"""The modules that compile kernels, by kind of target."""


class MachineCode(NamedTuple):
    """Code that can be stored.

    Attributes:
        form: LINKED, a shared library, "ll", LLVM bitcode, or "kernels", see KernelLibrary.
        data: the code.
        made_for: the TVM, system and instructions that it needs.
    """

    form: str
    data: bytes
    made_for: dict[str, Any]


_stored_code: WeakKeyDictionary[tvm.runtime.Executable, MachineCode] = WeakKeyDictionary()
"""Code of the libraries that were stored or loaded: a shared library cannot be written again."""

_writing = threading.Lock()
"""LLVM ends the process if two threads write one module."""


def compile_module(mod: tvm.IRModule, target: Target) -> Library:
    """Turn lowered functions into a library.

    Raises:
        InputError: an option of the target is unknown.
        BuildError: the compiler refuses them.
    """
    if target.kind in KERNEL_TARGETS:
        return KERNEL_TARGETS[target.kind].compile_module(mod, target)
    compile_for = cpu.compile_alone if target.is_elsewhere else cpu.compile_module
    return compile_for(mod, cpu.tvm_target(target))


def to_machine_code(library: Library, target: Target) -> MachineCode:
    """Return the code of a library that was compiled or loaded on this machine.

    Args:
        library: an executable, or kernels.
        target: what it was compiled for.
    """
    if isinstance(library, KernelLibrary):
        return MachineCode("kernels", library.to_bytes(), {})
    with _writing:
        if library not in _stored_code:
            needs = {**_machine(), "instructions": sorted(cpu.instructions(cpu.tvm_target(target)))}
            with tempfile.TemporaryDirectory() as folder:
                code = _link(library, Path(folder)) or _write_bitcode(library, Path(folder))
            _stored_code[library] = MachineCode(*code, needs)
        return _stored_code[library]


def describe(target: Target) -> str:
    """Return all that decides what becomes of lowered functions for a CPU, beside this package."""
    options = cpu.tvm_target(target)
    llvm = tvm.target.codegen.llvm_version_major()
    return f"{_machine()} LLVM {llvm} {options} {sorted(cpu.abilities(options))}"


def runs_here(made_for: dict[str, Any]) -> bool:
    """Return whether this machine and this TVM can run some code; kernels ask for none."""
    if not made_for:
        return True
    needs = dict(made_for)
    wanted = set(needs.pop("instructions"))
    return needs == _machine() and wanted <= cpu.instructions(cpu.tvm_target(Target()))


def load_library(code: MachineCode, target: Target) -> Library | None:
    """Return a library, or None if the system refuses, e.g. where no code may be loaded."""
    if code.form == "kernels":
        return KernelLibrary.from_bytes(code.data, KERNEL_TARGETS[target.kind].backend(target))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"code.{code.form}")
        try:
            file.write_bytes(code.data)
            library = tvm.runtime.Executable(tvm.runtime.load_module(str(file)))
        except (OSError, RuntimeError, ValueError):
            return None
    _stored_code[library] = code
    return library


def _link(library: tvm.runtime.Executable, folder: Path) -> tuple[str, bytes] | None:
    """Return form and bytes of a shared library, or None where no compiler can link one."""
    file = folder / "code.so"
    try:
        if cc.get_cc() is None:
            return None
        # Other libraries of the process may have symbols of the same names for all to see.
        options = ["-Wl,-Bsymbolic"] if sys.platform.startswith("linux") else []
        library.export_library(str(file), workspace_dir=str(folder), options=options)
    except (OSError, RuntimeError, ValueError):  # a compiler that cannot link is none
        return None
    return LINKED, file.read_bytes()


def _write_bitcode(library: tvm.runtime.Executable, folder: Path) -> tuple[str, bytes]:
    """Return form and bytes of LLVM bitcode."""
    file = folder / "code.bc"
    library.mod.write_to_file(str(file))
    return "ll", file.read_bytes()  # TVM loads it under this name only


def _machine() -> dict[str, Any]:
    system = {"tvm": tvm.__version__, "system": sys.platform, "machine": platform.machine()}
    return {**system, "interface": INTERFACE}
