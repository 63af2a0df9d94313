"""Reads blocks of CSV lines with pyarrow, if it gives the same result as Python.

takes: bytes of whole lines; gives: arrays of their fields, or None if Python must read them.

Python's `csv` and `float` define what a line means. pyarrow rounds numbers in the same way, and
accepts fewer texts as numbers, except `nan(...)`. It treats some quotes, line ends and long fields
differently.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..forest import Array, Forest
from .formats import Reading
from .places.packing import ReadBy

if TYPE_CHECKING:
    from .text_rows import FieldPlan

BLOCK_BYTES = 1 << 21
"""Bytes of a block, read at once."""

LEAST_BYTES = 1 << 15
"""Bytes of a block up to which it is no longer halved if pyarrow cannot read it."""

PARSED_BYTES = 1 << 18
"""Bytes that pyarrow parses at once, few enough for the caches of a core."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_QUOTE, _LINE_END = b'"\n'
_ODD_NAN = re.compile(rb"nan\(", re.IGNORECASE)


def has_arrow() -> bool:
    """Return whether pyarrow is installed."""
    try:
        from pyarrow import csv  # noqa: F401
    except ImportError:
        return False
    return True


class Spool(ReadBy):
    """A file whose first bytes can be read a second time.

    With `head`, the file is preceded by these bytes.
    """

    def __init__(self, file: Any, head: bytes = b"") -> None:
        super().__init__(self._take)
        self._file, self._head = file, head
        self._seen: bytearray | None = bytearray()

    def _take(self, size: int) -> bytes:
        data = self._head[:size] or self._file.read1(size)
        self._head = self._head[len(data) :]
        if self._seen is not None:
            self._seen += data
        return bytes(data)

    def forget(self) -> None:
        """Stop recording the bytes that are read; `rewind` is then impossible."""
        self._seen = None

    def rewind(self, lines: int) -> Blocks | None:
        """Return the file after its first `lines` lines; None if one ends with a bare return."""
        assert self._seen is not None, "it is rewound once, at the beginning"
        head, at = bytes(self._seen).removeprefix(_BYTE_ORDER_MARK), 0
        for _ in range(lines):
            at = head.find(b"\n", at) + 1 or len(head)
        if _has_bare_return(head[:at]):
            return None
        return Blocks(self._file, head[at:], lines)


class Blocks:
    """The rest of a file in blocks of whole lines.

    Attributes:
        line: number of lines before the block that was read last.
        is_worth_arrow: whether pyarrow should read this block: it is installed, the block ends with
            a whole line, and pyarrow is imported already or the block is large. Its import takes as
            long as Python takes to read a megabyte.
    """

    def __init__(self, file: Any, head: bytes, line: int) -> None:
        """Begin with the bytes `head`, which are read already; `line` lines are before them."""
        self._file, self._left, self._next = file, head, line
        # The writer of a pipe may wait for the first predictions.
        self._most = BLOCK_BYTES if file.seekable() else min(PARSED_BYTES, BLOCK_BYTES)
        self.line, self.is_worth_arrow = line, False

    def read(self) -> bytes:
        """Return the next block; b"" at the end.

        Raises:
            OSError, ValueError, EOFError: the file cannot be read.
        """
        self.line = self._next
        while True:
            data = self._file.read(self._most)
            self._left += data
            end = _find_end(self._left) if data else len(self._left)
            is_torn = not end and len(self._left) > BLOCK_BYTES  # no line end outside of quotes
            if end or not data or is_torn:
                break
        end = end or len(self._left)
        block, self._left = self._left[:end], self._left[end:]
        self._next += count_lines(block)
        is_large = 2 * len(block) >= self._most or "pyarrow" in sys.modules
        self.is_worth_arrow = not is_torn and is_large and has_arrow()
        return block

    def take_rest(self, block: bytes) -> io.BufferedReader:
        """Return a file with a block and all bytes after it."""
        spool = Spool(self._file, block + self._left)
        self._left = b""
        spool.forget()
        return io.BufferedReader(spool)

    @property
    def next_line(self) -> int:
        """Number of the next line to read, from 1, for messages."""
        return self._next + count_lines(self._left) + 1


def count_lines(data: bytes) -> int:
    """Return the number of line ends; numpy counts several times as fast as `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == _LINE_END))


def _find_end(data: bytes) -> int:
    """Return the end of the last line whose end is outside of quotes; 0 if there is none."""
    end = data.rfind(b"\n") + 1
    is_quoted = data.count(b'"', 0, end) % 2 if b'"' in data else 0
    while end and is_quoted:
        before = data.rfind(b"\n", 0, end - 1) + 1
        is_quoted ^= data.count(b'"', before, end) % 2
        end = before
    return end


def find_middle(block: bytes) -> int:
    """Return the start of a line near the middle of a simple block; 0 if it cannot be cut."""
    at, last = len(block) // 2, len(block)
    while last > LEAST_BYTES:
        at = block.find(b"\n", at) + 1
        if not at or at == last:
            break
        if block.count(b'"', 0, at) % 2 == 0:
            return at
    return 0


def is_simple(block: bytes, delimiter: str) -> bool:
    """Return whether quotes, line ends and UTF-8 of a block are plain enough for pyarrow."""
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError:
            return False
    return not _has_bare_return(block) and _has_simple_quotes(block, delimiter)


def _has_bare_return(block: bytes) -> bool:
    return b"\r" in block and block.count(b"\r") != block.count(b"\r\n")


def _has_simple_quotes(block: bytes, delimiter: str) -> bool:
    """Return whether all quotes enclose whole fields, or are doubled inside of them."""
    if b'"' not in block:
        return True
    codes = np.frombuffer(block, np.uint8)
    places = np.flatnonzero(codes == _QUOTE)
    if len(places) % 2:
        return False
    before = codes[places[::2] - 1][int(places[0] == 0) :]
    after = codes[np.minimum(places[1::2] + 1, len(codes) - 1)]
    beside = np.frombuffer(f'{delimiter}"\n'.encode(), np.uint8)
    return bool(np.isin(before, beside).all() and np.isin(after, [*beside, ord("\r")]).all())


class Fields(NamedTuple):
    """The fields of a block of N lines that are used.

    Attributes:
        numbers: float64 (N, width), or objects for a model with an encoder.
        labelled: by place of a column of labels, its distinct texts, and (N,) the index of each
            line's text among them.
        kept: pyarrow arrays of texts, one for each kept column.
    """

    numbers: Array
    labelled: dict[int, tuple[list[str], Array]]
    kept: list[Any]


class BlockReader:
    """Reads blocks of one file with pyarrow."""

    def __init__(
        self,
        width: int,
        delimiter: str,
        reading: Reading,
        plan: FieldPlan,
        forest: Forest,
        added: Sequence[str],
    ) -> None:
        """Decide which columns pyarrow reads, as numbers and as texts.

        Args:
            width: number of fields of a line.
            delimiter: character between them.
            reading: the user's options.
            plan: the fields that are used.
            forest: the model.
            added: fields from folder names, which are appended to those of each line.
        """
        self.plan, self._width, self._added = plan, width, added
        self._delimiter, self._reading, self._encoder = delimiter, reading, forest.encoder
        places = list(range(plan.width)) if plan.plain is None else plan.plain
        texts = set() if self._encoder is None else set(self._encoder.categories.tolist())
        self._numbers = {column: at for column, at in enumerate(places) if column not in texts}
        self._texts = {column: at for column, at in enumerate(places) if column in texts}
        wanted = {*self._texts.values(), *plan.labelled, *plan.kept}
        self._as_numbers = {at for at in self._numbers.values() if at < width}
        self._as_texts = {at for at in wanted if at < width} or {0}

    def read(self, block: bytes) -> Fields | None:
        """Return the used fields of a simple block; None if Python must read it."""
        import pyarrow

        if self._is_odd(block):
            return None
        try:
            return self._read(block)
        except (pyarrow.ArrowInvalid, ValueError):  # no number, or a line of another width
            return None

    def _read(self, block: bytes) -> Fields:
        import pyarrow as pa

        numbers = dict.fromkeys(self._as_numbers, pa.float64())
        texts = dict.fromkeys(self._as_texts - self._as_numbers, pa.string())
        table = self._parse(block, {**numbers, **texts})
        of_texts = table
        if not self._as_texts.isdisjoint(self._as_numbers):
            of_texts = self._parse(block, dict.fromkeys(self._as_texts, pa.string()))
        count = table.num_rows

        def find_texts(at: int) -> Any:
            if at >= self._width:
                return pa.repeat(pa.scalar(self._added[at - self._width], pa.string()), count)
            return of_texts.column(str(at)).combine_chunks()

        array = np.empty((count, self.plan.width), object if self._encoder else np.float64)
        for column, at in self._numbers.items():
            array[:, column] = (
                table.column(str(at)).to_numpy() if at < self._width else self._add_number(at)
            )
        for column, at in self._texts.items():
            values, places = _code(find_texts(at))
            array[:, column] = np.array([*values, None], object)[places]
        labelled = {at: _code(find_texts(at)) for at in self.plan.labelled}
        return Fields(array, labelled, [find_texts(at) for at in self.plan.kept])

    def _add_number(self, at: int) -> float:
        text = self._added[at - self._width]
        return float(text) if text.strip() else np.nan

    def _parse(self, block: bytes, types: dict[int, Any]) -> Any:
        import pyarrow as pa
        from pyarrow import csv

        is_long = block.find(b"\n") > PARSED_BYTES // 16
        names = list(map(str, range(self._width)))
        return csv.read_csv(
            pa.BufferReader(block),
            csv.ReadOptions(
                use_threads=False,
                block_size=max(PARSED_BYTES, len(block) if is_long else 0),
                column_names=names,
            ),
            csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=b'"' in block),
            csv.ConvertOptions(
                check_utf8=False,
                column_types={str(at): kind for at, kind in types.items()},
                include_columns=[str(at) for at in types],
                null_values=["", *self._reading.missing],
                decimal_point=self._reading.decimal,
            ),
        )

    def _is_odd(self, block: bytes) -> bool:
        """Return whether pyarrow might accept a block that Python refuses."""
        if b"\0" in block or (b"(" in block and _ODD_NAN.search(block)):
            return True
        most = csv.field_size_limit()
        step = most // 2
        if all(block.find(b"\n", at, at + step) >= 0 for at in range(0, len(block) - step, step)):
            return False  # no line is too long
        codes = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero((codes == ord(self._delimiter)) | (codes == _LINE_END))
        return bool(np.diff(ends, prepend=-1, append=len(codes)).max() > most)


def _code(texts: Any) -> tuple[list[str], Array]:
    """Return the distinct texts of a pyarrow array, and the index of each element among them."""
    coded = texts.dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy()
