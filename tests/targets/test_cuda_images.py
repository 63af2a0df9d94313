"""Images for any GPU, and events that time the work of a driver."""

from __future__ import annotations

import functools
import struct
import subprocess
from typing import Any

import numpy as np
import pytest

import tvm_forest
from emulated_cuda import emulated, libcuda, settings
from forests import drawn_forest
from recipe_cases import CASES
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.runtime.gpu import cuda_compiler
from tvm_forest.runtime.gpu.cuda import CudaDriver
from tvm_forest.target import SHARED_BYTES

FOREST = drawn_forest(13, 3, seed=3)


@functools.cache
def for_any_gpu() -> tuple[Any, dict[str, bytes]]:
    """Return a predictor without images, and its images: nvcc compiles for each architecture."""
    made = tvm_forest.build(FOREST, {"kind": "cuda", "arch": "any"}, CASES["E4"].schedule)
    images = dict(made.library.images)
    made.library.images.clear()
    return made, images


@functools.cache
def default_text() -> str:
    return str(tvm_forest.build(FOREST, "cuda").source("cuda"))


@pytest.mark.slow
def test_an_image_for_any_gpu_holds_cubins_and_ptx() -> None:
    nvcc = cuda_compiler.find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc")
    listed = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True)
    known = [x for x in cuda_compiler.SHIPPED if f"sm_{x}" in listed.stdout.split()]
    cubins = [("cubin", int(x)) for x in known]
    ptx = ("ptx", int(cuda_compiler.OLDEST))
    assert set(parts_of(for_any_gpu()[1]["any"])) == {*cubins, ptx}


@pytest.mark.slow
@pytest.mark.parametrize("number", sorted(SHARED_BYTES))
@pytest.mark.cases(2)
def test_kernels_are_compiled_for_every_architecture_that_a_target_may_name(number: int) -> None:
    nvcc = cuda_compiler.find_nvcc()
    if nvcc is None or number not in cuda_compiler._describe_nvcc(nvcc).known:
        pytest.skip(f"no nvcc that knows sm_{number}")
    text = default_text() if number == min(SHARED_BYTES) else for_any_gpu()[0].source("cuda")
    image = cuda_compiler.compile_cuda(text, f"sm_{number}")
    assert image[:4] == b"\x7fELF"


def parts_of(image: bytes) -> list[tuple[str, int]]:
    """Return kind and architecture of the parts of a fatbin."""
    magic, _, at, size = struct.unpack_from("<IHHQ", image)
    assert magic == 0xBA55ED50
    found, end = [], at + size
    while at < end:
        kind, _, head, size = struct.unpack_from("<HHIQ", image, at)
        found.append(({1: "ptx", 2: "cubin"}[kind], struct.unpack_from("<I", image, at + 28)[0]))
        at += head + size
    return found


def test_an_image_for_any_gpu_runs_on_the_one_at_hand() -> None:
    made = emulated(for_any_gpu()[0])
    rows = hard_rows(FOREST, 9, seed=1)
    assert np.array_equal(made.predict(rows), FOREST.predict_reference(rows)[:, 0])
    assert made.library.images.keys() == {"any"}
    made.library.images.clear()


def test_events_time_the_work_of_a_stream() -> None:
    driver = CudaDriver(library=libcuda())
    here, there = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    pointers = driver.allocate(here.nbytes), driver.allocate(here.nbytes)
    driver.upload(pointers[0], here, 0)
    first = driver.mark(0)
    driver.copy(pointers[1], pointers[0], here.nbytes, 0)
    assert driver.is_done(first)
    assert 0 <= driver.seconds(first, driver.mark(0)) < 60
    driver.download(there, pointers[1], 0)
    assert np.array_equal(here, there)
    settings().emulated_fail(b"cuEventQuery", 600)
    try:
        assert not driver.is_done(driver.mark(0))
    finally:
        settings().emulated_work()
