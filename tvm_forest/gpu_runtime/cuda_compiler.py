"""Compile CUDA text to code of a GPU.

takes: CUDA C++, an architecture; gives: a cubin, or PTX for a GPU that the compiler does not know.

NVRTC is looked for among installed libraries and Python packages, then nvcc. For all GPUs at once
nvcc comes first: it puts several cubins and PTX into one image, NVRTC makes PTX only. Results must
not depend on the compiler: subnormal numbers are kept, products and sums are rounded one by one.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import BuildError, DeviceError
from .driver import find_library

OPTIONS = ("--ftz=false", "--fmad=false", "--prec-div=true", "--prec-sqrt=true")
"""Never fast math: its comparisons take subnormal thresholds for zero."""

ANY = "any"
"""The architecture of an image that every GPU from sm_80 on can load."""

OLDEST = "80"
SHIPPED = (OLDEST, "90", "120")
"""For these such an image has cubins, as far as nvcc knows them; for others the driver compiles."""

REMEDY = "pip install nvidia-cuda-nvrtc, or install CUDA's nvcc and put it on PATH"


def compile_cuda(source: str, architecture: str) -> bytes:
    """Compile for a GPU.

    Args:
        source: CUDA C++ that includes no headers under NVRTC.
        architecture: such as "sm_90", or ANY.

    Raises:
        DeviceError: neither NVRTC nor nvcc is at hand.
        BuildError: the compiler refuses the source or the architecture.
    """
    nvrtc, nvcc = find_nvrtc(), find_nvcc()
    if nvrtc is not None and not (architecture == ANY and nvcc is not None):
        return _compile_by_nvrtc(nvrtc, source, architecture)
    if nvcc is not None:
        return _compile_by_nvcc(nvcc, source, architecture)
    raise DeviceError(f"cuda: no compiler for CUDA found, neither NVRTC nor nvcc; {REMEDY}")


def has_compiler() -> bool:
    """Return whether a compiler is at hand."""
    return find_nvrtc() is not None or find_nvcc() is not None


@functools.cache
def find_nvrtc() -> Any | None:
    """Return the library of NVRTC, or None."""
    return find_library((*_find_installed(), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"))


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


def _compile_by_nvrtc(nvrtc: Any, source: str, architecture: str) -> bytes:
    program = ctypes.c_void_p()
    text = (source.encode(), b"forest.cu")
    _call(nvrtc, "nvrtcCreateProgram", ctypes.byref(program), *text, 0, None, None)
    try:
        known = _supported_architectures(nvrtc)
        number = int("".join(filter(str.isdigit, architecture)) or OLDEST)
        exact = number in known and architecture != ANY
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
    """Return what a compilation made: "CUBIN", "PTX" or "ProgramLog"."""
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
    with tempfile.TemporaryDirectory() as folder:
        text, image = Path(folder, "forest.cu"), Path(folder, "forest.image")
        text.write_text(source, encoding="utf-8")
        command = [nvcc, "-std=c++17", *_image_options(nvcc, architecture), *OPTIONS]
        command += ["-o", str(image), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            log = (done.stderr or done.stdout)[:2000]
            raise BuildError(f"build: nvcc refuses the kernels for {architecture}: {log}")
        return image.read_bytes()


def _image_options(nvcc: str, architecture: str) -> list[str]:
    """Return the options for a cubin, or for one image with code for several architectures."""
    if architecture != ANY:
        return ["-cubin", f"-arch={architecture}"]
    command = [nvcc, "--list-gpu-code"]
    known = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    cubins = [f"-gencode=arch=compute_{x},code=sm_{x}" for x in SHIPPED if f"sm_{x}" in known]
    return ["-fatbin", *cubins, f"-gencode=arch=compute_{OLDEST},code=compute_{OLDEST}"]
