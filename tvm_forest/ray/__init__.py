"""Predicts batches of Ray Data.

takes: batches of a Dataset, a model; gives: batches with columns of predictions.

    rows.map_batches(ActorScore, fn_constructor_args=(ship(model),), batch_format="pyarrow")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import clusters
from ..clusters import ship as ship


class ActorScore(clusters.Score):
    """A class for `Dataset.map_batches`, which makes an object in each actor to call for batches.

    The package has to be installed on the nodes.
    """

    where = "ray.ActorScore"

    def __init__(
        self,
        model: Any,
        columns: Sequence[str] | None = None,
        kind: str = "predict",
        output: str | None = None,
        n_jobs: int | None = None,
    ) -> None:
        """Load or compile the model in this actor.

        Args:
            model, columns, kind, output: see `clusters.Score`. If the model is a Predictor or the
                result of `ship`, Ray keeps one copy in the object store of each node.
            n_jobs: number of threads; None for the cores of the actor, `num_cpus`.

        Raises:
            InputError, ModelFormatError, UnsupportedModel, BuildError: see `clusters.Score`.
        """
        super().__init__(model, columns, kind, output, _count_cores() if n_jobs is None else n_jobs)


def _count_cores() -> int:
    """Return the number of cores that Ray gives this actor, 1 outside of an actor."""
    import ray

    if not ray.is_initialized():
        return 1
    return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
