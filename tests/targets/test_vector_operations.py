"""The vector operations that tiles are decided with: right here, and fast on other CPUs too."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from tvm_forest.target import parse_target
from tvm_forest.targets import cpu
from tvm_forest.tir_gen.walks.vectors import Vectors

LANES = (2, 4, 8)
WIDTHS = (1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 90)


def function(vectors: Vectors, lanes: int, width: int, dtype: str) -> tvm.IRModule:
    """out[i] = bits(rows[i, feature] < threshold), out[n + i] = bits of missing values."""
    n = tirx.Var("n", "int64")
    rows = tirx.decl_buffer((n, width), dtype, "rows", data_alignment=8)
    feature = tirx.decl_buffer((lanes,), "int32", "feature", data_alignment=4)
    threshold = tirx.decl_buffer((lanes,), dtype, "threshold", data_alignment=8)
    out = tirx.decl_buffer((n * 2,), "int32", "out", data_alignment=4)
    row, zero = tirx.Var("row", "int64"), tirx.IntImm("int64", 0)
    every = tirx.Ramp(zero, tirx.IntImm("int64", 1), lanes)
    x = vectors.pick(tirx.BufferLoad(rows, [row, zero]), tirx.BufferLoad(feature, [every]))
    less = vectors.bits("olt", x, tirx.BufferLoad(threshold, [every]))
    stores = [
        tirx.BufferStore(out, less, [row]),
        tirx.BufferStore(out, vectors.bits("uno", x, x), [n + row]),
    ]
    loop = tirx.For(row, zero, n, tirx.ForKind.SERIAL, tirx.SeqStmt(stores))
    func = tirx.PrimFunc([rows, feature, threshold, out], vectors.wrap(loop))
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.cases(12)
def test_bits_of_picked_values_are_those_of_numpy(lanes: int, width: int, dtype: str) -> None:
    machine = cpu.tvm_target(parse_target("llvm"))
    library = tvm.compile(function(Vectors(cpu.abilities(machine)), lanes, width, dtype), machine)
    rng = np.random.default_rng(lanes * width)
    pool = np.array([0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 1e-45], dtype)
    rows = rng.choice(pool, (65, width))
    feature = rng.integers(0, width, lanes).astype(np.int32)
    threshold = rng.choice(pool[pool == pool], lanes)
    out = tvm.runtime.tensor(np.zeros(130, np.int32))
    library["main"](*map(tvm.runtime.tensor, (rows, feature, threshold)), out)
    values, bits = rows[:, feature], 1 << np.arange(lanes)
    expected = np.concatenate([(values < threshold) @ bits, np.isnan(values) @ bits])
    assert np.array_equal(out.numpy(), expected)


def assembly(mcpu: str, width: int, **options: Any) -> str:
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, **options})
    module = function(Vectors(cpu.abilities(target)), 8, width, "float32")
    return tvm.compile(module, target).mod.inspect_source("asm")


@pytest.mark.parametrize(
    ("mcpu", "width", "wanted", "unwanted"),
    [
        ("skylake-avx512", 90, ["vgather", "vcmpltps", "kmov"], []),
        ("znver4", 90, ["vinsertps", "vcmpltps", "kmov"], ["vgather"]),
        ("znver4", 16, ["vpermps", "vcmpltps", "kmov"], ["vgather", "vinsertps"]),
        ("znver4", 32, ["vperm[it]2ps", "kmov"], ["vgather", "vinsertps"]),
        ("x86-64-v3", 8, ["vpermps", "vcmpltps", "vmovmskps"], ["vgather", "vinsertps"]),
        ("x86-64-v3", 90, ["vinsertps", "vcmpltps", "vmovmskps"], ["vgather"]),
        ("x86-64", 8, ["cmpltps"], ["vperm", "ymm"]),
    ],
)
def test_a_cpu_gets_its_own_instructions(
    mcpu: str, width: int, wanted: list[str], unwanted: list[str]
) -> None:
    text = assembly(mcpu, width)
    assert [word for word in wanted if not re.search(word, text)] == []
    assert [word for word in unwanted if re.search(word, text)] == []


def test_other_processors_compile_the_same_functions() -> None:
    text = assembly("cortex-a72", 90, mtriple="aarch64-linux-gnu")
    assert re.search(r"fcmgt\s+v\d+\.4s", text)


def test_a_function_is_written_once() -> None:
    vectors = Vectors(frozenset())
    function(vectors, 4, 9, "float32")
    assert sorted(vectors.functions) == [
        "tvm_forest_gather_f32x4",
        "tvm_forest_olt_f32x4",
        "tvm_forest_uno_f32x4",
    ]
