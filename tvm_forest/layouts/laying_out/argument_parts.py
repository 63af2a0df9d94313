"""Turns the arrays that a library's functions read into parts of an archive, and back.

takes: the arrays of each function; gives: parts, and the part names of each function.

Functions share arrays, so each distinct one is a part once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ...forest import Array

Names = dict[str, list[str]]


def to_parts(arguments: Mapping[str, Sequence[Array]]) -> tuple[dict[str, Array], Names]:
    """Return each distinct array by its part name, and the part names of each function's arrays."""
    known: dict[bytes, str] = {}
    parts: dict[str, Array] = {}
    names: Names = {function: [] for function in arguments}
    for function, arrays in arguments.items():
        for array in arrays:
            digest = hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode())
            digest.update(array.tobytes())
            name = known.setdefault(digest.digest(), f"arrays/{len(known)}.npy")
            parts[name] = array
            names[function].append(name)
    return parts, names


def from_parts(parts: Mapping[str, Any], names: Names) -> dict[str, list[Array]]:
    """Return the arrays of each function; functions share them as before `to_parts`."""
    return {function: [parts[name] for name in own] for function, own in names.items()}
