"""What rows become before they are walked: codes, or planes of bits.

takes: rows and how a layout wants them; gives: statements that fill a buffer near the walks.

    Codes     codes[r, column] = rank of rows[r, feature] among the cuts of the column
    Planes    plane[first + k, r / 64], bit r % 64 = code(rows[r, feature]) <= k
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import tirx

from ..errors import BuildError
from ..tir_gen.planes import WORD, PlaneCode, position
from ..tir_gen.ranks import WIDTH, Columns, RankCode, step_offset
from .code import Code, i64
from .decide import Decide

TOGETHER = 8
"""Rows that are coded side by side: their searches overlap and share the first cuts."""


class RowCoder(Protocol):
    """Fills a buffer with what walks read in the place of rows."""

    def near(self, most: Any, scope: str) -> Any:
        """Declare a buffer for at most so many rows."""

    def place(self, row: Any) -> list[Any]:
        """Return the indices by which a walk names a row of the buffer."""

    def emit(self, code: Code, buffers: dict[str, Any], near: Any, first: Any, here: Any) -> None:
        """Code `here` rows from `first` on."""


def coder_of(row_code: RankCode | PlaneCode, rows: Any, decide: Decide) -> RowCoder:
    """Return what fills the buffer that a layout asks for."""
    if isinstance(row_code, RankCode):
        return Codes(row_code, rows, decide)
    return Planes(row_code, rows, decide)


@dataclass(frozen=True)
class Codes:
    """A code for every column of a row, side by side.

    Attributes:
        ranks: how values are coded.
        rows: buffer of the rows.
        decide: how they are compared with cuts.
    """

    ranks: RankCode
    rows: Any
    decide: Decide

    def near(self, most: Any, scope: str) -> Any:
        """One row of codes for every row."""
        shape = (most, i64(self.ranks.columns))
        return tirx.decl_buffer(shape, self.ranks.dtype, "codes", scope=scope)

    def place(self, row: Any) -> list[Any]:
        """Rows by number."""
        return [row, i64(0)]

    def emit(self, code: Code, buffers: dict[str, Any], near: Any, first: Any, here: Any) -> None:
        """Search the cuts of every column."""
        _emit_ranks(self, code, buffers, (first, here), lambda r, c: (near, [r, c]))


@dataclass(frozen=True)
class Planes:
    """A word of answers for every test and 64 rows.

    Attributes:
        planes: how rows become planes.
        rows: buffer of the rows.
        decide: how they are compared with cuts.
    """

    planes: PlaneCode
    rows: Any
    decide: Decide

    @property
    def ranks(self) -> RankCode:
        """How values are coded before."""
        return self.planes.ranks

    def near(self, most: Any, scope: str) -> Any:
        """The words of all rows side by side, plane by plane.

        Raises:
            BuildError: the nest has no block of rows of a known size.
        """
        if self.decide.vectors is None:
            raise BuildError(
                "represent_as: layout of planes: needs a target that LLVM compiles for"
            )
        if not isinstance(most, tirx.IntImm):
            raise BuildError(
                f"represent_as: layout of planes: rows are sliced in blocks of a known size; tile "
                f"'batch', and put the loop over a block of {WORD} to 512 rows around the trees"
            )
        words = -(-int(most) // WORD)
        planes = self.planes.tests + self.planes.spare
        return tirx.decl_buffer((i64(planes), i64(words)), "uint64", "planes", scope=scope)

    def place(self, row: Any) -> list[Any]:
        """Rows by their word."""
        return [i64(0), tirx.floordiv(row, i64(WORD))]

    def emit(self, code: Code, buffers: dict[str, Any], near: Any, first: Any, here: Any) -> None:
        """Code all values, column by column, then compare codes with each place of a cut."""
        words = int(near.shape[1])
        shape = (i64(self.ranks.columns), i64(words * WORD))
        codes = tirx.decl_buffer(shape, self.ranks.dtype, "codes", scope="global")
        code.add(tirx.AllocBuffer(codes))
        for plane, word in ((0, 0), (1, 2**64 - 1)):
            for at in range(words):
                same = tirx.const(word, "uint64") if word else tirx.const(0, "uint64")
                code.add(tirx.BufferStore(near, same, [i64(self.planes.tests + plane), i64(at)]))
        _emit_ranks(self, code, buffers, (first, here), lambda r, c: (codes, [c, position(r)]))
        with code.repeat("column", i64(self.ranks.columns)) as column:
            begin, end = (
                code.hold("plane", tirx.BufferLoad(buffers["column_planes"], [column + k]))
                for k in (0, 1)
            )
            lanes = [tirx.Ramp(i64(word * WORD), i64(1), WORD) for word in range(words)]
            near_codes = [code.hold("code", tirx.BufferLoad(codes, [column, x])) for x in lanes]
            with code.repeat("cut", (end - begin).astype("int64")) as cut:
                for word, loaded in enumerate(near_codes):
                    bits = self._below(loaded, cut)
                    code.add(tirx.BufferStore(near, bits, [begin.astype("int64") + cut, word]))

    def _below(self, codes: Any, cut: Any) -> Any:
        assert self.decide.vectors is not None, "checked when a layout of planes is lowered"
        return self.decide.vectors.not_above(codes, cut.astype(self.ranks.dtype))


def _emit_ranks(
    coder: Codes | Planes,
    code: Code,
    buffers: dict[str, Any],
    span: tuple[Any, Any],
    target: Callable[[Any, Any], tuple[Any, list[Any]]],
) -> None:
    """Code some rows; `span` is the first one and their number."""
    first, here = span
    for width, begin, count in code.groups(here, TOGETHER):
        with code.repeat("group", count) as group:
            start = 0
            for columns in coder.ranks.groups:
                with code.repeat("column", i64(columns.stop - start)) as place:
                    rows = [begin + group * width + r for r in range(width)]
                    search = _Search(coder, code, buffers, columns, start + place)
                    for r, value in zip(rows, search.codes([first + r for r in rows]), strict=True):
                        near, at = target(r, start + place)
                        code.add(tirx.BufferStore(near, value, at))
                start = columns.stop


@dataclass(frozen=True)
class _Search:
    """One column: how it is coded and where its cuts are."""

    coder: Codes | Planes
    code: Code
    buffers: dict[str, Any]
    columns: Columns
    column: Any

    def codes(self, rows: list[Any]) -> list[Any]:
        """Return the codes of some rows, searched step by step together."""
        hold, cuts, columns = self.code.hold, self.buffers["cuts"], self.columns
        at = hold("at", tirx.BufferLoad(self.buffers["column_cuts"], [self.column]))
        feature = hold("feature", tirx.BufferLoad(self.buffers["column_feature"], [self.column]))
        loads = [tirx.BufferLoad(self.coder.rows, [r, feature.astype("int64")]) for r in rows]
        xs = [hold("x", load.astype(cuts.dtype)) for load in loads]
        ranks: list[Any] = [i64(0)] * len(rows)
        for step in range(columns.steps):
            base = at + step_offset(step)
            for i, (x, rank) in enumerate(zip(xs, ranks, strict=True)):
                rank = rank * WIDTH
                ranks[i] = hold("rank", rank + self._reached(cuts, base + rank, x))
        dtype = self.coder.ranks.dtype
        values = [rank.astype(dtype) for rank in ranks]
        if columns.missing_left:
            return values
        most = tirx.max_value(dtype)
        return [tirx.Select(tirx.isnan(x), most, v) for x, v in zip(xs, values, strict=True)]

    def _reached(self, cuts: Any, at: Any, x: Any) -> Any:
        """How many of the cuts from `at` on x does not lie to the left of."""
        decide = self.coder.decide
        less = decide.comparison == "<"
        if decide.vectors is not None:
            some = tirx.BufferLoad(cuts, [tirx.Ramp(at, i64(1), WIDTH)])
            bits = decide.vectors.bits("ole" if less else "olt", some, tirx.Broadcast(x, WIDTH))
            return tirx.popcount(bits).astype("int64")
        each = [tirx.BufferLoad(cuts, [at + place]) for place in range(WIDTH)]
        return sum(((cut <= x if less else cut < x).astype("int64") for cut in each), i64(0))
