"""Schedules drawn at random: every layout, every directive, and arguments no search would try.

A schedule is drawn in three parts. The first gives a layout the nest that its walks need, for few
schedules that were drawn freely would be built: blocks of rows for bit planes, loops that are
mapped to a dimension for a GPU. Then come some steps of any directives, one of which, the focus, is
prepared for. At last, what is still missing for the layout is said.

    sch = drawn_schedule(random.Random(7), tvm_forest.new_schedule(forest), forest)

`ARGUMENTS` has, for each directive, what draws its arguments: mostly ones that may be accepted, and
at times any. A step that is refused is left out. hypothesis draws such schedules by a `Random` of
its own, see `strategies.py`.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import tvm_forest
from recipe_cases import CASES, ON_CPU, ON_GPU
from tvm_forest.errors import ForestError, ScheduleError
from tvm_forest.forest import Forest
from tvm_forest.forest.rewrites.tiling import WAYS
from tvm_forest.layouts import FIELD_TYPES, SIMDIZED_TREES
from tvm_forest.layouts.protocol import LAYOUTS as REGISTERED
from tvm_forest.layouts.protocol import find
from tvm_forest.runtime.leaves import with_leaf_numbers
from tvm_forest.schedule_prims import DIRECTIVES, Schedule
from tvm_forest.schedule_prims.devices import DIMENSIONS
from tvm_forest.schedule_prims.directive import name_parts
from tvm_forest.schedule_prims.fitting import check_device
from tvm_forest.schedule_prims.memory import CACHES
from tvm_forest.schedule_prims.nest import Loop
from tvm_forest.schedule_prims.reductions import WIDTHS
from tvm_forest.schedule_prims.walks import LANE_COUNTS
from tvm_forest.target import parse_target

Arguments = dict[str, Any]

LAYOUTS = tuple(sorted(REGISTERED))
CODED = [x for x in LAYOUTS if "code" in getattr(find(x), "__dataclass_fields__", ())]
"""Layouts that code blocks of rows before they are walked."""
GPU_LAYOUTS = [x for x in LAYOUTS if find(x).walks == "hops" and 1 in find(x).tile_sizes]
"""Layouts that a GPU can walk, and which need no tiles."""
SHAPING = ("tile", "tile", "reorder", "parallel", "split", "interleave", "gpu_dimension")
"""Words that are drawn more often: the others need many kinds of loops to meet."""

SIZES = (1, 2, 3, 4, 5, 7, 8, 10, 16, 24, 32, 64, 96, 128, 192, 256, 512, 1000)
MULTIPLES = (1, 1, 1, 2, 3, 5, 8, 12)
"""Blocks of lanes in a larger block of rows."""
SHARES = {"array": 1, "sparse": 2, "reorg": 4, "packed": 6}
"""Of layouts on a GPU, where others have 3. Some fit few models, and what they refuse is left to
the first one."""
FOCUS_SHARES = {
    **{"simdize": 20, "vector_reduce": 18, "cooperate": 18},
    **{"atomic_reduce": 6, "shared_reduce": 4, "interleave": 4},
}
"""Of directives to be the focus on a GPU, where others have 2. These need much to be there."""
GATES = (None, None, (0.05, 0.9), (1.0, 0.0), (0.3, 0.5))
MOSTLY = 0.9
"""How often what is drawn is likely to be accepted."""
MOST_HOPS = 36
"""Hops in the code of a function, above which a step is not taken, for the sake of its compiler."""
MOST_SLOTS = 1 << 15
"""Nodes of a padded model, above which it is not padded."""
MOST_ROWS = 1 << 13
"""Rows of a block, which has memory for each of them."""
BLOCK_CODE = 8
"""What the code of a walk of a block of rows counts as, in hops."""


def drawn_schedule(
    rng: random.Random,
    start: Schedule,
    forest: Forest | None = None,
    *,
    gpu: bool = False,
    layouts: Sequence[str] = LAYOUTS,
    most: int = 8,
) -> Schedule:
    """Draw a schedule.

    Args:
        rng: where all is drawn from.
        start: the schedule that is rewritten.
        forest: its model; without one, no depths are looked up.
        gpu: whether it is for a GPU, and not for a CPU.
        layouts: those that may be drawn.
        most: steps beside those of the first and the last part.
    """
    words = words_of(gpu)
    focus = rng.choice([*_in_shares(words, FOCUS_SHARES, 2)] if gpu else words)
    draw = Draw(rng, start, forest, gpu, focus)
    fit = [x for x in layouts if not draw.avoids(x)] or layouts
    layout = rng.choice([*_in_shares(fit, SHARES, 3)] if gpu else fit)
    _begin(draw, layout)
    likely = [*words, *(word for word in SHAPING if word in words)]
    steps = [rng.choice(likely) for _ in range(rng.randint(0, most))]
    wanted = [focus, rng.choice(words)] if gpu else [focus]
    for do in wanted:
        steps.insert(rng.randint(0, len(steps)), do)
    for do in steps:
        tries = 4 if do in wanted else 1
        any(draw.step(do) for _ in range(tries))
    _complete(draw)
    return draw.sch


def _in_shares(names: Iterable[str], shares: Mapping[str, int], usual: int) -> Iterator[str]:
    for name in names:
        yield from [name] * shares.get(name, usual)


def layouts_of(gpu: bool) -> list[str]:
    """Return the layouts that a GPU, or a CPU, walks."""
    return [x for x in LAYOUTS if not gpu or find(x).walks == "hops"]


@functools.cache
def words_of(gpu: bool) -> list[str]:
    """Return the directives of which a schedule is found that is for a GPU, or for a CPU."""
    return [do for do in sorted(DIRECTIVES) if any(_is_for(gpu, do, k) for k in range(50))]


def _is_for(gpu: bool, do: str, seed: int) -> bool:
    draw = Draw(random.Random(seed), Schedule(5), None, gpu, do)
    if gpu:
        _map_loops(draw)
    if not draw.step(do):
        return False
    try:
        check_device(draw.sch, parse_target("simt" if gpu else "llvm"))
    except ScheduleError:
        return False
    return True


@dataclass
class Draw:
    """A schedule while it is drawn.

    Attributes:
        rng, forest, gpu: see `drawn_schedule`.
        sch: what the steps so far have made.
        focus: the directive that is prepared for.
    """

    rng: random.Random
    sch: Schedule
    forest: Forest | None
    gpu: bool
    focus: str

    def says(self, share: float) -> bool:
        """Draw whether something is so."""
        return self.rng.random() < share

    def avoids(self, layout: str) -> bool:
        """Whether there would be no such schedule; at times it is drawn all the same."""
        kind = find(layout)
        elsewhere = layout not in layouts_of(self.gpu)
        without_tiles = self.focus == "cooperate" and len(kind.tile_sizes) == 1
        return (elsewhere or without_tiles or self.is_unfit(layout)) and self.says(0.95)

    def is_unfit(self, layout: str) -> bool:
        """Whether a layout cannot hold the model."""
        if self.forest is None:
            return False
        if 1 not in find(layout).tile_sizes:
            return self.forest.hits is None
        if find(layout).walks == "permute" and self.forest.has_vectors:
            return True
        return find(layout).unfit(with_leaf_numbers(self.forest)) is not None

    def takes(self, do: str, **arguments: Any) -> bool:
        """Take a step, unless it is refused or asks for too much; return whether."""
        try:
            new = DIRECTIVES[do].apply(self.sch, arguments)
        except ScheduleError:
            return False
        if is_large(new):
            return False
        self.sch = new
        return True

    def step(self, do: str) -> bool:
        """Take a step with arguments that are drawn."""
        return self.takes(do, **ARGUMENTS[do](self))

    def loop(self, wanted: Callable[[Loop], object] = lambda loop: True) -> Loop:
        """Draw a loop, mostly one that is wanted if there is any."""
        loops = self.sch.loops()
        fit = [loop for loop in loops if wanted(loop)]
        return self.rng.choice(fit if fit and self.says(MOSTLY) else loops)

    def leaf(self, *kinds: str) -> Loop:
        """Draw a leaf loop, mostly one of some kinds that may still be told how it is walked."""
        leaves = {x.name for x in self.sch.leaves()}
        return self.loop(lambda x: x.name in leaves and x.kind in kinds and not x.is_assigned)

    def concurrent(self) -> Loop:
        """Draw a loop over trees that run at the same time, which is made so if there is none."""

        def conflicts(loop: Loop) -> bool:
            return loop.kind == "tree" and loop.is_concurrent and loop.reduce is None

        if not any(map(conflicts, self.sch.loops())):
            loop = self.loop(lambda x: x.kind == "tree" and not x.is_assigned)
            if self.gpu:
                dimension = self.rng.choice(DIMENSIONS)
                self.takes("gpu_dimension", index=loop.name, dimension=dimension)
            else:
                self.takes("parallel", index=loop.name)
        return self.loop(conflicts)


def is_large(sch: Schedule) -> bool:
    """Whether there would be too much code, too large a model, or too many rows in a block."""
    steps = [loop.step for loop in sch.loops() if loop.kind == "batch"]
    rows = max((step for step in steps if isinstance(step, int)), default=1)
    hops, slots = hops_written_out(sch), slots_of_padded_trees(sch)
    return hops > MOST_HOPS or slots > MOST_SLOTS or rows > MOST_ROWS


def hops_written_out(sch: Schedule) -> int:
    """Estimate the size of the code, on which the time to compile it depends."""
    in_blocks = BLOCK_CODE * (find(sch.layout).walks != "hops")
    return sum(max(in_blocks, _hops_of_leaf(sch, leaf)) for leaf in sch.leaves())


def slots_of_padded_trees(sch: Schedule) -> int:
    """Return how large a model becomes by `pad_trees`, about; 0 if it is not padded."""
    depths = [min(depth, 40) for depth in sch.depths or ()]
    if not sch.has_rewrite("pad_trees"):
        return 0
    return sch.round_size * sum(2 << max(depths) for _ in depths)


def _hops_of_leaf(sch: Schedule, leaf: Loop) -> int:
    copies, hops = leaf.interleave * (2 if leaf.simdize else 1), 1
    for loop in sch.path(leaf.name):
        copies *= (loop.count or 1) if loop.unroll else 1
        said = loop.peel or loop.hops
        hops = max(sch.depths or (0,)) if isinstance(said, str) else said or hops
    return copies * (hops + 1)


# -- the first part: the nest that a layout needs -------------------------------------------------


def _begin(draw: Draw, layout: str) -> None:
    """Take the first steps."""
    if draw.forest is not None and draw.says(0.1):
        _begin_with_known(draw)
        return
    _prepare_model(draw, layout)
    draw.takes("represent_as", name=layout, **_types(draw, layout))
    if draw.gpu:
        _map_loops(draw)
    elif find(layout).walks in LANE_COUNTS:
        _put_rows_inside(draw, LANE_COUNTS[find(layout).walks])
    elif draw.says(0.3):
        _put_rows_inside(draw, LANE_COUNTS["gather"] if draw.says(0.7) else SIZES)
    elif layout in CODED:
        draw.takes("tile", index="batch", outer="b0", inner="b1", size=draw.rng.choice(SIZES))
    elif draw.says(0.3):
        draw.step("tile")
    if layout in SIMDIZED_TREES or draw.says(0.6):  # else after further steps
        _say_walks(draw, 0.7 if draw.says(0.5) else 0)


def _begin_with_known(draw: Draw) -> None:
    """Begin with a recipe, or with a schedule that is used by default."""
    assert draw.forest is not None, "asked for by the caller"
    try:
        if draw.says(0.5):
            name = draw.rng.choice(ON_GPU if draw.gpu else ON_CPU)
            draw.sch = CASES[name].schedule(draw.sch)
        else:
            target = "simt" if draw.gpu else "llvm"
            given = tvm_forest.default_schedules(draw.forest, target)
            draw.sch = draw.rng.choice([given[key] for key in sorted(given)])
    except ForestError:  # some recipes need more trees
        return


def _prepare_model(draw: Draw, layout: str) -> None:
    """Rewrite the model for a layout that holds no other models, and at times for any."""
    sizes = [size for size in find(layout).tile_sizes if size > 1]
    if sizes and (1 not in find(layout).tile_sizes or draw.focus == "cooperate" or draw.says(0.25)):
        draw.takes("tile_nodes", **_tile_nodes(draw, sizes))
    if layout == "banked":
        draw.takes("pad_trees", to="forest")


def _put_rows_inside(draw: Draw, counts: Sequence[int]) -> None:
    """Make blocks of rows innermost, at times with larger blocks around them."""
    count, times = draw.rng.choice(counts), draw.rng.choice(MULTIPLES)
    if times > 1:
        draw.takes("tile", index="batch", outer="B", inner="b", size=count * times)
        draw.takes("tile", index="b", outer="b0", inner="b1", size=count)
    else:
        draw.takes("tile", index="batch", outer="b0", inner="b1", size=count)
    if "tree" in draw.sch.names() and draw.says(0.4):
        parts = {"outer": "t0", "inner": "t1"}
        draw.takes("tile", index="tree", **parts, size=_size(draw, draw.sch["tree"]))
    others = [name for name in draw.sch.names() if name != "b1"]
    if draw.says(0.4):
        draw.rng.shuffle(others)
        rows = ("B", "b0") if draw.says(MOSTLY) else ()  # they are coded outside of trees
        others = [*(x for x in rows if x in others), *(x for x in others if x not in rows)]
    last = ["class"] if draw.sch.vectors and draw.sch.classes > 1 else []
    draw.takes("reorder", indices=[*(x for x in others if x not in last), "b1", *last])


def _map_loops(draw: Draw) -> None:
    """Tile rows and trees, order the loops, and give some to the threads of a GPU."""
    rng, rounds = draw.rng, draw.sch.rounds
    rows = LANE_COUNTS["gather"] if draw.focus == "simdize" else (1, 3, 4, 8, 32)
    draw.takes("tile", index="batch", outer="b0", inner="b1", size=rng.choice(rows))
    sizes = WIDTHS if draw.focus == "vector_reduce" else (1, 2, 4, 4, 5, 8, 8, rounds)
    fit = [size for size in sizes if 0 < size <= rounds]
    draw.takes("tile", index="tree", outer="t0", inner="t1", size=rng.choice(fit or [1]))
    inner = [name for name in draw.sch.names() if name != "b0"]
    rng.shuffle(inner)
    if draw.focus == "simdize":
        inner.sort(key="b1".__eq__)
    draw.takes("reorder", indices=["b0", *inner])
    if draw.says(0.9):
        draw.takes("gpu_dimension", index="b0", dimension="grid.x")
    free = ["grid.y", "block.y", "block.z", *["block.x"] * (draw.focus != "cooperate")]
    if "block.x" in free and (draw.focus == "vector_reduce" or draw.says(0.5)):
        draw.takes("gpu_dimension", index="t1", dimension="block.x")
    if draw.focus != "simdize" and draw.says(0.5):
        return _map_paths(draw, [*free, "grid.z", "grid.x"])
    mapped = inner[:-1] if draw.focus == "simdize" else inner
    for dimension in rng.sample(free, rng.randint(1, 3)):
        draw.takes("gpu_dimension", index=rng.choice(mapped), dimension=dimension)


def _map_paths(draw: Draw, dimensions: Sequence[str]) -> None:
    """Make several paths, and map the loops of each by itself: one may lack what another has."""
    for do in draw.rng.choices(("split", "split", "specialize", "split_by_depth"), k=2):
        draw.step(do)
    for leaf in [leaf.name for leaf in draw.sch.leaves()]:
        for dimension in draw.rng.sample(dimensions, draw.rng.randint(0, 3)):
            free = [x.name for x in draw.sch.path(leaf) if not x.is_assigned]
            if free:
                draw.takes("gpu_dimension", index=draw.rng.choice(free), dimension=dimension)


# -- the last part --------------------------------------------------------------------------------


def _say_walks(draw: Draw, share: float) -> None:
    """Simdize the leaf loops that a layout walks so only, and a share of the others."""
    walks = find(draw.sch.layout).walks
    for leaf in draw.sch.leaves():
        if walks != "hops" or draw.says(share):
            draw.takes("simdize", index=leaf.name, how="gather" if walks == "hops" else walks)


def _complete(draw: Draw) -> None:
    """Say how what is left is walked and added up, as the layout or a GPU needs."""
    _say_walks(draw, 0.5 if draw.says(0.3) else 0)
    if draw.gpu:
        for loop in draw.sch.loops():
            if loop.kind == "tree" and loop.gpu and loop.reduce is None and draw.says(0.3):
                draw.takes("ordered_reduce", index=loop.name)


# -- the arguments of each directive --------------------------------------------------------------


def _size(draw: Draw, loop: Loop) -> int:
    """Draw how many iterations of a loop a tile has."""
    fit = [size for size in SIZES if loop.count is None or size <= loop.count]
    return draw.rng.choice(fit if fit and draw.says(MOSTLY) else SIZES)


def _tile(draw: Draw) -> Arguments:
    loop = draw.loop(lambda x: not x.describe() and x.count != 1)
    outer, inner = name_parts(loop, "0", "1")
    names = {"index": loop.name, "outer": outer, "inner": inner}
    if draw.says(0.8):
        return {**names, "size": _size(draw, loop)}
    return {**names, "parts": draw.rng.choice((1, 2, 3, 5, 8))}


def _reorder(draw: Draw) -> Arguments:
    chain = [draw.loop(lambda x: len(x.children) == 1)]
    while len(chain[-1].children) == 1 and draw.says(0.8):
        chain += chain[-1].children
    names = [loop.name for loop in chain]
    draw.rng.shuffle(names)
    return {"indices": names}


def _parallel(draw: Draw) -> Arguments:
    outermost = [draw.sch.nest.children[0].name] * draw.says(0.5)
    inside_parallel = [a.name for b, a in pairwise(draw.sch.loops()) if b.parallel]
    wanted = outermost or inside_parallel
    return {"index": draw.loop(lambda x: x.name in wanted or not wanted).name}


def _unroll(draw: Draw) -> Arguments:
    return {"index": draw.loop(lambda x: (x.count or 99) <= 8 and not x.is_assigned).name}


def _split(draw: Draw) -> Arguments:
    loop = draw.loop(lambda x: (x.count or 0) > 1)
    first, second = name_parts(loop, "a", "b")
    step = loop.step if isinstance(loop.step, int) else 1
    at = loop.start + draw.rng.randint(1, max(1, (loop.count or 2) - 1)) * step
    if not draw.says(MOSTLY):
        at += draw.rng.choice((-1, 1))
    return {"index": loop.name, "first": first, "second": second, "at": at}


def _specialize(draw: Draw) -> Arguments:
    def fits(loop: Loop) -> bool:
        few = loop.count is not None and 1 < loop.count <= 5
        return few and len(loop.children) == 1 and not loop.is_specialized

    if draw.focus == "specialize" and not any(map(fits, draw.sch.loops())):
        loop = draw.loop(lambda x: x.kind == "tree" and (x.count or 0) > 1 and not x.describe())
        outer, inner = name_parts(loop, "0", "1")
        parts = draw.rng.randint(2, 4)
        draw.takes("tile", index=loop.name, outer=outer, inner=inner, parts=parts)
    return {"index": draw.loop(fits).name}


def _split_by_depth(draw: Draw) -> Arguments:
    if draw.sch.hops is None and draw.says(0.7):
        draw.step("know_depths")
    by = "likely" if draw.sch.likely is not None and draw.says(0.5) else "depth"
    by = by if draw.says(MOSTLY) else draw.rng.choice(("depth", "likely"))
    return {"index": draw.loop(lambda x: x.kind == "tree" and not x.is_specialized).name, "by": by}


def _interleave(draw: Draw) -> Arguments:
    factor = draw.rng.choice((2, 3, 4, 5, 7, 8, 16, 32))
    return {"index": draw.leaf("batch", "tree").name, "factor": factor}


def _unroll_walk(draw: Draw) -> Arguments:
    deepest = max(draw.sch.hops or (3,), default=3)
    hops = draw.rng.choice(("depth", "depth", deepest, deepest + 1))
    hops = hops if draw.says(MOSTLY) else draw.rng.randint(0, 64)
    return {"index": draw.loop(lambda x: x.peel is None).name, "hops": hops}


def _peel_walk(draw: Draw) -> Arguments:
    likely = ["likely"] if draw.forest is not None and draw.forest.hits is not None else []
    hops = draw.rng.choice([1, 1, 2, 3, 5, *likely])
    return {"index": draw.loop(lambda x: x.hops is None).name, "hops": hops} | (
        {"check": draw.says(0.5)} if draw.says(0.2) else {}
    )


def _simdize(draw: Draw) -> Arguments:
    ways = (*LANE_COUNTS, *SIMDIZED_TREES.values())
    walks = find(draw.sch.layout).walks
    how = "gather" if walks == "hops" else walks
    how = how if draw.says(MOSTLY) else draw.rng.choice(ways)
    leaf = draw.leaf("tree" if how in SIMDIZED_TREES.values() else "batch")
    counts = LANE_COUNTS.get(how, ())
    if counts and leaf.count not in counts and not leaf.is_assigned:
        if leaf.kind == "batch":
            outer, inner = name_parts(leaf, "0", "1")
            lanes = draw.rng.choice(counts)
            draw.takes("tile", index=leaf.name, outer=outer, inner=inner, size=lanes)
        elif draw.says(0.5) and draw.sch.names()[0] == "batch":
            _put_rows_inside(draw, counts)
        leaf = draw.leaf("batch")
    return {"index": leaf.name, "how": how}


def _tile_nodes(draw: Draw, sizes: Sequence[int] = ()) -> Arguments:
    held = sizes or [size for size in range(1, 9) if size in find(draw.sch.layout).tile_sizes]
    size = draw.rng.choice(held if held and draw.says(MOSTLY) else range(1, 9))
    profiled = draw.forest is not None and draw.forest.hits is not None
    how = draw.rng.choice(WAYS) if profiled or not draw.says(MOSTLY) else "uniform"
    return {"size": size, "how": how, "gate": None if how == "uniform" else draw.rng.choice(GATES)}


def _pad_trees(draw: Draw) -> Arguments:
    return {"to": draw.rng.choice(("tree", "forest"))}


def _sort_trees(draw: Draw) -> Arguments:
    profiled = draw.forest is not None and draw.forest.hits is not None
    return {"by": draw.rng.choice(("depth", "likely") if profiled else ("depth",))}


def _know_depths(draw: Draw) -> Arguments:
    if draw.forest is not None:
        try:
            return tvm_forest.with_depths(draw.sch, draw.forest).steps[-1].arguments
        except ForestError:  # the model cannot be rewritten so
            pass
    return {"depths": [draw.rng.randint(0, 6) for _ in range(draw.sch.rounds)]}


def _represent_as(draw: Draw) -> Arguments:
    walks, tiled = find(draw.sch.layout).walks, draw.sch.has_rewrite("tile_nodes")

    def fits(name: str) -> bool:
        sizes = find(name).tile_sizes
        return find(name).walks == walks and (len(sizes) > 1 if tiled else 1 in sizes)

    fit = [layout for layout in LAYOUTS if fits(layout)]
    layout = draw.rng.choice(fit if fit and draw.says(MOSTLY) else LAYOUTS)
    return {"name": layout, **_types(draw, layout)}


def _types(draw: Draw, layout: str) -> Arguments:
    """Draw types of some fields, mostly among those that a layout has a choice of."""
    choices = find(layout).type_choices if draw.says(0.97) else FIELD_TYPES
    tiled = draw.sch.has_rewrite("tile_nodes") or 1 not in find(layout).tile_sizes
    needed = len(find(layout).tile_sizes) == 1 or tiled
    share = 0.15 if needed else 0.01
    return {field: draw.rng.choice(types) for field, types in choices.items() if draw.says(share)}


def _cache(draw: Draw) -> Arguments:
    loop = draw.loop(lambda x: x.kind in CACHES and x.cache is None and x.children)
    words = CACHES.get(loop.kind, ("auto",))
    if not draw.gpu and draw.says(MOSTLY):
        words = tuple(word for word in words if word != "shared")
    return {"index": loop.name, "how": draw.rng.choice(words)}


def _reduce(draw: Draw) -> Arguments:
    return {"index": draw.concurrent().name}


def _vector_reduce(draw: Draw) -> Arguments:
    loop = draw.concurrent()
    fit = [k for k in WIDTHS if not loop.gpu or (loop.count or 1) % k == 0]
    return {
        "index": loop.name,
        "width": draw.rng.choice(fit if draw.says(MOSTLY) and fit else WIDTHS),
    }


def _gpu_dimension(draw: Draw) -> Arguments:
    used = {loop.gpu for loop in draw.sch.loops()}
    free = [x for x in DIMENSIONS if x not in used] if draw.says(MOSTLY) else DIMENSIONS
    loop = draw.loop(lambda x: not x.is_assigned and x.count is not None)
    return {"index": loop.name, "dimension": draw.rng.choice(free or DIMENSIONS)}


def _shared_reduce(draw: Draw) -> Arguments:
    def fits(loop: Loop) -> bool:
        return loop.kind == "tree" and "block" in str(loop.gpu) and loop.reduce is None

    if not any(map(fits, draw.sch.loops())):
        loop = draw.loop(lambda x: x.kind == "tree" and not x.is_assigned)
        dimension = draw.rng.choice(DIMENSIONS[3:])
        draw.takes("gpu_dimension", index=loop.name, dimension=dimension)
    return {"index": draw.loop(fits).name}


def _cooperate(draw: Draw) -> Arguments:
    if not draw.sch.has_rewrite("tile_nodes"):
        draw.step("tile_nodes")
    return {"index": draw.rng.choice(draw.sch.names())}


ARGUMENTS: dict[str, Callable[[Draw], Arguments]] = {
    "tile": _tile,
    "reorder": _reorder,
    "parallel": _parallel,
    "unroll": _unroll,
    "split": _split,
    "specialize": _specialize,
    "split_by_depth": _split_by_depth,
    "interleave": _interleave,
    "unroll_walk": _unroll_walk,
    "peel_walk": _peel_walk,
    "simdize": _simdize,
    "tile_nodes": _tile_nodes,
    "pad_trees": _pad_trees,
    "sort_trees": _sort_trees,
    "know_depths": _know_depths,
    "represent_as": _represent_as,
    "cache": _cache,
    "atomic_reduce": _reduce,
    "vector_reduce": _vector_reduce,
    "ordered_reduce": _reduce,
    "gpu_dimension": _gpu_dimension,
    "cooperate": _cooperate,
    "shared_reduce": _shared_reduce,
}
"""What draws the arguments of a directive."""
