"""Builds by schedules that compile fast, where predictions are not what is tested."""

from typing import Any

import tvm_forest
from tvm_forest import compiler
from tvm_forest.layouts.laying_out import lay_out
from tvm_forest.layouts.laying_out.request import BuildRequest
from tvm_forest.target import parse_target


def build(model: Any, target: Any = "llvm") -> Any:
    """Build by a schedule that compiles fast: predictions are not what is tested here."""
    schedule = tvm_forest.new_schedule(model) if "llvm" in str(target) else None
    return tvm_forest.build(model, target, schedule)


def lower_sums(model: Any, sch: Any, target: Any = "llvm") -> compiler.Lowered:
    """Lower "predict" alone, in a third of the time that all functions and their stages take."""
    request = BuildRequest.of(model, {1: sch}, parse_target(target))
    return compiler.lower_request(request, lay_out(request))
