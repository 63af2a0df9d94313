"""A predictor as a shared library that needs neither Python nor TVM.

takes: Predictor; gives: `<name>.so` and its header, or `<name>.wasm`; for another machine also
`<name>.o`, the compiled functions alone.

The library holds the compiled functions, the arrays of the model, and `library.c` around them. For
a GPU of NVIDIA these are kernels with C code that launches them (`cuda.c`). A C program calls
`tvm_forest_predict`; Python with apache-tvm-ffi alone calls the entry "main":

    tvm_ffi.load_module("model.so")["main"](rows, margin)
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi

from ... import archive
from ...errors import BuildError, InputError, UnsupportedModel
from ...forest import Forest
from ...layouts.representation import takes_memberships
from ...target import Target
from ...tir_gen.canonical import result_dtype, result_names
from . import cpu, cuda
from .data import Data
from .toolchain import AT_PATH, WHERE, Command, Toolchain, check_suffix, find_toolchain

if TYPE_CHECKING:
    from ..predictor import Predictor

C_TYPES = {"float32": "float", "float64": "double"}
REFUSAL_TESTS = {"nan": "isnan(x)", "inf": "isinf(x)"}
PREFIX = "tvm_forest_"
"""What the names of C functions begin with. It ends with an underscore, or "str" would define a
`strerror`."""

PREDICT_THERE = """\
/* The same for rows and results in the memory of the GPU; waits for them. */
int ${prefix}predict_there(const ${row} *rows, int64_t n, ${margin} *margin, ${value} *value);
"""


def export_library(
    predictor: Predictor, path: str | os.PathLike[str], prefix: str = PREFIX, cc: Command = None
) -> None:
    """See `Predictor.export_library`."""
    file, tools = check_wishes(predictor.target, path, prefix, cc)
    if tools.suffix == ".o":
        return archive.write_file(file, _compile_object(predictor), AT_PATH)
    _check_exportable(predictor)
    with tempfile.TemporaryDirectory() as folder:
        library = _compile_library(predictor, prefix, tools, Path(folder))
    archive.write_file(file, library, AT_PATH)
    text = header(predictor.forest, predictor.target.kind == "cuda", prefix)
    archive.write_file(file.with_suffix(".h"), text.encode(), AT_PATH)


def check_wishes(
    target: Target, path: str | os.PathLike[str], prefix: str, cc: Command = None
) -> tuple[Path, Toolchain]:
    """Return the path of a library and what makes it, before anything is compiled.

    Raises:
        InputError, BuildError: see `Predictor.export_library`.
    """
    if not isinstance(prefix, str) or not re.fullmatch("[A-Za-z][A-Za-z0-9_]*_", prefix):
        raise InputError(
            f"{WHERE}: argument 'prefix': {archive.shorten(prefix)} cannot begin the names of C "
            "functions; give a letter, then letters, digits and underscores, an underscore at the "
            "end, such as 'airline_'"
        )
    file = archive.to_path(path, AT_PATH)
    check_suffix(target, file)
    for place in (file, file.with_suffix(".h")):
        archive.check_place(place, AT_PATH)
    return file, find_toolchain(target, file, cc)


def header(forest: Forest, on_gpu: bool = False, prefix: str = PREFIX) -> str:
    """Return the C header of a library of a model, for a CPU or a GPU."""
    row, margin, value = (C_TYPES[dtype] for dtype in _dtypes(forest))
    names = {"row": row, "margin": margin, "value": value, "prefix": prefix}
    names["trees"] = str(forest.n_trees)
    names["shapes"] = f"(n, {forest.row_width}) -> (n, {forest.n_outputs})"
    names["there"] = Template(PREDICT_THERE).substitute(names) if on_gpu else ""
    text = Path(__file__).with_name("header.h").read_text(encoding="utf-8")
    return Template(text).substitute(names)


def _check_exportable(predictor: Predictor) -> None:
    forest = predictor.forest
    if predictor.target.kind not in ("llvm", "cuda"):
        raise UnsupportedModel(
            f"{WHERE}: target {predictor.target.kind!r}: only code for CPUs and for GPUs of NVIDIA "
            "is exported; build the model with target 'llvm' or 'cuda'"
        )
    layouts = {sch.representation for sch in predictor.schedules.values()}
    refused = {
        "missing": forest.missing,
        "zero_missing": forest.zero_missing or None,
        "known_categories": forest.compared_categories or None,
        "derived": forest.derived if any(takes_memberships(x, forest) for x in layouts) else None,
        "refuses": "category" if "category" in forest.refuses else None,
    }
    field = next((name for name, value in refused.items() if value is not None), None)
    if field is not None:
        raise UnsupportedModel(
            f"{WHERE}: field '{field}': {refused[field]!r} asks for rows to be prepared in Python, "
            "which a library does not; use Predictor.save"
        )


def _dtypes(forest: Forest) -> tuple[str, str, str]:
    """Return the dtypes of rows, margins and values."""
    value = result_names(forest)[-1]
    return forest.row_dtype, result_dtype(forest, "margin"), result_dtype(forest, value)


def _compile_object(predictor: Predictor) -> bytes:
    """Return the compiled functions alone, which take arrays as TVM's functions do."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "code.o")
        predictor.library.mod.write_to_file(str(file))
        return file.read_bytes()


def _compile_library(predictor: Predictor, prefix: str, tools: Toolchain, folder: Path) -> bytes:
    """Return the library; what it is made of is written to the folder."""
    data, part = Data(), cpu if predictor.target.kind == "llvm" else cuda
    macros, linked = part.write(predictor, data, folder)
    (folder / "data.bin").write_bytes(data.to_bytes())
    macros |= _macros(predictor.forest)
    macros |= {"PREFIX": prefix, "DATA": f'"{folder / "data.bin"}"', "DATA_BYTES": data.size}
    text = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    (folder / "model.h").write_text(text, encoding="utf-8")
    ffi = tvm_ffi.libinfo
    command = [*tools.link(prefix, folder), f"-I{folder}", f"-I{ffi.find_include_path()}"]
    command += [f"-I{ffi.find_dlpack_include_path()}", str(Path(__file__).with_name("library.c"))]
    command += [*linked, "-lm", *([] if tools.suffix == ".wasm" else ["-ldl"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        shown = " ".join(tools.command)
        raise BuildError(f"{WHERE}: {shown} fails: {done.stderr.strip()[-2000:]}")
    return (folder / "linked").read_bytes()


def _macros(forest: Forest) -> dict[str, Any]:
    """Return the macros of `library.c` that say what a model takes and gives."""
    row, margin, value = _dtypes(forest)
    results, shape = result_names(forest), f"(n, {forest.n_outputs})"
    tests = [REFUSAL_TESTS[word] for word in forest.refuses] or ["0"]
    return {
        "ROW": C_TYPES[row],
        "RESULT": C_TYPES[margin],
        "VALUE": C_TYPES[value],
        "ROW_TYPE": f"(DLDataType){{kDLFloat, {8 * np.dtype(row).itemsize}, 1}}",
        "IS_VALUED": int("value" in results),
        "RESULTS": len(results),
        "FEATURES": forest.row_width,
        "OUTPUTS": forest.n_outputs,
        "REFUSED(x)": f"({' || '.join(tests)})",
        "REFUSES": int(bool(forest.refuses)),
        "WHAT_IS_REFUSED": f'"{" or ".join(forest.refuses)}"',
        "ROWS_TEXT": f'"{row} (n, {forest.row_width})"',
        "MARGIN_TEXT": f'"{margin} {shape}"',
        "VALUE_TEXT": f'"{value} {shape}"',
    }
