"""Compiles machine code, and stores it as bytes; `stored_code` loads it.

takes: lowered IRModule and Target; gives: a library. takes: a library; gives: MachineCode.

Where a C compiler can link, the code is a shared library, which loads in less than a millisecond.
Elsewhere it is LLVM bitcode, which TVM translates again at each load, in about half a second.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import tvm
import tvm_ffi
from tvm.support import cc

from ..runtime import Library
from ..runtime.loading import LINKED, MachineCode, describe_system
from ..runtime.threads.pool_code import make_pool_object
from ..system.process.locks import make_lock
from ..system.process.scratch import make_folder
from ..target import Target
from . import cpu, cuda, opencl, rocm

TVM_VERSION: str = tvm.__version__

KERNEL_TARGETS: dict[str, Any] = {module.KIND: module for module in (cuda, rocm, opencl)}
"""The modules that compile kernels, by kind of target."""


_stored_code: WeakKeyDictionary[tvm.runtime.Executable, MachineCode] = WeakKeyDictionary()
"""Machine code of the executables that were stored, or loaded from bitcode, in this process."""

_writing = make_lock()
"""Lock, because LLVM ends the process if two threads write one module."""


def compile_module(mod: tvm.IRModule, target: Target) -> Library:
    """Compile lowered functions to a library, by the compiler of the target's kind.

    Raises:
        InputError: an option of the target is unknown.
        BuildError: the compiler refuses the functions.
    """
    if target.kind == "simt":
        return cpu.compile_threads(mod, target)
    if target.kind in KERNEL_TARGETS:
        return KERNEL_TARGETS[target.kind].compile_module(mod, target)
    compile_for = cpu.compile_alone if target.is_elsewhere else cpu.compile_module
    return compile_for(mod, cpu.tvm_target(target))


def write_machine_code(library: tvm.runtime.Executable, target: Target) -> MachineCode:
    """Return the code of an executable as a shared library or bitcode, which is made only once.

    Args:
        library: an executable that TVM compiled or loaded in this process.
        target: target that it was compiled for.

    Raises:
        BuildError: there is no room for temporary files.
    """
    with _writing:
        if library not in _stored_code:
            needs: dict[str, Any] = {
                "instructions": sorted(cpu.instructions(cpu.tvm_target(target)))
            }
            room = len(library.mod.inspect_source("ll"))  # six times the size of the machine code
            with make_folder("save", room) as folder:
                made = _link(library, folder)
            if made is None:
                with make_folder("save", room) as folder:
                    made = _write_bitcode(library, folder)
            form, data = made
            if form != LINKED:
                needs["tvm"] = TVM_VERSION
            _stored_code[library] = MachineCode(form, data, {**describe_system(), **needs})
        return _stored_code[library]


def describe(target: Target) -> str:
    """Return a text of all that decides machine code for a CPU, besides this package's sources."""
    options = cpu.tvm_target(target)
    llvm = tvm.target.codegen.llvm_version_major()
    return (
        f"{describe_system()} {TVM_VERSION} LLVM {llvm} {options} {sorted(cpu.abilities(options))}"
    )


def load_bitcode(code: MachineCode, file: Path) -> tvm.runtime.Executable:
    """Load a file with LLVM bitcode, which holds `code`, and return its library."""
    library = tvm.runtime.Executable(tvm_ffi.load_module(str(file), keep_module_alive=False))
    _stored_code[library] = code
    return library


def _link(library: tvm.runtime.Executable, folder: Path) -> tuple[str, bytes] | None:
    """Link a shared library; return its form and bytes, or None if nothing here can link it."""
    file = folder / "code.so"
    try:
        if sys.platform == "win32" or cc.get_cc() is None:  # MinGW cannot link such a library
            return None
        # Other libraries of the process may export symbols of the same names.
        options = ["-Wl,-Bsymbolic"] if sys.platform.startswith("linux") else []
        (folder / "pool.o").write_bytes(make_pool_object())
        options.append(str(folder / "pool.o"))
        library.export_library(str(file), workspace_dir=str(folder), options=options)
    except (OSError, RuntimeError, ValueError):  # a compiler that cannot link counts as none
        return None
    return LINKED, file.read_bytes()


def _write_bitcode(library: tvm.runtime.Executable, folder: Path) -> tuple[str, bytes]:
    """Write the LLVM bitcode of a library; return its form, "ll", and its bytes."""
    file = folder / "code.bc"
    library.mod.write_to_file(str(file))
    return "ll", file.read_bytes()  # TVM loads it under this name only
