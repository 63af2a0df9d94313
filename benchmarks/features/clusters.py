"""Rows of Parquet predicted on Spark, Ray and Dask, two workers each, one of them killed.

    python -m benchmarks features.clusters --rows 1000000 --folder /tmp/clusters

Draws files of rows of the model airline, each with a number, and predicts them in one process: in
memory, and by `predict_file`. Then each engine reads them, predicts, and writes Parquet: once so
that its workers are there, as often as asked with a clock, and once more while a worker is killed
(SIGKILL) that meets the middle row. Each time all predictions are compared with those of one
process, bit for bit. Prints rows of the table in `docs/clusters.md`, and removes the folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import tvm_forest
import tvm_forest.dask
import tvm_forest.ray
import tvm_forest.spark
from benchmarks import models

FILES = 16
SPARK_MEMORY = 1024


def name_columns(predictor: Any) -> list[str]:
    return list(predictor.forest.given_names or ())


def make(folder: Path, n_rows: int, name: str, cache: Path) -> None:
    """Write the model, and rows drawn from those of the model."""
    model = models.get(name, cache)
    predictor = tvm_forest.build(model.path)
    predictor.save(folder / "model.tvmf")
    rows = np.load(model.rows_path)
    names = name_columns(predictor) or [f"f{i}" for i in range(rows.shape[1])]
    rng = np.random.default_rng(0)
    (folder / "rows").mkdir()
    for number, ids in enumerate(np.array_split(np.arange(n_rows), FILES)):
        drawn = rows[rng.integers(len(rows), size=len(ids))]
        table = pa.table({"id": ids, **dict(zip(names, drawn.T, strict=True))})
        parquet.write_table(table, folder / "rows" / f"part-{number:02}.parquet")


def read_found(path: Path) -> Any:
    """Return the predictions in the order of the numbers of rows."""
    table = parquet.read_table(path, columns=["id", "prediction"]).sort_by("id")
    assert np.array_equal(table["id"].to_numpy(), np.arange(len(table))), "rows are lost or doubled"
    return table["prediction"].to_numpy()


class Bench:
    """What all engines are given, and the predictions that they have to give."""

    def __init__(self, folder: Path, turns: int) -> None:
        self.folder, self.turns = folder, turns
        self.model, self.rows = folder / "model.tvmf", folder / "rows"
        self.predictor = tvm_forest.load_predictor(self.model)
        table = parquet.read_table(self.rows)
        self.columns = table.schema.names[1:]
        given = table.select(self.columns)
        if not name_columns(self.predictor):
            given = np.stack([x.to_numpy() for x in given.columns], axis=1)
        self.given, self.expected = given, self.predictor.predict(given, n_jobs=1)
        self.middle = len(table) // 2

    def clock(self, name: str, run: Callable[[], Any]) -> None:
        """Run something that writes nothing, and print how fast it is."""
        self._print(name, [self._measure(run) for _ in range(self.turns)])

    def compare(self, name: str, run: Callable[[Path, str], Any]) -> None:
        """Run an engine, warm, with a clock, and with a kill; and compare what it writes."""
        self._write(run, "")
        seconds = [self._write(run, "") for _ in range(self.turns)]
        flag = self.folder / f"{name}-killed"
        killed = self._write(run, str(flag))
        assert flag.exists(), "nobody was killed"
        self._print(name, seconds, f"equal | {killed:.1f} s, equal")

    def _write(self, run: Callable[[Path, str], Any], flag: str) -> float:
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        seconds = self._measure(lambda: run(out, flag))
        found = read_found(out)
        assert np.array_equal(found.view("i4"), self.expected.view("i4")), "not equal"
        return seconds

    def _measure(self, run: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    def _print(self, name: str, seconds: list[float], rest: str = "equal | ") -> None:
        speed = len(self.expected) / np.median(seconds) / 1e3
        print(f"| {name} | {speed:,.0f} | {np.median(seconds):.2f} s | {rest} |", flush=True)


def kill_once(flag: str, find_victim: Callable[[], int] = os.getpid) -> None:
    """Kill a process, unless it has been done."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(find_victim(), signal.SIGKILL)
    time.sleep(60)  # until the signal is there


def run_one_process(bench: Bench) -> None:
    """Predict in this process."""
    out = bench.folder / "one.parquet"
    for jobs in (1, 2):
        threads = f"{jobs} thread{'s'[: jobs - 1]}"
        bench.clock(f"in memory, {threads}", partial(bench.predictor.predict, bench.given, jobs))
        stream = partial(tvm_forest.predict_file, bench.predictor, bench.rows, out, ["id"])
        if name_columns(bench.predictor):
            bench.clock(f"`predict_file`, {threads}", partial(stream, n_jobs=jobs))
            assert np.array_equal(read_found(out), bench.expected)


def find_executor() -> int:
    """Return the process of Spark's executor: the parent of the daemon that made this worker."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def run_spark(bench: Bench) -> None:
    """Two executors with a core each, in processes of their own."""
    import pyspark
    from pyspark.sql import SparkSession

    home = str(Path(pyspark.__file__).parent)
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": home}
    paths = os.environ.get("PYTHONPATH", "")
    spark = (
        SparkSession.builder.master(f"local-cluster[2,1,{SPARK_MEMORY}]")
        .config("spark.ui.enabled", "false")
        .config("spark.executorEnv.PYTHONPATH", paths)
        .config("spark.executor.memory", f"{SPARK_MEMORY}m")
        .config("spark.sql.files.minPartitionNum", str(FILES))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    middle = bench.middle

    def run(out: Path, flag: str) -> None:
        rows = spark.read.parquet(str(bench.rows))

        def die(batches: Any) -> Any:
            for batch in batches:
                if middle in batch["id"].to_pylist():
                    kill_once(flag, find_executor)
                yield batch

        if flag:
            rows = rows.mapInArrow(die, rows.schema)
        found = tvm_forest.spark.predict(rows, bench.model, bench.columns)
        found.select("id", "prediction").write.parquet(str(out))

    bench.compare("Spark", run)
    spark.stop()


class MortalScore(tvm_forest.ray.ActorScore):
    """Ends its actor at the middle row."""

    def __init__(self, flag: str, middle: int, *arguments: Any) -> None:
        self.flag, self.middle = flag, middle
        super().__init__(*arguments)

    def __call__(self, batch: Any) -> Any:
        if self.middle in batch["id"].to_pylist():
            kill_once(self.flag)
        return super().__call__(batch)


def run_ray(bench: Bench) -> None:
    """Two actors with a core each, and two cores by name for what reads and writes."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    import ray
    import ray.data

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    model = tvm_forest.ray.ship(bench.model)

    def run(out: Path, flag: str) -> None:
        own = (flag, bench.middle) if flag else ()
        found = ray.data.read_parquet(str(bench.rows), override_num_blocks=FILES).map_batches(
            MortalScore if flag else tvm_forest.ray.ActorScore,
            fn_constructor_args=(*own, model, bench.columns),
            batch_format="pyarrow",
            batch_size=65536,
            compute=ray.data.ActorPoolStrategy(size=2),
            num_cpus=1,
        )
        found.select_columns(["id", "prediction"]).write_parquet(str(out))

    bench.compare("Ray Data", run)
    ray.shutdown()


def die_in_the_middle(part: Any, middle: int, flag: str) -> Any:
    if (part["id"] == middle).any():
        kill_once(flag)
    return part


def run_dask(bench: Bench) -> None:
    """Two processes with a thread each."""
    import dask.dataframe
    from dask.distributed import Client, LocalCluster

    def run(out: Path, flag: str) -> None:
        rows = dask.dataframe.read_parquet(bench.rows)
        if flag:
            rows = rows.map_partitions(die_in_the_middle, bench.middle, flag, meta=rows._meta)
        found = tvm_forest.dask.predict(rows, bench.model, bench.columns)
        found[["id", "prediction"]].to_parquet(out)

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster):
        bench.compare("Dask", run)


STEPS = {
    "one": run_one_process,
    "spark": run_spark,
    "ray": run_ray,
    "dask": run_dask,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--model", default="airline")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/clusters"))
    parser.add_argument("--models", type=Path, default=models.CACHE)
    parser.add_argument("--step", choices=["make", *STEPS, "remove"], nargs="*")
    options = parser.parse_args()
    steps = options.step or ["make", *STEPS, "remove"]
    if "make" in steps:
        options.folder.mkdir(parents=True)
        make(options.folder, options.rows, options.model, options.models)
    bench = Bench(options.folder, options.turns) if set(steps) & set(STEPS) else None
    for name in STEPS:
        if name in steps:
            STEPS[name](bench)
    if "remove" in steps:
        shutil.rmtree(options.folder)
