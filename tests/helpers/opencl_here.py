"""The OpenCL at hand for tests: that of the system, or PoCL as Python packages bring it.

`pip install pyopencl pocl-binary-distribution` puts a loader and PoCL into one folder; pyopencl
itself is not imported. What PoCL compiles is kept for the run of the tests only.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tvm_forest.errors import DeviceError
from tvm_forest.runtime.gpu.library import Backend
from tvm_forest.runtime.gpu.opencl import OpenCLDriver

OLDER = {"avx512": "skylake-avx512", "avx2": "haswell"}
"""Of what a processor can do, the name of one that can, and that LLVM 14 recognizes."""
_KEPT: list[Any] = []
"""Functions that C code jumps to, which Python must not free."""


@functools.cache
def find_loader(name: str = "pocl") -> str | None:
    """Return the loader of the packages, set up for their PoCL or "oclgrind"; None without them."""
    spec = find_spec("pyopencl")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    loaders, drivers = ([*folder.glob(f".libs/lib{x}*")] for x in ("OpenCL", name))
    if not loaders or not drivers:
        return None
    os.environ.setdefault("PYOPENCL_HOME", str(folder))  # this loader falls without
    os.environ.setdefault("OCL_ICD_VENDORS", str(drivers[0]))
    if name == "pocl":
        _name_the_processor(drivers[0])
    return str(loaders[0])


@functools.cache
def _folder_of_pocl() -> Any:
    folder = tempfile.TemporaryDirectory(prefix="pocl-")
    os.environ["POCL_CACHE_DIR"] = folder.name
    return folder


def _name_the_processor(library: Path) -> None:
    """Let PoCL compile for an older processor that has the same vectors as this one.

    Its LLVM 14 calls newer processors, such as Zen 5, "generic", a name that its own Clang
    refuses. So the function that returns the name is made to jump to one of ours.
    """
    flags = Path("/proc/cpuinfo").read_text()
    name = next((x for flag, x in OLDER.items() if flag in flags), None)
    if name is None:
        return
    place = ctypes.cast(ctypes.CDLL(str(library)).pocl_get_llvm_cpu_name, ctypes.c_void_p).value
    copied = ctypes.CDLL(None).strdup
    copied.restype, copied.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    ours = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: copied(name.encode()))
    _KEPT.append(ours)
    jump = b"\x48\xb8" + struct.pack("<Q", ctypes.cast(ours, ctypes.c_void_p).value) + b"\xff\xe0"
    page, write = place & -mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), 2 * mmap.PAGESIZE, write) == 0:
        ctypes.memmove(place, jump, len(jump))


@functools.cache
def _open() -> OpenCLDriver | str:
    _folder_of_pocl()
    try:
        return OpenCLDriver(library=find_loader())
    except DeviceError as error:
        return str(error)


def opencl_driver() -> OpenCLDriver:
    """Return the driver of a device, the same for all tests, or skip the one that asks."""
    driver = _open()
    if isinstance(driver, str):
        pytest.skip(driver)
    return driver


def on_device(predictor: Any, driver: OpenCLDriver | None = None) -> Any:
    """Return a predictor of target "opencl", whose kernels run on the device of `opencl_driver`."""
    found = driver or opencl_driver()
    for code in predictor.libraries:
        code.library.backend = Backend(lambda: found, lambda text, *_: text.encode())
    return predictor
