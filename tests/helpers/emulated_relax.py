"""A Relax module for a GPU, run where there is none: the whole module, in another process.

takes: forests, outputs, schedules and rows (`Work`); gives: what the compiled modules compute.

TVM's memory of the GPU is memory of the host, and its host code calls kernels of ours: for "cuda"
the text in the module, compiled by g++ (see `emulated_cuda.py`), for "rocm" the LLVM IR in it (see
`hip_on_host.py`). As a program, runs a pickled list of `Work` and writes the results beside it.
"""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import relax, tirx

import tvm_forest.relax
from tvm_forest.runtime.gpu.cuda import CudaDriver
from tvm_forest.runtime.gpu.hip import HipDriver
from tvm_forest.runtime.gpu.kernels import Arguments
from tvm_forest.targets import rocm
from tvm_forest.tir_gen.internals.names import ROCM_LINK

GPUS = {"cuda": {"arch": "sm_90"}, "rocm": {"mcpu": "gfx942"}}
LAUNCH_PARAMS = "tirx.kernel_launch_params"


class Work(NamedTuple):
    """A module with one forest, and the batches that it is called with.

    Attributes:
        forest: the model.
        outputs: what is asked of it.
        batches: rows (R, F) each.
        schedules, exact: see `tvm_forest.relax.predict`.
    """

    forest: Any
    outputs: list[str]
    batches: list[Any]
    schedules: Any = None
    exact: bool = True


class Kernel(NamedTuple):
    """What launches a kernel.

    Attributes:
        kinds: "pointer" or a dtype, of each parameter.
        tags: the dimensions of grid and block whose sizes follow.
    """

    kinds: list[Any]
    tags: list[str]


def module_of(work: Work) -> tvm.IRModule:
    """Return a module whose function `main` takes rows and gives what is asked for."""
    forest, builder = work.forest, relax.BlockBuilder()
    kind = relax.TensorType((tirx.Var("n", "int64"), forest.row_width), forest.row_dtype)
    rows = relax.Var("rows", kind)
    with builder.function("main", [rows]):
        with builder.dataflow():
            call = tvm_forest.relax.predict(
                rows, forest, work.outputs, work.schedules, exact=work.exact
            )
            result = builder.emit_output(builder.emit(call))
        builder.emit_func_output(result)
    return builder.get()


def target_of(kind: str) -> tvm.target.Target:
    return tvm.target.Target({"kind": kind, **GPUS[kind], "host": {"kind": "llvm"}})


def compile_for(kind: str, mod: tvm.IRModule) -> Any:
    """Return an executable; for "cuda" it holds text, also where there is a GPU."""
    os.environ["TVM_COMPILE_FORCE_FALLBACK"] = "1"
    return tvm.compile(mod, target_of(kind))


def device_module(executable: Any) -> Any:
    """Return the kernels of an executable."""
    (host,) = (x for x in executable.mod.imports if x.kind == "llvm")
    (device,) = host.imports
    return device


# -- in the other process -------------------------------------------------------------------------


@contextmanager
def recorded(kind: str) -> Iterator[tuple[dict[str, Kernel], list[bytes]]]:
    """Note the kernels that TVM compiles, and what is linked of them."""
    kernels, images = dict[str, Kernel](), list[bytes]()
    build = tvm.get_global_func(f"target.build.{kind}")

    def note(mod: tvm.IRModule, target: Any) -> Any:
        kernels.clear()  # those of texts that are written on the way
        for func in mod.functions.values():
            types = [str(x.ty) for x in func.params]
            kinds = [x if x in ("int32", "int64") else "pointer" for x in types]
            tags = list(map(str, func.attrs[LAUNCH_PARAMS]))
            kernels[str(func.attrs["global_symbol"])] = Kernel(kinds, tags)
        if kind == "rocm":
            link = tvm.get_global_func(ROCM_LINK)
            keep = lambda code: (images.append(bytes(link(code))), images[-1])[1]  # noqa: E731
            tvm_ffi.register_global_func(ROCM_LINK, keep, override=True)
        made = build(mod, target)
        if kind == "rocm":
            tvm_ffi.register_global_func(ROCM_LINK, link, override=True)
        return made

    tvm_ffi.register_global_func(f"target.build.{kind}", note, override=True)
    yield kernels, images
    tvm_ffi.register_global_func(f"target.build.{kind}", build, override=True)


def driver_of(kind: str, device: Any, images: list[bytes], folder: Path) -> tuple[Any, Any]:
    """Return an emulated driver, and the module that it loaded."""
    if kind == "cuda":
        from emulated_cuda import libcuda, translate

        text = device.inspect_source().replace("#include <cuda.h>", "#include <math_constants.h>")
        driver: Any = CudaDriver(library=libcuda())
        return driver, driver.load(translate(text, "sm_90"))
    import hip_on_host

    ir, asm = device.inspect_source("llvm"), device.inspect_source("asm")
    hip_on_host.mock_runtime(rocm.CompiledKernels(images[-1], ir, asm), folder)
    driver = HipDriver(library=str(folder / "libamdhip64.so"))
    return driver, driver.load(images[-1])


def launcher(driver: Any, module: Any, name: str, kernel: Kernel) -> Any:
    """Return a function that TVM's host code calls in the place of a kernel."""
    loaded = driver.find_kernel(module, name)

    def launch(*arguments: Any) -> None:
        count = len(kernel.kinds)
        sizes = dict(zip(kernel.tags, arguments[count:], strict=True))
        grid, block = (
            tuple(int(sizes.get(f"{level}Idx.{axis}", 1)) for axis in "xyz")
            for level in ("block", "thread")
        )
        given = Arguments(kernel.kinds)
        given.set(*(getattr(x, "value", x) or 0 for x in arguments[:count]))
        before = driver.enter()
        driver.launch(loaded, grid, block, 0, given, 0)
        driver.leave(before)

    return launch


@functools.cache
def open_memory(kind: str) -> Any:
    """Return a device of TVM whose memory is that of the host; TVM compiles without it before."""
    memory = tvm.get_global_func("device_api.cpu")()
    tvm_ffi.register_global_func(f"device_api.{kind}", lambda: memory, override=True)
    return tvm.device(kind, 0)


def prepare(kind: str, work: Work, folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return an executable whose host code finds its kernels elsewhere, and these by name."""
    with recorded(kind) as (kernels, images):
        executable = compile_for(kind, module_of(work))
    driver, module = driver_of(kind, device_module(executable), images, folder)
    launchers = {name: launcher(driver, module, name, x) for name, x in kernels.items()}
    (host,) = (x for x in executable.mod.imports if x.kind == "llvm")
    host.clear_imports()
    return executable, launchers


def run(kind: str, work: Work, made: tuple[Any, dict[str, Any]]) -> list[list[Any]]:
    """Return the outputs of each batch."""
    executable, launchers = made
    for name, launch in launchers.items():
        tvm_ffi.register_global_func(name, launch, override=True)
    there, found = open_memory(kind), []
    machine = relax.VirtualMachine(executable, there)
    for rows in work.batches:
        results = machine["main"](tvm.runtime.tensor(rows, there))
        results = [results] if len(work.outputs) == 1 else list(results)
        found.append([x.numpy() for x in results])
    return found


def main(kind: str, path: str) -> None:
    works = [Work(*work) for work in pickle.loads(Path(path).read_bytes())]
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in works]
        made = [prepare(kind, *pair) for pair in zip(works, folders, strict=True)]
        found = [run(kind, *pair) for pair in zip(works, made, strict=True)]
    Path(path).write_bytes(pickle.dumps(found))


def emulate(kind: str, works: list[Work], folder: Path) -> list[list[list[Any]]]:
    """Return for each module, batch and output what the emulated GPU computes."""
    file = folder / "work.pickle"
    file.write_bytes(pickle.dumps([tuple(work) for work in works]))
    command = [sys.executable, __file__, kind, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    return pickle.loads(file.read_bytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
