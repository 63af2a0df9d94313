"""Twenty exported models in one process: by ctypes, by JNA and linked statically, all are right."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tvm_forest
from exported import Library
from forests import drawn_forest
from jna import run_java, why_not
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows

COUNT, N = 20, 131
CALL = """\
  {{
    {margin} margin[{n} * {outputs}];
    if (m{k}_predict(read_rows("rows{k}"), {n}, margin, NULL, 1)) return puts(m{k}_error()), 1;
    write_margin("margin{k}", margin, sizeof margin);
  }}
"""
MAIN = """
#include <stdio.h>
#include <stdlib.h>
{includes}
static void *read_rows(const char *name) {{
  static double rows[8192];
  FILE *in = fopen(name, "rb");
  if (!fread(rows, 1, sizeof rows, in)) exit(2);
  fclose(in);
  return rows;
}}
static void write_margin(const char *name, const void *margin, size_t size) {{
  FILE *out = fopen(name, "wb");
  fwrite(margin, 1, size, out);
  fclose(out);
}}
int main(void) {{
{calls}  return 0;
}}
"""


@functools.cache
def predictor(k: int) -> Any:
    """Return one of the models, which differ in trees, width, dtype, and number of classes."""
    dtype = "float64" if k % 3 == 0 else "float32"
    base = (0.5,) if k % 2 else (0.1, 0.2, 0.3)
    forest = drawn_forest(
        6 + k, 3, seed=k, n_features=3 + k % 4, dtype=dtype, row_dtype=dtype, base=base
    )
    return tvm_forest.build(forest, "llvm", tvm_forest.new_schedule(forest))


def rows_of(forest: Forest, k: int) -> Any:
    return hard_rows(forest, N, seed=k)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of shared libraries, in which all functions have the same names."""
    folder = tmp_path_factory.mktemp("shared")
    for k in range(COUNT):
        predictor(k).export_library(folder / f"model{k}.so")
    return folder


@pytest.mark.long
def test_twenty_models_in_one_process_by_ctypes(shared: Path) -> None:
    libraries = [Library(shared / f"model{k}.so", predictor(k).forest) for k in range(COUNT)]
    for _ in range(2):
        for k, library in enumerate(libraries):
            rows = rows_of(library.forest, k)
            margin, _ = library.predict(rows)
            expected = predictor(k).predict_margin(rows)
            assert (library.code, margin.tobytes()) == (0, expected.tobytes()), k


@pytest.mark.long
def test_twenty_models_in_one_process_by_jna(shared: Path, tmp_path: Path) -> None:
    if why_not():
        pytest.skip(why_not())
    forests = [predictor(k).forest for k in range(COUNT)]
    libraries = [shared / f"model{k}.so" for k in range(COUNT)]
    rows = [rows_of(forest, k) for k, forest in enumerate(forests)]
    for k, margin in enumerate(run_java(libraries, forests, rows, tmp_path)):
        assert margin.tobytes() == predictor(k).predict_margin(rows[k]).tobytes(), k


@pytest.mark.long
def test_twenty_models_in_one_program_by_static_linking(tmp_path: Path) -> None:
    calls = ""
    for k in range(COUNT):
        forest = predictor(k).forest
        predictor(k).export_library(tmp_path / f"libmodel{k}.a", prefix=f"m{k}_")
        rows_of(forest, k).tofile(tmp_path / f"rows{k}")
        margin = "double" if k % 3 == 0 else "float"
        calls += CALL.format(k=k, margin=margin, n=N, outputs=forest.n_outputs)
    includes = "".join(f'#include "libmodel{k}.h"\n' for k in range(COUNT))
    (tmp_path / "main.c").write_text(MAIN.format(includes=includes, calls=calls))
    libraries = [f"libmodel{k}.a" for k in range(COUNT)]
    command = ["cc", "main.c", *libraries, "-static", "-pthread", "-lm", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True, stderr=subprocess.DEVNULL)
    done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for k in range(COUNT):
        expected = predictor(k).predict_margin(rows_of(predictor(k).forest, k))
        assert (tmp_path / f"margin{k}").read_bytes() == expected.tobytes(), k
