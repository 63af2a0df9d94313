"""Shared libraries whose functions can be called without importing apache-tvm-ffi.

takes: the file of a shared library; gives: its functions.

Compiled code needs only the shared library of apache-tvm-ffi. Its Python package takes longer to
import than all of tvm_forest, so it is imported when a function is first called with arrays;
batches of few rows never need it, see `predictor.few_rows`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..system.late import import_late
from ..tir_gen.internals.names import PACKED

if TYPE_CHECKING:
    import tvm_ffi
else:
    tvm_ffi = import_late("tvm_ffi")

NAMES = {"win32": "tvm_ffi.dll", "darwin": "libtvm_ffi.dylib"}
"""File names of the library of apache-tvm-ffi by system; elsewhere it is "libtvm_ffi.so"."""

INTEGER = 1
"""Type code of an argument or a result that is an integer."""


class _Argument(ctypes.Structure):
    """TVM's struct TVMFFIAny, for arguments and results."""

    _fields_ = (("kind", ctypes.c_int32), ("padding", ctypes.c_int32), ("value", ctypes.c_int64))


class _Version(ctypes.Structure):
    """TVM's struct TVMFFIVersion."""

    _fields_ = tuple((name, ctypes.c_uint32) for name in ("major", "minor", "patch"))


_CODE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.POINTER(_Argument),
    ctypes.c_int32,
    ctypes.POINTER(_Argument),
)


@functools.cache
def load_ffi() -> ctypes.CDLL:
    """Load the library of apache-tvm-ffi with global symbols.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    found = None if "tvm_ffi" in sys.modules else importlib.util.find_spec("tvm_ffi")
    for place in (found is not None and found.submodule_search_locations) or ():
        file = Path(place, "lib", NAMES.get(sys.platform, "libtvm_ffi.so"))
        if file.is_file():
            return ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL)
    library: ctypes.CDLL = tvm_ffi.LIB
    return library


def read_version() -> str:
    """Return the version of apache-tvm-ffi's binary interface, such as "0.1".

    Raises:
        ModuleNotFoundError: see `load_ffi`.
    """
    version = _Version()
    load_ffi().TVMFFIGetVersion(ctypes.byref(version))
    return f"{version.major}.{version.minor}"


def _find_unmapper() -> Any:
    """Return the system's function that unloads a library loaded by `CDLL`."""
    if sys.platform == "win32":
        return ctypes.windll.kernel32.FreeLibrary
    return ctypes.pythonapi.dlclose


class LinkedLibrary:
    """The functions of a shared library, which is unloaded when nothing refers to it or to them.

    Args:
        code: the machine code that was loaded, kept as an attribute.
        file: path of the shared library.
    """

    def __init__(self, code: Any, file: Path) -> None:
        load_ffi()
        self.code, self._loaded = code, ctypes.CDLL(str(file))
        handle = ctypes.c_void_p(self._loaded._handle)
        unmap = weakref.finalize(self, _find_unmapper(), handle)
        unmap.atexit = False  # threads that the end of the program does not wait for may run it

    def __getitem__(self, name: str) -> LinkedFunction:
        """Return a function by its name.

        Raises:
            AttributeError: the library has no such function.
        """
        return LinkedFunction(self, _CODE((f"{PACKED}{name}", self._loaded)))


class LinkedFunction:
    """A function of a shared library, which stays loaded while the function exists.

    A call with one integer needs no Python package; calls with other arguments import tvm_ffi.
    """

    def __init__(self, library: LinkedLibrary, code: Any) -> None:
        self._library, self._code = library, code
        self._object: tvm_ffi.Function | None = None
        self._handle = 0

    def __call__(self, *arguments: Any) -> Any:
        """Return the result for one integer, or for any arguments that tvm_ffi converts."""
        if len(arguments) == 1 and type(arguments[0]) is int:
            given, result = _Argument(INTEGER, 0, arguments[0]), _Argument()
            self._code(None, ctypes.byref(given), 1, ctypes.byref(result))
            return result.value
        return (self._object or self.__tvm_ffi_object__())(*arguments)

    def __tvm_ffi_object__(self) -> tvm_ffi.Function:
        """Return the function as an object of tvm_ffi, to pass it as an argument."""
        if self._object is None:
            address = ctypes.cast(self._code, ctypes.c_void_p).value or 0
            make = tvm_ffi.Function.__from_extern_c__
            self._object = make(address, keep_alive_object=self._library)
        return self._object

    def __chandle__(self) -> int:
        """Return the address of a tvm_ffi object of the function, made on first use and kept."""
        if not self._handle:
            handle, library = ctypes.c_void_p(), load_ffi()
            failed = library.TVMFFIFunctionCreate(None, self._code, None, ctypes.byref(handle))
            if failed or not handle.value:
                raise MemoryError("load: no room for a function")
            free = weakref.finalize(self, library.TVMFFIObjectDecRef, handle)
            free.atexit = False
            self._handle = handle.value
        return self._handle
