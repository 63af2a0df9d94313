"""Every directive that copies loops, forms walks or reduces: its nest, and what `build` refuses.

`test_schedule.py` has those that shape the nest: tile, reorder, parallel and interleave over rows;
`test_refusals.py` what directives refuse.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tvm import s_tir

import tvm_forest
from forests import Split, forest_of
from nests import BLOCKS, BOTH, DEEP, LANES, SPECIAL, START, TILES, TREES
from tvm_forest.errors import ScheduleError
from tvm_forest.layouts import protocol
from tvm_forest.passes import pipeline
from tvm_forest.passes.reading.read_nest import read_nest
from tvm_forest.schedule_prims import DIRECTIVES, Schedule, replay
from tvm_forest.schedule_prims.nest.marks import MARKS
from tvm_forest.tir_gen.canonical import emit_canonical

MIXED = (
    Schedule(6, depths=(1, 2, 1, 1, 2, 2)).tile("batch", "b0", "b1", 4).reorder("b0", "tree", "b1")
)

NESTS = {
    "split: a tree loop around a block of rows": (
        BLOCKS.split("tree", "d1", "d2", 40),
        """
for b0 in (0, n, 64)                     # batch
  for d1 in (0, 40, 1)                   # tree
    for b1@d1 in (0, 64, 1)              # batch; guard b0 + b1@d1 < n
      out[b0+b1@d1] += walk(d1, b0+b1@d1)
  for d2 in (40, 100, 1)                 # tree
    for b1@d2 in (0, 64, 1)              # batch; guard b0 + b1@d2 < n
      out[b0+b1@d2] += walk(d2, b0+b1@d2)""",
    ),
    "split: both parts keep what was said": (
        BLOCKS.interleave("b1", 8).parallel("b0").split("tree", "d1", "d2", 40),
        """
parallel b0 in (0, n, 64)                # batch
  for d1 in (0, 40, 1)                   # tree
    for b1@d1 in (0, 64, 1)              # batch; guard b0 + b1@d1 < n; interleave 8
      out[b0+b1@d1] += walk(d1, b0+b1@d1)
  for d2 in (40, 100, 1)                 # tree
    for b1@d2 in (0, 64, 1)              # batch; guard b0 + b1@d2 < n; interleave 8
      out[b0+b1@d2] += walk(d2, b0+b1@d2)""",
    ),
    "split: of tiles": (
        TILES.split("t0", "x", "y", 50),
        """
for batch in (0, n, 1)
  for x in (0, 50, 25)                   # tree
    for t1@x in (0, 25, 1)               # tree
      out[batch] += walk(x+t1@x, batch)
  for y in (50, 100, 25)                 # tree
    for t1@y in (0, 25, 1)               # tree
      out[batch] += walk(y+t1@y, batch)""",
    ),
    "split: of partial tiles": (
        START.tile("tree", "t0", "t1", 30).split("t0", "x", "y", 60),
        """
for batch in (0, n, 1)
  for x in (0, 60, 30)                   # tree
    for t1@x in (0, 30, 1)               # tree; guard x + t1@x < 100
      out[batch] += walk(x+t1@x, batch)
  for y in (60, 100, 30)                 # tree
    for t1@y in (0, 30, 1)               # tree; guard y + t1@y < 100
      out[batch] += walk(y+t1@y, batch)""",
    ),
    "split: of rows": (
        Schedule(3).tile("batch", "b0", "b1", 10).split("b1", "x", "y", 6),
        """
for b0 in (0, n, 10)                     # batch
  for x in (0, 6, 1)                     # batch; guard b0 + x < n
    for tree@x in (0, 3, 1)              # tree
      out[b0+x] += walk(tree@x, b0+x)
  for y in (6, 10, 1)                    # batch; guard b0 + y < n
    for tree@y in (0, 3, 1)              # tree
      out[b0+y] += walk(tree@y, b0+y)""",
    ),
    "split: of a copy": (
        BLOCKS.split("tree", "d1", "d2", 40).split("d2", "d3", "d4", 41),
        """
for b0 in (0, n, 64)                     # batch
  for d1 in (0, 40, 1)                   # tree
    for b1@d1 in (0, 64, 1)              # batch; guard b0 + b1@d1 < n
      out[b0+b1@d1] += walk(d1, b0+b1@d1)
  for d3 in (40, 41, 1)                  # tree
    for b1@d2@d3 in (0, 64, 1)           # batch; guard b0 + b1@d2@d3 < n
      out[b0+b1@d2@d3] += walk(d3, b0+b1@d2@d3)
  for d4 in (41, 100, 1)                 # tree
    for b1@d2@d4 in (0, 64, 1)           # batch; guard b0 + b1@d2@d4 < n
      out[b0+b1@d2@d4] += walk(d4, b0+b1@d2@d4)""",
    ),
    "specialize": (
        SPECIAL,
        """
for t0 in (0, 4, 2)                      # tree; specialize
  for batch@t0=0 in (0, n, 1)            # batch; iteration 0 only
    for t1@t0=0 in (0, 2, 1)             # tree
      out[batch@t0=0] += walk(t0+t1@t0=0, batch@t0=0)
  for batch@t0=1 in (0, n, 1)            # batch; iteration 1 only
    for t1@t0=1 in (0, 2, 1)             # tree
      out[batch@t0=1] += walk(t0+t1@t0=1, batch@t0=1)""",
    ),
    "specialize: a form for each copy": (
        SPECIAL.unroll_walk("t1@t0=0", 2).interleave("t1@t0=1", 2),
        """
for t0 in (0, 4, 2)                      # tree; specialize
  for batch@t0=0 in (0, n, 1)            # batch; iteration 0 only
    for t1@t0=0 in (0, 2, 1)             # tree; unroll_walk 2
      out[batch@t0=0] += walk(t0+t1@t0=0, batch@t0=0)
  for batch@t0=1 in (0, n, 1)            # batch; iteration 1 only
    for t1@t0=1 in (0, 2, 1)             # tree; interleave 2
      out[batch@t0=1] += walk(t0+t1@t0=1, batch@t0=1)""",
    ),
    "split_by_depth: two depths": (
        DEEP.split_by_depth("tree"),
        """
for batch in (0, n, 1)
  for tree.d6 in (0, 40, 1)              # tree; unroll_walk 6
    out[batch] += walk(tree.d6, batch)
  for tree.d8 in (40, 100, 1)            # tree; unroll_walk 8
    out[batch] += walk(tree.d8, batch)""",
    ),
    "split_by_depth: depths that return": (
        MIXED.split_by_depth("tree"),
        """
for b0 in (0, n, 4)                      # batch
  for tree.d1 in (0, 1, 1)               # tree; unroll_walk 1
    for b1@tree.d1 in (0, 4, 1)          # batch; guard b0 + b1@tree.d1 < n
      out[b0+b1@tree.d1] += walk(tree.d1, b0+b1@tree.d1)
  for tree.d2 in (1, 2, 1)               # tree; unroll_walk 2
    for b1@tree.d2 in (0, 4, 1)          # batch; guard b0 + b1@tree.d2 < n
      out[b0+b1@tree.d2] += walk(tree.d2, b0+b1@tree.d2)
  for tree.d1.2 in (2, 4, 1)             # tree; unroll_walk 1
    for b1@tree.d1.2 in (0, 4, 1)        # batch; guard b0 + b1@tree.d1.2 < n
      out[b0+b1@tree.d1.2] += walk(tree.d1.2, b0+b1@tree.d1.2)
  for tree.d2.2 in (4, 6, 1)             # tree; unroll_walk 2
    for b1@tree.d2.2 in (0, 4, 1)        # batch; guard b0 + b1@tree.d2.2 < n
      out[b0+b1@tree.d2.2] += walk(tree.d2.2, b0+b1@tree.d2.2)""",
    ),
    "split_by_depth: one depth": (
        Schedule(5, depths=(3,) * 5).split_by_depth("tree"),
        """
for batch in (0, n, 1)
  for tree in (0, 5, 1)                  # unroll_walk 3
    out[batch] += walk(tree, batch)""",
    ),
    "split_by_depth: of tiles with parts": (
        Schedule(6, depths=(4, 1, 1, 1, 1, 2))
        .tile("tree", "t0", "t1", 3)
        .split("t1", "x", "y", 1)
        .split_by_depth("t0"),
        """
for batch in (0, n, 1)
  for t0.d4 in (0, 3, 3)                 # tree; unroll_walk 4
    for x@t0.d4 in (0, 1, 1)             # tree
      out[batch] += walk(t0.d4+x@t0.d4, batch)
    for y@t0.d4 in (1, 3, 1)             # tree
      out[batch] += walk(t0.d4+y@t0.d4, batch)
  for t0.d2 in (3, 6, 3)                 # tree; unroll_walk 2
    for x@t0.d2 in (0, 1, 1)             # tree
      out[batch] += walk(t0.d2+x@t0.d2, batch)
    for y@t0.d2 in (1, 3, 1)             # tree
      out[batch] += walk(t0.d2+y@t0.d2, batch)""",
    ),
    "unroll": (
        TILES.unroll("t0"),
        """
for batch in (0, n, 1)
  for t0 in (0, 100, 25)                 # tree; unroll
    for t1 in (0, 25, 1)                 # tree
      out[batch] += walk(t0+t1, batch)""",
    ),
    "unroll_walk: to the depth": (
        BLOCKS.unroll_walk("tree"),
        """
for b0 in (0, n, 64)                     # batch
  for tree in (0, 100, 1)                # unroll_walk depth
    for b1 in (0, 64, 1)                 # batch; guard b0 + b1 < n
      out[b0+b1] += walk(tree, b0+b1)""",
    ),
    "unroll_walk: a number of hops": (
        BLOCKS.unroll_walk("b1", 8),
        """
for b0 in (0, n, 64)                     # batch
  for tree in (0, 100, 1)
    for b1 in (0, 64, 1)                 # batch; guard b0 + b1 < n; unroll_walk 8
      out[b0+b1] += walk(tree, b0+b1)""",
    ),
    "peel_walk: checked": (
        BLOCKS.peel_walk("tree", 2),
        """
for b0 in (0, n, 64)                     # batch
  for tree in (0, 100, 1)                # peel_walk 2
    for b1 in (0, 64, 1)                 # batch; guard b0 + b1 < n
      out[b0+b1] += walk(tree, b0+b1)""",
    ),
    "peel_walk: unchecked": (
        BLOCKS.peel_walk("tree", 2, check=False),
        """
for b0 in (0, n, 64)                     # batch
  for tree in (0, 100, 1)                # peel_walk 2 unchecked
    for b1 in (0, 64, 1)                 # batch; guard b0 + b1 < n
      out[b0+b1] += walk(tree, b0+b1)""",
    ),
    "interleave: trees": (
        START.interleave("tree", 4),
        """
for batch in (0, n, 1)
  for tree in (0, 100, 1)                # interleave 4
    out[batch] += walk(tree, batch)""",
    ),
    "simdize": (
        LANES.simdize("b1"),
        """
for b0 in (0, n, 16)                     # batch
  for tree in (0, 100, 1)
    for b1 in (0, 16, 1)                 # batch; guard b0 + b1 < n; simdize gather
      out[b0+b1] += walk(tree, b0+b1)""",
    ),
    "parallel: trees": (
        TREES,
        """
parallel t0 in (0, 100, 25)              # tree
  for t1 in (0, 25, 1)                   # tree
    for batch in (0, n, 1)
      out[batch] += walk(t0+t1, batch)""",
    ),
    "parallel: rows and trees": (
        BOTH,
        """
parallel b0 in (0, n, 64)                # batch
  parallel t0 in (0, 100, 34)            # tree
    for t1 in (0, 34, 1)                 # tree; guard t0 + t1 < 100
      for b1 in (0, 64, 1)               # batch; guard b0 + b1 < n
        out[b0+b1] += walk(t0+t1, b0+b1)""",
    ),
    "atomic_reduce": (
        TREES.atomic_reduce("t0"),
        """
parallel t0 in (0, 100, 25)              # tree; reduce atomic
  for t1 in (0, 25, 1)                   # tree
    for batch in (0, n, 1)
      out[batch] += walk(t0+t1, batch)""",
    ),
    "ordered_reduce": (
        TREES.ordered_reduce("t0"),
        """
parallel t0 in (0, 100, 25)              # tree; reduce ordered
  for t1 in (0, 25, 1)                   # tree
    for batch in (0, n, 1)
      out[batch] += walk(t0+t1, batch)""",
    ),
    "vector_reduce": (
        BOTH.vector_reduce("t0", 8),
        """
parallel b0 in (0, n, 64)                # batch
  parallel t0 in (0, 100, 34)            # tree; reduce vector 8
    for t1 in (0, 34, 1)                 # tree; guard t0 + t1 < 100
      for b1 in (0, 64, 1)               # batch; guard b0 + b1 < n
        out[b0+b1] += walk(t0+t1, b0+b1)""",
    ),
}


@pytest.mark.parametrize("name", NESTS)
def test_the_printed_nest_is(name: str) -> None:
    sch, text = NESTS[name]
    assert "\n" + str(sch) == text


@pytest.mark.parametrize("name", NESTS)
def test_a_nest_survives_json(name: str) -> None:
    sch = NESTS[name][0]
    again = Schedule.from_json(sch.to_json())
    assert (again, hash(again), again.steps) == (sch, hash(sch), sch.steps)


def test_a_step_of_a_json_text_is_refused_as_the_method_is() -> None:
    text = START.to_json().replace('"steps": []', '"steps": [{"do": "unroll", "index": "batch"}]')
    with pytest.raises(ScheduleError, match="unroll: argument 'index': cannot unroll 'batch'"):
        Schedule.from_json(text)


@pytest.mark.parametrize("word", ["gpu", "cpu"])
def test_threads_are_for_cpus(word: str) -> None:
    sch = Schedule(8, target=word)
    if word == "cpu":
        assert sch.parallel("batch")["batch"].parallel
    else:
        with pytest.raises(ScheduleError, match="'batch' cannot use CPU threads on a GPU; use gpu"):
            sch.parallel("batch")


# -- what is known only with the model ------------------------------------------------------------

STUMP = Split(0, 0.5, 1.0, 2.0)
DEEPER = Split(1, 0.5, STUMP, Split(2, 0.5, STUMP, 3.0))
MODEL = forest_of([STUMP, DEEPER, 0.25, STUMP])

BUILD_REFUSALS = {
    "a straight line that is too short": (
        Schedule(4).unroll_walk("tree", 2),
        "unroll_walk: argument 'hops': 2 is less than the depth 3 of tree 1 in 'tree'; use at "
        "least 3, or 'depth'",
        "for tree in",
    ),
    "a straight line that is too short in one copy": (
        Schedule(4).split("tree", "a", "b", 1).unroll_walk("b", 1),
        "unroll_walk: argument 'hops': 1 is less than the depth 3 of tree 1 in 'b'; use at least "
        "3, or 'depth'",
        "for b in",
    ),
    "an unchecked peel that is too long": (
        tvm_forest.new_schedule(MODEL).peel_walk("tree", 1, check=False),
        "peel_walk: argument 'hops': tree 2 has a leaf at depth 0, so 1 unchecked hops are wrong; "
        "use check=True",
        "for tree in",
    ),
    "a schedule of another number of trees": (
        Schedule(3),
        "build: argument 'schedule': made for 3 trees and 1 classes, the model has 4 and 1; make "
        "one with tvm_forest.new_schedule(model)",
        "",
    ),
    "a schedule of another number of classes": (
        Schedule(4, 2),
        "build: argument 'schedule': made for 4 trees and 2 classes, the model has 4 and 1; make "
        "one with tvm_forest.new_schedule(model)",
        "",
    ),
    "another order of additions": (
        tvm_forest.new_schedule(MODEL).parallel("tree"),
        "build: argument 'schedule': it adds the trees in another order than the model, so results "
        "differ in the last bits; allow that with exact=False",
        "",
    ),
}


@pytest.mark.parametrize("name", BUILD_REFUSALS)
def test_what_only_the_model_shows_is_refused_by_build(name: str) -> None:
    sch, message, mark = BUILD_REFUSALS[name]
    with pytest.raises(ScheduleError) as caught:
        tvm_forest.build(MODEL, schedule=sch)
    first, *nest = str(caught.value).split("\n")
    assert first == message
    assert "\n".join(nest).replace("   <----", "") == str(sch)
    marked = [line.split("(")[0].strip() for line in nest if line.endswith("   <----")]
    assert marked == ([mark] if mark else [])


@pytest.mark.parametrize("hops", [3, 4, "depth"])
def test_a_straight_line_that_is_long_enough_is_built(hops: int | str) -> None:
    sch = tvm_forest.new_schedule(MODEL).unroll_walk("tree", hops)
    predictor = tvm_forest.build(MODEL, schedule=sch)
    assert predictor.predict([[0, 0, 0], [1, 1, 1]]).tolist() == [3.25, 7.25]


def test_depths_of_tiles_with_parts_count_every_tree() -> None:
    start = Schedule(8, depths=(6, 1, 1, 6, 1, 1, 6, 1)).tile("tree", "t0", "t1", 3)
    assert start.split("t1", "x", "y", 1).split_by_depth("t0")["t0"].hops == 6


def test_depths_stop_at_the_end_of_a_tile() -> None:
    start = Schedule(8, depths=(1,) * 5 + (6,) * 3).tile("tree", "t0", "t1", 5)
    sch = start.tile("t1", "t2", "t3", 3).split_by_depth("t0")
    assert (sch["t0.d1"].stop, sch["t0.d6"].start) == (5, 5)


def test_no_trees_have_no_depths() -> None:
    assert Schedule(0, depths=()).split_by_depth("tree")["tree"].hops == 0


def test_a_straight_line_too_short_is_refused_when_written_if_the_depths_are_known() -> None:
    start = tvm_forest.new_schedule(MODEL)
    message = r"unroll_walk: argument 'hops': 2 is less than the depth 3 of tree 1 in 'tree'; use"
    with pytest.raises(ScheduleError, match=message):
        start.unroll_walk("tree", 2)
    halves = start.split("tree", "a", "b", 1)
    assert "unroll_walk 1" in str(halves.unroll_walk("a", 1))
    with pytest.raises(ScheduleError, match="less than the depth 3 of tree 1 in 'b'"):
        halves.unroll_walk("b", 1)
    inner = halves.unroll_walk("b", 3)
    assert "unroll_walk 1" in str(inner.unroll_walk("batch", 1))


def test_the_check_of_a_peeled_walk_is_a_truth_value() -> None:
    message = r"peel_walk: argument 'check': 'no' is no truth value; use True or False"
    with pytest.raises(ScheduleError, match=message):
        START.peel_walk("tree", 2, check="no")


# -- who carries out what -------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "directives.md"
STEPS: dict[str, dict[str, Any]] = {
    "tile": {"index": "tree", "outer": "t0", "inner": "t1", "size": 4},
    "reorder": {"indices": ["tree", "batch"]},
    "parallel": {"index": "batch"},
    "unroll": {"index": "tree"},
}
"""A step of each directive that TVM's primitives carry out."""


class Recorder:
    """TVM's schedule, which keeps the names of the primitives that are applied."""

    def __init__(self, tir: s_tir.Schedule) -> None:
        self.tir, self.used = tir, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.used |= {name} - {"get", "get_loops", "get_sblock", "annotate"}
        return getattr(self.tir, name)


def table() -> dict[str, list[set[str]]]:
    """Return the words in each cell of the page's first table, by directive."""
    text = PAGE.read_text(encoding="utf-8").partition("\n| directive |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", text, re.MULTILINE)
    return {
        name: [set(re.findall(r"`(\w+)`", cell)) for cell in cells.split("|")]
        for name, cells in rows
    }


def test_the_page_names_every_directive_and_no_other() -> None:
    assert table().keys() == DIRECTIVES.keys()
    assert all(len(cells) == 3 for cells in table().values())


def test_the_page_shows_every_directive_beside_what_does_the_same_in_tvm() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Both forms side by side")[2]
    both = text.partition("\n## ")[0]
    shown = set(re.findall(r"`sch\.(\w+)\(", both))
    assert shown == DIRECTIVES.keys()
    notes = set(re.findall(r'"tvm_forest\.(\w+)"', both))
    assert notes <= MARKS.keys()


@pytest.mark.parametrize("name", sorted(DIRECTIVES))
def test_the_page_names_the_primitives_that_carry_out_a_directive(name: str) -> None:
    forest = forest_of([float(k) for k in range(8)])
    rep, _ = protocol.find("array").pack(forest)
    recorder = Recorder(s_tir.Schedule(emit_canonical(forest, rep, "predict")))
    if name in STEPS:
        replay(recorder, DIRECTIVES[name].apply(Schedule(8), STEPS[name]))
    assert table()[name][0] == recorder.used
    assert name in STEPS or DIRECTIVES[name].onto_tir is None


def test_the_page_names_passes_that_there_are() -> None:
    rep, _ = protocol.find("array").pack(forest_of([0.5]))
    mod = emit_canonical(forest_of([0.5]), rep, "predict")
    passes = pipeline(read_nest(mod["main"]), None, shared_bytes=48 * 1024).passes
    known = {step.info.name.removeprefix("tvm_forest.") for step in passes}
    known |= {x.onto_forest.__name__ for x in DIRECTIVES.values() if x.onto_forest}
    named = {name for cells in table().values() for name in cells[1]}
    assert named and named <= known
    rewrites = {x.name for x in DIRECTIVES.values() if x.onto_forest}
    assert rewrites == {name for name, cells in table().items() if name in cells[1]}


# -- what is accepted and offered -----------------------------------------------------------------


def test_a_loop_that_starts_off_its_grid_is_split_at_its_own_values() -> None:
    sch = START.split("tree", "d1", "d2", 3).tile("d2", "e0", "e1", 4)
    parts = sch.split("e0", "f1", "f2", 7)
    assert [(x.start, x.stop, x.step) for x in (parts["f1"], parts["f2"])] == [
        (3, 7, 4),
        (7, 100, 4),
    ]
    with pytest.raises(ScheduleError, match="8 is not on the grid 3, 7, 11, ... of 'e0'"):
        sch.split("e0", "f1", "f2", 8)


def test_lines_that_are_straight_may_be_split_by_depth_and_not_peeled_too() -> None:
    straight = DEEP.unroll_walk("tree", 8)
    assert [x.hops for x in straight.split_by_depth("tree").leaves()] == [6, 8]
    with pytest.raises(ScheduleError, match="is already peeled"):
        DEEP.peel_walk("tree", 2).split_by_depth("tree")
    known = Schedule(4).know_depths([3, 3, 3, 3], [1, 1, 2, 2])
    assert [x.peel for x in known.split_by_depth("tree", by="likely").leaves()] == [1, 2]
    with pytest.raises(ScheduleError, match="is already fully unrolled"):
        known.unroll_walk("tree", 3).split_by_depth("tree", by="likely")
    likely = Schedule(4, depths=((3,) * 4))
    with pytest.raises(ScheduleError, match="hops to the likely leaves are not known"):
        likely.split_by_depth("tree", by="likely")


def test_a_specialized_loop_is_not_split_by_depth() -> None:
    deep = Schedule(4, depths=(1, 1, 2, 2))
    sch = deep.tile("tree", "t0", "t1", 2).reorder("t0", "batch", "t1").specialize("t0")
    with pytest.raises(ScheduleError, match="'t0' is no plain tree index"):
        sch.split_by_depth("t0")
    with pytest.raises(ScheduleError, match="'batch' is no plain tree index"):
        deep.split_by_depth("batch")


def test_threads_that_add_up_by_shuffles_are_a_multiple_of_the_width() -> None:
    sch = Schedule(48).tile("batch", "b0", "b1", 4).tile("tree", "t0", "t1", 16)
    sch = sch.gpu_dimension("b0", "grid.x").gpu_dimension("t1", "block.x")
    for width in (2, 4, 8, 16):
        assert sch.vector_reduce("t1", width)["t1"].width == width
    with pytest.raises(ScheduleError, match="32 does not divide the 16 threads of 't1'"):
        sch.vector_reduce("t1", 32)
    other = Schedule(48).tile("tree", "t0", "t1", 16).gpu_dimension("t1", "block.y")
    with pytest.raises(ScheduleError, match="'t1' is mapped to block.y"):
        other.vector_reduce("t1", 8)


def test_a_search_is_offered_tiles_of_powers_of_two_that_fit() -> None:
    offered = DIRECTIVES["tile"].choices(Schedule(64).parallel("tree"))
    assert {choice["index"] for choice in offered} == {"batch"}
    offered = list(DIRECTIVES["tile"].choices(Schedule(64)))
    sizes = {name: [x["size"] for x in offered if x["index"] == name] for name in ("batch", "tree")}
    assert sizes == {"batch": [4, 8, 16, 32, 64, 128, 256], "tree": [4, 8, 16, 32]}


@pytest.mark.parametrize("word", ["tile", "split"])
def test_copies_of_loops_are_offered_too(word: str) -> None:
    sch = Schedule(16).tile("tree", "t0", "t1", 8).tile("batch", "b0", "b1", 64)
    sch = sch.reorder("b0", "t0", "b1", "t1").specialize("t0").split("b1@t0=1", "x", "y", 32)
    directive = DIRECTIVES[word]
    offered = list(directive.choices(sch))
    assert {"b1@t0=0", "t1@t0=0", "t1@t0=1@x"} <= {choice["index"] for choice in offered}
    assert all(directive.apply(sch, choice).steps for choice in offered)


def test_a_search_is_offered_small_plain_loops_to_write_out() -> None:
    sch = Schedule(16).tile("tree", "t0", "t1", 8)
    assert list(DIRECTIVES["unroll"].choices(sch)) == [{"index": "t0"}, {"index": "t1"}]
    assert list(DIRECTIVES["unroll"].choices(sch.parallel("t0"))) == [{"index": "t1"}]
    assert list(DIRECTIVES["unroll"].choices(Schedule(9))) == []


def test_a_loop_of_one_iteration_may_be_around_any_trees() -> None:
    assert Schedule(10).tile("tree", "t0", "t1", 1).reorder("t1", "t0").keeps_order
    assert not Schedule(10).tile("tree", "t0", "t1", 2).reorder("t1", "t0").keeps_order
