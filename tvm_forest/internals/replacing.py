"""Functions and words of ours where TVM looks for its own.

takes: functions and words; gives: nothing.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi


def replace_functions(others: dict[str, Any]) -> None:
    """Give names of global functions to other functions."""
    for name, function in others.items():
        tvm_ffi.register_global_func(name, function, override=True)


def put_word(word: str, meaning: Any, modules: Any) -> None:
    """Let TVMScript know a word, which it looks for in modules of Python."""
    for module in modules:
        setattr(module, word, meaning)
