"""IRModule -> IRModule: what happens between the schedule and machine code.

takes: a scheduled module with walk operators; gives: plain TIR that TVM's own pipeline compiles.
"""

from __future__ import annotations

import tvm
from tvm import s_tir

from ..tir_gen.representation import Representation
from .lower_walks import LowerWalks
from .tighten_guards import TightenGuards


def pipeline(rep: Representation, comparison: str) -> tvm.transform.Pass:
    """Return the passes that lower a scheduled function.

    Args:
        rep: layout that says how to emit the steps of a walk.
        comparison: "<" or "<=", what sends a value to the left.
    """
    block = s_tir.transform
    return tvm.transform.Sequential(
        [
            # phase 1: blocks become plain loops; the order is that of TVM's own pipeline
            block.CanonicalizeLoop(),
            block.LowerCrossThreadReduction(),
            block.LowerInitBlock(),
            block.PlanAndUpdateBufferAllocationLocation(),
            block.ConvertBlocksToOpaque(),
            block.LiftThreadBinding(),
            block.CompactBufferAllocation(is_strict=False),
            block.UnifyThreadBinding(),
            block.LowerMatchBuffer(),
            block.StmtSimplify(),
            block.LowerOpaqueBlock(),
            # phase 2: guards of partial tiles become loop bounds
            TightenGuards(),
            # phase 3: the walk operator becomes loads, comparisons and steps
            LowerWalks(rep, comparison),
        ],
        name="tvm_forest.pipeline",
    )
