"""Predicts rows of Dask DataFrames.

takes: DataFrames of Dask, a model; gives: DataFrames with columns of predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..clusters import Parcel, Scoring, add_columns, names_of, open_model, plan_scoring, ship
from ..runtime.threads import check_n_jobs

WHERE = "dask.predict"


def predict(
    ddf: Any,
    model: Any,
    columns: Sequence[str] | None = None,
    kind: str = "predict",
    output: str | None = None,
    *,
    n_jobs: int = 1,
) -> Any:
    """Return a Dask DataFrame with prediction columns appended.

    Columns and their types are checked at once, but predictions are lazy. The model is compiled
    here. It is a task of its own, whose result each worker fetches and loads once. The package has
    to be installed on the workers.

    Args:
        ddf: dask.dataframe.DataFrame; texts and columns of dtype category are categories.
        model: a Predictor, the path of a saved one, or what `build` takes.
        columns: names of the columns that the model takes, in its order; None for its own names,
            or for all columns if it has none.
        kind: "predict", "predict_proba", "predict_margin", "apply", "predict_per_tree",
            "predict_contributions" or "reasons".
        output: name of the column of predictions, or the prefix of several names; None for the
            names that `predict_file` uses.
        n_jobs: number of threads of a task. A worker runs as many tasks at once as it has threads,
            so that 1 uses them all.

    Returns:
        dask.dataframe.DataFrame: lazy, with the same rows, index and divisions.

    Raises:
        InputError: a column is missing or of the wrong type, a column of predictions exists
            already, or `kind` is unknown.
        ModelFormatError, UnsupportedModel, BuildError: see `build` and `load_predictor`.
    """
    from dask import delayed

    check_n_jobs(WHERE, n_jobs)
    predictor = open_model(model)
    scoring = plan_scoring(WHERE, predictor.forest, names_of(ddf._meta), columns, kind, output)
    meta = add_columns(WHERE, ddf._meta, scoring.predict(predictor, ddf._meta, 1))
    parcel = ship(predictor)
    sent = delayed(parcel, name=parcel.name, traverse=False)
    return ddf.map_partitions(_predict_part, sent, scoring, n_jobs, meta=meta)


def _predict_part(part: Any, parcel: Parcel, scoring: Scoring, n_jobs: int) -> Any:
    return add_columns(WHERE, part, scoring.predict(parcel.open(), part, n_jobs))
