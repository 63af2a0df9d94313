"""The spaces of CPUs and GPUs, and the strategies for each.

takes: Forest, Target, sizes of batches; gives: spaces; by name, what searches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..forest import Forest
from ..target import Target
from .gpu_space import GpuSpace, search_by_algorithm_1
from .space import Space
from .strategies import STRATEGIES, Strategy, search_exhaustively

GPU_STRATEGIES: dict[str, Strategy] = {
    "heuristic": search_by_algorithm_1,
    "exhaustive": search_exhaustively,
}


def spaces_of(
    forest: Forest,
    target: Target,
    batches: Iterable[int],
    n_jobs: int | None = None,
    exact: bool = True,
) -> Mapping[int, Space | GpuSpace]:
    """Return what may be chosen for a model, for each size of batch.

    Args:
        forest: the model.
        target: a CPU or a GPU.
        batches: rows of a call.
        n_jobs: threads of a call on a CPU, as in `build`.
        exact: leave out points that add up in another order; a CPU has no others.
    """
    if target.on_gpu:
        return {batch: GpuSpace.of(forest, target, batch, exact) for batch in batches}
    return Space.each(forest, target, batches, n_jobs)


def strategies_of(target: Target) -> dict[str, Strategy]:
    """Return what searches the space of a target, by name."""
    return GPU_STRATEGIES if target.on_gpu else STRATEGIES
