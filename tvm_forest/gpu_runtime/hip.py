"""GPUs of AMD, through the HIP runtime.

takes: code objects; gives: a Driver. Needs libamdhip64 and nothing else of ROCm. Pointers and
streams are those of PyTorch for ROCm as well.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..errors import DeviceError
from . import code_object
from .driver import FORKED, SMALLER, Driver, Function, Names, Size, open_library

LIBRARIES = (
    *("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"),
    *("/opt/rocm/lib/libamdhip64.so", "amdhip64_7.dll", "amdhip64_6.dll"),
)
MISSING = (
    "rocm: no HIP runtime found (tried {tried}); run where there is a GPU of AMD and ROCm, or use "
    "target 'llvm'"
)

ATTRIBUTES = {"threads": 56, "processors": 63, "shared": 74}
PROPERTIES = ("hipGetDevicePropertiesR0600", "hipGetDeviceProperties")
"""The later one has another struct; the name of the GPU is looked for in either."""


class Module(NamedTuple):
    """A code object: what the runtime knows it by, and its kernels."""

    handle: ctypes.c_void_p
    kernels: dict[str, code_object.Kernel]


class HipDriver(Driver):
    """A GPU of AMD."""

    name = "rocm"
    names = Names(
        init="hipInit",
        version="hipRuntimeGetVersion",
        devices="hipGetDeviceCount",
        title="hipDeviceGetName",
        memory="hipDeviceTotalMem",
        function="hipModuleGetFunction",
        allocate="hipMalloc",
        free="hipFree",
        upload="hipMemcpyHtoDAsync",
        download="hipMemcpyDtoHAsync",
        copy="hipMemcpyDtoDAsync",
        launch="hipModuleLaunchKernel",
        synchronize="hipStreamSynchronize",
        event="hipEventCreateWithFlags",
        record="hipEventRecord",
        wait="hipStreamWaitEvent",
        query="hipEventQuery",
        finish="hipEventSynchronize",
        elapsed="hipEventElapsedTime",
        forget="hipEventDestroy",
        runtime="the HIP runtime",
        update="update ROCm",
        visible="HIP_VISIBLE_DEVICES",
        manual="the error codes of the HIP runtime",
        oldest=50_700_000,  # older ones may not read code objects of version 5
        major=10_000_000,
    )
    remedies = {
        2: "predict fewer rows at a time, or free memory of the GPU",
        9: SMALLER,
        35: "update the driver of the GPU",
        3: FORKED,
        100: "check with rocminfo that a GPU is visible, and HIP_VISIBLE_DEVICES",
        200: "build the model again",
        209: "build for this GPU, with its name as 'mcpu' in the target",
        500: "build the model again",
        701: SMALLER,
    }

    def __init__(self, device: int = 0, library: str | None = None) -> None:
        """Open a GPU.

        Args:
            device: its number, as HIP_VISIBLE_DEVICES leaves them.
            library: path of libamdhip64; None for the installed one.

        Raises:
            DeviceError: no HIP runtime, one that is too old, or no such GPU.
        """
        hip = open_library((library,) if library else LIBRARIES, MISSING)
        hip.hipGetErrorString.restype = ctypes.c_char_p
        super().__init__(device, hip)
        self.limits = {name: self._attribute(code) for name, code in ATTRIBUTES.items()}
        self.architecture = self._architecture()
        self._ask_name_and_memory(device)

    def _attribute(self, code: int) -> int:
        found = ctypes.c_int()
        self._call("hipDeviceGetAttribute", ctypes.byref(found), code, self.device)
        return found.value

    def _architecture(self) -> str:
        about = ctypes.create_string_buffer(1 << 14)
        name = next((x for x in PROPERTIES if hasattr(self._library, x)), PROPERTIES[-1])
        self._call(name, about, self.device)
        found = re.search(rb"gfx[0-9a-f]+", about.raw)
        return found.group().decode() if found else "unknown"

    def load(self, image: bytes) -> Module:
        """Return the module of a code object.

        Raises:
            DeviceError: it is for another GPU, or the runtime refuses it.
            InputError: it is no code object.
        """
        about, handle = code_object.read(image), ctypes.c_void_p()
        if about.gpu != self.architecture:
            raise DeviceError(
                f"rocm: the code is for {about.gpu}, the GPU is a {self.architecture}; build with "
                f"target {{'kind': 'rocm', 'mcpu': '{self.architecture}'}}"
            )
        self._do("hipModuleLoadData", ctypes.byref(handle), image)
        return Module(handle, about.kernels)

    def function(self, module: Module, name: str) -> Function:
        """Return a kernel of a module."""
        return self._function(module.handle, name, module.kernels[name])

    def _prepare(self, function: Function, block: Size, shared: int, given: Sequence[Any]) -> None:
        about: code_object.Kernel = function.about
        threads, shared = min(self.limits["threads"], about.threads), shared + about.shared
        self._check_block(function.name, block, threads, shared, self.limits["shared"])
        sizes = [ctypes.sizeof(x) for x in given]
        taken = [size for _, size in about.arguments]
        if sizes != taken:  # the runtime cannot know
            raise DeviceError(
                f"rocm: kernel '{function.name}' takes arguments of {taken} bytes, got {sizes}; "
                "build the model again"
            )

    @contextmanager
    def _current(self) -> Iterator[None]:
        before = ctypes.c_int()
        self._call("hipGetDevice", ctypes.byref(before))
        self._call("hipSetDevice", self.device)
        try:
            yield
        finally:
            if before.value != self.device:
                self._call("hipSetDevice", before)

    def _said(self, code: int) -> bytes | None:
        said: bytes | None = self._library.hipGetErrorString(code)
        return said
