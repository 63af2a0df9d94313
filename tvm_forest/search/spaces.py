"""The spaces of CPUs and GPUs, and the strategies for each.

takes: Forest, Target, sizes of batches; gives: spaces; by name, what walks through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ..forest import Forest
from ..schedule import Schedule
from ..target import Target
from .gpu_space import GpuSpace, algorithm_1_and_moves
from .space import Space
from .strategies import STRATEGIES, exhaustive

Walk = Callable[..., None]
"""Takes a space, a `measure` and a generator of random numbers."""

GPU_STRATEGIES: dict[str, Walk] = {"heuristic": algorithm_1_and_moves, "exhaustive": exhaustive}


class AnySpace(Protocol):
    """What strategies that know nothing of parameters ask of a space."""

    @property
    def default(self) -> Schedule:
        """The schedule that is used without a search."""

    def points(self) -> Iterable[Any]:
        """Return every point, in a fixed order."""

    def schedule(self, point: Any) -> Schedule:
        """Return the schedule of a point."""


def spaces_of(
    forest: Forest,
    target: Target,
    batches: Iterable[int],
    n_jobs: int | None = None,
    exact: bool = True,
) -> Mapping[int, AnySpace]:
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


def strategies_of(target: Target) -> dict[str, Walk]:
    """Return what walks through the space of a target, by name."""
    return GPU_STRATEGIES if target.on_gpu else {**STRATEGIES}
