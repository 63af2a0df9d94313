"""Guessed durations of operations, for machines on which they were not measured.

takes: name of an operation that `search.cost` counts; gives: nanoseconds.

These are durations on a core of about 4 GHz. Calibration starts from them, and measures those that
matter.
"""

from __future__ import annotations

import functools

FLOAT64 = 1.8
"""Duration of a float64 operation relative to float32."""

GUESSES = {
    "call": 300.0,
    "code float32": 1.5,
    "code float32 1": 0.8,
    "code float32 3": 4.0,
    "code float32 unit": 0.8,
    "code float32 cut": 0.1,
    "code float32 5 levels": 0.4,
    "code float32 6 levels": 0.6,
    "code float32 7 levels": 1.0,
    "code float32 8 levels": 1.6,
    "code float32 3 in panels": 6.0,
    "code membership": 0.03,
    "start": 8.0,
    "start levels": 2.0,
    "walk": 1.5,
    "walk array 8": 3.0,
    "walk sparse 8": 3.0,
    "walk end": 0.1,
    "walk asks a node": 0.2,
    "walk loads of float32 tile": 1.0,
    "walk loads of float32 tile 8": 2.0,
    "walk levels": 0.2,
    "walk levels wide": 0.1,
    "walk levels columns": 0.03,
    "walk octets": 4.0,
    "walk pieces": 4.8,
    "walk pieces loads": 3.0,
    "walk slot": 0.2,
    "walk selection": 0.5,
    "walk test": 0.4,
    "walk vector test": 3.0,
    "walk category": 0.4,
    "wait second": 1.0,
    "wait second levels": 0.5,
    "wait second pieces": 0.3,
    "wait third": 4.0,
    "wait third levels": 12.0,
    "wait third pieces": 1.0,
    "wait memory": 15.0,
    "wait memory pieces": 2.5,
    "wait memory stream": 0.7,
    "wait row second": 0.5,
    "wait row third": 1.5,
    "wait row memory": 5.0,
    "wait row line": 5.0,
    "wait cuts second": 1.0,
    "wait cuts third": 2.0,
    "wait cuts memory": 6.0,
    "wait model second": 0.5,
    "wait model third": 2.0,
    "wait model memory": 6.0,
    "wait plane second": 0.1,
    "wait plane third": 0.3,
    "wait plane memory": 1.0,
    "leaf": 0.8,
    "leaf bitsliced 64": 0.2,
    "leaf bitsliced 128": 0.25,
    "leaf bitsliced 256": 0.35,
    "leaf bitsliced far": 1.0,
    "leaf octets": 0.2,
    "leaf pieces": 2.0,
    "leaf levels 64": 0.1,
    "leaf levels 128": 0.2,
    "leaf levels 256": 0.4,
    "leaf levels far": 1.0,
    "leaf rows in tiles": 2.0,
    "leaf trees in tiles": 2.0,
    "leaf vector": 2.0,
    "leaf vector value": 0.2,
}
"""Nanoseconds of operations, by prefix of the name; the longest matching prefix counts."""


@functools.cache
def guess(name: str) -> float:
    """Return the approximate nanoseconds of an operation."""
    like = name.replace("float64", "float32")
    known = max((x for x in GUESSES if like.startswith(x)), key=len)
    return GUESSES[known] * (1.0 if like == name else FLOAT64)
