"""Files of rows become files of predictions, in constant memory.

takes: a Predictor, files of rows; gives: files of predictions, which appear when they are complete.

A thread reads the next rows while others are predicted. No library but numpy is needed for CSV,
JSON lines and .npy; pyarrow reads and writes the other formats.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from .. import archive
from ..errors import InputError, RowError
from ..forest import Forest
from .batches import MAX_NUMBERS, Batch, OpenRows, choose_columns, locate_row
from .formats import ARROW_STREAM, KINDS, Predicted, Table
from .places import OUTPUT, Files, Part, Place, find_files, open_part, refuse_unwritable
from .progress import RowsBar
from .read_ahead import read_ahead

if TYPE_CHECKING:
    from ..predictor.predictor import Predictor


class _Read(NamedTuple):
    """A batch, and what is known of its file."""

    part: Part
    has_names: bool
    batch: Batch
    first_row: int
    fraction: float | None


class _Call(NamedTuple):
    """What is done with each batch."""

    predictor: Predictor
    kind: str
    keep: tuple[str, ...]
    n_jobs: int | None

    def predict(self, read: _Read) -> Predicted:
        """Predict a batch; errors say where its rows are."""
        try:
            result = getattr(self.predictor, self.kind)(read.batch.rows, n_jobs=self.n_jobs)
        except RowError as error:
            raise locate_row(error, read.part.where, read.first_row) from None
        except InputError as error:
            last = read.first_row + max(0, read.batch.length - 1)
            raise InputError(
                f"{read.part.where}: rows {read.first_row} to {last} (counted from 0): {error}"
            ) from None
        return Predicted(self.kind, result, self.predictor.forest)


def predict_file(
    predictor: Predictor,
    source: Place,
    target: Place,
    keep: Sequence[str] = (),
    kind: str = "predict",
    *,
    batch_rows: int = 65536,
    source_format: str | None = None,
    target_format: str | None = None,
    header: bool | None = None,
    n_jobs: int | None = None,
    progress: bool | None = False,
) -> int:
    """Predict rows of files, and write the predictions to files.

    Memory does not grow with the number of rows. A file appears under its name once it is complete;
    one that is there already stays whole until then. `docs/scoring_files.md` describes formats and
    columns.

    Args:
        predictor: see `build` and `load_predictor`.
        source: path of a file of rows, or of a folder of such files, which are taken in the order
            of their names; or what can be read in binary, with `source_format`.
        target: path of the file of predictions; of a folder, which does not exist yet, for a file
            for each file of a folder of rows; or what can be written to in binary, with
            `target_format`.
        keep: names of columns of the rows to write before the predictions.
        kind: "predict", "predict_proba", "predict_margin", "apply" or "predict_per_tree".
        batch_rows: most rows that are predicted at once, 1 or more.
        source_format, target_format: "parquet", "csv", "tsv", "jsonl", "arrow" or "npy"; None for
            by the suffix.
        header: whether the first lines of CSV and tab-separated values name the columns; None for
            where there is no doubt.
        n_jobs: threads, see `Predictor.predict`.
        progress: show a bar on the standard error stream; None for where a person would see it.

    Returns:
        int: how many rows there were.

    Raises:
        InputError: a file that cannot be read or written, is damaged or lacks a column, rows of the
            wrong kind, an argument that makes no sense, or pyarrow is missing for a format.
        UnsupportedModel: the model does not give this kind of prediction.
    """
    if kind not in KINDS:
        raise InputError(
            f"predict: argument 'kind': {kind!r} is unknown (have: {', '.join(KINDS)})"
        )
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
        raise InputError(f"predict: argument 'batch_rows': expected 1 or more, got {batch_rows!r}")
    names = tuple(dict.fromkeys([keep] if isinstance(keep, str) else keep))
    files = find_files(source, target, source_format, target_format)
    if header is not None and any(part.format not in ("csv", "tsv") for part in files.parts):
        raise InputError(
            f"predict: argument 'header': {header!r}, and only CSV and tab-separated values have "
            "one; leave it out"
        )
    forest = predictor.forest
    size = max(1, min(batch_rows, MAX_NUMBERS // max(1, forest.row_width)))
    call = _Call(predictor, kind, names, n_jobs)
    reads = _read_all(files.parts, forest, names, size, header)
    with RowsBar(progress) as bar, read_ahead(reads) as ahead, refuse_unwritable(files.target):
        if not files.is_folder:
            with _open_target(files.target) as file:
                return _write(call, _count(ahead, bar), file, files.target, files.format or "")
        return _write_folder(call, _count(ahead, bar), files)


def _read_all(
    parts: list[Part], forest: Forest, keep: tuple[str, ...], size: int, header: bool | None
) -> Iterator[_Read]:
    """Yield the batches of all files."""
    types: dict[str, str] | None = None
    for number, part in enumerate(parts):
        with open_part(part) as file:
            rows = _find_reader(part.format, header, keep)(file, part.where, forest)
            columns = choose_columns(rows.names, forest, keep, part.where)
            row = 0
            for batch in rows.batches(columns, size):
                types = types or _list_types(keep, batch)
                _check_types(types, _list_types(keep, batch), part, parts[0])
                fraction = rows.fraction()
                done = None if fraction is None else (number + fraction) / len(parts)
                yield _Read(part, rows.names is not None, batch, row, done)
                row += batch.length


def _list_types(keep: tuple[str, ...], batch: Batch) -> dict[str, str]:
    """Return the types of kept columns, for those that have one."""
    columns = zip(keep, batch.kept, strict=True)
    return {name: str(x.type) for name, x in columns if hasattr(x, "type")}


def _check_types(known: dict[str, str], found: dict[str, str], part: Part, first: Part) -> None:
    for name, kind in found.items():
        if known.get(name, kind) != kind:
            raise InputError(
                f"{part.where}: kept column '{name}' is {kind}, but {known[name]} in "
                f"'{first.place}'; give files with equal columns"
            )


def _count(reads: Iterator[_Read], bar: RowsBar) -> Iterator[_Read]:
    """Show how many rows are predicted."""
    rows = 0
    for read in reads:
        yield read
        rows += read.batch.length
        bar.show(rows, read.fraction)


@contextmanager
def _open_target(target: Path | BinaryIO) -> Iterator[BinaryIO]:
    if isinstance(target, Path):
        with archive.open_replacement(target) as file:
            yield file
    else:
        yield target
        target.flush()


def _write_folder(call: _Call, reads: Iterator[_Read], files: Files) -> int:
    """Write a file for each file of rows, to a folder that appears at the end."""
    assert isinstance(files.target, Path)
    rows = 0
    with archive.make_replacement(files.target) as folder:
        for part, own in groupby(reads, key=attrgetter("part")):
            name, kind = files.name_output(part)
            with open(folder / name, "xb") as file:
                rows += _write(call, own, file, folder / name, kind)
                file.flush()
                os.fsync(file.fileno())
    return rows


def _write(
    call: _Call, reads: Iterable[_Read], file: BinaryIO, target: Path | BinaryIO, kind: str
) -> int:
    """Predict batches and write them to one file; return the number of rows."""
    table: Table | None = None
    rows = 0
    try:
        for read in reads:
            predicted = call.predict(read)
            if table is None:
                _check_names(call.keep, predicted)
                is_path = isinstance(target, Path) and target.suffix.lower() != ARROW_STREAM
                table = _find_table(kind, is_path, read.has_names)(file, OUTPUT)
            try:
                table.write(dict(zip(call.keep, read.batch.kept, strict=True)), predicted)
            except RowError as error:
                raise locate_row(error, read.part.where, read.first_row) from None
            rows += read.batch.length
            if not isinstance(target, Path):
                file.flush()
        assert table is not None, "a file of rows gives one batch at least"
        table.close()
    except BaseException:
        if table is not None:
            table.abandon()
        raise
    return rows


def _check_names(keep: tuple[str, ...], predicted: Predicted) -> None:
    clash = next((name for name in keep if name in predicted.columns), None)
    if clash is not None:
        raise InputError(
            f"{OUTPUT}: kept column '{clash}' has the name of a column of predictions; rename it"
        )


def _find_reader(name: str, header: bool | None, keep: tuple[str, ...]) -> OpenRows:
    """Return what opens rows of a format; only what is needed is imported."""
    if name in ("parquet", "arrow"):
        from . import arrow_files

        return arrow_files.ParquetRows if name == "parquet" else arrow_files.ArrowRows
    if name == "npy":
        from .npy_files import NpyRows

        return NpyRows
    from . import text_rows

    if name == "jsonl":
        return text_rows.JsonRows
    reader = text_rows.SeparatedRows if name == "csv" else text_rows.TabbedRows
    return partial(reader, header=header, keep=keep)


def _find_table(name: str, is_path: bool, has_names: bool) -> Any:
    """Return what opens a file of predictions."""
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
