"""A fast reader of UBJSON in the form that XGBoost itself writes, five times as fast as others.

takes: bytes; gives: the document that `ubjson.loads` would return, but with arrays of numbers over
the nodes of all trees; or None.

Trees have the same members in the same order, so the lengths of a tree's arrays determine where all
of its parts are. Only the lengths are read tree by tree, and everything else for all trees at once.
A document in another form, or one that may be wrong, is left to a reader of any UBJSON, which also
reports what is wrong.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...forest import Array
from . import ubjson
from .trees import KINDS, UNUSED, JoinedTrees, put_trees

_LENGTH = struct.Struct(">q")
_TREES = b"L" + _LENGTH.pack(5) + b"trees"
_PARAM = b"L" + _LENGTH.pack(10) + b"tree_param"
_LIST = b"[#L"
_NO_TREES = _LIST + _LENGTH.pack(0)


_OTHER_LENGTHS = {
    **dict.fromkeys(("base_weights", "categories", "leaf_child_counts", "leaf_weights")),
    **dict.fromkeys(("categories_nodes", "categories_segments", "categories_sizes"), "sets"),
}
"""Arrays with other lengths than the number of nodes.

The value names a length that several arrays share; None stands for a length of its own.
"""


_Joined = tuple[Array, Array]
"""The numbers of one array in all trees, and how many each tree has."""


class _Member(NamedTuple):
    """A member of every tree: an array, or the number of the tree.

    Attributes:
        head: the bytes before the length of the array, or before the number.
        name: name of the member.
        dtype: dtype of the numbers.
        length: index of the array's length in `_Run.lengths` of a tree; None for the number.
    """

    head: bytes
    name: str
    dtype: Any
    length: int | None


class _Run(NamedTuple):
    """Consecutive trees that differ only in the values and lengths of their arrays.

    Attributes:
        members: the members of every tree.
        starts: for each tree, the index of its first byte.
        lengths: for each tree, the different lengths of its arrays.
        ends: for each tree, the index of the byte where its parameters begin.
    """

    members: list[_Member]
    starts: list[int]
    lengths: list[list[int]]
    ends: list[int]


def loads(data: bytes) -> Any:
    """Return a document; None if it is not in XGBoost's form, or is damaged."""
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
    except (LookupError, OverflowError, TypeError, ValueError, struct.error):
        return None
    return document


def _read_count(data: bytes, at: int) -> int:
    """Return the length at byte `at`; raise ValueError if it leads beyond the end."""
    (count,) = _LENGTH.unpack_from(data, at)
    if not 0 <= count <= len(data) - at:
        raise ValueError(count)
    return int(count)


def _read_trees(data: bytes, at: int, count: int) -> tuple[JoinedTrees, int]:
    """Read `count` trees from byte `at` on; return them and the byte after them.

    Raises:
        LookupError, ValueError, struct.error: the trees differ in form, or are damaged.
    """
    trees, runs = JoinedTrees(), list[dict[str, _Joined]]()
    while len(trees) < count:
        run, at = _find_run(data, at, count - len(trees))
        runs.append(_join_arrays(data, run))
        for end in run.ends:
            begin = end + len(_PARAM)
            text = bytes(data[begin : data.index(b"}}", begin) + 1])
            trees.append({"tree_param": _read_param(text)})
    if len({tuple(run) for run in runs}) > 1:
        raise ValueError("members")
    for name in runs[0] if runs else ():
        values, sizes = (np.concatenate(x) for x in zip(*(run[name] for run in runs), strict=True))
        if name == "id":
            for tree, number in zip(trees, values.tolist(), strict=True):
                tree["id"] = number
        else:
            trees.joined[name] = values, sizes
    return trees, at


@functools.lru_cache(maxsize=1024)
def _read_param(text: bytes) -> Any:
    """Read the parameters of a tree; they are cached, since many trees have the same."""
    return ubjson.loads(text)


def _find_run(data: bytes, at: int, most: int) -> tuple[_Run, int]:
    """Find the consecutive trees from byte `at` on that have the form of the first one.

    Only lengths are read; `_join_arrays` checks the bytes between them.

    Returns:
        The trees, at most `most`, and the byte after them.

    Raises:
        LookupError, ValueError, struct.error: not even one tree can be read, or one is damaged.
    """
    run = _Run(list(_list_members(data, at + 1)), [], [], [])
    gaps, strides = [1], list[int]()
    for head, _, dtype, length in run.members:
        if length is not None and length == len(strides):
            gaps[-1] += len(head)
            strides.append(dtype.itemsize)
            gaps.append(_LENGTH.size)
        elif length is None:
            gaps[-1] += len(head) + dtype.itemsize
        else:
            gaps[-1] += len(head) + _LENGTH.size
            strides[length] += dtype.itemsize
    unpack, param, tail = _LENGTH.unpack_from, _PARAM, gaps.pop()
    steps = list(zip(gaps, strides, strict=True))
    while len(run.starts) < most:
        start, lengths = at, list[int]()
        for gap, stride in steps:
            (length,) = unpack(data, at + gap)
            at += gap + length * stride
            lengths.append(length)
        at += tail
        if at <= start:  # negative lengths would lead around in a circle
            raise ValueError(lengths)
        if not data.startswith(param, at):
            at = start
            break
        run.starts.append(start)
        run.lengths.append(lengths)
        run.ends.append(at)
        at = data.index(b"}}", at + len(param)) + 2
    if not run.starts:
        raise ValueError(at)
    return run, at


def _list_members(data: bytes, at: int) -> Iterator[_Member]:
    """Yield the members of the tree at byte `at`, up to its parameters."""
    lengths = dict[str, int]()
    while not data.startswith(_PARAM, at):
        begin, at = at, at + 1 + _LENGTH.size + _read_count(data, at + 1)
        name = data[begin + 1 + _LENGTH.size : at].decode()
        if name not in KINDS.keys() | UNUSED | {"id"} or data[begin] != ord("L"):
            raise ValueError(name)
        if name == "id":
            dtype = ubjson.DTYPES[data[at]]
            yield _Member(data[begin : at + 1], name, dtype, None)
            at += 1 + dtype.itemsize
            continue
        opening, dtype = data[at : at + 5], ubjson.DTYPES[data[at + 2]]
        kinds = "f" if KINDS.get(name) == "floats" else "iu"
        if opening[:2] + opening[3:] != b"[$#L" or (name in KINDS and dtype.kind not in kinds):
            raise ValueError(name)
        at += len(opening)
        over = _OTHER_LENGTHS.get(name, "nodes") or name
        yield _Member(data[begin:at], name, dtype, lengths.setdefault(over, len(lengths)))
        at += _LENGTH.size + dtype.itemsize * _read_count(data, at)


def _join_arrays(data: bytes, run: _Run) -> dict[str, _Joined]:
    """Join the numbers and arrays of a run's trees, by name.

    Raises:
        LookupError, ValueError: a tree has another form than the first one.
    """
    place = np.array(run.starts, np.int64)
    lengths, joined = np.array(run.lengths, np.int64), dict[str, _Joined]()
    if len({member.name for member in run.members}) < len(run.members) or lengths.min() < 0:
        raise ValueError("members")
    for head, name, dtype, length in [_Member(b"{", "", None, None), *run.members]:
        if _take(data, place, np.dtype((np.void, len(head)))).tobytes() != head * len(place):
            raise ValueError(name)
        place += len(head)
        if dtype is not None and length is None:
            joined[name] = _take(data, place, dtype), np.ones(len(place), np.int64)
            place += dtype.itemsize
        elif length is not None:
            sizes = lengths[:, length]
            if np.any(_take(data, place, np.dtype(_LENGTH.format)) != sizes):
                raise ValueError(name)
            begin, place = place + _LENGTH.size, place + _LENGTH.size + sizes * dtype.itemsize
            if name in KINDS:
                spans = zip(begin.tolist(), place.tolist(), strict=True) if sizes.any() else ()
                joined[name] = np.frombuffer(b"".join([data[i:j] for i, j in spans]), dtype), sizes
    return joined


def _take(data: bytes, places: Array, dtype: Any) -> Array:
    """Return the values (T,) of a dtype at given bytes, which need not be aligned."""
    return np.ndarray(len(data) - dtype.itemsize + 1, dtype, data, strides=(1,))[places]
