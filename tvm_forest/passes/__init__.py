"""Lowers a scheduled module to plain TIR: all passes between the schedule and machine code.

takes: a scheduled module with walk operators; gives: plain TIR that TVM's own pipeline compiles.
"""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx

from .cache_near import CacheNear
from .code_rows import CodeRows
from .cpu.fuse_parallel import FuseParallel
from .cpu.keep_sums import KeepSums
from .cpu.read_sizes import ReadSizes
from .gpu.cache_trees import CacheTrees
from .gpu.link_in_blocks import LinkInBlocks
from .gpu.map_threads import MapThreads
from .gpu.narrow_indices import NarrowIndices
from .gpu.thread_sums import ThreadSums
from .lower_linear import LowerLinear
from .lower_reductions import LowerReductions
from .lower_walks import LowerWalks
from .nest_facts import NestFacts
from .place_initials import PlaceInitials, SeparateSums
from .privatize_sums import PrivatizeSums
from .reading.read_nest import ForgetNest
from .tighten_guards import TightenGuards
from .write_nest import WriteNest


def pipeline(
    facts: NestFacts, abilities: frozenset[str] | None, shared_bytes: int | None = None
) -> tvm.transform.Pass:
    """Return the passes that lower a scheduled function.

    Args:
        facts: facts about the function's loops, see `read_nest`.
        abilities: the CPU's features, by LLVM's names; None for a GPU's kernels.
        shared_bytes: bytes of shared memory that a GPU block may use; None for a CPU.
    """
    block = s_tir.transform
    steps: list[tvm.transform.Pass] = [
        # phase 1: blocks become plain loops; the order is that of TVM's own pipeline
        SeparateSums(facts),
        block.CanonicalizeLoop(),
        PlaceInitials(),  # and TVM's LowerCrossThreadReduction
        block.LowerInitBlock(),
        block.PlanAndUpdateBufferAllocationLocation(),
        block.ConvertBlocksToOpaque(),
        block.LiftThreadBinding(),
        block.CompactBufferAllocation(is_strict=False),
        block.UnifyThreadBinding(),
        block.LowerMatchBuffer(),
        block.StmtSimplify(),
        block.LowerOpaqueBlock(),
        # phase 2: loops that directives have copied are written, and guards become bounds
        WriteNest(facts),
        TightenGuards(facts),
        # phase 3: parallel loops over trees get private sums; loops over all rounds read their end
        PrivatizeSums(facts),
        ReadSizes(facts),
        # phase 4: rows are coded; rows, trees and sums are copied; nested parallel loops are fused
        CodeRows(facts, abilities),
        CacheNear(facts),
        FuseParallel(facts),
        KeepSums(facts),
        ThreadSums(facts),
        ForgetNest(),
        # phase 5: operators become loads, comparisons, steps, terms and additions
        LowerWalks(facts, abilities),
        LowerLinear(),
        LowerReductions(),
    ]
    if shared_bytes is not None:
        # phase 6: on a GPU, mapped loops become kernels, and so does the code around them
        steps += [CacheTrees(facts), LinkInBlocks(facts), MapThreads(facts, shared_bytes)]
        steps += [tirx.transform.StmtSimplify(), NarrowIndices()]
    return tvm.transform.Sequential(steps, name="tvm_forest.pipeline")
