"""The passes: what they rewrite, what they leave alone, and the modules that users look at."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, tirx

import tvm_forest
from forests import Split, drawn_forest, forest_of, full_forest
from tvm_forest.forest_passes.ordering import arrange_by_round
from tvm_forest.passes import pipeline
from tvm_forest.passes.lower_walks import LowerWalks, find_walk
from tvm_forest.passes.tighten_guards import TightenGuards
from tvm_forest.schedule_prims import Schedule, replay
from tvm_forest.tir_gen import representation
from tvm_forest.tir_gen.canonical import emit_canonical

FUNCTIONS = {"predict", "per_tree", "apply"}


def module(body: str) -> tvm.IRModule:
    """Parse the body of a function of n and m that fills `out`."""
    head = (
        "@T.prim_func\n"
        'def main(out: T.Buffer((1024,), "float32"), n: T.int64, m: T.int64):\n'
        '    T.func_attr({"global_symbol": "main"})\n'
    )
    lines = [f"    {line}" for line in body.strip("\n").splitlines()]
    return tvm.IRModule({"main": tvm.script.from_source(head + "\n".join(lines))})


GUARDS = {
    "a partial tile": (
        """
for b0 in range((n + T.int64(63)) // T.int64(64)):
    for b1 in range(T.int64(64)):
        if b0 * T.int64(64) + b1 < n:
            out[b0 * T.int64(64) + b1] = T.float32(1)
""",
        """
for b0 in range((n + T.int64(63)) // T.int64(64)):
    for b1 in range(T.min(T.int64(64), T.max(n - b0 * T.int64(64), T.int64(0)))):
        out[b0 * T.int64(64) + b1] = T.float32(1)
""",
    ),
    "a guard with a constant bound": (
        """
for t0 in range(T.int64(4)):
    for t1 in range(T.int64(30)):
        if t0 * T.int64(30) + t1 < T.int64(100):
            out[t0 * T.int64(30) + t1] = T.float32(1)
""",
        """
for t0 in range(T.int64(4)):
    for t1 in range(T.min(T.int64(30), T.max(T.int64(100) - t0 * T.int64(30), T.int64(0)))):
        out[t0 * T.int64(30) + t1] = T.float32(1)
""",
    ),
    "two guards on one loop": (
        """
for b1 in range(T.int64(64)):
    if b1 < n and b1 < m:
        out[b1] = T.float32(1)
""",
        """
for b1 in range(T.min(T.min(T.int64(64), T.max(n, T.int64(0))), T.max(m, T.int64(0)))):
    out[b1] = T.float32(1)
""",
    ),
    "a guard of another loop stays": (
        """
for b0 in range(T.int64(8)):
    for b1 in range(T.int64(64)):
        if b1 < n and b0 < m:
            out[b1] = T.float32(1)
""",
        """
for b0 in range(T.int64(8)):
    for b1 in range(T.min(T.int64(64), T.max(n, T.int64(0)))):
        if b0 < m:
            out[b1] = T.float32(1)
""",
    ),
}
UNTOUCHED = {
    "no guard": """
for b1 in range(T.int64(64)):
    out[b1] = T.float32(1)
""",
    "a guard with two sides": """
for b1 in range(T.int64(64)):
    if b1 < n:
        out[b1] = T.float32(1)
    else:
        out[b1] = T.float32(2)
""",
    "a guard with a factor": """
for b1 in range(T.int64(64)):
    if b1 * T.int64(2) < n:
        out[b1] = T.float32(1)
""",
    "a lower bound": """
for b1 in range(T.int64(64)):
    if n < b1:
        out[b1] = T.float32(1)
""",
    "a guard of another loop": """
for b0 in range(T.int64(64)):
    for b1 in range(T.int64(64)):
        if b0 < n:
            out[b1] = T.float32(1)
""",
    "a statement beside the guard": """
for b1 in range(T.int64(64)):
    out[b1] = T.float32(0)
    if b1 < n:
        out[b1] = T.float32(1)
""",
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_becomes_the_bound_of_its_loop(name: str) -> None:
    before, expected = map(module, GUARDS[name])
    tvm.ir.assert_structural_equal(TightenGuards()(before), expected)


@pytest.mark.parametrize("name", UNTOUCHED)
def test_any_other_guard_is_left_alone(name: str) -> None:
    tvm.ir.assert_structural_equal(
        TightenGuards()(module(UNTOUCHED[name])), module(UNTOUCHED[name])
    )


@pytest.mark.parametrize("n", [-3, 0, 1, 63, 64, 65, 130])
@pytest.mark.parametrize("name", [*GUARDS, *UNTOUCHED])
@pytest.mark.slow
def test_a_tightened_loop_writes_the_same(name: str, n: int) -> None:
    before = module(GUARDS[name][0] if name in GUARDS else UNTOUCHED[name])
    results = []
    for mod in (before, TightenGuards()(before)):
        out = np.zeros(1024, np.float32)
        tvm.compile(mod, target="llvm")["main"](out, n, 3)
        results.append(out)
    assert np.array_equal(*results)


# -- walks ----------------------------------------------------------------------------------------

FOREST = drawn_forest(11, 4, base=[0.1])
SCHEDULES = {
    "new": Schedule(11),
    "tiles": Schedule(11).tile("batch", "b0", "b1", 16).tile("tree", "t0", "t1", 4),
    "interleave": Schedule(11).reorder("tree", "batch").interleave("batch", 4),
    "default": tvm_forest.default_schedule(FOREST),
}


def scheduled(sch: Schedule, output: str) -> tuple[Any, tvm.IRModule]:
    """Return the layout and the scheduled function, before the pipeline."""
    forest = arrange_by_round(FOREST)
    rep, _ = representation.find("array").pack(forest)
    tir = s_tir.Schedule(emit_canonical(forest, rep, output))
    replay(tir, sch)
    return rep, tir.mod


def count(mod: tvm.IRModule, kind: type, is_wanted: Any = lambda node: True) -> int:
    """Count the nodes of one kind in all functions."""
    found: list[Any] = []
    for function in mod.functions.values():
        look = (kind, lambda node: found.append(node) if is_wanted(node) else None)
        tvm_ffi.structural_walk(function.body, look)
    return len(found)


def walks(mod: tvm.IRModule) -> int:
    return count(mod, tirx.BufferStore, lambda store: find_walk(store.value) is not None)


@pytest.mark.slow
@pytest.mark.parametrize("output", ["margin", "per_tree", "apply"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_no_walk_operator_survives_the_pipeline(name: str, output: str) -> None:
    rep, mod = scheduled(SCHEDULES[name], output)
    lowered = pipeline(rep, "<")(mod)
    assert walks(mod) == 1
    assert walks(lowered) == 0
    assert "tvm_forest_walk" not in lowered.script()
    assert "sblock" not in lowered.script()


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_pass_changes_its_input(name: str) -> None:
    rep, mod = scheduled(SCHEDULES[name], "margin")
    for step in [*pipeline(rep, "<").passes, pipeline(rep, "<")]:
        text, kept = mod.script(), {var.name_hint: f for var, f in mod.functions.items()}
        after = step(mod)
        assert mod.script() == text
        assert all(mod[name].same_as(function) for name, function in kept.items())
        mod = after if "pipeline" not in str(step.info.name) else mod


def test_a_function_without_walks_is_left_alone() -> None:
    rep, _ = scheduled(SCHEDULES["new"], "margin")
    mod = module(UNTOUCHED["no guard"])
    tvm.ir.assert_structural_equal(LowerWalks(rep, "<")(mod), mod)


@pytest.mark.parametrize(("comparison", "kind"), [("<", tirx.LT), ("<=", tirx.LE)])
def test_a_walk_compares_as_the_model_does(comparison: str, kind: type) -> None:
    rep, mod = scheduled(SCHEDULES["new"], "margin")
    lowered = pipeline(rep, comparison)(mod)
    other = tirx.LE if kind is tirx.LT else tirx.LT
    assert (count(lowered, kind), count(lowered, other)) == (1, 0)


@pytest.mark.slow
def test_missing_values_cost_nothing_if_all_of_them_go_right() -> None:
    right = forest_of([Split(0, 0.5, 1.0, 2.0)])
    left = forest_of([Split(0, 0.5, 1.0, 2.0, True)])
    assert "isnan" not in tvm_forest.lower(right).after.script()
    assert "isnan" in tvm_forest.lower(left).after.script()


# -- what users look at ---------------------------------------------------------------------------


def names(mod: tvm.IRModule) -> set[str]:
    return {var.name_hint for var in mod.get_global_vars()}


@pytest.mark.slow
def test_lower_gives_all_functions_before_and_after() -> None:
    lowered = tvm_forest.lower(FOREST, SCHEDULES["default"].without("parallel").parallel("b0"))
    assert names(lowered.before) == FUNCTIONS
    assert names(lowered.after) == FUNCTIONS | {f"{name}_parallel" for name in FUNCTIONS}
    assert walks(lowered.before) == len(FUNCTIONS)
    assert walks(lowered.after) == 0


def test_a_serial_schedule_gives_no_parallel_functions() -> None:
    assert names(tvm_forest.lower(FOREST, SCHEDULES["tiles"]).after) == FUNCTIONS


@pytest.mark.slow
def test_only_the_parallel_functions_use_threads() -> None:
    sch = SCHEDULES["tiles"].parallel("b0")
    for var, function in tvm_forest.lower(FOREST, sch).after.functions.items():
        mod = tvm.IRModule({var: function})
        loops = count(mod, tirx.For, lambda loop: loop.kind == tirx.ForKind.PARALLEL)
        assert (loops > 0) == var.name_hint.endswith("_parallel")


@pytest.mark.slow
def test_a_schedule_in_another_order_can_be_looked_at() -> None:
    sch = SCHEDULES["tiles"].reorder("t1", "t0")
    assert names(tvm_forest.lower(FOREST, sch).after) == FUNCTIONS


def test_both_modules_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lowered = tvm_forest.lower(FOREST, SCHEDULES["interleave"])
    shown = []
    for mod in lowered:
        mod.show(black_format=False)
        shown.append(re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out))
    before, after = shown
    assert all(f"def {name}(" in text for name in FUNCTIONS for text in shown)
    assert "tvm_forest_walk(" in before
    assert 'T.sblock("walk")' in before
    assert "tvm_forest_walk" not in after
    assert '"tvm_forest.name": "tree"' in after


@pytest.mark.slow
@pytest.mark.parametrize("output", ["before", "after"])
def test_the_code_does_not_grow_with_the_number_of_trees(output: str) -> None:
    few, many = (
        getattr(tvm_forest.lower(full_forest(n, 3, seed=n)), output).script() for n in (10, 100)
    )
    assert len(few.splitlines()) == len(many.splitlines())


@pytest.mark.slow
def test_the_machine_code_does_not_grow_with_the_number_of_trees() -> None:
    few, many = (
        len(tvm_forest.build(full_forest(n, 3, seed=n)).library.mod.inspect_source("asm"))
        for n in (10, 1000)
    )
    assert abs(many - few) < 0.02 * few
