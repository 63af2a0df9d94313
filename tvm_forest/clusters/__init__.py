"""Code that all cluster engines share: it sends models to workers, and predicts batches.

takes: a model in any form, names of columns; gives: `Parcel`, a saved predictor that a worker loads
once; `Scoring`, which predicts the columns of a batch; and `Score`, a function from batches to
batches with predictions, for engines that have no package of their own here.

Columns follow the rules for files of rows (`streams`): they are found by name in any order, nulls
are missing values, texts and dictionaries are categories. No engine is imported.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import api
from ..errors import InputError, RowError
from ..forest import Array, Forest
from ..predictor.inputs import column_names, frames
from ..predictor.inputs.checks import refusal
from ..runtime.threads import check_n_jobs
from ..streams.batches import (
    Columns,
    check_present,
    find_features,
    import_arrow,
    list_some,
    locate_row,
    take_columns,
)
from ..streams.formats import KINDS, Predicted
from ..system import archive
from ..system.process.locks import make_lock
from ..system.values import dataclass, field

if TYPE_CHECKING:
    from ..predictor.predictor import Predictor

KEPT = 4
"""Number of models that a worker process keeps, the most recently used ones."""

_loaded: dict[str, Predictor] = {}
_loading = make_lock()


@dataclass(frozen=True)
class Parcel:
    """A saved predictor, to be sent to workers.

    Attributes:
        name: name of a file for the data, which contains its digest.
        data: the bytes that `Predictor.save` writes.
    """

    name: str
    data: bytes = field(repr=False, compare=False)

    def open(self) -> Predictor:
        """Return the predictor, see `load_once`."""
        return load_once(self.name, lambda: self.data)


def load_once(name: str, find: Callable[[], Any]) -> Predictor:
    """Return a saved predictor; the last `KEPT` ones stay loaded, found by their names.

    Args:
        name: see `Parcel`.
        find: a function that returns the bytes or the path of the file.
    """
    with _loading:
        predictor = _loaded.pop(name, None)
        if predictor is None:
            predictor = api.load_predictor(find())
        _loaded[name] = predictor
        while len(_loaded) > KEPT:
            del _loaded[next(iter(_loaded))]
    return predictor


def open_model(model: Any) -> Predictor:
    """Return the predictor of a saved file, or compile a model for this CPU.

    Args:
        model: a Predictor, the path of a saved one, or what `build` takes.

    Raises:
        ModelFormatError, UnsupportedModel, BuildError: see `build` and `load_predictor`.
    """
    from ..predictor.predictor import Predictor

    if isinstance(model, Predictor):
        return model
    return api.load_predictor(model) if archive.is_archive_file(model) else api.build(model)


def ship(model: Any) -> Parcel:
    """Compile a model here, and return it in the form that is sent to workers.

    Args:
        model: see `open_model`.

    Raises:
        ModelFormatError, UnsupportedModel, BuildError: see `build` and `load_predictor`.
    """
    file = io.BytesIO()
    open_model(model).save(file)
    data = file.getvalue()
    return Parcel(f"tvm_forest-{archive.digest_of(data)[:32]}.tvmf", data)


@dataclass(frozen=True)
class Scoring:
    """The settings for predicting batches.

    Attributes:
        features: the columns of a batch that the model takes, in its order.
        kind: name of the Predictor's method.
        output: name or prefix of the columns of predictions, see `plan_scoring`.
        where: the beginning of error messages.
    """

    features: tuple[str, ...]
    kind: str
    output: str
    where: str

    def predict(
        self, predictor: Predictor, batch: Any, n_jobs: int | None, first: int = 0
    ) -> dict[str, Array]:
        """Return the columns of predictions by name.

        Args:
            predictor: the compiled model.
            batch: see `Score`.
            n_jobs: number of threads, see `Predictor.predict`.
            first: number of rows before this batch in the partition, for messages.

        Raises:
            InputError: a column is missing, or values of the wrong kind.
        """
        check_present(self.features, names_of(batch), f"{self.where}: argument 'columns'")
        table = _to_table(batch, list(self.features))
        columns, forest = Columns(list(self.features), ()), predictor.forest
        rows = take_columns(table, columns, import_arrow("predict")).rows
        if forest.given_names is not None:
            rows = rows.rename_columns(list(forest.given_names))
        try:
            result = getattr(predictor, self.kind)(rows, n_jobs=n_jobs)
        except RowError as error:
            raise locate_row(error, self.where, first, " of its batch or partition") from None
        default = KINDS[self.kind]
        found = Predicted(self.kind, result, forest).columns
        return {self.output + name.removeprefix(default): x for name, x in found.items()}


def plan_scoring(
    where: str,
    forest: Forest,
    names: Sequence[str],
    columns: Sequence[str] | None,
    kind: str,
    output: str | None,
) -> Scoring:
    """Check the settings before there is a batch, and return them.

    Args:
        where: the beginning of error messages.
        forest: the model.
        names: names of the columns of all batches.
        columns: names of the columns that the model takes, in its order; None for its own names, or
            for all columns if it has none.
        kind: see `streams.predict_file`.
        output: name of the column of predictions, or the prefix of several names; None for the
            names that `predict_file` uses.

    Raises:
        InputError: `kind` is unknown, a column is missing or occurs twice, or there are too many or
            too few columns.
    """
    if kind not in KINDS:
        known = ", ".join(KINDS)
        raise InputError(f"{where}: argument 'kind': {kind!r} is unknown (have: {known})")
    if isinstance(columns, str):
        raise InputError(f"{where}: argument 'columns': {columns!r} is one name; give a list")
    features = tuple(
        columns or find_features(names, forest, f"{where}: argument 'columns'") or names
    )
    if len(features) != forest.given_width:
        raise InputError(
            f"{where}: argument 'columns': {len(features)} columns for a model with "
            f"{forest.given_width} features: {list_some(features)}; name those that it takes"
        )
    check_present(features, names, f"{where}: argument 'columns'")
    return Scoring(features, kind, output or KINDS[kind], where)


def names_of(batch: Any) -> list[str]:
    """Return the names of the columns of a batch.

    Raises:
        InputError: the batch is of a type that `Score` does not take.
    """
    if isinstance(batch, dict):
        return list(batch)
    kind = frames.kind_of(batch)
    if kind is None:
        raise refusal(
            f"a {type(batch).__name__} has no names; give a table of pyarrow, a frame, or arrays "
            "by name"
        )
    return column_names.names_of(batch, kind)


def add_columns(where: str, batch: Any, columns: dict[str, Array]) -> Any:
    """Return the batch with prediction columns appended, as the same type.

    Raises:
        InputError: a column of the batch has such a name.
    """
    check_free(where, columns, names_of(batch))
    if isinstance(batch, dict):
        return {**batch, **columns}
    kind = frames.kind_of(batch)
    if kind == "pandas":
        return batch.assign(**columns)
    if kind == "polars":
        return batch.hstack(type(batch)(columns))
    arrow = import_arrow(where)
    for name, values in columns.items():
        batch = batch.append_column(name, arrow.array(values))
    return batch


def check_free(where: str, wanted: Iterable[str], names: Collection[str]) -> None:
    """Raise InputError if a wanted column name is taken already."""
    clash = next((name for name in wanted if name in names), None)
    if clash is not None:
        raise InputError(
            f"{where}: argument 'output': there is a column '{clash}' already; name another"
        )


class Score:
    """A function from batches to batches with predictions, for any engine."""

    where = "clusters.Score"

    def __init__(
        self,
        model: Any,
        columns: Sequence[str] | None = None,
        kind: str = "predict",
        output: str | None = None,
        n_jobs: int | None = 1,
    ) -> None:
        """Load or compile the model, and keep the settings for all batches.

        Args:
            model: the result of `ship`, a Predictor, the path of a saved one, or any model that
                `build` takes.
            columns: names of the columns that the model takes, in its order; None for its own
                names, or for all columns if it has none.
            kind: "predict", "predict_proba", "predict_margin", "apply", "predict_per_tree",
                "predict_contributions" or "reasons".
            output: name of the column of predictions, or the prefix of several names; None for the
                names that `predict_file` uses.
            n_jobs: number of threads, see `Predictor.predict`.

        Raises:
            InputError: n_jobs is no number of threads.
            ModelFormatError, UnsupportedModel, BuildError: see `build` and `load_predictor`.
        """
        check_n_jobs(self.where, n_jobs)
        self._predictor = model.open() if isinstance(model, Parcel) else open_model(model)
        self._asked, self._n_jobs = (columns, kind, output), n_jobs
        self._scoring: Scoring | None = None

    def __call__(self, batch: Any) -> Any:
        """Return the batch with prediction columns appended, as the same type.

        Args:
            batch: table or record batch of pyarrow, frame of pandas or polars, or arrays by name;
                all batches have the same columns.

        Raises:
            InputError: a column is missing or of the wrong type, a column of predictions exists
                already, or `kind` is unknown.
        """
        if self._scoring is None:
            names, forest = names_of(batch), self._predictor.forest
            self._scoring = plan_scoring(self.where, forest, names, *self._asked)
        found = self._scoring.predict(self._predictor, batch, self._n_jobs)
        return add_columns(self.where, batch, found)


def _to_table(batch: Any, names: list[str]) -> Any:
    """Return a table of pyarrow with the named columns of a batch.

    Raises:
        InputError: pyarrow is not installed, or cannot hold the values of a column.
    """
    arrow = import_arrow("predict")
    try:
        if isinstance(batch, dict):
            return arrow.table({name: np.asarray(batch[name]) for name in names})
        kind = frames.kind_of(batch)
        if kind == "pandas":
            known = column_names.names_of(batch, kind)
            taken = batch.iloc[:, [known.index(name) for name in names]]
            table = arrow.Table.from_pandas(taken, preserve_index=False, nthreads=1)
            return table.rename_columns(names)
        return batch.select(names).to_arrow() if kind == "polars" else batch
    except arrow.ArrowException as error:
        raise refusal(f"{error}; convert them to numbers") from None
