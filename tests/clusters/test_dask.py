"""Dask gives the bits of one process, also if a worker dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from cluster_rows import N_ROWS, check_predictions, die_once, predictor, run_blocks, table
from tvm_forest.dask import predict

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Two workers, processes of their own with a thread each."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


def meet_death(part: Any, flag: Path) -> Any:
    if (part["id"] == N_ROWS // 2).any():
        die_once(flag)
    return part


@pytest.mark.long
def test_predictions_are_equal_although_a_worker_is_killed(client: Any, tmp_path: Path) -> None:
    from dask import dataframe

    flag = tmp_path / "killed"
    rows = dataframe.from_pandas(table().to_pandas(), npartitions=6)
    rows = rows.map_partitions(meet_death, flag, meta=rows._meta)
    check_predictions(predict(rows, predictor()).compute())
    assert flag.exists()


def test_the_program_of_the_page_runs(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks("tvm_forest.dask", {}, tmp_path)
    check_predictions(parquet.read_table(tmp_path / "scores"))
