"""Arrays on a GPU, exchanged with other libraries without a copy.

takes: objects with `__dlpack__`; gives: Tensor, and capsules.

The structures are those of dlpack.h (https://github.com/dmlc/dlpack). Arrays are imported in the
form of version 0, which all libraries still export, and exported in the form of version 1 to
consumers that ask for it.
"""

from __future__ import annotations

import ctypes
import functools
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from ...errors import InputError

CPU = 1
HOST = (CPU, 0)
KINDS = {"cuda": 2, "opencl": 4, "rocm": 10}
"""DLPack's device type codes, by kind of target."""

LETTERS = "iuf"
"""Letters of numpy's dtypes; the index of each is DLPack's type code."""

FRESH, FRESH_1 = b"dltensor", b"dltensor_versioned"
"""Names of an unconsumed capsule, in versions 0 and 1."""

VERSION_1 = (1, 0)
IS_COPY = 2
"""Flag of an array that has no other owner."""

FORM = Struct("@PiiiBBHPPQ")
"""The memory format of `_Tensor`, to unpack all its fields by one call."""

PAIR = Struct("2q")


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


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _Managed1(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_named = (ctypes.c_void_p, ctypes.c_char_p)
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, *_named)(("PyCapsule_GetPointer", _python))
_bytes_at = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", _python)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, *_named)(("PyCapsule_IsValid", _python))


class Tensor(NamedTuple):
    """A C-ordered array on a GPU.

    Attributes:
        pointer: address of its first element.
        shape: shape of the array.
        dtype: dtype of its elements.
        device: number of the GPU.
        keeps: owner of the memory.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int
    keeps: Any


def device_of(array: Any) -> tuple[int, int]:
    """Return DLPack's type code and number of an array's device; (1, 0) is the host.

    Objects without `__dlpack_device__` count as being on the host.
    """
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack_device__"):
        return CPU, 0
    kind, number = array.__dlpack_device__()
    return int(kind), int(number)


def take(array: Any, stream: int) -> Tensor:
    """Import an array by DLPack, synchronised with the work on a stream.

    Raises:
        InputError: the library refuses (such as for a tensor that requires a gradient), or the
            array is not C-ordered, or has elements that numpy does not support.
    """
    try:
        capsule = array.__dlpack__(stream=stream)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"predict: argument 'rows': a {type(array).__name__} cannot be read ({error}); give a "
            "plain array, such as rows.detach()"
        ) from None
    found = FORM.unpack(_bytes_at(_address(id(capsule), FRESH), FORM.size))
    data, _, number, ndim, code, bits, lanes, shape_at, strides_at, offset = found
    if lanes != 1 or code >= len(LETTERS):
        raise InputError(
            f"predict: argument 'rows': elements of DLPack type ({code}, {bits} bits); give floats"
        )
    shape = _read_numbers(shape_at, ndim)
    if strides_at:
        strides = _read_numbers(strides_at, ndim)
        if strides[-1:] != (1,) or strides[:-1] != shape[1:]:
            _check_strides(strides, shape)
    return Tensor((data or 0) + offset, shape, _find_dtype(code, bits), number, capsule)


def _read_numbers(address: int, count: int) -> tuple[int, ...]:
    form = PAIR if count == 2 else Struct(f"{count}q")
    return form.unpack(_bytes_at(address, 8 * count))


def _check_strides(strides: tuple[int, ...], shape: tuple[int, ...]) -> None:
    step = 1
    for stride, size in zip(reversed(strides), reversed(shape), strict=True):
        if stride != step and size > 1:
            raise InputError(
                f"predict: argument 'rows': strides {strides} are not those of a C-ordered array; "
                "use rows.contiguous()"
            )
        step *= size


@functools.cache
def _find_dtype(code: int, bits: int) -> np.dtype[Any]:
    return np.dtype(f"{LETTERS[code]}{bits // 8}")


_exported: dict[int, tuple[Any, ...]] = {}
"""Exported arrays by address, kept until their consumers release them."""


def give(
    tensor: Tensor, kind: int, max_version: tuple[int, int] | None = None, is_copy: bool = False
) -> Any:
    """Export an array as a capsule; its owner is kept alive until the consumer releases it.

    Args:
        tensor: the array.
        kind: DLPack's type code of its device.
        max_version: newest DLPack version that the consumer reads; None for version 0.
        is_copy: whether the array has no other owner; version 1 reports this.
    """
    versioned = max_version is not None and tuple(max_version) >= VERSION_1
    managed: Any = _Managed1() if versioned else _Managed()
    sizes = (ctypes.c_int64 * len(tensor.shape))(*tensor.shape)
    dtype = _Dtype(LETTERS.index(tensor.dtype.kind), tensor.dtype.itemsize * 8, 1)
    place = _Device(kind, tensor.device)
    managed.tensor = _Tensor(tensor.pointer, place, len(sizes), dtype, sizes, None, 0)
    managed.deleter = _delete
    if versioned:
        managed.version[:] = VERSION_1
        managed.flags = IS_COPY * is_copy
    address = ctypes.addressof(managed)
    _exported[address] = (managed, sizes, tensor.keeps)
    return _python.PyCapsule_New(address, FRESH_1 if versioned else FRESH, _release_untaken)


_delete = _Deleter(_exported.pop)


@_Destructor  # type: ignore[untyped-decorator]
def _release_untaken(
    capsule: int,
    names: tuple[bytes, ...] = (FRESH, FRESH_1),
    is_valid: Any = _is_valid,
    address: Any = _address,
    release: Any = _exported.pop,
) -> None:
    """Release the array of a capsule that was never consumed.

    The functions that it calls are default arguments, because the module's names are gone when the
    interpreter exits.
    """
    for name in names:
        if is_valid(capsule, name):
            release(address(capsule, name))


for _callback in (_delete, _release_untaken):
    # Consumers may release an array after Python has dropped all modules at its exit.
    _python.Py_IncRef(ctypes.py_object(_callback))
