"""Converts tensors of the Open Inference Protocol between JSON or bytes and numpy arrays.

takes: parsed JSON, bytes; gives: numpy arrays, and back.

JSON numbers are read as float64, and then rounded to the datatype of the tensor. JSON lacks NaN and
infinities: null stands for NaN, and the texts "Infinity" and "-Infinity" for infinities.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import orjson

from ..forest import Array
from .refusals import Refused

DTYPES = {
    "BOOL": np.dtype("?"),
    **{
        f"{kind}{8 * size}": np.dtype(f"<{code}{size}")
        for kind, code in (("UINT", "u"), ("INT", "i"))
        for size in (1, 2, 4, 8)
    },
    **{f"FP{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
}
"""Datatypes of numbers, and numpy's dtypes for them."""

DATATYPES = (*DTYPES, "BF16", "BYTES")
"""All datatypes; BYTES are texts."""

_NAMES = {dtype.newbyteorder("="): name for name, dtype in DTYPES.items()}
_NUMBERS: set[type] = {int, float, bool}
_OF_NUMBERS = "fiub"  # kinds of numpy dtypes; all others hold texts
_SPECIAL: dict[Any, float] = {None: math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LENGTH = struct.Struct("<I")
_MAX_DIMENSIONS = 8

MAX_PART = 1 << 13
"""Most numbers or texts to convert at once, so that other threads can run in between."""

_MAX_FLOAT = len("-2.2250738585072014e-308,")


def read_shape(shape: Any, where: str) -> tuple[int, ...]:
    """Check a shape from JSON, and return it as a tuple.

    Raises:
        Refused: it is not a list of 1 to 8 numbers from 0 on.
    """
    is_shape = isinstance(shape, list) and 0 < len(shape) <= _MAX_DIMENSIONS
    if not is_shape or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
        raise Refused(f"{where}: field 'shape': expected numbers from 0 on, got {_shorten(shape)}")
    return tuple(shape)


def read_list(data: Any, datatype: str, shape: tuple[int, ...], where: str) -> Array:
    """Return the tensor in a nested or flat list of numbers, or of texts and None.

    Args:
        data: the list.
        datatype: datatype of the tensor; BF16 is refused, as it exists as bytes only.
        shape: shape of the tensor.
        where: name of the list in messages.

    Raises:
        Refused: an element has another type or does not fit, or the list has another shape.
    """
    if datatype == "BF16":
        raise Refused(f"{where}: a BF16 tensor comes as bytes; send them, or FP32")
    if not isinstance(data, list):
        raise Refused(f"{where}: expected a list, got {_shorten(data)}")
    values = _flatten(data, shape)
    if values is None or len(values) != math.prod(shape):
        raise Refused(f"{where}: it has not the shape {list(shape)}")
    array = np.empty(len(values), DTYPES.get(datatype, np.dtype(object)))
    convert = _to_texts if datatype == "BYTES" else partial(_to_numbers, datatype=datatype)
    try:
        for begin in range(0, len(values), MAX_PART):
            array[begin : begin + MAX_PART] = convert(values[begin : begin + MAX_PART])
    except ValueError as error:
        raise Refused(f"{where}: not {datatype}: {error}") from None
    return array.reshape(shape)


def _flatten(data: list[Any], shape: tuple[int, ...]) -> list[Any] | None:
    """Return the elements of nested or flat lists; None if lengths do not fit the shape.

    Numpy is not used, as it would turn all numbers into texts if there is one text among them.
    """
    if len(shape) == 1 or not data or type(data[0]) is not list:
        return data
    for length in shape[1:]:
        if not all(type(part) is list and len(part) == length for part in data):
            return None
        data = list(chain.from_iterable(data))
    return data


def _to_texts(values: list[Any]) -> Array:
    _check_types(values, {str, type(None)}, "text or null")
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _to_numbers(values: list[Any], datatype: str) -> Array:
    dtype = DTYPES[datatype]
    if dtype.kind == "f":
        types = set(map(type, values))
        if not types <= _NUMBERS:
            values = [_SPECIAL.get(x, x) if x is None or type(x) is str else x for x in values]
            _check_types(values, _NUMBERS, "number")
        with np.errstate(over="ignore"):
            return np.array(values, np.float64).astype(dtype)
    if dtype.kind == "b":
        _check_types(values, {bool}, "bool")
        return np.array(values, dtype)
    _check_types(values, {int, bool}, "integer of 64 bits")
    limits = np.iinfo(dtype)
    if values and (min(values) < limits.min or max(values) > limits.max):
        raise ValueError(f"a number is not from {limits.min} to {limits.max}")
    return np.array(values, dtype)


def _check_types(values: list[Any], types: set[type], what: str) -> None:
    if not set(map(type, values)) <= types:
        wrong = next(x for x in values if type(x) not in types)
        raise ValueError(f"{_shorten(wrong)} is no {what}")


def read_binary(data: memoryview, datatype: str, shape: tuple[int, ...], where: str) -> Array:
    """Return the tensor in bytes. Numbers are not copied, except BF16, which becomes float32.

    Raises:
        Refused: the number of bytes does not fit the shape, texts are not UTF-8, or a bool is
            neither 0 nor 1.
    """
    if datatype == "BYTES":
        texts = _split_texts(data, math.prod(shape), where)
        array = np.empty(len(texts), object)
        array[:] = texts
        return array.reshape(shape)
    dtype = DTYPES["UINT16" if datatype == "BF16" else datatype]
    needed = math.prod(shape) * dtype.itemsize
    if len(data) != needed:
        raise Refused(
            f"{where}: {len(data)}, and {needed} bytes make a {datatype} tensor of shape "
            f"{list(shape)}"
        )
    if datatype == "BOOL" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise Refused(f"{where}: a byte of a BOOL tensor is neither 0 nor 1")
    numbers = np.frombuffer(data, dtype).reshape(shape)
    if datatype == "BF16":  # the upper half of a float32
        return (numbers.astype("<u4") << 16).view("<f4")
    return numbers


def _split_texts(data: memoryview, count: int, where: str) -> list[str]:
    """Return the `count` texts in bytes, where each follows its length as 4 bytes.

    Raises:
        Refused: there are fewer or more bytes, or a text is not UTF-8.
    """
    texts: list[str] = []
    at = 0
    try:
        while at < len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size + length
            if at > len(data) or len(texts) == count:
                raise ValueError
            texts.append(str(data[at - length : at], "utf-8"))
        if len(texts) != count:
            raise ValueError
    except (struct.error, ValueError):
        raise Refused(
            f"{where}: {len(data)} bytes are no {count} texts of UTF-8, each after its length as "
            "4 bytes"
        ) from None
    return texts


def name_datatype(array: Array) -> str:
    """Return the protocol's datatype for an array of numbers, bools or texts."""
    return _NAMES.get(array.dtype.newbyteorder("="), "BYTES")


def count_bytes(array: Array, texts: Sequence[str], is_binary: bool) -> int:
    """Return the largest possible size in bytes of a written tensor.

    Args:
        array: an array of the tensor's shape and dtype.
        texts: all texts that can be among its elements.
        is_binary: whether it is written as bytes, not as JSON.
    """
    dtype = array.dtype
    if dtype.kind not in _OF_NUMBERS:
        one = max((_count_text(text, is_binary) for text in texts), default=0)
    elif is_binary:
        one = dtype.itemsize
    elif dtype.kind in "iu":
        one = max(len(f"{number},") for number in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    else:
        one = _MAX_FLOAT if dtype.kind == "f" else len("false,")
    return array.size * one


def _count_text(text: str, is_binary: bool) -> int:
    return _LENGTH.size + len(text.encode()) if is_binary else len(orjson.dumps(text)) + 1


def write_json(array: Array) -> Iterator[bytes]:
    """Yield the JSON of a tensor, as a flat list, which reads back to the same bits except NaN."""
    before = b"["
    for part in split(array):
        if part.dtype.kind == "f":
            with np.errstate(invalid="ignore"):  # a signalling NaN
                part = part.astype(np.float64)
        yield before + orjson.dumps(_to_json(part), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        before = b","
    yield b"]" if array.size else b"[]"


def _to_json(part: Array) -> Any:
    """Return a flat part for orjson, with infinities as texts, since orjson would write null."""
    if part.dtype.kind not in _OF_NUMBERS or (part.dtype.kind == "f" and np.isinf(part).any()):
        infinite = {math.inf: "Infinity", -math.inf: "-Infinity"}
        return [infinite.get(value, value) for value in part.tolist()]
    return part


def write_binary(array: Array) -> Iterator[bytes]:
    """Yield the bytes of a tensor, little-endian; each text follows its length."""
    for part in split(array):
        if part.dtype.kind in _OF_NUMBERS:
            yield part.astype(part.dtype.newbyteorder("<"), copy=False).tobytes()
        else:
            texts = [text.encode() for text in part.tolist()]
            yield b"".join(x for text in texts for x in (_LENGTH.pack(len(text)), text))


def split(array: Array) -> Iterator[Array]:
    """Yield the elements of an array as flat parts of at most `MAX_PART` elements."""
    flat = np.ascontiguousarray(array).reshape(-1)
    for begin in range(0, len(flat), MAX_PART):
        yield flat[begin : begin + MAX_PART]


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
