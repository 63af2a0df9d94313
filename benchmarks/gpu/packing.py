"""What a machine with a GPU gets: programs, the modules that launch kernels, compiled schedules.

takes: a folder, predictors for "cuda"; gives: files, Candidate.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.gpu.files import Candidate, Function
from tvm_forest.runtime.gpu import cuda_compiler
from tvm_forest.runtime.gpu.library import Backend
from tvm_forest.schedule_prims.batches import name_functions

SCRIPTS = (
    *("__init__", "__main__", "checks", "gpu/__init__", "gpu/speed", "gpu/drawn", "gpu/durations"),
    *("gpu/engines", "gpu/files", "gpu/report", "gpu/goals", "gpu/sanitize"),
)
PARTS = (
    *(f"benchmarks/{x}.py" for x in SCRIPTS),
    *(f"tvm_forest/{x}" for x in ("__init__.py", "errors.py", "system", "forest")),
    *(f"tvm_forest/{x}" for x in ("runtime/__init__.py", "runtime/gpu")),
)


def make_folder(folder: Path) -> None:
    """Make a folder anew, with all but models, which go to its folder "models"."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "models").mkdir(parents=True)
    for part in PARTS:
        source, target = ROOT / part, folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


def to_candidate(predictor: Any, architecture: str, backend: Backend | None = None) -> Candidate:
    """Compile the kernels of a predictor for an architecture.

    Args:
        predictor: for the target "cuda".
        architecture: such as "sm_90", or `cuda_compiler.ANY`.
        backend: what compiles kernels; None for nvcc or NVRTC, if there is one.
    """
    library, by_batch = predictor.library, predictor.schedules
    library.backend = backend or library.backend
    if library.kind == "cuda":  # OpenCL's text is compiled where it runs
        library.architecture = architecture
        if backend is not None or cuda_compiler.has_compiler():
            library.image(architecture)
    functions = {
        smallest: Function(function, [x.array for x in predictor.arguments[function]])
        for smallest, function in name_functions(by_batch).items()
    }
    text = "\n".join(f"{n} rows and more:\n{one}" for n, one in by_batch.items())
    in_order = all(one.keeps_order for one in by_batch.values())
    return Candidate(text, in_order, library, functions)
