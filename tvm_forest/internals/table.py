"""The table of what this package needs of TVM beyond what TVM documents.

takes: nothing; gives: Internal, and functions that add one to the table and return its name.

A row says what a new TVM may lack, and why we need it. `names` writes the rows; the tests look for
each in the TVM that is installed, and `docs/upgrading_tvm.md` shows them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple


class Internal(NamedTuple):
    """One thing of TVM.

    Attributes:
        kind: where it is looked for: a key of `KINDS`.
        name: what TVM calls it; of a text, a pattern that must be found in it.
        why: what we need it for, as the end of a sentence.
    """

    kind: str
    name: str
    why: str


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
"""What the rows of a kind have in common. The last five are texts that we change or search."""

TABLE: list[Internal] = []


def _add(kind: str, name: str, why: str) -> str:
    TABLE.append(Internal(kind, name, why))
    return name


Add = Callable[[str, str], str]
function: Add = partial(_add, "function")
operator: Add = partial(_add, "operator")
python: Add = partial(_add, "python")
word: Add = partial(_add, "word")
message: Add = partial(_add, "message")
llvm: Add = partial(_add, "llvm")
windows: Add = partial(_add, "windows")
rocm: Add = partial(_add, "rocm")
cuda: Add = partial(_add, "cuda")
opencl: Add = partial(_add, "opencl")
