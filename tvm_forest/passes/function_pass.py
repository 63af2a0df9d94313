"""What makes a pass of TVM out of a class of ours.

takes: a class with the options of the pass for fields; gives: a pass.
"""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from typing import Any

import tvm
from tvm import tirx


def function_pass(cls: type) -> Any:
    """Return a pass "tvm_forest.<class>" that calls `rewrite(func)` for every function.

    The class becomes a frozen dataclass if it is none yet.
    """

    def transform_function(
        self: Any, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        return self.rewrite(func)

    setattr(cls, "transform_function", transform_function)  # noqa: B010
    with_fields = cls if is_dataclass(cls) else dataclass(frozen=True)(cls)
    name = f"tvm_forest.{cls.__name__}"
    return tirx.transform.prim_func_pass(with_fields, opt_level=0, name=name)
