"""Where the time of a bit-sliced prediction goes, and what bounds it.

    python benchmarks/bit_phases.py [--models airline higgs year letters]

Nothing is timed inside of the code. A phase is the time that is gone when it is left out, which
gives wrong answers: first trees are not walked, then planes are not written (predicates), then
values are not searched (ranking) and not even read (transposing: columns are read out of rows).
What is left is the leaves. One thread, batches of 4,096 rows in rotation, processor time, the
minimum of the rounds. Bounds are instructions counted in the assembly over six a cycle, and bytes
read over 20 GB/s, at the given clock.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from tvm import tirx

import models
import tvm_forest
from tvm_forest import Forest
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.layouts import BIT_PLANES
from tvm_forest.probe_rows import typical_rows
from tvm_forest.search.space import inner_loops
from tvm_forest.search.workload import Workload
from tvm_forest.target import Target
from tvm_forest.tir_gen.ir import i64, lanes
from tvm_forest.tir_gen.row_coding.coders import _ColumnSearch
from tvm_forest.tir_gen.row_coding.planes import PlaneWriter
from tvm_forest.tir_gen.walks.bits import BitWalk

ROWS, BATCHES, ROUNDS = 4096, 6, 12
BLOCK = 512
A_CYCLE, GIGABYTES = 6, 20.0
READ, VALUE, PLANE, SLOT, LEAVES = 2, 12, 3, 4, 62
"""Instructions to read a value and to search it in two steps; for a plane and a slot of a block,
and for 64 leaves."""


class Phase(NamedTuple):
    """One line of the table: nanoseconds a row, measured and at least."""

    name: str
    measured: float
    bound: float


def read_only(search: Any, first: Any, rows: list[Any]) -> None:
    """Store the values themselves in the place of their ranks."""
    feature = search.buffers["column_feature"][[search.column]].astype("int64")
    values = [search.coder.rows[first + r, feature] for r in rows]
    name = "low" if search.columns.steps <= 2 else "codes"
    search.store(name, [[search.column, r] for r in rows], values)


def left_out(emitter: Any, *args: Any) -> None:
    """Emit nothing."""
    emitter.code.add(tirx.Evaluate(0))


def first_planes(walk: Any) -> Any:
    """Take the first planes for the number of the leaf."""
    count = walk.tree.rep.bits
    bits = walk.code.buffer("bits", (i64(count), i64(walk.words)), "uint64")
    for bit in range(count):
        walk.code.store(bits, walk._plane(i64(bit)), [i64(bit), lanes(i64(0), walk.words)])
    return bits


def built(forest: Forest) -> tvm_forest.Predictor:
    """Compile a model for blocks of rows in bits."""
    sch = tvm_forest.new_schedule(forest).represent_as(BIT_PLANES).tile("batch", "b0", "b1", BLOCK)
    sch = sch.reorder("b0", *inner_loops(sch), "b1").simdize("b1", "bits")
    return tvm_forest.build(forest, schedule=sch)


PARTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "walk": (BitWalk, "_walk", first_planes),
    "predicates": (PlaneWriter, "write", left_out),
    "ranking": (_ColumnSearch, "emit", read_only),
    "transposing": (_ColumnSearch, "emit", left_out),
}
"""What emits each phase, and what is emitted in its place."""


def variants(forest: Forest) -> dict[str, tvm_forest.Predictor]:
    """Compile a model with one phase less each time; the key is the phase that comes next."""
    made = {}
    with ExitStack() as less:
        for name, (owner, method, instead) in PARTS.items():
            made[name] = built(forest)
            less.enter_context(mock.patch.object(owner, method, instead))
        made["leaves"] = built(forest)
    return made


def nanoseconds(made: dict[str, tvm_forest.Predictor]) -> dict[str, float]:
    """Time predictors in turns; nanoseconds a row of each."""
    forest = made["leaves"].forest
    rows = [typical_rows(forest, ROWS, seed=seed) for seed in range(BATCHES)]
    best = dict.fromkeys(made, np.inf)
    for _, (name, predictor) in itertools.product(range(ROUNDS), made.items()):
        begin = time.process_time()
        for batch in rows:
            predictor.predict_margin(batch, n_jobs=1)
        best[name] = min(best[name], (time.process_time() - begin) / ROWS / BATCHES * 1e9)
    return best


def phases(forest: Forest, gigahertz: float) -> Iterator[Phase]:
    """Measure the phases of a model."""
    work, took = Workload.of(forest, Target()), nanoseconds(variants(forest))
    width = forest.n_features * np.dtype(forest.row_dtype).itemsize
    instructions = {
        "walk": SLOT * (work.slots + work.selections) / BLOCK,
        "predicates": PLANE * work.tests / BLOCK,
        "ranking": VALUE * forest.searches,
        "transposing": READ * forest.searches,
        "leaves": LEAVES * forest.n_trees / 64,
    }
    left = [*list(took.values())[1:], 0.0]
    measured = {name: took[name] - less for name, less in zip(took, left, strict=True)}
    for name, count in instructions.items():
        bound = count / A_CYCLE / gigahertz
        bound = max(bound, width / GIGABYTES) if name == "transposing" else bound
        yield Phase(name, measured[name], bound)
    yield Phase("all", took["walk"], np.nan)


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["airline", "higgs", "year", "letters"])
    parser.add_argument("--gigahertz", type=float, default=2.6, help="clock that bounds assume")
    options = parser.parse_args()
    for name in options.models:
        forest = canonicalize(tvm_forest.load(models.get(name).load()))
        print(f"\n{name}, ns a row\n\n| phase | measured | bound |\n|---|---:|---:|")
        for phase in phases(forest, options.gigahertz):
            bound = "" if np.isnan(phase.bound) else f"{phase.bound:.3g}"
            print(f"| {phase.name} | {phase.measured:.3g} | {bound} |", flush=True)


if __name__ == "__main__":
    main()
