"""What a GPU's driver is asked around kernels: memory, graphs, rows, compilers, DLPack."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tvm_forest
from emulated_cuda import called, emulated, libcuda, settings
from forests import drawn_forest
from gpu_schedules import each_row
from tvm_forest.errors import DeviceError, InputError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.runtime.gpu import cuda_compiler, dlpack, memory, staging
from tvm_forest.runtime.gpu.arrays import DeviceArray
from tvm_forest.runtime.gpu.cuda import CudaDriver
from tvm_forest.runtime.gpu.cuda_compiler import Compiler, compile_cuda
from tvm_forest.target import parse_target

FOREST = drawn_forest(13, 3, seed=3, base=(0.5,))
LINKED = drawn_forest(13, 3, seed=3, base=(0.5,), link="sigmoid")


def driver() -> CudaDriver:
    return CudaDriver(library=libcuda())


def made(model: Any = FOREST) -> Any:
    return emulated(tvm_forest.build(model, "cuda", each_row))


def filled(here: CudaDriver, array: Any, stream: int = 0) -> DeviceArray:
    there = DeviceArray(here, array.shape, array.dtype, stream)
    here.upload(there.pointer, array, stream)
    return there


# -- memory ---------------------------------------------------------------------------------------


def test_a_piece_of_memory_is_an_eighth_too_large_at_most() -> None:
    for size in (1, 512, 513, 575, 576, 577, 1023, 1024, 1025, 10**6, 2**20 + 1, 3 * 2**30 + 5):
        rounded = memory.round_up(size)
        assert max(size, 512) <= rounded <= max(512, size * 9 / 8)
        assert memory.round_up(rounded) == rounded


def test_memory_serves_again_for_sizes_that_are_near_and_on_its_stream_only() -> None:
    here = driver()
    pool, first = here.pool, here.pool.take(100_000, 7)
    pool.give(first)
    assert pool.take(99_000, 7) is first
    pool.give(first)
    assert pool.take(60_000, 7) is first, "up to twice as large"
    pool.give(first)
    assert pool.take(40_000, 7) is not first
    assert pool.take(100_000, 8) is not first
    assert pool.take(100_000, 7) is first


def test_memory_that_nobody_takes_goes_back_to_the_driver() -> None:
    here = driver()
    large, frees = here.pool.take(1 << 20, 0), called("cuMemFree_v2")
    here.pool.give(large)
    for _ in range(2 * memory.IDLE_TURNS + 1):
        here.pool.give(here.pool.take(700, 0))
    assert called("cuMemFree_v2") == frees + 1
    assert here.pool.count_idle_bytes() == 704


def test_idle_memory_has_a_bound() -> None:
    settings().emulated_set(b"memory", 1 << 20)
    try:
        here = driver()
    finally:
        settings().emulated_set(b"memory", 80 << 30)
    for size in range(1 << 14, 1 << 17, 1 << 14):
        here.pool.give(here.pool.take(size, size))  # on streams of their own
        assert here.pool.count_idle_bytes() <= 1 << 18


def test_memory_that_fails_is_asked_for_again_without_idle_pieces() -> None:
    here = driver()
    here.pool.give(here.pool.take(5000, 0))
    settings().emulated_fail(b"cuMemAlloc_v2", 2)
    try:
        with pytest.raises(DeviceError, match="out of memory"):
            here.pool.take(9_000_000, 0)
    finally:
        settings().emulated_work()
    assert here.pool.count_idle_bytes() == 0


def test_a_child_lets_go_of_arrays_without_the_driver() -> None:
    here = driver()
    result = filled(here, np.arange(4.0)).let_wait(5)
    predictor = made()
    predictor.predict(hard_rows(FOREST, 3))
    names = ("cuStreamWaitEvent", "cuMemFree_v2", "cuEventCreate", "cuMemAlloc_v2")
    before, raised = [called(name) for name in names], list[Any]()
    child = os.fork()
    if child == 0:
        try:
            sys.unraisablehook = raised.append
            del result, predictor
            with pytest.raises(DeviceError, match="this process was forked"):
                here.pool.take(1, 0)
            del here
            gc.collect()
            assert not raised and before == [called(name) for name in names]
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# -- graphs ---------------------------------------------------------------------------------------


def test_memory_of_a_graph_is_not_used_by_later_calls() -> None:
    predictor, rows = made(LINKED), hard_rows(LINKED, 33, seed=1)
    there = predictor.put(rows)
    expected = predictor.predict(rows)
    predictor.stream = 42
    settings().emulated_set(b"captured", 42)
    try:
        result = predictor.predict(there)
    finally:
        settings().emulated_set(b"captured", 0)
    held = result.pointer
    assert np.array_equal(result.numpy(), expected)
    del result
    gc.collect()
    executor = predictor.library.executor
    assert held in executor.captured
    later = [predictor.predict(there) for _ in range(3)]
    assert held not in {x.pointer for x in later}
    frees = called("cuMemFree_v2")
    captured, copies = len(executor.captured), len(executor._copies)
    del later, predictor, executor, there
    gc.collect()
    assert captured and called("cuMemFree_v2") == frees + captured + copies


def test_partial_sums_of_a_graph_are_kept_as_well() -> None:
    sch = tvm_forest.new_schedule(FOREST).tile("batch", "b0", "b1", 8)
    sch = sch.tile("tree", "t0", "t1", 5).reorder("t0", "b0", "b1", "t1")
    sch = sch.gpu_dimension("t0", "grid.y").gpu_dimension("b0", "grid.x")
    sch = sch.gpu_dimension("b1", "block.x")
    predictor = emulated(tvm_forest.build(FOREST, "cuda", sch, exact=False))
    assert predictor.library.plans["predict"].allocations
    there = predictor.put(hard_rows(FOREST, 20, seed=1))
    predictor.predict(there)
    predictor.stream = 42
    settings().emulated_set(b"captured", 42)
    try:
        predictor.predict(there)
    finally:
        settings().emulated_set(b"captured", 0)
    assert len(predictor.library.executor.captured) == 2


def test_a_graph_cannot_be_captured_before_the_model_is_on_the_gpu() -> None:
    predictor, rows = made(), hard_rows(FOREST, 3)
    there = predictor.put(rows)
    predictor.stream = 42
    settings().emulated_set(b"captured", 42)
    try:
        with pytest.raises(DeviceError, match="graph is captured; predict some rows once before"):
            predictor.predict(there)
    finally:
        settings().emulated_set(b"captured", 0)


# -- rows of the host -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", [FOREST, LINKED], ids=["margins", "margins and values"])
def test_many_rows_go_in_chunks_and_their_results_come_back_in_order(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "CHUNK_BYTES", 1)
    monkeypatch.setattr(staging, "CHUNK_ROWS", 16)
    monkeypatch.setattr(staging, "MOST_THREADS", 1)
    predictor, right = made(model), tvm_forest.build(model, schedule=lambda start: start)
    for n in (1, 32, 100):  # the model is copied for each function when it is called first
        predictor.predict(hard_rows(model, n))
    for n in (0, 1, 15, 16, 17, 32, 33, 100):
        rows = hard_rows(model, n, seed=n)
        uploads = called("cuMemcpyHtoDAsync_v2")
        margin = predictor.predict_margin(rows)
        assert margin.tobytes() == model.predict_reference(rows)[:, 0].tobytes()
        assert called("cuMemcpyHtoDAsync_v2") == uploads + -(-n // 16)
        assert np.allclose(predictor.predict(rows), right.predict(rows), 1e-6)
    assert len(predictor.library.executor.driver.frames) == 2


@pytest.mark.parametrize("least", [1, 1 << 40])
def test_rows_may_change_behind_a_call_whoever_copies_them(
    least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "DIRECT_BYTES", least)
    predictor = made()
    for n in (1, 33, 100):
        rows = hard_rows(FOREST, 2 * n, seed=n)
        every_second = rows[::2]  # not C-ordered: the driver cannot copy them
        expected = FOREST.predict_reference(rows)
        given, found = rows.copy(), list[Any]()
        for part in (given[:n], given[n:]):
            found.append(predictor.predict(part).copy())
            part[...] = np.nan
        assert np.concatenate(found).tobytes() == expected.tobytes()
        answer = predictor.predict(every_second)
        assert answer.tobytes() == FOREST.predict_reference(every_second).tobytes()


@pytest.fixture
def three_movers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let three threads move a batch of 96 rows or more, whatever this machine has."""
    monkeypatch.setattr(staging, "CHUNK_BYTES", 1)
    monkeypatch.setattr(staging, "CHUNK_ROWS", 16)
    monkeypatch.setattr(staging, "MOST_THREADS", 3)
    monkeypatch.setattr(staging, "available_cores", lambda: 64)


@pytest.mark.parametrize("callers", [1, 4])
def test_threads_that_share_a_batch_give_every_row_its_own_result(
    callers: int, three_movers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    movers = set[int]()
    run_chunks = staging._run_chunks

    def spied(*given: Any) -> None:
        movers.add(threading.get_ident())
        run_chunks(*given)

    monkeypatch.setattr(staging, "_run_chunks", spied)
    predictor, wrong = made(), list[int]()
    predictor.predict(hard_rows(FOREST, 200))

    def call(seed: int) -> None:
        for n in (96, 97, 200, 15, 333):
            rows = hard_rows(FOREST, n, seed=seed)
            if predictor.predict(rows).tobytes() != FOREST.predict_reference(rows).tobytes():
                wrong.append(n)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(movers) > callers
    assert len(predictor.library.executor.driver.turns) >= 1
    assert settings().emulated_contexts() == 0


def test_wide_rows_are_moved_by_as_many_threads_as_their_memory_allows(
    three_movers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor, rows = made(), hard_rows(FOREST, 200, seed=1)
    expected = predictor.predict(rows)
    two_frames = 2 * 16 * (rows[:1].nbytes + expected.itemsize)
    for threads, most in ((1, two_frames), (2, 3 * two_frames), (3, 100 * two_frames)):
        predictor.library.executor.driver.frames.clear()
        monkeypatch.setattr(staging, "MOST_BYTES", most)
        assert np.array_equal(predictor.predict(rows), expected)
        assert len(predictor.library.executor.driver.frames) <= 2 * threads


def fail_to_launch(predictor: Any, rows: Any) -> None:
    """Predict rows while the driver launches no kernel."""
    settings().emulated_fail(b"cuLaunchKernel", 719)
    try:
        with pytest.raises(DeviceError, match="719"):
            predictor.predict(rows)
    finally:
        settings().emulated_work()


def test_a_launch_that_fails_on_one_thread_ends_the_batch_and_the_next_call_is_right(
    three_movers: None,
) -> None:
    predictor, rows = made(), hard_rows(FOREST, 200, seed=1)
    expected = predictor.predict(rows)
    fail_to_launch(predictor, rows)
    assert np.array_equal(predictor.predict(rows), expected)
    assert settings().emulated_contexts() == 0


def test_a_batch_is_moved_by_one_thread_where_python_starts_no_more(
    three_movers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    predictor, rows = made(), hard_rows(FOREST, 200, seed=1)
    expected = predictor.predict(rows)
    monkeypatch.setattr(staging.Thread, "start", refuse)
    assert np.array_equal(predictor.predict(rows), expected)


def test_a_call_that_fails_leaves_its_frame_for_the_next() -> None:
    predictor, rows = made(), hard_rows(FOREST, 9, seed=1)
    expected = predictor.predict(rows)
    fail_to_launch(predictor, rows)
    assert len(predictor.library.executor.driver.frames) == 1
    assert np.array_equal(predictor.predict(rows), expected)
    assert settings().emulated_contexts() == 0


def test_margins_and_values_come_back_in_one_copy() -> None:
    predictor, rows = made(LINKED), hard_rows(LINKED, 9, seed=1)
    predictor.predict(rows)
    names = ("cuMemcpyDtoHAsync_v2", "cuStreamSynchronize", "cuMemAlloc_v2", "cuMemHostAlloc")
    before = [called(name) for name in names]
    predictor.predict(rows)
    assert [called(name) - count for name, count in zip(names, before, strict=True)] == [1, 1, 0, 0]


def test_the_context_is_pushed_once_a_call_and_not_where_it_is_current() -> None:
    predictor, rows = made(), hard_rows(FOREST, 9, seed=1)
    there, here = predictor.put(rows), predictor.library.executor.driver
    for call in (lambda: predictor.predict(rows), lambda: predictor.predict(there)):
        call()
        pushes = called("cuCtxPushCurrent_v2")
        call()
        assert called("cuCtxPushCurrent_v2") == pushes + 1
        before = here.enter()
        call()
        assert called("cuCtxPushCurrent_v2") == pushes + 2
        here.leave(before)
    assert settings().emulated_contexts() == 0


# -- shared memory ---------------------------------------------------------------------------------


def asking_for(size: int) -> Any:
    """A predictor whose blocks have so many bytes of shared memory, with those of the kernel."""
    schedule = tvm_forest.hop_schedule(FOREST, "cuda")
    predictor = emulated(tvm_forest.build(FOREST, "cuda", schedule))
    library = predictor.library
    (launch,) = library.plans["predict"].steps
    kernel = library.executor.driver.find_kernel(library.executor._module, launch.kernel)
    step = replace(launch, shared=size - kernel.needs.shared)
    function = predictor._functions.for_batches[-1].serial
    function.plan = replace(function.plan, steps=(step,))
    return predictor


def test_more_shared_memory_than_a_kernel_may_declare_is_allowed_once() -> None:
    rows, sets = hard_rows(FOREST, 9, seed=1), called("cuFuncSetAttribute")
    for size, calls in ((49_152, 1), (100_000, 2), (232_448, 2)):  # one says how much is shared
        predictor = asking_for(size)
        for _ in range(3):
            assert np.array_equal(predictor.predict(rows), FOREST.predict_reference(rows)[:, 0])
        sets += calls
        assert called("cuFuncSetAttribute") == sets


@pytest.mark.parametrize(
    ("blocks", "threads", "shared", "percent"),
    [
        (1, 128, 0, 1),  # of 228 KB, 1 KB a block is the driver's
        (256, 256, 30 << 10, 28),  # 132 multiprocessors run two blocks each at most
        (256, 256, 200 << 10, 100),
        (10_000, 512, 30 << 10, 55),  # four have all threads that there may be
        (10_000, 1024, 227 << 10, 100),
    ],
)
def test_as_much_memory_is_shared_as_the_blocks_of_a_launch_need(
    blocks: int, threads: int, shared: int, percent: int
) -> None:
    assert driver()._find_shared_percent(blocks, threads, shared) == percent


@pytest.mark.parametrize("most", [99 * 1024, 227 * 1024])
def test_the_limit_of_shared_memory_is_that_of_the_gpu_at_hand(most: int) -> None:
    settings().emulated_set(b"most", most)
    said = f"takes {most + 1} bytes of shared memory per block, {most} are allowed on emulated"
    try:
        asking_for(most).predict(hard_rows(FOREST, 3))
        with pytest.raises(DeviceError, match=said):
            asking_for(most + 1).predict(hard_rows(FOREST, 3))
    finally:
        settings().emulated_set(b"most", 227 * 1024)


@pytest.mark.parametrize(
    ("target", "size"),
    [
        ({"kind": "cuda", "arch": "sm_80"}, 163),
        ({"kind": "cuda", "arch": "sm_86"}, 99),
        ({"kind": "cuda", "arch": "sm_90a"}, 227),
        ({"kind": "cuda", "arch": "any"}, 99),
        ("cuda", 227),
        ("simt", 227),
        ({"kind": "rocm", "mcpu": "gfx942"}, 64),
        ({"kind": "rocm", "mcpu": "gfx950:sramecc+"}, 160),
        ("rocm", 64),
        ("opencl", 32),
    ],
)
def test_a_target_knows_the_shared_memory_of_its_gpu(target: Any, size: int) -> None:
    assert parse_target(target).shared_bytes == size * 1024


# -- compilers and drivers ------------------------------------------------------------------------


def compilers(monkeypatch: pytest.MonkeyPatch, *found: Compiler) -> list[str]:
    """Let some compilers be at hand; return where the names of those that compile are noted."""
    used: list[str] = []

    def compile_by(compiler: Compiler, source: str, architecture: str) -> bytes:
        used.append(f"{compiler.name} {compiler.version}")
        return b"code"

    monkeypatch.setattr(Compiler, "compile", compile_by)
    monkeypatch.setattr(cuda_compiler, "_compilers", lambda architecture: iter(found))
    return used


NEW = Compiler("NVRTC", (13, 0), None, frozenset({80, 90}))
OLD = Compiler("NVRTC", (12, 4), None, frozenset({80, 90}))
NVCC = Compiler("nvcc", (12, 9), "nvcc", frozenset({80, 90}))


@pytest.mark.parametrize(
    ("architecture", "version", "expected"),
    [
        ("sm_90", None, "NVRTC (13, 0)"),
        ("sm_90", 13000, "NVRTC (13, 0)"),
        ("sm_90", 12090, "NVRTC (12, 4)"),
        ("sm_90", 12000, "NVRTC (12, 4)"),
        ("sm_130", 13000, "NVRTC (13, 0)"),
        ("sm_130", 12040, "NVRTC (12, 4)"),
        ("any", 12080, "NVRTC (12, 4)"),
        ("any", 12010, "nvcc (12, 9)"),
    ],
)
def test_a_compiler_that_is_newer_than_the_driver_gives_way(
    architecture: str, version: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = compilers(monkeypatch, NEW, OLD, NVCC)
    assert compile_cuda("", architecture, version) == b"code"
    assert used == [expected]


def test_where_all_compilers_are_newer_the_error_names_all_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert compilers(monkeypatch, NEW, OLD) == []
    with pytest.raises(
        DeviceError, match=r"driver is for CUDA 12.2, and what NVRTC 13.0 and NVRTC 12.4 would make"
    ):
        compile_cuda("", "sm_130", 12020)


def test_the_version_of_the_driver_reaches_the_compiler() -> None:
    predictor, asked = made(), []
    translate = predictor.library.backend.translate

    def note(source: str, architecture: str, version: int | None) -> bytes:
        asked.append((architecture, version))
        return translate(source, architecture, version)

    predictor.library.backend = predictor.library.backend._replace(translate=note)
    predictor.predict(hard_rows(FOREST, 2))
    assert asked == [("sm_90", 13000)]


# -- DLPack ---------------------------------------------------------------------------------------


def flags_of(capsule: Any) -> int:
    address = dlpack._address(id(capsule), dlpack.FRESH_1)
    about = dlpack._Managed1.from_address(address)
    assert tuple(about.version) == (1, 0)
    return int(about.flags)


def test_an_array_goes_to_the_host_if_it_is_wanted_there() -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    there = filled(driver(), numbers)
    for version in (None, (0, 8), (1, 0), (1, 3)):
        capsule = there.__dlpack__(dl_device=(1, 0), max_version=version)
        name = dlpack.FRESH_1 if version and version >= (1, 0) else dlpack.FRESH
        assert dlpack._is_valid(id(capsule), name)

    class OnTheHost:
        def __dlpack__(self, **_: Any) -> Any:
            return there.__dlpack__(dl_device=(1, 0))

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    found = np.from_dlpack(OnTheHost())
    assert np.array_equal(found, numbers)
    del found, capsule
    gc.collect()
    assert not dlpack._exported


def test_a_copy_is_another_array_and_says_so() -> None:
    numbers = np.arange(6, dtype=np.float32)
    there = filled(driver(), numbers)
    assert flags_of(there.__dlpack__(max_version=(1, 0))) == 0
    assert flags_of(there.__dlpack__(max_version=(1, 0), copy=True)) == dlpack.IS_COPY
    for copy in (None, False):
        assert dlpack.take(Giving(there, copy=copy), 1).pointer == there.pointer
    taken = dlpack.take(Giving(there, copy=True), 1)
    assert taken.pointer != there.pointer
    back = np.empty(6, np.float32)
    there._driver.download(back, taken.pointer, 0)
    assert np.array_equal(back, numbers)


class Giving:
    """Passes the arguments of an array's `__dlpack__` on."""

    def __init__(self, array: DeviceArray, **given: Any) -> None:
        self.array, self.given = array, given

    def __dlpack__(self, stream: int) -> Any:
        return self.array.__dlpack__(stream=stream, **self.given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dl_device": (2, 1)}, r"'dl_device': \(2, 1\) is neither that of the array, \(2, 0\)"),
        ({"dl_device": (1, 0), "copy": False}, r"'copy': an array on \(2, 0\) gets to the host by"),
    ],
)
def test_what_cannot_be_given_is_refused_as_the_standard_says(given: Any, message: str) -> None:
    there = filled(driver(), np.zeros(3, np.float32))
    with pytest.raises(BufferError, match=message):
        there.__dlpack__(**given)


HELD_UNTIL_THE_END = """
import string, sys  # whose names are dropped after those of the package
import numpy as np, tvm_ffi
from tvm_forest.runtime.gpu import dlpack
from tvm_forest.runtime.gpu.arrays import DeviceArray
from tvm_forest.runtime.gpu.cuda import CudaDriver

driver = CudaDriver(library=sys.argv[1])
array = DeviceArray(driver, (3, 4), np.dtype("float32"), 7)
string.kept = EXPRESSION
"""


@pytest.mark.parametrize(
    "expression",
    [
        "array.__dlpack__()",
        "tvm_ffi.from_dlpack(array)",
        "driver, driver.pool.hold(0, dlpack.take(array, 0))",
    ],
)
def test_an_array_that_is_held_until_a_program_ends_is_no_trap_for_it(expression: str) -> None:
    code = HELD_UNTIL_THE_END.replace("EXPRESSION", expression)
    command = [sys.executable, "-c", code, libcuda()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class WithGradient:
    """A tensor of PyTorch on a GPU that requires a gradient."""

    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, stream: int) -> Any:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")


def test_a_tensor_that_requires_a_gradient_is_refused_as_its_library_says() -> None:
    said = r"a WithGradient cannot be read \(Can't export .* use tensor.detach\(\)\); give a plain"
    with pytest.raises(InputError, match=said):
        made().predict(WithGradient())
