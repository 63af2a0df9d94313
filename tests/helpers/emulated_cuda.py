"""CUDA without a GPU: the very text of the kernels, compiled by g++, behind a driver of our own.

takes: a predictor of target "cuda"; gives: the same predictor, which then runs on the CPU.

What is emulated is said in `cuda_emulation/math_constants.h` and `cuda_emulation/libcuda.cpp`. As a
program, runs a pickled `Work` with the seeds 0 to 7, and writes the results beside it: code without
a barrier may well crash.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tvm_forest.runtime.gpu import ModelArray
from tvm_forest.runtime.gpu.cuda import CudaDriver
from tvm_forest.runtime.gpu.library import Backend, KernelLibrary
from tvm_forest.runtime.gpu.plan import PythonNames, expression_in_python

HERE = Path(__file__).with_name("cuda_emulation")
OPTIONS = (
    *("-std=c++17", "-O0", "-ffp-contract=off", "-fno-strict-aliasing", "-shared", "-fPIC"),
    *("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"),
)
"""A GPU refuses what is not aligned, and so do these. To optimize takes longer than to run."""
KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\) \{')
SEEDS = range(8)


OF_PARENT = "TVM_FOREST_EMULATED_CUDA"
"""Variable of the environment with the folder of the process that started this one."""


@functools.cache
def folder() -> Path:
    """Return a folder for what this process and those that it starts compile, until it ends."""
    if OF_PARENT in os.environ:
        return Path(os.environ[OF_PARENT])
    made = tempfile.TemporaryDirectory()
    atexit.register(made.cleanup)
    os.environ[OF_PARENT] = made.name
    return Path(made.name)


def compiled(source: str, name: str, *libraries: str) -> Path:
    """Return a shared library of C++ text, compiled once."""
    if shutil.which("g++") is None:
        pytest.skip("no g++, which the emulation of CUDA needs")
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    made = folder() / f"{name}-{digest}.so"
    if not made.exists():
        text, part = (made.with_suffix(f".{os.getpid()}{end}") for end in (".cpp", ".so"))
        text.write_text(source, encoding="utf-8")
        command = ["g++", *OPTIONS, f"-I{HERE}", "-o", str(part), str(text), *libraries]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000]
        part.replace(made)  # at once, for processes that look for it
    return made


@functools.cache
def libcuda() -> str:
    """Return the path of the emulated driver."""
    return str(compiled((HERE / "libcuda.cpp").read_text(encoding="utf-8"), "libcuda", "-ldl"))


@functools.cache
def settings(path: str = "") -> Any:
    """Return the functions of the emulated driver that CUDA's does not have."""
    library = ctypes.CDLL(path or libcuda())
    library.emulated_count.restype = library.emulated_contexts.restype = ctypes.c_long
    library.emulated_set.argtypes = (ctypes.c_char_p, ctypes.c_long)
    return library


def called(name: str) -> int:
    """Return how often a function of the driver was called."""
    return int(settings().emulated_count(name.encode()))


def with_calls(source: str) -> str:
    """Return CUDA text with a function for each kernel that takes pointers to its arguments.

    Shared memory whose size the launch decides has the size that the text says beside it. How much
    that is in all kernels together, the driver has to know: it is no part of what they declare.
    """
    at_launch = r"extern (__shared__ [^;]*)\[\];  // (\d+)"
    given_at_launch = sum(int(size) for _, size in re.findall(at_launch, source))
    source = re.sub(at_launch, r"\1[\2];", source)
    calls = [f'extern "C" long given_at_launch() {{ return {given_at_launch}; }}\n']
    for name, parameters in KERNEL.findall(source):
        types = [x.rsplit(" ", 1)[0].replace("__restrict__", "") for x in parameters.split(", ")]
        given = ", ".join(f"*({kind}*)a[{i}]" for i, kind in enumerate(types))
        sizes = ", ".join(f"sizeof({kind})" for kind in types)
        calls.append(f'extern "C" const int sizes_{name}[] = {{{len(types)}, {sizes}}};\n')
        calls.append(f'extern "C" void call_{name}(void** a) {{ {name}({given}); }}\n')
    return source + "".join(calls)


def translate(source: str, architecture: str, driver: int | None = None) -> bytes:
    """Return an image for the emulated driver."""
    made = compiled(with_calls(source), "kernels", libcuda())
    return f"EMULATED {architecture} {made}".encode()


def emulated(predictor: Any, seed: int = 0) -> Any:
    """Let a predictor run on the emulated GPU; a seed shuffles the threads."""
    settings().emulated_set(b"seed", seed)
    predictor.library.backend = Backend(lambda: CudaDriver(library=libcuda()), translate)
    return predictor


def evaluate(expr: Any, values: dict[str, Any]) -> int:
    """Return what an expression of a plan is for some numbers and arrays."""
    arrays = {name: name for name, x in values.items() if isinstance(x, np.ndarray)}
    names = PythonNames({name: name for name in values}, arrays)
    flat = {name: x.reshape(-1) if name in arrays else x for name, x in values.items()}
    return int(eval(expression_in_python(expr, names), flat))


class Work(NamedTuple):
    """A call of `predict` of a library, for another process.

    Attributes:
        library: what `KernelLibrary.to_bytes` gives, with an image for "sm_90".
        driver: path of the emulated driver.
        rows: (R, F).
        model: arrays that the function reads.
        results: shapes and dtypes of what it writes.
    """

    library: bytes
    driver: str
    rows: Any
    model: list[Any]
    results: list[tuple[tuple[int, ...], str]]


def margins_with(predictor: Any, source: str, rows: Any) -> Any:
    """Return margins (8, R, C) of other kernels, one for each seed; None if they crash."""
    kernels = KernelLibrary.from_bytes(predictor.library.to_bytes(), predictor.library.backend)
    kernels.source, kernels.images = source, {"sm_90": translate(source, "sm_90")}
    shape = (len(rows), predictor.forest.n_outputs)
    results = [(shape, str(dtype)) for dtype in predictor._functions.result_dtypes]
    model = [x.array for x in predictor.arguments["predict"]]
    file = folder() / "work.pickle"
    work = Work(kernels.to_bytes(), libcuda(), rows, model, results)
    file.write_bytes(pickle.dumps(tuple(work)))
    command = [sys.executable, __file__, str(file)]
    done = subprocess.run(command, capture_output=True, check=False)
    return None if done.returncode else np.load(file.with_suffix(".npy"))


def main(path: str) -> None:
    file = Path(path)
    work = Work(*pickle.loads(file.read_bytes()))
    backend = Backend(lambda: CudaDriver(library=work.driver), translate)
    function = KernelLibrary.from_bytes(work.library, backend)["predict"]
    model, found = [ModelArray(x) for x in work.model], []
    for seed in SEEDS:
        settings(work.driver).emulated_set(b"seed", seed)
        results = [np.zeros(shape, dtype) for shape, dtype in work.results]
        function(work.rows, *model, *results)
        found.append(results[0])
    np.save(file.with_suffix(".npy"), np.stack(found))


if __name__ == "__main__":
    main(sys.argv[1])
