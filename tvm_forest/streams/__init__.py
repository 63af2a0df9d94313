"""Predicts the rows of files, and writes the predictions to files, in constant memory.

takes: a Predictor, files of rows; gives: files of predictions, which appear when they are complete.

A thread reads the next rows while others are predicted. No library but numpy is needed for CSV,
JSON lines and .npy; pyarrow reads and writes the other formats.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ..errors import InputError, RowError
from .batches import MAX_NUMBERS, Batch, locate_row
from .formats import ARROW_STREAM, KINDS, QUANTILES, Predicted, Reading, Table, find_table
from .places import OUTPUT, Files, find_files, refuse_unwritable
from .places.addresses import Address, make_replacement, open_replacement
from .places.packing import pack
from .places.sources import Place, Places
from .progress import RowsBar
from .reading import ALL, ReadBatch, check_reading, read_ahead, read_parts
from .rejects import Rejects, RowCount, check_rejects

if TYPE_CHECKING:
    from ..predictor.predictor import Predictor


class _Call(NamedTuple):
    """The arguments of `predict_file` that decide how each batch is predicted."""

    predictor: Predictor
    kind: str
    n_jobs: int | None
    rejects: Rejects | None
    quantiles: tuple[float, ...] = ()

    def predict(self, read: ReadBatch) -> Iterator[tuple[int, Batch, Predicted]]:
        """Yield (index in the batch of a part's first row, part, its predictions).

        The part is the whole batch, unless rows that the model refuses are left out.

        Raises:
            InputError: the model refuses a row, and rows are not left out, or it refuses the whole
                batch; the message has the place in the file.
        """
        if self.rejects is None:
            yield 0, read.batch, self._predict(read, read.batch)
            return
        reasons = {read.first_row + at: what for at, what in read.batch.bad.items()}
        yield from self._sift(read, reasons)
        self.rejects.add(read.part, reasons)

    def _sift(
        self, read: ReadBatch, reasons: dict[int, str]
    ) -> Iterator[tuple[int, Batch, Predicted]]:
        """Yield predictions of the rows that the model accepts; add the others to `reasons`.

        After a refusal, the batch is cut at the refused row and in the middle.
        """
        waiting, is_first = [(0, read.batch.length)], True
        while waiting:
            begin, end = waiting.pop()
            batch = read.batch.cut(begin, end)
            try:
                predicted = self._call(batch)
            except RowError as error:
                bad = begin + error.row
                reasons[read.first_row + read.batch.find_place(bad)] = error.what
                cuts = sorted({begin, (begin + end) // 2, bad, bad + 1, end})
                parts = [x for x in zip(cuts, cuts[1:], strict=False) if x[0] != bad]
                waiting += parts[::-1]
            except InputError as error:
                raise self._locate(error, read) from None
            else:
                is_first = False
                yield begin, batch, predicted
        if is_first:
            empty = read.batch.cut(0, 0)
            yield 0, empty, self._call(empty)

    def _predict(self, read: ReadBatch, batch: Batch) -> Predicted:
        try:
            return self._call(batch)
        except RowError as error:
            raise locate_row(error, read.part.where, read.first_row) from None
        except InputError as error:
            raise self._locate(error, read) from None

    def _call(self, batch: Batch) -> Predicted:
        asked = {"quantiles": list(self.quantiles)} if self.quantiles else {}
        result = getattr(self.predictor, self.kind)(batch.rows, n_jobs=self.n_jobs, **asked)
        return Predicted(self.kind, result, self.predictor.forest, self.quantiles)

    def _locate(self, error: InputError, read: ReadBatch) -> InputError:
        last = read.first_row + max(0, read.batch.span - 1)
        where = f"{read.part.where}: rows {read.first_row} to {last} (counted from 0)"
        return InputError(f"{where}: {error}")


def predict_file(
    predictor: Predictor,
    source: Places,
    target: Place,
    keep: str | Sequence[str] = (),
    kind: str = "predict",
    *,
    batch_rows: int = 65536,
    source_format: str | None = None,
    target_format: str | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    decimal: str = ".",
    missing: Sequence[str] = (),
    bad_rows: str = "refuse",
    rejects: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    progress: bool | None = False,
    quantiles: Sequence[float] = (),
) -> RowCount:
    """Predict rows of files, and write the predictions to files.

    Memory does not grow with the number of rows. A file of predictions appears once it is complete,
    and only then replaces an existing file. `docs/scoring_files.md` describes formats and columns.

    Args:
        predictor: see `build` and `load_predictor`.
        source: path of a file of rows, a pattern such as "rows/*.csv.gz", a folder, whose files are
            read in the order of their names, or a list of these; or a binary file object, together
            with `source_format`. Folder names such as "year=2024" add columns. Paths can be
            addresses such as "s3://bucket/rows.parquet".
        target: path of the file of predictions; if there can be several files of rows, also path of
            a new folder, which gets a file for each of them; or a binary file object, together with
            `target_format`.
        keep: names of columns of the rows to write before the predictions; "all" for all columns.
        kind: "predict", "predict_proba", "predict_margin", "apply", "predict_per_tree",
            "predict_contributions", "reasons" or "predict_quantiles".
        batch_rows: most rows that are predicted at once, 1 or more.
        source_format, target_format: "parquet", "csv", "tsv", "jsonl", "arrow" or "npy"; None to
            decide by the suffix.
        header: whether the first lines of CSV and tab-separated values name the columns; None to
            find out, with an error if that is ambiguous.
        delimiter: one character between the fields of CSV; None for a comma.
        decimal: the decimal mark of numbers in CSV and tab-separated values.
        missing: texts that stand for missing numbers and labels in CSV, tab-separated values and
            JSON lines, such as "NA"; empty fields are always missing.
        bad_rows: "refuse" ends with an error at the first row that cannot be read or predicted;
            "skip" leaves such rows out.
        rejects: path of a file to write, which lists each row that is left out: its file, its
            number from 0, and the reason. Implies "skip".
        n_jobs: threads, see `Predictor.predict`.
        progress: whether to show a progress bar on standard error; None for only on a terminal.
        quantiles: quantiles for "predict_quantiles", each once; none for the model's own.

    Returns:
        RowCount: an int, the number of predicted rows; its attribute `skipped` is the number of
            rows that were left out.

    Raises:
        InputError: a file that cannot be read or written, is damaged or lacks a column, rows of the
            wrong kind, an argument that makes no sense, or pyarrow is missing for a format.
        UnsupportedModel: the model does not give this kind of prediction.

    Examples:
        >>> np.save("rows.npy", rows)
        >>> tvm_forest.predict_file(predictor, "rows.npy", "out.npy")  # doctest: +ELLIPSIS
        150
    """
    if kind not in KINDS:
        raise InputError(
            f"predict: argument 'kind': {kind!r} is unknown (have: {', '.join(KINDS)})"
        )
    if isinstance(batch_rows, bool) or not isinstance(batch_rows, int) or batch_rows < 1:
        raise InputError(f"predict: argument 'batch_rows': expected 1 or more, got {batch_rows!r}")
    if bad_rows not in ("refuse", "skip"):
        raise InputError(
            f"predict: argument 'bad_rows': {bad_rows!r} is unknown (have: refuse, skip)"
        )
    if quantiles and (kind != QUANTILES or len(set(quantiles)) < len(quantiles)):
        raise InputError(
            f"predict: argument 'quantiles': {quantiles!r}: give each once, and with the kind "
            f"{QUANTILES!r} alone"
        )
    names = tuple(dict.fromkeys([keep] if isinstance(keep, str) else keep))
    files = find_files(source, target, source_format, target_format)
    reading = Reading(
        header=header,
        keep=() if names == (ALL,) else names,
        keeps_all=names == (ALL,),
        delimiter=delimiter,
        decimal=decimal,
        missing=frozenset([missing] if isinstance(missing, str) else missing),
        skips=bad_rows == "skip" or rejects is not None,
    )
    check_reading(reading, files.parts)
    forest = predictor.forest
    size = max(1, min(batch_rows, MAX_NUMBERS // max(1, forest.row_width)))
    left_out = Rejects(check_rejects(rejects, files))
    rejected = left_out if reading.skips else None
    call = _Call(predictor, kind, n_jobs, rejected, tuple(quantiles))
    reads = read_parts(files.parts, forest, reading, size)
    with RowsBar(progress) as bar, read_ahead(reads) as ahead, left_out:
        with refuse_unwritable(files.target):
            if files.is_folder:
                rows = _write_folder(call, _count(ahead, bar), files, left_out)
            else:
                with _open_target(files.target) as file:
                    counted = _count(ahead, bar)
                    with pack(file, files.packed, OUTPUT) as packed:
                        rows = _write(call, counted, packed, files.target, files.format or "")
                    file.flush()  # a full disk is found before the rejects appear
                    left_out.finish()
    made = RowCount(rows)
    made.skipped = left_out.count
    return made


def _count(reads: Iterator[ReadBatch], bar: RowsBar) -> Iterator[ReadBatch]:
    """Pass batches on, and show on the bar how many rows are predicted."""
    rows = 0
    for read in reads:
        yield read
        rows += read.batch.span
        bar.show(rows, read.fraction)


@contextmanager
def _open_target(target: Path | Address | BinaryIO) -> Iterator[BinaryIO]:
    if isinstance(target, Path | Address):
        with open_replacement(target, OUTPUT) as file:
            yield file
    else:
        yield target


def _write_folder(call: _Call, reads: Iterator[ReadBatch], files: Files, rejects: Rejects) -> int:
    """Write a file for each file of rows, into a folder that appears when all are complete.

    Returns:
        The number of predicted rows.
    """
    assert isinstance(files.target, Path | Address)
    rows = 0
    with make_replacement(files.target, OUTPUT) as folder:
        for part, own in groupby(reads, key=attrgetter("part")):
            name, kind = files.name_output(part)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with open(folder / name, "xb") as file:
                rows += _write(call, own, file, folder / name, kind)
                file.flush()
                os.fsync(file.fileno())
        rejects.finish()
    return rows


def _write(call: _Call, reads: Iterable[ReadBatch], file: BinaryIO, target: Any, kind: str) -> int:
    """Predict batches and write them to one file; return the number of predicted rows.

    Args:
        call: predicts a batch.
        reads: the batches.
        file: the open file.
        target: its path or address, whose suffix may ask for an Arrow stream; else any object.
        kind: name of its format.
    """
    table: Table | None = None
    rows, is_file = 0, isinstance(target, Path | Address)
    try:
        for read in reads:
            for begin, batch, predicted in call.predict(read):
                if table is None:
                    _check_names(read.keep, predicted)
                    is_path = is_file and target.suffix.lower() != ARROW_STREAM
                    table = find_table(kind, is_path, read.has_names)(file, OUTPUT)
                _append(table, read, begin, batch, predicted)
                rows += batch.length
            if not is_file:
                file.flush()
        assert table is not None, "a file of rows gives one batch at least"
        table.close()
    except BaseException:
        if table is not None:
            table.abandon()
        raise
    return rows


def _append(table: Table, read: ReadBatch, begin: int, batch: Batch, predicted: Predicted) -> None:
    """Write the predictions of a part of a batch to an open file.

    Args:
        table: the file.
        read: the batch.
        begin: index in the batch of the part's first row.
        batch: the part.
        predicted: its predictions.

    Raises:
        InputError: the file cannot hold a value; the message has the place of its row.
    """
    try:
        table.write(dict(zip(read.keep, batch.kept, strict=True)), predicted)
    except RowError as error:
        place = read.batch.find_place(begin + error.row)
        raise locate_row(error, read.part.where, read.first_row + place - error.row) from None


def _check_names(keep: tuple[str, ...], predicted: Predicted) -> None:
    clash = next((name for name in keep if name in predicted.columns), None)
    if clash is not None:
        raise InputError(
            f"{OUTPUT}: kept column '{clash}' has the name of a column of predictions; rename it"
        )
