"""UBJSON as XGBoost itself writes it, read in a fifth of the time that any UBJSON takes.

takes: bytes; gives: what `ubjson.loads` would, but arrays over the nodes of all trees; or None.

All trees have the members of the first one, in the same order, so that of each array only the
length has to be read. What is written in another way, or may be wrong, is None: it is for a reader
of any UBJSON, which also finds what to say of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import ubjson
from .trees import KINDS, UNUSED, JoinedTrees, put_trees

_LENGTH = struct.Struct(">q")
_TREES = b"L" + _LENGTH.pack(5) + b"trees"
_PARAM = b"L" + _LENGTH.pack(10) + b"tree_param"
_NO_TREES = b"[#L" + _LENGTH.pack(0)

Member = tuple[bytes, str, Any]
"""What stands before the length of an array, its name, its dtype; None for the number of a tree."""


def loads(data: bytes) -> Any:
    """Read a document, or return None."""
    begin = data.find(_TREES) + len(_TREES)
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


def _list_members(data: bytes, at: int) -> Iterator[Member]:
    """Yield the members of a tree that stand before its parameters."""
    while not data.startswith(_PARAM, at):
        begin, at = at, at + 1 + _LENGTH.size + _read_count(data, at + 1)
        name = data[begin + 1 + _LENGTH.size : at].decode()
        if name == "id":
            yield data[begin:at], name, None
            at += 1 + ubjson.NUMBERS[data[at]].size
            continue
        dtype = ubjson.DTYPES[data[at + 2]]
        kinds = "f" if KINDS.get(name) == "floats" else "iu"
        if data[at : at + 2] != b"[$" or (name not in UNUSED and dtype.kind not in kinds):
            raise ValueError(name)
        at += len(b"[$l#L")
        yield data[begin:at], name, dtype
        at += _LENGTH.size + dtype.itemsize * _read_count(data, at)


def _read_trees(data: bytes, at: int, count: int) -> tuple[JoinedTrees, int]:
    """Read so many trees from a place on, and return the place behind them.

    Raises:
        LookupError, ValueError, struct.error: they are not alike, or something is wrong.
    """
    members = list(_list_members(data, at + 1))
    parts: dict[str, list[Any]] = {name: [] for _, name, _ in members}
    if len(parts) < len(members) or not parts.keys() <= KINDS.keys() | UNUSED | {"id"}:
        raise ValueError("members")
    trees, params = JoinedTrees(), dict[bytes, Any]()
    for _ in range(count):
        begin = _read_members(data, at, members, parts)
        if not data.startswith(_PARAM, begin):
            raise ValueError(begin)
        begin, at = begin + len(_PARAM), data.index(b"}}", begin) + 2
        text = data[begin : at - 1]
        if text not in params:  # few trees have a number of nodes that no other tree has
            params[text] = ubjson.loads(text)
        trees.append({"tree_param": params[text]})
    for tree, number in zip(trees, parts.pop("id", ()), strict=False):
        tree["id"] = number
    for _, name, dtype in members:
        if name in KINDS:
            values = np.frombuffer(b"".join(parts[name]), dtype)
            sizes = np.fromiter(map(len, parts[name]), np.int64, count) // dtype.itemsize
            trees.joined[name] = values, sizes
    return trees, at


def _read_members(data: bytes, at: int, members: list[Member], parts: dict[str, list[Any]]) -> int:
    """Append the bytes of the arrays of a tree, and its number, to parts; return where they end."""
    if data[at] != ord("{"):
        raise ValueError(at)
    begin, unpack = at + 1, _LENGTH.unpack_from
    for head, name, dtype in members:
        at = begin + len(head)
        if not data.startswith(head, begin):
            raise ValueError(at)
        if dtype is None:
            number = ubjson.NUMBERS[data[at]]
            parts[name] += number.unpack_from(data, at + 1)
            begin = at + 1 + number.size
            continue
        at += _LENGTH.size
        begin = at + unpack(data, at - _LENGTH.size)[0] * dtype.itemsize
        if begin < at:
            raise ValueError(at)
        parts[name].append(data[at:begin])
    return begin
