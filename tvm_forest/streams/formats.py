"""The formats of files of rows and of predictions, and the kinds of predictions.

takes: file names, predictions; gives: the format of a file, and names of its columns.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..errors import InputError
from ..forest import Array, Forest

FORMATS = {
    "parquet": (".parquet", ".pq"),
    "csv": (".csv",),
    "tsv": (".tsv",),
    "jsonl": (".jsonl", ".ndjson"),
    "arrow": (".arrow", ".arrows", ".ipc", ".feather"),
    "npy": (".npy",),
}
"""The suffixes of each format."""

TEXTS = ("csv", "tsv", "jsonl")
"""Formats that are text."""

KINDS = {
    "predict": "prediction",
    "predict_proba": "probability",
    "predict_margin": "margin",
    "apply": "leaf",
    "predict_per_tree": "tree",
    "predict_contributions": "contribution",
    "reasons": "reason",
    "predict_quantiles": "quantile",
}
"""Methods of a Predictor whose results can be written, and the names of their columns."""

CONTRIBUTIONS, REASONS = "predict_contributions", "reasons"
QUANTILES = "predict_quantiles"

ARROW_STREAM = ".arrows"
"""Suffix of Arrow IPC streams; its other suffixes mean files, which end with an index."""


class Reading(NamedTuple):
    """The user's options for reading rows.

    Attributes:
        header: whether the first line of CSV names the columns; None to find out.
        keep: names of the columns to keep, which are written beside the predictions.
        keeps_all: whether to keep all columns of the file.
        delimiter: character between the fields of CSV; None for the format's own.
        decimal: decimal mark of numbers in CSV.
        missing: texts that stand for a missing number or label, such as "NA".
        skips: whether bad rows are left out.
        folders: values of columns from folder names, by name.
    """

    header: bool | None = None
    keep: tuple[str, ...] = ()
    keeps_all: bool = False
    delimiter: str | None = None
    decimal: str = "."
    missing: frozenset[str] = frozenset()
    skips: bool = False
    folders: dict[str, int | str | None] = {}

    @property
    def is_plain(self) -> bool:
        """Whether numbers are written as in Python: a decimal point, no texts for missing ones."""
        return self.decimal == "." and not self.missing


AS_IS = Reading()
"""Reading without options."""


def name_format(path: PurePath | None, given: str | None, where: str, option: str) -> str:
    """Return the name of the format of a file.

    Args:
        path: path of the file; None for a stream without a name.
        given: the format that the user gave; None to decide by the suffix.
        where: beginning of messages.
        option: name of the option with which users give the format, for messages.

    Raises:
        InputError: an unknown format or suffix, or a stream without a format.
    """
    known = ", ".join(FORMATS)
    if given is not None:
        if given not in FORMATS:
            raise InputError(f"{where}: format {given!r} is unknown (have: {known})")
        return given
    if path is None:
        raise InputError(f"{where}: a stream has no suffix; say its format with {option} ({known})")
    for name, suffixes in FORMATS.items():
        if path.suffix.lower() in suffixes:
            return name
    suffixes = tuple(suffix for own in FORMATS.values() for suffix in own)
    raise InputError(
        f"{where}: suffix {path.suffix!r} is unknown; use {', '.join(suffixes)}, or say the format "
        f"with {option}"
    )


class Predicted(NamedTuple):
    """The result of a Predictor's method for some rows.

    Attributes:
        kind: the name of the method.
        result: (R,), (R, C) or (R, T, C), or a list with an array (R, C) for each target.
        forest: the model.
        quantiles: the requested quantiles; none for the model's own.
    """

    kind: str
    result: Any
    forest: Forest
    quantiles: tuple[float, ...] = ()

    @property
    def columns(self) -> dict[str, Array]:
        """The result as columns, by name.

        A single column has the name in `KINDS`. If there are several, each name ends with the class
        label (probabilities), the number of the tree (leaves), the name of the explained column
        (contributions), the quantile, or the number of the output.
        """
        if self.kind in (CONTRIBUTIONS, REASONS):
            return self._name_explained()
        base, result = KINDS[self.kind], self.result
        labels = np.array([]) if self.forest.labels is None else np.asarray(self.forest.labels)
        if isinstance(result, list):
            labels_of = np.split(labels, np.cumsum(self.forest.targets)[:-1])
            return {
                f"{base}_{target}_{label}": part[:, k]
                for target, (part, own) in enumerate(zip(result, labels_of, strict=True))
                for k, label in enumerate(own.tolist())
            }
        if result.dtype == object and all(isinstance(label, str) for label in labels):
            result = result.astype(np.str_)  # so that the column has a type also without rows
        if result.ndim == 1:
            return {base: result}
        ends = labels.tolist() if self._is_by_class else list(range(result.shape[1]))
        several = self.quantiles if len(self.quantiles) > 1 else None
        if result.ndim == 2:
            named = enumerate(several or ends)
            return {f"{base}_{end}": result[:, i] for i, end in named}
        last = list(enumerate(several or range(result.shape[2])))
        return {f"{base}_{i}_{end}": result[:, i, k] for i in ends for k, end in last}

    def _name_explained(self) -> dict[str, Array]:
        """Return contributions named by the columns of rows, or reasons named by their rank from 1.

        Contributions have one more column, "base", for the expected margin. A reason has two
        columns: the name of the feature, and its contribution ("..._value").
        """
        base, forest, several = KINDS[self.kind], self.forest, self.forest.n_outputs > 1
        outputs = [f"{base}_{output}" if several else base for output in range(forest.n_outputs)]
        if self.kind == REASONS:
            shape = (len(self.result.values), len(outputs), self.result.values.shape[-1])
            values, names = self.result.values.reshape(shape), self.result.names.reshape(shape)
            found: dict[str, Array] = {}
            for c, output in enumerate(outputs):
                for k in range(shape[2]):
                    found[f"{output}_{k + 1}"] = names[:, c, k]
                    found[f"{output}_{k + 1}_value"] = values[:, c, k]
            return found
        width, ends = forest.given_width, dict[str, None]()
        for name in (*(forest.given_names or map(str, range(width))), "base"):
            while name in ends:  # a feature may be called "base", or like another one
                name += "_"
            ends[name] = None
        values = self.result.reshape(len(self.result), len(outputs), width + 1)
        return {
            f"{output}_{end}": values[:, c, k]
            for c, output in enumerate(outputs)
            for k, end in enumerate(ends)
        }

    @property
    def _is_by_class(self) -> bool:
        """Whether each column is the probability of a class label."""
        forest = self.forest
        several_labels = forest.label_rule == "half" and forest.n_outputs > 1  # each a yes or no
        if self.kind != "predict_proba" or forest.targets or several_labels:
            return False
        return forest.labels is not None and len(forest.labels) == self.result.shape[1]


class Table(Protocol):
    """An open file of predictions."""

    def write(self, kept: dict[str, Any], predicted: Predicted) -> None:
        """Append rows: kept columns by name, and predictions; the first call fixes the types."""
        ...

    def close(self) -> None:
        """Write buffered rows and the end of the file."""
        ...

    def abandon(self) -> None:
        """Free resources after an error; the file is incomplete."""
        ...


def find_table(name: str, is_path: bool, has_names: bool) -> Any:
    """Return the class or function that opens a file of predictions: (file, where) -> Table.

    Its `where` begins messages.

    Args:
        name: name of the format.
        is_path: whether "arrow" means Arrow's file format and not its stream, as it does for a path
            whose suffix is not `ARROW_STREAM`.
        has_names: whether the columns of the rows have names; if not, CSV has no header line.
    """
    if name in ("parquet", "arrow"):
        from . import arrow_files

        if name == "parquet":
            return arrow_files.ParquetTable
        return arrow_files.ArrowFileTable if is_path else arrow_files.ArrowStreamTable
    if name == "npy":
        from .npy_files import NpyTable

        return NpyTable
    from . import text_tables

    tables = {
        "csv": text_tables.SeparatedTable,
        "tsv": text_tables.TabbedTable,
        "jsonl": text_tables.JsonTable,
    }
    table = tables[name]
    return lambda file, where: table(file, where, has_names)
