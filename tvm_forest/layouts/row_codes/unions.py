"""Writes planes of memberships in sets of categories as unions of planes of category numbers.

takes: categorical features; gives: the planes of numbers that make up each plane.

The rows of a block whose value has the number k, see `categories`, are the bits of plane k of a
feature. The rows that pass a test of a set are the union of some of these planes, or of all others,
whichever are fewer; in the second case the union is flipped.

    plane[first + p] = (plane of number a | plane of number b | ...) ^ flip

A union is a list of words of four numbers, 16 bits each; the last word is filled with its first
number. One number holds twice its beginning, plus whether it is flipped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...forest import Array
from .categories import CategoricalFeature, feature_table


class UnionSizes(NamedTuple):
    """Sizes of the unions; all 0 if no feature is categorical.

    Attributes:
        planes: number of planes of sets.
        numbers: most category numbers of a feature.
    """

    planes: int = 0
    numbers: int = 0


def write_unions(
    features: tuple[CategoricalFeature, ...], counts: Array
) -> tuple[UnionSizes, dict[str, Array]]:
    """Return, as lists of words, which planes of numbers make up each plane of a set.

    Args:
        features: the categorical features, see `ranks.RankedTests`.
        counts: int64 (membership columns,), number of tests in each column.

    Returns:
        sizes, and the arrays: the table of features, whose last field says how many numbers there
        are, where each list begins and whether it is flipped, and the words of all.
    """
    if not features:
        return UnionSizes(), {}
    ends = np.cumsum([x.codes.shape[1] for x in features])
    parts = np.split(counts, ends[:-1])
    lists = [_list_numbers(x.codes, own) for x, own in zip(features, parts, strict=True)]
    sizes, words, flips = (np.concatenate(fields) for fields in zip(*lists, strict=True))
    at = np.append(0, np.cumsum(sizes))
    numbers = np.array([len(x.codes) for x in features])
    arrays = {
        "set_features": feature_table(features, np.array([own.sum() for own in parts]), numbers),
        "union_at": 2 * at + np.append(flips, False),
        "unions": np.append(words, np.uint64(0)),  # no list at all is no buffer
    }
    return UnionSizes(len(sizes), int(numbers.max())), arrays


def _list_numbers(codes: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Return which numbers of a feature's categories make up each plane, as lists of words.

    Args:
        codes: (K, J), codes that each of K category numbers has in J membership columns.
        counts: int64 (J,), planes of each column: codes of at most 0, at most 1, ...

    Returns:
        int64 (P,), number of words of each plane's list; uint64, the words of all lists; bool (P,),
        whether the union of a plane's numbers is flipped.
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
