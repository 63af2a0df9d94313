"""Code for CPUs of other machines: what it holds, that it runs there, and what is refused."""

from __future__ import annotations

import functools
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import tvm
import tvm_ffi

import lightgbm_models
import tvm_forest
from forests import drawn_forest
from other_machines import MACHINES, check_margins_there, exchange, make_program, why_not
from schedules import in_blocks, with_vectors
from tvm_forest.errors import BuildError, DeviceError, InputError, UnsupportedModel
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.layouts import BY_HOPS
from tvm_forest.predictor.exporting.toolchain import find_toolchain
from tvm_forest.schedule_prims import Schedule
from tvm_forest.target import Target, parse_target
from tvm_forest.targets import cpu
from tvm_forest.targets import other_machines as by_name

SIZES = (0, 1, 7, 64, 600)
FORESTS = {
    "margins": drawn_forest(30, 5, seed=4, n_features=5),
    "classes": drawn_forest(30, 5, seed=4, n_features=5, base=(0.1, 0.2, 0.3), link="softmax"),
    "averages of float64": drawn_forest(
        20, 6, seed=5, n_features=7, dtype="float64", row_dtype="float32", aggregate="average"
    ),
    "vectors": with_vectors(drawn_forest(12, 4, seed=6), 3),
    "deep trees": drawn_forest(12, 12, seed=7, n_features=9),
}
FUSED = re.compile(r"\t(v?f\w*m(?:add|sub|la|ls|acc|sac)\w*(?:\.\w+)*)\b")
"""Instructions that round a product and a sum once."""

AARCH64 = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}


def in_order(sch: Schedule) -> Schedule:
    return sch.tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")


SCHEDULES = {
    **{name: lambda f, name=name: begin(f).represent_as(name) for name in BY_HOPS},
    "bit planes": lambda f: in_blocks(f, "bitsliced", 128),
    "levels": lambda f: in_blocks(f, "levels", 64),
    "pieces": lambda f: begin(f).represent_as("pieces").simdize("tree", "pieces"),
    "tiles": lambda f: begin(f).tile_nodes(8).interleave("tree", 4),
    "lanes": lambda f: in_order(begin(f).tile_nodes(4)).simdize("b1"),
    "threads": lambda f: in_order(begin(f)).cache("b0").parallel("b0"),
}


CASES = [("aarch64", name) for name in FORESTS]
CASES += [(name, forest) for name in MACHINES if name != "aarch64" for forest in FORESTS]


def begin(forest: Forest) -> Schedule:
    return tvm_forest.new_schedule(forest)


def built(machine: str, forest: str = "margins") -> Any:
    return tvm_forest.build(FORESTS[forest], MACHINES[machine].target)


@functools.cache
def plain() -> Any:
    """A predictor that is compiled fast."""
    return tvm_forest.build(FORESTS["margins"], AARCH64, begin(FORESTS["margins"]))


# -- what runs ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "forest"), CASES)
@pytest.mark.cases(1)
def test_default_schedules_give_the_bits_of_the_model_there(
    machine: str, forest: str, tmp_path: Path
) -> None:
    predictor = built(machine, forest)
    assert not FUSED.findall(predictor.source("asm"))
    # SSE2 is part of every x86-64 processor; other words of x86 are not.
    words = re.findall(r"@llvm\.x86\.(\w+)", predictor.source("ll"))
    assert set(words) <= ({"sse2"} if machine == "x86-64" else set())
    if why_not(machine):
        pytest.skip(why_not(machine))
    check_margins_there(predictor, MACHINES[machine], SIZES, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["aarch64", "riscv64 with vectors", "wasm32"])
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.cases(1)
def test_every_layout_and_walk_gives_the_bits_of_the_model_there(
    machine: str, name: str, tmp_path: Path
) -> None:
    if why_not(machine):
        pytest.skip(why_not(machine))
    forest = drawn_forest(6, 4, seed=4, n_features=5)
    predictor = tvm_forest.build(forest, MACHINES[machine].target, SCHEDULES[name](forest))
    check_margins_there(predictor, MACHINES[machine], (1, 7, 130), tmp_path)


@pytest.mark.long
def test_an_instruction_that_a_cpu_lacks_is_named(tmp_path: Path) -> None:
    if why_not("aarch64"):
        pytest.skip(why_not("aarch64"))
    newer = MACHINES["aarch64"]._replace(target=MACHINES["neoverse"].target)
    hard_rows(FORESTS["margins"], 600, seed=600).tofile(tmp_path / "rows600")
    run = [*make_program(built("neoverse"), newer, tmp_path), *exchange(tmp_path, 600)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, "sve" in done.stdout) == (3, True), done


@pytest.mark.long
@pytest.mark.parametrize("machine", ["aarch64", "neoverse", "riscv64 with vectors", "wasm32"])
def test_linear_leaves_round_products_and_sums_one_by_one(machine: str, tmp_path: Path) -> None:
    if why_not(machine):
        pytest.skip(why_not(machine))
    name = next(name for name in lightgbm_models.MODELS if "linear" in name)
    forest = tvm_forest.load(lightgbm_models.MODELS[name]())
    predictor = tvm_forest.build(forest, MACHINES[machine].target)
    assert not FUSED.findall(predictor.source())
    check_margins_there(predictor, MACHINES[machine], SIZES, tmp_path)


# -- what the code is made of ---------------------------------------------------------------------


def test_fused_products_would_be_found() -> None:
    text = "\tfmadd\ts0, s1\n\tfmla.4s\tv0\n\tvfmacc.vv\tv1\n\tfmadd.s\tfa0\n\tvfmadd231ss\t%xmm0"
    assert len(FUSED.findall(text)) == 5
    assert not FUSED.findall("\tvfmv.v.f\tv8, fa5\n\tfmul\ts0\n\tfadd\ts1\n\tfmov\ts0\n\tfmax s0")


def test_vectors_are_those_that_a_cpu_has() -> None:
    forest = drawn_forest(6, 4, seed=4, n_features=5)
    for mcpu, has_sve in (("cortex-a72", False), ("neoverse-v1", True)):
        target, sch = {**AARCH64, "mcpu": mcpu}, SCHEDULES["bit planes"](forest)
        text = tvm_forest.build(forest, target, sch).source()
        assert "fcmgt\tv" in text.replace(".4s", "")
        assert ("ptrue" in text) == has_sve


@pytest.mark.parametrize("machine", ["aarch64", "wasm32"])
def test_defaults_ask_nothing_of_the_cpu_at_hand(machine: str, monkeypatch: Any) -> None:
    forest, spec = FORESTS["margins"], MACHINES[machine].target
    target = parse_target(spec)
    known = frozenset({"neon"} if machine == "aarch64" else ())
    assert (target.abilities, target.vendor, target.cores) == (known, "", 1)
    before = tvm_forest.default_schedules(forest, spec)
    monkeypatch.setattr("tvm_forest.target.cpu_abilities", lambda: frozenset({"avx512vbmi"}))
    monkeypatch.setattr("tvm_forest.target.cpu_vendor", lambda: "GenuineIntel")
    monkeypatch.setattr("tvm_forest.target.available_cores", lambda: 64)
    assert tvm_forest.default_schedules(forest, spec) == before
    planes = any(sch.layout == "bitsliced" for sch in before.values())
    assert planes == (machine == "aarch64")


# -- what a predictor of another machine does -----------------------------------------------------


def test_a_predictor_of_another_machine_says_that_it_does_not_predict() -> None:
    predictor = plain()
    assert repr(predictor).endswith("30 trees, 5 features, target aarch64-linux-gnu>")
    rows = hard_rows(FORESTS["margins"], 3, seed=0)
    for predict in (
        predictor.predict,
        predictor.predict_margin,
        predictor.apply,
        predictor.predict_per_tree,
    ):
        with pytest.raises(DeviceError, match=r"is for another machine, .*aarch64.*export_library"):
            predict(rows)
    for store in (lambda: predictor.save("x.tvmf"), lambda: pickle.dumps(predictor)):
        with pytest.raises(UnsupportedModel, match=r"save: target .*aarch64.*use .*export_library"):
            store()
    with pytest.raises(BuildError, match=r"source: argument 'kind': 'cuda' is not there"):
        predictor.source("cuda")


def test_a_search_on_another_machine_is_refused() -> None:
    with pytest.raises(InputError, match=r"tune: argument 'target': .* is another machine"):
        tvm_forest.tune(FORESTS["margins"], AARCH64, budget_s=0)


def test_sources_need_no_compiler(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    predictor = plain()
    predictor.export_library(tmp_path / "model.zip")
    code = ZipFile(tmp_path / "model.zip").read("source/code.o")
    assert (code[:5], code[18]) == (b"\x7fELF\x02", 183)  # 64 bits, AArch64
    assert b"tvm_forest_predict_compiled" in code
    message = r"for aarch64-linux-gnu was found; pip install ziglang, or name one by cc="
    with pytest.raises(BuildError, match=message):
        predictor.export_library(tmp_path / "model.so")
    with pytest.raises(BuildError, match=r"there is no 'no-such-cc'"):
        predictor.export_library(tmp_path / "model.so", cc="no-such-cc -m64")
    with pytest.raises(InputError, match=r"argument 'cc': 7 is no command"):
        predictor.export_library(tmp_path / "model.so", cc=7)
    with pytest.raises(InputError, match=r"does not end with '.so', '.a', '.o' or '.zip'"):
        predictor.export_library(tmp_path / "model.wasm")


def test_a_compiler_that_is_named_is_taken(tmp_path: Path) -> None:
    log = tmp_path / "log"
    compiler = tmp_path / "my-cc"
    compiler.write_text(f'#!/bin/sh\necho "$@" > {log}\necho broken >&2\nexit 1\n')
    compiler.chmod(0o755)
    with pytest.raises(BuildError, match=r"my-cc -DX fails: broken"):
        plain().export_library(tmp_path / "model.so", cc=[str(compiler), "-DX"])
    assert log.read_text().startswith("-DX -O2 -std=gnu11 -fvisibility=hidden")


@pytest.mark.parametrize(
    ("triple", "on_path", "command"),
    [
        ("aarch64-linux-gnu", ("aarch64-linux-gnu-gcc",), "aarch64-linux-gnu-gcc"),
        ("riscv64-unknown-linux-gnu", ("riscv64-linux-gnu-gcc",), "riscv64-linux-gnu-gcc"),
        ("aarch64-linux-musl", ("zig",), "zig cc -target aarch64-linux-musl"),
        ("x86_64-conda-linux-gnu", ("zig",), "zig cc -target x86_64-linux-gnu"),
        ("wasm32-unknown-unknown", ("zig", "cc"), "zig cc -target wasm32-wasi"),
        ("aarch64-none-elf", ("zig", "gcc"), None),
        ("riscv64-linux-gnu", ("cc", "gcc"), None),
    ],
)
def test_the_compiler_is_one_for_the_machine(
    triple: str, on_path: tuple[str, ...], command: str | None, monkeypatch: Any
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name if name in on_path else None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    target, file = parse_target({"kind": "llvm", "mtriple": triple}), Path("x.so")
    if command is not None:
        assert " ".join(find_toolchain(target, file, None).command) == command
        return
    with pytest.raises(BuildError, match=f"for {triple} was found; pip install ziglang"):
        find_toolchain(target, file, None)


@pytest.mark.parametrize(
    ("on_path", "command"),
    [(("zig",), "zig cc"), (("zig", "gcc"), "gcc"), (("cc", "zig"), "cc"), ((), None)],
)
@pytest.mark.skipif(sys.platform == "win32", reason="none is looked for there")
def test_zig_compiles_for_this_machine_where_there_is_nothing_else(
    on_path: tuple[str, ...], command: str | None, monkeypatch: Any
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name if name in on_path else None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    if command is not None:
        assert " ".join(find_toolchain(parse_target("llvm"), Path("x.so"), None).command) == command
        return
    with pytest.raises(BuildError, match="pip install ziglang, or use Predictor.save"):
        find_toolchain(parse_target("llvm"), Path("x.so"), None)


@pytest.mark.slow
@pytest.mark.parametrize("named", [None, f"{sys.executable} -m ziglang cc"])
@pytest.mark.cases(1, others="long")
def test_a_library_that_zig_made_here_predicts(
    named: str | None, monkeypatch: Any, tmp_path: Path
) -> None:
    pytest.importorskip("ziglang")
    monkeypatch.setenv("PATH", "/nowhere")
    forest = FORESTS["margins"]
    predictor = tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))
    for name in ("model.so", "model.a", "model.o"):
        predictor.export_library(tmp_path / name, cc=named)
    rows = hard_rows(forest, 20, seed=1)
    found = np.zeros((20, forest.n_outputs), np.float32)
    entry = tvm_ffi.load_module(str(tmp_path / "model.so"))["main"]
    entry(tvm_ffi.from_dlpack(rows), tvm_ffi.from_dlpack(found))
    np.testing.assert_array_equal(found, forest.predict_reference(rows))


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("triple", [each.example for each in by_name.MACHINES.values()])
@pytest.mark.cases(0)
def test_every_cpu_and_ability_is_compiled_for_or_refused(triple: str) -> None:
    forest = drawn_forest(3, 2, seed=1)
    machine = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    machines = by_name.MACHINES[triple.partition("-")[0]]
    options = [{"mcpu": str(x)} for x in tvm.target.codegen.llvm_get_cpu_archlist(machine)]
    options += [{"mattr": [sign + x]} for x in machines.mattr for sign in "+-"]
    refused = []
    for each in options:
        target = {"kind": "llvm", "mtriple": triple, **each}
        try:
            predictor = tvm_forest.build(forest, target, begin(forest))
        except InputError as error:
            refused.append(str(error))
        else:
            assert predictor.source()
    assert all("has no 64-bit mode" in text for text in refused)
    assert bool(refused) == triple.startswith(("riscv64", "x86_64"))


def test_what_is_turned_off_leaves_nothing_behind() -> None:
    parts = {"m": {"zmmul"}, "a": {"zaamo", "zalrsc"}, "c": {"zca"}, "v": {"zve32x", "zvl128b"}}
    for ability, others in parts.items():
        mattr = (f"+{ability}", f"-{ability}")
        target = Target(options=(("mtriple", "riscv64-linux-gnu"), ("mattr", mattr)))
        assert not ({ability} | others) & cpu.abilities(cpu.tvm_target(target))
        target = Target(options=(("mtriple", "riscv64-linux-gnu"), ("mattr", mattr[:1])))
        assert {ability} | others <= cpu.abilities(cpu.tvm_target(target))


def test_an_abi_follows_what_a_cpu_has() -> None:
    def abi(**options: Any) -> str:
        target = Target(options=tuple({"mtriple": "riscv64-linux-gnu", **options}.items()))
        return str(cpu.tvm_target(target).attrs["mabi"])

    assert abi() == abi(mcpu="sifive-u74") == abi(mattr=("+v",)) == "lp64d"
    assert abi(mcpu="sifive-s51") == "lp64"
    assert abi(mabi="lp64") == abi(mattr=("-f", "-d")) == "lp64"


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        ("llvm", {"kind": "llvm"}),
        ({"kind": "llvm", "mcpu": "x86-64-v3", "mattr": ["+avx2"]}, None),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, None),
        ({"kind": "llvm", "mtriple": "wasm32-wasi"}, None),
        ("cuda", {"kind": "cuda"}),
        ({"kind": "cuda", "arch": "sm_90"}, None),
        ("nvidia/nvidia-h100", {"kind": "cuda", "arch": "sm_90a"}),
        ("rocm", {"kind": "rocm"}),
        ({"kind": "rocm", "mcpu": "gfx942"}, None),
        ("opencl", {"kind": "opencl"}),
    ],
    ids=str,
)
def test_a_target_of_tvm_is_taken_for_what_it_was_made_from(given: Any, understood: Any) -> None:
    assert parse_target(tvm.target.Target(given)) == parse_target(understood or given)


def test_a_target_of_tvm_of_a_kind_that_is_not_there_is_refused_by_its_name() -> None:
    for given in ("vulkan", "apple/m1-gpu"):
        with pytest.raises(InputError, match="' is not supported yet; use 'llvm'"):
            parse_target(tvm.target.Target(given))
    with pytest.raises(InputError, match="unknown kind 'c'"):
        parse_target(tvm.target.Target("c"))


def test_a_model_is_built_for_a_target_of_tvm() -> None:
    forest = FORESTS["margins"]
    built = tvm_forest.build(forest, tvm.target.Target("llvm"), tvm_forest.new_schedule(forest))
    rows = hard_rows(forest, 9)
    assert built.predict_margin(rows).tobytes() == forest.predict_reference(rows).tobytes()
