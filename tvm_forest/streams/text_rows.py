"""Rows of CSV, tab-separated values and JSON lines, without any library.

takes: open files; gives: batches of their rows.

A number is what Python's `float` reads.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from operator import itemgetter
from typing import Any

import numpy as np

from ..errors import InputError
from ..forest import Array, Forest
from .batches import Batch, Columns, Texts, label_rows
from .headers import is_blank, is_number, names_columns

MAX_FIELDS = 1 << 17
"""Most fields that are in memory as objects of Python."""

FIRST_LINES = 1000
"""Lines of JSON that tell which columns there are."""

Line = tuple[int, list[Any]]
"""The number of a line of a file, from 1 on, and its fields in the order of columns."""


class TextRows:
    """Rows that are lines of text, read once from the beginning.

    Attributes:
        names: see `RowFile`.
    """

    names: list[str] | None

    def __init__(self, file: Any, where: str, forest: Forest) -> None:
        """Read the names of the columns."""
        self._where, self._forest, self._file = where, forest, file
        self._size = _read_size(file)
        self._line = 0
        self._width = forest.given_width  # until names are known
        self._text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        self._lines = self._read_lines()
        self.names, self._records = self._open()
        if self.names is not None:
            self._width = len(self.names)

    def _open(self) -> tuple[list[str] | None, Iterable[Line]]:
        """Return the names of columns, none if the file is empty, and the lines of rows."""
        raise NotImplementedError

    def _find_labelled(self, columns: Columns) -> dict[str, tuple[Any, ...]]:
        """Return which columns hold labels, and the labels that the model knows."""
        known = self._forest.category_names
        return {n: known[i] for i, n in enumerate(columns.features or ()) if i in known}

    def _read_labels(self, lines: Sequence[Line], place: int, known: tuple[Any, ...]) -> list[Any]:
        """Return the labels of a column; None is missing."""
        raise NotImplementedError

    def fraction(self) -> float | None:
        """See `RowFile`."""
        return min(1.0, self._file.tell() / self._size) if self._size else None

    def batches(self, columns: Columns, size: int) -> Iterator[Batch]:
        """See `RowFile`."""
        labelled = self._find_labelled(columns)
        names = self.names or columns.wanted
        plain = [names.index(n) for n in columns.features or () if n not in labelled]
        pick = None if columns.features is None or plain == list(range(len(names))) else plain
        width = self._forest.given_width - len(labelled)
        kept_places = [names.index(name) for name in columns.kept]
        step = max(1, min(size, MAX_FIELDS // max(1, self._width)))
        records, is_first = iter(self._records), True
        while True:
            arrays = [self._read_fields([], pick, width)]
            labels: dict[str, list[Any]] = {name: [] for name in labelled}
            kept = [self._new_column() for _ in columns.kept]
            for lines in _split(islice(records, size), step):
                self._check_widths(lines)
                arrays.append(self._read_fields(lines, pick, width))
                for name, known in labelled.items():
                    labels[name] += self._read_labels(lines, names.index(name), known)
                for column, place in zip(kept, kept_places, strict=True):
                    column += [fields[place] for _, fields in lines]
            numbers = np.concatenate(arrays)
            if len(numbers) or is_first:
                rows = self._join(columns, numbers, labels) if labelled else numbers
                yield Batch(rows, kept, len(numbers))
            if not len(numbers):
                return
            is_first = False

    def _new_column(self) -> list[Any]:
        """Return an empty column of what fields are."""
        return []

    def _join(self, columns: Columns, numbers: Array, labels: dict[str, list[Any]]) -> Any:
        plain = iter(numbers.T)
        names = columns.features or []
        return label_rows(
            {n: labels[n] if n in labels else next(plain) for n in names}, self._where
        )

    def _read_numbers(self, lines: Sequence[Line], pick: list[int] | None, width: int) -> Array:
        """Return (R, numeric columns), of all columns or those that are picked."""
        fields = [fields for _, fields in lines]
        if pick is not None:
            fields = [[line[place] for place in pick] for line in fields]
        with suppress(ValueError, TypeError, OverflowError):
            return np.array(fields, np.float64).reshape(len(fields), width)
        filled = [["nan" if x == "" else x for x in line] for line in fields]
        with suppress(ValueError, TypeError, OverflowError):
            return np.array(filled, np.float64)
        for (number, _), line in zip(lines, fields, strict=True):
            wrong = [x for x in line if not (is_blank(x) or is_number(x))]
            if wrong:
                raise self._error(f"{wrong[0]!r} is no number{self._advise(number)}", number)
        filled = [["nan" if is_blank(x) else x for x in line] for line in fields]
        return np.array(filled, np.float64)

    def _advise(self, number: int) -> str:
        """Return what to do about a field of a line that is no number."""
        return "; write null for a missing value"

    def _read_fields(self, lines: Sequence[Line], pick: list[int] | None, width: int) -> Array:
        """Return (R, width): numbers, or objects if categories go as they stand to an encoder."""
        encoder = self._forest.encoder
        if encoder is None:
            return self._read_numbers(lines, pick, width)
        places = list(range(width)) if pick is None else pick
        plain = encoder.numbers.tolist()
        rows = np.empty((len(lines), width), object)
        rows[:, plain] = self._read_numbers(lines, [places[at] for at in plain], len(plain))
        for at in encoder.categories.tolist():
            rows[:, at] = [fields[places[at]] for _, fields in lines]
        return rows

    def _check_widths(self, lines: Sequence[Line]) -> None:
        for number, fields in lines:
            if len(fields) != self._width:
                who = "the model has {} features" if self.names is None else "the first line has {}"
                raise self._error(f"{len(fields)} fields, but {who.format(self._width)}", number)

    def _read_lines(self) -> Iterator[str]:
        try:
            yield from self._text
        except (OSError, ValueError, EOFError) as error:
            raise self._error(f"cannot be read: {error}", self._line + 1) from None

    def _error(self, what: object, number: int) -> InputError:
        return InputError(f"{self._where}: line {number}: {what}")


class SeparatedRows(TextRows):
    """Rows of CSV, of which the first line may name the columns; empty fields are missing.

    In columns of categories texts are labels, if the model stores some; without names, fields are
    the codes of categories.
    """

    delimiter = ","

    def __init__(
        self,
        file: Any,
        where: str,
        forest: Forest,
        header: bool | None = None,
        keep: Sequence[str] = (),
    ) -> None:
        """Read the first line; see `names_columns`."""
        self._header, self._keep = header, keep
        super().__init__(file, where, forest)

    def _open(self) -> tuple[list[str] | None, Iterable[Line]]:
        """See `TextRows`; `names_columns` says what the first line is."""
        lines = self._split_lines()
        first = next(lines, None)
        if first is None:
            return [], lines
        if names_columns(first[1], self._forest, self._where, self._header, self._keep):
            return first[1], lines
        return None, chain([first], lines)

    def _split_lines(self) -> Iterator[Line]:
        reader = csv.reader(self._lines, delimiter=self.delimiter, strict=True)
        try:
            for fields in reader:
                self._line = reader.line_num
                if fields:
                    yield self._line, fields
                elif self._width == 1:  # of several columns, nobody takes it for a row
                    raise self._error("empty; write nan for a missing value", self._line)
        except csv.Error as error:
            raise self._error(f"damaged: {error}", reader.line_num) from None

    def _advise(self, number: int) -> str:
        if number == 1 and self.names is None:
            return "; say --header (header=True) if the line names the columns"
        return "; leave the field of a missing value empty"

    def _new_column(self) -> list[Any]:
        return Texts()

    def _find_labelled(self, columns: Columns) -> dict[str, tuple[Any, ...]]:
        if columns.features is not None and self._forest.pandas_categories:
            raise InputError(
                f"{self._where}: the model was trained on columns of categories, which this format "
                "does not tell from numbers; use Parquet, Arrow or JSON lines"
            )
        return super()._find_labelled(columns)

    def _read_labels(self, lines: Sequence[Line], place: int, known: tuple[Any, ...]) -> list[Any]:
        kinds = {type(label) for label in known if label is not None}
        read = kinds.pop() if len(kinds) == 1 and kinds <= {str, int, float} else None
        if read is None:
            raise InputError(
                f"{self._where}: labels such as {known[:1]} are no texts and no numbers; use "
                "Parquet or Arrow with columns of dictionaries"
            )
        labels: dict[str, Any] = {"": None}
        for number, fields in lines:
            text = fields[place]
            if text not in labels:
                try:
                    labels[text] = read(text)
                except ValueError:
                    raise self._error(f"{text!r} is no number", number) from None
        return [labels[fields[place]] for _, fields in lines]


class TabbedRows(SeparatedRows):
    """Rows of tab-separated values."""

    delimiter = "\t"


class JsonRows(TextRows):
    """Rows that are an object of JSON each, on a line of its own.

    The columns are those of the first lines. One that an object lacks is missing in this row, as
    null is.
    """

    def _open(self) -> tuple[list[str] | None, Iterable[Line]]:
        """See `TextRows`."""
        objects = self._read_objects()
        first = list(islice(objects, FIRST_LINES))
        names = list(dict.fromkeys(chain.from_iterable(row for _, row in first)))
        self._first = [row for _, row in first]
        return names, self._pick(names, chain(first, objects))

    def _pick(self, names: list[str], objects: Iterable[tuple[int, Any]]) -> Iterator[Line]:
        is_unnamed, known = self._forest.given_names is None, set(names)
        for number, row in objects:
            if is_unnamed and not row.keys() <= known:
                (new, *_) = row.keys() - known
                raise self._error(
                    f"column {new!r}, which the first {FIRST_LINES} lines lack, and the model "
                    "takes its columns by their order",
                    number,
                )
            yield number, list(map(row.get, names))

    def _read_objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(self._lines, 1):
            self._line = number
            if line.isspace():
                continue
            try:
                row = json.loads(line, object_pairs_hook=_to_dict)
            except (ValueError, RecursionError) as error:
                raise self._error(f"no JSON: {error}", number) from None
            if not isinstance(row, dict):
                raise self._error("no object of names and values", number)
            yield number, row

    def _find_labelled(self, columns: Columns) -> dict[str, tuple[Any, ...]]:
        if not self._forest.pandas_categories:
            return super()._find_labelled(columns)
        features = columns.features or []
        return {n: () for n in features if any(isinstance(r.get(n), str) for r in self._first)}

    def _read_labels(self, lines: Sequence[Line], place: int, known: tuple[Any, ...]) -> list[Any]:
        kinds = {str} if not known else {type(label) for label in known}
        for number, fields in lines:
            if fields[place] is not None and type(fields[place]) not in kinds:
                names = " or ".join(sorted(kind.__name__ for kind in kinds))
                raise self._error(f"{fields[place]!r} among labels ({names})", number)
        return list(map(itemgetter(place), (fields for _, fields in lines)))


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a name occurs twice in an object")
    return row


def _split(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while part := list(islice(items, size)):
        yield part


def _read_size(file: Any) -> int:
    """Return the bytes of a file, 0 if it is none."""
    try:
        return os.fstat(file.fileno()).st_size if file.seekable() else 0
    except OSError:  # a stream in memory
        return 0
