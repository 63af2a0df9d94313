"""Kernels for AMD's GPUs that tests compile, and what runs them on the host."""

from __future__ import annotations

import functools
import shutil
import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

import hip_on_host
import tvm_forest
from amd_assembly import unwaited
from benchmarks.gpu.kernels.amd import read_kernels
from forests import drawn_forest
from schedules import rounding_bound
from tvm_forest.errors import BuildError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.layouts.laying_out import pack
from tvm_forest.passes.gpu.launch_plan import split_kernels
from tvm_forest.runtime.gpu import ModelArray, code_object
from tvm_forest.runtime.gpu.hip import HipDriver
from tvm_forest.runtime.gpu.library import Backend, KernelLibrary
from tvm_forest.runtime.gpu.plan import Plan
from tvm_forest.schedule_prims import Schedule
from tvm_forest.targets import rocm


def has_linker() -> bool:
    try:
        return bool(rocm.find_linker())
    except BuildError:
        return False


needs_linker = pytest.mark.skipif(not has_linker(), reason="no ld.lld, and no ziglang")


needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


GPUS = {
    "gfx90a": (0x3F, 64),
    "gfx942": (0x4C, 64),
    "gfx950": (0x4F, 64),
    "gfx1030": (0x36, 32),
    "gfx1100": (0x41, 32),
    "gfx1201": (0x4E, 32),
}
"""Number of the processor in ELF, and threads in step."""


@functools.cache
def forest(classes: int = 1) -> Forest:
    return drawn_forest(13 * classes, 3, seed=3, base=(0.5, -1.0, 2.0)[:classes])


@functools.cache
def lowered(model: Forest, sch: Schedule) -> tirx.PrimFunc:
    return tvm_forest.lower(model, sch, "rocm").after["predict"]


def kernels_of(model: Forest, sch: Schedule, gpu: str) -> tuple[tvm.IRModule, dict[str, Plan], Any]:
    """Return the device functions of `predict`, their plan, and TVM's target."""
    machine = rocm.tvm_target(gpu)
    return *split_kernels(tvm.IRModule({"predict": lowered(model, sch)}), machine), machine


def made(model: Forest, sch: Schedule, gpu: str) -> tuple[rocm.CompiledKernels, Plan]:
    kernels, plans, machine = kernels_of(model, sch, gpu)
    return rocm.compile_kernels(kernels, machine), plans["predict"]


def runtime_for(compiled: rocm.CompiledKernels, folder: Path, gpu: str) -> tuple[Any, Any]:
    """Return a HIP runtime of the host, and a function that does what a plan says with it."""
    runtime = hip_on_host.mock_runtime(compiled, folder)
    runtime.mock_gpu(gpu.encode(), GPUS[gpu][1])
    path = str(folder / "libamdhip64.so")
    backend = Backend(lambda: HipDriver(library=path), lambda *_: compiled.image)

    def run(plan: Plan, *arrays: Any) -> None:
        KernelLibrary("rocm", "", {"f": plan}, backend)["f"](*arrays)

    return runtime, run


def check_code_object(compiled: rocm.CompiledKernels, plan: Plan, gpu: str) -> None:
    image, (number, wavefront) = compiled.image, GPUS[gpu]
    (flags,), about = struct.unpack_from("<I", image, 48), code_object.read(image)
    assert (about.gpu, flags & 0xFF, image[8] + 2) == (gpu, number, 5)  # of ELF's header
    for launch in plan.launches:
        kernel, needs = read_kernels(image)[launch.kernel], about.kernels[launch.kernel]
        sizes = [
            8 if kind == "pointer" else np.dtype(kind).itemsize for kind, _ in launch.arguments
        ]
        assert list(needs.argument_sizes) == sizes
        assert kernel.metadata[".wavefront_size"] == wavefront
        assert needs.threads >= prod(launch.block)
        assert kernel.metadata[".private_segment_fixed_size"] == 0
        assert not kernel.flushes_denormals
    assert unwaited(compiled.asm) == []


def check_results(
    compiled: rocm.CompiledKernels, plan: Plan, folder: Path, gpu: str, model: Forest, sch: Schedule
) -> None:
    """Run the kernels in both orders of threads; bit-equal if the order of sums is kept."""
    runtime, kernels = runtime_for(compiled, folder, gpu)
    packed = pack(model, sch).arguments_of("predict")
    for last_first, n in ((0, 1), (1, 7), (0, 33), (1, 100)):
        runtime.mock_order(last_first)
        rows = hard_rows(model, n, seed=n)
        expected = model.predict_reference(rows)
        margin = np.empty_like(expected)
        kernels(plan, rows, *map(ModelArray, packed), margin)
        bound = 0 if sch.keeps_order else rounding_bound(model, rows)
        assert np.all(np.abs(margin - expected) <= bound), n


def atomic_schedule(model: Forest) -> Schedule:
    sch = tvm_forest.new_schedule(model).tile("tree", "g", "t", 3).tile("batch", "b0", "b1", 4)
    sch = sch.reorder("b0", "g", "b1", "t").gpu_dimension("b0", "grid.x")
    return sch.gpu_dimension("g", "grid.y").gpu_dimension("b1", "block.x").atomic_reduce("g")
