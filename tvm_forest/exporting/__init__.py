"""A predictor as a shared library that needs neither Python nor TVM.

takes: Predictor; gives: `<name>.so` and its header.

The library holds the compiled functions, the arrays of the model, and `library.c` around them. A C
program calls `tvm_forest_predict`; Python with apache-tvm-ffi alone calls the entry "main":

    tvm_ffi.load_module("model.so")["main"](rows, margin)

Importing this module gives `Predictor` its method `export_library`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from .. import archive
from ..errors import BuildError, UnsupportedModel
from ..forest import Array, Forest
from ..lower import build
from ..runtime import Predictor
from ..schedule import Schedule
from ..schedule_prims.batches import function_names
from ..tir_gen.canonical import result_dtype, result_names
from ..tir_gen.representation import takes_memberships

WHERE = "export_library"
ALIGNMENT = 64
C_TYPES = {"float32": "float", "float64": "double"}
TESTS = {"nan": "isnan(x)", "inf": "isinf(x)"}
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-shared", "-fPIC", "-O2", "-std=gnu11")


def export_library(self: Predictor, path: str | os.PathLike[str]) -> None:
    """Write a shared library with the model, and a C header beside it.

    It predicts margins and values by the schedules of this predictor, on the caller's thread.
    Missing values are NaN; class labels are left to the caller.

    Args:
        path: of the library, such as "model.so"; the header is "model.h".

    Raises:
        InputError: the files cannot be written.
        UnsupportedModel: rows have to be prepared in Python, or the target is no CPU.
        BuildError: there is no C compiler, or it fails.
    """
    _check(self)
    file = Path(os.fsdecode(path))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_parts(self, folder)
        _link(folder)
        archive.write_file(file, (folder / "model.so").read_bytes())
    archive.write_file(file.with_suffix(".h"), header(self.forest).encode())


def header(forest: Forest) -> str:
    """Return the C header of a library of a model."""
    row, margin, value = (C_TYPES[x] for x in _dtypes(forest))
    shapes = f"(n, {forest.row_width}) -> (n, {forest.n_outputs})"
    return f"""/* A forest of {forest.n_trees} trees: {shapes}. */
#pragma once
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif
int64_t tvm_forest_features(void);
int64_t tvm_forest_outputs(void);
/* rows (n, features) and margin (n, outputs), one row behind the other; value likewise, or NULL.
   Returns 0, or -1 and tvm_forest_error() says why. Any number of threads may call it. */
int tvm_forest_predict(const {row} *rows, int64_t n, {margin} *margin, {value} *value);
const char *tvm_forest_error(void);
#ifdef __cplusplus
}}
#endif
"""


def _check(predictor: Predictor) -> None:
    forest = predictor.forest
    if predictor.target.kind != "llvm":
        raise UnsupportedModel(
            f"{WHERE}: target {predictor.target.kind!r}: only code for CPUs is exported; build the "
            "model with target 'llvm'"
        )
    schedules = predictor.schedules.values()

    def wide(sch: Schedule) -> bool:
        return takes_memberships(sch.representation, forest)

    refused = {
        "missing": forest.missing,
        "zero_missing": forest.zero_missing or None,
        "known_categories": forest.compared_categories or None,
        "derived": forest.derived if any(map(wide, schedules)) else None,
        "refuses": "category" if "category" in forest.refuses else None,
    }
    field = next((name for name, value in refused.items() if value is not None), None)
    if field is not None:
        raise UnsupportedModel(
            f"{WHERE}: field '{field}': {refused[field]!r} asks for rows to be prepared in Python, "
            "which a library does not; use Predictor.save"
        )


def _dtypes(forest: Forest) -> tuple[str, str, str]:
    margin = result_dtype(forest, "margin")
    valued = "value" in result_names(forest)
    return forest.row_dtype, margin, result_dtype(forest, "value") if valued else margin


def _write_parts(predictor: Predictor, folder: Path) -> None:
    """Write object code, the arrays one after the other, and the macros of `library.c`."""
    fresh = predictor
    if predictor.library.mod.kind != "llvm":  # a loaded one is linked already
        model = (predictor.forest, predictor.schedules, predictor.target)
        fresh = build(*model, exact=False, signature=predictor.signature)
    fresh.library.mod.write_to_file(str(folder / "code.o"))
    names = function_names(fresh.schedules)
    tensors = {id(x): x for name in names.values() for x in fresh.arguments[name]}
    places = _write_arrays([x.numpy() for x in tensors.values()], folder / "arrays.bin")
    place_of = dict(zip(tensors, places, strict=True))
    functions = list[str]()
    exact = all(sch.keeps_order for sch in fresh.schedules.values())
    for smallest, name in names.items():
        block = fresh.schedules[smallest].sliced if exact else 0
        listed = ", ".join(f"AT({place_of[id(x)]})" for x in fresh.arguments[name])
        functions.append(f"F({smallest}, __tvm_ffi_{name}, {block}, {listed})")
    (folder / "model.h").write_text(_macros(fresh.forest, functions, folder))


def _write_arrays(arrays: list[Array], file: Path) -> list[int]:
    """Write arrays, each on a cache line of its own; returns where."""
    places = []
    with file.open("wb") as out:
        for array in arrays:
            out.write(bytes(-out.tell() % ALIGNMENT))
            places.append(out.tell())
            out.write(np.ascontiguousarray(array).tobytes())
        out.write(bytes(ALIGNMENT))
    return places


def _macros(forest: Forest, functions: list[str], folder: Path) -> str:
    row, margin, value = _dtypes(forest)
    names, shape = result_names(forest), f"(n, {forest.n_outputs})"
    tests = [TESTS[word] for word in forest.refuses] or ["0"]
    values: dict[str, Any] = {
        "ROW": C_TYPES[row],
        "RESULT": C_TYPES[margin],
        "VALUE": C_TYPES[value],
        "ROW_TYPE": f"(DLDataType){{kDLFloat, {8 * np.dtype(row).itemsize}, 1}}",
        "IS_VALUED": int("value" in names),
        "RESULTS": len(names),
        "FEATURES": forest.row_width,
        "OUTPUTS": forest.n_outputs,
        "DATA": f'"{folder / "arrays.bin"}"',
        "REFUSED(x)": f"({' || '.join(tests)})",
        "WHAT_IS_REFUSED": f'"{" or ".join(forest.refuses)}"',
        "ROWS_TEXT": f'"{row} (n, {forest.row_width})"',
        "MARGIN_TEXT": f'"{margin} {shape}"',
        "VALUE_TEXT": f'"{value} {shape}"',
        "FUNCTIONS(F)": " ".join(functions),
    }
    return "".join(f"#define {name} {text}\n" for name, text in values.items())


def _link(folder: Path) -> None:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None or not sys.platform.startswith("linux"):
        raise BuildError(
            f"{WHERE}: no C compiler that can link a library was found; install gcc, or use "
            "Predictor.save"
        )
    paths = dict.fromkeys(
        (tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path())
    )
    source = Path(__file__).with_name("library.c")
    command = [compiler, *FLAGS, f"-I{folder}", *(f"-I{path}" for path in paths), str(source)]
    command += [str(folder / "code.o"), "-lm", "-o", str(folder / "model.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{WHERE}: {compiler} fails: {done.stderr.strip()[-2000:]}")


Predictor.export_library = export_library  # type: ignore[method-assign]
