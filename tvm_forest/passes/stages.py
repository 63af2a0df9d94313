"""Records the module after every pass, for inspection.

takes: TVM's pass events while `Stages` is an instrument of the context; gives: modules.

Functions are lowered one by one, by passes with the same names. So a stage has the name of a pass,
and holds all functions as they are after it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

SCHEDULE: Any = tvm.transform.module_pass(lambda mod, ctx: mod, opt_level=0, name="schedule")
"""A pass that does nothing, whose stage holds the functions as scheduled."""


@tvm.instrument.pass_instrument
class Stages:
    """Records the functions after each pass.

    Attributes:
        functions: for each stage, in order, the functions by name.
    """

    def __init__(self) -> None:
        self.functions: dict[str, dict[str, tirx.PrimFunc]] = {}
        self._around = 0  # passes that are running

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        """Count the passes that are running; TVM calls this before each pass."""
        self._around += 1

    def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
        """Add the functions to the stage named after a pass; TVM calls this after each pass.

        Passes that run inside another one, and sequences of passes, have no stage.
        A repeated pass gets a number: "tirx.StmtSimplify" is followed by "tirx.StmtSimplify 2".
        """
        self._around -= 1
        if self._around != 1:  # a sequence itself, or a pass that another pass runs
            return
        functions = {var.name_hint: func for var, func in mod.functions.items()}
        stage, number = str(info.name), 1
        while self.functions.get(stage, {}).keys() & functions.keys():
            number += 1
            stage = f"{info.name} {number}"
        self.functions.setdefault(stage, {}).update(functions)
