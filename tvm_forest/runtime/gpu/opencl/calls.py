"""OpenCL's functions as ctypes declarations, its constants, and remedies for its errors.

Names are those of OpenCL without "cl"; numbers are those of CL/cl.h.
"""

from __future__ import annotations

from ctypes import c_char_p, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from ..driver import SMALLER

_number, _handle, _size, _flags, _text = c_uint, c_void_p, c_size_t, c_uint64, c_char_p
_told = (_number, _size, _handle, _handle)
_events = (_number, _handle, _handle)
_copy = (_handle, _handle, _number, _size, _size, _handle, *_events)
_released = ("Context", "CommandQueue", "MemObject", "Program", "Kernel", "Event")
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "GetPlatformIDs": (_number, _handle, _handle),
    "GetDeviceIDs": (_handle, _flags, _number, _handle, _handle),
    "GetDeviceInfo": (_handle, *_told),
    "CreateContext": (*(_handle, _number, _handle), *(_handle, _handle, _handle)),
    "CreateCommandQueue": (_handle, _handle, _flags, _handle),
    "CreateBuffer": (_handle, _flags, _size, _handle, _handle),
    "CreateSubBuffer": (_handle, _flags, _number, _handle, _handle),
    "CreateProgramWithSource": (_handle, _number, _handle, _handle, _handle),
    "BuildProgram": (_handle, _number, _handle, _text, _handle, _handle),
    "GetProgramBuildInfo": (_handle, _handle, *_told),
    "CreateKernel": (_handle, _text, _handle),
    "GetKernelWorkGroupInfo": (_handle, _handle, *_told),
    "SetKernelArg": (_handle, _number, _size, _handle),
    "EnqueueNDRangeKernel": (*(_handle, _handle, _number), *(_handle, _handle, _handle), *_events),
    **dict.fromkeys(("EnqueueReadBuffer", "EnqueueWriteBuffer"), _copy),
    "EnqueueCopyBuffer": (*(_handle, _handle, _handle), *(_size, _size, _size), *_events),
    **dict.fromkeys(
        ("EnqueueMarkerWithWaitList", "EnqueueBarrierWithWaitList"), (_handle, *_events)
    ),
    "WaitForEvents": (_number, _handle),
    **dict.fromkeys(("GetEventInfo", "GetEventProfilingInfo"), (_handle, *_told)),
    **dict.fromkeys(("Flush", "Finish", *(f"Release{x}" for x in _released)), (_handle,)),
}

ALL_TYPES, GPU = 0xFFFFFFFF, 4
"""Codes of device types."""

OLDEST = 102
"""Oldest supported version: 1.2."""

TYPE, ALIGNMENT_BITS, FLOATS, DOUBLES, MEMORY = 0x1000, 0x1019, 0x101B, 0x1032, 0x101F
IS_AVAILABLE, COMPILES, NAME, VERSION, EXTENSIONS = 0x1027, 0x1028, 0x102B, 0x102F, 0x1030
"""Codes of device properties, for `GetDeviceInfo`."""

LIMITS = {"processors": 0x1002, "threads": 0x1004, "shared": 0x1023}
"""Codes of the device properties that become `Driver.limits`."""

NEEDED_ABILITIES = {
    1: "takes denormal numbers of float32 for zero",
    2: "has no NaN or infinities of float32",
    4: "does not round float32 to the nearest",
}
"""Required bits of the property `FLOATS`, with the fault of a device that lacks the bit."""

DIVIDES = 128
"""Bit of the property `FLOATS`: the device can round quotients correctly."""

KERNEL_THREADS, KERNEL_SHARED = 0x11B0, 0x11B2
BUILD_LOG, EVENT_STATUS, EVENT_END = 0x1183, 0x11D3, 0x1283
"""Codes of a kernel's limits, a program's build log, an event's status, and its end time."""

READ_WRITE, WITH_TIMES, REGION, COMPLETE = 1, 2, 0x1220, 0
"""A buffer flag, a queue property, the type of sub-buffers, and the status of a finished event."""

ERRORS = {
    -3: "CL_COMPILER_NOT_AVAILABLE",
    -4: "CL_MEM_OBJECT_ALLOCATION_FAILURE",
    -5: "CL_OUT_OF_RESOURCES",
    -6: "CL_OUT_OF_HOST_MEMORY",
    -11: "CL_BUILD_PROGRAM_FAILURE",
    -34: "CL_INVALID_CONTEXT",
    -36: "CL_INVALID_COMMAND_QUEUE",
    -38: "CL_INVALID_MEM_OBJECT",
    -43: "CL_INVALID_BUILD_OPTIONS",
    -46: "CL_INVALID_KERNEL_NAME",
    -51: "CL_INVALID_ARG_SIZE",
    -54: "CL_INVALID_WORK_GROUP_SIZE",
    -55: "CL_INVALID_WORK_ITEM_SIZE",
    -61: "CL_INVALID_BUFFER_SIZE",
}

LESS_MEMORY = "predict fewer rows at a time, or free memory of the device"
OWN_STREAMS = "leave 'stream' of the predictor out: it has to be of the predictor's own context"
REMEDIES = {
    **dict.fromkeys((-4, -6, -61), LESS_MEMORY),
    -5: f"{SMALLER}, or {LESS_MEMORY}",
    -11: "update the device's driver, or use target 'llvm'",
    -34: OWN_STREAMS,
    -36: f"{OWN_STREAMS}; where it is left out, a kernel failed: use target 'cuda' or 'llvm'",
    **dict.fromkeys((-46, -51), "build the model again"),
    **dict.fromkeys((-54, -55), SMALLER),
}
