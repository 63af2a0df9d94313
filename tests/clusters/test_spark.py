"""Spark gives the bits of one process, also if a worker dies."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
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
from tvm_forest.errors import InputError
from tvm_forest.spark import PartitionScore, predict

FILES = 4
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # of Spark, about pandas 3
]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two workers in a folder of their own, and tasks that are tried up to four times."""
    session_class = pytest.importorskip("pyspark.sql").SparkSession
    options = {
        # What starts quickly: this Java does not live long enough to be optimized.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.memory": "768m",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.files.minPartitionNum": str(FILES),
        "spark.ui.enabled": "false",
    }
    with worker_paths() as patch:
        patch.chdir(tmp_path_factory.mktemp("workers"))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = session_class.builder.master("local[2,4]").config(map=options).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


@dataclass(frozen=True)
class MortalScore:
    """Ends its worker at the middle row, after it has predicted rows."""

    score: PartitionScore
    flag: Path

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in self.score(batches):
            if N_ROWS // 2 in batch["id"].to_pylist():
                die_once(self.flag)
            yield batch


class Watched:
    """A DataFrame of which each partition meets a worker that dies once."""

    def __init__(self, frame: Any, flag: Path) -> None:
        self._frame, self._flag = frame, flag

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frame, name)

    def mapInArrow(self, score: PartitionScore, schema: Any) -> Any:
        return self._frame.mapInArrow(MortalScore(score, self._flag), schema)


def read(spark: Any, folder: Path) -> Any:
    """Read a partition of each of some files."""
    step = N_ROWS // FILES
    for begin in range(0, N_ROWS, step):
        parquet.write_table(table().slice(begin, step), folder / f"{begin:03}.parquet")
    return spark.read.parquet(str(folder))


def test_predictions_are_equal_although_a_worker_is_killed(spark: Any, tmp_path: Path) -> None:
    flag, rows = tmp_path / "killed", tmp_path / "rows"
    rows.mkdir()
    found = predict(Watched(read(spark, rows), flag), predictor())
    assert found.schema["prediction"].dataType.simpleString() == "float"
    check_predictions(found.toArrow())
    assert flag.exists()


def test_partitions_without_rows_and_several_columns(spark: Any, tmp_path: Path) -> None:
    rows = read(spark, tmp_path).filter("id < 10")
    found = predict(rows, predictor(), kind="apply", output="leaf").toArrow()
    assert found.num_rows == 10
    assert found.schema.names == [*table().schema.names, *(f"leaf_{i}" for i in range(5))]


def test_what_does_not_fit_is_refused_before_a_job_starts(spark: Any, tmp_path: Path) -> None:
    rows = read(spark, tmp_path)
    with pytest.raises(InputError, match="spark.predict: argument 'columns': no column 'age'"):
        predict(rows.drop("age"), predictor())
    with pytest.raises(InputError, match="column 'age': type decimal"):
        predict(rows.withColumn("age", rows["age"].cast("decimal(9,2)")), predictor())
    with pytest.raises(InputError, match="there is a column 'id' already"):
        predict(rows, predictor(), output="id")


def test_the_program_of_the_page_runs(spark: Any) -> None:
    run_blocks("tvm_forest.spark", {}, Path.cwd())
    check_predictions(parquet.read_table("scores"))
