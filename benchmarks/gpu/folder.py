"""Make the folder with which a machine that has a GPU, and no network, runs the benchmark.

    python -m benchmarks gpu.folder --out build/gpu      # or: make bench-gpu
    cd build/gpu && python -m benchmarks gpu.speed     # there: a driver, Python, numpy

The folder holds kernels for sm_80, sm_90 and sm_120, with PTX for all others, made by nvcc; where
there is none, their text, which NVRTC or nvcc compiles there. Beside them lie the models for
XGBoost, rows, the answers of the training library, and the modules that run plans of launches:
neither TVM nor a compiler is needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
from benchmarks import models
from benchmarks.gpu import files, packing
from benchmarks.gpu.engines import CPU_LEVEL
from benchmarks.gpu.files import Candidate, PackedModel
from benchmarks.gpu.recipes import bound, laid_out
from benchmarks.models import Model
from tvm_forest import Forest, Schedule
from tvm_forest.errors import ForestError, ScheduleError
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.runtime.gpu import cuda_compiler
from tvm_forest.runtime.gpu.library import Backend
from tvm_forest.runtime.results import result_dtype, result_names
from tvm_forest.schedule_prims import recipes

NAMES = ("airline", "higgs", "year", "epsilon", "covtype")
CHECKED, HARD = 400, 300
CHECKED_BYTES, ROWS_BYTES = 1 << 20, 1 << 22
MAX_MB = 60
CACHED = 40_000
"""Bytes of the rows of a block, up to which the template keeps them in shared memory."""

TEMPLATE = (
    ("packed", 32, 1, 10, 1),
    ("packed", 32, 1, 10, 4),
    ("packed", 64, 1, 2, 2),
    ("packed", 64, 2, 2, 4),
    ("packed", 8, 1, 20, 2),
    ("packed", 8, 1, 50, 1),
    ("array", 32, 1, 10, 2),
    ("array", 64, 1, 2, 4),
    ("reorg", 8, 1, 50, 1),
    ("ranked", 32, 1, 10, 2),
)
"""Points of the template: layout, rows of a block, rows and trees of a thread, walks together."""


def schedules(forest: Forest) -> Iterator[tuple[str, Callable[[], Schedule | None]]]:
    """Yield the schedules to try, None for the defaults; what does not fit a GPU raises here."""
    start = tvm_forest.new_schedule(forest)
    yield "default", lambda: None
    for layout in ("packed", "ranked", "sparse"):
        yield f"direct {layout}", lambda x=layout: recipes.tahoe_direct(laid_out(start, x), 128)
    for layout in ("packed", "array"):
        named = laid_out(start, layout)
        yield f"shared data {layout}", lambda x=named: recipes.tahoe_shared_data_rows(x)
        yield f"shared forest {layout}", lambda x=named: recipes.tahoe_shared_forest(x, 5)
        part = recipes.tahoe_shared_partial_forest
        yield f"shared partial forest {layout}", lambda x=named, p=part: p(x, 5)
    for layout in ("reorg", "packed"):
        yield f"fil {layout}", lambda x=layout: recipes.rapids_fil(laid_out(start, x))
    yield "ranks", lambda: recipes.gpu_shared_ranks(start)
    for layout, rows, each, threads, walks in TEMPLATE:
        name = f"template {layout} {rows} {each} {threads} {walks}"
        given = dict(rows_tb=rows, rows_thread=each, tree_threads=threads, factor=walks)
        given["cache_rows"] = rows * forest.row_width * np.dtype(forest.row_dtype).itemsize < CACHED
        yield (
            name,
            lambda x=layout, g=given: recipes.gpu_template(laid_out(start, x), unroll=False, **g),
        )


def candidates(
    forest: Forest, wanted: Sequence[str], backend: Backend | None, about: dict[str, Any]
) -> dict[str, Candidate]:
    """Compile schedules for all GPUs; note in `about` which were refused."""
    made = {}
    for name, write in schedules(forest):
        if wanted and name not in wanted:
            continue
        try:
            sch = write()
            predictor = tvm_forest.build(forest, "cuda", sch, exact=sch is None)
        except ScheduleError as error:
            about["refused"][name] = str(error).splitlines()[0]
            continue
        made[name] = packing.to_candidate(predictor, cuda_compiler.ANY, backend)
    return made


def checks(model: Model, forest: Forest) -> dict[str, dict[str, Any]]:
    """Return rows with the answers of the training library, which the reference walk repeats."""
    rows = model.rows()
    most = CHECKED_BYTES // rows[:1].nbytes
    wild = hard_rows(forest, min(HARD, most))
    hard = np.where(np.isinf(wild), 0, wild).astype(wild.dtype)  # which most libraries refuse
    found = {}
    for kind, some in (("typical", rows[: min(CHECKED, most)]), ("hard", hard), ("wild", wild)):
        margin = forest.predict_reference(some)
        value = forest.predict_reference(some, "value")
        if kind != "wild":
            right = model.reference(some)[0].astype(margin.dtype)
            if right.tobytes() != margin.tobytes():
                raise SystemExit(f"{model.name}: the reference walk is not {model.library}")
        limit = bound(forest, some)
        found[kind] = {"rows": some, "margin": margin, "value": value, "bound": limit}
    return found


def pack(model: Model, wanted: Sequence[str], backend: Backend | None) -> PackedModel:
    """Compile a model, and put all that is needed of it together; see `write`."""
    forest = tvm_forest.load(model.path)
    if forest.needs_preparation:
        raise SystemExit(f"{model.name}: its rows have to be prepared by tvm_forest")
    rows = model.rows()
    about: dict[str, Any] = {"name": model.name, "rows": model.rows_from, "refused": {}}
    about |= {"trees": forest.n_trees, "features": rows.shape[1], "outputs": forest.n_outputs}
    made = candidates(forest, wanted, backend, about)
    results = [(name, result_dtype(forest, name)) for name in result_names(forest)]
    some = rows[: ROWS_BYTES // rows[:1].nbytes]
    return PackedModel(about, forest, results, made, checks(model, forest), some)


def write(
    folder: Path,
    chosen: Sequence[Model],
    wanted: Sequence[str] = (),
    backend: Backend | None = None,
) -> None:
    """Write the folder.

    Args:
        folder: is made anew.
        chosen: models of XGBoost.
        wanted: names of `schedules`; all if there are none.
        backend: what compiles kernels; None for nvcc or NVRTC.
    """
    packing.make_folder(folder)
    for model in chosen:
        path = folder / "models" / f"{model.name}{files.SUFFIX}"
        packed = pack(model, wanted, backend)
        files.write(packed, path)
        (folder / "models" / f"{model.name}.ubj").write_bytes(model.load().save_raw("ubj"))
        on_cpu = tvm_forest.build(packed.forest, {"kind": "llvm", "mcpu": CPU_LEVEL})
        on_cpu.export_library(folder / "models" / f"{model.name}.so")
        print(f"{model.name}: {said_of(packed)}", flush=True)


def said_of(packed: PackedModel) -> str:
    """Return how many schedules there are, and megabytes of the parts before compression."""
    images = sum(len(x) for one in packed.candidates.values() for x in one.library.images.values())
    functions = [x for one in packed.candidates.values() for x in one.functions.values()]
    arrays = {x.tobytes(): x.nbytes for function in functions for x in function.arrays}
    checked = sum(x.nbytes for check in packed.checks.values() for x in check.values())
    sizes = {"kernels": images, "layouts": sum(arrays.values()), "answers": checked}
    sizes["rows"] = packed.rows.nbytes
    said = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items())
    return f"{len(packed.candidates)} schedules, {len(packed.about['refused'])} refused; {said}"


def main() -> int:
    """Make the folder; 1 if it is larger than promised."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder to make")
    parser.add_argument("--models", nargs="+", default=list(NAMES))
    parser.add_argument("--schedules", nargs="+", default=[], help="names; all of them")
    parser.add_argument("--cache", type=Path, default=models.CACHE, help="folder for models")
    parser.add_argument("--most", type=float, default=MAX_MB, help="MB that the folder may take")
    given = parser.parse_args()
    try:
        chosen = [models.get(x, given.cache) for x in given.models if models.at_hand(x)]
        write(given.out, chosen, given.schedules)
    except ForestError as error:
        raise SystemExit(f"gpu.folder: {error}") from None
    sizes = {path: path.stat().st_size for path in given.out.rglob("*") if path.is_file()}
    for top in sorted({path.relative_to(given.out).parts[0] for path in sizes}):
        own = sum(size for path, size in sizes.items() if path.is_relative_to(given.out / top))
        print(f"{top}: {own / 1e6:.2f} MB")
    whole = sum(sizes.values()) / 1e6
    print(f"{given.out}: {whole:.1f} MB of at most {given.most:g}")
    return 1 if whole > given.most else 0
