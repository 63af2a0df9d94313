"""A shared library with a model: the bits of the predictor, without Python or without TVM."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import drawn_forest
from gpu_schedules import each_row
from other_machines import MAIN
from tvm_forest.errors import BuildError, InputError, UnsupportedModel
from tvm_forest.forest.probe_rows import hard_rows

SIZES = (0, 1, 7, 64, 65, 130, 600)
MODELS: dict[str, dict[str, Any]] = {
    "margins": {},
    "values": {"base": (0.1, 0.2, 0.3), "link": "softmax"},
    "averages of float64": {"dtype": "float64", "row_dtype": "float32", "aggregate": "average"},
}

WITHOUT_TVM = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tvm", "tvm_forest", "treelite", "xgboost"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import numpy as np, tvm_ffi
folder = sys.argv[1]
main = tvm_ffi.load_module(folder + "/model.so")["main"]
tensor = tvm_ffi.from_dlpack
for n in map(int, sys.argv[2:]):
    found = [np.zeros_like(np.load(f"{folder}/{name}{n}.npy")) for name in ("margin", "value")]
    main(tensor(np.load(f"{folder}/rows{n}.npy")), *map(tensor, found))
    for name, array in zip(("margin", "value"), found):
        assert array.tobytes() == np.load(f"{folder}/{name}{n}.npy").tobytes(), (name, n)
for bad in ([np.zeros((2, 3), "f4")], [np.zeros((2, 5), "f4"), np.zeros((3, 1), "f4")]):
    try:
        main(*map(tensor, bad))
    except (TypeError, ValueError) as error:
        print(error)
"""


@functools.cache
def predictor(name: str) -> tvm_forest.Predictor:
    forest = drawn_forest(30, 5, seed=4, n_features=5, **MODELS[name])
    schedule = tvm_forest.new_schedule(forest).represent_as("ranked")
    return tvm_forest.build(forest, schedule=schedule.tile("batch", "b0", "b1", 16).parallel("b0"))


def margins_and_values(made: tvm_forest.Predictor, rows: Any) -> list[Any]:
    shape = (len(rows), made.forest.n_outputs)
    predict = made.predict_proba if made.forest.n_outputs > 1 else made.predict
    return [made.predict_margin(rows).reshape(shape), predict(rows).reshape(shape)]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.cases(1)
def test_apache_tvm_ffi_alone_runs_it(name: str, tmp_path: Path) -> None:
    made = predictor(name)
    made.export_library(tmp_path / "model.so")
    for n in SIZES:
        rows = hard_rows(made.forest, n, seed=n)
        np.save(tmp_path / f"rows{n}.npy", rows)
        for kind, array in zip(("margin", "value"), margins_and_values(made, rows), strict=True):
            np.save(tmp_path / f"{kind}{n}.npy", array)
    command = [sys.executable, "-c", WITHOUT_TVM, str(tmp_path), *map(str, SIZES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "expected main(rows, margin[, value])" in done.stdout
    assert "expected float" in done.stdout


@pytest.mark.slow
def test_a_c_program_runs_it(tmp_path: Path) -> None:
    made = predictor("values")
    made.export_library(tmp_path / "model.so")
    (tmp_path / "main.c").write_text(MAIN)
    flags = [
        "-DROW=float",
        "-DRESULT=float",
        "-I",
        str(tmp_path),
        f"-Wl,-rpath,{tmp_path}",
        "-o",
        str(tmp_path / "main"),
    ]
    subprocess.run(["cc", tmp_path / "main.c", tmp_path / "model.so", *flags], check=True)
    asked = []
    for n in SIZES:
        hard_rows(made.forest, n, seed=n).tofile(tmp_path / f"rows{n}")
        asked += [str(n), str(tmp_path / f"rows{n}"), str(tmp_path / f"margin{n}")]
    done = subprocess.run([tmp_path / "main", *asked], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "rows or margin is a null pointer\n")
    for n in SIZES:
        expected = made.predict_margin(hard_rows(made.forest, n, seed=n))
        assert (tmp_path / f"margin{n}").read_bytes() == expected.tobytes(), n


@pytest.mark.slow
def test_a_loaded_predictor_is_exported_too(tmp_path: Path) -> None:
    predictor("margins").save(tmp_path / "model.tvmf")
    loaded = tvm_forest.load_predictor(tmp_path / "model.tvmf")
    loaded.export_library(tmp_path / "model.so")
    assert (tmp_path / "model.so").stat().st_size > loaded.model_bytes
    assert "forest of 30 trees: (n, 5) -> (n, 1)" in (tmp_path / "model.h").read_text()


@pytest.mark.slow
def test_code_that_llvm_has_not_optimised_is_exported_too(tmp_path: Path) -> None:
    forest = drawn_forest(3, 2)
    plain = tvm_forest.build(
        forest, {"kind": "llvm", "opt-level": 0}, tvm_forest.new_schedule(forest)
    )
    plain.export_library(tmp_path / "model.so")
    assert (tmp_path / "model.so").exists()


def test_other_targets_are_refused(tmp_path: Path) -> None:
    made = tvm_forest.build(drawn_forest(2, 2), "simt", each_row)
    with pytest.raises(UnsupportedModel, match="target 'simt': only code for CPUs and for GPUs of"):
        made.export_library(tmp_path / "model.so")


def test_without_a_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "ziglang", None)
    with pytest.raises(BuildError, match="no C compiler that can link a library was found"):
        predictor("margins").export_library(tmp_path / "model.so")


@pytest.mark.parametrize(
    "name", ["missing/model.so", "file/model.so", "folder.so", "other.so", "n" * 300 + ".so"]
)
def test_a_place_that_cannot_be_written_is_refused_before_compiling(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # nothing can be compiled
    (tmp_path / "file").touch()
    for folder in ("folder.so", "other.h"):
        (tmp_path / folder).mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="export_library: argument 'path': cannot write") as error:
        predictor("margins").export_library(tmp_path / name)
    assert len(str(error.value)) < 500
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "name", ["model", "model.dll", "x.so.b", "x.lib", "x.dylib", "x.h", "x.so.1", ".so", "x.wasm"]
)
def test_other_suffixes_than_those_of_the_system_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # nothing can be compiled
    message = r"'path': .* does not end with '.so', '.a', '.o' or '.zip', .* Linux; .* 'model.so'"
    with pytest.raises(InputError, match=message):
        predictor("margins").export_library(tmp_path / name)
    assert not list(tmp_path.iterdir())
