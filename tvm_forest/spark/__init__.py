"""Predicts rows of Spark DataFrames.

takes: DataFrames of Spark, a model; gives: DataFrames with columns of predictions.

    predict -- a file for each executor, by addArtifacts --> PartitionScore, on each Python worker
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..clusters import (
    Parcel,
    Scoring,
    add_columns,
    check_free,
    load_once,
    open_model,
    plan_scoring,
    ship,
)
from ..forest import Array
from ..runtime.threads import check_n_jobs
from ..system.values import dataclass

WHERE = "spark.predict"


@dataclass(frozen=True)
class PartitionScore:
    """The function that `mapInArrow` calls for each partition.

    Attributes:
        model: name of the file that holds the model.
        scoring: the settings for predicting batches.
        n_jobs: number of threads; None for the cores of a task, `spark.task.cpus`.
    """

    model: str
    scoring: Scoring
    n_jobs: int | None

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield record batches with columns of predictions."""
        from pyspark import SparkFiles, TaskContext

        task = TaskContext.get()
        n_jobs = self.n_jobs or (1 if task is None else task.cpus())
        predictor = load_once(self.model, lambda: SparkFiles.get(self.model))
        rows = 0
        for batch in batches:
            found = self.scoring.predict(predictor, batch, n_jobs, rows)
            yield add_columns(WHERE, batch, _to_signed(found))
            rows += batch.num_rows


def predict(
    df: Any,
    model: Any,
    columns: Sequence[str] | None = None,
    kind: str = "predict",
    output: str | None = None,
    *,
    n_jobs: int | None = None,
) -> Any:
    """Return a Spark DataFrame with prediction columns appended.

    Columns and their types are checked at once, but predictions are lazy. The model is compiled
    here. Each executor gets it as a file, and each of its Python workers loads it once. The package
    has to be installed on the workers.

    Args:
        df: pyspark.sql.DataFrame; null is a missing value, texts are categories.
        model: a Predictor, the path of a saved one, or what `build` takes.
        columns: names of the columns that the model takes, in its order; None for its own names,
            or for all columns if it has none.
        kind: "predict", "predict_proba", "predict_margin", "apply", "predict_per_tree",
            "predict_contributions" or "reasons".
        output: name of the column of predictions, or the prefix of several names; None for the
            names that `predict_file` uses.
        n_jobs: number of threads of a task; None for its cores, `spark.task.cpus`.

    Returns:
        pyspark.sql.DataFrame: lazy, with the same rows; unsigned numbers become int64.

    Raises:
        InputError: a column is missing or of the wrong type, a column of predictions exists
            already, or `kind` is unknown.
        ModelFormatError, UnsupportedModel, BuildError: see `build` and `load_predictor`.
    """
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import StructType

    check_n_jobs(WHERE, n_jobs)
    predictor = open_model(model)
    scoring = plan_scoring(WHERE, predictor.forest, df.columns, columns, kind, output)
    taken = StructType([df.schema[name] for name in scoring.features])
    none = to_arrow_schema(taken, timezone="UTC").empty_table()
    found = _to_signed(scoring.predict(predictor, none, 1))
    added = from_arrow_schema(add_columns(WHERE, none.select([]), found).schema).fields
    names = [name.lower() for name in df.columns]  # Spark ignores the case of names
    check_free(WHERE, map(str.lower, found), names)
    parcel = ship(predictor)
    df.sparkSession.addArtifacts(str(_write(parcel)), file=True)
    return df.mapInArrow(
        PartitionScore(parcel.name, scoring, n_jobs), StructType([*df.schema.fields, *added])
    )


def _to_signed(columns: dict[str, Array]) -> dict[str, Array]:
    """Return columns with unsigned integers as int64, since Spark has no unsigned ones."""
    return {k: x.astype(np.int64) if x.dtype.kind == "u" else x for k, x in columns.items()}


@functools.cache
def _make_folder() -> Path:
    """Make the folder from which executors fetch files; it is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix="tvm_forest-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _write(parcel: Parcel) -> Path:
    path = _make_folder() / parcel.name
    if not path.exists():
        path.write_bytes(parcel.data)
    return path
