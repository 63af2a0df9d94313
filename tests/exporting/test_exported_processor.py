"""A library on a processor that lacks its instructions: a code and a text, and no signal."""

from __future__ import annotations

import functools
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import drawn_forest
from other_machines import ARM, MACHINES, why_not
from tvm_forest.forest.probe_rows import hard_rows

AVX512 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}
"""Made for another machine: the one at hand may lack AVX-512, too."""
NEOVERSE = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1"}
MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "model.h"
int main(int count, char **names) {
  static float rows[200 * 5], margin[200];
  FILE *in = fopen(names[1], "rb");
  if (fread(rows, sizeof rows, 1, in) != 1) return 2;
  for (int n = 0; n <= 200; n += 100)
    for (int jobs = 1; jobs <= 2; ++jobs)
      printf("%d ", tvm_forest_predict(rows, n, margin, NULL, jobs));
  printf("%d %s\\n", tvm_forest_check(), tvm_forest_error());
  fclose(in);
  if (count > 2) fwrite(margin, sizeof margin, 1, stdout);
}
"""

pytestmark = pytest.mark.slow


@functools.cache
def predictor(*target: tuple[str, Any]) -> Any:
    forest = drawn_forest(30, 5, seed=4, n_features=5)
    return tvm_forest.build(forest, dict(target), tvm_forest.new_schedule(forest))


def make_program(target: dict[str, Any], compiler: str, folder: Path) -> None:
    """Export a model for a target, and compile a program that calls it."""
    made = predictor(*target.items())
    made.export_library(folder / "model.a")
    hard_rows(made.forest, 200).tofile(folder / "rows")
    (folder / "main.c").write_text(MAIN)
    command = [compiler, "main.c", "model.a", "-pthread", "-ldl", "-lm", "-o", "main"]
    subprocess.run(command, cwd=folder, check=True)


def run(folder: Path, *command: str) -> bytes:
    """Return what a program writes, which ends as it should."""
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def test_code_of_avx512_on_a_nehalem_is_refused_by_code_and_text(tmp_path: Path) -> None:
    if platform.machine() != "x86_64" or shutil.which("qemu-x86_64") is None:
        pytest.skip("no qemu-x86_64 for programs of this machine")
    make_program(AVX512, "cc", tmp_path)
    emulator = ("qemu-x86_64", "-L", "/", "-cpu", "Nehalem")
    codes, _, text = run(tmp_path, *emulator, "./main", "rows").decode().partition(" this ")
    assert codes.split() == 7 * ["-2"]
    assert text.startswith("processor lacks what the library is made of: ")
    lacking = text.split(": ")[1].split(", ")
    assert {"avx2", "avx512f", "avx512bw"} <= set(lacking)
    assert not {"sse4.2", "popcnt"} & set(lacking)


@pytest.mark.long
def test_code_for_every_x86_64_runs_on_a_nehalem(tmp_path: Path) -> None:
    if platform.machine() != "x86_64" or shutil.which("qemu-x86_64") is None:
        pytest.skip("no qemu-x86_64 for programs of this machine")
    plain = {"kind": "llvm", "mcpu": "x86-64-v2"}
    make_program(plain, "cc", tmp_path)
    emulator = ("qemu-x86_64", "-L", "/", "-cpu", "Nehalem")
    found = run(tmp_path, *emulator, "./main", "rows", "too")
    made = predictor(*plain.items())
    margin = made.predict_margin(hard_rows(made.forest, 200))
    assert found == b"0 0 0 0 0 0 0 \n" + margin.tobytes()


def test_code_of_sve_on_a_cortex_a53_is_refused_by_code_and_text(tmp_path: Path) -> None:
    if why_not("aarch64"):
        pytest.skip(why_not("aarch64"))
    make_program(NEOVERSE, "aarch64-linux-gnu-gcc", tmp_path)
    found = run(tmp_path, *ARM, "-cpu", "cortex-a53", "./main", "rows").decode()
    assert "-2 -2 -2 this processor lacks" in found
    assert "sve" in found.split(": ")[1]


@pytest.mark.long
def test_margins_on_aarch64_are_those_of_the_model(tmp_path: Path) -> None:
    if why_not("aarch64"):
        pytest.skip(why_not("aarch64"))
    machine = MACHINES["aarch64"]
    make_program(machine.target, "aarch64-linux-gnu-gcc", tmp_path)
    found = run(tmp_path, *machine.emulator, "./main", "rows", "too")
    forest = predictor(*machine.target.items()).forest
    margin = forest.predict_reference(hard_rows(forest, 200), "margin")
    assert found.startswith(b"0 0 0 0 0 0 0 \n")
    assert np.array_equal(np.frombuffer(found[15:], "f4"), margin.ravel(), equal_nan=True)
