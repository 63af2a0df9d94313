"""Random schedules for CPUs and GPUs, and what every schedule must compute.

A random schedule for a CPU is a few steps drawn from the directives' own `choices` and from
`further_moves`, which are legal too but which no search would try. With a forest, its model is
rewritten as well: then some schedules cannot be built, and `refusal` says which. One for a GPU
tiles and maps loops first, for few schedules that were drawn freely would fit on a GPU.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, permutations, product
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import Split, forest_of
from tvm_forest.errors import ForestError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.rewrites.ordering import arrange_by_round
from tvm_forest.forest.rewrites.tiling import WAYS
from tvm_forest.layouts import COPIED, SIMDIZED
from tvm_forest.probe_rows import hard_rows
from tvm_forest.schedule_prims import DIRECTIVES, Schedule
from tvm_forest.schedule_prims.directive import name_parts

CPU_WORDS = sorted(set(DIRECTIVES) - {"gpu_dimension", "shared_reduce"})
SHAPING = (
    *("tile", "tile", "reorder", "parallel", "interleave"),
    *("simdize", "simdize", "atomic_reduce", "vector_reduce", "vector_reduce", "ordered_reduce"),
)
"""Words that are drawn more often: the others need many kinds of loops to meet."""

LAYOUTS = ("array", "packed", "ranked", "reorg", "sparse", "sparse_peeled")
TYPED = (
    {"name": "packed", "feature": "uint16"},
    {"name": "sparse", "threshold": "float64"},
)
GPU_LAYOUTS = (*LAYOUTS[:-1], "banked")
REWRITES = ("tile_nodes", "pad_trees", "sort_trees")
DEPTHS = ("depth", "likely")
PROFILED = ("likely", "probability", "hybrid", "optimal", "sparse_peeled")
GATES = (None, None, (0.05, 0.9), (1.0, 0.0), (0.3, 0.5))

MOST_HOPS = 60
"""Hops in the code of a function, above which a step is not taken."""


def further_moves(sch: Schedule, shallowest: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield odd sizes, parts, longer chains, counted hops and unchecked peels.

    Args:
        sch: the schedule that is to be rewritten.
        shallowest: depth of the leaf of the model that is nearest to its root.
    """
    for loop in sch.loops():
        outer, inner = name_parts(loop, "0", "1")
        names = {"index": loop.name, "outer": outer, "inner": inner}
        yield from (("tile", {**names, "size": size}) for size in (1, 2, 3, 5, 7))
        yield from (("tile", {**names, "parts": parts}) for parts in (2, 3))
        if len(loop.children) == 1 and len(loop.children[0].children) == 1:
            chain = [loop.name, loop.children[0].name, loop.children[0].children[0].name]
            yield from (("reorder", {"indices": list(p)}) for p in permutations(chain))
        if loop.kind == "tree":
            yield from (("split_by_depth", {"index": loop.name, "by": by}) for by in DEPTHS)
            yield "unroll_walk", {"index": loop.name, "hops": max(sch.depths or (0,))}
        yield "peel_walk", {"index": loop.name, "hops": 3}
        if shallowest:
            yield "peel_walk", {"index": loop.name, "hops": shallowest, "check": False}
        if loop.parallel and loop.kind == "tree":
            yield from (("vector_reduce", {"index": loop.name, "width": k}) for k in (2, 4))
        if not loop.children:
            yield from (("interleave", {"index": loop.name, "factor": k}) for k in (3, 5))


def model_moves(sch: Schedule, forest: Forest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rewrites of the model, all layouts, and the depths that the model has by then."""
    for size, how, gate in product((2, 3, 4, 5, 8), WAYS, GATES):
        uniform = how == "uniform"
        yield "tile_nodes", {"size": size, "how": how, "gate": None if uniform else gate}
    yield from (("pad_trees", {"to": to}) for to in ("tree", "forest"))
    yield from (("sort_trees", {"by": by}) for by in DEPTHS)
    yield from (("represent_as", {"name": name}) for name in LAYOUTS)
    yield from (("represent_as", typed) for typed in TYPED)
    trees = [loop.name for loop in sch.loops() if loop.kind == "tree"]
    yield from (("peel_walk", {"index": name, "hops": "likely"}) for name in trees)
    if sch.hops is None:
        with contextlib.suppress(ForestError):
            yield "know_depths", tvm_forest.with_depths(sch, forest).steps[-1].arguments


def moves(sch: Schedule, forest: Forest | None = None) -> dict[str, list[dict[str, Any]]]:
    """Return the argument dicts that may be tried, by directive."""
    found = {name: list(DIRECTIVES[name].choices(sch)) for name in CPU_WORDS}
    shallowest = 0 if forest is None else int(arrange_by_round(forest).shallowest.min())
    ours = further_moves(sch, shallowest)
    for name, arguments in ours if forest is None else chain(ours, model_moves(sch, forest)):
        found[name].append(arguments)
    return {name: choices for name, choices in found.items() if choices}


def drawn_schedule(
    seed: int, start: Schedule, most: int = 8, forest: Forest | None = None, least: int = 1
) -> Schedule:
    """Take steps until so many are accepted, each drawn from the moves of a drawn directive."""
    rng = random.Random(seed)
    sch, wanted = start, rng.randint(least, most)
    if wanted > 2 and rng.random() < 0.3:
        sch = _rows_inside(start, rng.choice((4, 8, 16)))
    if wanted > 2 and forest is not None and rng.random() < 0.5:
        sch = _in_tiles(sch, forest, rng)
    for _ in range(4 * wanted):
        if len(sch.steps) >= wanted:
            break
        choices = moves(sch, forest)
        name = rng.choice([*sorted(choices), *(word for word in SHAPING if word in choices)])
        try:
            new = DIRECTIVES[name].apply(sch, rng.choice(choices[name]))
        except ScheduleError:
            continue
        sch = new if hops_written_out(new) <= MOST_HOPS else sch
    return sch


def drawn_gpu_schedule(seed: int, start: Schedule) -> Schedule:
    """Tile and order loops at random, give some to the GPU, and take further steps that fit."""
    rng = np.random.default_rng(seed)
    rounds = start.trees // start.classes
    sch = start.represent_as(str(rng.choice(GPU_LAYOUTS)))
    sch = sch.tile("batch", "b0", "b1", int(rng.choice([1, 3, 4, 8])))
    sizes = [size for size in (1, 2, 4, 4, 5, 8, 8, rounds) if size <= rounds]
    sch = sch.tile("tree", "t0", "t1", int(rng.choice(sizes)))
    inner = [*(["class"] if start.classes > 1 else []), "b1", "t0", "t1"]
    sch = sch.reorder("b0", *rng.permutation(inner).tolist()).gpu_dimension("b0", "grid.x")
    if rng.random() < 0.5:
        sch = _step_if_allowed(sch, "gpu_dimension", "t1", "block.x")
    for dimension in rng.permutation(["grid.y", "block.x", "block.y", "block.z"])[:3]:
        sch = _step_if_allowed(sch, "gpu_dimension", str(rng.choice(inner)), str(dimension))
    split = {"first": "d1", "second": "d2", "at": int(rng.integers(1, rounds))}
    near = [x for x in (*inner, "b0") if x[0] == "b" or sch.representation in COPIED]
    more: list[tuple[Any, ...]] = [
        *(("cache", str(rng.choice(near))) for _ in range(2)),
        ("atomic_reduce", str(rng.choice([*inner, "b0"]))),
        *(("vector_reduce", "t1"), ("vector_reduce", "t1"), ("shared_reduce", "t1")),
        *(("ordered_reduce", "t1"), ("ordered_reduce", str(rng.choice(inner)))),
        *((word, str(rng.choice(inner))) for word in ("unroll", "unroll_walk", "specialize")),
        ("peel_walk", str(rng.choice(inner)), 2),
        ("split", str(rng.choice(["t0", "t1"])), *split.values()),
        *(("interleave", loop.name, int(rng.choice([2, 3, 4]))) for loop in sch.leaves()),
    ]
    for place in rng.permutation(len(more)):
        word, *arguments = more[place]
        width = [int(rng.choice([2, 4, 8]))] if word == "vector_reduce" else []
        sch = _step_if_allowed(sch, word, *arguments, *width) if rng.random() < 0.6 else sch
    return sch


def _step_if_allowed(sch: Schedule, word: str, *arguments: Any) -> Schedule:
    try:
        return getattr(sch, word)(*arguments)
    except ScheduleError:
        return sch


def hops_written_out(sch: Schedule) -> int:
    """Estimate the size of the code, on which the time to compile it depends."""
    return sum(_hops_of_leaf(sch, leaf) for leaf in sch.leaves())


def _hops_of_leaf(sch: Schedule, leaf: Any) -> int:
    copies, hops = leaf.interleave * (2 if leaf.simdize else 1), 1
    for loop in sch.path(leaf.name):
        copies *= (loop.count or 1) if loop.unroll else 1
        said = loop.peel[0] if loop.peel else loop.hops
        hops = max(sch.depths or (0,)) if said in DEPTHS else said or hops
    return copies * (hops + 1)


def _rows_inside(sch: Schedule, size: int) -> Schedule:
    """Make a block of rows the leaf loop, which few random steps would."""
    if sch.batch is not None and sch.batch < size:
        return sch
    others = sch.names()[1:]
    return sch.tile("batch", "b0", "b1", size).reorder("b0", *others, "b1")


def _in_tiles(sch: Schedule, forest: Forest, rng: random.Random) -> Schedule:
    """Tile the nodes, and mostly choose a layout that can hold tiles."""
    tiles = [x for name, x in model_moves(sch, forest) if name == "tile_nodes"]
    new = sch.tile_nodes(**rng.choice(tiles))
    return new.represent_as(rng.choice((*LAYOUTS, *2 * ("array", "sparse", "sparse_peeled"))))


def refusal(forest: Forest, sch: Schedule) -> str:
    """Return whether `build` "must" or "may" refuse a drawn schedule; "" if it takes it.

    It may if a profile is missing, or if trees are moved or cut anew under straight lines.
    """
    sizes = [step.arguments["size"] for step in sch.rewrites if step.do == "tile_nodes"]
    tiled = any(size > 1 for size in sizes)
    unfit = ("packed", "ranked", "reorg") if tiled else ("sparse_peeled",)
    if sch.representation in unfit:
        return "must"
    if sch.types and sch.representation == "sparse" and (not tiled or forest.is_leaf.all()):
        return "must"
    words = [step.do for step in sch.steps]
    if forest.hits is None and any(word in sch.to_json() for word in PROFILED):
        return "may"
    lined = [i for i, word in enumerate(words) if word in ("unroll_walk", "split_by_depth")]
    lined += [i for i, step in enumerate(sch.steps) if step.arguments.get("check") is False]
    return "may" if any(word in REWRITES for word in words[min(lined, default=99) :]) else ""


def odd_forest(seed: int) -> Forest:
    """Draw a small forest with single leaves, skewed and unequal trees, and 1 to 5 classes."""
    rng = np.random.default_rng(seed)
    classes, depth = int(rng.integers(1, 6)), int(rng.integers(0, 7))
    pool = rng.normal(size=6)
    n_trees = int(rng.integers(1, 16 * classes))
    kinds = rng.choice(["leaf", "skewed", "full", "any"], n_trees)
    trees = [_odd_tree(rng, str(kind), int(rng.integers(0, depth + 1)), pool) for kind in kinds]
    return forest_of(trees, n_features=4, base=rng.normal(size=classes))


def _odd_tree(rng: np.random.Generator, kind: str, depth: int, pool: Any) -> Any:
    if depth == 0 or kind == "leaf" or (kind == "any" and rng.random() < 0.25):
        return float(rng.normal())
    below = [_odd_tree(rng, kind, depth - 1, pool) for _ in range(1 if kind == "skewed" else 2)]
    children = [*below, float(rng.normal())][:2]
    if rng.random() < 0.5:
        children.reverse()
    left = bool(rng.random() < 0.3)
    return Split(int(rng.integers(4)), float(rng.choice(pool)), *children, left)


def with_vectors(forest: Forest, width: int, seed: int = 2) -> Forest:
    """Give the leaves of a forest vectors, some of them alike."""
    rng = np.random.default_rng(seed)
    pool = rng.normal(size=(max(4, forest.n_nodes // 2), width))
    values = pool[rng.integers(len(pool), size=forest.n_nodes)].astype(forest.sum_dtype)
    return replace(
        forest,
        leaf_value=np.where(forest.is_leaf[:, None], values, 0),
        tree_class=np.full(forest.n_trees, -1, np.int32),
        base_score=rng.normal(size=width).astype(forest.sum_dtype),
    )


def in_blocks(forest: Forest, layout: str, rows: int) -> Schedule:
    """The schedule of a layout that is walked by blocks of rows, see `SIMDIZED`."""
    sch = tvm_forest.new_schedule(forest).represent_as(layout).tile("batch", "b0", "b1", rows)
    inner = ("class", "tree") if sch.classes > 1 else ("tree",)
    return sch.reorder("b0", *inner, "b1").simdize("b1", SIMDIZED[layout])


def rounding_bound(forest: Forest, rows: Any) -> Any:
    """How far two orders of one sum can be apart: 2 (T + 1) u (|base| + sum of |leaf|)."""
    leaves = np.abs(forest.predict_reference(rows, "per_tree").astype(np.float64))
    unit = np.finfo(forest.sum_dtype).eps / 2
    if forest.has_vectors:
        sums = leaves.sum(axis=1)
    else:
        outputs = range(forest.n_outputs)
        sums = np.stack([leaves[:, forest.tree_class == c].sum(axis=1) for c in outputs], axis=1)
    return 2 * (forest.n_trees + 1) * unit * (np.abs(forest.base_score) + sums)


def check_results(
    forest: Forest, sch: Schedule, sizes: Iterable[int], jobs: Iterable[int] = (1, 2)
) -> None:
    """Bit-equal if the schedule keeps the order, else refused unless allowed, and close.

    Leaves and values of single trees are equal under every schedule.
    """
    if not sch.keeps_order:
        with pytest.raises(ScheduleError, match="exact=False"):
            tvm_forest.build(forest, schedule=sch)
    predictor = tvm_forest.build(forest, schedule=sch, exact=sch.keeps_order)
    compare(predictor, forest, sch, sizes, [{"n_jobs": count} for count in jobs])
    for n, n_jobs in product(sizes, jobs):
        rows = hard_rows(forest, n, seed=n)
        values = predictor.predict_per_tree(rows, n_jobs=n_jobs)
        assert np.array_equal(values, forest.predict_reference(rows, "per_tree")), (n, n_jobs)


def compare(
    predictor: Any,
    forest: Forest,
    sch: Schedule,
    sizes: Iterable[int],
    options: Iterable[dict[str, int]] = ({},),
) -> None:
    """Margins are bit-equal if the order is kept, else within the bound; leaves are equal."""
    for n, given in product(sizes, options):
        rows = hard_rows(forest, n, seed=n)
        expected = forest.predict_reference(rows)
        margin = predictor.predict_margin(rows, **given).reshape(expected.shape)
        bound = 0 if sch.keeps_order else rounding_bound(forest, rows)
        assert np.all(np.abs(margin - expected) <= bound), (n, given)
        leaves = predictor.apply(rows, **given)
        assert np.array_equal(leaves, forest.predict_reference(rows, "apply")), (n, given)
