"""Where the time of a bit-sliced prediction goes, and what bounds it.

    python -m benchmarks rewrites.bit_phases [--models airline higgs year epsilon letters]

Nothing is timed inside of the code. A phase is the time that is gone when it is left out, which
gives wrong answers: first trees are not walked, then ranks do not become planes (predicates),
values are not compared with single cuts (comparing), not searched (ranking), and not even read
(transposing: rows become columns). What is left is the leaves. One thread, batches of 4,096 rows in
rotation, processor time, the minimum of the rounds. Bounds are instructions counted in the assembly
for AVX-512 over six a cycle, and bytes read over 20 GB/s, at the given clock.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from tvm import tirx

import tvm_forest
from benchmarks import models
from tvm_forest import Forest
from tvm_forest.forest.probe_rows import typical_rows
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.layouts import BIT_PLANES
from tvm_forest.layouts.row_codes.planes import number_tests
from tvm_forest.search.space import inner_loops
from tvm_forest.search.workload import Workload
from tvm_forest.system.code_cache import OFF, VARIABLE
from tvm_forest.target import Target
from tvm_forest.tir_gen.ir import i64
from tvm_forest.tir_gen.row_coding.panels import PanelCoder
from tvm_forest.tir_gen.row_coding.planes import PlaneWriter
from tvm_forest.tir_gen.walks.bits import BitWalk

ROWS, BATCHES, ROUNDS = 4096, 6, 12
BLOCK = 512
MODELS = ["airline", "higgs", "year", "epsilon", "letters"]
A_CYCLE, GIGABYTES = 6, 20.0
UNIT, COMPARISON, PLANE, SLOT, LEAVES = 150, 14, 3, 4, 62
"""Instructions to turn 64 rows of four features into columns, and to compare 64 values with a cut;
for a plane and a slot of a block; and for 64 leaves."""
SEARCH = {5: 68, 6: 84, 7: 112, 8: 164}
"""Instructions to search 64 values, by levels."""


class Phase(NamedTuple):
    """One line of the table: nanoseconds a row, measured and at least."""

    name: str
    measured: float
    bound: float


def left_out(emitter: Any, *args: Any) -> None:
    """Emit nothing."""
    emitter.code.add(tirx.Evaluate(0))


def first_planes(walk: Any, form: int, bits: Any) -> Any:
    """Take the first planes for the number of the leaf."""
    walk._store(bits, [walk._plane(i64(bit)) for bit in range(walk.tree.layout.bits)])
    return bits


def built(forest: Forest) -> tvm_forest.Predictor:
    """Compile a model for blocks of rows in bits."""
    sch = tvm_forest.new_schedule(forest).represent_as(BIT_PLANES).tile("batch", "b0", "b1", BLOCK)
    sch = sch.reorder("b0", *inner_loops(sch), "b1").simdize("b1", "bits")
    return tvm_forest.build(forest, schedule=sch)


PARTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "walk": (BitWalk, "_walk", first_planes),
    "predicates": (PlaneWriter, "write", left_out),
    "comparing": (PanelCoder, "compare", left_out),
    "ranking": (PanelCoder, "search", left_out),
    "transposing": (PanelCoder, "read", left_out),
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
    work, numbered = Workload.of(forest, Target()), number_tests(forest)
    took = nanoseconds(variants(forest))
    panels = numbered.code.panels
    sizes = np.diff(numbered.arrays["panel_stops"][:, [0, -1]]).ravel().tolist()
    groups = [x for x in zip(panels.groups, sizes, strict=False) if x[1]]
    compared = sum(tests for x, tests in groups if x.steps == 1)
    searching = sum(SEARCH[x.levels] * columns for x, columns in groups if x.steps == 2)
    width = forest.n_features * np.dtype(forest.row_dtype).itemsize
    instructions = {
        "walk": SLOT * (work.slots + work.selections) / BLOCK,
        "predicates": PLANE * (work.tests - compared) / BLOCK,
        "comparing": COMPARISON * compared / 64,
        "ranking": searching / 64,
        "transposing": UNIT * int(numbered.arrays["panel_units"].sum()) / 64,
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
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--gigahertz", type=float, default=2.6, help="clock that bounds assume")
    options = parser.parse_args()
    os.environ[VARIABLE] = OFF  # which would give the whole code for that with a phase less
    for name in options.models:
        forest = canonicalize(tvm_forest.load(models.get(name).load()))
        print(f"\n{name}, ns a row\n\n| phase | measured | bound |\n|---|---:|---:|")
        for phase in phases(forest, options.gigahertz):
            bound = "" if np.isnan(phase.bound) else f"{phase.bound:.3g}"
            print(f"| {phase.name} | {phase.measured:.3g} | {bound} |", flush=True)
