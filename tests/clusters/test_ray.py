"""Ray gives the bits of one process, also if an actor dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from cluster_rows import (
    N_ROWS,
    check_predictions,
    die_once,
    predictor,
    run_blocks,
    table,
    worker_paths,
)
from tvm_forest.ray import ActorScore, ship

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two cores, and workers in a folder of their own."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    with worker_paths() as patch:
        patch.chdir(tmp_path_factory.mktemp("workers"))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(num_cpus=2, object_store_memory=100 << 20, **options)
        yield ray
        ray.shutdown()


class MortalScore(ActorScore):
    """Ends its actor at the middle row."""

    def __init__(self, flag: Path, *arguments: Any) -> None:
        self.flag = flag
        super().__init__(*arguments)
        assert self._n_jobs == 1

    def __call__(self, batch: Any) -> Any:
        if N_ROWS // 2 in batch["id"].to_pylist():
            die_once(self.flag)
        return super().__call__(batch)


def test_predictions_are_equal_although_an_actor_is_killed(ray: Any, tmp_path: Path) -> None:
    parts = [table().slice(begin, 40) for begin in range(0, N_ROWS, 40)]
    rows = ray.data.from_arrow([*parts, table().slice(0, 0)])
    flag = tmp_path / "killed"
    found = rows.map_batches(
        MortalScore,
        fn_constructor_args=(flag, ship(predictor())),
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=2),
        num_cpus=1,
    )
    check_predictions(found.to_pandas())
    assert flag.exists()


def test_the_program_of_the_page_runs(ray: Any) -> None:
    run_blocks("tvm_forest.ray", {}, Path.cwd())
    check_predictions(parquet.read_table("scores"))
