"""Relax modules with forests, exported: loaded without this package, from Python and from C++."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

import tvm_forest
from forests import drawn_forest
from relax_programs import BY_FFI, BY_TVM, IN_CPP
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.relax import LinkForests, predict, register_linked
from tvm_forest.schedule_prims import Schedule

SIZES = (1, 7, 600)
FIRST = drawn_forest(12, 3, seed=1, n_features=5)
SECOND = drawn_forest(9, 3, seed=2, n_features=5, base=(0.1, 0.2, 0.3), link="softmax")
FFI = Path(tvm_ffi.__file__).parent
RUNTIME = Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so"


def schedules(forest: Forest) -> dict[int, Schedule]:
    """Return two that compile fast, of which threads share the second."""
    start = tvm_forest.new_schedule(forest)
    return {1: start, 512: start.tile("batch", "b0", "b1", 64).parallel("b0")}


def add_function(mod: tvm.IRModule, name: str, *calls: tuple[Forest, str]) -> tvm.IRModule:
    """Return a module with one function more, which gives an output of each of some forests."""
    bb = relax.BlockBuilder(mod)
    rows = relax.Var("rows", relax.TensorType((tirx.Var("n", "int64"), 5), "float32"))
    with bb.function(name, [rows]):
        with bb.dataflow():
            results = [bb.emit(predict(rows, *call, schedules(call[0]))) for call in calls]
            output = bb.emit_output(relax.Tuple(results))
        bb.emit_func_output(output)
    return bb.finalize()


@functools.cache
def linked() -> tvm.IRModule:
    """Return a module with two forests, linked by one call of the pass."""
    both = add_function(tvm.IRModule(), "main", (FIRST, "margin"), (SECOND, "margin"))
    return LinkForests()(both)


@functools.cache
def predictors() -> list[tvm_forest.Predictor]:
    return [tvm_forest.build(x, schedule=lambda start: start) for x in (FIRST, SECOND)]


def linked_twice() -> tvm.IRModule:
    """Return a module with one forest linked by two calls of the pass, and one legalised."""
    mod = LinkForests()(add_function(tvm.IRModule(), "first", (FIRST, "margin")))
    mod = LinkForests()(add_function(mod, "again", (FIRST, "margin")))
    mod = add_function(mod, "other", (SECOND, "margin"))
    calls = {each.name_hint: each for each in mod.get_global_vars()}
    bb = relax.BlockBuilder(mod)
    rows = relax.Var("rows", relax.TensorType((tirx.Var("n", "int64"), 5), "float32"))
    with bb.function("main", [rows]):
        parts = [
            bb.emit(relax.TupleGetItem(bb.emit(relax.Call(calls[name], [rows])), 0))
            for name in ("first", "other", "again")
        ]
        bb.emit_func_output(relax.Tuple(parts))
    return bb.finalize()


MODULES = {"linked": linked, "mixed": linked_twice}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all modules and rows."""
    folder = tmp_path_factory.mktemp("libraries")
    for name, make in MODULES.items():
        tvm.compile(make(), "llvm").export_library(str(folder / f"{name}.so"))
    for n in SIZES:
        hard_rows(FIRST, n, seed=n).tofile(folder / f"rows{n}")
    return folder


def add_compiled(folder: Path) -> None:
    """Export a module whose virtual machine is compiled too, and the names of what it calls."""
    (folder / "compiled.names").write_text(" ".join(register_linked(linked())))
    executable = relax.build(linked(), tvm.target.Target("llvm"), exec_mode="compiled")
    executable.export_library(str(folder / "compiled.so"))


def run_program(
    folder: Path, *command: Any, names: Iterable[str] = tuple(MODULES), **variables: str
) -> None:
    """Run a program on modules, and compare what it writes with what predictors answer."""
    words = [*map(str, command), str(folder), ",".join(names), *map(str, SIZES)]
    environment = os.environ | {"TVM_RUNTIME": str(RUNTIME), "TVM_NUM_THREADS": "2"} | variables
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    for n in SIZES:
        rows = np.fromfile(folder / f"rows{n}", "f4").reshape(n, 5)
        wanted = [predictor.predict_margin(rows).tobytes() for predictor in predictors()]
        for name in names:
            for k, right in enumerate([*wanted, *wanted[:1]][: 3 if name == "mixed" else 2]):
                file = folder / f"{name}{n}_{k}"
                assert file.read_bytes() == right, file.name
                file.unlink()


@pytest.mark.slow
@pytest.mark.long
def test_tvms_runtime_alone_runs_exported_modules(libraries: Path) -> None:
    add_compiled(libraries)
    names = (*MODULES, "compiled")
    run_program(libraries, sys.executable, "-c", BY_TVM, names=names, TVM_USE_RUNTIME_LIB="1")


@pytest.mark.slow
def test_apache_tvm_ffi_and_one_file_of_tvm_run_exported_modules(libraries: Path) -> None:
    run_program(libraries, sys.executable, "-c", BY_FFI)


@pytest.mark.slow
@pytest.mark.long
def test_a_cpp_program_runs_exported_modules(libraries: Path, tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no compiler of C++")
    (tmp_path / "run.cc").write_text(IN_CPP)
    flags = [f"-I{FFI / 'include'}", f"-L{FFI / 'lib'}", f"-Wl,-rpath,{FFI / 'lib'}"]
    command = [compiler, "-std=c++17", "run.cc", *flags, "-ltvm_ffi", "-ldl", "-o", "run"]
    subprocess.run(command, cwd=tmp_path, check=True)
    run_program(libraries, tmp_path / "run")


def test_functions_of_modules_that_are_linked_apart_have_names_of_their_own() -> None:
    mod = LinkForests()(add_function(tvm.IRModule(), "first", (FIRST, "leaf")))
    mod = LinkForests()(add_function(mod, "again", (FIRST, "leaf"), (FIRST, "per_tree")))
    called = [text.split('"')[1] for text in mod.script(show_meta=False).split("dps_packed(")[1:]]
    assert len(set(called)) == len(called) == 3
