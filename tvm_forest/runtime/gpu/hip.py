"""GPUs of AMD, through the HIP runtime.

takes: code objects; gives: a Driver. Needs libamdhip64 and nothing else of ROCm. Pointers and
streams can be exchanged with PyTorch for ROCm.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

from ...errors import DeviceError
from . import code_object
from .driver import FORKED, SMALLER
from .kernels import Arguments, LoadedKernel, Module, Size
from .shared_api import CAPTURING, SharedApiDriver

PROPERTIES = ("hipGetDevicePropertiesR0600", "hipGetDeviceProperties")
"""Names of the function that returns a GPU's properties, the newer one first.

The two fill different structs; the GPU's name is searched in the bytes of either.
"""


class HipDriver(SharedApiDriver):
    """A GPU of AMD."""

    name = "rocm"
    libraries = (
        *("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"),
        *("/opt/rocm/lib/libamdhip64.so", "amdhip64_7.dll", "amdhip64_6.dll"),
    )
    missing = (
        "rocm: no HIP runtime found (tried {tried}); run where there is a GPU of AMD and ROCm, or "
        "use target 'llvm'"
    )
    prefix = "hip"
    symbols = {
        "DriverGetVersion": "hipRuntimeGetVersion",
        "DeviceGetCount": "hipGetDeviceCount",
        "MemAlloc": "hipMalloc",
        "MemFree": "hipFree",
        "MemHostAlloc": "hipHostMalloc",
        "MemFreeHost": "hipHostFree",
        "StreamCreate": "hipStreamCreateWithFlags",
        "LaunchKernel": "hipModuleLaunchKernel",
        "EventCreate": "hipEventCreateWithFlags",
        "CtxSynchronize": "hipDeviceSynchronize",
    }
    attributes = {"threads": 56, "processors": 63, "shared": 74}
    runtime = "the HIP runtime"
    update = "update ROCm"
    visible = "HIP_VISIBLE_DEVICES"
    manual = "the error codes of the HIP runtime"
    oldest = 50_700_000  # older ones may not read code objects of version 5
    major = 10_000_000
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
        **CAPTURING,
    }

    def _find_handle(self) -> int:
        return self.device

    def _find_architecture(self) -> str:
        properties = ctypes.create_string_buffer(1 << 14)
        symbol = next((x for x in PROPERTIES if hasattr(self._library, x)), PROPERTIES[-1])
        self._call(symbol.removeprefix(self.prefix), properties, self.device)
        name = re.search(rb"gfx[0-9a-f]+", properties.raw)
        return name.group().decode() if name else "unknown"

    def load(self, image: bytes) -> Module:
        """Load a code object onto the GPU, and return the module.

        Raises:
            DeviceError: it is for another GPU, or the runtime refuses it.
            InputError: the image is not a code object.
        """
        code, handle = code_object.read(image), ctypes.c_void_p()
        if code.gpu != self.architecture:
            raise DeviceError(
                f"rocm: the code is for {code.gpu}, the GPU is a {self.architecture}; build with "
                f"target {{'kind': 'rocm', 'mcpu': '{self.architecture}'}}"
            )
        self._do("ModuleLoadData", ctypes.byref(handle), image)
        return Module(handle, code.kernels)

    def _check_launch(
        self, kernel: LoadedKernel, grid: Size, block: Size, shared: int, arguments: Arguments
    ) -> None:
        needs: code_object.KernelNeeds = kernel.needs
        threads, shared = min(self.limits["threads"], needs.threads), shared + needs.shared
        self._check_block(kernel.name, block, threads, shared, self.limits["shared"])
        sizes = tuple(dtype.itemsize for dtype in arguments.dtypes)
        if sizes != needs.argument_sizes:  # the runtime cannot know
            raise DeviceError(
                f"rocm: kernel '{kernel.name}' takes arguments of {list(needs.argument_sizes)} "
                f"bytes, got {list(sizes)}; build the model again"
            )

    def enter(self) -> Any:
        """Make the GPU current on this thread, see `Driver.enter`."""
        before = self._ask("GetDevice")
        if before == self.device:
            return None
        self._call("SetDevice", self.device)
        return before

    def leave(self, before: Any) -> None:
        """Restore what was current before `enter`, see `Driver.leave`."""
        if before is not None:
            self._call("SetDevice", before)

    def _describe_error(self, code: int) -> bytes | None:
        describe = self._library.hipGetErrorString
        describe.restype = ctypes.c_char_p
        reason: bytes | None = describe(code)
        return reason
