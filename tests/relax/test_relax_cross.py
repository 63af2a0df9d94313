"""Forests in Relax modules for other machines: what their functions compute there.

No wheel has TVM's virtual machine for these, so programs in C call the functions of the forests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import GenericConst

from forests import drawn_forest
from other_machines import why_not
from relax_modules import module_of, rows_of
from relax_programs import IN_C
from tvm_forest.errors import InputError
from tvm_forest.relax import LinkForests
from tvm_forest.relax.targets import from_tvm

SIZES = (1, 7, 600)
FOREST = drawn_forest(12, 3, seed=1, n_features=5)
INCLUDE = Path(tvm_ffi.__file__).parent / "include"
CODES = {"i": 0, "u": 1, "f": 2}
RUN_WASM = """
import { readFileSync } from "node:fs";
import { WASI } from "node:wasi";
const [file, ...args] = process.argv.slice(2), preopens = { "/": "." };
const wasi = new WASI({ version: "preview1", args: [file, ...args], preopens });
const module = await WebAssembly.compile(readFileSync(file));
process.exitCode = wasi.start(await WebAssembly.instantiate(module, wasi.getImportObject()));
"""


class Call(NamedTuple):
    """A function that a module calls, and what it is given after the rows."""

    name: str
    arrays: list[Any]


def find_call(mod: tvm.IRModule) -> Call:
    """Return the one call in the `main` of a module."""
    calls: list[Call] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and expr.op.name.startswith("relax.call_"):
            name = getattr(expr.args[0], "name_hint", None) or str(expr.args[0].global_symbol)
            arrays = [x.value.numpy() for x in expr.args[1] if isinstance(x, GenericConst)]
            calls.append(Call(name, arrays))

    relax.analysis.post_order_visit(mod["main"], visit)
    (call,) = calls
    return call


def compile_for(target: dict[str, Any], way: str, folder: Path) -> tuple[Call, Path]:
    """Return what a module calls, and a file with the machine code of all of it."""
    mod, machine = module_of(FOREST), tvm.target.Target(target)
    if way == "linked":
        mod = LinkForests(target)(mod)
    else:
        with machine:
            mod = relax.transform.LegalizeOps()(mod)
    tvm.compile(mod, machine).export_library(str(folder / "module.tar"))
    subprocess.run(["tar", "-xf", "module.tar"], cwd=folder, check=True)
    return find_call(mod), folder


def describe(array: Any, file: Path | str) -> Iterator[str]:
    """Yield the four words that IN_C takes for a tensor."""
    yield from (str(CODES[array.dtype.kind]), str(8 * array.itemsize))
    yield from (",".join(map(str, array.shape)), str(file))


def check_there(compiler: list[str], emulator: list[str], call: Call, folder: Path) -> None:
    """Link the function of a forest to a program, and compare its margins on the machine."""
    (folder / "main.c").write_text(IN_C)
    given = [f"-DFUNCTION=__tvm_ffi_{call.name}", f"-I{INCLUDE}", "main.c"]
    objects = sorted(path.name for path in folder.glob("lib*.o"))
    subprocess.run([*compiler, *given, *objects, "-lm", "-o", "main"], cwd=folder, check=True)
    for k, array in enumerate(call.arrays):
        np.ascontiguousarray(array).tofile(folder / f"array{k}")
    for n in SIZES:
        rows = rows_of(FOREST, n)
        rows.tofile(folder / "rows")
        expected = FOREST.predict_reference(rows, "margin")
        words = list(describe(rows, "rows"))
        for k, array in enumerate(call.arrays):
            words += describe(array, f"array{k}")
        words += describe(expected.reshape(n, 1), "margin")
        done = subprocess.run([*emulator, "main", *words], cwd=folder, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        assert (folder / "margin").read_bytes() == expected.tobytes(), n


@pytest.mark.slow
@pytest.mark.parametrize("way", ["linked", "legalised"])
def test_forests_of_a_module_for_aarch64_have_their_bits(way: str, tmp_path: Path) -> None:
    if why_not("aarch64"):
        pytest.skip(why_not("aarch64"))
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
    call, folder = compile_for(target, way, tmp_path)
    compiler = ["aarch64-linux-gnu-gcc", "-O1", "-static"]
    check_there(compiler, ["qemu-aarch64", "-cpu", "cortex-a53"], call, folder)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["linked", "legalised"])
@pytest.mark.long
def test_forests_of_a_module_for_webassembly_have_their_bits(way: str, tmp_path: Path) -> None:
    if why_not("wasm32"):
        pytest.skip(why_not("wasm32"))
    target = {"kind": "llvm", "mtriple": "wasm32-wasi"}
    call, folder = compile_for(target, way, tmp_path)
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-wasi", "-O1"]
    (tmp_path / "run.mjs").write_text(RUN_WASM)
    node = [shutil.which("node") or "", "--no-warnings", "run.mjs"]
    check_there(compiler, node, call, folder)


def test_the_target_of_a_module_says_what_its_forests_are_compiled_for() -> None:
    elsewhere = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}
    assert from_tvm(tvm.target.Target(elsewhere)).to_dict() == elsewhere
    here = {"kind": "llvm", "mcpu": "x86-64-v3", "mattr": ["-avx2"]}
    assert from_tvm(tvm.target.Target(here)).to_dict() == {"kind": "llvm", "mcpu": "x86-64"}
    asked = {"kind": "llvm", "mcpu": "x86-64", "mattr": ["+avx2"]}
    assert from_tvm(tvm.target.Target(asked)).to_dict() == {"kind": "llvm", "mcpu": "x86-64"}


@pytest.mark.parametrize("way", ["linked", "legalised"])
def test_machines_that_nothing_is_compiled_for_are_refused_by_name(way: str) -> None:
    target = {"kind": "llvm", "mtriple": "armv7a-linux-gnueabihf"}
    with pytest.raises(InputError, match="'mtriple': 'armv7a-linux-gnueabihf' is no machine"):
        if way == "linked":
            LinkForests(target)(module_of(FOREST))
        else:
            tvm.compile(module_of(FOREST), tvm.target.Target(target))
