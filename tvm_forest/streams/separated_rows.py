"""Reads the rows of CSV and of tab-separated values.

takes: open files; gives: batches of their rows.

pyarrow, if it is installed, reads simple blocks of lines. Python's `csv` reads the others, and
finds the lines of errors.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from ..errors import InputError
from ..forest import Forest
from . import text_blocks
from .batches import Batch, Columns, Texts
from .formats import AS_IS, Reading
from .headers import names_columns
from .text_rows import BadLine, FieldPlan, Line, TextRows


class SeparatedRows(TextRows):
    """Rows of CSV, whose first line may name the columns; empty fields are missing.

    If the model stores category labels, texts in such columns are labels. If the file has no column
    names, the fields are category codes.
    """

    delimiter = ","

    def __init__(self, file: Any, where: str, forest: Forest, reading: Reading = AS_IS) -> None:
        """Read the first line, and find out whether it names the columns, see `names_columns`."""
        self.delimiter = reading.delimiter or self.delimiter
        self._consumed = 0  # lines before the first row
        super().__init__(file, where, forest, reading)

    def _open_text(self, file: Any) -> io.TextIOWrapper:
        self._spool = text_blocks.Spool(file)
        return super()._open_text(io.BufferedReader(self._spool))

    def _open(self) -> tuple[list[str] | None, Iterable[Line]]:
        """See `TextRows._open`: names of columns, if the first line holds them, and the lines.

        Raises:
            InputError: the first line is bad, or may be a row or names, see `names_columns`.
        """
        lines = self._split_lines(self._lines)
        first = next(lines, None)
        if first is None:
            return [], lines
        number, fields = first
        if isinstance(fields, BadLine):  # not skipped, as it might name the columns
            raise fields
        shown = fields if self._reading.is_plain else list(map(self.to_plain, fields))
        asked, keep = self._reading.header, self._reading.keep
        if names_columns(shown, self._forest, self._where, asked, keep):
            self._consumed = number
            return fields, lines
        return None, chain([first], lines)

    def batches(self, columns: Columns, size: int) -> Iterator[Batch]:
        """Yield batches of at most `size` rows, as described at `RowFile.batches`."""
        blocks = self._find_blocks()
        if blocks is None:
            yield from super().batches(columns, size)
            return
        plan, is_empty = self._make_plan(columns), True
        reader = text_blocks.BlockReader(
            self._width, self.delimiter, self._reading, plan, self._forest, self._added
        )
        while block := self._read_next(blocks):
            if blocks.is_worth_arrow and text_blocks.is_simple(block, self.delimiter):
                found = self._read_block(block, blocks.line, reader, columns, size)
            else:
                found = self._read_rest(blocks, block, columns, size)
            for batch in found:
                if batch.span:
                    is_empty = False
                    yield batch
        if is_empty:
            self._records = ()
            yield from super().batches(columns, size)

    def _find_blocks(self) -> text_blocks.Blocks | None:
        """Return the rest of the file in blocks; None if Python must read it line by line."""
        can = self._width > 1 and self.delimiter.isascii() and self.names != []
        blocks = self._spool.rewind(self._consumed) if can else None
        self._spool.forget()
        return blocks

    def _read_next(self, blocks: text_blocks.Blocks) -> bytes:
        try:
            return blocks.read()
        except (OSError, ValueError, EOFError) as error:
            raise self._error(f"cannot be read: {error}", blocks.next_line) from None

    def _read_rest(
        self, blocks: text_blocks.Blocks, block: bytes, columns: Columns, size: int
    ) -> Iterator[Batch]:
        """Yield the rows of a block and of all after it in the file, read by Python."""
        self._line = blocks.line
        self._text = io.TextIOWrapper(blocks.take_rest(block), encoding="utf-8", newline="")
        self._records = self._split_lines(self._read_lines(), blocks.line)
        yield from super().batches(columns, size)

    def _read_block(
        self, block: bytes, line: int, reader: text_blocks.BlockReader, columns: Columns, size: int
    ) -> Iterator[Batch]:
        """Yield the rows of a block; halves it until pyarrow can read a part, or Python must.

        Args:
            block: bytes of whole lines.
            line: number of lines of the file before them.
            reader: reads blocks with pyarrow.
            columns: the columns that are used.
            size: the largest number of rows of a batch.
        """
        fields = reader.read(block)
        batch = None if fields is None else self._to_batch(columns, reader.plan, fields)
        if batch is not None:
            for begin in range(0, batch.length, size):
                yield batch.cut(begin, min(begin + size, batch.length))
            return
        middle = text_blocks.find_middle(block)
        if middle:
            behind = line + text_blocks.count_lines(block[:middle])
            yield from self._read_block(block[:middle], line, reader, columns, size)
            yield from self._read_block(block[middle:], behind, reader, columns, size)
            return
        self._records = self._split_lines(io.StringIO(block.decode(), newline=""), line)
        yield from super().batches(columns, size)

    def _to_batch(
        self, columns: Columns, plan: FieldPlan, fields: text_blocks.Fields
    ) -> Batch | None:
        """Return the batch of a block; None if a text is no label: Python then finds its line."""
        labels: dict[int, list[Any]] = {}
        for at, (texts, places) in fields.labelled.items():
            known, wrong = self._to_labels(texts, plan.labelled[at])
            if wrong is not None:
                return None
            of_texts = np.array([*map(known.__getitem__, texts), None], object)
            labels[at] = of_texts[places].tolist()
        rows: Any = fields.numbers
        if labels:
            rows = self._label(columns, fields.numbers, labels)
        return Batch(rows, fields.kept, len(fields.numbers))

    def _split_lines(self, lines: Iterable[str], before: int = 0) -> Iterator[Line]:
        """Yield (line number from 1, fields or a BadLine) of lines.

        Empty lines are left out; if a row has one column, they are bad instead. `before` is the
        number of lines before these.

        Raises:
            BadLine: a line is bad, and bad lines are not skipped, or its quotes stay open.
        """
        reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
        while True:
            begin = reader.line_num
            try:
                fields: Any = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                fields = self._error(f"damaged: {error}", before + reader.line_num)
                if not self._reading.skips or reader.line_num > begin + 1:  # an open quote
                    raise fields from None
            self._line = before + reader.line_num
            if not fields and self._width == 1:  # with several columns it cannot be a row
                fields = self._error("empty; write nan for a missing value", self._line)
                if not self._reading.skips:
                    raise fields
            if fields:
                yield self._line, fields

    def _advise(self, number: int) -> str:
        if number == 1 and self.names is None:
            return "; say --header (header=True) if the line names the columns"
        return "; leave the field of a missing value empty"

    def _new_column(self) -> list[Any]:
        return Texts()

    def _spell(self, value: Any) -> Any:
        return "" if value is None else str(value)

    def _find_labelled(self, columns: Columns) -> dict[str, tuple[Any, ...]]:
        if columns.features is not None and self._forest.pandas_categories:
            raise InputError(
                f"{self._where}: the model was trained on columns of categories, which this format "
                "does not tell from numbers; use Parquet, Arrow or JSON lines"
            )
        return super()._find_labelled(columns)

    def _read_labels(self, lines: Sequence[Line], place: int, known: tuple[Any, ...]) -> list[Any]:
        texts = [fields[place] for _, fields in lines]
        labels, wrong = self._to_labels(dict.fromkeys(texts), known)
        if wrong is not None:
            number, _ = lines[texts.index(wrong)]
            raise self._error(f"{wrong!r} is no number", number)
        return [labels[text] for text in texts]

    def _to_labels(
        self, texts: Iterable[str], known: tuple[Any, ...]
    ) -> tuple[dict[str, Any], str | None]:
        """Return the label of each text, and the first text that cannot be a label, else None.

        Raises:
            InputError: the labels `known` of the model are neither all texts nor all numbers of one
                type.
        """
        kinds = {type(label) for label in known if label is not None}
        read = kinds.pop() if len(kinds) == 1 and kinds <= {str, int, float} else None
        if read is None:
            raise InputError(
                f"{self._where}: labels such as {known[:1]} are no texts and no numbers; use "
                "Parquet or Arrow with columns of dictionaries"
            )
        labels: dict[str, Any] = {"": None, **dict.fromkeys(self._reading.missing)}
        for text in texts:
            if text not in labels:
                try:
                    labels[text] = read(text)
                except ValueError:
                    return labels, text
        return labels, None


class TabbedRows(SeparatedRows):
    """Rows of tab-separated values."""

    delimiter = "\t"
