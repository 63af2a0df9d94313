"""A short run of `tests/fuzz.py`: damaged inputs of every kind give our errors only."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

import fuzz
from fuzz_files import FILES, drawn_file

INPUTS, SEED = 400, 7


@pytest.mark.slow
@pytest.mark.long
def test_damaged_inputs_give_our_errors_or_right_answers(tmp_path: Path) -> None:
    """In a process of its own: one that other tests have given threads cannot be forked."""
    script = Path(fuzz.__file__)
    command = [sys.executable, str(script), str(INPUTS), "--seed", str(SEED), "--jobs", "1"]
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
        time.sleep(60)
    if kind == "wrong":
        return str(len(bytearray(10**12)))
    return "refused"

fuzz.check, fuzz.prepare = check, lambda: None
fuzz.LIMITS.update(ours=0.3, library=60)
cases = [("crash", 0), ("hang", 0), ("wrong", 0), ("sound", 0), ("crash", 1), ("hang", 1)]
print(sorted(fuzz.run(iter(cases), Path(sys.argv[1])).items()))
"""


@pytest.mark.long
def test_crashes_hangs_and_floods_of_memory_are_found(tmp_path: Path) -> None:
    here = Path(fuzz.__file__).parent
    program = [sys.executable, "-c", MISBEHAVING, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, cwd=here, timeout=50)
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == [
        (("crash", "crash"), 1),
        (("crash", "crash of the library"), 1),
        (("hang", "hang"), 1),
        (("hang", "hang of the library"), 1),
        (("sound", "refused"), 1),
        (("wrong", "wrong"), 1),
    ]
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"crash-0.txt", "hang-0.txt", "wrong-0.txt"}


@pytest.mark.parametrize("kind", ["json values", "lightgbm values", "onnx values", "json bytes"])
def test_a_kind_and_a_seed_give_the_same_file_again(kind: str) -> None:
    first = drawn_file(kind, 3)
    assert first == drawn_file(kind, 3)
    others = (drawn_file(kind, seed) for seed in count(4))
    assert any(first != next(others) for _ in range(5))
    assert FILES[kind].damage(FILES[kind].sound()[0], random.Random(1))
