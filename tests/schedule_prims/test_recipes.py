"""The recipes, by the numbers of the specification's examples: E1 to E13."""

from __future__ import annotations

import ctypes
import functools
import itertools
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm

import tvm_forest
from forests import drawn_forest
from quick_builds import lower_sums
from recipe_cases import CASES, GOLDEN, ON_CPU, ON_GPU, PROBLEMS, golden_text
from tvm_forest.errors import ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rewrites.ordering import arrange_by_round, take_trees
from tvm_forest.layouts import protocol
from tvm_forest.runtime.results import sizes_array
from tvm_forest.schedule_prims import Schedule, recipes
from tvm_forest.schedule_prims.recipes import RECIPES, gpu_template
from tvm_forest.target import Target
from tvm_forest.targets import cpu

BASES = ((0.5,), (0.5, -1.0, 2.0))
BATCHES = (0, 1, 7, 64, 130)


@functools.cache
def forest(classes: int) -> Forest:
    """Return trees of depth 0 to 5, the shallow ones first."""
    drawn = drawn_forest(13 * classes, 5, seed=3, base=BASES[classes // 2])
    moved = take_trees(drawn, np.argsort(drawn.depths, kind="stable"))
    return replace(moved, tree_id=drawn.tree_id)


def bound(model: Forest, rows: Any) -> Any:
    """Return 2 (T + 1) u (|base| + sum of |leaf|): how far two orders of a sum may be apart."""
    leaves = np.abs(model.predict_reference(rows, "per_tree").astype(np.float64))
    sums = [leaves[:, model.tree_class == c].sum(axis=1) for c in range(model.n_outputs)]
    unit = np.finfo(np.float32).eps / 2
    return 2 * (model.n_trees + 1) * unit * (np.abs(model.base_score) + np.stack(sums, axis=1))


def test_golden_texts_are_what_the_recipes_print() -> None:
    """If this change is wanted, run `make golden` and look at the difference."""
    assert GOLDEN.read_text(encoding="utf-8") == golden_text()


def test_every_recipe_is_tested() -> None:
    assert list(dict.fromkeys(case.recipe for case in CASES.values())) == list(RECIPES)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", CASES)
def test_a_recipe_survives_json_and_knows_its_order(name: str, problem: str) -> None:
    sch = CASES[name].schedule(PROBLEMS[problem])
    again = Schedule.from_json(sch.to_json())
    assert (again, str(again), hash(again)) == (sch, str(sch), hash(sch))
    assert sch.keeps_order == CASES[name].keeps_order


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", CASES)
def test_a_recipe_visits_every_tree_once(name: str, problem: str) -> None:
    start = PROBLEMS[problem]
    sch = CASES[name].schedule(start)
    visited = np.sort(np.concatenate([sch.trees_of(leaf.name) for leaf in sch.leaves()]))
    assert np.array_equal(visited, np.arange(start.trees // start.classes))


@pytest.mark.parametrize("name", ON_CPU)
def test_a_cpu_recipe_fits_a_cpu(name: str) -> None:
    start = replace(PROBLEMS["100 trees"], target="cpu")
    assert CASES[name].schedule(start).problem() is None


@pytest.mark.parametrize("name", ON_GPU)
def test_a_gpu_recipe_fits_a_gpu_only(name: str) -> None:
    start = replace(PROBLEMS["100 trees"], target="gpu")
    assert CASES[name].schedule(start).problem() is None
    with pytest.raises(ScheduleError, match="CPU"):
        CASES[name].schedule(replace(start, target="cpu"))


@pytest.mark.slow
@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.cases(3)
def test_a_recipe_computes_what_the_model_says(name: str, classes: int) -> None:
    model = forest(classes)
    sch = CASES[name].schedule(tvm_forest.new_schedule(model))
    predictor = tvm_forest.build(model, schedule=sch, exact=False)
    for n_rows, n_jobs in product(BATCHES, (1, 2)):
        rows = hard_rows(model, n_rows, seed=n_rows)
        margin = predictor.predict_margin(rows, n_jobs=n_jobs).reshape(n_rows, classes)
        expected = model.predict_reference(rows)
        if sch.keeps_order:
            assert margin.tobytes() == expected.tobytes()
        assert np.all(np.abs(margin - expected) <= bound(model, rows))
        assert np.array_equal(predictor.apply(rows), model.predict_reference(rows, "apply"))


def test_build_takes_a_recipe_or_another_function_that_edits_a_schedule() -> None:
    model = forest(1)
    start, recipe = tvm_forest.new_schedule(model), RECIPES["xgboost_rows"]
    rows = hard_rows(model, 33, seed=1)
    predictor = tvm_forest.build(model, schedule={1: start, 8: lambda sch: recipe(sch, rows=16)})
    assert predictor.schedules == {1: start, 8: recipe(start, rows=16)}
    assert np.array_equal(predictor.predict_margin(rows), model.predict_reference(rows)[:, 0])
    lowered = tvm_forest.lower(model, recipe)
    assert lowered.after.script() == tvm_forest.lower(model, recipe(start)).after.script()


def test_a_function_that_forgets_what_its_directives_gave_is_refused() -> None:
    def edit(sch: Schedule) -> Any:
        sch.tile("batch", "b0", "b1", 8)  # gives a new schedule, which nobody keeps

    expected = "build: argument 'schedule': the function gave NoneType and no Schedule; return"
    for schedule in (edit, {1: edit}):
        with pytest.raises(ScheduleError, match=expected):
            tvm_forest.build(forest(1), schedule=schedule)


def margins_in_sequence(model: Forest, sch: Schedule, batches: list[Any]) -> list[Any]:
    """Run the code for a GPU on the CPU, one thread after the other.

    Gives the margins of all batches, from every function that sums them up.
    """
    arranged = arrange_by_round(model)
    laid_out = tvm_forest.rewrite(arranged, sch)
    lowered = {gv.name_hint: f for gv, f in tvm_forest.lower(arranged, sch).after.functions.items()}
    wanted = {name: f for name, f in lowered.items() if name.startswith("predict")}
    library = cpu.compile_module(tvm.IRModule(wanted), cpu.tvm_target(Target()))
    rep, arrays = protocol.find(sch.layout).pack(laid_out)
    given = [*(arrays[spec.name] for spec in rep.value_buffers()), arranged.base_score]
    given.append(sizes_array(laid_out))
    held = list(map(np.array, given))
    table = np.array([array.ctypes.data for array in held], np.uint64)
    margins = []
    for name, rows in product(wanted, batches):
        margins.append(np.empty((len(rows), model.n_outputs), np.float32))
        library[name](rows, ctypes.c_void_p(table.ctypes.data), margins[-1])
    return margins


@pytest.mark.slow
@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("name", ON_GPU)
@pytest.mark.cases(4)
def test_a_gpu_recipe_computes_what_the_model_says(name: str, classes: int) -> None:
    model = forest(classes)
    sch = CASES[name].schedule(tvm_forest.new_schedule(model))
    batches = [hard_rows(model, n_rows, seed=n_rows) for n_rows in (1, 7, 130)]
    margins = margins_in_sequence(model, sch, batches)
    for rows, margin in zip(itertools.cycle(batches), margins, strict=False):
        expected = model.predict_reference(rows)
        assert not sch.keeps_order or margin.tobytes() == expected.tobytes()
        assert np.all(np.abs(margin - expected) <= bound(model, rows))


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_GPU)
def test_the_code_of_a_gpu_recipe_names_the_loops_of_threads(name: str) -> None:
    model = forest(3)
    sch = CASES[name].schedule(tvm_forest.new_schedule(model))
    text = lower_sums(model, sch).after["predict"].script()
    for loop in sch.loops():
        if loop.gpu is not None:
            assert f'"tvm_forest.name": "{loop.name}"' in text
    shared = any(
        loop.reduce == "shared" or (loop.cache and loop.kind == "batch") for loop in sch.loops()
    )
    assert ("alloc_shared" in text) == shared


@pytest.mark.parametrize("rows_tb", [8, 32, 64])
@pytest.mark.parametrize("tree_threads", [1, 2, 10, 20, 50])
@pytest.mark.cases(6, others="long")
def test_the_template_fits_whatever_the_search_tries(rows_tb: int, tree_threads: int) -> None:
    for rows_thread, unroll, factor, shared in product((1, 2, 4), (0, 1), (1, 2, 4), (0, 1)):
        cache_trees = bool(shared) and factor == 1
        make = functools.partial(
            *(gpu_template, PROBLEMS["100 trees"], rows_tb, rows_thread, tree_threads),
            *(bool(unroll), cache_trees, bool(unroll), factor, bool(shared)),
        )
        threads = rows_tb // rows_thread * tree_threads
        if threads > 1024:
            with pytest.raises(ScheduleError, match=f"= {threads} threads per block"):
                make()
        else:
            assert make().keeps_order == (tree_threads == 1)


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_groups_of_trees_have_trees_of_all_depths(groups: int) -> None:
    start = Schedule(30, depths=(2,) * 10 + (4,) * 10 + (6,) * 10)
    sch = recipes.treebeard_tree_at_a_time(start, cores=4, walks=2, tree_groups=groups)
    assert sch["group"].parallel and sch["group"].count == groups and not sch.keeps_order
    hops = [sch[name].hops for name in sch.copies("tree") if name != "group"]
    assert hops == [2, 4, 6]
    visited = np.concatenate([sch.trees_of(leaf.name) for leaf in sch.leaves()])
    assert sorted(visited.tolist()) == list(range(30))


@pytest.mark.parametrize("width", [4, 16])
def test_threads_share_the_rows_of_the_final_reduction(width: int) -> None:
    forest = drawn_forest(24, 4, seed=8, base=(0.5, -1.0))
    sch = recipes.tree_parallel(tvm_forest.new_schedule(forest), 3, width)
    text = lower_sums(forest, sch).after["predict_parallel"].script()
    assert text.count("T.parallel") == 2  # walks, sums
    predictor = tvm_forest.build(forest, schedule=sch, exact=False)
    for n in (1, 511, 513, 1100):
        rows = hard_rows(forest, n, seed=n)
        leaves = forest.predict_reference(rows, "per_tree").reshape(n, 12, 2)
        margin = np.repeat(forest.base_score[None], n, axis=0)
        for part in np.split(leaves, 3, axis=1):
            total = np.zeros_like(margin)
            for tree in range(4):
                total += part[:, tree]
            margin += total
        assert np.array_equal(predictor.predict_margin(rows, n_jobs=2), margin), n
