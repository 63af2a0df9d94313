"""The passes: what they rewrite, what they leave alone, and the modules that users look at."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, tirx

import tvm_forest
from forests import Split, drawn_forest, forest_of, full_forest
from quick_builds import lower_sums
from tvm_forest.forest.rewrites.ordering import arrange_by_round
from tvm_forest.layouts import protocol
from tvm_forest.passes import pipeline
from tvm_forest.passes.cpu.fuse_parallel import FuseParallel
from tvm_forest.passes.lower_reductions import LowerReductions
from tvm_forest.passes.lower_walks import LowerWalks
from tvm_forest.passes.nest_facts import NestFacts
from tvm_forest.passes.privatize_sums import PrivatizeSums
from tvm_forest.passes.reading.read_nest import read_nest
from tvm_forest.passes.tighten_guards import TightenGuards
from tvm_forest.passes.write_nest import WriteNest
from tvm_forest.schedule_prims import Schedule, replay
from tvm_forest.tir_gen import ir, ops
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


FACTS = NestFacts(Schedule(11).parallel("tree"))
"""A loop of the name "tree" is to become parallel."""

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
    "a guard of another loop moves to it": (
        """
for b0 in range(T.int64(8)):
    for b1 in range(T.int64(64)):
        if b1 < n and b0 < m:
            out[b1] = T.float32(1)
""",
        """
for b0 in range(T.min(T.int64(8), T.max(m, T.int64(0)))):
    for b1 in range(T.min(T.int64(64), T.max(n, T.int64(0)))):
        out[b1] = T.float32(1)
""",
    ),
    "a guard with a factor": (
        """
for b1 in range(T.int64(64)):
    if b1 * T.int64(2) < n:
        out[b1] = T.float32(1)
""",
        """
for b1 in range(T.min(T.int64(64), T.max((n + T.int64(1)) // T.int64(2), T.int64(0)))):
    out[b1] = T.float32(1)
""",
    ),
    "a guard moves as far as a parallel loop": (
        """
for b0 in T.parallel(T.int64(8)):
    for b1 in range(T.int64(64)):
        if b0 < m:
            out[b0 * T.int64(64) + b1] = T.float32(1)
""",
        """
for b0 in T.parallel(T.int64(8)):
    if b0 < m:
        for b1 in range(T.int64(64)):
            out[b0 * T.int64(64) + b1] = T.float32(1)
""",
    ),
    "a guard leaves an unrolled loop, whose count stays": (
        """
for b0 in range(T.int64(8)):
    for b1 in T.unroll(T.int64(4)):
        if b0 < m and b1 < n:
            out[b0 * T.int64(4) + b1] = T.float32(1)
""",
        """
for b0 in range(T.min(T.int64(8), T.max(m, T.int64(0)))):
    for b1 in T.unroll(T.int64(4)):
        if b1 < n:
            out[b0 * T.int64(4) + b1] = T.float32(1)
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
    "a parallel loop": """
for b1 in T.parallel(T.int64(64)):
    if b1 < n:
        out[b1] = T.float32(1)
""",
    "a loop that is to become parallel": """
for b1 in T.serial(T.int64(64), annotations={"tvm_forest.name": "tree"}):
    if b1 < n:
        out[b1] = T.float32(1)
""",
    "a lower bound": """
for b1 in range(T.int64(64)):
    if n < b1:
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
    tvm.ir.assert_structural_equal(TightenGuards(FACTS)(before), expected)


@pytest.mark.parametrize("name", UNTOUCHED)
def test_any_other_guard_is_left_alone(name: str) -> None:
    tvm.ir.assert_structural_equal(
        TightenGuards(FACTS)(module(UNTOUCHED[name])), module(UNTOUCHED[name])
    )


@pytest.mark.parametrize("n", [-3, 0, 1, 63, 64, 65, 130])
@pytest.mark.parametrize("name", [*GUARDS, *UNTOUCHED])
@pytest.mark.slow
@pytest.mark.cases(10)
def test_a_tightened_loop_writes_the_same(name: str, n: int) -> None:
    before = module(GUARDS[name][0] if name in GUARDS else UNTOUCHED[name])
    results = []
    for mod in (before, TightenGuards(FACTS)(before)):
        out = np.zeros(1024, np.float32)
        tvm.compile(mod, target="llvm")["main"](out, n, 3)
        results.append(out)
    assert np.array_equal(*results)


# -- parallel loops -------------------------------------------------------------------------------

MARKED = 'annotations={"tvm_forest.name": "tree"}'
FUSED = {
    "a marked loop": (
        f"""
for b0 in T.serial(T.int64(8), {MARKED}):
    out[b0] = T.float32(1)
""",
        f"""
for b0 in T.parallel(T.int64(8), {MARKED}):
    out[b0] = T.float32(1)
""",
    ),
    "one right inside another": (
        f"""
for b0 in T.serial(T.int64(8), {MARKED}):
    for t0 in T.serial(T.int64(4), {MARKED}):
        out[b0 * T.int64(4) + t0] = T.float32(1)
""",
        f"""
for b0t0 in T.parallel(T.int64(32), {MARKED}):
    out[b0t0 // T.int64(4) * T.int64(4) + b0t0 % T.int64(4)] = T.float32(1)
""",
    ),
    "three of them": (
        f"""
for a in T.parallel(T.int64(2)):
    for b in T.serial(T.int64(3), {MARKED}):
        for c in T.serial(T.int64(5), {MARKED}):
            out[c] = T.float32(1)
""",
        f"""
for abc in T.parallel(T.int64(30), {MARKED}):
    out[abc % T.int64(15) % T.int64(5)] = T.float32(1)
""",
    ),
    "a serial loop": (
        """
for b0 in range(T.int64(8)):
    out[b0] = T.float32(1)
""",
        """
for b0 in range(T.int64(8)):
    out[b0] = T.float32(1)
""",
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_parallel_loops_are_fused(name: str) -> None:
    before, expected = map(module, FUSED[name])
    tvm.ir.assert_structural_equal(FuseParallel(FACTS)(before), expected)


# -- loops with copies ----------------------------------------------------------------------------


def note(name: str) -> str:
    """Return the annotations of a loop, as an argument in a script."""
    return f"annotations={ ({'tvm_forest.name': name}) }"


def nest_module(text: str) -> tvm.IRModule:
    """Parse a function of 20 rows and one class; `WALK(tree, row)` stands for the operator."""
    head = (
        "@T.prim_func\n"
        'def main(rows: T.Buffer((20, 3), "float32"), margin: T.Buffer((20, 1), "float32")):\n'
        '    T.func_attr({"global_symbol": "main"})\n'
    )
    text = re.sub(r"WALK\((.*), (\w+)\)", r'T.tvm_forest_walk("float32", rows[\2, 0], \1)', text)
    lines = [f"    {line}" for line in text.strip("\n").splitlines()]
    return tvm.IRModule({"main": tvm.script.from_source(head + "\n".join(lines))})


WHOLE = Schedule(5).reorder("tree", "batch")
TILES = Schedule(5).tile("tree", "t0", "t1", 3)
WRITTEN = {
    "two halves": (
        WHOLE.split("tree", "d1", "d2", 2),
        WHOLE["tree"],
        f"""
for tree in T.serial(T.int64(5), {note("tree")}):
    for batch in T.serial(T.int64(20), {note("batch")}):
        margin[batch, 0] = margin[batch, 0] + WALK(tree, batch)
""",
        f"""
for d1 in T.serial(T.int64(2), {note("d1")}):
    for r in T.serial(T.int64(20), {note("batch@d1")}):
        margin[r, 0] = margin[r, 0] + WALK(d1, r)
for d2 in T.serial(T.int64(3), {note("d2")}):
    for r in T.serial(T.int64(20), {note("batch@d2")}):
        margin[r, 0] = margin[r, 0] + WALK(d2 + T.int64(2), r)
""",
    ),
    "a copy for each iteration": (
        TILES.specialize("t0"),
        TILES["t0"],
        f"""
for r in T.serial(T.int64(20), {note("batch")}):
    for a in T.serial(T.int64(2), {note("t0")}):
        for b in T.serial(T.int64(3), {note("t1")}):
            if a * T.int64(3) + b < T.int64(5):
                margin[r, 0] = margin[r, 0] + WALK(a * T.int64(3) + b, r)
""",
        f"""
for r in T.serial(T.int64(20), {note("batch")}):
    for a in T.serial(T.int64(2), {note("t0")}):
        if a == T.int64(0):
            for b in T.serial(T.int64(3), {note("t1@t0=0")}):
                margin[r, 0] = margin[r, 0] + WALK(b, r)
        if a == T.int64(1):
            for b in T.serial(T.int64(3), {note("t1@t0=1")}):
                if a * T.int64(3) + b < T.int64(5):
                    margin[r, 0] = margin[r, 0] + WALK(a * T.int64(3) + b, r)
""",
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_loops_with_copies_are_written(name: str) -> None:
    sch, former, before, expected = WRITTEN[name]
    origins = {loop.name: loop for loop in former.traverse()}
    simple = s_tir.transform.StmtSimplify()
    after = WriteNest(NestFacts(sch, origins=origins))(nest_module(before))
    tvm.ir.assert_structural_equal(simple(after), simple(nest_module(expected)))


# -- partial sums ---------------------------------------------------------------------------------

BLOCK = Schedule(6).tile("tree", "t0", "t1", 2).tile("batch", "b0", "r", 20)
ROWS_IN = BLOCK.reorder("b0", "t0", "t1", "r").parallel("b0").parallel("t0")
LOOPS = f"""
for b0 in T.serial(T.int64(1), {note("b0")}):
    for t0 in T.serial(T.int64(3), {note("t0")}):
        for t1 in T.serial(T.int64(2), {note("t1")}):
            for r in T.serial(T.int64(20), {note("r")}):
"""


def add_to(target: str) -> str:
    """Return the loops over a block of rows and over trees, adding to some place."""
    added = 'WALK(t0 * T.int64(2) + t1, r), T.float32(0), "add"'
    return f"{LOOPS}                {target} = T.tvm_forest_reduce({target}, {added})"


PRIVATE = {
    "plain": (
        ROWS_IN,
        add_to("margin[r, 0]"),
        f"""
part = T.alloc_buffer((T.int64(3), T.int64(1), 20), "float32")
for i, c, r in T.grid(T.int64(3), T.int64(1), T.int64(20)):
    part[i, c, r] = T.float32(0)
{add_to("part[t0, T.int64(0), r]").strip()}
for i, c, r in T.grid(T.int64(3), T.int64(1), T.int64(20)):
    margin[r, c] = margin[r, c] + part[i, c, r]
""",
    ),
    "vectors": (
        ROWS_IN.vector_reduce("t0", 8),
        add_to("margin[r, 0]"),
        f"""
part = T.alloc_buffer((T.int64(3), T.int64(1), 20), "float32")
for i, c, r in T.grid(T.int64(3), T.int64(1), T.int64(20)):
    part[i, c, r] = T.float32(0)
{add_to("part[t0, T.int64(0), r]").strip()}
for i, c in T.grid(T.int64(3), T.int64(1)):
    for g in range(T.int64(2)):
        for v in T.vectorized(T.int64(8)):
            margin[g * 8 + v, c] = margin[g * 8 + v, c] + part[i, c, g * 8 + v]
    for g in range(T.int64(4)):
        margin[g + 16, c] = margin[g + 16, c] + part[i, c, g + 16]
""",
    ),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_parallel_trees_get_sums_of_their_own(name: str) -> None:
    sch, before, expected = PRIVATE[name]
    simple = s_tir.transform.StmtSimplify()
    after = PrivatizeSums(NestFacts(sch))(nest_module(before))
    tvm.ir.assert_structural_equal(simple(after), simple(nest_module(expected)))


def test_threads_share_the_rows_of_sums_in_blocks_where_these_may_be_many() -> None:
    sch = Schedule(11).reorder("tree", "batch").tile("tree", "t0", "t1", 4)
    blocks = []
    for given in (sch.parallel("t0"), sch.parallel("t0").parallel("t1")):
        mod, step = lowered_up_to(given, "PrivatizeSums")
        text = step(mod).script()
        blocks.append((text.count("for block in T.parallel("), text.count(" // T.int64(512)")))
    assert blocks == [(1, 1), (1, 1)]


def test_atomic_trees_need_no_sums_of_their_own() -> None:
    sch = Schedule(11).parallel("tree").atomic_reduce("tree")
    mod, step = lowered_up_to(sch, "PrivatizeSums")
    after = step(mod)
    assert "part" not in after.script()
    assert '"atomic add")' in after.script()
    assert '"atomic add")' not in mod.script()


def test_atomic_additions_become_calls_of_a_function_that_is_imported() -> None:
    sch = Schedule(11).parallel("tree").atomic_reduce("tree")
    mod, step = lowered_up_to(sch, "LowerReductions")
    text = step(mod).script()
    assert text.count('"tvmf_atomic_add_float32", T.address_of(') == 1
    assert text.count("pragma_import_llvm") == 1
    assert "tvm_forest_reduce" not in text


@pytest.mark.parametrize("output", ["per_tree", "apply"])
def test_leaves_that_are_only_stored_need_no_sums(output: str) -> None:
    mod, step = lowered_up_to(Schedule(11).parallel("tree"), "PrivatizeSums", output)
    tvm.ir.assert_structural_equal(step(mod), mod)


# -- walks ----------------------------------------------------------------------------------------

FOREST = drawn_forest(11, 4, base=[0.1])
SCHEDULES = {
    "new": Schedule(11),
    "tiles": Schedule(11).tile("batch", "b0", "b1", 16).tile("tree", "t0", "t1", 4),
    "interleave": Schedule(11).reorder("tree", "batch").interleave("batch", 4),
    "default": tvm_forest.hop_schedule(FOREST),
    "copies": Schedule(11).tile("batch", "b0", "b1", 16).split("tree", "x", "y", 4),
    "special": Schedule(11).tile("tree", "t0", "t1", 4).specialize("t0").unroll("t1@t0=1"),
    "private sums": (
        Schedule(11)
        .tile("tree", "t0", "t1", 4)
        .parallel("t0")
        .parallel("t1")
        .vector_reduce("t0", 4)
    ),
    "atomic additions": Schedule(11).parallel("tree").atomic_reduce("tree"),
    "straight lines": Schedule(11).unroll_walk("tree").interleave("tree", 3),
    "peeled": Schedule(11).represent_as("sparse").peel_walk("tree", 2),
    "lanes": Schedule(11).tile("batch", "b0", "b1", 8).reorder("b0", "tree", "b1").simdize("b1"),
}


def scheduled(
    sch: Schedule, output: str = "predict", comparison: Any = "<"
) -> tuple[tvm.IRModule, Any]:
    """Return the scheduled function and its pipeline."""
    forest = replace(arrange_by_round(FOREST), comparison=comparison)
    rep, _ = protocol.find(sch.layout).pack(forest)
    tir = s_tir.Schedule(emit_canonical(forest, rep, output))
    replay(tir, sch)
    return tir.mod, pipeline(read_nest(tir.mod["main"]), None)


def lowered_up_to(sch: Schedule, name: str, output: str = "predict") -> tuple[tvm.IRModule, Any]:
    """Return what a pass of the pipeline is given, and the pass."""
    mod, steps = scheduled(sch, output)
    for step in steps.passes:
        if step.info.name == f"tvm_forest.{name}":
            return mod, step
        mod = step(mod)
    raise AssertionError(f"no pass {name}")


def count(mod: tvm.IRModule, kind: type, is_wanted: Any = lambda node: True) -> int:
    """Count the nodes of one kind in all functions."""
    found: list[Any] = []
    for function in mod.functions.values():
        look = (kind, lambda node: found.append(node) if is_wanted(node) else None)
        tvm_ffi.structural_walk(function.body, look)
    return len(found)


def walks(mod: tvm.IRModule) -> int:
    return count(mod, tirx.BufferStore, lambda store: ops.find_walk(store.value) is not None)


@pytest.mark.slow
@pytest.mark.parametrize("output", ["predict", "per_tree", "apply"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_no_walk_operator_survives_the_pipeline(name: str, output: str) -> None:
    mod, steps = scheduled(SCHEDULES[name], output)
    lowered = steps(mod)
    assert walks(mod) == 1
    assert walks(lowered) == 0
    assert "tvm_forest_walk" not in lowered.script()
    assert "sblock" not in lowered.script()


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_pass_changes_its_input(name: str) -> None:
    mod, steps = scheduled(SCHEDULES[name])
    text = mod.script()
    steps(mod)
    assert mod.script() == text
    for step in steps.passes:
        text, kept = mod.script(), {var.name_hint: f for var, f in mod.functions.items()}
        after = step(mod)
        assert mod.script() == text
        assert all(mod[name].same_as(function) for name, function in kept.items())
        mod = after


def test_a_function_without_walks_is_left_alone() -> None:
    mod = module(UNTOUCHED["no guard"])
    facts = read_nest(scheduled(SCHEDULES["new"])[0]["main"])
    for step in (LowerWalks(facts, None), LowerReductions(), FuseParallel(FACTS)):
        tvm.ir.assert_structural_equal(step(mod), mod)


@pytest.mark.parametrize(("comparison", "kind"), [("<", tirx.LT), ("<=", tirx.LE)])
def test_a_walk_compares_as_the_model_does(comparison: str, kind: type) -> None:
    mod, steps = scheduled(SCHEDULES["new"], "predict", comparison)
    lowered = steps(mod)
    other = tirx.LE if kind is tirx.LT else tirx.LT
    assert (count(lowered, kind), count(lowered, other)) == (1, 0)


@pytest.mark.slow
def test_missing_values_cost_nothing_if_all_of_them_go_right() -> None:
    right = forest_of([Split(0, 0.5, 1.0, 2.0)])
    left = forest_of([Split(0, 0.5, 1.0, 2.0, True)])
    sch = tvm_forest.hop_schedule(right).represent_as("array")
    assert "isnan" not in tvm_forest.lower(right, sch).after.script()
    assert "isnan" in tvm_forest.lower(left, sch).after.script()


def test_rows_that_a_guard_may_cut_off_are_not_read_before_it() -> None:
    """Parts of the rows are equally long, so the last rows of the last one may not be there."""
    sch = Schedule(11).tile("batch", "b0", "b1", parts=4).reorder("b1", "tree", "b0")
    func = lower_sums(FOREST, sch.interleave("b0", 2)).after["predict"]
    rows, *_ = func.params

    def count_loads(node: Any) -> int:
        return len(ir.find_all(node, tvm.ir.TensorLoad, lambda x: x.source.same_as(rows)))

    guarded = ir.find_all(func.body, tirx.IfThenElse)
    assert count_loads(func.body) == sum(map(count_loads, guarded)) > 0


@pytest.mark.parametrize(("name", "groups"), [("interleave", 3), ("straight lines", 1)])
def test_walks_that_are_left_over_go_together_too(name: str, groups: int) -> None:
    """Rows by 4, 2 and 1; trees by 3, and those that are left once, filled up with the last one."""
    found: list[tirx.For] = []
    func = lower_sums(FOREST, SCHEDULES[name]).after["predict"]
    tvm_ffi.structural_walk(func.body, (tirx.For, found.append))
    assert sum(str(loop.loop_var) == "group" for loop in found) == groups


@pytest.mark.parametrize(
    ("layout", "held", "resting"), [("array", 8, 0), ("sparse", 0, 0), ("banked", 8, 8)]
)
def test_walks_are_held_only_beside_longer_ones(layout: str, held: int, resting: int) -> None:
    """Trees go by 4, the last ones too: their walks may differ in length, those of rows do not."""
    trees = Schedule(11).represent_as(layout).interleave("tree", 4)
    rows = Schedule(11).represent_as(layout).reorder("tree", "batch").interleave("batch", 4)
    for forest, sch in product((FOREST, full_forest(11, 3)), (trees, rows)):
        text = lower_sums(forest, sch).after["predict"].script()
        words = (r"node(_\d+)? = T.Select\(", r"place(_\d+)?: .* = T.Select\(", r"hop in .*T.max")
        found = tuple(len(re.findall(word, text)) for word in words)
        uneven = forest is FOREST and sch is trees
        assert found == ((held, resting, 2) if uneven else (0, 0, 0))


def test_peeled_hops_are_written_out_before_a_single_loop() -> None:
    func = lower_sums(FOREST, Schedule(11).peel_walk("tree", 3)).after["predict"]
    assert len(ir.find_all(func.body, tirx.IfThenElse)) == 3
    assert len(ir.find_all(func.body, tirx.While)) == 1


def test_trees_are_walked_together_unless_their_loop_is_written_out() -> None:
    sch = Schedule(11).represent_as("levels").tile("batch", "b0", "b1", 64)
    trees = sch.reorder("b0", "tree", "b1").simdize("b1", "permute")
    rows = sch.tile("b1", "b2", "b3", 16).reorder("b0", "tree", "b2", "b3")
    together, written_out, of_rows = (
        lower_sums(FOREST, x).after["predict"].script()
        for x in (trees, trees.unroll("tree"), rows.simdize("b3", "permute"))
    )
    assert "for four in range" in together
    assert "for tree in T.unroll(" in written_out and "four" not in written_out
    assert '"tvm_forest.name": "b2"' in of_rows and "four" not in of_rows


# -- what users look at ---------------------------------------------------------------------------


def names(mod: tvm.IRModule) -> set[str]:
    return {var.name_hint for var in mod.get_global_vars()}


@pytest.mark.slow
def test_lower_gives_all_functions_before_and_after() -> None:
    lowered = tvm_forest.lower(FOREST, SCHEDULES["tiles"].parallel("b0"))
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


def test_both_modules_can_be_shown() -> None:
    lowered = tvm_forest.lower(FOREST, SCHEDULES["interleave"])
    modules = (lowered.before, lowered.after)
    before, after = (mod.script() for mod in modules)
    for mod in modules:
        mod.show(black_format=False)  # its colours depend on where it is called
    heads = [re.compile(rf"def {name}\W") for name in FUNCTIONS]  # Python 3.12 has `def f[n](`
    assert all(head.search(text) for head in heads for text in (before, after))
    assert "tvm_forest_walk(" in before
    assert 'T.sblock("walk")' in before
    assert "tvm_forest_walk" not in after
    assert '"tvm_forest.name": "tree"' in after
