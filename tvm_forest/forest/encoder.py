"""Encodes categories as numeric columns: one-hot columns and statistics.

takes: numbers and hashes of categories; gives: the numeric matrix that walks read.

A category is identified by a 32-bit hash of its text. A statistic belongs to a key, which combines
categories and outcomes of tests, one after the other, and is looked up in a table:

    key = 0;  for part in parts: key = MIX * (key + MIX * part)

A part is the hash of a category, as a signed number, or the outcome 0 or 1 of a test of a number or
category. All of this is CatBoost's (Prokhorenkova et al., "CatBoost: unbiased boosting with
categorical features", NeurIPS 2018); the statistics themselves are part of the model.
"""

from __future__ import annotations

import hashlib

import numpy as np

from ..system.process.locks import cached_property
from ..system.values import dataclass, fields
from .rules import Array

MIX = 0x4906BA494954CB65
CATEGORY, ABOVE, ABOVE_OR_MISSING, IS_CATEGORY = range(4)
"""Kinds of parts: the category of a column, whether a number is above a border, the same with a
missing value above all borders, and whether a column has one category."""

_UNDONE = pow(MIX, -2, 1 << 64)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Encoder:
    """Converts the rows that users pass to a numeric matrix.

    The matrix has N columns of numbers, H one-hot columns, and S statistics, in this order,
    float32.

    Attributes:
        width: columns of the rows that users pass.
        names: names of these columns, or None.
        numbers: int64 (N,), the users' columns that hold numbers.
        categories: int64 (K,), the users' columns that hold categories.
        single: int64 (H, 2), for each one-hot column, its place in `categories` and the hash.
        part_begin: int64 (P + 1,), where the parts of each kind of key begin.
        part_kind: int64, CATEGORY, ABOVE, ABOVE_OR_MISSING or IS_CATEGORY.
        part_place: int64, place in `numbers` or `categories`.
        part_value: float64, the border or the hash with which a test compares.
        table_parts: int64 (T,), the kind of key that each table uses.
        table_begin: int64 (T + 1,), where the keys of each table begin.
        keys: uint64, sorted in each table.
        table: int64 (S,), the table of each statistic.
        known: float32, for each statistic its values for the keys of its table, one statistic after
            the other.
        unknown: float32 (S,), the value of each statistic for all other keys.
    """

    width: int
    names: tuple[str, ...] | None
    numbers: Array
    categories: Array
    single: Array
    part_begin: Array
    part_kind: Array
    part_place: Array
    part_value: Array
    table_parts: Array
    table_begin: Array
    keys: Array
    table: Array
    known: Array
    unknown: Array

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def find_problem(self) -> str | None:
        """Return a sentence about the first array that contradicts the others, or None."""
        n, k, t = len(self.numbers), len(self.categories), len(self.table_parts)
        keys, parts = len(self.keys), len(self.part_kind)
        sizes = np.diff(self.table_begin)
        for name, wanted in {
            "numbers": (n,), "categories": (k,), "single": (len(self.single), 2),
            "part_begin": (len(self.part_begin),), "part_kind": (parts,), "part_place": (parts,),
            "part_value": (parts,), "table_parts": (t,), "table_begin": (t + 1,), "keys": (keys,),
            "table": (len(self.table),), "unknown": (len(self.table),),
        }.items():  # fmt: skip
            if getattr(self, name).shape != wanted:
                return f"'{name}' has shape {getattr(self, name).shape}, expected {wanted}"
        kinds = len(self.part_begin) - 1
        of_numbers = np.isin(self.part_kind, (ABOVE, ABOVE_OR_MISSING))
        for name, values, end in (
            ("numbers", self.numbers, self.width),
            ("categories", self.categories, self.width),
            ("single", self.single[:, 0], k),
            ("part_kind", self.part_kind, IS_CATEGORY + 1),
            ("part_place", self.part_place, np.where(of_numbers, n, k)),
            ("table_parts", self.table_parts, kinds),
            ("table", self.table, t),
        ):
            if np.any((values < 0) | (values >= end)):
                return f"'{name}' leads beyond what there is"
        for name, begin, end in (
            ("part_begin", self.part_begin, parts),
            ("table_begin", self.table_begin, keys),
        ):
            if begin[0] != 0 or begin[-1] != end or np.any(np.diff(begin) < 0):
                return f"'{name}' does not cover what there is"
        if self.known.shape != (int(sizes[self.table].sum()),):
            return f"'known' has shape {self.known.shape}"
        return None

    def __repr__(self) -> str:
        """Return a digest of all fields, which becomes part of signatures."""
        digest = hashlib.sha256()
        for entry in fields(self):
            value = getattr(self, entry.name)
            is_array = isinstance(value, np.ndarray)
            digest.update(f"{entry.name} {value.dtype if is_array else repr(value)}".encode())
            digest.update(np.ascontiguousarray(value).tobytes() if is_array else b"")
        return f"Encoder({digest.hexdigest()})"

    @property
    def n_columns(self) -> int:
        """Number of columns of the matrix."""
        return len(self.numbers) + len(self.single) + len(self.table)

    @property
    def tests(self) -> Array:
        """Float64 (tests, 2), column of the matrix and border of each numeric test in keys."""
        tests = np.isin(self.part_kind, (ABOVE, ABOVE_OR_MISSING))
        return np.stack([self.part_place[tests], self.part_value[tests]], axis=1, dtype=np.float64)

    def encode(self, numbers: Array, hashes: Array) -> Array:
        """Return the numeric matrix of some rows.

        Args:
            numbers: float32 (R, N), the columns `numbers`.
            hashes: uint32 (R, K), the hashes of the columns `categories`.

        Returns:
            float32 (R, n_columns).
        """
        matrix = np.empty((len(numbers), self.n_columns), np.float32)
        at = len(self.numbers)
        matrix[:, :at] = numbers
        for place, code in self.single:
            matrix[:, at] = hashes[:, place] == code
            at += 1
        found: dict[int, tuple[Array, Array]] = {}
        for statistic, (table, begin) in enumerate(zip(self.table, self._known_begin, strict=True)):
            if table not in found:
                found[table] = self._look_up(int(table), numbers, hashes)
            index, is_known = found[table]
            size = self.table_begin[table + 1] - self.table_begin[table]
            values = np.append(self.known[begin : begin + size], self.unknown[statistic])
            matrix[:, at] = values[np.where(is_known, index, size)]
            at += 1
        return matrix

    @cached_property
    def _known_begin(self) -> Array:
        """Int64 (S,), where the values of each statistic begin in `known`."""
        sizes = np.diff(self.table_begin)[self.table]
        return np.cumsum(sizes) - sizes

    def _look_up(self, table: int, numbers: Array, hashes: Array) -> tuple[Array, Array]:
        """Return the index (R,) of each row's key among a table's keys, and whether it is there.

        Args:
            table: the index of the table.
            numbers, hashes: the rows, see `encode`.
        """
        keys = self.keys[self.table_begin[table] : self.table_begin[table + 1]]
        wanted = self._make_keys(int(self.table_parts[table]), numbers, hashes)
        if not len(keys):
            return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
        index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return index, keys[index] == wanted

    def _make_keys(self, kind: int, numbers: Array, hashes: Array) -> Array:
        """Return the key of each row, uint64 (R,), for one kind of key (see `part_begin`)."""
        mix, key = np.uint64(MIX), np.zeros(len(numbers), np.uint64)
        for part in range(self.part_begin[kind], self.part_begin[kind + 1]):
            value = self._make_part(part, numbers, hashes)
            key = mix * (key + mix * value.astype(np.int64).astype(np.uint64))
        return key

    def _make_part(self, part: int, numbers: Array, hashes: Array) -> Array:
        kind, place, value = (x[part] for x in (self.part_kind, self.part_place, self.part_value))
        if kind == CATEGORY:
            return hashes[:, place].astype(np.int32)
        if kind == IS_CATEGORY:
            return hashes[:, place] == value
        column = numbers[:, place]
        above = column > np.float32(value)
        return above | np.isnan(column) if kind == ABOVE_OR_MISSING else above

    @property
    def is_used(self) -> Array:
        """Bool (K,), whether each column of categories is used for some matrix column."""
        asked = self.part_place[np.isin(self.part_kind, (CATEGORY, IS_CATEGORY))]
        return np.isin(np.arange(len(self.categories)), [*asked, *self.single[:, 0]])

    def list_read(self, tested: frozenset[int]) -> list[int]:
        """Return the columns of users' rows that affect predictions.

        Args:
            tested: the columns of the matrix that the model tests.
        """
        within = self.part_place[np.isin(self.part_kind, (ABOVE, ABOVE_OR_MISSING))]
        places = sorted({*within.tolist(), *(x for x in tested if x < len(self.numbers))})
        return [*self.numbers[places].tolist(), *self.categories[self.is_used].tolist()]

    @property
    def lists_all(self) -> Array:
        """Bool (K,), whether `list_known` has all categories of the training rows.

        That is so if each category of the column is a key by itself. One-hot columns alone do not
        list all, since they exist only for categories that some test uses.
        """
        begin = self.part_begin[self.table_parts]
        single = begin[np.diff(self.part_begin)[self.table_parts] == 1]
        listed = self.part_place[single][self.part_kind[single] == CATEGORY]
        return np.isin(np.arange(len(self.categories)), listed)

    def list_known(self) -> list[Array]:
        """Return, for each column of categories, the hashes of its known categories, uint32.

        Known are those with a one-hot column, and those that are a key by themselves.
        """
        places = range(len(self.categories))
        found = [self.single[self.single[:, 0] == place, 1].tolist() for place in places]
        for table, kind in enumerate(self.table_parts):
            begin, end = self.part_begin[kind : kind + 2]
            if end - begin == 1 and self.part_kind[begin] == CATEGORY:
                keys = self.keys[self.table_begin[table] : self.table_begin[table + 1]]
                codes = (keys * np.uint64(_UNDONE)).astype(np.uint32)
                found[self.part_place[begin]] += codes.tolist()
        return [np.unique(np.array(codes, np.uint32)) for codes in found]
