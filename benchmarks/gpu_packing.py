"""What a machine with a GPU gets: programs, the modules that launch kernels, compiled schedules.

takes: a folder, predictors for "cuda"; gives: files, Candidate.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from gpu_files import Candidate, Function
from tvm_forest.runtime.gpu import cuda_compiler
from tvm_forest.runtime.gpu.library import Backend
from tvm_forest.schedule_prims.batches import name_functions

HERE = Path(__file__).resolve().parent
SCRIPTS = (
    *("gpu.py", "gpu_drawn.py", "gpu_durations.py", "gpu_engines.py", "gpu_files.py"),
    *("gpu_report.py", "gpu_goals.py", "gpu_sanitize.py", "checks.py"),
)
PACKAGE = (
    *("__init__.py", "errors.py", "system", "forest"),
    *("runtime/__init__.py", "runtime/gpu"),
)


def make_folder(folder: Path) -> None:
    """Make a folder anew, with all but models, which go to its folder "models"."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "models").mkdir(parents=True)
    for script in SCRIPTS:
        shutil.copy(HERE / script, folder)
    for part in PACKAGE:
        source, target = HERE.parent / "tvm_forest" / part, folder / "tvm_forest" / part
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
