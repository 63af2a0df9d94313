"""Stored machine code becomes a library again, without the compiler.

takes: MachineCode; gives: a library, or why it cannot run here; MachineCode again; what names the
machine at hand.

A shared library needs apache-tvm-ffi and nothing of TVM: the code of the pool is linked into it.
LLVM bitcode is for the TVM that wrote it, which translates it anew in about half a second.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tvm_ffi

from ..code_cache import CodeCache, find_cache
from ..errors import BuildError
from ..gpu_runtime.library import KernelLibrary
from ..late import import_late
from ..process.ending import is_waited_for
from ..process.locks import holds_off_forks
from ..process.scratch import make_folder
from ..target import Target, cpu_abilities, describe_cpu
from . import Library

if TYPE_CHECKING:
    from . import cpu, machine_code
else:
    cpu = import_late("tvm_forest.targets.cpu")
    machine_code = import_late("tvm_forest.targets.machine_code")

LOG = logging.getLogger(__name__)

INTERFACE = 4
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


@is_waited_for
@holds_off_forks
def to_machine_code(library: Library, target: Target) -> MachineCode:
    """Return the code of a library that was compiled or loaded on this machine.

    Args:
        library: what was loaded, an executable of TVM, or kernels.
        target: what it was compiled for.
    """
    if isinstance(library, KernelLibrary):
        return MachineCode(KERNELS, library.to_bytes(), {})
    if isinstance(library, LinkedLibrary):
        return library.code
    return machine_code.write_machine_code(library, target)


@is_waited_for
@holds_off_forks
def load_library(code: MachineCode, target: Target) -> Library | None:
    """Return a library, or None if the system refuses, e.g. where no code may be loaded."""
    if code.form == KERNELS:
        backend = machine_code.KERNEL_TARGETS[target.kind].backend(target)
        return KernelLibrary.from_bytes(code.data, backend)
    try:
        with make_folder("load_library") as folder:
            file = folder / f"code.{code.form}"
            file.write_bytes(code.data)
            if code.form != LINKED:
                return machine_code.load_bitcode(file, code)
            # It is unmapped when nothing holds it or a function of it any more.
            return LinkedLibrary(tvm_ffi.load_module(str(file), keep_module_alive=False), code)
    except (BuildError, OSError, RuntimeError, ValueError) as error:
        LOG.warning("compiled code cannot be loaded: %s", error)
        return None


def find_code_cache(target: Target) -> CodeCache | None:
    """Return the cache if it is on and keeps code for a target."""
    return find_cache() if target.kind == "llvm" and not target.is_elsewhere else None


def load_kept(cache: CodeCache, key: str, target: Target) -> Library | None:
    """Load a library of the cache; None if it is not there, or cannot run."""
    found = cache.read(key)
    if found is None or find_obstacle(found.manifest["made_for"]) is not None:
        return None
    form = found.manifest["form"]
    code = MachineCode(form, found.parts[f"code.{form}"], found.manifest["made_for"])
    return load_library(code, target)


def find_obstacle(made_for: dict[str, Any]) -> str | None:
    """Say why this machine cannot run some code; None if it can.

    Code has to be for this system and kind of processor, for these interfaces, and for instructions
    that the processor has, whoever makes it; bitcode also for this version of TVM. Kernels ask for
    nothing.
    """
    needs = dict(made_for)
    wanted = needs.pop("instructions", ())
    here = describe_system()
    for name in here if needs else ():
        if needs.pop(name, None) != here[name]:
            return f"it is for {name} {made_for.get(name)!r}, and here is {here[name]!r}"
    if "tvm" in needs and needs["tvm"] != machine_code.TVM_VERSION:
        return f"it is for tvm {needs['tvm']!r}, and here is {machine_code.TVM_VERSION!r}"
    missing = find_missing(wanted)
    return f"this CPU lacks {', '.join(sorted(missing))}" if missing else None


def find_missing(instructions: Iterable[str]) -> set[str]:
    """Return those of some instructions, in LLVM's words, that the CPU at hand does not have.

    What Linux tells is believed; LLVM is asked only where that does not answer.
    """
    missing = set(instructions) - _known_instructions()
    return missing and missing - cpu.instructions_here()


@functools.cache
def _known_instructions() -> frozenset[str]:
    """Return what Linux tells of the CPU at hand, in LLVM's words."""
    names = (LLVM_NAMES.get(flag, flag.replace("_", "")) for flag in cpu_abilities())
    return frozenset(name for text in names for name in text.split())


def describe_system() -> dict[str, Any]:
    """Return what all code depends on that runs without TVM."""
    ffi = ".".join(tvm_ffi.__version__.split(".")[:2])  # the versions of its binary interface
    machine = {"system": sys.platform, "machine": platform.machine()}
    return {"interface": INTERFACE, **machine, "ffi": ffi}


@functools.cache
def describe_machine() -> str:
    """Return what decides what becomes of a model for the CPU at hand, beside this package.

    TVM is named by the file in which it keeps its version: to ask it would be to import it. If it
    is imported already, what runs counts, and not a file that an upgrade has changed since.
    """
    found = importlib.util.find_spec("tvm")
    places = (found.submodule_search_locations if found is not None else None) or ()
    files = [Path(place, name) for place in places for name in ("_version.py", "libinfo.py")]
    version = next((file.read_text("utf-8") for file in files if file.is_file()), "")
    if found is not None and (not version or "tvm" in sys.modules):
        here = machine_code.TVM_VERSION
        version = version if repr(here) in version.replace('"', "'") else here
    return f"{describe_system()} {tvm_ffi.__version__} {describe_cpu()} {version}"
