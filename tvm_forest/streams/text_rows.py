"""Reads rows of text files line by line, without pyarrow; defines the format JSON lines.

takes: open files; gives: batches of their rows.

A field is a number if Python's `float` accepts it.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError
from ..forest import Array, Forest
from .batches import Batch, Columns, find_added, label_rows
from .formats import AS_IS, Reading
from .headers import is_blank, is_number

MAX_FIELDS = 1 << 17
"""Most fields that are in memory as Python objects at a time."""

FIRST_LINES = 1000
"""Number of first lines of JSON that determine the columns."""

Line = tuple[int, Any]
"""Number of a line in its file, from 1, and its fields in the order of columns, or a BadLine."""


class BadLine(InputError):
    """A line that cannot be read as a row.

    Attributes:
        where: beginning of the message.
        what: the number of the line, and what is wrong with it.
    """

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where, self.what = where, what

    def __reduce__(self) -> tuple[type[BadLine], tuple[str, str]]:
        """Support pickle: return the class and its arguments."""
        return type(self), (self.where, self.what)


class FieldPlan(NamedTuple):
    """Positions in a line's fields of the columns that are used.

    Attributes:
        labelled: for the position of each column of labels, the labels in the model.
        plain: positions of the model's other columns, in its order; None for all fields.
        width: number of the model's other columns.
        kept: positions of the kept columns.
    """

    labelled: dict[int, tuple[Any, ...]]
    plain: list[int] | None
    width: int
    kept: list[int]


class Read(NamedTuple):
    """The used fields of R lines: numbers (R, width), labels by position, and kept columns."""

    numbers: Array
    labels: dict[int, list[Any]]
    kept: list[Any]


class TextRows:
    """Rows that are lines of text, read once from the beginning.

    Attributes:
        names, added: see `RowFile`.
    """

    names: list[str] | None
    added: tuple[str, ...] = ()

    def __init__(self, file: Any, where: str, forest: Forest, reading: Reading = AS_IS) -> None:
        """Read the names of the columns, if the file has any."""
        self._where, self._forest, self._reading = where, forest, reading
        self._packed = getattr(getattr(file, "raw", None), "packed", file)
        self._size = _read_size(self._packed)
        self._line = 0
        self._width = forest.given_width  # until names are known
        self._added: list[Any] = []  # fields from folder names, appended to those of each line
        self._swap = str.maketrans(f"{reading.decimal}.", f".{reading.decimal}")
        self._text = self._open_text(file)
        self._lines = self._read_lines()
        self.names, self._records = self._open()
        if self.names:
            self._width = len(self.names)
            added = find_added(self.names, reading)
            self.names, self.added = [*self.names, *added], tuple(added)
            self._added = [self._spell(value) for value in added.values()]

    def _open_text(self, file: Any) -> io.TextIOWrapper:
        return io.TextIOWrapper(file, encoding="utf-8-sig", newline="")

    def _open(self) -> tuple[list[str] | None, Iterable[Line]]:
        """Return the names of columns ([] if the file is empty, None without names), and lines."""
        raise NotImplementedError

    def _find_labelled(self, columns: Columns) -> dict[str, tuple[Any, ...]]:
        """Return the model's labels for each column that holds labels, by name."""
        known = self._forest.category_names
        return {n: known[i] for i, n in enumerate(columns.features or ()) if i in known}

    def _read_labels(self, lines: Sequence[Line], place: int, known: tuple[Any, ...]) -> list[Any]:
        """Return the labels of a column, None for a missing one.

        Args:
            lines: the lines.
            place: position of the column.
            known: the model's labels.

        Raises:
            BadLine: a field cannot be a label.
        """
        raise NotImplementedError

    def fraction(self) -> float | None:
        """Return the share of the file that has been read, or None if it is not known."""
        return min(1.0, self._packed.tell() / self._size) if self._size else None

    def batches(self, columns: Columns, size: int) -> Iterator[Batch]:
        """Yield batches of at most `size` rows, as described at `RowFile.batches`."""
        plan = self._make_plan(columns)
        step = max(1, min(size, MAX_FIELDS // max(1, self._width)))
        records, is_first = iter(self._records), True
        while True:
            reads, bad, count = [self._read([], plan)], {}, 0
            for lines in _split(islice(records, size), step):
                for read in self._sift(lines, plan):
                    if isinstance(read, BadLine):
                        bad[count] = read.what
                    else:
                        reads.append(read)
                    count += 1 if isinstance(read, BadLine) else len(read.numbers)
            if count or is_first:
                yield self._join(columns, plan, reads, bad)
            if not count:
                return
            is_first = False

    def _make_plan(self, columns: Columns) -> FieldPlan:
        labelled = self._find_labelled(columns)
        names = self.names or columns.wanted
        plain = [names.index(n) for n in columns.features or () if n not in labelled]
        pick = None if columns.features is None or plain == list(range(len(names))) else plain
        width = self._forest.given_width - len(labelled)
        places = {names.index(name): known for name, known in labelled.items()}
        return FieldPlan(places, pick, width, [names.index(name) for name in columns.kept])

    def _sift(self, lines: Sequence[Line], plan: FieldPlan) -> Iterator[Read | BadLine]:
        """Yield the used fields of good lines, and a BadLine for each that is skipped, in order."""
        try:
            read = self._read(lines, plan)
        except BadLine as error:
            if not self._reading.skips:
                raise
            middle = len(lines) // 2
            if middle:
                yield from self._sift(lines[:middle], plan)
                yield from self._sift(lines[middle:], plan)
            else:
                yield error
        else:
            yield read

    def _read(self, lines: Sequence[Line], plan: FieldPlan) -> Read:
        self._check_widths(lines)
        if self._added:
            lines = [(number, fields + self._added) for number, fields in lines]
        numbers = self._read_fields(lines, plan.plain, plan.width)
        labels = {at: self._read_labels(lines, at, known) for at, known in plan.labelled.items()}
        return Read(numbers, labels, [[fields[at] for _, fields in lines] for at in plan.kept])

    def _join(
        self, columns: Columns, plan: FieldPlan, reads: Sequence[Read], bad: dict[int, str]
    ) -> Batch:
        """Join consecutive reads into one batch; for `bad` see `Batch`."""
        numbers = np.concatenate([read.numbers for read in reads])
        rows: Any = numbers
        if plan.labelled:
            labels = {
                at: list(chain.from_iterable(read.labels[at] for read in reads))
                for at in plan.labelled
            }
            rows = self._label(columns, numbers, labels)
        kept = [self._new_column() for _ in plan.kept]
        for read in reads:
            for column, values in zip(kept, read.kept, strict=True):
                column += values
        return Batch(rows, kept, len(numbers), bad)

    def _label(self, columns: Columns, numbers: Array, labels: dict[int, list[Any]]) -> Any:
        """Return a pyarrow table of the model's columns; labels are given by position."""
        names = self.names or columns.wanted
        known, plain = {names[at]: values for at, values in labels.items()}, iter(numbers.T)
        held = {n: known[n] if n in known else next(plain) for n in columns.features or []}
        return label_rows(held, self._where)

    def _new_column(self) -> list[Any]:
        """Return an empty list for a kept column's fields."""
        return []

    def _spell(self, value: Any) -> Any:
        """Return a value from a folder name in the form of a field."""
        return value

    def _read_numbers(self, lines: Sequence[Line], pick: list[int] | None, width: int) -> Array:
        """Return fields of lines as numbers, float64 (R, width); NaN for a blank or missing one.

        Args:
            lines: lines with a field for each column.
            pick: places of the fields to return, in this order; None for all.
            width: number of fields that are returned of a line.

        Raises:
            BadLine: a field is neither blank nor a number.
        """
        fields = [fields for _, fields in lines]
        if pick is not None:
            fields = [[line[place] for place in pick] for line in fields]
        if not self._reading.is_plain:
            fields = [list(map(self.to_plain, line)) for line in fields]
        with suppress(ValueError, TypeError, OverflowError):
            return np.array(fields, np.float64).reshape(len(fields), width)
        filled = [["nan" if x == "" else x for x in line] for line in fields]
        with suppress(ValueError, TypeError, OverflowError):
            return np.array(filled, np.float64)
        for (number, _), line in zip(lines, fields, strict=True):
            wrong = [x for x in line if not (is_blank(x) or is_number(x))]
            if wrong:
                text = wrong[0].translate(self._swap) if isinstance(wrong[0], str) else wrong[0]
                raise self._error(f"{text!r} is no number{self._advise(number)}", number)
        filled = [["nan" if is_blank(x) else x for x in line] for line in fields]
        return np.array(filled, np.float64)

    def to_plain(self, field: Any) -> Any:
        """Return a numeric field as Python writes it: with a decimal point, "nan" if missing."""
        if not isinstance(field, str):
            return field
        return "nan" if field.strip() in self._reading.missing else field.translate(self._swap)

    def _advise(self, number: int) -> str:
        """Return the end of a message about a field of line `number` that is not a number."""
        return "; write null for a missing value"

    def _read_fields(self, lines: Sequence[Line], pick: list[int] | None, width: int) -> Array:
        """Return fields (R, width): numbers, or objects if the model has an encoder for texts."""
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
            if isinstance(fields, BadLine):
                raise fields
            if len(fields) != self._width:
                who = "the model has {} features" if self.names is None else "the first line has {}"
                raise self._error(f"{len(fields)} fields, but {who.format(self._width)}", number)

    def _read_lines(self) -> Iterator[str]:
        try:
            yield from self._text
        except (OSError, ValueError, EOFError) as error:
            raise self._error(f"cannot be read: {error}", self._line + 1) from None

    def _error(self, what: object, number: int) -> BadLine:
        return BadLine(self._where, f"line {number}: {what}")


class JsonRows(TextRows):
    """Rows that are JSON objects, one per line.

    The columns are the names in the first `FIRST_LINES` lines. If an object lacks a column, its
    value is missing, as for null. Names that only later lines have are ignored, but refused if all
    columns are used.
    """

    def _open(self) -> tuple[list[str] | None, Iterable[Line]]:
        """See `TextRows._open`; the names are those in the first `FIRST_LINES` lines."""
        objects = self._read_objects()
        first = list(islice(objects, FIRST_LINES))
        self._first = [row for _, row in first if isinstance(row, dict)]
        names = list(dict.fromkeys(chain.from_iterable(self._first)))
        return names, self._pick(names, chain(first, objects))

    def _pick(self, names: list[str], objects: Iterable[tuple[int, Any]]) -> Iterator[Line]:
        takes_all, known = self._forest.given_names is None or self._reading.keeps_all, set(names)
        for number, row in objects:
            if isinstance(row, BadLine):
                yield number, row
                continue
            if takes_all and not row.keys() <= known:
                (new, *_) = row.keys() - known
                why = (
                    "all columns are kept"
                    if self._reading.keeps_all
                    else ("the model takes its columns by their order")
                )
                what = f"column {new!r}, which the first {FIRST_LINES} lines lack, and {why}"
                raise InputError(f"{self._where}: line {number}: {what}")
            yield number, list(map(row.get, names))

    def _read_objects(self) -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(self._lines, 1):
            self._line = number
            if not line.isspace():
                yield number, self._read_object(line, number)

    def _read_object(self, line: str, number: int) -> dict[str, Any] | BadLine:
        """Return the object of a line; for a bad line a BadLine, if bad lines are skipped.

        Raises:
            BadLine: the line is bad, and bad lines are not skipped.
        """
        try:
            row = json.loads(line, object_pairs_hook=_to_dict)
            if isinstance(row, dict):
                return row
            bad = self._error("no object of names and values", number)
        except (ValueError, RecursionError) as error:
            bad = self._error(f"no JSON: {error}", number)
        if not self._reading.skips:
            raise bad
        return bad

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
        labels = list(map(itemgetter(place), (fields for _, fields in lines)))
        missing = self._reading.missing
        return [None if x in missing else x for x in labels] if missing else labels


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a name occurs twice in an object")
    return row


def _split(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while part := list(islice(items, size)):
        yield part


def _read_size(file: Any) -> int:
    """Return the size of a file in bytes, 0 for a stream."""
    try:
        return os.fstat(file.fileno()).st_size if file.seekable() else 0
    except OSError:  # a stream in memory
        return 0
