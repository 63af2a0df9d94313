"""What `passes/gpu` reads off the annotations of loops; `nest_facts` says the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from ..nest import paths
from ..schedule import Schedule
from ..schedule_prims.replay import NAME
from ..tir_gen.ir import i64, with_body

GPU = "tvm_forest.gpu"
CACHE = "tvm_forest.cache"
KIND = "tvm_forest.kind"
INTERLEAVE = "tvm_forest.interleave"
SIMDIZE = "tvm_forest.simdize"
REDUCE = "tvm_forest.reduce"


def value_of(loop: tirx.For, n: Any) -> Any:
    """Return what an iteration of a loop adds to the number of the row, class or tree."""
    step = loop.annotations["tvm_forest.step"]
    if isinstance(step, str):
        parts = int(str(step).removeprefix("ceil(n/").removesuffix(")"))
        step = tirx.floordiv(n + (parts - 1), tirx.const(parts, "int64"))
    else:
        step = tirx.const(int(step), "int64")
    return loop.loop_var * step + int(loop.annotations["tvm_forest.start"])


def in_blocks(body: tirx.Stmt, change: Callable[[tirx.Stmt], tirx.Stmt]) -> tirx.Stmt:
    """Change what each block of a GPU does: what is inside of further loops over the grid."""
    if isinstance(body, tirx.For) and str(body.annotations.get(GPU, "")).startswith("grid"):
        return with_body(body, in_blocks(body.body, change))
    return change(body)


def on_gpu(sch: Schedule) -> bool:
    """Return whether loops are mapped to a GPU."""
    return any(loop.gpu for loop in sch.loops())


def reach(sch: Schedule, around: tuple[tirx.For, ...], rows: Any) -> tuple[Any, Any, int | None]:
    """First row of an iteration of the last loop, how many rows there are here, and at most."""
    loop, n = around[-1], rows.shape[0]
    outer = [x for x in around if str(x.annotations[KIND]) == "batch"]
    first = sum((value_of(x, n) for x in outer), i64(0))
    below = paths(sch[str(loop.annotations[NAME])])
    inside = [[x for x in path[1:] if x.kind == "batch"] for path in below]
    if any(x.last is None for path in inside for x in path):
        return first, n - first, None
    most = 1 + max(sum(x.last or 0 for x in path) for path in inside)
    return first, tirx.max(i64(0), tirx.min(i64(most), n - first)), most


def shuffled(loop: tirx.For) -> int:
    """Return how many threads that share a loop add up their sums by shuffles; 0 for none."""
    strategy = str(loop.annotations.get(REDUCE, "plain"))
    on_block = str(loop.annotations.get(GPU, "")).startswith("block")
    return int(strategy.split()[1]) if strategy.startswith("vector") and on_block else 0
