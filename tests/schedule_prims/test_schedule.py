"""The schedule as a value: its printed nest, its JSON text."""

from __future__ import annotations

import inspect
import json
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from tvm_forest.errors import ScheduleError
from tvm_forest.schedule_prims import DIRECTIVES, Schedule
from tvm_forest.schedule_prims.directive import TraceStep

START = Schedule(100)
TILED = START.tile("batch", "b0", "b1", 64)
CPU = TILED.reorder("b0", "tree", "b1").interleave("b1", 8).parallel("b0")
CLASSES = Schedule(104, 26)

WORDS = (
    *("tile", "split", "reorder", "specialize", "unroll", "parallel", "split_by_depth"),
    *("interleave", "unroll_walk", "peel_walk", "simdize", "cache", "represent_as"),
    *(
        "atomic_reduce",
        "vector_reduce",
        "ordered_reduce",
        "shared_reduce",
        "gpu_dimension",
        "cooperate",
    ),
    *("tile_nodes", "pad_trees", "sort_trees", "know_depths"),
)

NESTS = {
    "no directive": (
        START,
        """
for batch in (0, n, 1)
  for tree in (0, 100, 1)
    out[batch] += walk(tree, batch)""",
    ),
    "classes": (
        CLASSES,
        """
for batch in (0, n, 1)
  for class in (0, 26, 1)
    for tree in (0, 4, 1)
      out[batch, class] += walk(tree*26 + class, batch)""",
    ),
    "all directives": (
        CPU,
        """
parallel b0 in (0, n, 64)                # batch
  for tree in (0, 100, 1)
    for b1 in (0, 64, 1)                 # batch; guard b0 + b1 < n; interleave 8
      out[b0+b1] += walk(tree, b0+b1)""",
    ),
    "a tile that divides": (
        START.tile("tree", "t0", "t1", 25),
        """
for batch in (0, n, 1)
  for t0 in (0, 100, 25)                 # tree
    for t1 in (0, 25, 1)                 # tree
      out[batch] += walk(t0+t1, batch)""",
    ),
    "a tile that does not divide": (
        START.tile("tree", "t0", "t1", 30),
        """
for batch in (0, n, 1)
  for t0 in (0, 100, 30)                 # tree
    for t1 in (0, 30, 1)                 # tree; guard t0 + t1 < 100
      out[batch] += walk(t0+t1, batch)""",
    ),
    "parts": (
        START.tile("tree", "t0", "t1", parts=3),
        """
for batch in (0, n, 1)
  for t0 in (0, 100, 34)                 # tree
    for t1 in (0, 34, 1)                 # tree; guard t0 + t1 < 100
      out[batch] += walk(t0+t1, batch)""",
    ),
    "a strided tile": (
        START.tile("tree", "t0", "t1", 10).reorder("t1", "t0").tile("t0", "s0", "s1", 4),
        """
for batch in (0, n, 1)
  for t1 in (0, 10, 1)                   # tree
    for s0 in (0, 100, 40)               # tree
      for s1 in (0, 40, 10)              # tree; guard s0 + s1 < 100
        out[batch] += walk(t1+s0+s1, batch)""",
    ),
    "nested partial tiles": (
        Schedule(7).tile("batch", "b0", "b1", 64).tile("b1", "b2", "b3", 24),
        """
for b0 in (0, n, 64)                     # batch
  for b2 in (0, 64, 24)                  # batch
    for b3 in (0, 24, 1)                 # batch; guard b0 + b2 + b3 < n; guard b2 + b3 < 64
      for tree in (0, 7, 1)
        out[b0+b2+b3] += walk(tree, b0+b2+b3)""",
    ),
    "tiled classes": (
        CLASSES.tile("class", "c0", "c1", 8).reorder("c0", "batch").parallel("c0"),
        """
parallel c0 in (0, 26, 8)                # class
  for batch in (0, n, 1)
    for c1 in (0, 8, 1)                  # class; guard c0 + c1 < 26
      for tree in (0, 4, 1)
        out[batch, c0+c1] += walk(tree*26 + c0+c1, batch)""",
    ),
    "two tree loops and classes": (
        CLASSES.tile("tree", "t0", "t1", 2).reorder("t0", "batch", "class", "t1"),
        """
for t0 in (0, 4, 2)                      # tree
  for batch in (0, n, 1)
    for class in (0, 26, 1)
      for t1 in (0, 2, 1)                # tree
        out[batch, class] += walk((t0+t1)*26 + class, batch)""",
    ),
}


@pytest.mark.parametrize("name", NESTS)
def test_the_printed_nest_is(name: str) -> None:
    sch, text = NESTS[name]
    assert "\n" + str(sch) == text


ORDERED = TILED.reorder("b0", "tree", "b1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1,), "argument 'trees': -1 is no count; give an integer >= 0"),
        (("ten",), "argument 'trees': 'ten' is no count; give an integer >= 0"),
        ((None,), "argument 'trees': None is no count; give an integer >= 0"),
        ((3, 0), "argument 'classes': 0 is no count; give an integer >= 1"),
    ],
)
def test_a_problem_of_no_size_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        Schedule(*arguments)
    assert str(caught.value) == f"schedule: {message}"


def test_the_end_of_a_chain_may_be_reordered_alone() -> None:
    assert START.reorder("batch") == START


def test_every_directive_is_a_documented_method() -> None:
    methods = {name: getattr(Schedule, name) for name in DIRECTIVES}
    missing = [name for name, method in methods.items() if not (method.__doc__ or "").strip()]
    assert missing == []
    assert sorted(methods) == sorted(WORDS)


def test_the_class_lists_every_directive_with_its_own_signature() -> None:
    for word, directive in DIRECTIVES.items():
        method = vars(Schedule)[word]
        assert (method.__name__, method.__doc__) == (word, directive.rewrite.__doc__)
        assert inspect.signature(method) == directive.signature


def test_schedules_are_pickled() -> None:
    assert isinstance(CPU.steps[0], TraceStep)
    assert pickle.loads(pickle.dumps(CPU)) == CPU


def test_vectorize_is_another_name_of_simdize() -> None:
    assert Schedule.vectorize is Schedule.simdize


def test_a_directive_leaves_the_old_schedule_alone() -> None:
    sch = Schedule(100)
    later = sch.tile("batch", "b0", "b1", 64)
    assert sch == START
    assert sch.steps == ()
    assert later != sch


def test_a_copy_stays_as_it_is() -> None:
    copy = CPU.copy()
    assert copy == CPU and copy.steps == CPU.steps
    assert copy.without("interleave") != CPU == copy


def test_a_schedule_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        START.trees = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        START.nest.name = "rows"  # type: ignore[misc]


def test_schedules_are_equal_by_nest_and_not_by_steps() -> None:
    there_and_back = TILED.reorder("b1", "b0").reorder("b0", "b1")
    assert there_and_back == TILED
    assert hash(there_and_back) == hash(TILED)
    assert there_and_back.steps != TILED.steps


@pytest.mark.parametrize(
    "other",
    [
        Schedule(101),
        Schedule(100, 2),
        TILED,
        START.tile("batch", "b0", "b1", 32),
        START.tile("batch", "x0", "x1", 64),
        CPU,
        "for batch in (0, n, 1)",
        None,
    ],
    ids=lambda other: str(other).split("\n")[0],
)
def test_schedules_that_compute_in_another_way_differ(other: Any) -> None:
    assert (other == START) is False
    assert other != ORDERED


@pytest.mark.parametrize("name", NESTS)
def test_a_schedule_survives_json(name: str) -> None:
    sch = NESTS[name][0]
    again = Schedule.from_json(sch.to_json())
    assert again == sch
    assert again.steps == sch.steps
    assert again.replaced == sch.replaced


def test_the_json_text_holds_the_problem_and_named_arguments() -> None:
    tile = {"do": "tile", "index": "batch", "outer": "b0", "inner": "b1", "size": 64}
    reorder = {"do": "reorder", "indices": ["b0", "tree", "b1"]}
    head = {"version": 1, "batch": None, "trees": 100, "classes": 1}
    assert json.loads(ORDERED.to_json()) == head | {"steps": [tile, reorder]}


HEAD = '{"version": 1, "batch": null, "trees": 9, "classes": 1, "steps": '
NO_SCHEDULES = {
    "": "argument 'text': no schedule",
    "null": "argument 'text': no schedule",
    "[]": "argument 'text': no schedule",
    "{}": "argument 'text': no schedule",
    "3": "argument 'text': no schedule",
    HEAD + "null}": "argument 'text': no schedule",
    HEAD + "[1]}": "argument 'text': no schedule",
    HEAD + "[{}]}": "argument 'text': no schedule",
    HEAD.replace("9", "9.5") + "[]}": "argument 'trees': 9.5 is no count",
    HEAD.replace("9", "-9") + "[]}": "argument 'trees': -9 is no count",
    HEAD.replace("null", "64") + "[]}": "field 'batch': expected null, got 64; schedules",
    HEAD.replace("1,", "2,", 1) + "[]}": "field 'version': expected 1, got 2; write it again",
    HEAD + '[{"do": "fly"}]}': f"no directive 'fly' (have: {', '.join(sorted(WORDS))})",
    HEAD + '[{"do": "tile"}]}': "tile: missing a required argument: 'index'",
    HEAD + '[{"do": "reorder", "indices": 5}]}': "reorder: ",
    HEAD + '[{"do": "reorder", "indices": [["tree"]]}]}': "no live index ['tree']",
    HEAD + '[{"do": "parallel", "index": {}}]}': "no live index {} (live: batch, tree)",
    HEAD + '[{"do": "unroll", "index": "batch"}]}': "cannot unroll 'batch' with a symbolic number",
    HEAD + '[{"do": ["tile"]}]}': "no directive ['tile']",
}


@pytest.mark.parametrize("text", [*NO_SCHEDULES, None, 5], ids=str)
def test_text_that_is_no_schedule_is_refused(text: Any) -> None:
    with pytest.raises(ScheduleError) as caught:
        Schedule.from_json(text)
    assert NO_SCHEDULES.get(text, "argument 'text': no schedule") in str(caught.value)


SWAPPED = START.tile("tree", "t0", "t1", 10).reorder("t1", "t0")
ORDERS = {
    "no directive": (START, True),
    "rows in tiles": (TILED, True),
    "trees outside of rows": (START.reorder("tree", "batch"), True),
    "the default of CPUs": (CPU, True),
    "trees in tiles": (START.tile("tree", "t0", "t1", 30), True),
    "trees in parts": (START.tile("tree", "t0", "t1", parts=3), True),
    "tree tiles around rows": (
        START.tile("tree", "t0", "t1", 10).reorder("t0", "batch", "t1"),
        True,
    ),
    "tree loops swapped": (SWAPPED, False),
    "swapped and apart": (SWAPPED.reorder("t1", "batch", "t0"), False),
    "swapped twice": (SWAPPED.reorder("t0", "t1"), True),
    "a swap inside a tile": (
        START.tile("tree", "t0", "t1", 10).tile("t1", "t2", "t3", 5).reorder("t3", "t2"),
        False,
    ),
    "classes outside": (CLASSES.reorder("class", "tree", "batch"), True),
    "classes swapped": (CLASSES.tile("class", "c0", "c1", 2).reorder("c1", "c0"), True),
    "rows swapped": (TILED.reorder("b1", "b0"), True),
    "parallel classes": (CLASSES.reorder("class", "batch").parallel("class"), True),
    "parallel trees": (START.parallel("tree"), False),
    "parallel trees in order": (START.parallel("tree").ordered_reduce("tree"), True),
    "parallel trees in order, apart": (SWAPPED.parallel("t1").ordered_reduce("t1"), True),
    "parallel tiles in order inside swapped ones": (
        SWAPPED.parallel("t0").ordered_reduce("t0"),
        False,
    ),
    "two kinds of parallel trees, one in order": (
        SWAPPED.parallel("t1").parallel("t0").ordered_reduce("t0"),
        True,
    ),
    "parts of the trees, one of them parallel": (
        START.split("tree", "a", "b", 40).parallel("b").ordered_reduce("b"),
        True,
    ),
    "parallel parts, one of them in order": (
        START.split("tree", "a", "b", 40).parallel("b").ordered_reduce("b").parallel("a"),
        False,
    ),
    "parallel tree tiles": (START.tile("tree", "t0", "t1", 10).parallel("t0"), False),
    "parts of the trees": (START.split("tree", "a", "b", 40), True),
    "parts of swapped trees": (SWAPPED.split("t1", "a", "b", 4), False),
    "a copy for each tile": (START.tile("tree", "t0", "t1", 10).specialize("t0"), True),
    "one tree at a time, walked in threes": (START.interleave("tree", 3), True),
    "all unrolled": (START.tile("tree", "t0", "t1", 10).unroll("t1").unroll_walk("t0"), True),
}


@pytest.mark.parametrize("name", ORDERS)
def test_a_schedule_knows_whether_it_keeps_the_order_of_the_trees(name: str) -> None:
    sch, keeps = ORDERS[name]
    assert sch.keeps_order is keeps


@pytest.mark.parametrize("parts", [1, 2, 3, 10, 34, 50, 100])
def test_parts_give_so_many_iterations(parts: int) -> None:
    assert START.tile("tree", "t0", "t1", parts=parts)["t0"].count == parts


def test_steps_of_one_directive_can_be_left_out() -> None:
    assert CPU.without("parallel") == ORDERED.interleave("b1", 8)
    assert CPU.without("interleave").steps == ORDERED.parallel("b0").steps
    assert START.without("parallel") == START


def test_leaving_out_a_step_that_others_build_upon_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"reorder: .*no live index 'b0'"):
        CPU.without("tile")


def test_only_the_start_is_the_default() -> None:
    assert START.is_default()
    assert not TILED.is_default()
    assert TILED.reorder("b0", "b1") == TILED


def test_loops_are_found_by_name() -> None:
    assert CPU.names() == ("b0", "tree", "b1")
    assert CPU["b1"].interleave == 8
    assert [loop.name for loop in CPU.path("tree")] == ["b0", "tree"]
    with pytest.raises(KeyError, match="batch"):
        CPU["batch"]


def test_the_number_of_iterations_is_rounded_up() -> None:
    sch = Schedule(100).tile("tree", "t0", "t1", 30)
    assert (sch["t0"].count, sch["t1"].count, sch["batch"].count) == (4, 30, None)


def test_a_schedule_is_drawn_as_a_graph() -> None:
    sch = Schedule(4).tile("batch", "b0", "b1", 8).parallel("b0").interleave("tree", 2)
    assert sch.to_dot().splitlines() == [
        "digraph schedule {",
        "  node [shape=box, fontname=monospace];",
        r'  "b0" [label="b0 in (0, n, 8)\nbatch\nparallel"];',
        '  "b0" -> "b1";',
        r'  "b1" [label="b1 in (0, 8, 1)\nbatch\nguard b0 + b1 < n"];',
        '  "b1" -> "tree";',
        r'  "tree" [label="tree in (0, 4, 1)\ntree\ninterleave 2"];',
        "}",
    ]
