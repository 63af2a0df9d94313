"""Planes of memberships in sets of categories: unions of planes of numbers.

takes: features that are asked for categories; gives: which planes of numbers make each plane.

The rows of a block whose value has the number k, see `categories`, are the bits of plane k of a
feature. The rows that pass a test of a set are the union of some of these planes, or of all others,
whichever are fewer: these are counted, united, and flipped.

    plane[first + p] = (plane of number a | plane of number b | ...) ^ flip

A union is a list of words of four numbers, 16 bits each; the last word repeats the first number.
Where it begins, doubled, and whether it is flipped, are one number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...forest import Array
from ..representation import BufferSpec
from .categories import Asked, table


class UnionSizes(NamedTuple):
    """Sizes of what makes planes of sets; all 0 if no feature is asked for categories.

    Attributes:
        asked: features that are asked.
        planes: planes of sets.
        words: of all lists together.
        numbers: most numbers of a feature.
    """

    asked: int = 0
    planes: int = 0
    words: int = 0
    numbers: int = 0

    def buffers(self) -> tuple[BufferSpec, ...]:
        """Return where each list begins and whether it is flipped, and the words of all.

        The last field of the table of features says how many numbers there are.
        """
        if not self.asked:
            return ()
        return (
            BufferSpec("union_at", "int64", (self.planes + 1,)),
            BufferSpec("unions", "uint64", (self.words,)),
        )


def unions(asked: tuple[Asked, ...], counts: Array) -> tuple[UnionSizes, dict[str, Array]]:
    """Write the lists of all sets.

    Args:
        asked: the features, see `ranks.Ranked`.
        counts: int64 (columns of memberships,), tests of each.
    """
    if not asked:
        return UnionSizes(), {}
    ends = np.cumsum([x.codes.shape[1] for x in asked])
    parts = np.split(counts, ends[:-1])
    lists = [_lists(x.codes, own) for x, own in zip(asked, parts, strict=True)]
    sizes = np.concatenate([size for size, _, _ in lists])
    words = np.concatenate([words for _, words, _ in lists])
    at = np.append(0, np.cumsum(sizes))
    flips = np.concatenate([flips for _, _, flips in lists])
    numbers = np.array([len(x.codes) for x in asked])
    arrays = {
        "asked": table(asked, np.array([own.sum() for own in parts]), numbers),
        "union_at": 2 * at + np.append(flips, False),
        "unions": np.append(words, np.uint64(0)),  # no list at all is no buffer
    }
    return UnionSizes(len(asked), len(sizes), len(words) + 1, int(numbers.max())), arrays


def _lists(codes: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Return the words of each plane, int64 (P,), those of all, and what is flipped, bool (P,).

    Args:
        codes: (K, J), codes of each number in the columns.
        counts: int64 (J,), planes of each column: codes of at most 0, at most 1, ...
    """
    column = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts, counts)
    passes = codes[:, column] <= place
    flips = 2 * passes.sum(axis=0) > len(codes)
    plane, number = np.nonzero((passes ^ flips).T)
    sizes = np.bincount(plane, minlength=len(column))
    words = -(-sizes // 4)
    begin, some = np.cumsum(sizes) - sizes, sizes > 0
    filled = np.repeat(number[begin[some]], 4 * words[some])
    shift = 4 * (np.cumsum(words) - words) - begin
    filled[np.arange(len(number)) + shift[plane]] = number
    fields = filled.reshape(-1, 4).astype(np.uint64) << np.arange(0, 64, 16, dtype=np.uint64)
    return words, np.bitwise_or.reduce(fields, axis=1), flips
