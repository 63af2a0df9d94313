"""Look for what we need of TVM's internals in the TVM that is installed."""

from __future__ import annotations

import functools
import mmap
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from internals_page import find_users
from tvm_forest.tir_gen.internals.table import KINDS, Internal
from tvm_texts import text_of

FOLDER = Path(tvm.__file__).parent


@functools.cache
def list_compiled() -> list[mmap.mmap]:
    """Return the bytes of TVM's libraries."""
    files = [path.open("rb") for path in sorted((FOLDER / "lib").glob("*.so"))]
    return [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in files]


def has_word(word: str) -> bool:
    """Return whether a library of TVM holds a text that ends with a word."""
    return any(library.find(word.encode() + b"\0") >= 0 for library in list_compiled())


def has_message(part: str) -> bool:
    """Return whether TVM says something."""
    in_python = any(part in x.read_text("utf-8") for x in (FOLDER / "support").glob("*.py"))
    return in_python or any(library.find(part.encode()) >= 0 for library in list_compiled())


def has_name(dotted: str) -> bool:
    """Return whether Python finds a name, which may also be one that objects of a class get."""
    *path, last = dotted.split(".")
    if any(True for _ in _find([*path, last])):
        return True
    owner = next(_find(path), None)
    start = getattr(getattr(owner, "__init__", None), "__code__", None)
    return last in getattr(start, "co_names", ()) or last in getattr(owner, "__annotations__", ())


def _find(path: list[str]) -> Iterator[Any]:
    """Yield what a path leads to, by modules as far as there are some, then by attributes."""
    for count in range(len(path), 0, -1):
        try:
            found: Any = import_module(".".join(path[:count]))
            for name in path[count:]:
                found = getattr(found, name)
        except (ImportError, AttributeError):
            continue
        yield found


def has_text(kind: str, pattern: str) -> bool:
    """Return whether TVM writes something."""
    return re.search(pattern, text_of(kind), re.MULTILINE) is not None


CHECKS: dict[str, Callable[[str], bool]] = {
    "function": lambda name: tvm.get_global_func(name, allow_missing=True) is not None,
    "operator": lambda name: name in tvm.ir.Op.list_op_names(),
    "python": has_name,
    "word": has_word,
    "message": has_message,
}


def find_fault(row: Internal) -> str:
    """Say that this TVM lacks something, and what of ours needs it; "" if it has it."""
    check = CHECKS.get(row.kind) or functools.partial(has_text, row.kind)
    if check(row.name):
        return ""
    return (
        f"TVM {tvm.__version__} with apache-tvm-ffi {tvm_ffi.__version__} lacks "
        f"{row.name!r} ({KINDS[row.kind]}), for: {row.why}; {', '.join(find_users(row))}"
    )
