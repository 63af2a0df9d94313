"""Arrays on a GPU, exchanged with other libraries without a copy.

takes: objects with `__dlpack__`; gives: Tensor, and capsules.

The structures are those of dlpack.h (https://github.com/dmlc/dlpack), version 0: all libraries
still exchange them.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError

CPU = 1
KINDS = {"cuda": 2, "rocm": 10}
"""DLPack's numbers of devices."""

LETTERS = "iuf"
"""Of numpy's dtypes, by DLPack's numbers."""

FRESH = b"dltensor"
"""Name of a capsule until somebody takes its array."""


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _Dtype(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Dtype),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (  # it holds a pointer to a function of itself
    ("tensor", _Tensor),
    ("context", ctypes.c_void_p),
    ("deleter", _Deleter),
)

_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_named = (ctypes.c_void_p, ctypes.c_char_p)
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, *_named)(("PyCapsule_GetPointer", _python))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, *_named)(("PyCapsule_IsValid", _python))


class Tensor(NamedTuple):
    """A C-ordered array on a GPU.

    Attributes:
        pointer: address of its first element.
        shape: of the array.
        dtype: of its elements.
        device: number of the GPU.
        keeps: what holds the memory.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int
    keeps: Any


def device_of(array: Any) -> tuple[int, int]:
    """Return kind and number of the device that holds an array; (1, 0) if it does not say."""
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack_device__"):
        return CPU, 0
    kind, number = array.__dlpack_device__()
    return int(kind), int(number)


def take(array: Any, stream: int) -> Tensor:
    """Return an array as it will be once the work on a stream has come so far.

    Raises:
        InputError: not C-ordered, or elements that numpy does not have.
    """
    capsule = array.__dlpack__(stream=stream)
    managed = _Managed.from_address(_address(id(capsule), FRESH))
    tensor = managed.tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    code, bits = tensor.dtype.code, tensor.dtype.bits
    if tensor.dtype.lanes != 1 or code >= len(LETTERS):
        raise InputError(
            f"predict: argument 'rows': elements of DLPack type ({code}, {bits} bits); give floats"
        )
    steps = [prod(shape[i + 1 :]) for i in range(len(shape))]
    own = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else tuple(steps)
    if any(a != b for a, b, size in zip(own, steps, shape, strict=True) if size > 1):
        raise InputError(
            f"predict: argument 'rows': strides {own} are not those of a C-ordered array; use "
            "rows.contiguous()"
        )
    dtype = np.dtype(f"{LETTERS[code]}{bits // 8}")
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Tensor(pointer, shape, dtype, tensor.device.number, capsule)


_exported: dict[int, tuple[Any, ...]] = {}
"""What the capsules that others hold stand for, by address, until they are done with it."""


def give(tensor: Tensor, kind: int) -> Any:
    """Return a capsule of an array; what it keeps lives until whoever took it needs it no more."""
    managed = _Managed()
    sizes = (ctypes.c_int64 * len(tensor.shape))(*tensor.shape)
    dtype = _Dtype(LETTERS.index(tensor.dtype.kind), tensor.dtype.itemsize * 8, 1)
    place = _Device(kind, tensor.device)
    managed.tensor = _Tensor(tensor.pointer, place, len(sizes), dtype, sizes, None, 0)
    managed.deleter = _delete
    address = ctypes.addressof(managed)
    _exported[address] = (managed, sizes, tensor.keeps)
    return _python.PyCapsule_New(address, FRESH, _release_untaken)


@_Deleter  # type: ignore[untyped-decorator]
def _delete(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


@_Destructor  # type: ignore[untyped-decorator]
def _release_untaken(capsule: int) -> None:
    """Let go of an array that nobody took; the capsule has no owner any more."""
    if _is_valid(capsule, FRESH):
        _delete(_Managed.from_address(_address(capsule, FRESH)))
