"""Codes of row values: small integers that compare with a model's thresholds as the values do.

takes: Forest; gives: RankCode (how rows are coded) and the arrays that coding reads.

The code of x is the number of thresholds of its feature that x does not lie to the left of:

    code(x) = #{t : t <= x} if the model compares with <;    x <  t  iff  code(x) <  code(t)
    code(x) = #{t : t <  x} if the model compares with <=;   x <= t  iff  code(x) <= code(t)

so a walk compares codes as it would compare the values. A NaN is the least code where missing
values go to the left, the greatest number of the code's type where they go to the right, and
compares no more. For that a feature which is tested with both sides has two columns in a coded row;
a feature that is never tested has none.

The thresholds of a column, its cuts, are searched 16 at a time: the bits of 16 comparisons are
counted. A column of up to 15 cuts takes one such step, one of up to 255 two, and so on:

    step 0   every 16th cut        16 of them, filled up with NaN, which no value reaches
    step 1   all cuts              the 16 from place 16 * (count of step 0) on

A column of memberships in a set of categories (`Forest.derived`) is not searched: the feature is
searched once for all its sets, see `categories`, and their codes are looked up. These columns come
last, feature by feature, and so do the searches for them, which take the same number of steps, so
that there is one such text in the code.

Models trained on 256 bins have at most 255 cuts a feature, and so codes of 8 bits. In this way a
trainer compares bins; ours are the thresholds of the model, whatever it was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ...errors import BuildError
from ...forest import Array, Forest
from ..representation import BufferSpec
from .categories import Answers, Asked, asked, table

WIDTH = 16
"""Cuts that one step of the search compares: a vector of AVX-512, or two of AVX2."""


@dataclass(frozen=True)
class Columns:
    """Neighbouring searches that are alike: each codes a column, or finds a category.

    Attributes:
        stop: number behind the last search.
        steps: steps of the search.
        missing_left: whether missing values go to the left.
        asked: whether a category is found, for which cuts at most as large are counted.
    """

    stop: int
    steps: int
    missing_left: bool
    asked: bool = False


@dataclass(frozen=True)
class RankCode:
    """How rows are coded.

    Attributes:
        dtype: of the codes, uint8 or uint16.
        cut_dtype: dtype of the thresholds.
        cuts: number of cuts with those of higher steps and filling.
        groups: the searches in order.
        sets: columns of memberships.
        numbers: places between the cuts of features that are asked for categories.
        answers: elements of the table of their codes.
        lanes: rows whose codes lie side by side, column by column.
    """

    dtype: str
    cut_dtype: str
    cuts: int
    groups: tuple[Columns, ...]
    sets: int = 0
    numbers: int = 0
    answers: int = 0
    lanes: int = 1

    @property
    def searches(self) -> int:
        """Number of searches for a row."""
        return self.groups[-1].stop

    @property
    def asked(self) -> int:
        """Number of those that find a category; they are the last."""
        return self.searches - self.searched

    @property
    def searched(self) -> int:
        """Number of columns that are searched; those of memberships follow."""
        return max((x.stop for x in self.groups if not x.asked), default=0)

    @property
    def columns(self) -> int:
        """Number of codes of a row."""
        return self.searched + self.sets

    def buffers(self) -> tuple[BufferSpec, ...]:
        """Return what searches read: their feature, where their cuts begin, and the cuts of all.

        For those that find a category, also `categories.table`, and the number of each place. They
        are few buffers, for each takes 0.01 s to compile, in which its shape and type are checked.
        """
        found = (
            BufferSpec("asked", "int64", (self.asked, 4)),
            BufferSpec("numbers", "uint16", (self.numbers,)),
        )
        return (
            BufferSpec("column_feature", "int32", (self.searches,)),
            BufferSpec("column_cuts", "int64", (self.searches,)),
            BufferSpec("cuts", self.cut_dtype, (self.cuts,)),
            *(found if self.asked else ()),
        )

    def answer_buffers(self) -> tuple[BufferSpec, ...]:
        """Return the codes of each number in all columns of its feature, side by side.

        The last field of the table says where those of a feature begin.
        """
        return (BufferSpec("answers", self.dtype, (self.answers,)),) if self.asked else ()


class Ranked(NamedTuple):
    """A forest in codes.

    Attributes:
        code: how rows are coded.
        arrays: what its buffers hold.
        column: int64 (N,), column that a node tests, 0 at leaves.
        rank: int64 (N,), code of its threshold, 0 at leaves.
        asked: the features that are asked for categories, in the order of their columns.
    """

    code: RankCode
    arrays: dict[str, Array]
    column: Array
    rank: Array
    asked: tuple[Asked, ...] = ()

    def answer_arrays(self) -> dict[str, Array]:
        """Return what `RankCode.answer_buffers` hold, and the table of features."""
        if not self.asked:
            return {}
        widths = np.array([x.codes.shape[1] for x in self.asked])
        sizes = np.array([x.codes.size for x in self.asked])
        return {
            "asked": table(self.asked, widths, np.cumsum(sizes) - sizes),
            "answers": np.concatenate([x.codes.ravel() for x in self.asked]),
        }


def rank_tests(forest: Forest, layout: str) -> Ranked:
    """Number the thresholds of every column.

    Raises:
        BuildError: a feature has more thresholds than a code of 16 bits can tell apart, or is asked
            for more categories.
    """
    inner = np.flatnonzero(~forest.is_leaf)
    key = 2 * forest.feature[inner].astype(np.int64) + forest.default_left[inner]
    cut = forest.threshold[inner]
    order = np.lexsort((cut, key))
    inner, key, cut = inner[order], key[order], cut[order]
    begins = np.append(True, key[1:] != key[:-1])[: len(key)]
    fresh = begins | np.append(True, cut[1:] != cut[:-1])[: len(key)]
    column, place = np.cumsum(begins) - 1, np.cumsum(fresh) - 1
    place -= place[begins][column]
    counts = np.bincount(column[fresh]) if len(key) else np.zeros(1, np.int64)
    keys = key[begins] if len(key) else np.zeros(1, np.int64)
    _check_counts(layout, keys, counts)

    dtype = "uint8" if counts.max() <= 255 else "uint16"
    tests = _Tests(keys, column[fresh], place[fresh], cut[fresh])
    found = _asked(forest, tests, dtype, layout)
    code, arrays, order = _searches(forest, tests, found)
    columns, ranks = np.zeros((2, forest.n_nodes), np.int64)
    columns[inner], ranks[inner] = np.argsort(order)[column], place + (forest.comparison == "<")
    answers = tuple(x for x, _ in found)
    size = sum(x.codes.size for x in answers)
    code = replace(code, dtype=dtype, answers=size)
    return Ranked(code, arrays, columns, ranks, answers)


class _Tests(NamedTuple):
    """The distinct tests of a model.

    Attributes:
        keys: int64 (columns,), 2 * feature + default side, ascending.
        column, place, cut: (P,), column of each test, its place there, and its threshold.
    """

    keys: Array
    column: Array
    place: Array
    cut: Array

    def reached(self, forest: Forest, value: float) -> Array:
        """Return the code of a value in each column."""
        count = self.cut <= value if forest.comparison == "<" else self.cut < value
        return np.bincount(self.column, count, len(self.keys)).astype(np.int64)


def _asked(forest: Forest, tests: _Tests, dtype: str, layout: str) -> list[tuple[Asked, Array]]:
    """Return the features that are asked for categories, and where the keys of each are."""
    keys = tests.keys
    sets = np.flatnonzero(keys >= 2 * forest.row_width)
    if not len(sets):
        return []
    missing = np.where(keys % 2, 0, np.iinfo(dtype).max)
    reached = [tests.reached(forest, value) for value in (0, 1)]
    answers = Answers(*(x.astype(dtype) for x in (*reached, missing)))
    column = keys // 2 - forest.row_width
    feature = np.array([forest.derived[c][0] for c in column[sets]])
    found = []
    for f in np.unique(feature):
        places = sets[feature == f]
        codes = [forest.derived[c][1] for c in column[places]]
        found.append((asked(forest, int(f), codes, answers.of(places), layout), places))
    return found


def _searches(
    forest: Forest, tests: _Tests, found: list[tuple[Asked, Array]]
) -> tuple[RankCode, dict[str, Array], Array]:
    """Return how rows are coded, what the searches read, and the places of the coded columns."""
    searched = int(np.searchsorted(tests.keys, 2 * forest.row_width))
    counts = np.bincount(tests.column, minlength=len(tests.keys))[:searched]
    keys = tests.keys[:searched]
    order = np.lexsort((keys, keys % 2, _steps(counts)))
    taken = tests.column < searched
    column = np.argsort(order)[tests.column[taken]]
    own = [x.cuts for x, _ in found]
    sizes = np.array([len(x) for x in own], np.int64)
    steps = np.append(_steps(counts[order]), np.full(len(own), _steps(sizes).max(initial=1)))
    at, cuts = _tables(
        np.append(counts[order], sizes),
        steps,
        np.append(column, np.repeat(searched + np.arange(len(own)), sizes)),
        np.concatenate([tests.place[taken], *map(np.arange, sizes)]),
        np.concatenate([tests.cut[taken], *own]),
    )
    is_asked = np.arange(len(steps)) >= searched
    missing_left = np.append(keys[order] % 2 == 1, sizes >= 0)
    kinds = np.stack([steps, missing_left, is_asked], axis=1)
    stops = np.flatnonzero(np.append(np.any(kinds[1:] != kinds[:-1], axis=1), True)) + 1
    last = [(int(x), *kinds[x - 1].tolist()) for x in stops]
    groups = tuple(Columns(stop, n, bool(left), bool(finds)) for stop, n, left, finds in last)
    features = [*(keys[order] // 2), *(x.feature for x, _ in found)]
    arrays = {"column_feature": np.array(features, np.int32), "column_cuts": at, "cuts": cuts}
    if found:
        arrays["numbers"] = np.concatenate([x.number for x, _ in found])
    sets, numbers = len(tests.keys) - searched, sum(len(x.number) for x, _ in found)
    code = RankCode("", str(cuts.dtype), len(cuts), groups, sets, numbers)
    return code, arrays, np.concatenate([order, *(places for _, places in found)])


def _steps(counts: Any) -> Any:
    """Steps of a search; no step counts all 16."""
    return sum(counts >= WIDTH**step for step in range(1, 4)) + 1


def step_offset(step: int) -> int:
    """Return where the cuts of a step begin within a column: all steps but the last are filled."""
    return sum(WIDTH**k for k in range(1, step + 1))


def _tables(
    counts: Array, steps: Array, column: Array, place: Array, cut: Array
) -> tuple[Array, Array]:
    """Return where the cuts of each search begin, and those of all, filled up with NaN."""
    offsets = np.array([0, *(step_offset(step) for step in range(4))])[steps]
    sizes = offsets + WIDTH * (counts // WIDTH + 1)
    at = np.cumsum(sizes) - sizes
    table = np.full(int(sizes.sum()), np.nan, cut.dtype)
    for step in range(int(steps.max())):
        stride = WIDTH ** np.maximum(steps - 1 - step, 0)[column]
        kept = (steps[column] > step) & ((place + 1) % stride == 0)
        table[(at[column] + step_offset(step) + (place + 1) // stride - 1)[kept]] = cut[kept]
    return at, table


def _check_counts(layout: str, keys: Array, counts: Array) -> None:
    most = int(np.argmax(counts))
    if counts[most] > 65535:
        raise BuildError(
            f"represent_as: layout '{layout}': feature {keys[most] // 2} has {counts[most]} "
            "thresholds, a code of 16 bits tells 65535 apart; use represent_as('packed')"
        )
