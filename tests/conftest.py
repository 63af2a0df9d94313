import gc
import os
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from shared_models import MODELS

# Bytecode is kept: without it, each worker would rewrite all test modules, and each process that
# tests start would compile the package, which takes longer than to import TVM.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["TVM_FOREST_MACHINE"] = "off"  # schedules do not depend on who runs the tests
os.environ["TVM_FOREST_CACHE"] = "off"  # also for processes that tests start
# Libraries train small models several times as fast on one thread, beside other tests above all.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# TVM's runtime would take that for its own number; this is what it takes otherwise.
os.environ.setdefault("TVM_NUM_THREADS", str(max(1, (os.cpu_count() or 2) // 2)))


OPTIMISED = frozenset(
    ("compiler", "exporting", "layouts", "passes", "relax", "runtime", "schedule_prims", "search")
    + ("targets", "tir_gen", "tools", "verification")
)
"""Folders whose tests look at compiled code, or at what it returns under any schedule."""


@pytest.fixture(scope="module", autouse=True)
def optimiser(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile without LLVM's optimiser for tests of `make test` that are not about compiled code.

    They take a third less time so. Tests marked `optimised`, and all tests of `make test-all`, run
    what users run.
    """
    short = "not long" in request.config.option.markexpr
    marked = request.node.get_closest_marker("optimised") is not None
    with pytest.MonkeyPatch.context() as patch:
        if short and not marked and request.path.parent.name not in OPTIMISED:
            patch.setattr("tvm_forest.targets.cpu.OPT_LEVEL", 0)
        yield


@pytest.fixture(scope="module")
def kept_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep compiled code for a module, whose tests build a model several times, as users do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_FOREST_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def models() -> Path:
    """The folder of real models and rows; tests that ask for it are skipped without it."""
    if not MODELS.is_dir():
        pytest.skip("real models are not at hand")
    return MODELS


def pytest_collection_finish() -> None:
    """Leave all that lives as long as the tests out of collections of garbage.

    That is over 700,000 objects, which each of the collections that tests ask for would look at.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of a test that `make test` leaves to `make test-all` and `make test-full`.

    Of a test marked `cases(4)`, four cases run in `make test`, spread evenly over all that it has;
    every sixth of the others is long, and the rest is rare. Marked `cases(4, others="long")`, all
    others are long.
    """
    for _, group in groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        cases = [item for item in group if item.get_closest_marker("long") is None]
        marker = cases[0].get_closest_marker("cases") if cases else None
        if marker is None:
            continue
        (few,) = marker.args
        kept = {round(k * (len(cases) - 1) / max(1, few - 1)) for k in range(few)}
        others = [item for number, item in enumerate(cases) if number not in kept]
        every = 1 if marker.kwargs.get("others") == "long" else 6
        for number, item in enumerate(others):
            item.add_marker(pytest.mark.rare if number % every else pytest.mark.long)
