"""Powers and logarithms that exported code computes by itself, beside those of the C library."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import tvm_forest
from forests import drawn_forest
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.runtime.threads.pool_code import _target_lines
from tvm_forest.targets.objects import write_object
from tvm_forest.targets.own_functions import with_own_functions

C_TYPES = {"float32": "float", "float64": "double"}
FUNCTIONS = [(name, dtype) for dtype in C_TYPES for name in ("exp", "exp2", "log1p")]
BEYOND = 1.4e-45, 1e-300, 2e-310, 88.7228394, 88.722836, 103.97209, 709.782712893384, 745.13, 1074.5
LIBRARY_CALL = re.compile(r"\b(?:exp2?|log1p|pow)f?\b")
LOOP = """
define void @{name}_{dtype}(ptr %from, ptr %to, i64 %n) {{
  br label %next
next:
  %i = phi i64 [ 0, %0 ], [ %more, %next ]
  %place = getelementptr {c}, ptr %from, i64 %i
  %x = load {c}, ptr %place
  %y = call {c} @{called}({c} %x)
  %result = getelementptr {c}, ptr %to, i64 %i
  store {c} %y, ptr %result
  %more = add i64 %i, 1
  %is.end = icmp eq i64 %more, %n
  br i1 %is.end, label %leave, label %next
leave:
  ret void
}}
declare {c} @{called}({c})
"""
VECTOR = """
define void @exp_of_vector(ptr %from, ptr %to, i64 %n) {
  %x = load <3 x float>, ptr %from
  %y = call <3 x float> @llvm.exp.v3f32(<3 x float> %x)
  store <3 x float> %y, ptr %to
  ret void
}
declare <3 x float> @llvm.exp.v3f32(<3 x float>)
"""


def name_in_text(name: str, dtype: str) -> str:
    bits = dtype[5:]
    return ("log1p" + "f" * (bits == "32")) if name == "log1p" else f"llvm.{name}.f{bits}"


def write_text() -> str:
    """Return LLVM's text of loops that call what is replaced."""
    texts = [_target_lines()]
    for name, dtype in FUNCTIONS:
        c, called = C_TYPES[dtype], name_in_text(name, dtype)
        texts.append(LOOP.format(name=name, dtype=dtype, c=c, called=called))
    return "\n".join([*texts, VECTOR])


def load(text: str, folder: Path) -> Any:
    """Return a library of LLVM's text, beside the C library."""
    source, made = folder / "text.ll", folder / "text.o"
    source.write_text(text, "ascii")
    tvm_ffi.load_module(str(source), keep_module_alive=False).write_to_file(str(made))
    library = folder / "text.so"
    subprocess.run(["cc", "-shared", made, "-o", library, "-lm"], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: Any) -> tuple[Any, Any]:
    """Our functions, and those of the C library."""
    own, text = with_own_functions(write_text()), write_text()
    return load(own, tmp_path_factory.mktemp("own")), load(text, tmp_path_factory.mktemp("theirs"))


def apply(library: Any, name: str, x: Any) -> Any:
    found = np.full_like(x, 7.5)
    at = (ctypes.c_void_p(array.ctypes.data) for array in (x, found))
    library[name](*at, ctypes.c_int64(len(x)))
    return found


def numbers(name: str, dtype: str) -> Any:
    """Return numbers of all exponents, where results leave what is normal, and beside these."""
    whole, rng = f"u{np.dtype(dtype).itemsize}", np.random.default_rng(1)
    drawn = rng.integers(0, np.iinfo(whole).max, 300_000, whole, endpoint=True).view(dtype)
    edges = [0.0, 1.0, 2.0, *BEYOND, np.inf, np.nan, np.finfo(dtype).max, np.finfo(dtype).tiny]
    near = np.array(edges, dtype)
    near = np.concatenate([near, *(np.nextafter(near, to) for to in np.array([-9e9, 9e9], dtype))])
    halves = np.arange(-2000, 2000).astype(dtype) * np.log(dtype_of(dtype)(2)) / 64
    x = np.concatenate([drawn, rng.normal(0, 30, 100_000).astype(dtype), near, -near, halves])
    return np.abs(x) if name == "log1p" else x


@pytest.mark.slow
def test_floats_whose_remainder_must_be_rounded_once_are_those_of_fused_code(
    libraries: Any,
) -> None:
    """The two of all floats for which glibc gives one value with FMA, and another one without."""
    x = np.array([float.fromhex("0x1.04845ep+5"), float.fromhex("-0x1.f8cbb2p+5")], np.float32)
    found = apply(libraries[0], "exp_float32", x)
    assert [float(y).hex() for y in found] == ["0x1.f93e380000000p+46", "0x1.f453260000000p-92"]


def dtype_of(dtype: str) -> Any:
    return np.dtype(dtype).type


def count_ulps(found: Any, expected: Any) -> Any:
    """Return how many floats lie between results, which are NaN at the same places."""
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    places = [np.where(np.isnan(x), 0, x).view(f"i{x.itemsize}") for x in (found, expected)]
    least = np.iinfo(places[0].dtype).min
    first, second = (np.where(place < 0, least - place, place) for place in places)
    return np.abs(first - second)


@pytest.mark.parametrize(("name", "dtype"), FUNCTIONS)
def test_a_function_is_within_an_ulp_of_the_c_library(
    name: str, dtype: str, libraries: Any
) -> None:
    x = numbers(name, dtype)
    own, theirs = (apply(each, f"{name}_{dtype}", x) for each in libraries)
    differ = count_ulps(own, theirs)
    assert differ.max() <= 1
    assert np.mean(differ > 0) < (0.1 if name == "log1p" else 0.01)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("name", ["exp", "exp2"])
def test_float32_powers_are_those_of_glibc_to_the_bit(name: str, libraries: Any) -> None:
    every = np.arange(0, 1 << 32, 1511, dtype="u4").view("f4")
    x = np.concatenate([every, numbers(name, "float32")])
    own, theirs = (apply(each, f"{name}_float32", x) for each in libraries)
    assert not count_ulps(own, theirs).any()


@pytest.mark.parametrize(("name", "dtype"), FUNCTIONS)
def test_a_function_is_as_near_to_the_exact_result_as_it_says(
    name: str, dtype: str, libraries: Any
) -> None:
    if np.finfo(np.longdouble).nmant < 60:
        pytest.skip("no longer floats to compare with")
    x = numbers(name, dtype)
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x.astype(np.longdouble))
        nearest = exact.astype(dtype)
        error = np.abs(apply(libraries[0], f"{name}_{dtype}", x).astype(np.longdouble) - exact)
        error /= np.spacing(np.abs(nearest))
    bound = 0.51 if dtype == "float32" else 0.95 if name == "log1p" else 0.52
    assert np.nanmax(error[np.isfinite(nearest)]) < bound


def test_vectors_are_taken_apart(libraries: Any) -> None:
    x = np.array([-0.5, np.nan, 89.0], "f4")
    whole = apply(libraries[0], "exp_of_vector", x)
    assert np.array_equal(whole, apply(libraries[0], "exp_float32", x), equal_nan=True)


def test_what_calls_nothing_stays_as_it_is() -> None:
    text = "declare double @llvm.fma.f64(double, double, double)\ncall void @experiment()\n"
    assert with_own_functions(text) == text


def test_powers_of_two_that_nobody_has_optimised_are_exp2() -> None:
    own = with_own_functions("  %y = call float @llvm.pow.f32(float 2.000000e+00, float %x)\n")
    assert own.startswith("  %y = call float @tvmf_exp2_float32(float %x)\n")
    assert "define internal float @tvmf_exp2_float32(" in own


@pytest.mark.parametrize("system", [None, "x86_64-pc-windows-gnu", "wasm32-wasi"])
@pytest.mark.parametrize("link", ["softmax", "log1p_exp", "halving"])
def test_exported_code_asks_for_no_function_of_a_c_library(
    link: str, system: str | None, tmp_path: Path
) -> None:
    target = {"kind": "llvm", "mtriple": system} if system else "llvm"
    forest = with_link(link, "float64" if link == "halving" else "float32")
    made = tvm_forest.build(forest, target, tvm_forest.new_schedule(forest))
    write_object(made.library, tmp_path / "code.o", "own_")
    held = (tmp_path / "code.o").read_bytes().decode("latin-1")
    names = [x for x in re.findall(r"[A-Za-z_][\w.]{2,}", held) if "tvmf" not in x]
    assert not [x for x in names if LIBRARY_CALL.fullmatch(x)]


def with_link(link: str, dtype: str) -> Forest:
    base = (0.1, 0.2, 0.3) if link == "softmax" else (0.1,)
    return drawn_forest(20, 4, seed=4, n_features=5, dtype=dtype, base=base, link=link)


MUSL = "x86_64-linux-musl"
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "model.h"
int main(int count, char **names) {
  long n = atol(names[1]), outputs = tvm_forest_outputs();
  KIND *rows = calloc(n * tvm_forest_features() + 1, sizeof *rows);
  KIND *margin = calloc(n * outputs, sizeof *margin), *value = calloc(n * outputs, sizeof *value);
  FILE *in = fopen(names[2], "rb"), *out = fopen(names[3], "wb");
  if (fread(rows, sizeof *rows, n * tvm_forest_features(), in) == 0) return 2;
  if (tvm_forest_predict(rows, n, margin, value, 2)) return puts(tvm_forest_error()), 3;
  fwrite(value, sizeof *value, n * outputs, out);
  return fclose(out);
}
"""


@pytest.mark.long  # Zig builds that C library first, for minutes
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="runs a program for Linux")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="runs a program for x86-64")
@pytest.mark.parametrize(("link", "dtype"), [("sigmoid", "float32"), ("exp", "float64")])
def test_values_are_the_same_beside_another_c_library(
    link: str, dtype: str, tmp_path: Path
) -> None:
    pytest.importorskip("ziglang")
    forest = with_link(link, dtype)
    drawn = np.random.default_rng(1).normal(size=(5000, 5)).astype(dtype)
    rows = np.concatenate([hard_rows(forest, 600, seed=3), drawn])
    rows.tofile(tmp_path / "rows")
    found = []
    for compiler in (["cc"], [sys.executable, "-m", "ziglang", "cc", "-target", MUSL]):
        target = {"kind": "llvm", "mtriple": MUSL}  # without FMA: `fma` of the C library
        made = tvm_forest.build(forest, target, tvm_forest.new_schedule(forest))
        made.export_library(tmp_path / "model.a", cc=compiler)
        (tmp_path / "main.c").write_text(PROGRAM)
        files = [tmp_path / name for name in ("main.c", "model.a")]
        flags = [f"-DKIND={C_TYPES[dtype]}", f"-I{tmp_path}", "-pthread", "-lm", "-ldl"]
        subprocess.run([*compiler, *files, *flags, "-o", tmp_path / "main"], check=True)
        program = [tmp_path / "main", str(len(rows)), tmp_path / "rows", tmp_path / "values"]
        subprocess.run(program, check=True)
        found.append(np.fromfile(tmp_path / "values", dtype))
    here = tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest)).predict(rows)
    assert found[0].tobytes() == found[1].tobytes()
    assert count_ulps(found[0], here).max() <= (0 if dtype == "float32" else 1)
