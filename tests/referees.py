"""Kernels on an OpenCL that others wrote, and how many launches of which kind were compared.

python tests/referees.py 300        # or: make referees; as many schedules are drawn

Every default of the models of the tests, every recipe over every layout that a GPU can walk, and
drawn schedules run on PoCL, or on the OpenCL of the system. Margins are compared on hard rows, in
batches of 0, 1, odd and other sizes; to the bit where the order of additions is kept.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tvm_forest
from drawn_schedules import GPU_LAYOUTS
from opencl_here import find_loader, on_device
from random_schedules import Wrong, check_margins, drawn
from recipe_cases import CASES, ON_GPU
from scheduled_models import MODELS, answers_of, forest_named
from tvm_forest.errors import ForestError
from tvm_forest.gpu_runtime.opencl import OpenCLDriver
from tvm_forest.schedule_prims import Schedule

PARTS = (slice(0, 0), slice(7, 8), slice(13, 46), slice(0, 129), slice(0, 200))
MOST_TEXT = 30_000
"""PoCL compiles longer texts for minutes."""

WHOLE, FIRST = "drawn 1", "xgboost softprob"
"""Models for recipes: one output, and several classes."""

Found = Counter[tuple[str, str, str]]


class CountingDriver(OpenCLDriver):
    """A device that counts what is launched."""

    launches = 0

    def launch(self, *arguments: Any) -> None:
        """Start a kernel."""
        self.launches += 1
        super().launch(*arguments)


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


def compare(driver: CountingDriver, where: str, name: str, sch: Schedule | None) -> Found:
    """Return the launches of a case by where it comes from, layout and reduction.

    Raises:
        Wrong: margins are not those of the model.
    """
    forest, keeps = forest_named(name), sch is None or sch.keeps_order
    try:
        predictor: Any = tvm_forest.build(forest, "opencl", sch, exact=keeps)
    except ForestError:
        return Counter({(where, "refused", ""): 1})
    if len(predictor.source("opencl")) > MOST_TEXT:
        return Counter({(where, "too long", ""): 1})
    before = driver.launches
    for part in PARTS:
        check_margins(
            answers_of(name), on_device(predictor, driver), predictor.schedule, part, None
        )
    used = sch or predictor.schedule
    kinds = sorted({x.reduce for x in used.loops() if x.reduce}) or ["alone"]
    return Counter({(where, used.layout, "+".join(kinds)): driver.launches - before})


def main() -> int:
    """Compare all; return how many are wrong."""
    driver, found, wrong = CountingDriver(library=find_loader()), Found(), 0
    print(driver.identity)
    for where, name, sch in list_cases(int(sys.argv[1]) if len(sys.argv) > 1 else 100):
        try:
            found += compare(driver, where, name, sch)
        except (Wrong, ForestError) as error:
            wrong += 1
            print(f"{where}, {name}: {error}\n{sch}", flush=True)
    for key, count in sorted(found.items()):
        print(f"{key[0]:10}{key[1]:12}{key[2]:20}{count:6}")
    launches = sum(x for key, x in found.items() if key[2])
    print(f"{launches} launches compared, {wrong} cases wrong")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
