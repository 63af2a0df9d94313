"""Count what a multiprocessor of a GPU has to do for 32 rows in a tree; needs no GPU.

    python -m benchmarks gpu.kernels.cycles                  # or: make gpu-cycles; writes the page
    python -m benchmarks gpu.kernels.cycles --models airline # prints the part of one model
    python -m benchmarks gpu.kernels.cycles --tiles          # prints the part on tiles, by g++

Needs nvcc, g++ and nvdisasm: CUDA's, or the one in the Python package triton. The model of an H100:

- **Issue**: four schedulers give out an instruction of a warp a cycle each. The instructions of the
  loop over trees are those of the machine code (sm_90). Those outside, which code rows and copy
  trees, are as many for an access of memory as stand in the machine code there, and accesses are
  counted.
- **ALU**: comparisons, selections, shifts, logic and most additions take two cycles of one of four
  pipes, so two of them are begun a cycle. Of the other instructions more can be.
- **Shared memory** and the **first-level cache** pass 128 bytes a cycle each. How many passes
  (wavefronts) an access takes is counted with the addresses of real rows, see `traces`. Both
  are parts of one memory: where their passes exclude each other, their sum counts ("both").
- **Latency**: a hop waits for two loads and some instructions, `HOP_CYCLES`. What the warps of a
  multiprocessor have in flight, walks that advance together included, hides that.

A block begins where another has ended; blocks of a multiprocessor are limited by threads, registers
and shared memory. Cycles of 32 rows in a tree are the largest of the five, for multiprocessors that
have work. Memory of the device, and the start of a kernel, are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tvm_forest
from benchmarks import RESULTS, models
from benchmarks.gpu.kernels import traces
from benchmarks.gpu.kernels.machine_code import ALU, LOADS, Code, Uncounted, read_code
from benchmarks.gpu.kernels.nvforest import nvforest_kernel
from tvm_forest import Schedule
from tvm_forest.errors import ScheduleError
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.forest.rewrites.ordering import take_trees
from tvm_forest.runtime.gpu.plan import Launch
from tvm_forest.schedule_prims import recipes
from tvm_forest.targets import cuda
from tvm_forest.targets.kernel_text import declare_at_launch

PAGE = RESULTS / "gpu_cycles.md"
NAMES = ("airline", "higgs", "year", "epsilon", "letters")
BATCHES = (1, 32, 512, 4096, 65536, 1_000_000)
TILES = (2, 4, 8)
DEFAULT = "default from"
WALKED = ("nodes", "leaf_value", "sums", "offset", "depth", "roots")
SMS, REGISTERS, SHARED, THREADS, MAX_BLOCKS = 132, 65536, 233_472, 2048, 32
"""Of an H100, and of a multiprocessor: registers, bytes of shared memory, threads and blocks."""
BLOCK_SHARED = 1024
"""Bytes of shared memory that the system takes for each block."""
HOP_CYCLES = {True: 85, False: 95}
"""From a node to the next: whether nodes lie in shared memory, or in the first-level cache."""
ADD_CYCLES = 6
"""From an addition to the next one that needs its sum, with a part of a load of 16 terms."""
MAX_TREES, MAX_ROUNDS = 2000, 60
"""Of a forest of more trees, so many rounds are counted: a tree of any other takes as much."""
HERTZ = 1.755e9


class Count(NamedTuple):
    """What 32 rows in a tree take of a multiprocessor.

    Attributes:
        instructions, alu: of a warp, in all and those of the ALU.
        shared, global_: wavefronts.
        hops: hops of a walk, on the average.
    """

    instructions: float
    alu: float
    shared: float
    global_: float
    hops: float

    @property
    def cycles(self) -> float:
        """Cycles without latency."""
        return max(self.instructions / 4, self.alu / 2, self.shared, self.global_)


def count_work(code: Code, sites: list[traces.Site], units: float, hops: float) -> Count:
    """Join instructions and accesses, for 32 rows in a tree; `units` of them were traced."""
    shared = sum(x.wavefronts for x in sites if x.shared) / units
    global_ = sum(x.wavefronts for x in sites if not x.shared) / units
    loop = {name: n for name, n in code.loop.items() if not name.startswith("hop")}
    more = hops if "hop" in code.loop else 0.0
    inside, alu = sum(loop.values()), sum(n for name, n in loop.items() if name in ALU)
    inside += more * code.loop.get("hop", 0)
    alu += more * code.loop.get("hop ALU", 0)
    outside = sum(x.operations for x in sites if not _walks(x, sites)) / units
    loads = max(1, sum(code.outside[x] for x in LOADS))
    rate = sum(code.outside.values()) / loads
    rate_alu = sum(n for name, n in code.outside.items() if name in ALU) / loads
    return Count(inside + outside * rate, alu + outside * rate_alu, shared, global_, hops)


def _walks(site: traces.Site, sites: list[traces.Site]) -> bool:
    """Whether walks access what they read here, and not what copies it or comes before."""
    name = site.buffer.removesuffix("_ptr")
    if site.stores or name not in (
        *WALKED,
        *(f"near_{x}" for x in WALKED),
        "near",
        "banks",
        "codes",
    ):
        return False
    return site.shared or not any(x.buffer == f"near_{site.buffer}" for x in sites)


class Setting(NamedTuple):
    """A kernel and how it is launched.

    Attributes:
        label: for the table.
        count: what 32 rows in a tree take.
        code: its machine code.
        threads: of a block.
        rows: of a block.
        together: walks of a thread that advance together.
        near: whether nodes lie in shared memory.
        added: leaves that a thread adds one by one, behind the walks.
        copies: blocks that share the trees of the same rows.
    """

    label: str
    count: Count
    code: Code
    threads: int
    rows: int
    together: int
    near: bool
    added: int = 0
    copies: int = 1

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor holds."""
        registers = -(-self.code.registers // 8) * 8 * self.threads
        limits = (REGISTERS // registers, SHARED // (self.code.shared + BLOCK_SHARED))
        return max(1, min(*limits, THREADS // self.threads, MAX_BLOCKS))

    def cycles(self, batch: int) -> tuple[float, int]:
        """Return the cycles of 32 rows in a tree, latency included, and how many SMs have work."""
        blocks = -(-batch // self.rows) * self.copies
        busy = min(SMS, blocks)
        here = min(self.resident, -(-blocks // SMS))
        walks = here * self.threads // 32 * self.together
        latency = self.count.hops * HOP_CYCLES[self.near] / walks
        return max(self.count.cycles, latency), busy

    def seconds(self, batch: int, trees: int) -> float:
        """Return the time of a batch: that of the multiprocessor that has most blocks."""
        here = -(-(-(-batch // self.rows) * self.copies) // SMS)
        adding = -(-here // self.resident) * self.added * ADD_CYCLES
        walks = here * self.rows / 32 * trees / self.copies
        return (walks * self.cycles(batch)[0] + adding) / HERTZ


def measure(label: str, forest: Any, schedule: Schedule, rows: Any, expected: Any) -> Setting:
    """Count a schedule of ours."""
    predictor = tvm_forest.build(forest, "cuda", schedule)
    source = predictor.source("cuda")
    launch = next(x for x in predictor.library.plans["predict"].steps if isinstance(x, Launch))
    values: dict[str, Any] = {"n": len(rows)}
    threads = int(np.prod([traces.emulated_cuda.evaluate(x, values) for x in launch.block]))
    blocks, *more = (int(traces.emulated_cuda.evaluate(x, values)) for x in launch.grid)
    sites, margins = traces.trace(predictor, rows)
    assert margins.tobytes() == expected.tobytes(), "the emulated kernel is right"
    keepers = [x for x in schedule.loops() if x.reduce == "ordered"]
    sharing = max((x.count or 1 for x in keepers), default=1)
    turns = -(-schedule.rounds // sharing) if keepers else None
    code = read_code(source, launch.kernel, turns=turns)
    code = code._replace(
        shared=max(code.shared, traces.emulated_cuda.evaluate(launch.shared, values))
    )
    units = len(rows) / 32 * forest.n_trees
    near = any(x.shared and "nodes" in x.buffer for x in sites)
    together = max((x.interleave for x in schedule.leaves()), default=1)
    count = count_work(code, sites, units, float(forest.depths.mean()))
    added = schedule.rounds if keepers else 0
    rows_of_block = len(rows) // blocks
    copies = int(np.prod(more))
    return Setting(label, count, code, threads, rows_of_block, together, near, added, copies)


def schedules(forest: Any) -> dict[str, Callable[[], Schedule]]:
    """Return the schedules that are compared, by label; the defaults first."""
    start = tvm_forest.new_schedule(forest)
    by_batch = tvm_forest.default_schedules(forest, "cuda").items()
    return {
        **{f"{DEFAULT} {n:,}": lambda sch=sch: sch for n, sch in by_batch},  # type: ignore[misc]
        "a thread a row": lambda: tvm_forest.hop_schedule(forest, "cuda"),
        "packed, 4 trees together": lambda: (
            recipes.tahoe_direct(start.represent_as("packed"))
            .cache("b0", "shared")
            .interleave("tree", 4)
            .unroll_walk("tree")
        ),
        "`gpu_shared_ranks`": lambda: recipes.gpu_shared_ranks(start),
    }


def measure_nvforest(forest: Any, rows: Any, expected: Any) -> Setting:
    """Count the kernel that accesses memory as nvForest's does, 32 rows at a time."""
    made = nvforest_kernel(forest)
    text, sizes = declare_at_launch(made.text)
    source = cuda.PRELUDE + text
    sites, sums = traces.trace_kernel(
        source,
        "nvforest_kernel",
        (-(-len(rows) // made.rows), 256),
        [np.zeros((len(rows), forest.n_outputs), np.float32), made.roots, rows, made.nodes],
        len(rows),
    )
    assert np.allclose(sums + forest.base_score, expected, rtol=1e-4, atol=1e-4), "walks are right"
    code = read_code(source, "nvforest_kernel", walks=1)
    code = code._replace(shared=max(code.shared, sizes.get("nvforest_kernel", 0)))
    count = count_work(code, sites, len(rows) / 32 * forest.n_trees, float(forest.depths.mean()))
    return Setting(f"nvForest, {made.rows} rows", count, code, 256, made.rows, 1, False)


def table(name: str, folder: Path) -> list[str]:
    """Return the lines of a model."""
    model = models.get(name, folder)
    forest = canonicalize(tvm_forest.load(model.path))
    most = MAX_ROUNDS * forest.n_outputs
    if forest.n_trees > MAX_TREES:
        forest = take_trees(forest, np.arange(most))
    rows = np.ascontiguousarray(model.rows()[:1024], np.float32)
    expected = forest.predict_reference(rows)
    settings, refused = [measure_nvforest(forest, rows, expected)], list[str]()
    counted = set[Schedule]()
    for label, write in schedules(forest).items():
        try:
            if (schedule := write()) not in counted:
                settings.append(measure(label, forest, schedule, rows, expected))
            counted.add(schedule)
        except (ScheduleError, Uncounted) as error:
            refused.append(f"{label}: {str(error).splitlines()[0]}")
    said = ["", *refused] if refused else []
    return [*map(line_of, settings), *said, *lines_of_batches(forest, settings)]


def line_of(each: Setting) -> str:
    """Return what a kernel takes."""
    c = each.count
    return (
        f"| {each.label} | {each.threads} | {each.code.registers} | {each.code.shared} | "
        f"{each.resident} | {c.instructions / max(1, c.hops):.1f} | {c.instructions / 4:.1f} | "
        f"{c.alu / 2:.1f} | {c.shared:.1f} | {c.global_:.1f} | {c.shared + c.global_:.1f} | "
        f"**{c.cycles:.1f}** |"
    )


def lines_of_batches(forest: Any, settings: list[Setting]) -> list[str]:
    """Return the cycles of each kernel at each size of batch; of the defaults, the one for it."""
    defaults = {
        int(x.label.removeprefix(DEFAULT).replace(",", "")): x
        for x in settings
        if x.label.startswith(DEFAULT)
    }
    others = [x for x in settings if x not in defaults.values()]
    heads = [x.label for x in others[:1]] + ["default"] + [x.label for x in others[1:]]
    lines = ["", "| rows |" + "".join(f" {x} |" for x in heads), "|---:|" + "---:|" * len(heads)]
    for batch in BATCHES:
        default = defaults[max(n for n in defaults if n <= batch)] if 1 in defaults else None
        cells = [_cell(forest, x, batch) for x in (others[0], default, *others[1:])]
        lines.append(f"| {batch:,} |" + "".join(cells))
    return lines


def _cell(forest: Any, setting: Setting | None, batch: int) -> str:
    if setting is None:
        return " - |"
    cycles, busy = setting.cycles(batch)
    us = setting.seconds(batch, forest.n_trees) * 1e6
    return f" {cycles:.1f} on {busy}, {us:,.{0 if us >= 10 else 1}f} us |"


def list_tile_schedules(forest: Any) -> dict[str, Schedule]:
    """Return schedules with and without tiles, whose rows lie in shared memory, by label."""

    def map_rows(sch: Schedule, dimension: str) -> Schedule:
        sch = sch.represent_as("sparse").tile("batch", "b0", "b1", 32)
        return (
            sch.gpu_dimension("b0", "grid.x").gpu_dimension("b1", dimension).cache("b0", "shared")
        )

    start = tvm_forest.new_schedule(forest)
    found = {"none | a thread a row": map_rows(start, "block.x")}
    for size in TILES:
        tiled = start.tile_nodes(size)
        found[f"{size} | a thread a row"] = map_rows(tiled, "block.x")
        found[f"{size} | a team a row"] = map_rows(tiled, "block.y").cooperate("b1")
    return found


def list_tiles(folder: Path) -> list[str]:
    """Return the part on tiles: accesses and passes of 32 rows in a tree, by thread and by team."""
    model = models.get("airline", folder)
    forest = canonicalize(tvm_forest.load(model.path))
    rows = np.ascontiguousarray(model.rows()[:256], np.float32)
    expected, units = forest.predict_reference(rows), len(rows) / 32 * forest.n_trees
    lines = [TILES_SAID, "| nodes of a tile | who walks | accesses | shared | L1 |"]
    lines.append("|---:|---|---:|---:|---:|")
    for label, schedule in list_tile_schedules(forest).items():
        predictor = tvm_forest.build(forest, "cuda", schedule)
        sites, margins = traces.trace(predictor, rows)
        assert margins.tobytes() == expected.tobytes(), "the emulated kernel is right"
        accesses = sum(x.operations for x in sites) / units
        near, far = (sum(x.wavefronts for x in sites if x.shared == y) for y in (True, False))
        lines.append(f"| {label} | {accesses:.0f} | {near / units:.0f} | {far / units:.0f} |")
    return [*lines, ""]


TILES_SAID = """\
## Tiles, by a thread or by a team

A tile takes fewer hops, and more loads for each. By `cooperate` a team of threads has a node each
and decides a tile together, so that its loads are next to each other. Below are the accesses of
warps for 32 rows in a tree of `airline`, and the passes that they take: layout `sparse`, 32 rows a
block, which lie in shared memory. Neither pays here. Tiles of several rows lie in more lines of the
cache than single nodes do. A warp of teams walks fewer rows, so what is done once for a hop, such
as the look-up of the child, is done more often. No default schedule has tiles on a GPU.
"""
INTRODUCTION = """\
# What kernels take of a multiprocessor

Written by `make gpu-cycles`, without a GPU: cycles of an H100's multiprocessor for 32 rows in a
tree. Instructions are those of the machine code for sm_90; passes through shared memory and through
the first-level cache are counted with the addresses of real rows, in an emulation of the text. The
model, and what it leaves out, is in `benchmarks/gpu/kernels/cycles.py`. **Cycles** are the largest
of issue, ALU, shared and L1; "both" is what shared and L1 come to if their passes exclude each
other.

nvForest is a kernel of ours that accesses memory as nvForest's does; it adds up in another order.
All others are exact. "default from 512" is the default schedule of 512 rows and more, up to the
next one; `gpu_shared_ranks` and "packed" have no line of their own where they are one. "47.6 on
132, 43 us" are the cycles at that batch, waiting included, the multiprocessors that have work, and
the time at 1.755 GHz for 132 of them. Where leaves are added behind the walks, that time holds
their additions. Of `letters`, 60 rounds of 26 trees are counted.

The tables are of 2026-11-23. Since then the default schedules are chosen by what an H200 took,
which [gpu.md](../../docs/gpu.md) shows beside nvForest; much of it is waiting, which is not counted
here.
"""
ENDING = """\
## What was counted and not built

**Rows of many columns, column by column.** The rows of `epsilon` are 8,000 bytes: an H100's memory
(3.35 TB/s, 14.5 bytes a cycle and multiprocessor) takes 177 cycles to give 32 of them for each of
100 trees, and the trees test 1,631 of the 2,000 columns, so no sector can be left out. That, and
not the 78 cycles of the kernel, bounds large batches. Rows turned by an earlier kernel would pass
through memory three times, and their walks would take 98 passes through the first-level cache, 29
for nodes and 69 for columns.

**Bit planes.** A kernel written by hand and compiled for sm_90: 1,024 rows a block, a word of 32
rows a thread; each of 16 warps selects among the planes of a tree of depth 8 and leaves the numbers
of leaves in shared memory, from where threads of rows add leaf values in order. For 32 rows in a
tree that is 33 instructions, 20 of the ALU, and 11.6 passes through shared memory; with ranks and
planes of `airline` (1,387 tests) about 53, 30 and 13, so 15 cycles, where `gpu_shared_ranks` takes
23. But planes take 128 bytes a test, here 178 KB of shared memory: there must be fewer than about
1,500 tests (`higgs` has 4,790). And a block of 1,024 rows leaves half of the multiprocessors idle
at 65,536 rows, where it would be slower. It would pay for `airline` from 135,000 rows on, and for
`letters` (215 tests). It needs selections of trees of any shape, the layout `bitsliced` with the
numbers of planes in their order, and a coder that turns ranks into planes.
"""
HEAD = (
    "| kernel | threads | registers | shared bytes | blocks of an SM | instructions a hop | issue |"
    " ALU | shared | L1 | both | cycles |"
)


def main() -> None:
    """Write the page, or print the part of some models."""
    parser = argparse.ArgumentParser(description="what kernels take of a GPU's multiprocessor")
    parser.add_argument("--models", nargs="*", default=None)
    parser.add_argument("--tiles", action="store_true", help="print the part on tiles alone")
    parser.add_argument("--folder", type=Path, default=models.CACHE)
    options = parser.parse_args()
    if options.tiles:
        print("\n".join(list_tiles(options.folder)))
        return
    lines = list[str]()
    for name in options.models or NAMES:
        lines += [f"## {name}", "", HEAD, "|---|" + "---:|" * 11]
        lines += [*table(name, options.folder), ""]
        print("\n".join(lines[lines.index(f"## {name}") :]), flush=True)
    if not options.models:
        tiles = list_tiles(options.folder)
        PAGE.write_text("\n".join([INTRODUCTION, *lines, *tiles, ENDING]), encoding="utf-8")
