"""Libraries for Windows and macOS, made here and run there: their kind and their names."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import drawn_forest
from tvm_forest.errors import BuildError, InputError
from tvm_forest.forest.probe_rows import hard_rows
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
    if made.startswith(MACH_O):
        check_mach_o(made, triple, is_library=suffix == ".dylib")
    if suffix == ".dll":  # it asks for what every Windows has, and holds no C library
        asked = set(re.findall(rb"([\w-]+)\.dll\0", made)) - {b"model", b"tvm_ffi"}
        assert b"KERNEL32" in asked and len(asked) > 1
        assert all(name.startswith((b"KERNEL32", b"api-ms-win-crt-")) for name in asked)
        assert b"_initterm" not in made  # which the start of a C library calls


PROGRAM = """
#include <stdio.h>
#include <string.h>
#include "model.h"
static float rows[600 * 64], margin[600], value[600];
int main(void) {
  FILE *in = fopen("rows", "rb"), *out = fopen("results", "wb");
  long n = fread(rows, sizeof(float) * tvm_forest_features(), 600, in);
  if (!tvm_forest_predict(rows, -1, margin, value, 2)) return 4;
  if (strcmp(tvm_forest_error(), "n is negative")) return 5;
  if (tvm_forest_predict(rows, n, margin, value, 2)) return puts(tvm_forest_error()), 3;
  fwrite(margin, sizeof(float), n, out);
  fwrite(value, sizeof(float), n, out);
  return fclose(out);
}
"""


@pytest.mark.long
def test_a_program_with_a_library_for_windows_gives_all_bits_under_wine(tmp_path: Path) -> None:
    target = {"kind": "llvm", "mtriple": WINDOWS}
    if shutil.which("wine") is None:
        pytest.skip("no wine")
    try:
        tools = find_toolchain(parse_target(target), tmp_path / "model.dll", None)
    except BuildError as error:
        pytest.skip(str(error))
    forest = drawn_forest(20, 5, link="sigmoid", n_features=9)
    rows = hard_rows(forest, 600, seed=1)
    rows.tofile(tmp_path / "rows")
    tvm_forest.build(forest, target, tvm_forest.new_schedule(forest)).export_library(
        tmp_path / "model.dll"
    )
    (tmp_path / "main.c").write_text(PROGRAM)
    command = [*tools.command, "main.c", "model.dll", "-o", "main.exe"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    about = {"WINEPREFIX": str(tmp_path / "prefix"), "WINEDEBUG": "-all"}
    done = subprocess.run(
        ["wine", "main.exe"],
        cwd=tmp_path,
        env={**os.environ, **about},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    margin, value = np.fromfile(tmp_path / "results", np.float32).reshape(2, 600)
    here = tvm_forest.build(forest, schedule=lambda start: start)
    assert margin.tobytes() == here.predict_margin(rows).tobytes()
    assert value.tobytes() == here.predict_value(rows).tobytes()


# -- what macOS reads of a file -------------------------------------------------------------------

MACH_O = b"\xcf\xfa\xed\xfe"
PROCESSORS = {"aarch64": 0x100000C, "x86_64": 0x1000007}
LIBRARY, ID, LOADED, BUILD_VERSION, SIGNATURE, MACOS_PLATFORM = 6, 0xD, 0xC, 0x32, 0x1D, 1


def read_commands(made: bytes) -> dict[int, list[bytes]]:
    """Return the load commands of a file by their kinds, each with its first eight bytes."""
    count, at, commands = struct.unpack_from("<I", made, 16)[0], 32, dict[int, list[bytes]]()
    for _ in range(count):
        kind, size = struct.unpack_from("<2I", made, at)
        commands.setdefault(kind, []).append(made[at : at + size])
        at += size
    return commands


def read_name(command: bytes) -> str:
    """Return the name of a library, which stands behind the numbers of a command."""
    (begin,) = struct.unpack_from("<I", command, 8)
    return command[begin:].partition(b"\0")[0].decode()


def read_version(made: bytes) -> tuple[int, int]:
    """Return for which platform a file is, and from which version on."""
    (command,) = read_commands(made)[BUILD_VERSION]
    platform, version = struct.unpack_from("<2I", command, 8)
    assert platform == MACOS_PLATFORM
    return version >> 16, version >> 8 & 255


def check_mach_o(made: bytes, triple: str, is_library: bool) -> None:
    processor, kind = struct.unpack_from("<I4xI", made, 4)
    assert processor == PROCESSORS[triple.partition("-")[0]]
    assert read_version(made) == (11, 0)
    if is_library:
        commands = read_commands(made)
        assert kind == LIBRARY and (SIGNATURE in commands or triple.startswith("x86_64"))
        assert [read_name(x) for x in commands[ID]] == ["@rpath/model.dylib"]
        assert [read_name(x) for x in commands[LOADED]] == ["/usr/lib/libSystem.B.dylib"]


@pytest.mark.parametrize(
    ("triple", "version"),
    [("aarch64-apple-macos", "11.0"), (MACOS, "11.0"), ("x86_64-apple-macos13.3", "13.3")],
)
def test_the_version_of_macos_reaches_zig(triple: str, version: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name if name == "zig" else None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    target = parse_target({"kind": "llvm", "mtriple": triple})
    command = find_toolchain(target, Path("model.dylib"), None).command
    assert command[-1] == f"{triple.partition('-')[0]}-macos.{version}"


@pytest.mark.long
def test_another_version_of_macos_stands_in_the_library(tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    forest = drawn_forest(2, 2)
    target = {"kind": "llvm", "mtriple": "aarch64-apple-macos13.3"}
    made = tvm_forest.build(forest, target, tvm_forest.new_schedule(forest))
    made.export_library(tmp_path / "model.dylib")
    assert read_version((tmp_path / "model.dylib").read_bytes()) == (13, 3)


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
