"""Decorators that turn a class into a TVM pass.

takes: a frozen dataclass, whose fields are the options of the pass, or a class without options;
gives: a pass.

A pass may refuse a schedule: exceptions of this package keep their class when they go through TVM.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..errors import BuildError, ScheduleError
from ..layouts.protocol import Layout
from ..system.values import dataclass
from .nest_facts import NestFacts

for _error in (BuildError, ScheduleError):  # TVM has a ScheduleError of its own
    tvm_ffi.register_error(f"tvm_forest.{_error.__name__}", _error)


def function_pass(cls: type) -> Any:
    """Return a pass "tvm_forest.<class>" that calls `rewrite(func)` for every function."""

    def transform_function(
        self: Any, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        return self.rewrite(func)

    setattr(cls, "transform_function", transform_function)  # noqa: B010
    return tirx.transform.prim_func_pass(cls, opt_level=0, name=f"tvm_forest.{cls.__name__}")


def expanding_pass(cls: type) -> Any:
    """Return a pass "tvm_forest.<class>" that replaces each function by `expand(var, func)`.

    The result maps names to functions: the one for `var` replaces the function, others are added.
    If there is none for `var`, the function stays as it is.
    """

    def transform_module(
        self: Any, mod: tvm.IRModule, ctx: tvm.transform.PassContext
    ) -> tvm.IRModule:
        functions = dict(mod.functions.items())
        for var, func in mod.functions.items():
            functions |= self.expand(var, func)
        return tvm.IRModule(functions)

    setattr(cls, "transform_module", transform_module)  # noqa: B010
    return tvm.transform.module_pass(cls, opt_level=0, name=f"tvm_forest.{cls.__name__}")


@dataclass(frozen=True)
class NestPass:
    """Base class of passes that read the loops of the schedule.

    Attributes:
        facts: facts about the loops of the nest.
    """

    facts: NestFacts

    @property
    def layout(self) -> Layout:
        """The layout of the model."""
        return self.facts.model.layout
