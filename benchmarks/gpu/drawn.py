"""Drawn schedules of the tests' models, compiled for GPUs, to be compared with the models there.

    python -m benchmarks gpu.drawn --out build/gpu-drawn --schedules 600  # where the package is
    python -m benchmarks gpu.drawn              # in that folder, where the GPU is

Both take `--target opencl`, for a GPU of any maker.

The first command draws schedules as `tools/random_schedules.py --simt` does, and writes kernels,
hard rows and answers, a file for each model. The second runs them, each with several numbers of
rows, in a process for each model: a kernel that fails leaves nothing to go on with. Margins must be
equal to the bit, or within the bound of reordered sums. Models whose rows the host prepares, such
as those with categories in columns of their own, and whose margins it completes, such as averages,
are left out: these kernels alone do not say what the model says. Status 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import HELPERS, ROOT, command, environment
from benchmarks.gpu import files
from benchmarks.gpu.engines import Ours
from tvm_forest.runtime.gpu.cuda import CudaDriver
from tvm_forest.runtime.gpu.library import Backend
from tvm_forest.runtime.gpu.opencl import OpenCLDriver

ROWS, SIZES = 700, (1, 33, 97, 200, 700)
DRIVERS = {"cuda": CudaDriver, "opencl": OpenCLDriver}


def write(
    folder: Path,
    wanted: int,
    first: int,
    architecture: str,
    backend: Backend | None = None,
    target: str = "cuda",
) -> None:
    """Draw from seed `first` on until so many are compiled; write the folder."""
    sys.path[:0] = HELPERS
    import tvm_forest
    from benchmarks.gpu import packing
    from random_schedules import drawn
    from scheduled_models import answers_of, forest_named
    from tvm_forest.errors import ForestError
    from tvm_forest.runtime.results import result_dtype, result_names

    packing.make_folder(folder)
    made = dict[str, dict[str, files.Candidate]]()
    for seed in count(first):
        if sum(map(len, made.values())) >= wanted:
            break
        name, sch, _ = drawn("simt", seed)
        forest = forest_named(name, seen=True)
        if not is_plain(forest):
            continue
        try:
            predictor = tvm_forest.build(forest, target, sch, exact=sch.keeps_order)
            one = packing.to_candidate(predictor, architecture, backend)
            made.setdefault(name, {})[f"seed {seed}"] = one
        except ForestError:
            pass
    for name, candidates in made.items():
        forest, answers = forest_named(name, seen=True), answers_of(name)
        part = {"rows": answers.rows, "margin": answers.margins, "bound": answers.bound}
        check = {key: np.ascontiguousarray(x[:ROWS]) for key, x in part.items()}
        results = [(x, str(result_dtype(forest, x))) for x in result_names(forest)]
        model = files.PackedModel(
            {"name": name}, forest, results, candidates, {"hard": check}, check["rows"][:1]
        )
        path = folder / "models" / f"{name.replace(' ', '_')}{files.SUFFIX}"
        files.write(model, path)
    print(f"{folder}: {sum(map(len, made.values()))} schedules, seeds {first} to {seed - 1}")


def is_plain(forest: Any) -> bool:
    """Return whether margins are what the kernels add up."""
    is_sum = forest.aggregate == "sum" and forest.base_first
    return is_sum and not forest.categories and not forest.needs_preparation


def check(path: Path, driver: Any) -> Counter[str]:
    """Run all schedules of a model; return how many were equal, near, and not as they should be."""
    model, counts = files.read(path, driver), Counter[str]()
    right = model.checks["hard"]
    for label in model.candidates:
        engine, verdicts = Ours(model, label), set[str]()
        for size in SIZES:
            found = engine.here(right["rows"][:size])
            verdicts.add(compare(found, {k: x[:size] for k, x in right.items()}, engine))
        verdict = max(verdicts, key=("equal", "near", "WRONG").index)
        counts[verdict] += 1
        if verdict == "WRONG":
            print(f"{path.name}: {label}: WRONG", flush=True)
    return counts


def compare(found: Any, right: dict[str, Any], engine: Any) -> str:
    """Return "equal", "near" or "WRONG"."""
    margin = right["margin"].reshape(found.shape)
    same = (found == margin) & (np.signbit(found) == np.signbit(margin))
    same |= np.isnan(found) & np.isnan(margin)
    if same.all():
        return "equal"
    with np.errstate(all="ignore"):
        apart = np.abs(found.astype(np.float64) - margin)
        near = same | (apart <= right["bound"].reshape(found.shape))
    return "near" if near.all() and not engine.keeps_order else "WRONG"


def check_all(folder: Path, target: str) -> int:
    """Check each model in a process of its own; return the status."""
    total, failed = Counter[str](), 0
    for path in sorted((folder / "models").glob("*.gz")):
        own = command("gpu.drawn", "--check", str(path), "--target", target)
        done = subprocess.run(own, capture_output=True, text=True, check=False, env=environment())
        *wrong, counts = done.stdout.splitlines() or [""]
        print(*wrong, sep="\n", end="\n" if wrong else "")
        if done.returncode:
            failed += 1
            print(f"{path.name}: {counts} {(done.stderr.splitlines() or ['?'])[-1]}")
        else:
            total.update(json.loads(counts))
    print(f"{total['equal']} equal, {total['near']} near, {total['WRONG']} wrong, {failed} failed")
    return int(bool(total["WRONG"] or failed))


def main() -> int:
    """Make the folder, or check what is in it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder to make")
    parser.add_argument("--schedules", type=int, default=600, help="to draw and compile")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--target", choices=DRIVERS, default="cuda")
    parser.add_argument("--check", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.out:
        write(chosen.out, chosen.schedules, chosen.seed, chosen.arch, target=chosen.target)
        return 0
    if chosen.check is None:
        return check_all(ROOT, chosen.target)
    print(json.dumps(check(chosen.check, DRIVERS[chosen.target]())))
    return 0
