"""GPUs of AMD, through the HIP runtime.

takes: code objects; gives: a Driver. Needs libamdhip64 and nothing else of ROCm; see
`driver.Driver` for what the methods do. Pointers and streams are those of PyTorch for ROCm as well.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

from ..errors import DeviceError
from ..forest import Array
from . import code_object
from .driver import Size

LIBRARIES = (
    *("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"),
    *("/opt/rocm/lib/libamdhip64.so", "amdhip64_7.dll", "amdhip64_6.dll"),
)

OLDEST = 50_700_000
"""Versions count 10,000,000 * major + 100,000 * minor; older ones may not read code objects v5."""

REMEDIES = {
    2: "predict fewer rows at a time, or free memory of the GPU",
    9: "use smaller tiles in the schedule",
    35: "update the driver of the GPU",
    100: "check with rocminfo that a GPU is visible, and HIP_VISIBLE_DEVICES",
    200: "build the model again",
    209: "build for this GPU, with its name as 'mcpu' in the target",
    500: "build the model again",
    701: "use smaller tiles in the schedule",
}
"""What helps against errors of the runtime, by their numbers."""

ATTRIBUTES = {"threads": 56, "shared": 74}
PROPERTIES = ("hipGetDevicePropertiesR0600", "hipGetDeviceProperties")
"""The later one has another struct; the name of the GPU is looked for in either."""

NO_TIMING = 2


class Function(NamedTuple):
    """A kernel: what the runtime knows it by, its name, and what its code says of it."""

    handle: ctypes.c_void_p
    name: str
    about: code_object.Kernel


class Module(NamedTuple):
    """A code object: what the runtime knows it by, and its kernels."""

    handle: ctypes.c_void_p
    kernels: dict[str, code_object.Kernel]


class HipDriver:
    """A GPU of AMD.

    Attributes:
        name: "rocm".
        device: its number.
        architecture: such as "gfx942".
        limits: threads and bytes of shared memory of a block.
    """

    name = "rocm"

    def __init__(self, device: int = 0, library: str | None = None) -> None:
        """Open a GPU.

        Args:
            device: its number, as HIP_VISIBLE_DEVICES leaves them.
            library: path of libamdhip64; None for the installed one.

        Raises:
            DeviceError: no HIP runtime, one that is too old, or no such GPU.
        """
        self._hip = _library((library,) if library else LIBRARIES)
        self._hip.hipGetErrorString.restype = ctypes.c_char_p
        self.device = device
        version, count = ctypes.c_int(), ctypes.c_int()
        self._call("hipInit", 0)
        self._call("hipRuntimeGetVersion", ctypes.byref(version))
        if version.value < OLDEST:
            raise DeviceError(
                f"rocm: the HIP runtime is {_dotted(version.value)}, needed is {_dotted(OLDEST)} "
                "or newer; update ROCm"
            )
        self._call("hipGetDeviceCount", ctypes.byref(count))
        if not 0 <= device < count.value:
            raise DeviceError(
                f"rocm: argument 'target': device {device} is not there, the runtime shows "
                f"{count.value}; give another 'device', or check HIP_VISIBLE_DEVICES"
            )
        self.limits = {name: self._attribute(code) for name, code in ATTRIBUTES.items()}
        self.architecture = self._architecture()

    def _attribute(self, code: int) -> int:
        found = ctypes.c_int()
        self._call("hipDeviceGetAttribute", ctypes.byref(found), code, self.device)
        return found.value

    def _architecture(self) -> str:
        about = ctypes.create_string_buffer(1 << 14)
        name = next((x for x in PROPERTIES if hasattr(self._hip, x)), PROPERTIES[-1])
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
        with self._current():
            self._call("hipModuleLoadData", ctypes.byref(handle), image)
        return Module(handle, about.kernels)

    def function(self, module: Module, name: str) -> Function:
        """Return a kernel of a module."""
        handle = ctypes.c_void_p()
        with self._current():
            code = self._hip.hipModuleGetFunction(
                ctypes.byref(handle), module.handle, name.encode()
            )
        self._check("hipModuleGetFunction", code, f"kernel '{name}'")
        return Function(handle, name, module.kernels[name])

    def allocate(self, size: int) -> int:
        """Return the address of so many bytes of the GPU's memory."""
        pointer = ctypes.c_void_p()
        with self._current():
            code = self._hip.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(max(1, size)))
        self._check("hipMalloc", code, f"{size} bytes")
        return pointer.value or 0

    def free(self, pointer: int) -> None:
        """Give memory back; waits for the GPU."""
        with self._current():
            self._call("hipFree", ctypes.c_void_p(pointer))

    def upload(self, pointer: int, array: Array, stream: int) -> None:
        """Copy a C-ordered array to the GPU."""
        place, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        to = ctypes.c_void_p(pointer)
        with self._current():
            self._call("hipMemcpyHtoDAsync", to, place, size, ctypes.c_void_p(stream))

    def download(self, array: Array, pointer: int, stream: int) -> None:
        """Copy from the GPU into a C-ordered array."""
        place, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        source = ctypes.c_void_p(pointer)
        with self._current():
            self._call("hipMemcpyDtoHAsync", place, source, size, ctypes.c_void_p(stream))
            self._call("hipStreamSynchronize", ctypes.c_void_p(stream))

    def launch(
        self,
        function: Function,
        grid: Size,
        block: Size,
        shared: int,
        arguments: Sequence[Any],
        stream: int,
    ) -> None:
        """Start a kernel."""
        self._check_limits(function, block, shared)
        _check_sizes(function, arguments)
        places = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        with self._current():
            code = self._hip.hipModuleLaunchKernel(
                function.handle, *grid, *block, shared, ctypes.c_void_p(stream), places, None
            )
        about = f"'{function.name}', grid {grid}, block {block}, {shared} bytes shared"
        self._check("hipModuleLaunchKernel", code, about)

    def _check_limits(self, function: Function, block: Size, shared: int) -> None:
        threads = min(self.limits["threads"], function.about.threads)
        shared += function.about.shared
        for what, wanted, most in (
            ("threads per block", prod(block), threads),
            ("bytes of shared memory per block", shared, self.limits["shared"]),
        ):
            if wanted > most:
                raise DeviceError(
                    f"rocm: kernel '{function.name}' takes {wanted} {what}, {most} are allowed; "
                    "use smaller tiles in the schedule"
                )

    def synchronize(self, stream: int) -> None:
        """Wait for all work on a stream."""
        with self._current():
            self._call("hipStreamSynchronize", ctypes.c_void_p(stream))

    def wait(self, stream: int, other: int) -> None:
        """Let later work on `stream` wait for what is on `other` now."""
        event = ctypes.c_void_p()
        with self._current():
            self._call("hipEventCreateWithFlags", ctypes.byref(event), NO_TIMING)
            self._call("hipEventRecord", event, ctypes.c_void_p(other))
            self._call("hipStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
            self._call("hipEventDestroy", event)

    # -- calls ------------------------------------------------------------------------------------

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Use the GPU on the calling thread, and the caller's own afterwards."""
        before = ctypes.c_int()
        self._call("hipGetDevice", ctypes.byref(before))
        self._call("hipSetDevice", self.device)
        try:
            yield
        finally:
            if before.value != self.device:
                self._call("hipSetDevice", before)

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._hip, name, None)
        if function is None:
            raise DeviceError(f"rocm: the HIP runtime has no {name}; update ROCm")
        self._check(name, function(*arguments))

    def _check(self, name: str, code: int, about: str = "") -> None:
        if code == 0:
            return
        said = self._hip.hipGetErrorString(code) or b"unknown error"
        about = f" ({about})" if about else ""
        remedy = REMEDIES.get(code, "see the error codes of the HIP runtime")
        raise DeviceError(f"rocm: {name}{about} failed with {code}, {said.decode()}; {remedy}")


def _check_sizes(function: Function, arguments: Sequence[Any]) -> None:
    """Compare what is given with what the code takes: the runtime cannot."""
    given = [ctypes.sizeof(x) for x in arguments]
    taken = [size for _, size in function.about.arguments]
    if given != taken:
        raise DeviceError(
            f"rocm: kernel '{function.name}' takes arguments of {taken} bytes, got {given}; build "
            "the model again"
        )


def _library(names: Sequence[str]) -> Any:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DeviceError(
        f"rocm: no HIP runtime found (tried {', '.join(names)}); run where there is a GPU of AMD "
        "and ROCm, or use target 'llvm'"
    )


def _dotted(version: int) -> str:
    return f"{version // 10_000_000}.{version // 100_000 % 100}"
