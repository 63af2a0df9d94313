"""Replaces functions and words of TVM by ours.

takes: functions and words; gives: nothing.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi


def replace_functions(others: dict[str, Any]) -> None:
    """Replace global functions of TVM by others."""
    for name, function in others.items():
        tvm_ffi.register_global_func(name, function, override=True)


def put_word(word: str, meaning: Any, modules: Any) -> None:
    """Define a word in the Python modules where TVMScript looks it up."""
    for module in modules:
        setattr(module, word, meaning)
