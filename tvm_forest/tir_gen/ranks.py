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

Models trained on 256 bins have at most 255 cuts a feature, and so codes of 8 bits. In this way a
trainer compares bins; ours are the thresholds of the model, whatever it was trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..errors import BuildError
from ..forest import Array, Forest
from .representation import BufferSpec

WIDTH = 16
"""Cuts that one step of the search compares: a vector of AVX-512, or two of AVX2."""


@dataclass(frozen=True)
class Columns:
    """Neighbouring columns that are coded alike.

    Attributes:
        stop: number behind the last column.
        steps: steps of the search.
        missing_left: whether missing values go to the left.
    """

    stop: int
    steps: int
    missing_left: bool


@dataclass(frozen=True)
class RankCode:
    """How rows are coded.

    Attributes:
        dtype: of the codes, uint8 or uint16.
        cut_dtype: dtype of the thresholds.
        cuts: number of cuts with those of higher steps and filling.
        groups: the columns in order.
    """

    dtype: str
    cut_dtype: str
    cuts: int
    groups: tuple[Columns, ...]

    @property
    def columns(self) -> int:
        """Number of codes of a row."""
        return self.groups[-1].stop

    def buffers(self) -> tuple[BufferSpec, ...]:
        """Return the feature of each column, where its cuts begin, and the cuts of all."""
        return (
            BufferSpec("column_feature", "int32", (self.columns,)),
            BufferSpec("column_cuts", "int64", (self.columns,)),
            BufferSpec("cuts", self.cut_dtype, (self.cuts,)),
        )


class Ranked(NamedTuple):
    """A forest in codes.

    Attributes:
        code: how rows are coded.
        arrays: what its buffers hold.
        column: int64 (N,), column that a node tests, 0 at leaves.
        rank: int64 (N,), code of its threshold, 0 at leaves.
    """

    code: RankCode
    arrays: dict[str, Array]
    column: Array
    rank: Array


def rank_tests(forest: Forest, layout: str) -> Ranked:
    """Number the thresholds of every column.

    Raises:
        BuildError: a feature has more thresholds than a code of 16 bits can tell apart.
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

    steps = sum(counts >= WIDTH**step for step in range(1, 4)) + 1  # so no step counts all 16
    order = np.lexsort((keys, keys % 2, steps))
    keys, counts, steps = keys[order], counts[order], steps[order]
    column = np.argsort(order)[column]
    at, cuts = _tables(counts, steps, column[fresh], place[fresh], cut[fresh])
    kinds = np.stack([steps, keys % 2], axis=1)
    stops = np.flatnonzero(np.append(np.any(kinds[1:] != kinds[:-1], axis=1), True)) + 1
    groups = tuple(Columns(int(x), int(steps[x - 1]), bool(keys[x - 1] % 2)) for x in stops)
    dtype = "uint8" if counts.max() <= 255 else "uint16"
    code = RankCode(dtype, str(cuts.dtype), len(cuts), groups)
    arrays = {"column_feature": (keys // 2).astype(np.int32), "column_cuts": at, "cuts": cuts}
    columns, ranks = np.zeros((2, forest.n_nodes), np.int64)
    columns[inner], ranks[inner] = column, place + (forest.comparison == "<")
    return Ranked(code, arrays, columns, ranks)


def step_offset(step: int) -> int:
    """Return where the cuts of a step begin within a column: all steps but the last are filled."""
    return sum(WIDTH**k for k in range(1, step + 1))


def _tables(
    counts: Array, steps: Array, column: Array, place: Array, cut: Array
) -> tuple[Array, Array]:
    """Return where the cuts of each column begin, and those of all, filled up with NaN."""
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
