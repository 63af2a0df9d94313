"""Replaces global functions of TVM, and adds words to TVMScript.

takes: functions and words; gives: nothing.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi


def replace_functions(others: dict[str, Any]) -> None:
    """Replace global functions of TVM by others, given by name."""
    for name, function in others.items():
        tvm_ffi.register_global_func(name, function, override=True)


def put_word(word: str, meaning: Any, modules: Any) -> None:
    """Define a word, such as `tvm_forest` of `R.tvm_forest`, in the modules of TVMScript."""
    for module in modules:
        setattr(module, word, meaning)
