"""C compilers: which one makes a library for a machine, and by which flags.

takes: Target, path; gives: Toolchain.

For another machine it is the one that `cc` names, the cross compiler of the system, such as
aarch64-linux-gnu-gcc, or Zig's, which `pip install ziglang` brings with the libraries of C for all
of them.
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ... import archive
from ...errors import BuildError, InputError
from ...target import Target

WHERE = "export_library"
AT_PATH = f"{WHERE}: argument 'path'"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-std=gnu11")
ELF_FLAGS = ("-shared", "-fPIC", "-Wl,-Bsymbolic")
WASM_FLAGS = (
    "-mexec-model=reactor",
    "-Wl,--strip-debug",
    "-Wl,--export=malloc",
    "-Wl,--export=free",
)

VERSION_SCRIPT = "{{ global: {prefix}*; __tvm_ffi_main; local: *; }};"
"""Tells the linker what other libraries of the process may see: nothing that TVM's code, which has
the same names for each model, defines or looks up."""

WASM_FUNCTIONS = ("error", "features", "outputs", "predict")
"""What a module of WebAssembly shows after the prefix, beside `malloc` and `free`."""

Command = str | Sequence[str] | None


class Toolchain(NamedTuple):
    """How a library is made.

    Attributes:
        command: a C compiler; empty where none is needed.
        suffix: ".so", ".wasm", or ".o" for the functions alone.
    """

    command: tuple[str, ...]
    suffix: str

    def link(self, prefix: str, folder: Path) -> list[str]:
        """Return the command up to the sources; it writes "linked" into the folder."""
        output = ["-o", str(folder / "linked")]
        if self.suffix == ".wasm":
            names = ("malloc", "free", *(prefix + name for name in WASM_FUNCTIONS))
            shown = [f"-Wl,--export={name}" for name in names]
            return [*self.command, *FLAGS, *WASM_FLAGS, *shown, *output]
        exports = folder / "version.map"
        exports.write_text(VERSION_SCRIPT.format(prefix=prefix), encoding="utf-8")
        return [*self.command, *FLAGS, *ELF_FLAGS, f"-Wl,--version-script={exports}", *output]


def check_suffix(target: Target, file: Path) -> None:
    """Raise InputError if a path does not end as what is made for a target."""
    library = ".wasm" if _triple_of(target).startswith("wasm32") else ".so"
    alone = " or, for the functions alone, '.o'" if target.is_elsewhere else ""
    if file.suffix != library and not (alone and file.suffix == ".o"):
        kinds = "shared libraries of Linux" if library == ".so" else "modules of WebAssembly"
        raise InputError(
            f"{AT_PATH}: {archive.shorten(str(file))} does not end with '{library}'{alone}; only "
            f"{kinds} are written, so give a name such as 'model{library}'"
        )


def find_toolchain(target: Target, file: Path, cc: Command) -> Toolchain:
    """Return what makes the library of a path, see `check_suffix`.

    Args:
        target: the machine.
        file: whose end says what is made.
        cc: a command, as text or in parts; None to look for one.

    Raises:
        InputError: cc is no command.
        BuildError: no compiler.
    """
    if file.suffix == ".o":
        return Toolchain((), ".o")
    triple, named = _triple_of(target), _split(cc)
    command = named or (_find_for(triple) if triple else _find_here())
    if command and shutil.which(command[0]) is not None:
        return Toolchain(command, file.suffix)
    missing = f", for there is no {named[0]!r}" if named else ""
    machine = f" for {triple}" if triple else ""
    remedy = "pip install ziglang, or name one by cc=" if triple else "install gcc"
    raise BuildError(
        f"{WHERE}: no C compiler that can link a library{machine} was found{missing}; {remedy}"
        + ("" if triple else ", or use Predictor.save")
    )


def _triple_of(target: Target) -> str:
    """Return LLVM's name of another machine; "" for the one at hand."""
    return str(dict(target.options)["mtriple"]) if target.is_elsewhere else ""


def _split(cc: Any) -> tuple[str, ...]:
    """Return the parts of a command, none for None."""
    parts = shlex.split(cc) if isinstance(cc, str) else [] if cc is None else cc
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise InputError(
            f"{WHERE}: argument 'cc': {cc!r:.100} is no command; give one such as "
            "'aarch64-linux-gnu-gcc', or a list of its parts"
        )
    return tuple(parts)


def _find_here() -> tuple[str, ...]:
    """Return a compiler for the machine at hand; only those of Linux make its libraries."""
    is_linux = sys.platform.startswith("linux")
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    return (found,) if found and is_linux else ()


def _find_for(triple: str) -> tuple[str, ...]:
    """Return a compiler for another machine; Zig has none for machines without a system."""
    parts = triple.split("-")
    short = "-".join([parts[0], *parts[-2:]])
    is_wasm, zig = parts[0] == "wasm32", _find_zig()
    names = () if is_wasm else (f"{triple}-gcc", f"{short}-gcc")
    gcc = next(filter(None, map(shutil.which, names)), None)
    if gcc is not None:
        return (gcc,)
    if not zig or parts[-1] == "elf":
        return ()
    return (*zig, "cc", "-target", "wasm32-wasi" if is_wasm else short)


def _find_zig() -> tuple[str, ...]:
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang")
    zig = shutil.which("zig")
    return (zig,) if zig else ()
