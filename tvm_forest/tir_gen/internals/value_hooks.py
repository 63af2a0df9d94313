"""Repairs hashing and comparison of TVM's values with a newer apache-tvm-ffi.

takes: nothing; gives: nothing. It changes entries of a table of apache-tvm-ffi.

Maps call two functions of a type of values, "__any_hash__" and "__any_equal__", which a C++ library
may register by their addresses. Until apache-tvm-ffi 0.1.14, such a function returns a number. From
0.1.15 on, it returns a TVMFFIAny: 16 bytes, the first of which are a type code for the others. TVM
0.27 was built with the older convention, and `pip install apache-tvm` installs the newer library:

    ir.PrimType    registered by TVM, called by apache-tvm-ffi: the hash is read as a type code that
                   is not that of a number, so it is handled as an error, at an invalid address.
                   `tvm.ir.save_json` and `tensorize` crash the process for this reason.
    ffi.BigInt     registered by apache-tvm-ffi, called by TVM: all big integers have the same hash
                   and compare equal.

An entry may also be a function object, which both versions call alike; these replace the addresses.
`tools/upstream/any_hash.py` shows the fault without this package.
"""

from __future__ import annotations

import ctypes
import re

import tvm_ffi

from .names import RECURSIVE_EQUAL, RECURSIVE_HASH

FIRST = (0, 1, 15)
"""First version of apache-tvm-ffi with the newer calling convention."""

TYPES = ("ir.PrimType", "ffi.BigInt")
HOOKS = {"__any_hash__": RECURSIVE_HASH, "__any_equal__": RECURSIVE_EQUAL}
"""Names of the global functions that replace entries, by the names of the entries."""

NOTHING, ADDRESS, FUNCTION = 0, 4, 68
"""Type codes: kTVMFFINone, kTVMFFIOpaquePtr, kTVMFFIFunction."""


class _Value(ctypes.Structure):
    """TVM's struct TVMFFIAny."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("padding", ctypes.c_uint32),
        ("content", ctypes.c_uint64),
    )


class _Column(ctypes.Structure):
    """TVM's struct TVMFFITypeAttrColumn: one entry per type."""

    _fields_ = (
        ("entries", ctypes.POINTER(_Value)),
        ("count", ctypes.c_int32),
        ("first", ctypes.c_int32),
    )


class _Text(ctypes.Structure):
    """TVM's struct TVMFFIByteArray."""

    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


def repair_hooks() -> None:
    """Replace addresses by function objects if this version of apache-tvm-ffi misreads them."""
    if tuple(map(int, re.findall(r"\d+", tvm_ffi.__version__)[:3])) >= FIRST:
        replace_addresses()


def replace_addresses() -> None:
    """Replace addresses by function objects, whatever the version of apache-tvm-ffi."""
    for type_name in TYPES:
        for hook, function in HOOKS.items():
            entry = _find_entry(type_name, hook)
            if entry is not None and entry.kind == ADDRESS:
                _put(entry, tvm_ffi.get_global_func(function))


def _find_entry(type_name: str, hook: str) -> _Value | None:
    """Return a type's entry for a hook such as "__any_hash__"; None if it has none."""
    find = tvm_ffi.LIB.TVMFFIGetTypeAttrColumn
    find.restype = ctypes.POINTER(_Column)
    number = ctypes.c_int32()
    failed = tvm_ffi.LIB.TVMFFITypeKeyToIndex(_text(type_name), ctypes.byref(number))
    column = find(_text(hook))
    if failed or not column:
        return None
    at = number.value - column.contents.first
    return column.contents.entries[at] if 0 <= at < column.contents.count else None


def _put(entry: _Value, function: tvm_ffi.Function) -> None:
    """Overwrite an entry; a thread that reads it meanwhile finds it empty, which is harmless."""
    address = function.__chandle__()
    tvm_ffi.LIB.TVMFFIObjectIncRef(ctypes.c_void_p(address))  # the table owns its entries
    entry.kind = NOTHING
    entry.content = address
    entry.kind = FUNCTION


def _text(text: str) -> ctypes._Pointer[_Text]:
    data = text.encode()
    return ctypes.pointer(_Text(data, len(data)))
