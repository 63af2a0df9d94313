"""The table of TVM internals that this package uses, each with the reason.

takes: nothing; gives: Internal, and functions that add one to the table and return its name.

A row says what a new TVM may lack, and why we need it. `names` writes the rows; the tests look for
each in the TVM that is installed, and `docs/upgrading_tvm.md` shows them.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple


class Internal(NamedTuple):
    """One internal of TVM.

    Attributes:
        kind: where it is looked for: a key of `KINDS`.
        name: what TVM calls it; of a text, a pattern that must be found in it.
        why: what we need it for.
        files: of this package that need it, where they have it from no constant.
    """

    kind: str
    name: str
    why: str
    files: tuple[str, ...]


KINDS = {
    "function": "Global functions, looked up or replaced by their names",
    "operator": "Operators, found and written by their names",
    "python": "Python names that TVM does not document, and modules into which words are put",
    "word": "Keys, attributes and variables that TVM's C++ reads",
    "message": "Words in messages of TVM",
    "llvm": "What stands in LLVM's text of functions for a CPU",
    "windows": "What stands in LLVM's text of functions for Windows",
    "rocm": "What stands in LLVM's text of kernels for AMD's GPUs",
    "cuda": "What stands in CUDA text",
    "opencl": "What stands in OpenCL text",
}
"""Kinds of internals; the last five are texts that we change or search."""

TABLE: list[Internal] = []


def _add(kind: str, name: str, why: str, *files: str) -> str:
    TABLE.append(Internal(kind, name, why, files))
    return name


function, operator, python, word, message, llvm, windows, rocm, cuda, opencl = (
    partial(_add, kind) for kind in KINDS
)
