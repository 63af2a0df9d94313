"""What each directive refuses, and with which words: a table, in the order of the directives.

`test_memory_and_devices.py` and `test_model_directives.py` have the tables of the directives that
they are about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from nests import BLOCKS, BOTH, DEEP, LANES, SPECIAL, START, TILES, TREES
from tvm_forest.errors import ScheduleError
from tvm_forest.schedule_prims import Schedule

TILED = START.tile("batch", "b0", "b1", 64)
CPU = BLOCKS.interleave("b1", 8).parallel("b0")


class RefusedStep(NamedTuple):
    """A directive that is refused, the message, and the loop that is marked, if any."""

    sch: Schedule
    call: Callable[[Schedule], Any]
    message: str
    mark: str | None = None


LEAVES = ("interleave", "simdize")
ARGUMENTS = {"split": ("a", "b", 3), "interleave": (2,), "peel_walk": (2,), "vector_reduce": (8,)}
WORDS = (
    *("split", "specialize", "split_by_depth", "unroll", "parallel", "unroll_walk", "peel_walk"),
    *("interleave", "simdize", "vectorize", "atomic_reduce", "vector_reduce", "ordered_reduce"),
)


def call(word: str, index: Any) -> Callable[[Schedule], Any]:
    return lambda sch: getattr(sch, word)(index, *ARGUMENTS.get(word, ()))


SPLIT = BLOCKS.split("tree", "d1", "d2", 40)
HUGE = Schedule(1000)

REFUSALS = [
    # any directive
    RefusedStep(
        START,
        lambda s: s.tile("rows", "a", "b", 4),
        "tile: argument 'index': no live index 'rows' (live: batch, tree)",
    ),
    RefusedStep(
        TILED,
        lambda s: s.parallel("batch"),
        "parallel: argument 'index': 'batch' was replaced by 'b0', 'b1'",
    ),
    RefusedStep(START, lambda s: s.tile("tree"), "tile: missing a required argument: 'outer'"),
    RefusedStep(
        START,
        lambda s: s.tile("tree", "a", "b", 4, depth=1),
        "tile: got an unexpected keyword argument 'depth'",
    ),
    # tile
    RefusedStep(
        TILED,
        lambda s: s.tile("tree", "batch", "t1", 4),
        "tile: argument 'outer': 'batch' already exists; choose another name",
    ),
    RefusedStep(
        START,
        lambda s: s.tile("tree", "t0", "batch", 4),
        "tile: argument 'inner': 'batch' already exists; choose another name",
    ),
    RefusedStep(
        START,
        lambda s: s.tile("tree", "t", "t", 4),
        "tile: argument 'inner': 't' is also 'outer'; choose another name",
    ),
    RefusedStep(
        START,
        lambda s: s.tile("tree", "t 0", "t1", 4),
        "tile: argument 'outer': 't 0' is no name; use letters and digits",
    ),
    RefusedStep(
        START,
        lambda s: s.tile("tree", "t0", 1, 4),
        "tile: argument 'inner': 1 is no name; use letters and digits",
    ),
    RefusedStep(
        START, lambda s: s.tile("tree", "a", "b", 0), "tile: argument 'size': 0 is not positive"
    ),
    RefusedStep(
        START,
        lambda s: s.tile("tree", "a", "b", parts=-2),
        "tile: argument 'parts': -2 is not positive",
    ),
    RefusedStep(
        START, lambda s: s.tile("tree", "a", "b", 2.0), "tile: argument 'size': 2.0 is no integer"
    ),
    RefusedStep(
        START, lambda s: s.tile("tree", "a", "b", True), "tile: argument 'size': True is no integer"
    ),
    RefusedStep(
        START,
        lambda s: s.tile("tree", "a", "b"),
        "tile: argument 'size': give either 'size' or 'parts'",
    ),
    RefusedStep(
        START,
        lambda s: s.tile("tree", "a", "b", 4, 25),
        "tile: argument 'size': give either 'size' or 'parts'",
    ),
    RefusedStep(
        START,
        lambda s: s.tile("tree", "a", "b", 128),
        "tile: argument 'size': 128 exceeds the 100 iterations of 'tree'; use at most 100",
        "for tree in",
    ),
    RefusedStep(
        START,
        lambda s: s.tile("tree", "a", "b", parts=101),
        "tile: argument 'parts': 101 exceeds the 100 iterations of 'tree'; use at most 100",
        "for tree in",
    ),
    RefusedStep(
        CPU,
        lambda s: s.tile("b0", "a", "b", 4),
        "tile: argument 'index': 'b0' is already parallel; tile before annotating",
        "parallel b0 in",
    ),
    RefusedStep(
        CPU,
        lambda s: s.tile("b1", "a", "b", 4),
        "tile: argument 'index': 'b1' is already interleave 8; tile before annotating",
        "for b1 in",
    ),
    # reorder
    RefusedStep(
        START, lambda s: s.reorder(), "reorder: argument 'indices': name at least one loop"
    ),
    RefusedStep(
        START,
        lambda s: s.reorder("tree", "tree"),
        "reorder: argument 'indices': tree, tree names a loop twice; name each once",
    ),
    RefusedStep(
        START,
        lambda s: s.reorder(["tree", "batch"]),
        "reorder: argument 'indices': no live index ['tree', 'batch'] (live: batch, tree)",
    ),
    RefusedStep(
        START,
        lambda s: s.reorder(1, 1),
        "reorder: argument 'indices': no live index 1 (live: batch, tree)",
    ),
    RefusedStep(
        TILED,
        lambda s: s.reorder("tree", "b0"),
        "reorder: argument 'indices': 'b0' and 'tree' are not adjacent ('b1' lies between)",
        "for tree in",
    ),
    RefusedStep(
        CPU,
        lambda s: s.reorder("b1", "tree"),
        "reorder: argument 'indices': 'b1' is interleaved but contains 'tree'; leave it innermost",
        "for b1 in",
    ),
    # parallel
    RefusedStep(
        CPU,
        lambda s: s.parallel("b1"),
        "parallel: argument 'index': 'b1' is already interleave 8; choose another loop",
        "for b1 in",
    ),
    # interleave
    *(
        RefusedStep(
            BLOCKS,
            lambda s, factor=factor: s.interleave("b1", factor),
            f"interleave: argument 'factor': {factor!r} is no number of walks; use 2..32",
            "for b1 in",
        )
        for factor in (1, 0, 33, 2.0, "8", True)
    ),
    # any directive
    *(
        RefusedStep(
            START,
            call(word, "trees"),
            f"{word.replace('vectorize', 'simdize')}: argument 'index': no live index 'trees' "
            "(live: batch, tree)",
        )
        for word in WORDS
    ),
    *(
        RefusedStep(
            BLOCKS,
            call(word, "batch"),
            f"{word.replace('vectorize', 'simdize')}: argument 'index': 'batch' was replaced by "
            "'b0', 'b1'",
        )
        for word in WORDS
    ),
    RefusedStep(
        START,
        call("parallel", ["tree"]),
        "parallel: argument 'index': no live index ['tree'] (live: batch, tree)",
    ),
    RefusedStep(
        SPLIT,
        call("interleave", "b1"),
        "interleave: argument 'index': 'b1' was replaced by 'b1@d1', 'b1@d2'",
    ),
    RefusedStep(
        SPECIAL,
        call("unroll", "t1"),
        "unroll: argument 'index': 't1' was replaced by 't1@t0=0', 't1@t0=1'",
    ),
    # split
    *(
        RefusedStep(
            START,
            lambda s, at=at: s.split("tree", "a", "b", at),
            f"split: argument 'at': {at!r} lies outside (0, 100) of 'tree'; choose a value between",
            "for tree in",
        )
        for at in (0, 100, 150, -1, 2.0, "40", True, None)
    ),
    RefusedStep(
        TILES,
        lambda s: s.split("t0", "a", "b", 30),
        "split: argument 'at': 30 is not on the grid 0, 25, 50, ... of 't0'; choose a value of it",
        "for t0 in",
    ),
    RefusedStep(
        START,
        lambda s: s.split("batch", "a", "b", 30),
        "split: argument 'index': 'batch' has a symbolic range; tile it and split the inner index",
        "for batch in",
    ),
    RefusedStep(
        SPECIAL,
        lambda s: s.split("t0", "a", "b", 2),
        "split: argument 'index': 't0' is specialized; split one of its copies",
        "for t0 in",
    ),
    RefusedStep(
        START,
        lambda s: s.split("tree", "batch", "b", 30),
        "split: argument 'first': 'batch' already exists; choose another name",
    ),
    RefusedStep(
        START,
        lambda s: s.split("tree", "a", "tree", 30),
        "split: argument 'second': 'tree' already exists; choose another name",
    ),
    RefusedStep(
        START,
        lambda s: s.split("tree", "a", "a", 30),
        "split: argument 'second': 'a' is also 'first'; rename one",
    ),
    RefusedStep(
        START,
        lambda s: s.split("tree", "a b", "c", 30),
        "split: argument 'first': 'a b' is no name; use letters and digits",
    ),
    # reorder of copies
    RefusedStep(
        SPLIT,
        lambda s: s.reorder("d1", "b0"),
        "reorder: argument 'indices': 'b0' contains 2 loops ('d1', 'd2'); reorder inside one of "
        "them",
        "for b0 in",
    ),
    RefusedStep(
        SPECIAL,
        lambda s: s.reorder("batch@t0=0", "t0"),
        "reorder: argument 'indices': 't0' is specialized; reorder before that",
        "for t0 in",
    ),
    # specialize
    RefusedStep(
        START,
        lambda s: s.specialize("batch"),
        "specialize: argument 'index': 'batch' has a symbolic number of iterations; tile it first",
        "for batch in",
    ),
    RefusedStep(
        START,
        lambda s: s.specialize("tree"),
        "specialize: argument 'index': 'tree' contains no loop to specialise",
        "for tree in",
    ),
    RefusedStep(
        Schedule(0).reorder("tree", "batch"),
        lambda s: s.specialize("tree"),
        "specialize: argument 'index': 'tree' has no iterations; leave this step out",
        "for tree in",
    ),
    RefusedStep(
        SPECIAL,
        lambda s: s.specialize("t0"),
        "specialize: argument 'index': 't0' is already specialized",
        "for t0 in",
    ),
    RefusedStep(
        START.reorder("tree", "batch"),
        lambda s: s.specialize("tree"),
        "specialize: argument 'index': 100 copies exceed the limit 64; tile first",
        "for tree in",
    ),
    RefusedStep(
        TILES.split("t1", "x", "y", 5),
        lambda s: s.specialize("t0"),
        "specialize: argument 'index': 't0' contains 2 loops; specialize first",
        "for t0 in",
    ),
    # split_by_depth
    RefusedStep(
        START,
        lambda s: s.split_by_depth("tree"),
        "split_by_depth: argument 'index': the depths of the trees are not known; begin with "
        "new_schedule(model), or use tvm_forest.with_depths(schedule, model)",
        "for tree in",
    ),
    RefusedStep(
        DEEP,
        lambda s: s.split_by_depth("batch"),
        "split_by_depth: argument 'index': 'batch' is no plain tree index; give a loop over trees",
        "for batch in",
    ),
    RefusedStep(
        DEEP.peel_walk("tree", 2),
        lambda s: s.split_by_depth("tree"),
        "split_by_depth: argument 'index': 'tree' is already peeled; leave one of them out",
        "for tree in",
    ),
    RefusedStep(
        Schedule(70, depths=(1, 2) * 35),
        lambda s: s.split_by_depth("tree"),
        "split_by_depth: argument 'index': 70 changes of depth exceed the limit 64; sort the trees "
        "by depth",
        "for tree in",
    ),
    # unroll
    RefusedStep(
        BLOCKS,
        lambda s: s.unroll("b0"),
        "unroll: argument 'index': cannot unroll 'b0' with a symbolic number of iterations; tile "
        "it and unroll the inner loop",
        "for b0 in",
    ),
    RefusedStep(
        HUGE,
        lambda s: s.unroll("tree"),
        "unroll: argument 'index': 1000 iterations exceed 256; tile first",
        "for tree in",
    ),
    *(
        RefusedStep(
            sch,
            call("unroll", index),
            f"unroll: argument 'index': '{index}' is already {what}; choose another loop",
            f"{word} {index} in",
        )
        for sch, index, what, word in (
            (TREES, "t0", "parallel", "parallel"),
            (TILES.unroll("t1"), "t1", "unroll", "for"),
            (BLOCKS.interleave("b1", 8), "b1", "interleave 8", "for"),
            (LANES.simdize("b1"), "b1", "simdize gather", "for"),
        )
    ),
    # tile of an annotated loop
    *(
        RefusedStep(
            sch,
            lambda s, index=index: s.tile(index, "x", "y", 2),
            f"tile: argument 'index': '{index}' is already {what}; tile before annotating",
            f"{word} {index} in",
        )
        for sch, index, what, word in (
            (TREES.atomic_reduce("t0"), "t0", "parallel, reduce atomic", "parallel"),
            (TILES.unroll("t1"), "t1", "unroll", "for"),
            (BLOCKS.unroll_walk("tree", 9), "tree", "unroll_walk 9", "for"),
            (BLOCKS.peel_walk("tree", 2), "tree", "peel_walk 2", "for"),
            (LANES.simdize("b1"), "b1", "simdize gather", "for"),
            (SPECIAL, "t0", "specialize", "for"),
        )
    ),
    # unroll_walk, peel_walk
    *(
        RefusedStep(
            START,
            lambda s, hops=hops: s.unroll_walk("tree", hops),
            f"unroll_walk: argument 'hops': {hops!r} is no number of hops; use 0..64 or 'depth'",
            "for tree in",
        )
        for hops in (-1, 65, 2.0, "deep", True, None, [3])
    ),
    RefusedStep(
        START.peel_walk("tree", 2),
        lambda s: s.unroll_walk("tree"),
        "unroll_walk: argument 'index': 'tree' is already peeled; leave one of them out",
        "for tree in",
    ),
    *(
        RefusedStep(
            START,
            lambda s, hops=hops: s.peel_walk("tree", hops),
            f"peel_walk: argument 'hops': {hops!r} is no number of hops; use 1..64 or 'likely'",
            "for tree in",
        )
        for hops in (0, -1, 65, 2.0, True, "depth")
    ),
    RefusedStep(
        START.unroll_walk("tree"),
        lambda s: s.peel_walk("tree", 2),
        "peel_walk: argument 'index': 'tree' is already fully unrolled; leave one of them out",
        "for tree in",
    ),
    # interleave, simdize
    RefusedStep(
        Schedule(6, 3).reorder("tree", "class"),
        lambda s: s.interleave("class", 2),
        "interleave: argument 'index': 'class' runs over classes; interleave rows or trees",
        "for class in",
    ),
    *(
        RefusedStep(
            START,
            call(word, "batch"),
            f"{word}: argument 'index': 'batch' is not innermost (contains 'tree'); choose the "
            "innermost loop",
            "for batch in",
        )
        for word in LEAVES
    ),
    *(
        RefusedStep(
            sch,
            call(word, "b1"),
            f"{word}: argument 'index': 'b1' is already {what}; choose another loop",
            f"{head} b1 in",
        )
        for word in LEAVES
        for sch, what, head in (
            (LANES.simdize("b1"), "simdize gather", "for"),
            (LANES.interleave("b1", 8), "interleave 8", "for"),
            (LANES.unroll("b1"), "unroll", "for"),
            (LANES.parallel("b1"), "parallel", "parallel"),
        )
    ),
    RefusedStep(
        START,
        lambda s: s.simdize("tree"),
        "simdize: argument 'index': 'tree' is not a batch index; choose a loop over rows",
        "for tree in",
    ),
    *(
        RefusedStep(
            sch,
            lambda s, index=index: s.simdize(index),
            f"simdize: argument 'index': {what} is not a lane count (4, 8, 16, 32, 64); tile the "
            "loop by one of these",
            f"for {index} in",
        )
        for sch, index, what in (
            (START.reorder("tree", "batch"), "batch", "a symbolic extent"),
            (START.reorder("tree", "batch").tile("batch", "b0", "b1", 24), "b1", "extent 24"),
            (
                START.reorder("tree", "batch")
                .tile("batch", "b0", "b1", 16)
                .reorder("b1", "b0")
                .tile("b0", "b2", "b3", 8),
                "b3",
                "step 16",
            ),
        )
    ),
    RefusedStep(
        LANES,
        lambda s: s.simdize("b1", "scatter"),
        "simdize: argument 'how': 'scatter' is unknown; use one of 'gather', 'bits', 'permute', "
        "'octets', 'pieces'",
        "for b1 in",
    ),
    *(
        RefusedStep(
            sch,
            lambda s, cut=cut: s.split(*cut),
            f"split: argument 'index': '{loop}' has simdize {what}; leave this step out, or cut "
            "the loop elsewhere",
            "",
        )
        for sch, cut, loop, what in (
            (
                BLOCKS.simdize("b1", "bits"),
                ("b1", "a", "b", 32),
                "a",
                "bits, but extent 32 is not a lane count (64, 128, 256, 512)",
            ),
            (
                LANES.simdize("b1"),
                ("b1", "a", "b", 4),
                "b",
                "gather, but extent 12 is not a lane count (4, 8, 16, 32, 64)",
            ),
            (
                START.simdize("tree", "octets"),
                ("tree", "a", "b", 20),
                "b",
                "octets, but begins at tree 20, trees go by 8",
            ),
        )
    ),
    # parallel
    RefusedStep(
        TREES,
        lambda s: s.parallel("t0"),
        "parallel: argument 'index': 't0' is already parallel; choose another loop",
        "parallel t0 in",
    ),
    *(
        RefusedStep(
            sch,
            call("parallel", "b1"),
            f"parallel: argument 'index': 'b1' is already {what}; choose another loop",
            "for b1 in",
        )
        for sch, what in (
            (LANES.simdize("b1"), "simdize gather"),
            (LANES.interleave("b1", 8), "interleave 8"),
            (LANES.unroll("b1"), "unroll"),
        )
    ),
    RefusedStep(
        BLOCKS.parallel("b0"),
        lambda s: s.parallel("b1"),
        "parallel: argument 'index': 'b1' lies inside parallel 'b0' with 'tree' between them; make "
        "them adjacent, so that they can be fused",
        "for b1 in",
    ),
    RefusedStep(
        SPLIT.parallel("b0"),
        lambda s: s.parallel("d1"),
        "parallel: argument 'index': 'd1' lies inside parallel 'b0' beside others; make them "
        "adjacent, so that they can be fused",
        "for d1 in",
    ),
    RefusedStep(
        BOTH,
        lambda s: s.reorder("b0", "t1", "t0"),
        "reorder: argument 'indices': 't0' lies inside parallel 'b0' with 't1' between them; make "
        "them adjacent, so that they can be fused",
        "parallel t0 in",
    ),
    # atomic_reduce, vector_reduce, ordered_reduce
    *(
        RefusedStep(
            sch,
            call(word, index),
            f"{word}: argument 'index': '{index}' runs over {what}, nothing conflicts; leave this "
            "step out",
            f"{head} {index} in",
        )
        for word in ("atomic_reduce", "vector_reduce", "ordered_reduce")
        for sch, index, what, head in (
            (BLOCKS.parallel("b0"), "b0", "rows", "parallel"),
            (Schedule(6, 3), "class", "classes", "for"),
        )
    ),
    RefusedStep(
        TILES,
        lambda s: s.atomic_reduce("t0"),
        "atomic_reduce: argument 'index': 't0' is sequential; no atomic is needed, or make it "
        "parallel first",
        "for t0 in",
    ),
    RefusedStep(
        TILES,
        lambda s: s.vector_reduce("t0", 8),
        "vector_reduce: argument 'index': 't0' is sequential; there is nothing to reduce, or make "
        "it parallel first",
        "for t0 in",
    ),
    *(
        RefusedStep(
            TREES,
            lambda s, width=width: s.vector_reduce("t0", width),
            f"vector_reduce: argument 'width': {width!r} is not a power of two up to 32; use one "
            "of (2, 4, 8, 16, 32)",
            "parallel t0 in",
        )
        for width in (0, 1, 3, 64, 8.0, "8", True, None, [8])
    ),
    *(
        RefusedStep(
            sch,
            call(word, "t0"),
            f"{word}: argument 'index': 't0' already has reduce {what}; choose one of them",
            "parallel t0 in",
        )
        for word in ("atomic_reduce", "vector_reduce", "ordered_reduce")
        for sch, what in (
            (TREES.atomic_reduce("t0"), "atomic"),
            (TREES.vector_reduce("t0", 8), "vector 8"),
            (TREES.ordered_reduce("t0"), "ordered"),
        )
    ),
    RefusedStep(
        TILES,
        lambda s: s.ordered_reduce("t0"),
        "ordered_reduce: argument 'index': 't0' is sequential; its order is kept, or make it "
        "parallel first",
        "for t0 in",
    ),
    RefusedStep(
        TILES.parallel("t0").parallel("t1").atomic_reduce("t1"),
        lambda s: s.ordered_reduce("t0"),
        "ordered_reduce: argument 'index': 't1' has reduce atomic, but 't0', which runs at the "
        "same time, asks for the order of the model; add all of them in one way",
        "parallel t1 in",
    ),
    RefusedStep(
        TILES.parallel("t0").parallel("t1").ordered_reduce("t0"),
        lambda s: s.vector_reduce("t1", 8),
        "vector_reduce: argument 'index': 't1' has reduce vector 8, but 't0', which runs at the "
        "same time, asks for the order of the model; add all of them in one way",
        "parallel t1 in",
    ),
]


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.message[:70])
def test_a_refusal_names_the_fault_and_shows_the_nest(case: RefusedStep) -> None:
    before = (str(case.sch), case.sch.steps, case.sch.replaced, case.sch.guards)
    with pytest.raises(ScheduleError) as caught:
        case.call(case.sch)
    first, *nest = str(caught.value).split("\n")
    assert first == case.message
    assert "\n".join(nest).replace("   <----", "") == str(case.sch)
    marked = [line.split("(")[0].strip() for line in nest if line.endswith("   <----")]
    assert marked == ([case.mark] if case.mark else [])
    assert (str(case.sch), case.sch.steps, case.sch.replaced, case.sch.guards) == before
