"""The encoder of categories beside its definition in plain Python, with every kind of part."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forests import Split, forest_of
from tvm_forest.errors import ModelFormatError
from tvm_forest.forest.encoder import (
    ABOVE,
    ABOVE_OR_MISSING,
    CATEGORY,
    IS_CATEGORY,
    MIX,
    Encoder,
)

WORD = (1 << 64) - 1
# Kinds of keys: the category of a column; two tests of numbers; a category with a test for one.
PARTS = [
    [(CATEGORY, 0, 0.0)],
    [(ABOVE, 0, 1.5), (ABOVE_OR_MISSING, 1, -2.0)],
    [(CATEGORY, 1, 0.0), (IS_CATEGORY, 0, 7.0)],
]
HASHES = [7, 9, 3_000_000_000]
NUMBERS = [1.0, 1.5, 2.0, -2.0, math.nan, math.inf]
UNKNOWN = [0.5, 0.25, 0.125, 0.0625]


def key_of(parts: list[tuple[int, int, float]], numbers: Any, hashes: Any) -> int:
    """Return the key of a row, in integers of Python."""
    key = 0
    for kind, place, value in parts:
        if kind == CATEGORY:
            part = hashes[place] - (1 << 32) * (hashes[place] >= 1 << 31)
        elif kind == IS_CATEGORY:
            part = int(hashes[place] == value)
        else:
            missing = kind == ABOVE_OR_MISSING and math.isnan(numbers[place])
            part = int(numbers[place] > value or missing)
        key = MIX * ((key + MIX * (part & WORD)) & WORD) & WORD
    return key


KEYS = [
    sorted({key_of(PARTS[0], [], [code]) for code in HASHES[1:]}),
    sorted({key_of(PARTS[1], [a, b], []) for a in (1.0, 2.0) for b in (-3.0, math.nan)})[:3],
    [],
    sorted({key_of(PARTS[2], [], [code, 9]) for code in HASHES}),
]
TABLE = [3, 0, 1, 0]  # of each statistic; the table without keys has none


def encoder(**changes: Any) -> Encoder:
    flat = [part for parts in PARTS for part in parts]
    kinds, places, values = zip(*flat, strict=True)
    fields: dict[str, Any] = {
        "width": 5,
        "names": None,
        "numbers": np.array([0, 3]),
        "categories": np.array([1, 4]),
        "single": np.array([[0, 7], [1, 9]]),
        "part_begin": np.cumsum([0, *map(len, PARTS)]),
        "part_kind": np.array(kinds),
        "part_place": np.array(places),
        "part_value": np.array(values),
        "table_parts": np.array([0, 1, 2, 2]),
        "table_begin": np.cumsum([0, *map(len, KEYS)]),
        "keys": np.array([key for keys in KEYS for key in keys], np.uint64),
        "table": np.array(TABLE),
        "known": np.arange(1, 1 + sum(len(KEYS[t]) for t in TABLE), dtype=np.float32),
        "unknown": np.array(UNKNOWN, np.float32),
    }
    return Encoder(**(fields | changes))


def expected(numbers: list[float], hashes: list[int]) -> list[float]:
    """Return the row of the matrix: numbers, columns of single categories, statistics."""
    row = [*numbers, float(hashes[0] == 7), float(hashes[1] == 9)]
    begin = 1
    for statistic, table in enumerate(TABLE):
        key = key_of(PARTS[(0, 1, 2, 2)[table]], numbers, hashes)
        known = key in KEYS[table]
        row.append(begin + KEYS[table].index(key) if known else UNKNOWN[statistic])
        begin += len(KEYS[table])
    return row


def test_rows_are_encoded_as_the_definition_says() -> None:
    pairs = [([a, b], [x, y]) for a in NUMBERS for b in NUMBERS for x in HASHES for y in HASHES]
    numbers = np.array([x for x, _ in pairs], np.float32)
    hashes = np.array([x for _, x in pairs], np.uint32)
    wanted = np.array([expected(*pair) for pair in pairs], np.float32)
    assert encoder().encode(numbers, hashes).tobytes() == wanted.tobytes()
    assert len(np.unique(wanted[:, 4:], axis=0)) > 10


def test_a_table_without_keys_knows_nothing() -> None:
    made = encoder(table=np.array([2]), known=np.zeros(0, np.float32), unknown=np.float32([0.75]))
    numbers, hashes = np.zeros((3, 2), np.float32), np.array([[7, 9]] * 3, np.uint32)
    assert made.encode(numbers, hashes)[:, -1].tolist() == [0.75] * 3


def test_what_the_model_knows_is_listed() -> None:
    known = [codes.tolist() for codes in encoder().list_known()]
    assert known == [sorted(HASHES), [9]]
    assert encoder().tests.tolist() == [[0, 1.5], [1, -2.0]]
    assert encoder().n_columns == 8


def test_an_encoder_makes_as_many_columns_as_rows_have() -> None:
    forest = forest_of([Split(0, 0.5, 1.0, 2.0)], n_features=8)
    assert replace(forest, encoder=encoder()).encoder is not None
    with pytest.raises(ModelFormatError, match="field 'encoder' makes 8 columns of 7"):
        replace(forest, n_features=7, encoder=encoder())


def test_encoders_that_differ_have_other_signatures() -> None:
    assert repr(encoder()) == repr(encoder())
    assert repr(encoder()) != repr(encoder(unknown=np.float32([1, 0.25, 0.125, 0.0625])))
    with pytest.raises(ValueError, match="read-only"):
        encoder().keys[0] = 1
