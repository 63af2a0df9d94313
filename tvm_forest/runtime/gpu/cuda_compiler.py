"""Compiles CUDA source to GPU code.

takes: CUDA C++, an architecture, the driver's version; gives: a cubin, or PTX for a GPU that the
compiler does not know.

NVRTC is tried first, from installed libraries and Python packages, then nvcc. For an image that all
GPUs can load, nvcc is tried first: it puts several cubins and PTX into one image, while NVRTC makes
only PTX. A driver loads cubins of its own major version of CUDA or older ones, and PTX of its own
version or older ones; a compiler that is too new for the driver is skipped. Results must not depend
on the compiler: subnormal numbers are kept, and products and sums are rounded separately.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...errors import BuildError, DeviceError
from ...system.process.scratch import make_folder
from .driver import find_library

OPTIONS = ("--ftz=false", "--fmad=false", "--prec-div=true", "--prec-sqrt=true")
"""Options that keep arithmetic exact; fast math would compare subnormal thresholds as zero."""

ANY = "any"
"""Name of the architecture of an image that every GPU from sm_80 on can load."""

OLDEST = "80"
SHIPPED = (OLDEST, "90", "120")
"""Architectures with a cubin in an image for `ANY`, as far as nvcc supports them.

For other GPUs the driver compiles the image's PTX.
"""

REMEDY = "pip install nvidia-cuda-nvrtc, or install CUDA's nvcc and put it on PATH"


class Compiler(NamedTuple):
    """An installed compiler.

    Attributes:
        name: "NVRTC" or "nvcc".
        version: CUDA version, as (major, minor).
        tool: the library of NVRTC, or the path of nvcc.
        known: numbers of the architectures for which it makes cubins.
    """

    name: str
    version: tuple[int, int]
    tool: Any
    known: frozenset[int]

    def gives_cubin(self, architecture: str) -> bool:
        """Return whether the output for a GPU holds a cubin, which the driver need not compile."""
        if architecture == ANY:
            return self.name == "nvcc"
        return _number_of(architecture) in self.known

    def fits(self, architecture: str, driver: int | None) -> bool:
        """Return whether a driver can load the output; True if no driver is given."""
        if driver is None:
            return True
        loads = driver // 1000, driver % 1000 // 10
        if self.gives_cubin(architecture):
            return self.version[0] <= loads[0]
        return self.version <= loads

    def compile(self, source: str, architecture: str) -> bytes:
        """Compile source text; return a cubin, PTX, or for `ANY` under nvcc a fat binary.

        Raises:
            BuildError: the compiler refuses the source or the architecture.
        """
        if self.name == "nvcc":
            return _compile_by_nvcc(self.tool, source, architecture)
        return _compile_by_nvrtc(self, source, architecture)


def compile_cuda(source: str, architecture: str, driver: int | None = None) -> bytes:
    """Compile CUDA source for a GPU, with the first compiler whose output the driver can load.

    Args:
        source: CUDA C++ that includes no headers under NVRTC.
        architecture: such as "sm_90", or ANY.
        driver: version of the driver that will load the code, such as 12040; None if it is not
            known.

    Returns:
        The image that the driver loads: a cubin, PTX, or a fat binary, see `Compiler.compile`.

    Raises:
        DeviceError: no compiler is at hand, or none that is as old as the driver.
        BuildError: the compiler refuses the source or the architecture.
    """
    tried = dict[str, None]()
    for compiler in _compilers(architecture):
        if compiler.fits(architecture, driver):
            return compiler.compile(source, architecture)
        tried[f"{compiler.name} {'.'.join(map(str, compiler.version))}"] = None
    if not tried or driver is None:
        raise DeviceError(f"cuda: no compiler for CUDA found, neither NVRTC nor nvcc; {REMEDY}")
    here = f"{driver // 1000}.{driver % 1000 // 10}"
    raise DeviceError(
        f"cuda: the driver is for CUDA {here}, and what {' and '.join(tried)} would make for "
        f"{architecture} is too new for it; update the driver, or pip install "
        f"'nvidia-cuda-nvrtc-cu{driver // 1000}<={here}.999'"
    )


def _compilers(architecture: str) -> Iterator[Compiler]:
    """Yield the installed compilers in order of preference.

    Libraries of NVRTC are opened one by one, when they are reached.
    """
    nvcc = find_nvcc()
    path = [_describe_nvcc(nvcc)] if nvcc is not None else []
    if architecture == ANY:
        yield from path
    for library in find_nvrtcs():
        yield _describe_nvrtc(library)
    if architecture != ANY:
        yield from path


def has_compiler() -> bool:
    """Return whether NVRTC or nvcc is installed."""
    return find_nvcc() is not None or next(iter(find_nvrtcs()), None) is not None


def find_nvrtcs() -> Iterator[Any]:
    """Yield the installed NVRTC libraries, the newest in each folder first."""
    for name in (*_find_installed(), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        library = _open(name)
        if library is not None:
            yield library


@functools.cache
def _open(name: str) -> Any | None:
    """Open a library of NVRTC; None if it cannot be opened.

    Its builtins library is opened first, since NVRTC would search it by name without a path.
    """
    beside = glob.glob(f"{os.path.dirname(name)}/libnvrtc-builtins.so.*")
    find_library(beside)
    return find_library((name,))


def _find_installed() -> Iterator[str]:
    """Yield the paths of NVRTC in CUDA_HOME and in Python packages of NVIDIA, the newest first."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    patterns = [f"{home}/lib64/libnvrtc.so.*"]
    patterns += [f"{folder}/nvidia/*/lib/libnvrtc.so.*" for folder in sys.path if folder]
    for pattern in patterns:
        paths = (x for x in glob.glob(pattern) if ".alt." not in x)
        yield from sorted(paths, key=os.path.basename, reverse=True)


@functools.cache
def find_nvcc() -> str | None:
    """Return the path of nvcc, or None."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")


def _number_of(architecture: str) -> int:
    return int("".join(filter(str.isdigit, architecture)) or OLDEST)


def _describe_nvrtc(nvrtc: Any) -> Compiler:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(nvrtc, "nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    known = frozenset(_supported_architectures(nvrtc))
    return Compiler("NVRTC", (major.value, minor.value), nvrtc, known)


@functools.cache
def _describe_nvcc(nvcc: str) -> Compiler:
    run = functools.partial(subprocess.run, capture_output=True, text=True, check=False)
    found = re.search(r"release (\d+)\.(\d+)", run([nvcc, "--version"]).stdout)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    known = run([nvcc, "--list-gpu-code"]).stdout.split()
    return Compiler("nvcc", version, nvcc, frozenset(int(x[3:]) for x in known if x[3:].isdigit()))


def _compile_by_nvrtc(compiler: Compiler, source: str, architecture: str) -> bytes:
    nvrtc, program = compiler.tool, ctypes.c_void_p()
    text = (source.encode(), b"forest.cu")
    _call(nvrtc, "nvrtcCreateProgram", ctypes.byref(program), *text, 0, None, None)
    try:
        known, number = compiler.known, _number_of(architecture)
        exact = compiler.gives_cubin(architecture)
        newest = max((x for x in known if x <= number), default=min(known))
        target = architecture if exact else f"compute_{newest}"  # the driver compiles PTX
        options = [f"--gpu-architecture={target}", "--std=c++17", *OPTIONS]
        texts = (ctypes.c_char_p * len(options))(*(x.encode() for x in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), texts):
            log = _read_output(nvrtc, "ProgramLog", program).decode(errors="replace")
            raise BuildError(f"build: NVRTC refuses the kernels for {architecture}: {log[:2000]}")
        return _read_output(nvrtc, "CUBIN" if exact else "PTX", program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _supported_architectures(nvrtc: Any) -> list[int]:
    count = ctypes.c_int()
    _call(nvrtc, "nvrtcGetNumSupportedArchs", ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    _call(nvrtc, "nvrtcGetSupportedArchs", numbers)
    return list(numbers)


def _read_output(nvrtc: Any, what: str, program: Any) -> bytes:
    """Return an output of a compilation: "CUBIN", "PTX" or "ProgramLog"."""
    size = ctypes.c_size_t()
    _call(nvrtc, f"nvrtcGet{what}Size", program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    _call(nvrtc, f"nvrtcGet{what}", program, data)
    return data.raw


def _call(nvrtc: Any, name: str, *arguments: Any) -> None:
    code = getattr(nvrtc, name)(*arguments)
    if code:
        raise BuildError(f"build: NVRTC: {name} failed with {code}; reinstall NVRTC")


def _compile_by_nvcc(nvcc: str, source: str, architecture: str) -> bytes:
    with make_folder("build") as folder:
        text, image = folder / "forest.cu", folder / "forest.image"
        text.write_text(source, encoding="utf-8")
        command = [nvcc, "-std=c++17", *_image_options(nvcc, architecture), *OPTIONS]
        command += ["-o", str(image), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            log = (done.stderr or done.stdout)[:2000]
            raise BuildError(f"build: nvcc refuses the kernels for {architecture}: {log}")
        return image.read_bytes()


def _image_options(nvcc: str, architecture: str) -> list[str]:
    """Return nvcc's options for a cubin, or for one image with code for several architectures."""
    if architecture != ANY:
        return ["-cubin", f"-arch={architecture}"]
    known = _describe_nvcc(nvcc).known
    cubins = [f"-gencode=arch=compute_{x},code=sm_{x}" for x in SHIPPED if int(x) in known]
    return ["-fatbin", *cubins, f"-gencode=arch=compute_{OLDEST},code=compute_{OLDEST}"]
