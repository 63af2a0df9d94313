"""A GPU that does everything as late as CUDA allows: what is used too early or too late is wrong.

Whoever forgets a wait between streams, or lets go of memory that work still reads, gets away with
it on a driver that works at once, and mostly on a GPU that has nothing else to do.
"""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

import tvm_forest
from emulated_cuda import called, libcuda, settings, translate
from forests import drawn_forest
from gpu_schedules import each_row
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.runtime.gpu import dlpack, staging
from tvm_forest.runtime.gpu.arrays import DeviceArray
from tvm_forest.runtime.gpu.cuda import CudaDriver
from tvm_forest.runtime.gpu.library import Backend
from tvm_forest.runtime.gpu.memory import MemoryPool
from tvm_forest.runtime.gpu.shared_api import SharedApiDriver
from tvm_forest.schedule_prims import recipes

STREAMS = (0, 1001, 1002)


@pytest.fixture(autouse=True)
def late() -> Iterator[None]:
    settings().emulated_set(b"late", 1)
    yield
    settings().emulated_set(b"late", 0)


@lru_cache
def gpu() -> CudaDriver:
    return CudaDriver(library=libcuda())


@lru_cache
def predictors() -> list[tuple[Any, Any]]:
    """Models with one and several outputs, a link, and partial sums in memory of their own."""
    one = drawn_forest(7, 3, seed=3, base=(0.5,))
    several = drawn_forest(6, 3, seed=5, base=(0.5, -1.0, 2.0))
    linked = drawn_forest(7, 3, seed=4, base=(0.5,), link="sigmoid")
    parts = recipes.gpu_template(
        tvm_forest.new_schedule(one), rows_tb=8, tree_threads=4, shared="ordered", tree_blocks=2
    )
    schedules = ((one, each_row), (several, each_row), (linked, each_row), (one, parts))
    made = [(forest, tvm_forest.build(forest, "cuda", sch)) for forest, sch in schedules]
    for _, predictor in made:
        predictor.library.backend = Backend(gpu, translate)
    return made


def is_right(forest: Any, rows: Any, found: Any) -> bool:
    wanted = forest.predict_reference(rows).astype(found.dtype)
    return bool(np.array_equal(wanted.reshape(found.shape), found))


class Foreign:
    """Rows of another library, which uses their memory for other things once they are let go."""

    def __init__(self, rows: Any) -> None:
        self.array = DeviceArray(gpu(), rows.shape, rows.dtype, 1003)
        gpu().upload(self.array.pointer, rows, 1003)
        self.rubbish = np.full_like(rows, 7.0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.KINDS["cuda"], 0

    def __dlpack__(self, stream: int) -> Any:
        gpu().wait(0 if stream == 1 else stream, 1003)
        shape, dtype = self.array.shape, self.array.dtype
        return dlpack.give(dlpack.Tensor(self.array.pointer, shape, dtype, 0, self), 2)

    def __del__(self) -> None:
        gpu().upload(self.array.pointer, self.rubbish, 1003)
        gpu().synchronize(1003)


def ours(rows: Any, stream: int) -> DeviceArray:
    array = DeviceArray(gpu(), rows.shape, rows.dtype, stream)
    gpu().upload(array.pointer, rows, stream)
    return array


def consumed(array: DeviceArray, stream: int) -> DeviceArray:
    """A copy that a consumer makes on its own stream, as late as it can."""
    array.let_wait(stream)
    copy = DeviceArray(gpu(), array.shape, array.dtype, stream)
    gpu().copy(copy.pointer, array.pointer, array.nbytes, stream)
    return copy


def on_the_gpu(seed: int) -> int:
    """Predict rows on streams, drop results, hand them on; count those that are wrong."""
    draw, waiting, wrong = random.Random(seed), list[Any](), 0
    for number in range(60):
        forest, predictor = draw.choice(predictors())
        rows = hard_rows(forest, draw.choice([1, 7, 33]), seed=number)
        predictor.stream = draw.choice([None, *STREAMS])
        there = Foreign(rows) if draw.random() < 0.3 else ours(rows, draw.choice(STREAMS))
        found = predictor.predict_margin(there)
        del there
        way = draw.random()
        if way > 0.2:  # others are dropped before they are computed
            found = consumed(found, draw.choice(STREAMS)) if way > 0.6 else found
            waiting.append((forest, rows, found if way < 0.9 else found._copied()))
        if waiting and draw.random() < 0.4:
            forest, rows, found = waiting.pop(draw.randrange(len(waiting)))
            wrong += not is_right(forest, rows, found.numpy())
        del found
    return wrong + sum(not is_right(f, rows, found.numpy()) for f, rows, found in waiting)


def of_the_host(seed: int) -> int:
    """Predict rows of the host in chunks, from several threads; count what is wrong."""
    wrong: list[bool] = []

    def call(number: int) -> None:
        draw = random.Random(number)
        for _ in range(4):
            forest, predictor = draw.choice(predictors())
            rows = hard_rows(forest, draw.choice([1, 63, 65, 300]), seed=number)
            wrong.append(not is_right(forest, rows, predictor.predict_margin(rows)))

    threads = [threading.Thread(target=call, args=(10 * seed + k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(wrong)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 64)
    monkeypatch.setattr(staging, "CHUNK_BYTES", 1 << 10)
    monkeypatch.setattr(staging, "DIRECT_BYTES", 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("way", [on_the_gpu, of_the_host])
@pytest.mark.cases(3, others="long")
def test_work_that_is_done_late_is_right(
    way: Callable[[int], int], seed: int, small_chunks: None
) -> None:
    assert way(seed) == 0


GIVE, TAKE = MemoryPool.give, MemoryPool.take
PLANTED: dict[str, tuple[type, str, Any, Callable[[int], int]]] = {
    "streams do not wait for each other": (SharedApiDriver, "wait", lambda *_: None, on_the_gpu),
    "memory serves other streams": (
        MemoryPool,
        "take",
        lambda pool, size, stream: TAKE(pool, size, 0),
        on_the_gpu,
    ),
    "what others use is given back": (
        MemoryPool,
        "give",
        lambda pool, piece, elsewhere=False: GIVE(pool, piece),
        on_the_gpu,
    ),
    "rows of others are let go": (MemoryPool, "hold", lambda *_: None, on_the_gpu),
    "chunks are taken too early": (SharedApiDriver, "synchronize", lambda *_: None, of_the_host),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_memory_that_is_used_too_early_is_found(
    name: str, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls, method, planted, way = PLANTED[name]
    assert way(0) == 0
    with monkeypatch.context() as patched:
        patched.setattr(cls, method, planted)
        assert sum(way(seed) for seed in range(3)) > 0
        gc.collect()


def test_a_result_that_was_read_keeps_no_rows() -> None:
    forest, predictor = predictors()[0]
    rows = hard_rows(forest, 33, seed=1)
    predictor.stream = None
    for make in (Foreign, lambda rows: ours(rows, 0)):
        there = make(rows)
        known = weakref.ref(there)
        found = predictor.predict_margin(there)
        del there
        assert is_right(forest, rows, found.numpy()) and known() is None


def test_memory_comes_back_from_consumers_whose_streams_are_gone() -> None:
    forest, predictor = predictors()[0]
    there = predictor.put(hard_rows(forest, 33, seed=1))
    predictor.predict_margin(there)
    before = called("cuMemAlloc_v2")
    for stream in range(2001, 2021):
        found = predictor.predict_margin(there)
        found.let_wait(stream)
        settings().emulated_fail(b"cuEventRecord", 400)  # there is no such stream any more
        del found
        settings().emulated_work()
    assert called("cuMemAlloc_v2") == before
