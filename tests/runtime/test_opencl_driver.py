"""The driver of OpenCL: devices that it takes or refuses by name, memory, threads, forks, files."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_forest
from forests import drawn_forest
from opencl_here import on_device, opencl_driver
from tvm_forest.errors import DeviceError, InputError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.runtime.gpu.opencl import OpenCLDriver

FOREST = drawn_forest(13, 3, seed=3, base=(0.5,), link="sigmoid")
TYPES, ALIGNMENT, FLOATS, DOUBLES, THREADS, SHARED = 0x1000, 0x1019, 0x101B, 0x1032, 0x1004, 0x1023
NO_FLOATS_OF = {bit: 0xFF - bit for bit in (1, 2, 4, 128)}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of the OpenCL of `opencl_stub.c`."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    file = tmp_path_factory.mktemp("opencl") / "libOpenCL.so"
    source = Path(__file__).with_name("opencl_stub.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", source, "-o", file], check=True)
    return str(file)


@pytest.fixture
def stub(library: str) -> Any:
    """The functions that set its facts."""
    functions: Any = ctypes.CDLL(library)
    functions.stub_reset()
    functions.stub_set.argtypes = (ctypes.c_uint32, ctypes.c_uint64)
    return functions


def built(target: Any = "opencl", schedule: Any = None) -> Any:
    """A predictor with blocks of 128 rows, unless a schedule is given."""
    return tvm_forest.build(FOREST, target, schedule or tvm_forest.hop_schedule(FOREST, "opencl"))


# -- devices --------------------------------------------------------------------------------------


def test_gpus_are_counted_first_and_a_number_that_none_has_is_told_all(
    library: str, stub: Any
) -> None:
    titles = [OpenCLDriver(number, library).title for number in range(3)]
    assert titles == ["a GPU", "another GPU", "a CPU"]
    told = r"device 3 is not there, OpenCL shows 3 \(a GPU, another GPU, a CPU\); give another"
    with pytest.raises(DeviceError, match=f"argument 'target': {told} 'device', or check"):
        OpenCLDriver(3, library)


def test_a_machine_without_opencl_or_without_devices_is_told_what_to_install(
    library: str, stub: Any
) -> None:
    with pytest.raises(DeviceError, match=r"no OpenCL found \(tried /no/lib\); install a loader"):
        OpenCLDriver(library="/no/lib")
    stub.stub_platforms(0)
    with pytest.raises(DeviceError, match="finds no device; install the driver of the GPU, or"):
        OpenCLDriver(library=library)


@pytest.mark.parametrize(
    ("number", "value", "message"),
    [
        (FLOATS, NO_FLOATS_OF[1], "a GPU takes denormal numbers of float32 for zero, and"),
        (FLOATS, NO_FLOATS_OF[2], "a GPU has no NaN or infinities of float32"),
        (FLOATS, NO_FLOATS_OF[4], "a GPU does not round float32 to the nearest"),
    ],
)
def test_a_device_whose_numbers_would_not_be_exact_is_refused_by_name(
    number: int, value: int, message: str, library: str, stub: Any
) -> None:
    stub.stub_set(number, value)
    with pytest.raises(DeviceError, match=f"{message}.*; give another 'device' in the target, or"):
        OpenCLDriver(library=library)


def test_an_old_device_is_refused(library: str, stub: Any) -> None:
    stub.stub_version(b"OpenCL 1.1 CUDA")
    with pytest.raises(DeviceError, match="is of version 'OpenCL 1.1 CUDA', needed is OpenCL 1.2"):
        OpenCLDriver(library=library)


KERNELS = {
    "division": (FLOATS, NO_FLOATS_OF[128], "does not round quotients of float32 correctly"),
    "double": (DOUBLES, 0, "has no float64, which kernels compute with"),
    "atomics": (THREADS, 256, "has no cl_khr_int64_base_atomics, which kernels need"),
}
TEXTS = {
    "division": b"// Build with -cl-fp32-correctly-rounded-divide-sqrt",
    "double": b"__kernel void f(__global double* x) {}",
    "atomics": b"#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable",
}


@pytest.mark.parametrize("what", KERNELS)
def test_kernels_that_need_more_than_a_device_has_are_refused(
    what: str, library: str, stub: Any
) -> None:
    number, value, message = KERNELS[what]
    stub.stub_set(number, value)
    driver = OpenCLDriver(library=library)
    driver.load(b"__kernel void f(__global float* x) {}")
    with pytest.raises(DeviceError, match=f"opencl: a GPU {message}"):
        driver.load(TEXTS[what])


def test_what_a_compiler_says_is_told(library: str, stub: Any) -> None:
    driver = OpenCLDriver(library=library)
    before = stub.stub_alive()
    stub.stub_fail_to_build(-11)
    told = "CL_BUILD_PROGRAM_FAILURE; update the device's driver, or use target 'llvm'"
    with pytest.raises(DeviceError, match=rf"on a GPU; line 3: no such word\) .* -11, {told}"):
        driver.load(b"")
    assert stub.stub_alive() == before


def test_blocks_that_a_device_does_not_have_are_refused_with_its_limits(
    library: str, stub: Any
) -> None:
    predictor = on_device(built(), OpenCLDriver(library=library))
    rows = np.zeros((300, 4), np.float32)
    predictor.predict(rows)  # 128 threads, as many as the stub says
    wide = (
        tvm_forest.new_schedule(FOREST).tile("batch", "b0", "b1", 256).reorder("b0", "b1", "tree")
    )
    wide = wide.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    wider = on_device(built(schedule=wide), OpenCLDriver(library=library))
    with pytest.raises(DeviceError, match="takes 256 threads per block, 128 are allowed on a GPU"):
        wider.predict(rows)
    stub.stub_set(SHARED, 4096)
    little = on_device(built(), OpenCLDriver(library=library))
    with pytest.raises(DeviceError, match="takes 5000 bytes of shared memory per block, 4096 are"):
        little.predict(rows)


def test_all_that_a_predictor_has_is_given_back(library: str, stub: Any) -> None:
    stub.stub_set(ALIGNMENT, 8 * 4096)  # in bits; parts of buffers lie so far apart
    driver, alive = OpenCLDriver(library=library), []
    for n in (5, 2000, 30):
        predictor = on_device(built(), driver)
        predictor.predict(np.zeros((n, 4), np.float32))
        predictor.predict(np.zeros((n + 1, 4), np.float32))
        del predictor
        gc.collect()
        alive.append(stub.stub_alive())
    assert len({*alive}) == 1  # rows and results keep their room


def test_memory_that_a_device_does_not_have_is_told(library: str, stub: Any) -> None:
    told = r"\(2097152 bytes\) failed with -61, CL_INVALID_BUFFER_SIZE; predict fewer rows"
    with pytest.raises(DeviceError, match=told):
        OpenCLDriver(library=library).allocate(1 << 21)


@pytest.mark.parametrize("device", [-1, True, "a GPU"])
def test_a_device_that_is_no_number_is_refused_by_build(device: Any) -> None:
    with pytest.raises(InputError, match="option 'device' of 'opencl': .* is no number of a GPU"):
        built({"kind": "opencl", "device": device})


# -- predictors -----------------------------------------------------------------------------------


def test_a_call_without_the_device_says_what_is_missing() -> None:
    predictor = built({"kind": "opencl", "device": 1000})
    with pytest.raises(DeviceError, match="opencl: (no OpenCL found|.*no device;|.*1000 is not)"):
        predictor.predict(np.zeros((1, 4), np.float32))


def test_an_error_of_the_compiler_of_a_device_is_told() -> None:
    with pytest.raises(DeviceError, match=r"clBuildProgram \(on .*nonsense"):
        opencl_driver().load(b"__kernel void f() { nonsense; }")


def test_rows_and_results_stay_on_the_device_for_the_predictor_alone() -> None:
    predictor, rows = on_device(built()), hard_rows(FOREST, 50, seed=1)
    there = predictor.put(rows)
    found = predictor.predict(there)
    assert np.array_equal(found.numpy(), predictor.predict(rows))
    assert found.__dlpack_device__() == (4, 0)  # OpenCL, the first device
    with pytest.raises(BufferError, match="no other library can use this memory of opencl"):
        found.__dlpack__()
    assert np.array_equal(np.from_dlpack(OnHost(found)), found.numpy())
    with pytest.raises(InputError, match="they are in memory of opencl that the predictor cannot"):
        predictor.predict(OfAnother())


class OfAnother:
    """Rows of another library in a context of its own."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 4, 0


class OnHost:
    """An array as a consumer sees it who asks for a copy on the host."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.__dlpack__(dl_device=(1, 0))


def test_arrays_are_read_on_another_queue_behind_the_work_that_fills_them() -> None:
    predictor, rows = on_device(built()), hard_rows(FOREST, 500, seed=1)
    driver = opencl_driver()
    predictor.stream = driver.create_stream()
    there = predictor.put(rows)
    assert np.array_equal(predictor.predict(there).numpy(), predictor.predict(rows))
    driver.wait_for_all(0)
    first = driver.mark(0)
    driver.synchronize(0)
    assert driver.is_done(first) and 0 <= driver.seconds(first, driver.mark(0)) < 60


def test_threads_predict_at_once() -> None:
    predictor = on_device(built())
    rows = [hard_rows(FOREST, n, seed=n) for n in (1, 65, 129, 3000) * 5]
    expected = [predictor.predict(x) for x in rows]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(predictor.predict, rows))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_chunks_of_many_rows_come_back_in_order() -> None:
    predictor = on_device(built())
    rows = np.resize(hard_rows(FOREST, 1001, seed=4), (600_000, 4))
    assert np.array_equal(predictor.predict(rows)[-7:], predictor.predict(rows[-7:]))
    expected = FOREST.predict_reference(rows[:1001])[:, 0]
    assert np.array_equal(predictor.predict_margin(rows), np.resize(expected, 600_000))


def test_files_and_pickles_keep_the_kernels(tmp_path: Path) -> None:
    predictor, rows = on_device(built()), hard_rows(FOREST, 9, seed=2)
    expected = predictor.predict(rows)
    predictor.save(tmp_path / "model.tvmf")
    for again in (
        tvm_forest.load_predictor(tmp_path / "model.tvmf"),
        pickle.loads(pickle.dumps(predictor)),
    ):
        assert np.array_equal(on_device(again).predict(rows), expected)


def test_a_process_that_is_forked_is_told_that_the_device_stays_behind() -> None:
    predictor, rows = on_device(built()), hard_rows(FOREST, 3)
    predictor.predict(rows)
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(DeviceError, match="opencl: this process was forked"):
                predictor.predict(rows)
            del predictor
            gc.collect()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
