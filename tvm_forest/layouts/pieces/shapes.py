"""The shapes of pieces of trees, and how pieces share a line of the cache.

takes: nothing; gives: tables, by numpy alone.

A piece has up to 7 tests. It begins as one exit, its root, and grows: a test takes the place of one
of its exits, number j, whose number its left exit keeps, and the right one gets the next number.
The numbers j of all its tests, a number of mixed radix, are the order in which it has grown:

    j of the tests     0, 0, 1         order = 0 + 1 * 0 + 2 * 1

Orders that grow into the same tree have one shape. From left to right, tests and exits of it are
the bits of an outcome, and the places of a line.
"""

from __future__ import annotations

import functools
from math import factorial, prod
from typing import NamedTuple

import numpy as np

from ...forest import Array

TESTS = 7
"""Tests of a line, at most; it has one exit more."""

PLACES = 4
"""Pieces of a line, at most."""

FILLINGS = ((8,), (7,), (6, 2), (5, 3), (4, 4), (3, 3, 2), (2, 2, 2, 2))
"""How many exits the pieces of a line have, side by side. Pieces of each size that are left by the
fillings before begin one of these, so that at least 5 of 8 exits of a line are used."""

LEAST_EXITS = 5
"""Exits of a line that are used, at least, but for the last line of each filling."""


class Grown(NamedTuple):
    """Pieces of n tests, by the order in which they have grown.

    Attributes:
        tests: int8 (n!, n), tests from left to right.
        exits: int8 (n!, n + 1), exits from left to right.
        shape: int64 (n!,), number of the shape.
        ends: uint8 (S, 2 ** n), for each shape the exit, from left to right, that an outcome leads
            to; bit i says that the test in place i goes left.
    """

    tests: Array
    exits: Array
    shape: Array
    ends: Array


@functools.cache
def grow(count: int) -> Grown:
    """Return the pieces of 1 to 7 tests."""
    tests, exits = np.zeros((1, 0), np.int8), np.zeros((1, 1), np.int8)
    for n in range(count):  # the place of the exit that test n takes, by the exit's number
        place = np.argsort(exits, axis=1).T.ravel()
        tests, exits = np.tile(tests, (n + 1, 1)), np.tile(exits, (n + 1, 1))
        tests = _insert(tests, place, n)
        exits = _insert(exits, place + 1, n + 1)
    ends = _find_ends(tests)
    _, first, shape = np.unique(
        ends.view(f"V{ends.shape[1]}").ravel(), return_index=True, return_inverse=True
    )
    return Grown(tests, exits, shape, ends[first])


def _insert(rows: Array, place: Array, value: int) -> Array:
    """Return rows with one more element, of that value, each in a place of its own."""
    column = np.arange(rows.shape[1] + 1)
    moved = column - (column > place[:, None])
    grown = np.take_along_axis(np.pad(rows, ((0, 0), (0, 1))), moved, axis=1)
    grown[np.arange(len(rows)), place] = value
    return grown


def _find_ends(tests: Array) -> Array:
    """Return the exit of each outcome, uint8 (K, 2 ** n), given tests from left to right."""
    count = tests.shape[1]
    outcome = np.arange(1 << count)
    first, last = np.zeros((2, len(tests), len(outcome)), np.int8)
    last += count
    for place in np.argsort(tests, axis=1).T:  # a test counts if the ones before lead to it
        place = place.astype(np.int8)[:, None]
        left = (outcome >> place & 1).astype(bool)
        is_met = (first <= place) & (place < last)
        last = np.where(is_met & left, place, last)
        first = np.where(is_met & ~left, place + 1, first)
    return first.astype(np.uint8)


class LineTables(NamedTuple):
    """What leads from the code of a line to an exit.

    Attributes:
        ends: uint8 (R, 128), the exit of a line that the outcome of its tests leads to.
        rows: uint16 (codes, 4), the row of `ends` for the piece in each place of a line.
        first_code: by filling, the code of a line whose pieces are all of their first shapes.
    """

    ends: Array
    rows: Array
    first_code: dict[tuple[int, ...], int]


@functools.cache
def tabulate() -> LineTables:
    """Return the tables, which are the same for all models.

    The code of a line is the first one of its filling, and the shapes of its pieces, a number of
    mixed radix.
    """
    outcome, number = np.arange(1 << TESTS), dict[tuple[int, int], int]()
    ends, rows, first_code = list[Array](), list[Array](), dict[tuple[int, ...], int]()
    for filling in FILLINGS:
        first_code[filling] = len(rows)
        counts, begin = [len(grow(size - 1).ends) for size in filling], 0
        of_codes = np.zeros((prod(counts), PLACES), np.uint16)
        radix = np.cumprod([1, *counts])
        for place, size in enumerate(filling):
            if (size, begin) not in number:
                number[size, begin] = len(ends)
                at = outcome >> begin & (1 << size - 1) - 1
                ends += [begin + row[at] for row in grow(size - 1).ends]
            shape = np.arange(len(of_codes)) // radix[place] % counts[place]
            of_codes[:, place] = number[size, begin] + shape
            begin += size
        rows += list(of_codes)
    return LineTables(np.array(ends, np.uint8), np.array(rows), first_code)


ORDERS = np.array([factorial(n) for n in range(TESTS)], np.int32)
"""What the j of each test counts in an order."""
