"""Builds by schedules that compile fast, where predictions are not what is tested."""

from typing import Any

import tvm_forest
from tvm_forest import compiler
from tvm_forest.runtime.results import SUMS
from tvm_forest.target import parse_target


def build(model: Any, target: Any = "llvm") -> Any:
    """Build by a schedule that compiles fast: predictions are not what is tested here."""
    schedule = tvm_forest.new_schedule(model) if "llvm" in str(target) else None
    return tvm_forest.build(model, target, schedule)


def lower_sums(model: Any, sch: Any, target: Any = "llvm") -> compiler.Lowered:
    """Lower "predict" alone, in a third of the time that all functions take."""
    return compiler.lower(model, sch, parse_target(target), (SUMS,))
