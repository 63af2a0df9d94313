"""What targets do alike with kernels before and after TVM writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi


def map_nodes(mod: tvm.IRModule, kind: Any, change: Callable[[Any], Any]) -> tvm.IRModule:
    """Return kernels whose nodes of one kind are replaced by what a function makes of them."""
    kernels = {
        var: func.with_body(tvm_ffi.structural_map(func.body, (kind, change)))
        for var, func in mod.functions.items()
    }
    return tvm.IRModule(kernels)


def atomic_functions(text: str, template: str, words: dict[str, dict[str, str]]) -> str:
    """Define the functions that kernels call to add to a number and to get what it was before.

    Args:
        text: the kernels.
        template: a definition, with {name} and the keys of `words`.
        words: for each dtype, what stands in its definition.
    """
    named = ((f"tvmf_atomic_add_{dtype}", rest) for dtype, rest in words.items())
    return "".join(template.format(name=name, **rest) for name, rest in named if name in text)
