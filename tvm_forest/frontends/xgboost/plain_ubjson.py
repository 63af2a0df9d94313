"""UBJSON as XGBoost itself writes it, read in a fifth of the time that any UBJSON takes.

takes: bytes; gives: what `ubjson.loads` would, but arrays over the nodes of all trees; or None.

All trees have the members of the first one, in the same order, so that of each array only the
length has to be read. What is written in another way, or may be wrong, is None: it is for a reader
of any UBJSON, which also finds what to say of it.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from . import ubjson
from .trees import KINDS, UNUSED, JoinedTrees, put_trees

_LENGTH = struct.Struct(">q")
_TREES = b"L" + _LENGTH.pack(5) + b"trees"
_PARAM = b"L" + _LENGTH.pack(10) + b"tree_param"
_LIST = b"[#L"
_NO_TREES = _LIST + _LENGTH.pack(0)


class _Member(NamedTuple):
    """An array that every tree has, or its number.

    Attributes:
        head: what stands before the length of the array, or before the number.
        name: of the member.
        dtype: of the array; None for the number.
        parts: the bytes of the array of each tree, or the numbers; none of an array that is unused.
    """

    head: bytes
    name: str
    dtype: Any
    parts: list[Any]


def loads(data: bytes) -> Any:
    """Read a document, or return None."""
    begin = data.find(_TREES + _LIST)
    if begin < 0:
        return None
    begin += len(_TREES)
    end = begin + len(_NO_TREES)
    try:
        trees, end = _read_trees(data, end, _read_count(data, end - _LENGTH.size))
        frame = data[:begin] + _NO_TREES + data[end:]
        if frame.count(_TREES) > 1:
            return None
        document = ubjson.loads(frame)
        put_trees(document, trees)
    except (LookupError, TypeError, ValueError, struct.error):
        return None
    return document


def _read_count(data: bytes, at: int) -> int:
    """Read a length."""
    (count,) = _LENGTH.unpack_from(data, at)
    if not 0 <= count <= len(data) - at:
        raise ValueError(count)
    return int(count)


def _list_members(data: bytes, at: int) -> Iterator[_Member]:
    """Yield the members of a tree that stand before its parameters."""
    while not data.startswith(_PARAM, at):
        begin, at = at, at + 1 + _LENGTH.size + _read_count(data, at + 1)
        name = data[begin + 1 + _LENGTH.size : at].decode()
        if name not in KINDS.keys() | UNUSED | {"id"} or data[begin] != ord("L"):
            raise ValueError(name)
        if name == "id":
            yield _Member(data[begin:at], name, None, [])
            at += 1 + ubjson.NUMBERS[data[at]].size
            continue
        opening, dtype = data[at : at + 5], ubjson.DTYPES[data[at + 2]]
        kinds = "f" if KINDS.get(name) == "floats" else "iu"
        if opening[:2] + opening[3:] != b"[$#L" or (name in KINDS and dtype.kind not in kinds):
            raise ValueError(name)
        at += len(opening)
        yield _Member(data[begin:at], name, dtype, [])
        at += _LENGTH.size + dtype.itemsize * _read_count(data, at)


def _read_trees(data: bytes, at: int, count: int) -> tuple[JoinedTrees, int]:
    """Read so many trees from a place on, and return the place behind them.

    Raises:
        LookupError, ValueError, struct.error: they are not alike, or something is wrong.
    """
    members, trees = list(_list_members(data, at + 1)), JoinedTrees()
    if len({member.name for member in members}) < len(members):
        raise ValueError("members")
    for _ in range(count):
        begin = _read_members(data, at, members)
        if not data.startswith(_PARAM, begin):
            raise ValueError(begin)
        begin, at = begin + len(_PARAM), data.index(b"}}", begin) + 2
        trees.append({"tree_param": _read_param(bytes(data[begin : at - 1]))})
    for member in members:
        if member.name == "id":
            for tree, number in zip(trees, member.parts, strict=True):
                tree["id"] = number
        elif member.name in KINDS:
            values = np.frombuffer(b"".join(member.parts), member.dtype)
            sizes = np.fromiter(map(len, member.parts), np.int64, count) // member.dtype.itemsize
            trees.joined[member.name] = values, sizes
    return trees, at


@functools.lru_cache(maxsize=1024)
def _read_param(text: bytes) -> Any:
    """Read the parameters of a tree: few have a number of nodes that no other tree has."""
    return ubjson.loads(text)


def _read_members(data: bytes, at: int, members: list[_Member]) -> int:
    """Take note of the bytes of the arrays of a tree, and return where they end."""
    if data[at] != ord("{"):
        raise ValueError(at)
    begin, unpack, length = at + 1, _LENGTH.unpack_from, _LENGTH.size
    for head, name, dtype, parts in members:
        if not data.startswith(head, begin):
            raise ValueError(begin)
        at = begin + len(head)
        if dtype is None:
            number = ubjson.NUMBERS[data[at]]
            parts += number.unpack_from(data, at + 1)
            begin = at + 1 + number.size
            continue
        begin = at + length + unpack(data, at)[0] * dtype.itemsize
        at += length
        if begin < at:
            raise ValueError(at)
        if name in KINDS:
            parts.append(data[at:begin])
    return begin
