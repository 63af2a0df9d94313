"""Emits look-ups of contributions in precomputed tables of small subtrees, for a block of rows.

takes: SubtreeTables, buffers; gives: a TIR statement.

    for each output, for each of its trees, for each unit (a small subtree with the tests above it)
        for each test that is not answered yet    answer it for all rows, vector by vector
        for each table of the unit                look up the entries of four rows, transpose them
                                                  to a vector for each of four features, and add
                                                  these to the sums of the features

The contributions of a row have the same bits at any place of a block.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ..forest.contributions.subtrees import QUAD, SubtreeTables
from ..layouts.protocol import NodeTest
from .builder import Builder
from .ir import i64, lanes, spread
from .walks.node_test import Comparer

REAL = "float64"

BLOCK = 512
"""Number of rows in a block: their sums stay in the cache, and each table is read once for all."""

STRIDE = BLOCK + 8
"""Distance between the columns of a buffer, which hold an element for each row of the block; with a
power of two, the same row of all columns would be in one cache set."""

LANES = 8
"""Number of rows whose answers to a test are computed as one vector."""

PREFETCH = "llvm.prefetch.p0"
TO_READ = [tirx.const(flag, "int32") for flag in (0, 3, 1)]
"""Flags of `llvm.prefetch`: read access, nearest cache level, data cache."""

LINE = 2
"""Number of table entries in a cache line."""


class ContributionLookup:
    """Emits the code that looks up the contributions of a block of rows."""

    def __init__(self, tables: SubtreeTables, model: dict[str, Any]) -> None:
        self.tables, self.model = tables, model
        forest = tables.forest
        narrow = forest.row_dtype == str(forest.threshold.dtype) == "float32"
        self.dtype = "float32" if narrow else REAL
        self.comparer = Comparer.on(forest.comparison, None)
        self.has_default_left = bool(forest.default_left.any())
        self.code = Builder()

    def emit(self, rows: Any, result: Any, first_row: Any) -> tirx.Stmt:
        """Return code that stores the contributions of the block from `first_row` in `result`."""
        code, features = self.code, i64(self.tables.n_players + 1)
        columns = i64(self.tables.forest.n_features)
        self.turned = code.buffer("turned", (columns * STRIDE,), self.dtype)
        self.sums = code.buffer("sums", (features * STRIDE,), REAL)
        self.places = code.buffer("places", (i64(self.tables.n_places * STRIDE),), "int32")
        count = code.hold("count", tirx.min(i64(BLOCK), rows.shape[0] - first_row))
        full = code.hold("full", tirx.floordiv(count + (LANES - 1), i64(LANES)) * LANES)
        fours = code.hold("fours", tirx.floordiv(count + (QUAD - 1), i64(QUAD)))
        with code.nest("turn", [full, columns]) as (row, column):
            value = rows[first_row + tirx.min(row, count - 1), column].astype(self.dtype)
            code.store(self.turned, value, [column * STRIDE + row])
        with code.repeat("start", full) as row:
            code.store(self.places, tirx.const(0, "int32"), [row])
        with code.repeat("group", i64(int(result.shape[1]))) as group:
            with code.nest("clear", [features, full]) as (feature, row):
                code.store(self.sums, tirx.FloatImm(REAL, 0.0), [feature * STRIDE + row])
            self._emit_tasks(group, full, fours)
            with code.nest("write", [count, features]) as (row, feature):
                total = self.sums[feature * STRIDE + row]
                code.store(result, total, [first_row + row, group, feature])
        return code.finish()

    def _read(self, name: str, entry: Any, width: int) -> list[Any]:
        """Load integers number `entry * width` to `entry * width + width - 1` of an array, int64.

        `name` is that of an array of the model, such as "tests".
        """
        array = self.model[name]
        return [
            self.code.hold(f"{name}_{k}", array[entry * width + k].astype("int64"))
            for k in range(width)
        ]

    def _emit_tasks(self, group: Any, full: Any, fours: Any) -> None:
        code, begins = self.code, self.model["begins"]
        first_entry = i64(0)
        if self.tables.forest.has_vectors:
            first_entry = group * self.tables.n_entries
        begin = code.hold("begin", begins[group].astype("int64"))
        end = code.hold("end", begins[group + 1].astype("int64"))
        with code.repeat("task", end - begin) as task:
            first, last = self._read("tasks", begin + task, 2)
            with code.repeat("unit", last - first) as unit:
                test, tests, quad, quads = self._read("units", first + unit, 4)
                with code.repeat("test", tests) as step:
                    self._answer(code.hold("asked", test + step), full)
                with code.repeat("quad", quads) as step:
                    self._add(code.hold("looked", quad + step), first_entry, fours)

    def _answer(self, test: Any, full: Any) -> None:
        """Emit the answers of all rows to a test, each appended as a bit to earlier answers."""
        code = self.code
        column, default, source, place = self._read("tests", test, 4)
        threshold = code.hold("threshold", self.model["thresholds"][test].astype(self.dtype))
        with code.repeat("rows", tirx.floordiv(full, i64(LANES))) as vector:
            row = vector * LANES
            value = code.hold("value", self.turned[lanes(column * STRIDE + row, LANES)])
            missing = spread(default > 0, LANES) if self.has_default_left else None
            asked = NodeTest(
                feature=column, threshold=spread(threshold, LANES), default_left=missing
            )
            left = self.comparer.goes_left(value, asked)
            bit = tirx.Select(left, self._whole(1), self._whole(0))
            before = self.places[lanes(source * STRIDE + row, LANES)]
            code.store(
                self.places, before * self._whole(2) + bit, [lanes(place * STRIDE + row, LANES)]
            )

    def _whole(self, value: int) -> Any:
        return spread(tirx.const(value, "int32"), LANES)

    def _add(self, quad: Any, first_entry: Any, fours: Any) -> None:
        """Emit the look-ups in one table for all rows, added to the sums of its four features.

        The entries depend on the rows, so the hardware cannot prefetch them. The code prefetches a
        cache line of the next table for every four rows.

        Args:
            quad: number of the table.
            first_entry: number of the first entry of all tables for the current output.
            fours: how many groups of four rows there are.
        """
        code = self.code
        place, entry, following, *features = self._read("quads", quad, 3 + QUAD)
        entry = code.hold("entry", first_entry + entry)
        following = code.hold("following", first_entry + following)
        with code.repeat("four", fours) as four:
            row = four * QUAD
            found = []
            ahead = tirx.address_of(self.model["table"][(following + four * LINE) * QUAD])
            code.add(tirx.Evaluate(tirx.call_llvm_intrin("void", PREFETCH, ahead, *TO_READ)))
            for k in range(QUAD):
                pattern = self.places[place * STRIDE + row + k].astype("int64")
                at = code.hold("at", (entry + pattern) * QUAD)
                found.append(code.hold("found", self.model["table"][lanes(at, QUAD)]))
            for feature, values in zip(features, turn(found), strict=True):
                total = lanes(feature * STRIDE + row, QUAD)
                code.store(self.sums, self.sums[total] + values, [total])


def turn(rows: list[Any]) -> list[Any]:
    """Transpose four vectors of four lanes, by shuffles."""

    def pick(one: Any, other: Any, *places: int) -> Any:
        return tirx.Shuffle([one, other], [tirx.const(place, "int32") for place in places])

    low = [pick(rows[k], rows[k + 2], 0, 1, 4, 5) for k in (0, 1)]
    high = [pick(rows[k], rows[k + 2], 2, 3, 6, 7) for k in (0, 1)]
    return [pick(*half, *places) for half in (low, high) for places in ((0, 4, 2, 6), (1, 5, 3, 7))]
