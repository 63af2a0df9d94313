"""Machines that tests compile for and emulate: what runs their programs, and how.

A program reads rows from files and writes margins to files: `MAIN` for qemu, `MODULE` for node.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tvm_forest
from tvm_forest.errors import BuildError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.predictor.exporting.toolchain import find_toolchain
from tvm_forest.target import parse_target

MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "model.h"
int main(int count, char **names) {
  for (int k = 1; k + 2 < count; k += 3) {
    long n = atol(names[k]), features = tvm_forest_features(), outputs = tvm_forest_outputs();
    ROW *rows = calloc(n * features + 1, sizeof *rows);
    RESULT *margin = calloc(n * outputs + 1, sizeof *margin);
    FILE *in = fopen(names[k + 1], "rb"), *out = fopen(names[k + 2], "wb");
    if (fread(rows, sizeof *rows, n * features, in) != (size_t)(n * features)) return 2;
    if (tvm_forest_predict(rows, n, margin, NULL, 2)) return puts(tvm_forest_error()), 3;
    fwrite(margin, sizeof *margin, n * outputs, out);
    fclose(in), fclose(out);
  }
  if (tvm_forest_predict(NULL, 1, NULL, NULL, 1) != -1) return 4;
  puts(tvm_forest_error());
}
"""
MODULE = """
import { readFileSync, writeFileSync } from "node:fs";
import { WASI } from "node:wasi";
const [file, width, ...files] = process.argv.slice(2);
const wasi = new WASI({ version: "preview1" });
const module = await WebAssembly.compile(readFileSync(file));
const instance = await WebAssembly.instantiate(module, wasi.getImportObject());
wasi.initialize(instance);
const c = instance.exports, outputs = Number(c.tvm_forest_outputs());
for (let k = 0; k < files.length; k += 3) {
  const n = Number(files[k]), given = readFileSync(files[k + 1]), size = n * outputs * width;
  const rows = c.malloc(given.length + 8), margin = c.malloc(size + 8);
  new Uint8Array(c.memory.buffer).set(given, rows);
  if (c.tvm_forest_predict(rows, BigInt(n), margin, 0, 1)) throw "failed";
  writeFileSync(files[k + 2], new Uint8Array(c.memory.buffer, margin, size));
  c.free(rows), c.free(margin);
}
if (c.tvm_forest_predict(0, 1n, 0, 0, 1) != -1) throw "not refused";
const text = new Uint8Array(c.memory.buffer, c.tvm_forest_error());
console.log(new TextDecoder().decode(text.slice(0, text.indexOf(0))));
"""


class Machine(NamedTuple):
    """A machine.

    Attributes:
        target: of `build`.
        emulator: command that runs its programs.
    """

    target: dict[str, Any]
    emulator: tuple[str, ...]

    @property
    def is_wasm(self) -> bool:
        return str(self.target["mtriple"]).startswith("wasm32")


def on(triple: str, *emulator: str, **options: Any) -> Machine:
    return Machine({"kind": "llvm", "mtriple": triple, **options}, emulator)


ARM = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
RISC = ("qemu-riscv64", "-L", "/usr/riscv64-linux-gnu", "-cpu")
PLAIN_RISC = "rv64,v=false,zba=false,zbb=false,zbs=false"
# Emulated are CPUs that have no more than the code may use.
MACHINES = {
    "aarch64": on("aarch64-linux-gnu", *ARM, "-cpu", "cortex-a53"),
    # qemu 7 emulates all of this CPU but LSE2, which only atomics use.
    "neoverse": on("aarch64-linux-gnu", *ARM, mcpu="neoverse-v1", mattr=["-lse2"]),
    "riscv64": on("riscv64-linux-gnu", *RISC, PLAIN_RISC),
    "riscv64 with vectors": on(
        "riscv64-linux-gnu", *RISC, "rv64,v=true,vlen=128,vext_spec=v1.0", mattr=["+v"]
    ),
    "x86-64": on("x86_64-linux-gnu", "qemu-x86_64", "-L", "/", "-cpu", "core2duo"),
    "wasm32": on("wasm32-wasi", "node", "--no-warnings"),
    "wasm32 with vectors": on("wasm32-wasi", "node", "--no-warnings", mattr=["+simd128"]),
}


@functools.cache
def why_not(name: str) -> str:
    """Say what is missing to compile for a machine and to emulate it; "" if nothing."""
    machine = MACHINES[name]
    if shutil.which(machine.emulator[0]) is None:
        return f"no {machine.emulator[0]}"
    if machine.is_wasm:
        version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
        if int(version.stdout.strip().lstrip("v").partition(".")[0]) < 20:
            return f"node {version.stdout.strip()}, which has not our WASI"
    elif shutil.which(f"{machine.target['mtriple']}-gcc") is None:
        return f"no {machine.target['mtriple']}-gcc"
    try:
        find_toolchain(
            parse_target(machine.target), Path("x.wasm" if machine.is_wasm else "x.so"), None
        )
    except BuildError as error:
        return str(error)
    return ""


def check_margins_there(
    predictor: tvm_forest.Predictor, machine: Machine, sizes: Iterable[int], folder: Path
) -> None:
    """Export a predictor, and compare its margins of hard rows on the machine with the model's."""
    forest = predictor.forest
    for n in sizes:
        hard_rows(forest, n, seed=n).tofile(folder / f"rows{n}")
    command = [*make_program(predictor, machine, folder), *exchange(folder, *sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "rows or margin is a null pointer\n"), done.stderr
    for n in sizes:
        expected = _margins_of(forest, n)
        found = np.fromfile(folder / f"margin{n}", expected.dtype).reshape(expected.shape)
        missing = np.isnan(expected)  # whose bits are the processor's own
        assert np.array_equal(np.isnan(found), missing), n
        found, expected = (np.where(missing, 0, x) for x in (found, expected))
        assert found.tobytes() == expected.tobytes(), (n, found, expected)


def exchange(folder: Path, *sizes: int) -> list[str]:
    """Name the files of rows and margins to a program."""
    return [text for n in sizes for text in (str(n), f"{folder}/rows{n}", f"{folder}/margin{n}")]


def _margins_of(forest: Forest, n: int) -> Any:
    """Return what the model itself adds up."""
    return forest.predict_reference(hard_rows(forest, n, seed=n), "margin")


def make_program(predictor: Any, machine: Machine, folder: Path) -> list[str]:
    margin = _margins_of(predictor.forest, 1).dtype
    if machine.is_wasm:
        (folder / "run.mjs").write_text(MODULE)
        predictor.export_library(folder / "model.wasm")
        program = [str(folder / "run.mjs"), str(folder / "model.wasm")]
        return [*machine.emulator, *program, str(margin.itemsize)]
    predictor.export_library(folder / "model.so")
    (folder / "main.c").write_text(MAIN)
    types = {"float32": "float", "float64": "double"}
    compiler = f"{machine.target['mtriple']}-gcc"
    command = [compiler, folder / "main.c", folder / "model.so", f"-I{folder}"]
    command += [f"-DROW={types[predictor.forest.row_dtype]}", f"-DRESULT={types[str(margin)]}"]
    command += [f"-Wl,-rpath,{folder}", "-o", folder / "main"]
    subprocess.run(command, check=True)
    return [*machine.emulator, str(folder / "main")]
