"""Libraries for Windows and macOS, made here and run there: their kind and their names."""

from __future__ import annotations

from pathlib import Path

import pytest

import tvm_forest
from forests import drawn_forest
from tvm_forest.errors import BuildError, InputError
from tvm_forest.predictor.exporting.toolchain import WASM_FUNCTIONS, find_toolchain
from tvm_forest.target import parse_target

WINDOWS, MACOS = "x86_64-pc-windows-gnu", "aarch64-apple-macos11"
BEGINNINGS = {
    (WINDOWS, ".dll"): b"MZ",
    (MACOS, ".dylib"): b"\xcf\xfa\xed\xfe",
    ("x86_64-apple-macos11", ".dylib"): b"\xcf\xfa\xed\xfe",
    (WINDOWS, ".a"): b"!<arch>\n",
    (MACOS, ".a"): b"!<arch>\n",
    (MACOS, ".o"): b"\xcf\xfa\xed\xfe",
    (WINDOWS, ".zip"): b"PK",
}


@pytest.mark.slow
@pytest.mark.parametrize(("triple", "suffix"), BEGINNINGS)
@pytest.mark.cases(2)
def test_a_library_is_made_for_another_system(triple: str, suffix: str, tmp_path: Path) -> None:
    target, file = {"kind": "llvm", "mtriple": triple}, tmp_path / f"model{suffix}"
    try:
        find_toolchain(parse_target(target), file, None)
    except BuildError as error:
        pytest.skip(str(error))
    forest = drawn_forest(6, 3)
    predictor = tvm_forest.build(forest, target, tvm_forest.new_schedule(forest))
    predictor.export_library(file, prefix="airline_")
    made = file.read_bytes()
    assert made.startswith(BEGINNINGS[triple, suffix])
    if suffix != ".zip":
        assert all(f"airline_{name}\0".encode() in made for name in WASM_FUNCTIONS)
        assert b"tvm_forest_predict" not in made and b"TVMBackend" not in made
        assert "airline_predict(" in (tmp_path / "model.h").read_text()


@pytest.mark.parametrize(
    ("triple", "name", "kinds"),
    [
        (WINDOWS, "model.so", "'.dll', '.a' or '.zip', which are what is made for Windows"),
        (WINDOWS, "model.o", "'.dll', '.a' or '.zip', which are what is made for Windows"),
        (MACOS, "model.dll", "'.dylib', '.a', '.o' or '.zip', which are what is made for macOS"),
    ],
)
def test_what_another_system_does_not_take_is_refused(
    triple: str, name: str, kinds: str, tmp_path: Path
) -> None:
    forest = drawn_forest(1, 1)
    target = {"kind": "llvm", "mtriple": triple}
    predictor = tvm_forest.build(forest, target, tvm_forest.new_schedule(forest))
    with pytest.raises(InputError, match=f"does not end with {kinds}"):
        predictor.export_library(tmp_path / name)


def test_windows_without_its_vendor_is_no_machine() -> None:
    with pytest.raises(InputError, match="'x86_64-windows-gnu' is no machine"):
        tvm_forest.build(drawn_forest(1, 1), {"kind": "llvm", "mtriple": "x86_64-windows-gnu"})
