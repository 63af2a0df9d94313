"""Finds the C compiler for a library, and runs it with the flags that the library needs.

takes: Target, path; gives: Toolchain.

The compiler is the one that the argument `cc` names; otherwise the system's, or a cross compiler
such as aarch64-linux-gnu-gcc for another machine; otherwise Zig's, which `pip install ziglang`
installs together with C libraries for all machines.
"""

from __future__ import annotations

import importlib.util
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import BuildError, InputError
from ...system import archive
from ...target import Target

WHERE = "export_library"
AT_PATH = f"{WHERE}: argument 'path'"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-std=gnu11", "-fvisibility=hidden")
WASM_FLAGS = (
    "-mexec-model=reactor",
    "-Wl,--strip-debug",
    "-Wl,--export=malloc",
    "-Wl,--export=free",
)
WASM_FUNCTIONS = (
    *(
        "error",
        "check",
        "features",
        "outputs",
        "types",
        "predict",
        "predict_labels",
        "labels",
        "classes",
    ),
    *("categories", "feature_name", "class_name", "category_name"),
)
"""Functions that a WebAssembly module exports, without the prefix, besides `malloc` and `free`."""

SHARED = {".so": ("-Wl,-Bsymbolic",), ".dll": (), ".dylib": ()}
"""Suffixes of shared libraries, and linker flags for each."""

WINDOWS_FLAGS = ("-DWITHOUT_MINGW", "-D__USE_MINGW_ANSI_STDIO=0")
WINDOWS_LIBRARIES = (
    *("-nostdlib", "-lkernel32"),
    *(
        f"-lapi-ms-win-crt-{part}-l1-1-0"
        for part in (
            *("convert", "environment", "heap", "math", "private", "runtime", "stdio", "string"),
            *("time", "utility"),
        )
    ),
)
"""Flags for a .dll by Zig, which knows what Windows' libraries hold without any of their code.

With its usual flags, Zig compiles hundreds of files of MinGW's C library when it is first used,
which takes minutes. What a .dll needs of that is in `windows.c`.
"""

KINDS = {
    "Linux": (".so", ".a", ".o", ".zip"),
    "Windows": (".dll", ".a", ".zip"),
    "macOS": (".dylib", ".a", ".o", ".zip"),
    "WebAssembly": (".wasm", ".zip"),
}
"""Suffixes of the files that can be made for each system. "Linux" includes machines without a
system. For Windows, the linker cannot join object files into one."""

OLDEST_MACOS = "11.0"
"""Default macOS version of libraries: the first that runs on Apple's own CPUs."""

Command = str | Sequence[str] | None


class Toolchain(NamedTuple):
    """A C compiler with its flags.

    Attributes:
        command: the compiler's command in parts; empty if none is needed.
        suffix: suffix of the file to make, see KINDS.
        baseline: flags for code that every processor of the kind runs, whatever the compiler's
            default is.
    """

    command: tuple[str, ...]
    suffix: str
    baseline: tuple[str, ...]

    def build(self, folder: Path, prefix: str, name: str, more: Sequence[str] = ()) -> bytes:
        """Compile the sources in a folder, and return the bytes of the library.

        Args:
            folder: folder that `write_sources` filled; temporary files are written there, too.
            prefix: beginning of its functions' names.
            name: file name of the library, which some formats store in the file.
            more: names, without the prefix, of functions that a module of WebAssembly shows beside
                WASM_FUNCTIONS.

        Raises:
            BuildError: the compiler fails.
        """
        made, code = folder / "made" / name, folder / "code.o"  # a .dll holds its name
        made.parent.mkdir()
        objects = [str(code)] if code.exists() else []
        command = [*self.command, *FLAGS, *self.baseline, f"-I{folder}"]
        data = (folder / "data.bin").as_posix()  # a backslash would begin an escape
        command += [f'-DDATA="{data}"', f"-DENTRY={int(self.suffix in SHARED)}"]
        source, library = str(folder / "library.c"), str(folder / "library.o")
        if self.suffix == ".a":
            _run([*command, "-fPIC", "-c", source, "-o", library], self.command)
            _run([*_find_archiver(self.command), "rcs", str(made), library, *objects], self.command)
        elif self.suffix == ".o":
            joined = ["-fPIC", "-r", "-nostdlib", source, *objects, "-o", str(made)]
            _run([*command, *joined], self.command)
        elif self.suffix == ".wasm":
            names = ("malloc", "free", *(prefix + name for name in (*WASM_FUNCTIONS, *more)))
            shown = [f"-Wl,--export={name}" for name in names]
            linked = [*WASM_FLAGS, *shown, source, *objects, "-lm", "-o", str(made)]
            _run([*command, *linked], self.command)
        elif self.suffix == ".dll" and _is_zig(self.command):
            _run([*command, *WINDOWS_FLAGS, "-c", source, "-o", library], self.command)
            linked = ["-shared", library, *objects, "-o", str(made), *WINDOWS_LIBRARIES]
            _run([*self.command, *FLAGS, *self.baseline, *linked], self.command)
        else:
            flags = ["-shared", *SHARED[self.suffix], *self._flags_of_system(name)]
            _run([*command, *flags, source, *objects, "-o", str(made), "-lm"], self.command)
        return made.read_bytes()

    def _flags_of_system(self, name: str) -> list[str]:
        if self.suffix == ".dylib":
            return ["-fPIC", f"-Wl,-install_name,@rpath/{name}"]
        return ["-fPIC", "-pthread", "-ldl"] if self.suffix == ".so" else []


def _run(command: Sequence[str], shown: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{WHERE}: {' '.join(shown)} fails: {done.stderr.strip()[-2000:]}")


def _find_archiver(command: tuple[str, ...]) -> list[str]:
    """Return the command of the archiver `ar` that belongs to a compiler."""
    if _is_zig(command):
        return [*command[: command.index("cc")], "ar"]
    asked = [*command, "-print-prog-name=ar"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return [found or "ar"]


def check_suffix(target: Target, file: Path) -> None:
    """Raise InputError if the suffix of a path is not one of the target's system, see KINDS."""
    system = system_of(target)
    kinds = KINDS[system]
    if file.suffix not in kinds:
        raise InputError(
            f"{AT_PATH}: {archive.shorten(str(file))} does not end with "
            f"{', '.join(map(repr, kinds[:-1]))} or {kinds[-1]!r}, which are what is made for "
            f"{system}; give a name such as 'model{kinds[0]}', or a target with the 'mtriple' of "
            "another machine"
        )


def find_toolchain(target: Target, file: Path, cc: Command) -> Toolchain:
    """Return the toolchain for a library.

    Args:
        target: the machine that the library is for.
        file: path of the library, whose suffix `check_suffix` has checked.
        cc: a compiler's command, as text or in parts; None to look for one.

    Raises:
        InputError: cc is not a command.
        BuildError: no compiler was found.
    """
    triple, named = _triple_of(target), _split(cc)
    architecture = triple.partition("-")[0] or platform.machine().lower()
    baseline = ("-march=x86-64",) if architecture in ("x86_64", "amd64") else ()
    if file.suffix == ".zip":
        return Toolchain((), ".zip", baseline)
    command = named or (_find_for(triple) if triple else _find_here())
    if command and shutil.which(command[0]) is not None:
        is_zig = bool(baseline) and _is_zig(command)
        return Toolchain(command, file.suffix, ("-mcpu=x86_64",) if is_zig else baseline)
    missing = f", for there is no {named[0]!r}" if named else ""
    machine = f" for {triple}" if triple else ""
    raise BuildError(
        f"{WHERE}: no C compiler that can link a library{machine} was found{missing}; "
        "pip install ziglang, " + ("or name one by cc=" if triple else "or use Predictor.save")
    )


def _triple_of(target: Target) -> str:
    """Return the LLVM triple of another machine; "" for this machine."""
    return str(dict(target.options)["mtriple"]) if target.is_elsewhere else ""


def system_of(target: Target) -> str:
    """Return the operating system of a target, one of the keys of KINDS."""
    triple = _triple_of(target) or sys.platform
    if triple.startswith("wasm32"):
        return "WebAssembly"
    if "macos" in triple or "darwin" in triple:
        return "macOS"
    return "Windows" if "windows" in triple or triple == "win32" else "Linux"


def _split(cc: Any) -> tuple[str, ...]:
    """Return the parts of a command; no parts for None.

    Raises:
        InputError: it is not a command.
    """
    parts = shlex.split(cc) if isinstance(cc, str) else [] if cc is None else cc
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise InputError(
            f"{WHERE}: argument 'cc': {cc!r:.100} is no command; give one such as "
            "'aarch64-linux-gnu-gcc', or a list of its parts"
        )
    return tuple(parts)


def _find_here() -> tuple[str, ...]:
    """Return the command of a compiler for this machine, on Windows Zig's; () if there is none."""
    zig = _find_zig()
    if sys.platform == "win32":
        return (*zig, "cc", "-target", "x86_64-windows-gnu") if zig else ()
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None and zig:
        return (*zig, "cc")
    return (found,) if found else ()


def _find_for(triple: str) -> tuple[str, ...]:
    """Return the command of a compiler for another machine; () if there is none.

    Zig's cannot link for machines without a system.
    """
    parts = triple.split("-")
    short = "-".join([parts[0], *parts[-2:]])
    is_wasm, zig = parts[0] == "wasm32", _find_zig()
    names = () if is_wasm else (f"{triple}-gcc", f"{short}-gcc")
    gcc = next(filter(None, map(shutil.which, names)), None)
    if gcc is not None:
        return (gcc,)
    if not zig or parts[-1] == "elf":
        return ()
    if parts[-1].startswith("macos"):
        version = parts[-1].removeprefix("macos") or OLDEST_MACOS
        short = f"{parts[0]}-macos.{version if '.' in version else f'{version}.0'}"
    return (*zig, "cc", "-target", "wasm32-wasi" if is_wasm else short)


def _is_zig(command: tuple[str, ...]) -> bool:
    """Return whether a command runs Zig's compiler, whose flags and tools have other names."""
    by_name = Path(command[0]).stem == "zig" or command[1:3] == ("-m", "ziglang")
    return by_name and "cc" in command


def _find_zig() -> tuple[str, ...]:
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang")
    zig = shutil.which("zig")
    return (zig,) if zig else ()
