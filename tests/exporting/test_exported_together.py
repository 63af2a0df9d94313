"""Several exported libraries in one process: each answers with its own model and code."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from emulated_cuda import emulated, libcuda
from forests import drawn_forest
from gpu_schedules import each_row
from schedules import in_blocks
from tvm_forest.errors import InputError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.predictor.exporting.toolchain import WASM_FUNCTIONS

SIZES = (1, 9, 130, 600)
PREFIXES = {"first": "first_", "second": "tvm_forest_2_"}
FUNCTIONS = WASM_FUNCTIONS

LOADER = """
import ctypes, sys
import numpy as np
folder, prefixed, *names = sys.argv[1:]
prefixes = dict(zip(names, prefixed.split(",")))
made = {name: ctypes.CDLL(f"{folder}/{name}.so", ctypes.RTLD_GLOBAL) for name in names}

def same(name, call):
    for n in (1, 9, 130, 600):
        rows, right = (np.load(f"{folder}/{name}.{what}{n}.npy") for what in ("rows", "margin"))
        found = np.zeros_like(right)
        call(rows, found)
        assert found.tobytes() == right.tobytes(), (name, n)
"""

BY_CTYPES = """
for name, library in made.items():
    predict, error = (library[prefixes[name] + what] for what in ("predict", "error"))
    error.restype = ctypes.c_char_p
    assert error() == b"", "the text of another library"
    def call(rows, found):
        places = [ctypes.c_void_p(x.ctypes.data) for x in (rows, found)]
        assert predict(places[0], ctypes.c_int64(len(rows)), places[1], None, 1) == 0
    same(name, call)
    assert predict(None, ctypes.c_int64(1), None, None, 1) == -1
    assert error() == b"rows or margin is a null pointer"
"""

BY_FFI = """
import tvm_ffi
for name in names:
    main = tvm_ffi.load_module(f"{folder}/{name}.so")["main"]
    same(name, lambda *given: main(*map(tvm_ffi.from_dlpack, given)))
    try:
        main(*map(tvm_ffi.from_dlpack, (np.zeros((2, 9), "f4"), np.zeros((2, 1), "f4"))))
    except ValueError as error:
        assert "rows: expected float" in str(error)
    else:
        raise AssertionError("rows of another width are refused")
"""

IN_C = """
#include <stdio.h>
#include <stdlib.h>
#include "first.h"
#include "second.h"
#define RUN(prefix, type)                                                                   \\
  for (int k = 0; k < 2; ++k) {                                                             \\
    long n = atol(names[1]), features = prefix##features(), outputs = prefix##outputs();    \\
    type *rows = (type *)calloc(n * features, sizeof *rows);                                \\
    type *margin = (type *)calloc(n * outputs, sizeof *margin);                             \\
    FILE *in = fopen(#prefix "rows", "rb"), *out = fopen(#prefix "found", "wb");            \\
    if (fread(rows, sizeof *rows, n * features, in) != (size_t)(n * features)) return 2;    \\
    if (prefix##predict(rows, n, margin, NULL, 1)) return 3;                                   \\
    fwrite(margin, sizeof *margin, n * outputs, out);                                       \\
    fclose(in), fclose(out);                                                                \\
  }
int main(int count, char **names) {
  RUN(first_, float)
  RUN(tvm_forest_2_, double)
  first_predict(NULL, -1, NULL, NULL, 1);
  printf("%s|%s\\n", first_error(), tvm_forest_2_error());
}
"""

WITHOUT_MEMORY = """
#include <stdio.h>
#include <stddef.h>
#include "first.h"
void *aligned_alloc(size_t alignment, size_t size) { return NULL; }
int main() {
  static float rows[600 * 5], margin[600];
  printf("%d %s\\n", first_predict(rows, 600, margin, NULL, 1), first_error());
}
"""


@functools.cache
def predictor(name: str, target: str = "llvm") -> Any:
    """Return one of two models, whose compiled functions have the same names."""
    if name == "first":
        forest = drawn_forest(30, 5, seed=1, n_features=5)
    else:
        forest = drawn_forest(21, 4, seed=2, n_features=3, dtype="float64", row_dtype="float64")
    schedule = tvm_forest.new_schedule(forest).represent_as("ranked")
    schedule = schedule.tile("batch", "b0", "b1", 16).parallel("b0")
    return tvm_forest.build(forest, target, each_row if target == "cuda" else schedule)


def export(folder: Path, name: str, target: str = "llvm", **options: Any) -> None:
    """Write the library of a model, and rows with the margins of the reference walk."""
    made = predictor(name, target)
    (emulated(made) if target == "cuda" else made).export_library(folder / f"{name}.so", **options)
    for n in SIZES:
        rows = hard_rows(made.forest, n, seed=n)
        np.save(folder / f"{name}.rows{n}.npy", rows)
        np.save(folder / f"{name}.margin{n}.npy", made.forest.predict_reference(rows))


def load(folder: Path, script: str, *names: str, prefixes: str = "tvm_forest_,tvm_forest_") -> None:
    """Load libraries so that they see each other's functions, and run a script."""
    (folder / "libcuda.so.1").unlink(missing_ok=True)
    (folder / "libcuda.so.1").symlink_to(libcuda())
    command = [sys.executable, "-c", LOADER + script, str(folder), prefixes, *names]
    environment = os.environ | {"LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def defined(library: Path) -> set[str]:
    """Return the names that a library gives to others."""
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(library)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in lines.splitlines()}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.cases(1)
def test_two_libraries_of_one_process_keep_apart(target: str, tmp_path: Path) -> None:
    for name in ("first", "second"):
        export(tmp_path, name, target)
    load(tmp_path, BY_CTYPES + BY_FFI, "first", "second")
    load(tmp_path, "import tvm\n" + BY_CTYPES + BY_FFI, "second", "first")


@pytest.mark.parametrize(("target", "more"), [("llvm", ()), ("cuda", ("predict_there",))])
def test_a_library_shows_its_c_functions_and_main_alone(
    target: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    export(tmp_path, "first", target, prefix="airline_")
    names = {f"airline_{name}" for name in (*FUNCTIONS, *more)}
    assert defined(tmp_path / "first.so") == {*names, "__tvm_ffi_main"}
    text = (tmp_path / "first.h").read_text()
    assert all(f"{name}(" in text for name in names)
    assert "tvm_forest" not in text and "$" not in text


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two libraries whose functions have names of their own, and rows."""
    folder = tmp_path_factory.mktemp("prefixed")
    for name, prefix in PREFIXES.items():
        export(folder, name, prefix=prefix)
        np.load(folder / f"{name}.rows600.npy").tofile(folder / f"{prefix}rows")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("language", ["c", "c++"])
def test_a_program_is_linked_with_two_libraries(
    language: str, prefixed: Path, tmp_path: Path
) -> None:
    compiler = shutil.which("cc" if language == "c" else "c++")
    if compiler is None:
        pytest.skip(f"no compiler of {language}")
    shutil.copytree(prefixed, tmp_path, dirs_exist_ok=True)
    (tmp_path / "main.c").write_text(IN_C)
    command = [compiler, "-x", language, "-Wall", "-Werror", "main.c", "-x", "none"]
    command += ["first.so", "second.so", f"-Wl,-rpath,{tmp_path}", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./main", "600"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "n is negative|\n")
    for name, prefix in PREFIXES.items():
        right = np.load(tmp_path / f"{name}.margin600.npy")
        assert (tmp_path / f"{prefix}found").read_bytes() == right.tobytes(), name


def test_without_memory_a_library_says_so(tmp_path: Path) -> None:
    forest = drawn_forest(3, 3, seed=1, n_features=5)
    schedule = in_blocks(forest, "bitsliced", 64)  # which asks for memory
    made = tvm_forest.build(forest, schedule=schedule)
    made.export_library(tmp_path / "first.so", prefix="first_")
    (tmp_path / "main.c").write_text(WITHOUT_MEMORY)
    command = ["cc", "main.c", "first.so", f"-Wl,-rpath,{tmp_path}", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    assert done.stdout == "-1 out of memory\n"


@pytest.mark.parametrize(
    "prefix", ["", "9lives_", "air-line_", "a b_", "été_", "_x_", "str", "x\n", "x_\n", None, b"a_"]
)
def test_what_cannot_begin_a_c_name_is_refused(prefix: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="argument 'prefix': .*such as 'airline_'"):
        predictor("first").export_library(tmp_path / "model.so", prefix)
    assert not list(tmp_path.iterdir())
