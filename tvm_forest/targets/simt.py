"""Blocks and threads of a GPU, run one after the other on the CPU at hand.

takes: lowered IRModule with kernels, and Target; gives: a TVM executable.

For tests of schedules where there is no GPU: what is run are the kernels, with their barriers and
their shared memory, so that a race or a barrier in the wrong place gives wrong results or an error.
"""

from __future__ import annotations

import tvm

from ..passes.gpu.run_threads import run_threads
from ..target import Target
from . import cpu

KIND = "simt"


def compile_module(mod: tvm.IRModule, target: Target) -> tvm.runtime.Executable:
    """Turn lowered functions into machine code.

    Raises:
        BuildError: a barrier is not reached by all threads of a block.
    """
    backwards = dict(target.options).get("order") == "backwards"
    functions = {var: run_threads(func, backwards) for var, func in mod.functions.items()}
    return cpu.compile_module(tvm.IRModule(functions), cpu.tvm_target(target))
