"""Processes that are forked, interrupted, ended or short of room."""

from __future__ import annotations

import ast
import contextlib
import errno
import gc
import io
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hardship
import tvm_forest
from forests import drawn_forest
from hardship import (
    build_often,
    ends_well,
    fork_often,
    interrupt_often,
    load_often,
    update_often,
)
from tvm_forest import BuildError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.system.process import locks, scratch
from tvm_forest.target import parse_target
from tvm_forest.targets import machine_code, stored_code

PACKAGE = Path(tvm_forest.__file__).parent
FOREST = drawn_forest(20, 4, base=[0.1, 0.2], link="softmax", seed=4)
ROWS = hard_rows(FOREST, 70, seed=5)
MARGINS = FOREST.predict_reference(ROWS)
BY_ROWS = tvm_forest.new_schedule(FOREST).tile("batch", "b0", "b1", 16).parallel("b0")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
TARGET = parse_target("llvm")
MAPS = Path("/proc/self/maps")


@pytest.fixture(scope="module")
def saved() -> bytes:
    file = io.BytesIO()
    tvm_forest.build(FOREST, schedule=BY_ROWS).save(file)
    return file.getvalue()


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that finds the modules of this process."""
    text = f"import sys\nsys.path[:0] = {sys.path!r}\n{code}"
    environment = {**os.environ, **environment}
    command = [sys.executable, "-c", text]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


# -- locks ----------------------------------------------------------------------------------------

OF_THREADING = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}
"""What keeps other threads out."""


def test_all_locks_of_the_package_are_made_in_one_place() -> None:
    """A class or module that made its own would have it taken for ever in a forked process."""
    found = list[str]()
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text("utf-8")
        has_any = any(x in text for x in (*OF_THREADING, "cached_property", "allocate_lock"))
        for node in ast.walk(ast.parse(text)) if has_any else ():
            names = {node.attr} if isinstance(node, ast.Attribute) else set[str]()
            if isinstance(node, ast.ImportFrom) and node.module in ("threading", "functools"):
                names = {alias.name for alias in node.names}
            if (OF_THREADING | {"cached_property", "allocate_lock"}) & names:
                found.append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
    assert {place.partition(":")[0] for place in found} == {"system/process/locks.py"}, found


def test_a_lock_can_be_taken_again_by_the_thread_that_has_it() -> None:
    lock = locks.make_lock()
    with lock, lock:
        pass


def use_all(predictor: Any) -> bool:
    """Use all that takes locks."""
    leaves = predictor.apply(ROWS)
    part = predictor.rounds(0, 3).predict_margin(ROWS, n_jobs=2)
    predictor.save(io.BytesIO())
    return len(leaves) == len(part)


@needs_fork
@pytest.mark.slow
def test_a_fork_while_another_thread_has_all_locks_is_no_trap(monkeypatch: Any) -> None:
    monkeypatch.setenv("TVM_FOREST_CACHE", "off")
    predictor = tvm_forest.build(FOREST, schedule=BY_ROWS)
    taken, done = threading.Event(), threading.Event()
    waited_for = [locks.importing, locks._gate, *locks._sections]
    held = [lock for lock in locks._locks if lock not in waited_for]

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in held:
                stack.enter_context(lock)
            taken.set()
            done.wait()

    other = threading.Thread(target=hold)
    other.start()
    taken.wait()
    well = ends_well(lambda: use_all(predictor))
    done.set()
    other.join()
    assert well and len(held) > 4


@needs_fork
def test_a_fork_while_another_thread_computes_a_property_is_no_trap() -> None:
    begun, done = threading.Event(), threading.Event()

    class Slow:
        is_child = False

        @locks.cached_property
        def value(self) -> int:
            """Return a number."""
            begun.set()
            return int(self.is_child or done.wait())

    other = threading.Thread(target=lambda: Slow().value)
    other.start()
    begun.wait()
    Slow.is_child = True
    well = ends_well(lambda: Slow().value == 1)
    done.set()
    other.join()
    assert well and Slow.value.__doc__ == "Return a number."


# -- imports --------------------------------------------------------------------------------------

INTERRUPTED = """
import importlib.abc, signal
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "tvm.runtime.vm":
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
import tvm_forest
from forests import drawn_forest
forest = drawn_forest(3, 3)
try:
    tvm_forest.build(forest, schedule=lambda start: start)
except KeyboardInterrupt:
    print("interrupted")
predictor = tvm_forest.build(forest, schedule=lambda start: start)
print(predictor.predict_margin([[0.0] * forest.row_width]).shape)
"""


@pytest.mark.slow
def test_what_ctrl_c_interrupts_in_the_first_build_is_imported_all_the_same() -> None:
    done = run(INTERRUPTED, TVM_FOREST_CACHE="off")
    assert done.stdout == "interrupted\n(1,)\n", done.stderr


# -- the end --------------------------------------------------------------------------------------

ENDS = """
import threading, numpy as np, tvm_forest
from forests import drawn_forest
forest = drawn_forest(20, 4)
schedule = tvm_forest.new_schedule(forest).tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")
predictor = tvm_forest.build(forest, schedule=schedule.parallel("b0"))
rows = np.zeros((20_000, forest.row_width), np.float32)
begun = threading.Barrier(3)
def go():
    CALL
    begun.wait()
    while True:
        CALL
for _ in range(2):
    threading.Thread(target=go, daemon=True).start()
begun.wait()
"""
CALLS = {
    "two threads": "predictor.predict(rows, n_jobs=2)",
    "one thread": "predictor.predict(rows, n_jobs=1)",
    "few rows": "predictor.predict(rows[:3])",
    "builds": "tvm_forest.build(forest, schedule=schedule)",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.cases(2, others="long")
def test_a_program_ends_well_while_its_daemon_threads_go_on(name: str) -> None:
    done = run(ENDS.replace("CALL", CALLS[name]))
    assert (done.returncode, done.stderr) == (0, "")


JOINS = """
import atexit
over, threads = [], []
def end():  # runs after what the package does at the end, for it is registered before
    over.append(True)
    for thread in threads:
        thread.join()
atexit.register(end)
import threading, tvm_forest
from forests import drawn_forest
forest = drawn_forest(5, 3)
predictor = tvm_forest.build(forest, schedule=lambda start: start)
def go():
    while not over:
        predictor.predict(np.zeros((3, forest.row_width), np.float32))
import numpy as np
threads += [threading.Thread(target=go, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
"""


@pytest.mark.slow
def test_what_waits_at_the_end_for_a_thread_that_predicts_gets_its_end() -> None:
    done = run(JOINS)
    assert (done.returncode, done.stderr) == (0, "")


# -- libraries ------------------------------------------------------------------------------------

needs_maps = pytest.mark.skipif(not MAPS.exists(), reason="the system does not list mappings")


def count_maps() -> int:
    gc.collect()
    return MAPS.read_text().count("code.so")


@needs_maps
def test_a_library_is_unmapped_when_its_predictor_is_gone(saved: bytes) -> None:
    tvm_forest.load_predictor(saved).predict(ROWS, n_jobs=2)  # lends the process its pool
    before = count_maps()
    for _ in range(5):
        predictor = tvm_forest.load_predictor(saved)
        assert np.array_equal(predictor.predict_margin(ROWS, n_jobs=2), MARGINS)
        assert count_maps() > before
        del predictor
        assert count_maps() == before


@needs_maps
def test_a_library_stays_as_long_as_a_part_or_function_of_its_predictor(saved: bytes) -> None:
    predictor = tvm_forest.load_predictor(saved)
    before = count_maps()
    part, function = predictor.rounds(0, 2), predictor.library["predict"]
    del predictor
    assert count_maps() == before and len(part.predict(ROWS)) == len(ROWS)
    del part
    assert count_maps() == before
    del function
    assert count_maps() < before


@pytest.mark.slow
def test_the_pool_outlives_the_library_that_lent_it(saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.tvmf").write_bytes(saved)
    code = """
import gc, numpy as np, tvm_forest
for _ in range(3):
    predictor = tvm_forest.load_predictor(FILE)
    predictor.predict(np.zeros((20_000, predictor.forest.row_width), np.float32), n_jobs=3)
    del predictor
    gc.collect()
print(open("/proc/self/maps").read().count("code.so") > 0)
"""
    done = run(code.replace("FILE", repr(str(tmp_path / "model.tvmf"))))
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_bitcode_that_is_loaded_is_not_kept(saved: bytes, monkeypatch: Any) -> None:
    monkeypatch.setenv("TVM_FOREST_CACHE", "off")
    monkeypatch.setattr(machine_code, "_link", lambda *_: None)  # as where no compiler is
    library = tvm_forest.build(FOREST, schedule=lambda start: start).library
    code = stored_code.to_machine_code(library, TARGET)
    known = len(machine_code._stored_code)
    loaded = [stored_code.load_library(code, TARGET) for _ in range(3)]
    assert len(machine_code._stored_code) == known + 3
    del loaded
    gc.collect()
    assert len(machine_code._stored_code) == known


# -- a long life ----------------------------------------------------------------------------------


@needs_maps
@pytest.mark.slow
@pytest.mark.parametrize("repeat", [load_often, build_often, update_often])
def test_mappings_and_memory_stay_as_they_are(repeat: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(hardship, "N_THREADS", 2)  # more only wait for each other
    before, after = repeat(40)
    assert after.maps < before.maps + 20  # a leak takes 40 or more, the allocator one now and then
    assert after.size < before.size + 2
    assert after.files <= before.files


@pytest.mark.slow
def test_calls_are_right_and_parallel_after_exceptions_at_random_moments() -> None:
    assert interrupt_often(50) >= 50


@needs_fork
@pytest.mark.slow
def test_children_that_are_forked_while_threads_compile_can_compile() -> None:
    assert fork_often(3) == 0


# -- room -----------------------------------------------------------------------------------------


def test_a_folder_without_room_is_named_and_how_to_name_another(monkeypatch: Any) -> None:
    place = tempfile.gettempdir()
    with pytest.raises(BuildError, match=f"^save: temporary files cannot be written in {place} "):
        with scratch.make_folder("save", 1 << 60):
            pass
    with pytest.raises(BuildError, match="TMPDIR"), scratch.make_folder("save") as folder:
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not folder.exists()
    with pytest.raises(PermissionError), scratch.make_folder("save"):
        raise PermissionError(errno.EACCES, "of another file")
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    with pytest.raises(BuildError, match="/no/such/folder"), scratch.make_folder("load"):
        pass


LITTLE_ROOM = """
import io, resource, numpy as np, tvm_forest
from forests import drawn_forest
resource.setrlimit(resource.RLIMIT_FSIZE, (48_000, 48_000))  # stands for a full disk
forest = drawn_forest(20, 4)
schedule = tvm_forest.new_schedule(forest).tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")
predictor = tvm_forest.build(forest, schedule=schedule.parallel("b0"))
rows = np.zeros((300, forest.row_width), np.float32)
assert np.array_equal(predictor.predict_margin(rows, 2), forest.predict_reference(rows)[:, 0])
for write in (predictor.save, predictor.export_library):
    try:
        write(FILE)
    except tvm_forest.BuildError as error:
        print(error)
"""


@pytest.mark.slow
def test_no_room_for_what_llvm_writes_ends_no_process(tmp_path: Path) -> None:
    code = LITTLE_ROOM.replace("FILE", repr(str(tmp_path / "model.so")))
    done = run(code, TVM_FOREST_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in said] == ["save", "export_library"]
    assert all("ulimit -f" in line for line in said)
