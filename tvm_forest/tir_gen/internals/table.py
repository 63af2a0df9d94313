"""The table of TVM internals that this package uses, each with the reason.

takes: nothing; gives: Internal, and functions that add one to the table and return its name.

A row names something that a new TVM may lack, and why this package needs it. `names` adds the rows;
the tests search each in the installed TVM, and `docs/upgrading_tvm.md` lists them.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple


class Internal(NamedTuple):
    """One undocumented internal of TVM.

    Attributes:
        kind: the kind of internal, a key of `KINDS`.
        name: its name in TVM; for a printed text, a pattern that the text must contain.
        why: what this package uses it for.
        files: files of this package that use it without a constant of `names`.
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
"""Kinds of internals, with their headings; the last five are patterns of texts that TVM prints."""

TABLE: list[Internal] = []


def _add(kind: str, name: str, why: str, *files: str) -> str:
    TABLE.append(Internal(kind, name, why, files))
    return name


function, operator, python, word, message, llvm, windows, rocm, cuda, opencl = (
    partial(_add, kind) for kind in KINDS
)
