"""The formats of files of rows and of predictions, and the kinds of predictions.

takes: names; gives: which format a file has, and what its columns are called.
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
"""What a column is called that a method of a Predictor gives."""

CONTRIBUTIONS, REASONS = "predict_contributions", "reasons"
QUANTILES = "predict_quantiles"

ARROW_STREAM = ".arrows"
"""The suffix of Arrow IPC without the index at its end; the others have one."""


class Reading(NamedTuple):
    """The user's options for reading rows.

    Attributes:
        header: whether the first line of CSV names the columns; None for nothing.
        keep: names of columns that are kept.
        keeps_all: whether these are all of the file.
        delimiter: what is between the fields of CSV; None for what the format has.
        decimal: what is before the fraction of a number in CSV.
        missing: texts that stand for a missing number or label in text.
        skips: whether bad rows are left out.
        folders: values of columns that the names of folders give, by name.
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
        """Whether numbers are written as Python does."""
        return self.decimal == "." and not self.missing


AS_IS = Reading()
"""No option is given."""


def name_format(path: PurePath | None, given: str | None, where: str, option: str) -> str:
    """Return the name of the format of a file.

    Args:
        path: of the file; None for a stream without a name.
        given: what the user says, None for by the suffix.
        where: begins messages.
        option: how the user says it.

    Raises:
        InputError: no such format or suffix, or a stream of which nothing is said.
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
    """What a method of a Predictor gives for some rows.

    Attributes:
        kind: the name of the method.
        result: (R,), (R, C) or (R, T, C), or a list of (R, C) for each target.
        forest: the model.
        quantiles: those that were asked for; none for the model's own.
    """

    kind: str
    result: Any
    forest: Forest
    quantiles: tuple[float, ...] = ()

    @property
    def columns(self) -> dict[str, Array]:
        """The columns that hold it, by name.

        One column is called as in `KINDS`; of several, each name ends with the class label
        (probabilities), the number of the tree (leaves), the name of the column that is explained
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
        """Name contributions by the columns of rows, and reasons by their rank, from 1 on."""
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
            while name in ends:  # a column may be called "base", or as another one is
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
        """Tell whether each column is the probability of a label."""
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
        """Write what is left, and the end of the file."""
        ...

    def abandon(self) -> None:
        """Free what is held; what was written is of no use."""
        ...


def find_table(name: str, is_path: bool, has_names: bool) -> Any:
    """Return what opens a file of predictions.

    Args:
        name: of the format.
        is_path: whether the file has a name, of which the suffix is not that of a stream.
        has_names: whether the columns of the rows have names.
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
