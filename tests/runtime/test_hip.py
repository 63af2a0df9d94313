"""The launcher for AMD's GPUs, beside a HIP runtime of the host that notes what it is asked."""

from __future__ import annotations

import ctypes
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hip_on_host
import tvm_forest
from rocm_kernels import forest, made, needs_linker
from tvm_forest.errors import DeviceError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.runtime.gpu.executor import Executor
from tvm_forest.runtime.gpu.hip import HipDriver
from tvm_forest.runtime.gpu.kernels import Arguments
from tvm_forest.runtime.gpu.library import Backend

pytestmark = [
    needs_linker,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc"),
]
TARGET = {"kind": "rocm", "mcpu": "gfx942"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: Any) -> tuple[str, Any, bytes]:
    """Path of the runtime, the runtime, and the code object that it knows."""
    folder = tmp_path_factory.mktemp("hip")
    compiled, _ = made(forest(), tvm_forest.hop_schedule(forest(), TARGET), "gfx942")
    runtime = hip_on_host.mock_runtime(compiled, folder)
    return str(folder / "libamdhip64.so"), runtime, compiled.image


@pytest.fixture
def hip(library: Any) -> Any:
    """The runtime as it was at first."""
    runtime = library[1]
    runtime.mock_reset()
    runtime.mock_gpu(b"gfx942", 64)
    return runtime


def calls(runtime: Any) -> list[str]:
    lines = runtime.mock_log().decode().splitlines()
    runtime.mock_reset()
    return lines


def predictor_on(path: str) -> tvm_forest.Predictor:
    schedule = tvm_forest.hop_schedule(forest(), TARGET)
    predictor = tvm_forest.build(forest(), TARGET, schedule)
    predictor.library.backend = Backend(lambda: HipDriver(library=path), lambda *_: b"")
    return predictor


def test_a_predictor_computes_what_the_model_says(library: Any, hip: Any) -> None:
    predictor = predictor_on(library[0])
    for n in (1, 129, 300):
        rows = hard_rows(forest(), n, seed=n)
        expected = forest().predict_reference(rows)[:, 0]
        assert predictor.predict_margin(rows).tobytes() == expected.tobytes()


def test_a_call_is_uploads_a_launch_and_a_download(library: Any, hip: Any) -> None:
    predictor = predictor_on(library[0])
    predictor.predict(hard_rows(forest(), 5, seed=0))
    calls(hip)
    predictor.predict(hard_rows(forest(), 300, seed=0))
    copy, launch, back, wait = (
        x.rpartition(" stream ") for x in calls(hip) if "Malloc" not in x and "Free" not in x
    )
    assert copy[0] == f"hipMemcpyHtoDAsync {300 * 4 * 4}"
    called = "hipModuleLaunchKernel predict_kernel_on_host grid 3 1 1 block 128 1 1 shared 0"
    assert (launch[0], back[0], wait[0]) == (
        called,
        f"hipMemcpyDtoHAsync {-(-300 * 4 // 256) * 256}",
        "hipStreamSynchronize",
    )
    assert {x[2] for x in (launch, back, wait)} == {copy[2]} != {"(nil)"}


def test_a_gpu_is_opened_once_and_no_rows_launch_nothing(library: Any, hip: Any) -> None:
    predictor = predictor_on(library[0])
    rows = hard_rows(forest(), 3, seed=0)
    predictor.predict(rows)
    opened = calls(hip)
    assert opened[:2] == ["hipInit 0", "hipRuntimeGetVersion"]
    assert [x for x in opened if "Module" in x][:2] == [
        "hipModuleLoadData ELF",
        "hipModuleGetFunction predict_kernel",
    ]
    predictor.predict(rows)
    assert not any(x.startswith(("hipInit", "hipModuleLoad", "hipMalloc")) for x in calls(hip))
    assert predictor.predict(rows[:0]).shape == (0,)
    assert not any("Launch" in x for x in calls(hip))


def test_a_gpu_is_known_by_its_name_and_its_size(library: Any, hip: Any) -> None:
    found = []
    for processors in (304, 228):
        hip.mock_processors(processors)
        found.append(HipDriver(library=library[0]).identity)
    assert found[0] == "AMD Instinct, gfx942, 304 multiprocessors, 131072 MB"
    assert found[1] == "AMD Instinct, gfx942, 228 multiprocessors, 131072 MB"


def test_a_process_that_is_forked_is_told_that_the_gpu_stays_behind(library: Any, hip: Any) -> None:
    driver = HipDriver(library=library[0])
    child = os.fork()
    if child == 0:
        try:
            driver.allocate(8)
        except DeviceError as error:
            os._exit("this process was forked" in str(error))
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_saved_predictor_needs_no_compiler(library: Any, hip: Any, tmp_path: Path) -> None:
    schedule = tvm_forest.hop_schedule(forest(), TARGET)
    tvm_forest.build(forest(), TARGET, schedule).save(tmp_path / "model.tvmf")
    loaded = tvm_forest.load_predictor(tmp_path / "model.tvmf")
    assert loaded.library.images == {"gfx942": loaded.library.image("gfx942")}
    loaded.library.backend = Backend(lambda: HipDriver(library=library[0]), lambda *_: b"")
    rows = hard_rows(forest(), 9, seed=2)
    assert np.array_equal(loaded.predict(rows), forest().predict_reference(rows)[:, 0])


def test_rows_on_the_gpu_stay_there_and_so_do_results(library: Any, hip: Any) -> None:
    predictor, rows = predictor_on(library[0]), hard_rows(forest(), 50, seed=1)
    expected = predictor.predict(rows)
    there = predictor.put(rows)
    predictor.predict(there)
    calls(hip)
    found = predictor.predict(there)
    assert not any("Memcpy" in x or "Synchronize" in x for x in calls(hip))
    assert found.__dlpack_device__() == (10, 0)  # ROCm, the first GPU
    assert np.array_equal(found.numpy(), expected)


def test_streams_wait_for_each_other_by_an_event(library: Any, hip: Any) -> None:
    driver = HipDriver(library=library[0])
    calls(hip)
    driver.wait(0x10, 0x20)
    driver.synchronize(0x10)
    assert calls(hip) == [
        "hipEventCreateWithFlags 2",
        "hipEventRecord stream 0x20",
        "hipStreamWaitEvent stream 0x10 0",
        "hipEventDestroy",
        "hipStreamSynchronize stream 0x10",
    ]


def test_events_tell_how_long_the_work_between_them_took(library: Any, hip: Any) -> None:
    driver = HipDriver(library=library[0])
    first, last = driver.mark(0x10), driver.mark(0x10)
    calls(hip)
    assert driver.seconds(first, last) == pytest.approx(0.0015)
    asked = ["hipEventSynchronize", "hipEventElapsedTime"]
    assert calls(hip) == [*asked, "hipEventDestroy", "hipEventDestroy"]


def test_the_callers_own_gpu_is_chosen_again(library: Any, hip: Any) -> None:
    hip.mock_about(60_200_000, 2)
    driver, chosen = HipDriver(1, library[0]), ctypes.c_int()
    hip.hipSetDevice(0)
    pointer = driver.allocate(100)
    hip.hipGetDevice(ctypes.byref(chosen))
    assert chosen.value == 0
    before = hip.mock_pieces()
    driver.free(pointer)
    assert hip.mock_pieces() == before - 1
    with pytest.raises(DeviceError, match="hipFree failed with 1"):
        driver.free(pointer)


FAILURES = {
    "hipInit": (100, "hipInit failed with 100, an error; check with rocminfo"),
    "hipModuleLoadData": (209, "hipModuleLoadData failed with 209, an error; build for this GPU"),
    "hipModuleGetFunction": (
        500,
        r"\(kernel 'predict_kernel'\) failed with 500, .*build the model",
    ),
    "hipMalloc": (2, r"hipMalloc \(104 bytes\) failed with 2, out of memory; predict fewer rows"),
    "hipMemcpyHtoDAsync": (1, "hipMemcpyHtoDAsync failed with 1, an error; see the error codes"),
    "hipModuleLaunchKernel": (
        9,
        r"\('predict_kernel', grid \(1, 1, 1\), block \(128, 1, 1\), 0 bytes shared\) failed ",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_call_that_fails_says_which_and_what_helps(library: Any, hip: Any, name: str) -> None:
    code, message = FAILURES[name]
    predictor = predictor_on(library[0])
    hip.mock_fail(name.encode(), code)
    with pytest.raises(DeviceError, match=f"^rocm: .*{message}"):
        predictor.predict(hard_rows(forest(), 3, seed=0))


def test_code_for_another_gpu_is_refused_before_it_is_loaded(library: Any, hip: Any) -> None:
    hip.mock_gpu(b"gfx90a", 64)
    with pytest.raises(
        DeviceError, match=r"is for gfx942, the GPU is a gfx90a; .*'mcpu': 'gfx90a'"
    ):
        Executor(HipDriver(library=library[0]), library[2])
    assert not any("ModuleLoad" in line for line in calls(hip))


def test_the_gpu_at_hand_chooses_among_code_for_several(library: Any, hip: Any) -> None:
    schedule = tvm_forest.hop_schedule(forest(), TARGET)
    predictor = tvm_forest.build(forest(), {"kind": "rocm", "mcpu": "any"}, schedule)
    loaded = pickle.loads(pickle.dumps(predictor))
    refuse = loaded.library.backend.translate
    for each in (predictor, loaded):
        each.library.backend = Backend(lambda: HipDriver(library=library[0]), refuse)
        rows = hard_rows(forest(), 9, seed=1)
        expected = forest().predict_reference(rows)[:, 0]
        assert each.predict_margin(rows).tobytes() == expected.tobytes()
    hip.mock_gpu(b"gfx906", 64)
    other = pickle.loads(pickle.dumps(predictor))
    other.library.backend = loaded.library.backend
    with pytest.raises(DeviceError, match=r"is a gfx906, and code was .*gfx90a, gfx942.*'gfx906'}"):
        other.predict(rows)


@pytest.mark.parametrize(
    ("version", "count", "message"),
    [
        (50_300_000, 1, "the HIP runtime is of version 5.3, needed is 5.7 or newer; update ROCm"),
        (60_200_000, 0, "device 0 is not there, the HIP runtime shows 0; give another 'device'"),
    ],
)
def test_a_machine_that_cannot_run_it_is_refused(
    library: Any, hip: Any, version: int, count: int, message: str
) -> None:
    hip.mock_about(version, count)
    with pytest.raises(DeviceError, match=message):
        HipDriver(library=library[0])


def test_a_machine_without_a_runtime_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"no HIP runtime found \(tried .*use target 'llvm'"):
        HipDriver(library=str(tmp_path / "libamdhip64.so"))


def test_launches_that_do_not_fit_are_refused(library: Any, hip: Any) -> None:
    driver = HipDriver(library=library[0])
    kernel = driver.find_kernel(driver.load(library[2]), "predict_kernel")
    given = Arguments(["pointer"] * (len(kernel.needs.argument_sizes) - 1) + ["int64"])
    few = Arguments(["pointer"] * 2)
    for block, shared, message in (
        ((512, 1, 1), 0, "takes 512 threads per block, 256 are allowed on .*; use smaller"),
        ((64, 1, 1), 70_000, r"takes 7\d+ bytes of shared memory per block, 65536 are allowed"),
    ):
        with pytest.raises(DeviceError, match=message):
            driver.launch(kernel, (1, 1, 1), block, shared, given, 0)
    with pytest.raises(DeviceError, match=r"takes arguments of \[8, .*, got \[8, 8\]"):
        driver.launch(kernel, (1, 1, 1), (64, 1, 1), 0, few, 0)


def test_memory_that_is_not_of_the_gpu_is_never_written(library: Any, hip: Any) -> None:
    driver = HipDriver(library=library[0])
    pointer = driver.allocate(8)
    driver.upload(pointer, np.zeros(2, np.float32), 0)
    with pytest.raises(DeviceError, match="hipMemcpyHtoDAsync failed with 1"):
        driver.upload(pointer, np.zeros(3, np.float32), 0)
