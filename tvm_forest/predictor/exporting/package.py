"""Writes the sources of a library, as a folder and as a zip file.

takes: Predictor, prefix; gives: a folder of C sources, headers, objects and the model; the same
with a CMakeLists.txt as the bytes of a zip file.

    include/model.h            header for programs that call the library
    source/library.c ...       C code, the same for all models
    source/config.h            macros that describe the model
    source/code.o, data.bin    compiled functions, arrays of the model
"""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi

from ...forest import Forest
from ...forest.contributions import ContributionTables
from ...runtime.results import result_dtype, result_names
from . import cpu, cuda, meaning
from .data import Data

if TYPE_CHECKING:
    from ..predictor import Predictor

C_TYPES = {"float32": "float", "float64": "double"}
REFUSAL_TESTS = {"nan": "isnan(x)", "inf": "isinf(x)"}
SOURCES = Path(__file__).with_name("c")
HEADERS = ("tvm/ffi/c_api.h", "dlpack/dlpack.h")

PREDICT_THERE = """\
/* The same for rows and results in the memory of the GPU; waits for them. */
int ${prefix}predict_there(const ${row} *rows, int64_t n, ${margin} *margin, ${value} *value);
"""
EXPLAINED = """\
/* SHAP values, what each feature adds to the margin: values (n, outputs, features + 1); the last
   entry of an output is the expected margin. They add up to the margin. */
int ${prefix}predict_contributions(const ${row} *rows, int64_t n, double *values, int n_jobs);
"""


def header(
    forest: Forest, on_gpu: bool = False, prefix: str = "tvm_forest_", explains: bool = False
) -> str:
    """Return the C header of a model's library.

    On a GPU it declares `predict_there`, too; if it `explains`, `predict_contributions`.
    """
    kinds = dict(zip(("row", "margin", "value"), read_dtypes(forest), strict=True))
    names = {name: C_TYPES[dtype] for name, dtype in kinds.items()} | {"prefix": prefix}
    names |= {f"{name}_type": dtype for name, dtype in kinds.items()}
    names["trees"] = str(forest.n_trees)
    names["shapes"] = f"(n, {forest.row_width}) -> (n, {forest.n_outputs})"
    names["there"] = Template(PREDICT_THERE).substitute(names) if on_gpu else ""
    names["explained"] = Template(EXPLAINED).substitute(names) if explains else ""
    text = (SOURCES / "header.h").read_text(encoding="utf-8")
    return Template(text).substitute(names)


def write_sources(
    predictor: Predictor, prefix: str, folder: Path, tables: ContributionTables | None = None
) -> None:
    """Write the sources of a library into a folder, with contributions if there are `tables`."""
    forest, data = predictor.forest, Data()
    on_cpu = predictor.target.kind == "llvm"
    left_out = {"cuda.c" if on_cpu else "cpu.c", *(("contributions.c",) if tables is None else ())}
    for file in SOURCES.glob("*.c"):
        if file.name not in left_out:
            shutil.copy(file, folder)
    include = (tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path())
    for name, path in zip(HEADERS, include, strict=True):
        (folder / name).parent.mkdir(parents=True)
        shutil.copy(Path(path, name), folder / name)
    if on_cpu:
        macros = cpu.write(predictor, data, prefix, folder, tables)
    else:
        macros = cuda.write(predictor, data, prefix, folder)
    macros |= meaning.describe_rows(forest, data) | meaning.describe_names(forest)
    (folder / "data.bin").write_bytes(data.to_bytes())
    macros |= _describe_results(forest) | {"PREFIX": prefix, "DATA_BYTES": data.size}
    text = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    (folder / "config.h").write_text(text, encoding="utf-8")


def pack(
    trees: int, text: str, prefix: str, name: str, flags: Sequence[str], folder: Path
) -> bytes:
    """Return the bytes of a zip file with the sources in a folder, a header and a CMakeLists.txt.

    Args:
        trees: number of trees of the model, for a comment.
        text: the text of the header.
        prefix: beginning of the C functions' names.
        name: file name of the header.
        flags: compiler flags for code that every processor of the kind runs.
        folder: the folder that `write_sources` filled.
    """
    code = " source/code.o" if (folder / "code.o").exists() else ""
    names = {"trees": str(trees), "name": prefix.rstrip("_")}
    names |= {"objects": code, "flags": "".join(f" {flag}" for flag in flags)}
    recipe = Template((SOURCES / "CMakeLists.txt").read_text(encoding="utf-8")).substitute(names)
    parts = {"CMakeLists.txt": recipe.encode(), f"include/{name}": text.encode()}
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    parts |= {f"source/{file.relative_to(folder).as_posix()}": file.read_bytes() for file in files}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as package:
        for place, content in parts.items():
            package.writestr(zipfile.ZipInfo(place), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def read_dtypes(forest: Forest) -> tuple[str, str, str]:
    """Return the dtypes of rows, margins and values."""
    value = result_names(forest)[-1]
    return forest.row_dtype, result_dtype(forest, "margin"), result_dtype(forest, value)


def _describe_results(forest: Forest) -> dict[str, Any]:
    """Return the macros of `library.c` for the dtypes and shapes of rows and results."""
    row, margin, value = read_dtypes(forest)
    results, shape = result_names(forest), f"(n, {forest.n_outputs})"
    refused = [word for word in forest.refuses if word in REFUSAL_TESTS]
    tests = [REFUSAL_TESTS[word] for word in refused] or ["0"]
    return {
        "ROW": C_TYPES[row],
        "RESULT": C_TYPES[margin],
        "VALUE": C_TYPES[value],
        "TYPES": f'"{row} {margin} {value}"',
        "ROW_TYPE": f"(DLDataType){{kDLFloat, {8 * np.dtype(row).itemsize}, 1}}",
        "IS_VALUED": int("value" in results),
        "RESULTS": len(results),
        "FEATURES": forest.row_width,
        "OUTPUTS": forest.n_outputs,
        "REFUSED(x)": f"({' || '.join(tests)})",
        "REFUSES": int(bool(refused)),
        "WHAT_IS_REFUSED": f'"{" or ".join(refused)}"',
        "ROWS_TEXT": f'"{row} (n, {forest.row_width})"',
        "MARGIN_TEXT": f'"{margin} {shape}"',
        "VALUE_TEXT": f'"{value} {shape}"',
    }
