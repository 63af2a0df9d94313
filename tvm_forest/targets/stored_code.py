"""Converts libraries to MachineCode for storage, and back.

takes: a library; gives: MachineCode. takes: MachineCode; gives: a library, or the reason why this
machine cannot run it. Also gives a text that describes this machine, for keys of the cache.

The compiler is imported only where `runtime.loading` does not suffice. LLVM bitcode can only be
loaded by the version of TVM that wrote it, which translates it again in about half a second.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BuildError
from ..runtime import Library
from ..runtime.linked import LinkedLibrary
from ..runtime.loading import KERNELS, LINKED, MachineCode, describe_system, known_instructions
from ..system.code_cache import CodeCache, find_cache
from ..system.late import import_late
from ..system.process.ending import is_waited_for
from ..system.process.locks import holds_off_forks
from ..system.process.scratch import make_folder
from ..target import Target, describe_cpu

if TYPE_CHECKING:
    import tvm_ffi

    from ..runtime.gpu import library as kernels
    from . import backends, cpu, machine_code
else:
    tvm_ffi = import_late("tvm_ffi")
    backends = import_late("tvm_forest.targets.backends")
    cpu = import_late("tvm_forest.targets.cpu")
    kernels = import_late("tvm_forest.runtime.gpu.library")
    machine_code = import_late("tvm_forest.targets.machine_code")

LOG = logging.getLogger(__name__)


@is_waited_for
@holds_off_forks
def to_machine_code(library: Library, target: Target) -> MachineCode:
    """Return the code of a library that was compiled or loaded on this machine.

    Args:
        library: a loaded library, an executable of TVM, or a library of kernels.
        target: target that it was compiled for.

    Raises:
        BuildError: there is no room for temporary files.
    """
    if target.on_gpu and isinstance(library, kernels.KernelLibrary):
        return MachineCode(KERNELS, library.to_bytes(), {})
    if isinstance(library, LinkedLibrary):
        return library.code
    return machine_code.write_machine_code(library, target)


@is_waited_for
@holds_off_forks
def load_library(code: MachineCode, target: Target) -> Library | None:
    """Load code; return None, with a warning in the log, if the system refuses to load it."""
    if code.form == KERNELS:
        return kernels.KernelLibrary.from_bytes(code.data, backends.find_backend(target))
    try:
        with make_folder("load_library") as folder:
            file = folder / f"code.{code.form}"
            file.write_bytes(code.data)
            load = LinkedLibrary if code.form == LINKED else machine_code.load_bitcode
            return load(code, file)
    except (BuildError, OSError, RuntimeError, ValueError) as error:
        LOG.warning("compiled code cannot be loaded: %s", error)
        return None


def find_code_cache(target: Target) -> CodeCache | None:
    """Return the cache for a target's code; None if it is off or the target is not cached.

    Only code for the CPU at hand is cached.
    """
    return find_cache() if target.kind == "llvm" and not target.is_elsewhere else None


def load_kept(cache: CodeCache, key: str, target: Target) -> Library | None:
    """Load a library from the cache; return None if there is none, or if it cannot run here."""
    found = cache.read(key)
    if found is None or find_obstacle(found.manifest["made_for"]) is not None:
        return None
    form = found.manifest["form"]
    code = MachineCode(form, found.parts[f"code.{form}"], found.manifest["made_for"])
    return load_library(code, target)


def find_obstacle(made_for: dict[str, Any]) -> str | None:
    """Return the reason why this machine cannot run some code; None if it can.

    The system, the processor's architecture and the interfaces must be equal, and the processor,
    of any maker, must have the instruction sets; bitcode also needs this version of TVM. Kernels
    have no requirements.
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
    """Return those of some instruction sets, by LLVM's names, that this CPU lacks.

    Linux's list of CPU features is used first; LLVM is queried only for features not in it.
    """
    missing = set(instructions) - known_instructions()
    return missing and missing - cpu.instructions_here()


@functools.cache
def describe_machine() -> str:
    """Return a text of all facts about this machine that decide code, besides this package.

    The versions of TVM and apache-tvm-ffi are read from their files, which is faster than importing
    them. If a package is already imported, the version that runs counts: an upgrade may have
    changed the file since.
    """
    packages = (
        _describe_package("tvm_ffi", lambda: tvm_ffi.__version__),
        _describe_package("tvm", lambda: machine_code.TVM_VERSION),
    )
    return f"{describe_system()} {describe_cpu()} {packages}"


def _describe_package(name: str, ask: Callable[[], str]) -> str:
    """Return a text with the version of a package; "" if it is not installed.

    `ask` returns the version of the imported package.
    """
    found = importlib.util.find_spec(name)
    places = (found.submodule_search_locations if found is not None else None) or ()
    files = [Path(place, name) for place in places for name in ("_version.py", "libinfo.py")]
    version = next((file.read_text("utf-8") for file in files if file.is_file()), "")
    if found is not None and (not version or name in sys.modules):
        here = ask()
        version = version if repr(here) in version.replace('"', "'") else here
    return version
