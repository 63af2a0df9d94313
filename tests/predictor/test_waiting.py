"""A predictor that does not wait for its code has the bits of one that does, before and after."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from sklearn.ensemble import RandomForestClassifier

import tvm_forest
from forests import drawn_forest, forest_of
from test_updating import METHODS, equal
from tvm_forest import BuildError, InputError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rules import LINK_ULPS
from tvm_forest.predictor.live import child, pending

FOREST = drawn_forest(6, 4, base=[0.1, 0.2], link="softmax", seed=3)
ROWS = hard_rows(FOREST, 70, seed=5)


def start(code: str) -> Any:
    """Return what stands for the program of a child."""
    return f"import pickle, sys; pickle.load(sys.stdin.buffer); {code}"


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let children wait for their end, so that no code ever comes."""
    monkeypatch.setattr(child, "START", start("sys.stdin.read()"))


def begin(forest: Any = FOREST, **options: Any) -> Any:
    given = {"schedule": lambda sch: sch, **options}
    return tvm_forest.build(forest, wait=False, **given)


# -- rows meanwhile -------------------------------------------------------------------------------


@pytest.mark.slow
def test_rows_that_come_before_the_code_get_the_bits_of_the_code(held: None) -> None:
    predictor, wanted = begin(), tvm_forest.build(FOREST, schedule=lambda sch: sch)
    assert not predictor.ready and not predictor.wait(timeout=0)
    for rows in (ROWS[:0], ROWS[:1], ROWS):
        for name in METHODS[:-1]:  # the last asks for schedules
            assert equal(getattr(predictor, name)(rows), getattr(wanted, name)(rows)), name
    assert equal(predictor.predict(ROWS, n_jobs=2), wanted.predict(ROWS))
    assert repr(predictor) == repr(wanted)
    with pytest.raises(InputError, match="n_jobs"):
        predictor.predict(ROWS, n_jobs=0)
    with pytest.raises(InputError, match="rows"):
        predictor.predict(ROWS[:, :2])


@pytest.mark.parametrize("approximate", [False, True])
def test_contributions_that_come_before_the_code_have_their_own(
    held: None, approximate: bool
) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    model = xgboost.train({"max_depth": 2, "nthread": 1}, xgboost.DMatrix(rows, rows[:, 0]), 2)
    predictor, wanted = begin(model), tvm_forest.build(model, schedule=lambda sch: sch)
    found = predictor.predict_contributions(rows, approximate=approximate)
    assert not predictor.ready
    assert equal(found, wanted.predict_contributions(rows, approximate=approximate))


FIELDS: list[dict[str, Any]] = [
    *({"link": link} for link in LINK_ULPS),
    *({"link": "sigmoid", "aggregate": way, "base_first": False} for way in ("sum", "average")),
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.cases(1, others="long")
def test_every_link_has_the_bits_of_the_code(held: None, dtype: str) -> None:
    for fields in FIELDS:
        forest = drawn_forest(12, 3, seed=3, base=[0.3, -0.2, 0.1, 0.4], dtype=dtype, **fields)
        rows = hard_rows(forest, 200)
        compiled = tvm_forest.build(forest, schedule=lambda sch: sch)
        assert equal(begin(forest).predict_value(rows), compiled.predict_value(rows)), fields


def test_leaves_that_hold_vectors_or_none_are_as_compiled(held: None) -> None:
    vectors = RandomForestClassifier(4, max_depth=3, random_state=0)
    vectors.fit(ROWS[:, :3] > 0, ROWS[:, 3] > 0)
    rows = np.zeros((3, 3), np.float32)
    for forest in (tvm_forest.load(vectors), forest_of([0.5, 0.25])):
        predictor, wanted = begin(forest), tvm_forest.build(forest, schedule=lambda sch: sch)
        for name in ("predict", "apply", "predict_per_tree"):
            assert equal(getattr(predictor, name)(rows), getattr(wanted, name)(rows))


@pytest.mark.parametrize("part", [1, 64])
def test_long_batches_are_walked_in_parts(held: None, part: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(pending, "PART", part)
    assert equal(begin().predict_margin(ROWS), FOREST.predict_reference(ROWS))


# -- the change -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("target", ["llvm", "simt"])
@pytest.mark.cases(1, others="long")
def test_a_predictor_changes_over_to_code_of_another_process(target: str, caplog: Any) -> None:
    caplog.set_level(logging.INFO, logger="tvm_forest")
    # In float64, where default schedules compile four times as fast.
    forest = drawn_forest(6, 4, base=[0.1, 0.2], link="softmax", seed=3, dtype="float64")
    predictor = tvm_forest.build(forest, target, wait=False, n_jobs=1)
    before = predictor.predict(ROWS)
    assert predictor.wait() and predictor.ready and predictor.wait(timeout=0)
    assert "compiled code is there after" in caplog.text
    assert equal(predictor.predict(ROWS), before)
    assert predictor.schedules == tvm_forest.default_schedules(forest, target)
    assert (predictor.n_jobs, predictor.signature) == (1, forest.signature)
    other = replace(forest, base_score=forest.base_score + 1)
    predictor.update(other)
    assert equal(predictor.predict_margin(ROWS), other.predict_reference(ROWS))


@pytest.mark.slow
def test_what_needs_the_code_waits_for_it(monkeypatch: Any) -> None:
    first = begin()
    ranges = first.predict_margin(ROWS, iteration_range=(0, 2))
    wanted = tvm_forest.build(FOREST, schedule=lambda sch: sch)
    assert equal(ranges, wanted.predict_margin(ROWS, iteration_range=(0, 2)))
    monkeypatch.setattr(sys, "executable", "")  # a thread compiles, in less time
    assert equal(pickle.loads(pickle.dumps(begin())).predict(ROWS), wanted.predict(ROWS))
    with pytest.raises(AttributeError, match="no_such"):
        _ = first.no_such
    monkeypatch.setattr(pending, "MOST_HOPS", 10)
    long = begin()
    assert equal(long.predict(ROWS), wanted.predict(ROWS)) and long.ready


def test_another_model_takes_the_place_of_one_that_has_no_code_yet(held: None) -> None:
    predictor = begin()
    job = predictor._job
    process = job._child._process
    predictor.update(replace(FOREST, base_score=FOREST.base_score + 1))
    assert predictor.ready
    del job
    process.wait(60)  # it is ended, for nobody waits for it any more
    assert process.returncode


def test_a_model_of_the_cache_is_ready_at_once(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TVM_FOREST_CACHE", str(tmp_path))
    tvm_forest.build(FOREST, schedule=tvm_forest.new_schedule(FOREST))
    assert begin(schedule=tvm_forest.new_schedule(FOREST)).ready


# -- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise MemoryError('all is full')", "all is full"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
        (
            "from tvm_forest import BuildError; import os; out = os.fdopen(1, 'wb');"
            "pickle.dump(BuildError('build: no LLVM'), out); out.flush()",
            "no LLVM",
        ),
    ],
)
def test_a_failed_compile_is_told_and_raised_to_who_asks_for_code(
    code: str, text: str, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(child, "START", start(code))
    predictor = begin()
    for _ in range(2):
        with pytest.raises(BuildError, match=text):
            predictor.wait()
    with pytest.raises(BuildError, match=text):
        pickle.dumps(predictor)
    assert text in caplog.text and not predictor.ready
    assert equal(predictor.predict_margin(ROWS), FOREST.predict_reference(ROWS))
    predictor.update(FOREST)
    assert predictor.ready


def test_a_process_that_reads_nothing_says_why(monkeypatch: Any) -> None:
    monkeypatch.setattr(child, "START", "raise SystemExit('no such module')")
    with pytest.raises(BuildError, match="no such module"):
        begin(drawn_forest(300, 6)).wait()  # more than a pipe holds


def test_without_an_interpreter_a_thread_compiles(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "executable", "")
    predictor = begin()
    assert predictor.wait()
    assert equal(predictor.predict_margin(ROWS), FOREST.predict_reference(ROWS))


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
def test_what_is_no_time_to_wait_is_refused(held: None, timeout: Any) -> None:
    with pytest.raises(InputError, match="wait: argument 'timeout'"):
        begin().wait(timeout)


@pytest.mark.parametrize("target", ["cuda", {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}])
def test_who_cannot_walk_meanwhile_is_asked_to_wait(target: Any) -> None:
    with pytest.raises(InputError, match="argument 'wait'.*leave it out"):
        tvm_forest.build(FOREST, target, wait=False)


# -- processes ------------------------------------------------------------------------------------

SCRIPT = """
import sys
sys.path[:0] = PATHS
import os
import tvm_forest
from forests import drawn_forest
forest = drawn_forest(6, 4, base=[0.1, 0.2], link="softmax", seed=3)
predictor = tvm_forest.build(forest, schedule=lambda sch: sch, wait=False)
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    text = SCRIPT.replace("PATHS", repr(sys.path)) + code
    command = [sys.executable, "-c", text]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def has_ended(number: int) -> bool:
    """Return whether a process has ended, may its new parent have asked for its status or not."""
    try:
        os.kill(number, 0)
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system tells no states")
@pytest.mark.parametrize("end", ["", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_the_compiling_process_ends_with_its_parent_however_that_ends(end: str) -> None:
    done = run(f"print(predictor._job._child._process.pid, flush=True)\n{end}")
    assert done.stderr == "" and done.returncode in (0, -9)
    while not has_ended(int(done.stdout)):
        pass


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_forked_process_gets_its_code_as_well() -> None:
    done = run("""
pid = os.fork()
assert predictor.wait()
assert not pid or os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print(predictor.ready)
""")
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")
