"""OpenCL devices, through OpenCL's loader.

takes: kernels as text; gives: a Driver. Needs libOpenCL and the driver of a device, such as a GPU's
or PoCL, which runs kernels on the CPU. It uses only functions of OpenCL 1.2.

A pointer is the handle of a buffer, and a stream the handle of a queue. Handles are no addresses,
so arrays that share a buffer are sub-buffers of it (`OpenCLDriver.part`). The driver has a context
of its own, so no other library can use its memory.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections import deque
from collections.abc import Iterator
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from operator import mul
from typing import Any, NamedTuple

from ....errors import DeviceError
from ....forest import Array
from ..driver import Driver
from ..kernels import Arguments, BlockNeeds, LoadedKernel, Module, Size
from . import calls

ROUNDED_DIVISION = "-cl-fp32-correctly-rounded-divide-sqrt"
"""Compiler option for correctly rounded quotients; the text of kernels that divide names it."""

OTHERWISE = "give another 'device' in the target, or use target 'llvm'"
LOG_BYTES = 8192
"""Limit of the compiler's messages in an error, in bytes."""


class Program(NamedTuple):
    """A compiled program, with the handles of all kernels that were created from it."""

    handle: int
    kernels: deque[int]


class OpenCLDriver(Driver):
    """An OpenCL device; device numbers begin with the GPUs."""

    name = "opencl"
    libraries = (
        *("libOpenCL.so.1", "libOpenCL.so", "OpenCL.dll"),
        "/System/Library/Frameworks/OpenCL.framework/OpenCL",
    )
    missing = (
        "opencl: no OpenCL found (tried {tried}); install a loader of OpenCL, such as ocl-icd, and "
        "the driver of a device, or use target 'llvm'"
    )
    prefix = "cl"
    symbols: dict[str, str] = {}
    parameters = calls.PARAMETERS
    runtime = "OpenCL"
    update = "update the loader of OpenCL and the driver of the device"
    visible = "which drivers are installed, and OCL_ICD_VENDORS"
    manual = "the error codes in CL/cl.h"
    remedies = calls.REMEDIES
    is_shared = False

    def _open(self) -> None:
        devices = sorted(self._list_devices(), key=self._is_counted_later)
        if not devices:
            raise DeviceError(
                "opencl: the loader of OpenCL finds no device; install the driver of the GPU, or "
                "PoCL to run on the CPU, or use target 'llvm'"
            )
        titles = [self._text(calls.NAME, x) for x in devices]
        self._refuse_absent(len(devices), f" ({', '.join(titles)})")
        self._device, self.title = devices[self.device], titles[self.device]
        self._refuse_old_or_inexact()
        self.limits = {name: self._fact(number) for name, number in calls.LIMITS.items()}
        self.memory = self._fact(calls.MEMORY)
        self.alignment = max(self.alignment, self._fact(calls.ALIGNMENT_BITS) // 8)
        self._at = byref(c_void_p(self._device))
        self._context = self._create("CreateContext", None, 1, self._at, None, None)
        self._streams, self._memory_of_host = list[int](), dict[int, Any]()
        self._default = self.create_stream()

    def _list_devices(self) -> Iterator[int]:
        """Yield the available devices of all platforms whose drivers have a compiler."""
        for platform in self._list("GetPlatformIDs"):
            for device in self._list("GetDeviceIDs", platform, calls.ALL_TYPES):
                if self._fact(calls.IS_AVAILABLE, device) and self._fact(calls.COMPILES, device):
                    yield device

    def _is_counted_later(self, device: int) -> bool:
        return not self._has(calls.TYPE, calls.GPU, device)

    def _list(self, function: str, *arguments: Any) -> list[int]:
        """Return the handles from a query; none if it fails, as in a driver without a device."""
        count = c_uint()
        code = self._find(function)(*arguments, 0, None, byref(count))
        if code or not count.value:
            return []
        found = (c_void_p * count.value)()
        self._call(function, *arguments, len(found), found, None)
        return [handle or 0 for handle in found]

    def _refuse_old_or_inexact(self) -> None:
        version = self._text(calls.VERSION)
        found = re.match(r"OpenCL (\d+)\.(\d+)", version)  # text of the maker may follow
        self.version = 100 * int(found[1]) + int(found[2]) if found else 0
        self.architecture = found[0] if found else version
        if self.version < calls.OLDEST:
            self._refuse(f"is of version {version!r}, needed is OpenCL 1.2 or newer")
        for ability, lack in calls.NEEDED_ABILITIES.items():
            if not self._has(calls.FLOATS, ability):
                self._refuse(f"{lack}, and predictions would not be exact")

    def _refuse(self, why: str) -> None:
        raise DeviceError(f"opencl: {self.title} {why}; {OTHERWISE}")

    # -- kernels ----------------------------------------------------------------------------------

    def load(self, image: bytes) -> Module:
        """Compile the source text of kernels for the device, and return the module.

        Raises:
            DeviceError: the device lacks required features, or its compiler refuses the source.
        """
        text = image.decode()
        divides, known = ROUNDED_DIVISION in text, self._text(calls.EXTENSIONS).split()
        if divides and not self._has(calls.FLOATS, calls.DIVIDES):
            self._refuse("does not round quotients of float32 correctly, and kernels divide")
        if re.search(r"\bdouble", text) and not self._fact(calls.DOUBLES):
            self._refuse("has no float64, which kernels compute with")
        for extension in re.findall(r"EXTENSION (cl_khr_int64_\w+)", text):
            if extension not in known:
                self._refuse(f"has no {extension}, which kernels need")
        source = byref(ctypes.c_char_p(image))
        program = self._create("CreateProgramWithSource", self._context, 1, source, None)
        options = ROUNDED_DIVISION.encode() if divides else b""
        code = self._find("BuildProgram")(program, 1, self._at, options, None, None)
        if code:
            log = self._ask("GetProgramBuildInfo", program, self._device, calls.BUILD_LOG)
            self._call("ReleaseProgram", program)
            reason = log.decode(errors="replace").strip("\0 \n")[:LOG_BYTES]
            self._check("clBuildProgram", code, f"on {self.title}; {reason}".rstrip("; "))
        return Module(Program(program, deque()), {})

    def find_kernel(self, module: Module, name: str) -> LoadedKernel:
        """Find a kernel and read the resources that it needs, see `Driver.find_kernel`."""
        kernel = LoadedKernel((module.handle, deque()), name)
        handle = self._create_kernel(kernel)
        told = (
            self._ask("GetKernelWorkGroupInfo", handle, self._device, number)
            for number in (calls.KERNEL_THREADS, calls.KERNEL_SHARED)
        )
        kernel.needs = BlockNeeds(*(int.from_bytes(x, sys.byteorder) for x in told))
        kernel.handle[1].append(handle)
        return kernel

    def _create_kernel(self, kernel: LoadedKernel) -> int:
        """Create another handle of a kernel; each handle has its own arguments."""
        program: Program = kernel.handle[0]
        handle = self._create("CreateKernel", program.handle, kernel.name.encode())
        program.kernels.append(handle)
        return handle

    def unload(self, module: Module) -> None:
        """Unload a module, see `Driver.unload`."""
        for kernel in module.handle.kernels:
            self._call("ReleaseKernel", kernel)
        self._call("ReleaseProgram", module.handle.handle)

    def launch(
        self,
        kernel: LoadedKernel,
        grid: Size,
        block: Size,
        shared: int,
        arguments: Arguments,
        stream: int,
    ) -> None:
        """Start a kernel, see `Driver.launch`."""
        if kernel.checked != (grid, block, shared):
            limits, needs = self.limits, kernel.needs
            allowed, whole = min(limits["threads"], needs.threads), shared + needs.shared
            self._check_block(kernel.name, block, allowed, whole, limits["shared"])
            kernel.checked = grid, block, shared
        try:
            handle = kernel.handle[1].pop()
        except IndexError:  # other threads are setting the arguments of all that there are
            handle = self._create_kernel(kernel)
        try:
            values = zip(arguments.places, arguments.dtypes, strict=True)
            for number, (place, dtype) in enumerate(values):
                self._call("SetKernelArg", handle, number, dtype.itemsize, place)
            threads, of_block = (c_size_t * 3)(*map(mul, grid, block)), (c_size_t * 3)(*block)
            about = stream or self._default, handle, 3, None, threads, of_block, 0, None, None
            code = self._find("EnqueueNDRangeKernel")(*about)
        finally:
            kernel.handle[1].append(handle)
        if code:
            detail = f"'{kernel.name}', grid {grid}, block {block}"
            self._check("clEnqueueNDRangeKernel", code, detail)

    # -- memory -----------------------------------------------------------------------------------

    def allocate(self, size: int) -> int:
        """Allocate memory of the GPU, see `Driver.allocate`."""
        about = self._context, calls.READ_WRITE, max(1, size), None
        return self._create("CreateBuffer", *about, detail=f"{size} bytes")

    def free(self, pointer: int) -> None:
        """Free memory of the GPU, see `Driver.free`; work in progress keeps the memory alive."""
        self._call("ReleaseMemObject", pointer)

    def part(self, pointer: int, begin: int, size: int) -> int:
        """Return the handle of a part of an allocation, see `Driver.part`."""
        region = (c_size_t * 2)(begin, max(1, size))
        return self._create("CreateSubBuffer", pointer, calls.READ_WRITE, calls.REGION, region)

    free_part = free

    def allocate_host(self, size: int) -> int:
        """Allocate memory of the host, see `Driver.allocate_host`; ordinary memory suffices."""
        memory = ctypes.create_string_buffer(size)
        address = ctypes.addressof(memory)
        self._memory_of_host[address] = memory
        return address

    def free_host(self, pointer: int) -> None:
        """Free memory of the host, see `Driver.free_host`."""
        del self._memory_of_host[pointer]

    def upload(self, pointer: int, array: Array, stream: int) -> None:
        """Copy an array to the GPU, see `Driver.upload`."""
        self._copy("EnqueueWriteBuffer", pointer, array.ctypes.data, array.nbytes, stream, True)

    def download(self, array: Array, pointer: int, stream: int) -> None:
        """Copy from the GPU into an array, see `Driver.download`."""
        self._copy("EnqueueReadBuffer", pointer, array.ctypes.data, array.nbytes, stream, True)

    def copy_in(self, to: int, host: int, size: int, stream: int) -> None:
        """Start a copy from the host to the GPU, see `Driver.copy_in`."""
        self._copy("EnqueueWriteBuffer", to, host, size, stream)

    def copy_out(self, host: int, pointer: int, size: int, stream: int) -> None:
        """Start a copy to the host, see `Driver.copy_out`; flush the queue, so that work starts."""
        self._copy("EnqueueReadBuffer", pointer, host, size, stream)
        self._call("Flush", stream or self._default)

    def _copy(
        self, function: str, pointer: int, host: int, size: int, stream: int, waits: bool = False
    ) -> None:
        if size:
            on = stream or self._default
            self._call(function, on, pointer, waits, 0, size, host, 0, None, None)

    def copy(self, to: int, pointer: int, size: int, stream: int) -> None:
        """Start a copy within the GPU's memory, see `Driver.copy`."""
        on = stream or self._default
        self._call("EnqueueCopyBuffer", on, pointer, to, 0, 0, size, 0, None, None)

    # -- streams ----------------------------------------------------------------------------------

    def create_stream(self) -> int:
        """Create a stream, see `Driver.create_stream`."""
        stream = self._create("CreateCommandQueue", self._context, self._device, calls.WITH_TIMES)
        self._streams.append(stream)
        return stream

    def synchronize(self, stream: int) -> None:
        """Wait for all work on a stream, see `Driver.synchronize`."""
        self._call("Finish", stream or self._default)

    def wait(self, stream: int, other: int) -> None:
        """Make a stream wait for the work on another one, see `Driver.wait`."""
        event = self.mark(other)
        self._call("EnqueueBarrierWithWaitList", stream or self._default, 1, byref(event), None)
        self.destroy(event)

    def wait_for_all(self, stream: int) -> None:
        """Wait for all work on the GPU before this returns, see `Driver.wait_for_all`."""
        for other in self._streams:
            self.synchronize(other)

    def mark(self, stream: int, flags: int = 0) -> c_void_p:
        """Record an event on a stream, see `Driver.mark`."""
        event = c_void_p()
        self._call("EnqueueMarkerWithWaitList", stream or self._default, 0, None, byref(event))
        self._call("Flush", stream or self._default)
        return event

    def destroy(self, event: c_void_p) -> None:
        """Free an event, see `Driver.destroy`."""
        self._call("ReleaseEvent", event)

    def is_done(self, event: c_void_p) -> bool:
        """Return whether the GPU has reached an event, see `Driver.is_done`."""
        status = c_int.from_buffer_copy(self._ask("GetEventInfo", event, calls.EVENT_STATUS))
        self._check("an earlier call", min(0, status.value))
        return status.value == calls.COMPLETE

    def seconds(self, first: c_void_p, last: c_void_p) -> float:
        """Return the seconds between two events, see `Driver.seconds`."""
        self._call("WaitForEvents", 2, (c_void_p * 2)(first, last))
        ends = []
        for event in (first, last):
            told = self._ask("GetEventProfilingInfo", event, calls.EVENT_END)
            ends.append(int.from_bytes(told, sys.byteorder))
            self.destroy(event)
        return (ends[1] - ends[0]) / 1e9

    # -- calls ------------------------------------------------------------------------------------

    def _create(self, function: str, *arguments: Any, detail: str = "") -> int:
        """Create an OpenCL object; return its handle."""
        create, code = self._find(function), c_int()
        create.restype = c_void_p
        handle = create(*arguments, byref(code))
        self._check(self.symbol(function), code.value, detail)
        return int(handle)

    def _ask(self, function: str, *arguments: Any) -> bytes:
        """Query one property of an OpenCL object."""
        size = c_size_t()
        self._call(function, *arguments, 0, None, byref(size))
        told = ctypes.create_string_buffer(size.value)
        self._call(function, *arguments, len(told), told, None)
        return told.raw

    def _fact(self, number: int, device: int | None = None) -> int:
        told = self._ask("GetDeviceInfo", device or self._device, number)
        return int.from_bytes(told, sys.byteorder)

    def _has(self, number: int, ability: int, device: int | None = None) -> bool:
        return bool(self._fact(number, device) & ability)

    def _text(self, number: int, device: int | None = None) -> str:
        told = self._ask("GetDeviceInfo", device or self._device, number)
        return told.decode(errors="replace").strip("\0 ")

    def _describe_error(self, code: int) -> bytes | None:
        name = calls.ERRORS.get(code)
        return name.encode() if name else None
