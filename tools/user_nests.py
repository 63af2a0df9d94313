"""Nests that are made with TVM's primitives and annotations alone, drawn from a seed.

    python tools/user_nests.py --cpu 150 --simt 50
    python tools/user_nests.py --only cpu 17     # one of them, its function and its traceback shown

Primitives and annotations are drawn with right and wrong values. What TVM refuses is left out. What
is left must be refused by an error of ours, or compute what the model says.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import _path  # noqa: F401 (what tests share)

os.environ.setdefault("TVM_FOREST_CACHE", "off")
os.environ.setdefault("TVM_FOREST_MACHINE", "off")

from tvm import s_tir

import tvm_forest
from drawn_schedules import GPU_LAYOUTS, LAYOUTS, is_large
from random_schedules import Refused, compare
from scheduled_models import MODELS, forest_named
from tvm_forest import compiler
from tvm_forest.errors import ForestError
from tvm_forest.layouts import SIMDIZED_TREES
from tvm_forest.layouts.protocol import find
from tvm_forest.schedule_prims import Schedule
from tvm_forest.schedule_prims.devices import DIMENSIONS
from tvm_forest.schedule_prims.walks import LANE_COUNTS

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 16, 32, 64, 64, 128, 256, 512)
THREADS = ("blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.x", "threadIdx.y", "vthread.x")
VALUES: dict[str, tuple[Any, ...]] = {
    "parallel": (1, 1, 1, True, 0, "yes"),
    "gpu_dimension": (*DIMENSIONS, "grid", 3),
    "unroll": (1, 1, 2),
    "interleave": (2, 3, 8, 8, 16, 32, 33, 1, "x", [2, 3]),
    "simdize": ("gather", "gather", "bits", "permute", "octets", "words", 8),
    "unroll_walk": ("depth", "depth", 64, 1, "deep"),
    "peel_walk": (1, 2, [1, 1], [2, 0], "likely", [1, 2, 3], -1),
    "cooperate": (1,),
    "cache": ("auto", "pack", "prefetch", "stream", "shared", "near", 1),
    "atomic_reduce": (1,),
    "vector_reduce": (4, 8, 8, 16, 5),
    "ordered_reduce": (1, 1),
    "shared_reduce": (1,),
    "interlaeve": (8,),
    "name": ("rows", "rows", "tree"),
}


def canonical(name: str, layout: str) -> Any:
    """Return the function of a model's sums, in a layout."""
    forest = forest_named(name, seen=True)
    start = tvm_forest.new_schedule(forest)
    if 1 not in find(layout).tile_sizes:
        start = start.tile_nodes(4)
    if layout == "banked":
        start = start.pad_trees("forest")
    start, walks = start.represent_as(layout), find(layout).walks
    if walks in LANE_COUNTS:
        start = start.tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
        start = start.simdize("b1", walks)
    if layout in SIMDIZED_TREES:
        start = start.simdize("tree", walks)
    return tvm_forest.lower(forest, start).before["predict"]


class Draw:
    """A function while it is scheduled."""

    def __init__(self, rng: random.Random, func: Any, layout: str, gpu: bool) -> None:
        self.rng, self.gpu = rng, gpu
        self.walks = find(layout).walks
        self.tir = s_tir.Schedule(func, error_render_level="fast")

    @property
    def loops(self) -> list[Any]:
        """The loops around the walk."""
        names = ("walk", "walk_update")
        for name in names:
            with contextlib.suppress(Exception):
                return list(self.tir.get_loops(self.tir.get_sblock(name)))
        return []

    def any(self) -> Any:
        """Draw a loop."""
        return self.rng.choice(self.loops)

    def take(self, step: Callable[[], Any]) -> None:
        """Take a step, unless TVM refuses it."""
        with contextlib.suppress(s_tir.ScheduleError):
            step()

    def begin(self) -> None:
        """Tile the rows, and put their blocks around the trees, as most nests do."""
        size = self.rng.choice(LANE_COUNTS.get(self.walks, SIZES))
        rows = self.loops[0]
        blocks, rows = self.tir.split(rows, [None, size])
        others = [x for x in self.loops if x not in (blocks, rows)]
        _, _, *others = self.loops
        inner = [*others, rows] if self.walks in LANE_COUNTS or self.rng.random() < 0.7 else [rows]
        self.take(lambda: self.tir.reorder(blocks, *inner))
        if self.walks != "hops":
            self.mark("simdize", self.walks, self.loops[-1])
        elif self.rng.random() < 0.5:
            self.mark("interleave", self.rng.choice((2, 8, 16)), self.loops[-1])
        if self.gpu:
            self.take(lambda: self.tir.bind(self.loops[0], "blockIdx.x"))
            self.mark("gpu_dimension", "block.x", self.any())
        elif self.rng.random() < 0.5:
            self.take(lambda: self.tir.parallel(self.loops[0]))

    def mark(self, word: str, value: Any, loop: Any) -> None:
        """Annotate a loop."""
        self.take(lambda: self.tir.annotate(loop, f"tvm_forest.{word}", value))

    def step(self) -> None:
        """Take any step."""
        do = self.rng.choice([x for x in dir(self) if x.startswith("_do_")])
        self.take(getattr(self, do))

    def _do_split(self) -> None:
        size = self.rng.choice(SIZES)
        factors = self.rng.choice(([None, size], [None, size], [size, None], [None, 2, size]))
        self.tir.split(self.any(), factors)

    def _do_reorder(self) -> None:
        loops = self.loops
        self.rng.shuffle(loops)
        self.tir.reorder(*loops[: self.rng.randint(2, 4)])

    def _do_fuse(self) -> None:
        at = self.rng.randrange(max(1, len(self.loops) - 1))
        if self.rng.random() < 0.3:
            self.tir.fuse(*self.loops[at : at + 2])

    def _do_parallel(self) -> None:
        self.tir.parallel(self.loops[0] if self.rng.random() < 0.7 else self.any())

    def _do_unroll(self) -> None:
        self.tir.unroll(self.any())

    def _do_vectorize(self) -> None:
        self.tir.vectorize(self.loops[-1] if self.rng.random() < 0.7 else self.any())

    def _do_bind(self) -> None:
        if self.gpu or self.rng.random() < 0.1:
            self.tir.bind(self.any(), self.rng.choice(THREADS))

    def _do_decompose(self) -> None:
        if self.rng.random() < 0.3:
            self.tir.decompose_reduction(self.tir.get_sblock("walk"), self.any())

    def _do_finish(self) -> None:
        loops = self.tir.get_loops(self.tir.get_sblock("finish"))
        self.rng.choice((self.tir.parallel, lambda x: self.tir.split(x, [None, 8])))(loops[0])

    def _do_other_blocks(self) -> None:
        if self.rng.random() < 0.1:
            self.tir.rfactor(self.any(), 0)
        if self.rng.random() < 0.1:
            copy = self.tir.cache_read(self.tir.get_sblock("walk"), 0, "global")
            self.tir.compute_at(copy, self.any())

    def _do_annotate(self) -> None:
        word = self.rng.choice(sorted(VALUES))
        self.mark(word, self.rng.choice(VALUES[word]), self.any())

    def _do_annotate_well(self) -> None:
        word = self.rng.choice(("interleave", "unroll_walk", "peel_walk", "cache", "parallel"))
        loop = self.loops[-1] if word == "interleave" else self.any()
        self.mark(word, VALUES[word][0], loop)

    _do_annotate_again = _do_annotate
    _do_split_again = _do_split


def draw(device: str, seed: int) -> tuple[str, Draw, random.Random]:
    """Draw the name of a model and a function of it, scheduled."""
    rng = random.Random(f"user {device} {seed}")
    while True:
        name, gpu = rng.choice(sorted(MODELS)), device != "cpu"
        layout = rng.choice(GPU_LAYOUTS if gpu else LAYOUTS)
        try:
            func = canonical(name, layout)
        except ForestError:  # a layout that does not hold the model
            continue
        found = Draw(rng, func, layout, gpu)
        if rng.random() < 0.9:
            found.take(found.begin)
        for _ in range(rng.randint(0, 4)):
            found.step()
        return name, found, rng


def check(device: str, seed: int) -> tuple[str, str]:
    """Draw a nest, build and compare it; return what became of it, and why."""
    try:
        name, drawn, rng = draw(device, seed)
        sch: Schedule = compiler.take_schedule(drawn.tir, forest_named(name, seen=True))
        if is_large(sch):
            return "large", ""
        return compare(device, name, sch, rng), ""
    except (ForestError, Refused) as error:
        first = str(error.__cause__ if isinstance(error, Refused) else error).split("\n")[0]
        return "refused", first
    except Exception:
        return "failed", traceback.format_exc(limit=-8)


def main() -> int:
    """Try as many as asked for; return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--simt", type=int, default=0)
    parser.add_argument("--only", nargs=2)
    options = parser.parse_args()
    if options.only:
        device, seed = options.only
        print(draw(device, int(seed))[1].tir.mod.script())
        print(*check(device, int(seed)))
        return 0
    counts, reasons = Counter[str](), Counter[str]()
    for device in ("cpu", "simt"):
        for seed in range(getattr(options, device)):
            became, why = check(device, seed)
            counts[f"{device} {became}"] += 1
            reasons[why[:70]] += became == "refused"
            if became == "failed":
                print(device, seed, why, flush=True)
    print(*(f"{n:4} {what}" for what, n in sorted(counts.items())), sep="\n")
    print(*(f"{n:4} {why}" for why, n in reasons.most_common(40)), sep="\n")
    return sum(n for what, n in counts.items() if what.endswith("failed"))


if __name__ == "__main__":
    sys.exit(main())
