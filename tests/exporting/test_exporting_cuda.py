"""A shared library with kernels for CUDA: the bits of the model, over an emulated driver."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from emulated_cuda import emulated, evaluate, libcuda
from forests import drawn_forest
from gpu_schedules import each_row
from recipe_cases import CASES
from schedules import rounding_bound
from tvm_forest.errors import DeviceError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.predictor.exporting.cuda import CNames, expression_in_c
from tvm_forest.predictor.exporting.package import SOURCES
from tvm_forest.runtime.gpu import cuda_compiler
from tvm_forest.runtime.gpu.cuda import CudaDriver

SIZES = (0, 1, 33, 70, 7)

CALLER = """
import ctypes, sys
import numpy as np
folder, sizes = sys.argv[1], sys.argv[3:]
emulator = ctypes.CDLL(sys.argv[2])
library = ctypes.CDLL(folder + "/model.so")
library.tvm_forest_error.restype = ctypes.c_char_p
outputs, predict = library.tvm_forest_outputs(), library.tvm_forest_predict
def call(function, rows, *results):
    places = [x if x is None else ctypes.c_void_p(x.ctypes.data) for x in (rows, *results)]
    return function(places[0], ctypes.c_int64(len(rows)), *places[1:], 1)
def emulate(what, *given):
    getattr(emulator, "emulated_" + what)(*given)
"""

PREDICTS = """
for n in sizes:
    rows = np.load(f"{folder}/rows{n}.npy")
    right = [np.load(f"{folder}/{name}{n}.npy") for name in ("margin", "value")]
    for function in (predict, library.tvm_forest_predict_there):
        margin, value = (np.zeros_like(x) for x in right)
        valued = value if function is predict or "valued" in folder else None
        assert call(function, rows, margin, valued) == 0, library.tvm_forest_error()
        np.save(f"{folder}/found{n}.npy", margin)
        same = [margin.tobytes() == right[0].tobytes()]
        same += [value.tobytes() == right[1].tobytes()] if valued is not None else []
        assert all(same) or "reorders" in folder, (function, n, same)
from concurrent.futures import ThreadPoolExecutor
def again(n):
    rows, right = (np.load(f"{folder}/{name}{n}.npy") for name in ("rows", "found"))
    margin = np.zeros_like(right)
    return call(predict, rows, margin, None) == 0 and margin.tobytes() == right.tobytes()
with ThreadPoolExecutor(4) as pool:
    assert all(pool.map(again, 4 * sizes))
assert call(predict, np.zeros((0, 4)), None, None) == 0
assert emulator.emulated_contexts() == 0
"""

FAILS = """
rows, margin = np.load(folder + "/rows33.npy"), np.load(folder + "/margin33.npy")
for name, code in ((b"cuInit", 100), (b"cuModuleLoadDataEx", 209), (b"cuMemAlloc_v2", 2),
                   (b"cuLaunchKernel", 701), (b"cuStreamSynchronize", 719)):
    emulate("fail", name, code)
    assert call(predict, rows, margin, None) == -1
    print(library.tvm_forest_error().decode())
    assert emulator.emulated_contexts() == 0
    emulate("work")
found = np.zeros_like(margin)
assert call(predict, rows, found, None) == 0 and found.tobytes() == margin.tobytes()
assert predict(None, ctypes.c_int64(1), None, None, 1) == -1
print(library.tvm_forest_error().decode())
"""

BY_FFI = """
import sys
import numpy as np, tvm_ffi
from tvm_forest.runtime.gpu.cuda import CudaDriver
from tvm_forest.runtime.gpu.arrays import DeviceArray
assert "tvm" not in sys.modules
class Gpu:
    driver = CudaDriver(library=sys.argv[2])
def there(array):
    made = DeviceArray(Gpu.driver, array.shape, array.dtype, 0)
    Gpu.driver.upload(made.pointer, array, 0)
    return made
folder = sys.argv[1]
main = tvm_ffi.load_module(folder + "/model.so")["main"]
rows, right = np.load(folder + "/rows33.npy"), np.load(folder + "/margin33.npy")
for place in (lambda array: array, there):
    given = place(rows), place(np.zeros_like(right))
    main(*map(tvm_ffi.from_dlpack, given))
    found = given[1] if place is not there else given[1].numpy()
    assert found.tobytes() == right.tobytes(), place
try:
    main(tvm_ffi.from_dlpack(there(rows)), tvm_ffi.from_dlpack(np.zeros_like(right)))
except ValueError as error:
    assert "margin: expected float32 (n, 1)" in str(error)
else:
    raise AssertionError("results of the host are refused with rows of the GPU")
"""


def exported(made: Any, folder: Path) -> Any:
    """Write the library of a predictor, and rows with the answers of the reference walk."""
    folder.mkdir(exist_ok=True)
    emulated(made).export_library(folder / "model.so")
    forest = made.forest
    for n in SIZES:
        rows = hard_rows(forest, n, seed=n)
        np.save(folder / f"rows{n}.npy", rows)
        np.save(folder / f"margin{n}.npy", forest.predict_reference(rows))
        np.save(folder / f"value{n}.npy", made.predict(rows).reshape(n, forest.n_outputs))
    return made


def run(folder: Path, script: str, *sizes: int, driver: bool = True) -> str:
    """Run a script in a process that finds the emulated driver."""
    place = folder / "driver"
    place.mkdir(exist_ok=True)
    if driver and not (place / "libcuda.so.1").exists():
        (place / "libcuda.so.1").symlink_to(libcuda())
    command = [sys.executable, "-c", script, str(folder), libcuda(), *map(str, sizes)]
    environment = os.environ | {"LD_LIBRARY_PATH": str(place)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def forest(classes: int = 1, **fields: Any) -> Any:
    return drawn_forest(13 * classes, 3, seed=3, base=(0.5, -1.0, 2.0)[:classes], **fields)


@pytest.mark.slow
def test_margins_are_those_of_the_model(tmp_path: Path) -> None:
    sch = tvm_forest.new_schedule(forest())
    several = {1: CASES["E4"].schedule(sch), 40: tvm_forest.hop_schedule(forest(), "cuda")}
    exported(tvm_forest.build(forest(), "cuda", several), tmp_path / "model")
    run(tmp_path / "model", BY_FFI)
    said = run(tmp_path / "model", CALLER + FAILS + PREDICTS, *SIZES).splitlines()
    assert said[0] == "cuda: cuInit failed with 100, no CUDA-capable device is detected"
    assert [line.split()[1] for line in said[1:4]] == [
        "cuModuleLoadData",
        "cuMemAlloc",
        "predict_from_1_kernel",
    ]
    assert said[4].endswith("719, unspecified launch failure")
    assert said[5] == "rows or margin is a null pointer"


@pytest.mark.slow
def test_values_are_those_of_the_predictor(tmp_path: Path) -> None:
    exported(tvm_forest.build(forest(3, link="softmax"), "cuda", each_row), tmp_path / "valued")
    run(tmp_path / "valued", CALLER + PREDICTS, *SIZES)
    average = forest(1, dtype="float64", row_dtype="float32", aggregate="average")
    exported(tvm_forest.build(average, "cuda", each_row), tmp_path / "average")
    run(tmp_path / "average", CALLER + PREDICTS, *SIZES)


@pytest.mark.slow
def test_plans_with_memory_loops_and_sizes_of_the_model(tmp_path: Path) -> None:
    model = forest(3)
    start = tvm_forest.new_schedule(model)
    sch = start.tile("tree", "t0", "t1", 8).tile("batch", "b0", "b1", 4)
    sch = sch.reorder("b0", "t0", "b1", "t1", "class").unroll("t0").cache("t0")
    of_model = sch.gpu_dimension("b0", "grid.x").gpu_dimension("t1", "grid.y")
    sch = start.tile("tree", "t0", "t1", 5).tile("batch", "b0", "b1", 8)
    sch = sch.reorder("t0", "b0", "b1", "class", "t1").gpu_dimension("b0", "grid.x")
    looped = sch.gpu_dimension("b1", "block.x")
    for name, sch in {"of the model": of_model, "looped": looped}.items():
        folder = tmp_path / f"{name}, reorders"
        exported(tvm_forest.build(model, "cuda", sch, exact=False), folder)
        run(folder, CALLER + PREDICTS, *SIZES)
        for n in SIZES:
            rows, found = np.load(folder / f"rows{n}.npy"), np.load(folder / f"found{n}.npy")
            apart = np.abs(found - model.predict_reference(rows))
            assert np.all(apart <= rounding_bound(model, rows))


def test_expressions_of_plans_are_the_same_in_c(tmp_path: Path) -> None:
    made = [("//", ("+", "n", 7), 8), ("%", ("-", 3, "n"), 4), ("//", ("-", 3, "n"), 4)]
    made += [("min", "n", 5), ("max", "n", 2**40), ("not", ("<", "n", 4)), ("==", "n", 9)]
    made += [("and", ("<", 3, "n"), ("<=", "n", 9)), ("or", 0, ("<", "n", 4))]
    made += [("if", ("<", "n", 4), ("[]", "offset", "n"), ("*", "n", -2))]
    names = CNames({}, {"offset": "offset"}, {"n": "n"}, {})
    sources = [SOURCES / name for name in ("library.c", "cuda.c")]
    lines = [line for source in sources for line in source.read_text().splitlines()]
    helpers = [x for x in lines if x.startswith("static inline int64_t ") and x.endswith("}")]
    printed = "".join(f'printf("%lld ", (long long){expression_in_c(x, names)});' for x in made)
    (tmp_path / "main.c").write_text(
        "#include <stdint.h>\n#include <stdio.h>\n"
        + "\n".join(helpers)
        + "\nint main() { int32_t offset[] = {5, 6, 7, 8};\n"
        + f"for (int64_t n = 0; n < 12; ++n) {{ {printed} }} }}\n"
    )
    subprocess.run(["cc", "main.c", "-o", "main"], cwd=tmp_path, check=True)
    said = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout
    values = [{"n": n, "offset": np.array([5, 6, 7, 8])} for n in range(12)]
    assert list(map(int, said.split())) == [evaluate(x, v) for v in values for x in made]


@pytest.mark.slow
def test_without_a_driver_there_is_one_clear_error(tmp_path: Path) -> None:
    exported(tvm_forest.build(forest(), "cuda", each_row), tmp_path)
    try:
        CudaDriver()
    except DeviceError:
        said = run(
            tmp_path,
            CALLER
            + FAILS.split("for name")[0]
            + """
assert call(predict, rows, margin, None) == -1
print(library.tvm_forest_error().decode())""",
            driver=False,
        )
        assert said.startswith("cuda: no driver of NVIDIA found (libcuda.so.1); run where there is")


def test_without_a_compiler_for_cuda_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, found in (("find_nvrtcs", ()), ("find_nvcc", None)):
        monkeypatch.setattr(cuda_compiler, name, lambda found=found: found)
    with pytest.raises(DeviceError, match=r"no compiler for CUDA found.* pip install"):
        tvm_forest.build(forest(), "cuda", each_row).export_library(tmp_path / "model.so")
    assert not list(tmp_path.iterdir())
