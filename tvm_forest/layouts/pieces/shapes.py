"""Enumerates the shapes of pieces, and how pieces share a cache line.

takes: nothing; gives: tables, by numpy alone.

A piece has up to 7 tests. It begins as one exit, its root, and grows: a test replaces exit number
j; its left exit keeps the number j, and the right one gets the next free number. The numbers j of
all its tests, as a mixed-radix number, are the order in which it has grown:

    j of the tests     0, 0, 1         order = 0 + 1 * 0 + 2 * 1

Orders that grow into the same tree have the same shape. Its tests and exits, from left to right,
are the bits of an outcome, and the places of a line.
"""

from __future__ import annotations

import functools
from math import factorial, prod
from typing import NamedTuple

import numpy as np

from ...forest import Array

TESTS = 7
"""Largest number of tests in a line, which has one more exit."""

PLACES = 4
"""Largest number of pieces in a line."""

FILLINGS = ((8,), (7,), (6, 2), (5, 3), (4, 4), (3, 3, 2), (2, 2, 2, 2))
"""Numbers of exits of the pieces that share a line. Pieces of each size that earlier fillings
leave over begin one of these, so that at least 5 of 8 exits of a line are used."""

LEAST_EXITS = 5
"""Least number of used exits in a line, except in the last line of each filling."""


class Grown(NamedTuple):
    """All pieces of n tests, by the order in which they have grown.

    Attributes:
        tests: int8 (n!, n), tests from left to right.
        exits: int8 (n!, n + 1), exits from left to right.
        shape: int64 (n!,), number of the shape.
        ends: uint8 (S, 2 ** n), for each shape, the exit (from left to right) for an outcome; bit i
            is set if the test in place i goes left.
    """

    tests: Array
    exits: Array
    shape: Array
    ends: Array


@functools.cache
def grow(count: int) -> Grown:
    """Return all pieces of `count` tests, 1 to 7."""
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
    """Insert a value into each row, at a place of its own."""
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
    """Tables that lead from the code of a line to an exit.

    Attributes:
        ends: uint8 (R, 128), the exit of a line for the outcome of its tests.
        rows: uint16 (codes, 4), the row of `ends` for the piece in each place of a line.
        first_code: by filling, see `FILLINGS`, the code of a line whose pieces all have shape 0.
    """

    ends: Array
    rows: Array
    first_code: dict[tuple[int, ...], int]


@functools.cache
def tabulate() -> LineTables:
    """Return the tables of all codes of lines, which are the same for all models.

    The code of a line is the first code of its filling plus the shapes of its pieces, as a
    mixed-radix number.
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
"""Weight of each test's j in an order."""
