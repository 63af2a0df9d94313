"""The module after every pass, for those who look at it.

takes: passes, IRModule; gives: IRModule, and those on the way to it where somebody keeps them.

Functions are lowered one by one, by passes that have the same names for all. So a stage holds the
functions as they are behind the passes of one name. Outside of `keep_stages` nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import tvm
from tvm import tirx

Stages = dict[str, dict[str, tirx.PrimFunc]]
"""Functions by the name of a stage, the first stage first, and by their own."""

_kept: ContextVar[Stages | None] = ContextVar("kept", default=None)


@contextmanager
def keep_stages() -> Iterator[Stages]:
    """Keep the stages of what is lowered inside."""
    stages: Stages = {}
    token = _kept.set(stages)
    try:
        yield stages
    finally:
        _kept.reset(token)


def run_passes(steps: Sequence[tvm.transform.Pass], mod: tvm.IRModule) -> tvm.IRModule:
    """Return what passes make of a module, each a stage."""
    if _kept.get() is None:
        return tvm.transform.Sequential(list(steps))(mod)
    for step in steps:
        mod = step(mod)
        keep_stage(str(step.info.name), mod)
    return mod


def keep_stage(name: str, mod: tvm.IRModule) -> None:
    """Add functions to a stage, where stages are kept; of a name that they have had, to the next.

    TVM's passes may come twice: then "tirx.StmtSimplify" is followed by "tirx.StmtSimplify 2".
    """
    stages = _kept.get()
    if stages is None:
        return
    functions = {var.name_hint: func for var, func in mod.functions.items()}
    stage, number = name, 1
    while stages.get(stage, {}).keys() & functions.keys():
        number += 1
        stage = f"{name} {number}"
    stages.setdefault(stage, {}).update(functions)
