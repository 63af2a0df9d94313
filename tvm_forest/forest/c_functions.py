"""Powers and logarithms of numpy and of the C library, which differ in the last bits.

takes: arrays; gives: arrays of their shape and dtype. scikit-learn calls numpy, compiled code calls
the C library.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable

import numpy as np

from .rules import Array

_LIBRARY = "ucrtbase" if sys.platform == "win32" else None  # all that is loaded


NumberFunction = Callable[[str, Array], Array]
"""Returns "exp", "exp2" or "log1p" of an array."""


def apply_numpy_function(name: str, values: Array) -> Array:
    """Return "exp", "exp2" or "log1p" of values."""
    found: Array = 2**values if name == "exp2" else getattr(np, name)(values)
    return found


@functools.cache
def find_c_function(name: str, dtype: str) -> Callable[[float], float] | None:
    """Return the C function for single numbers of a dtype; None if there is none."""
    kind, suffix = (ctypes.c_float, "f") if dtype == "float32" else (ctypes.c_double, "")
    try:
        found = ctypes.PyDLL(_LIBRARY)[name + suffix]
    except (AttributeError, OSError):
        return None
    found.argtypes, found.restype = [kind], kind
    return found


def apply_c_function(name: str, values: Array) -> Array:
    """Return "exp", "exp2" or "log1p" of float32 or float64 values."""
    function = find_c_function(name, str(values.dtype))
    if function is None:
        return apply_numpy_function(name, values)
    return np.array([function(x) for x in values.ravel().tolist()], values.dtype).reshape(
        values.shape
    )


take_c_powers = functools.partial(apply_c_function, "exp")
"""Returns `exp` of an array, by the C library."""
