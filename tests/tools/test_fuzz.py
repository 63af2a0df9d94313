"""A short run of `tools/fuzz.py`: damaged inputs of every kind give our errors only."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("ydf", reason="YDF has no wheel for this Python")

import fuzz
from fuzz_files import FILES, drawn_file

INPUTS, SEED = 300, 7


@pytest.mark.slow
@pytest.mark.long
def test_damaged_inputs_give_our_errors_or_right_answers(tmp_path: Path) -> None:
    """In a process of its own: one that other tests have given threads cannot be forked."""
    script = Path(fuzz.__file__)
    command = [sys.executable, str(script), "--inputs", str(INPUTS), "--seed", str(SEED)]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path)], capture_output=True, text=True, cwd=script.parents[1]
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert all(kind in done.stdout for kind in fuzz.SHARES)


MISBEHAVING = """
import ctypes, sys, time
from pathlib import Path
import fuzz

def check(kind, seed, said):
    said("library" if seed else "ours")
    if kind == "crash":
        ctypes.string_at(0)
    if kind == "hang":
        while seed:
            pass
        time.sleep(600)
    if kind == "foreign":
        return str(len(bytearray(10**12)))
    assert kind != "wrong"
    return "refused"

fuzz.check, fuzz.prepare = check, lambda: None
fuzz.LIMITS.update(ours=3, library=600)
words = [("crash", 0), ("hang", 0), ("wrong", 0), ("foreign", 0), ("sound", 0)]
words += [("crash", 1), ("hang", 1)]
for turn in range(2):
    journal = fuzz.Journal(7, Path(sys.argv[1], "run.json"), Path(sys.argv[1], "failed"))
    fuzz.run(iter([words[:4], words[4:]] if not turn else journal.chunks({}, 0)), journal.tell)
    journal.write()
    print(sorted((kind, *pair) for kind, x in journal.counts.items() for pair in x.items()))
"""


@pytest.mark.long
def test_crashes_hangs_and_floods_of_memory_are_found(tmp_path: Path) -> None:
    here = Path(fuzz.__file__).parent
    program = [sys.executable, "-c", MISBEHAVING, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, cwd=here, timeout=600)
    first, second = map(ast.literal_eval, done.stdout.splitlines()[-2:])
    assert (
        first
        == second
        == [
            ("crash", "crash", 1),
            ("crash", "crash of the library", 1),
            ("foreign", "foreign", 1),
            ("hang", "hang", 1),
            ("hang", "hang of the library", 1),
            ("sound", "refused", 1),
            ("wrong", "wrong", 1),
        ]
    )
    found = {path.name for path in (tmp_path / "failed").iterdir()}
    assert found == {f"{kind}-0.txt" for kind in ("crash", "foreign", "hang", "wrong")}


def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    path, goals = tmp_path / "run.json", {"arrays": 60, "machine bytes": 20}
    first = fuzz.Journal(3, path, tmp_path)
    cases = [case for chunk in first.chunks(goals, 60) for case in chunk]
    assert len(set(cases)) == 80
    for case in cases[:30]:
        first.tell(case, ("refused", ""))
    first.tell(cases[30], ("slow", "2 s"))
    first.write()
    again = fuzz.Journal(3, path, tmp_path)
    retried, *others = again.chunks(goals, 60)
    assert retried == [cases[30]]
    assert len([case for chunk in others for case in chunk]) == 80 - 31
    again.tell(cases[30], ("refused", ""))
    assert (again.failed, list(again.mended)) == ({}, [cases[30]])
    assert sum(sum(counts.values()) for counts in again.counts.values()) == 31


@pytest.mark.parametrize("kind", ["json values", "lightgbm values", "onnx values", "json bytes"])
def test_a_kind_and_a_seed_give_the_same_file_again(kind: str) -> None:
    first = drawn_file(kind, 3)
    assert first == drawn_file(kind, 3)
    others = (drawn_file(kind, seed) for seed in count(4))
    assert any(first != next(others) for _ in range(5))
    assert FILES[kind].damage(FILES[kind].sound()[0], random.Random(1))
