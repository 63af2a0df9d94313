"""Powers and logarithms by numpy and by the C library, whose results differ in the last bits.

takes: arrays; gives: arrays of the same shape and dtype. scikit-learn calls numpy, compiled code
calls the C library.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable

import numpy as np

from .rules import Array

_LIBRARY = "ucrtbase" if sys.platform == "win32" else None  # None: all libraries of the process


NumberFunction = Callable[[str, Array], Array]
"""The type of `apply_numpy_function` and `apply_c_function`."""


def apply_numpy_function(name: str, values: Array) -> Array:
    """Apply numpy's "exp", "exp2" or "log1p" to an array."""
    found: Array = 2**values if name == "exp2" else getattr(np, name)(values)
    return found


@functools.cache
def find_c_function(name: str, dtype: str) -> Callable[[float], float] | None:
    """Return the C library's function `name`, such as "exp", for one number of a dtype.

    None if the library has none.
    """
    kind, suffix = (ctypes.c_float, "f") if dtype == "float32" else (ctypes.c_double, "")
    try:
        found = ctypes.PyDLL(_LIBRARY)[name + suffix]
    except (AttributeError, OSError):
        return None
    found.argtypes, found.restype = [kind], kind
    return found


def apply_c_function(name: str, values: Array) -> Array:
    """Apply the C library's "exp", "exp2" or "log1p" to a float32 or float64 array.

    If the library lacks the function, numpy's is applied.
    """
    function = find_c_function(name, str(values.dtype))
    if function is None:
        return apply_numpy_function(name, values)
    return np.array([function(x) for x in values.ravel().tolist()], values.dtype).reshape(
        values.shape
    )


take_c_powers = functools.partial(apply_c_function, "exp")
"""Returns `exp` of an array, computed by the C library."""
