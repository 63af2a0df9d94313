"""The module after every pass, for those who look at it.

takes: what TVM runs while `Stages` are among the instruments of its context; gives: modules.

Functions are lowered one by one, by passes that have the same names for all. So a stage holds the
functions as they are behind the passes of one name.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

SCHEDULE: Any = tvm.transform.module_pass(lambda mod, ctx: mod, opt_level=0, name="schedule")
"""Does nothing but be a stage: functions as they are scheduled."""


@tvm.instrument.pass_instrument
class Stages:
    """Keeps what sequences of passes make of functions.

    Attributes:
        functions: by the name of a stage, the first stage first, and by their own.
    """

    def __init__(self) -> None:
        self.functions: dict[str, dict[str, tirx.PrimFunc]] = {}
        self._around = 0  # passes that are running

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        """Count the passes that run; TVM calls this."""
        self._around += 1

    def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
        """Add functions to a stage, of a name that they have had to the next; TVM calls this.

        TVM's passes may come twice: then "tirx.StmtSimplify" is followed by "tirx.StmtSimplify 2".
        """
        self._around -= 1
        if self._around != 1:  # a sequence itself, or what a pass runs
            return
        functions = {var.name_hint: func for var, func in mod.functions.items()}
        stage, number = str(info.name), 1
        while self.functions.get(stage, {}).keys() & functions.keys():
            number += 1
            stage = f"{info.name} {number}"
        self.functions.setdefault(stage, {}).update(functions)
