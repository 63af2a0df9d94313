"""A short run of `tests/fuzz.py`: damaged inputs of every kind give our errors only."""

from __future__ import annotations

import random
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import fuzz
from fuzz_files import FILES, drawn_file

INPUTS, SEED = 600, 7


@pytest.mark.slow
def test_damaged_inputs_give_our_errors_or_right_answers(tmp_path: Path) -> None:
    cases = fuzz.drawn(INPUTS, SEED, list(fuzz.SHARES))
    counts = fuzz.run(cases, tmp_path)
    assert not [case for case in counts if case[1] in fuzz.FAILURES], fuzz.table(counts)
    assert counts.total() == INPUTS
    assert {kind for kind, _ in counts} == set(fuzz.SHARES)
    assert sum(n for (_, outcome), n in counts.items() if outcome == "equal") > INPUTS / 10
    assert sum(n for (_, outcome), n in counts.items() if outcome == "refused") > INPUTS / 3


def _misbehaving(kind: str, seed: int, said: Any) -> str:
    """Do what the kind says, as a broken reader would."""
    said("library" if seed else "ours")
    if kind == "crash":
        __import__("ctypes").string_at(0)
    if kind == "hang":
        time.sleep(60)
    if kind == "wrong":
        return str(len(bytearray(10**12)))
    return "refused"


def test_crashes_hangs_and_floods_of_memory_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fuzz, "check", _misbehaving)
    monkeypatch.setattr(fuzz, "prepare", lambda: None)
    monkeypatch.setitem(fuzz.LIMITS, "ours", 0.3)
    monkeypatch.setitem(fuzz.LIMITS, "library", 0.3)
    cases = [("crash", 0), ("hang", 0), ("wrong", 0), ("sound", 0), ("crash", 1), ("hang", 1)]
    counts = fuzz.run(iter(cases), tmp_path)
    assert dict(counts) == {
        ("crash", "crash"): 1,
        ("hang", "hang"): 1,
        ("wrong", "wrong"): 1,
        ("sound", "refused"): 1,
        ("crash", "crash of the library"): 1,
        ("hang", "hang of the library"): 1,
    }
    assert {path.name for path in tmp_path.iterdir()} == {
        "crash-0.txt",
        "hang-0.txt",
        "wrong-0.txt",
    }


@pytest.mark.parametrize("kind", ["json values", "lightgbm values", "onnx values", "json bytes"])
def test_a_kind_and_a_seed_give_the_same_file_again(kind: str) -> None:
    first = drawn_file(kind, 3)
    assert first == drawn_file(kind, 3)
    others = (drawn_file(kind, seed) for seed in count(4))
    assert any(first != next(others) for _ in range(5))
    assert FILES[kind].damage(FILES[kind].sound()[0], random.Random(1))
