"""Functions that carry their whole schedule: from other processes, and from users of `s_tir`.

`tools/scheduled_modules.py` and `tools/user_nests.py` try hundreds as programs.
"""

from __future__ import annotations

import functools
import json
import pickle
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, tirx

import tvm_forest
from forests import drawn_forest
from quick_builds import lower_sums
from scheduled_modules import list_cases, list_differences, schedule_functions
from schedules import in_blocks
from tvm_forest import Schedule
from tvm_forest.errors import ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.passes.reading.adopt import adopt_loops, read_schedule
from tvm_forest.schedule_prims import DIRECTIVES
from user_nests import check

FOREST = drawn_forest(40, 3, seed=1, base=[0.3])
START = tvm_forest.new_schedule(FOREST).represent_as("packed")
SIGMOID = drawn_forest(9, 4, link="sigmoid")
BLOCKS = START.tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
ROWS = hard_rows(FOREST, 130)
Step = Callable[[s_tir.Schedule], Any]


@functools.cache
def canonical(forest: Forest, start: Schedule) -> tirx.PrimFunc:
    """Return the function of the sums before it is scheduled."""
    return lower_sums(forest, start).before["predict"]


def by_tvm(*steps: Step, start: Schedule = START, tile: int = 64) -> s_tir.Schedule:
    """Return TVM's schedule of the sums, with blocks of rows around the trees."""
    tir = s_tir.Schedule(canonical(FOREST, start))
    batch, tree = tir.get_loops("walk")
    b0, b1 = tir.split(batch, [None, tile])
    tir.reorder(b0, tree, b1)
    for step in steps:
        step(tir)
    return tir


def mark(place: int, word: str, value: Any) -> Step:
    """Return the step that annotates one of the loops around the walk."""
    return lambda tir: tir.annotate(tir.get_loops("walk")[place], f"tvm_forest.{word}", value)


def parallel(tir: s_tir.Schedule) -> None:
    tir.parallel(tir.get_loops("walk")[0])


def assembly(module: Any) -> str:
    """Return the machine code of all functions, without the lines of its source."""
    text = tvm_forest.compile(module).mod.inspect_source("asm")
    return "\n".join(x for x in text.splitlines() if ".loc" not in x and ".file" not in x)


# -- in another process ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_cpu", "on_simt"), [(2, 1), pytest.param(8, 4, marks=pytest.mark.long)]
)
def test_a_process_that_knows_no_schedule_lowers_functions_equally(
    on_cpu: int, on_simt: int
) -> None:
    cases = [list(list_cases("cpu", range(on_cpu))), list(list_cases("simt", range(on_simt)))]
    assert len(cases[0]) > on_cpu and len(cases[1]) > on_simt
    assert list_differences([*cases[0], *cases[1]]) == []


def test_a_scheduled_function_shows_its_whole_schedule() -> None:
    sch = BLOCKS.cache("tree", "prefetch").interleave("b1", 16).parallel("b0")
    text = schedule_functions(FOREST, sch)["predict"].script()
    assert (
        'in T.parallel((n + T.int64(63)) // T.int64(64), annotations={"tvm_forest.name": "b0"'
        in text
    )
    assert '"tvm_forest.cache": "prefetch"' in text
    assert '"tvm_forest.interleave": 16' in text


def test_a_scheduled_function_shows_the_directives_that_make_copies_of_loops() -> None:
    sch = START.split("tree", "d1", "d2", 9).unroll_walk("d1")
    text = schedule_functions(FOREST, sch)["predict"].script()
    assert r"{\"do\": \"split\", \"index\": \"tree\", \"first\": \"d1\", " in text
    assert r"{\"do\": \"unroll_walk\", \"index\": \"d1\"}" in text


def test_rows_in_a_single_part_are_read_off_the_function() -> None:
    """Its one step is the number of rows, which is what one thread gets of all of them."""
    forest = drawn_forest(20, 4)
    sch = tvm_forest.new_schedule(forest).tile("batch", "b0", "b1", parts=1)
    built = tvm_forest.build(forest, schedule=sch.reorder("b0", "tree", "b1").parallel("b0"))
    rows = hard_rows(forest, 300)
    found = built.predict_margin(rows, n_jobs=2)
    assert np.array_equal(found, forest.predict_reference(rows)[:, 0])


def test_a_module_of_tvmscript_is_compiled_as_directives_are() -> None:
    module = schedule_functions(FOREST, BLOCKS.interleave("b1", 2))["predict"]
    parsed = tvm.script.from_source(module.script(show_meta=True))
    assert assembly(parsed) == assembly(module)


# -- by TVM alone ---------------------------------------------------------------------------------

PAIRS: dict[str, tuple[tuple[Step, ...], Schedule]] = {
    "interleaved, parallel": (
        (parallel, mark(2, "interleave", 4)),
        BLOCKS.interleave("b1", 4).parallel("b0"),
    ),
    "cached, peeled": (
        (mark(1, "cache", "stream"), mark(2, "interleave", 2), mark(2, "peel_walk", [2, 1])),
        BLOCKS.cache("tree", "stream").interleave("b1", 2).peel_walk("b1", 2, check=True),
    ),
    "straight lines": ((mark(0, "unroll_walk", "depth"),), BLOCKS.unroll_walk("b0")),
}


@pytest.mark.parametrize("name", PAIRS)
def test_tvms_primitives_and_annotations_give_the_machine_code_of_directives(name: str) -> None:
    steps, sch = PAIRS[name]
    module = tvm.IRModule({"main": schedule_functions(FOREST, sch)["predict"]["main"]})
    assert assembly(by_tvm(*steps)) == assembly(module)
    given, same = (tvm_forest.build(FOREST, schedule=x) for x in (by_tvm(*steps), sch))
    assert given.source() == same.source()


SPLIT: dict[str, tuple[tuple[Step, ...], Schedule]] = {
    "twice, from outside": (
        (lambda tir: tir.split(tir.get_loops("walk")[2], [None, 5]),),
        BLOCKS.tile("b1", "b1_0", "b1_1", 5),
    ),
    "twice, from inside": (
        (lambda tir: tir.split(tir.get_loops("walk")[0], [None, 4]),),
        START.tile("batch", "b0", "b1", 256)
        .tile("b1", "b2", "b3", 64)
        .reorder("b0", "b2", "tree", "b3"),
    ),
    "trees, the inner loop around the outer one": (
        (
            lambda tir: tir.split(tir.get_loops("walk")[1], [7, None]),
            lambda tir: tir.reorder(*(tir.get_loops("walk")[x] for x in (2, 1))),
        ),
        BLOCKS.tile("tree", "t0", "t1", 6).reorder("t1", "t0"),
    ),
    "into one": (
        (lambda tir: tir.split(tir.get_loops("walk")[1], [1, None]),),
        BLOCKS.tile("tree", "t0", "t1", 1),
    ),
}


@pytest.mark.parametrize("name", SPLIT)
def test_splits_by_tvm_are_the_tiles_that_they_are(name: str) -> None:
    steps, sch = SPLIT[name]
    given, same = (tvm_forest.build(FOREST, schedule=x, exact=False) for x in (by_tvm(*steps), sch))
    made, wanted = (
        [(x.kind, x.count, x.step if x.count != 1 else 1) for x in each.loops()]
        for each in (given.schedule, sch)
    )
    if name == "into one":  # which of the two has the one iteration does not matter
        made, wanted = sorted(made, key=str), sorted(wanted, key=str)
    assert made == wanted
    assert np.array_equal(given.predict_margin(ROWS), same.predict_margin(ROWS))


def test_what_tvm_has_made_is_changed_by_directives() -> None:
    made = tvm_forest.build(FOREST, schedule=by_tvm(mark(2, "interleave", 8))).schedule
    assert Schedule.from_json(made.to_json()) == made
    built = tvm_forest.build(FOREST, schedule=made.parallel("batch_0"))
    assert np.array_equal(built.predict_margin(ROWS), FOREST.predict_reference(ROWS)[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "simt"])
@pytest.mark.parametrize("first", range(0, 12, 4))
@pytest.mark.cases(2, others="long")
def test_nests_by_tvm_alone_are_right_or_refused(device: str, first: int) -> None:
    found = [check(device, seed) for seed in range(first, first + 4)]
    assert not [why for became, why in found if became == "failed"]


def test_a_predictor_of_a_nest_by_tvm_is_kept_like_any_other(tmp_path: Path) -> None:
    tir = by_tvm(parallel, mark(2, "interleave", 4))
    predictor = tvm_forest.build(FOREST, schedule={1: START, 32: tir})
    predictor.save(tmp_path / "model.forest")
    loaded = tvm_forest.load_predictor(tmp_path / "model.forest")
    expected = FOREST.predict_reference(ROWS)
    for each in (predictor, loaded, pickle.loads(pickle.dumps(predictor))):
        assert np.array_equal(each.predict_margin(ROWS).reshape(expected.shape), expected)
        assert each.schedules == predictor.schedules
    assert np.array_equal(loaded.apply(ROWS), FOREST.predict_reference(ROWS, "apply"))


def test_a_nest_by_tvm_for_threads_of_a_gpu_is_right() -> None:
    tir = by_tvm(tile=32)
    b0, _, b1 = tir.get_loops("walk")
    tir.bind(b0, "blockIdx.x")
    tir.bind(b1, "threadIdx.x")
    predictor = tvm_forest.build(FOREST, "simt", tir)
    expected = FOREST.predict_reference(ROWS)
    assert np.array_equal(predictor.predict_margin(ROWS).reshape(expected.shape), expected)


def test_leaves_are_found_in_a_nest_that_tvm_has_made() -> None:
    tir = by_tvm(mark(2, "simdize", "bits"), start=in_blocks(FOREST, "bitsliced", 64))
    predictor = tvm_forest.build(FOREST, schedule=tir)
    assert np.array_equal(predictor.apply(ROWS), FOREST.predict_reference(ROWS, "apply"))


# -- what is refused ------------------------------------------------------------------------------


def fuse(tir: s_tir.Schedule) -> None:
    tir.fuse(*tir.get_loops("walk")[:2])


def bind(tir: s_tir.Schedule) -> None:
    tir.bind(tir.get_loops("walk")[0], "vthread.x")


def factor(tir: s_tir.Schedule) -> None:
    tir.rfactor(tir.get_loops("walk")[1], 0)


REFUSED: dict[str, tuple[Step, str]] = {
    "no such annotation": (
        mark(2, "interlaeve", 8),
        "'batch_1' has the unknown annotation",
    ),
    "an annotation of others": (
        lambda tir: tir.annotate(tir.get_loops("walk")[0], "pragma_unroll", 1),
        "loop 'batch_0' has the annotation 'pragma_unroll'; leave it out",
    ),
    "no such value": (mark(2, "simdize", "words"), "argument 'how': 'words' is unknown"),
    "too many values": (
        mark(2, "interleave", [2, 3]),
        r"'batch_1' has the annotation \[2, 3\]",
    ),
    "a loop that is no leaf": (mark(0, "interleave", 8), "'batch_0' is not innermost"),
    "rows that conflict with nobody": (mark(0, "atomic_reduce", 1), "'batch_0' runs over rows"),
    "the order of additions": (mark(1, "parallel", 1), "in another order than the model"),
    "lanes": (lambda tir: tir.vectorize(tir.get_loops("walk")[0]), "'batch_0' is not innermost"),
    "a CPU without blocks": (mark(0, "gpu_dimension", "grid.x"), "'batch_0' is for a GPU"),
    "rows and trees as one": (fuse, "loop 'batch_0_tree_fused' counts its batch in no even steps"),
    "another thread": (bind, "loop 'batch_0' is bound to vthread.x; bind blockIdx or threadIdx"),
    "further blocks": (factor, "the function has the blocks walk_rf, walk, but each of"),
    "an annotation of the block": (
        lambda tir: tir.annotate(tir.get_sblock("walk"), "tvm_forest.interleave", 8),
        "block 'walk' has the annotation 'tvm_forest.interleave'; annotate loops",
    ),
    "no directives": (
        mark(0, "steps", '{"loops": []}'),
        "annotation 'tvm_forest.steps' that holds no",
    ),
    "a directive about the model": (
        mark(0, "steps", '[{"do": "represent_as", "name": "sparse"}]'),
        "annotation 'tvm_forest.steps' that holds no",
    ),
    "a directive that is refused": (
        mark(0, "steps", '[{"do": "specialize", "index": "batch_1"}]'),
        "'batch_1' contains no loop",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused_with_the_loop(name: str) -> None:
    step, message = REFUSED[name]
    with pytest.raises(ScheduleError, match=message):
        tvm_forest.build(FOREST, schedule=by_tvm(step))


def test_a_schedule_of_another_model_is_refused() -> None:
    other = drawn_forest(40, 3, seed=1, base=[0.3], link="sigmoid")
    with pytest.raises(ScheduleError, match=r"the s_tir\.Schedule is of another model"):
        tvm_forest.build(other, schedule=by_tvm())


def test_a_function_that_leaves_out_trees_is_refused() -> None:
    text = by_tvm().mod.script(show_meta=True)
    fewer = text.replace("T.int64(40), T.int64(64)):", "T.int64(39), T.int64(64)):")
    assert fewer != text
    with pytest.raises(ScheduleError, match="leave out rows, classes or trees"):
        tvm_forest.compile(tvm.script.from_source(fewer))


EDITED: dict[str, tuple[str, str, str]] = {
    "another sum": (
        "margin[r, T.int64(0)] = base",
        "margin[r // T.int64(2), T.int64(0)] = base",
        "were changed",
    ),
    "another tree": ("rows[r, 0], t, ", "rows[r, 0], t // T.int64(2), ", "were changed"),
    "another way of joining": ('T.float32(0.0), "add")', 'T.float32(0.0), "min")', "were changed"),
    "trees that are no reduction": ("T.axis.reduce(", "T.axis.spatial(", "were changed"),
    "fewer rows": ("T.axis.spatial(n, ", "T.axis.spatial(n - T.int64(1), ", "were changed"),
    "another comparison": ('"comparison": "<"', '"comparison": "<="', "were changed"),
    "shallower trees": ('"depths": "3', '"depths": "2', "were changed"),
    "a number for a text": ('"likely": None', '"likely": 5', "were changed"),
    "no such attribute": ('"classes": 1', '"clases": 1', "were changed"),
    "no such layout": ("packed:PackedLayout", "packed:PacketLayout", "were changed"),
    "no last block": (
        "(n + T.int64(63)) // T.int64(64)",
        "n // T.int64(64)",
        r"'batch_0' has n // T\.int64\(64\) iterations",
    ),
    "trees below the first one": (
        "T.axis.reduce(T.int64(40), tree)",
        "T.axis.reduce(T.int64(40), T.int64(0) - tree)",
        "steps by",
    ),
    "less than no trees": (
        "T.int64(40), T.int64(64)):",
        "T.int64(-40), T.int64(64)):",
        "iterations",
    ),
    "rows behind the last": (
        "T.where(batch_0 * T.int64(64) + batch_1 < n)",
        "",
        "leave out rows, classes or trees",
    ),
    "a condition on rows and trees": (
        "T.int64(64) + batch_1 < n",
        "T.int64(64) + tree < n",
        "which is no end of a tile",
    ),
    "trees up to the number of rows": (
        "T.int64(64) + batch_1 < n",
        "T.int64(64) + batch_1 < n and tree < n",
        "which is no end of a tile|leave out rows, classes or trees",
    ),
}


@pytest.mark.parametrize("name", EDITED)
def test_a_function_that_was_edited_is_refused(name: str) -> None:
    old, new, message = EDITED[name]
    text = by_tvm().mod.script(show_meta=True)
    edited = text.replace(old, new)
    assert edited != text
    with pytest.raises(ScheduleError, match=message):
        tvm_forest.compile(tvm.script.from_source(edited))


def sigmoid(*steps: Step) -> s_tir.Schedule:
    """Return TVM's schedule of a function with a block behind the walks."""
    tir = s_tir.Schedule(canonical(SIGMOID, tvm_forest.new_schedule(SIGMOID)))
    for step in steps:
        step(tir)
    return tir


BESIDE: dict[str, Step] = {
    "initial values by themselves": lambda tir: tir.decompose_reduction(
        tir.get_sblock("walk"), tir.get_loops("walk")[1]
    ),
    "values in blocks": lambda tir: tir.split(tir.get_loops("finish")[0], [None, 7]),
    "values right behind sums": lambda tir: tir.reverse_compute_at(
        tir.get_sblock("finish"), tir.get_loops("walk")[0]
    ),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_beside_the_walks_has_the_loops_that_passes_give_it(name: str) -> None:
    plain, moved = (adopt_loops(sigmoid(*x).mod["main"]) for x in ((), (BESIDE[name],)))
    assert tvm_ffi.structural_equal(plain, moved)


def test_edited_loops_beside_the_walks_leave_out_no_rows() -> None:
    module = sigmoid().mod
    text = module.script(show_meta=True)
    fewer = text.replace("for batch in range(n)", "for batch in range(n - T.int64(1))")
    assert fewer != text
    edited = tvm.IRModule({"main": tvm.script.from_source(fewer)["main"]})
    assert tvm_ffi.structural_equal(*(adopt_loops(x["main"]) for x in (module, edited)))


def test_annotations_beside_the_walks_are_refused() -> None:
    def annotate(tir: s_tir.Schedule) -> None:
        tir.annotate(tir.get_loops("finish")[0], "tvm_forest.interleave", 8)

    with pytest.raises(ScheduleError, match="loop 'batch' has the annotation 'tvm_forest.interl"):
        tvm_forest.compile(sigmoid(annotate))


def test_two_functions_that_become_one_are_refused() -> None:
    functions = {"sums": by_tvm(parallel).mod["main"], "sums_parallel": by_tvm().mod["main"]}
    with pytest.raises(ScheduleError, match="'sums_parallel' has the name of what threads run"):
        tvm_forest.compile(tvm.IRModule(functions))


def test_loops_that_only_directives_make_are_no_schedule_of_tvm() -> None:
    module = schedule_functions(FOREST, START.split("tree", "d1", "d2", 9))["predict"]
    with pytest.raises(ScheduleError, match="'batch' holds loops with copies"):
        tvm_forest.build(FOREST, schedule=module)


@pytest.mark.parametrize("text", ["[" * 5000, '[{"do": ' * 5000])
def test_steps_without_an_end_are_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match=r"'tvm_forest\.steps' that holds no"):
        tvm_forest.compile(by_tvm(mark(0, "steps", text)))


def test_a_condition_that_loops_with_copies_are_not_under_is_refused() -> None:
    sch = BLOCKS.split("tree", "d1", "d2", 9)
    text = schedule_functions(FOREST, sch)["predict"].script(show_meta=True)
    edited = text.replace("T.where(batch_0 * T.int64(64)", "T.where(batch_0 * T.int64(63)")
    assert edited != text
    with pytest.raises(ScheduleError, match="which is no end of a tile"):
        tvm_forest.compile(tvm.script.from_source(edited))


STRANGE = [0, 1, -1, 3, 10**6, 0.5, True, None, "n", "x", "tree", "d1", "b1@d1", [], {}, ["b1"]]


def damage(steps: list[dict[str, Any]], rng: random.Random) -> None:
    """Change, leave out or repeat something of stored steps."""
    step = rng.choice(steps or [{}])
    change = rng.randrange(6)
    if change == 0:
        steps.remove(step)
    elif change == 1:
        steps.insert(rng.randrange(len(steps)), dict(step))
    elif change == 2:
        step["do"] = rng.choice([*DIRECTIVES, *STRANGE])
    else:
        step[rng.choice([*step, "index", "hops"])] = rng.choice(STRANGE)


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 400), marks=pytest.mark.long)], ids=str
)
def test_damaged_steps_are_refused_or_others_that_are_right(seeds: range) -> None:
    sch = BLOCKS.split("tree", "d1", "d2", 9).tile("d2", "e1", "e2", 4).unroll_walk("b1@d1")
    module, whole = schedule_functions(FOREST, sch)["predict"], 0
    text, told = str(tvm.ir.save_json(module)), list[Any]()

    def replace_steps(value: Any) -> Any:
        """Damage the steps that an annotation holds, and leave all else of a module alone."""
        if isinstance(value, str) and value.startswith('[{"do":'):
            changed = json.loads(value)
            for _ in range(rng.randint(1, 3)):
                damage(changed, rng)
            told.append(changed)
            return json.dumps(changed)
        if isinstance(value, list):
            return [replace_steps(x) for x in value]
        return {k: replace_steps(x) for k, x in value.items()} if type(value) is dict else value

    for seed in seeds:
        rng = random.Random(seed)
        damaged = tvm.ir.load_json(json.dumps(replace_steps(json.loads(text))))
        with suppress(ScheduleError):
            sch = read_schedule(adopt_loops(damaged["main"]))
            walked = Counter(tree for x in sch.leaves() for tree in sch.trees_of(x.name).tolist())
            assert sch.problem() is None
            assert walked.keys() == {*range(40)} and len({*walked.values()}) == 1
            whole += 1
    assert len(told) == len(seeds)
    assert 0 < whole < len(seeds) / 4


@pytest.mark.parametrize("given", [5, tvm_forest.lower(FOREST, START).after])
def test_modules_that_say_nothing_of_a_model_are_not_compiled(given: Any) -> None:
    with pytest.raises(
        ScheduleError, match=r"expected an IRModule|no attribute 'tvm_forest\.seal'"
    ):
        tvm_forest.compile(given)
