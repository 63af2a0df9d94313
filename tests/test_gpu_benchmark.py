"""The benchmark on a GPU: its folder runs with numpy and a driver alone, here the emulated one."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulated_cuda import libcuda, translate

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
WITH_NUMPY_ALONE = """
import os, runpy, sys
sys.argv = sys.argv[1:]
folder = sys.argv[0]
scripts = {name.removesuffix(".py") for name in os.listdir(folder)}
known = sys.stdlib_module_names | {"numpy"} | scripts
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in known:
            raise ImportError(f"no {name} here")
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, folder)
runpy.run_path(f"{folder}/gpu.py", run_name="__main__")
"""


@pytest.fixture(autouse=True, scope="module")
def scripts() -> Iterator[None]:
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import gpu_folder
    import models
    from tvm_forest.kernels.library import Backend

    made, cache = (tmp_path_factory.mktemp(name) for name in ("gpu", "models"))
    backend = Backend(lambda: None, translate)
    gpu_folder.write(made, [models.get("tiny", cache)], ("default", "fil packed"), backend)
    return made


def run(folder: Path, *arguments: str) -> Any:
    command = [sys.executable, "-c", WITH_NUMPY_ALONE, str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={})


@functools.cache
def quickly(folder: Path) -> Any:
    out = folder / "results.json"
    quick = "--batches 8 40 --rounds 2 --seconds 0.001 --copy 4096".split()
    done = run(folder, "--driver", libcuda(), "--out", str(out), *quick)
    return done, json.loads(out.read_text()) if out.exists() else {}


@pytest.mark.slow
def test_the_folder_runs_with_numpy_and_a_driver_alone(folder: Path) -> None:
    done, results = quickly(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    said = {record["engine"]: record for record in results["engines"]}
    assert [said["ours: default"][kind] for kind in ("typical", "hard", "wild")] == ["equal"] * 3
    assert {said["ours: fil packed"][kind] for kind in ("typical", "hard")} <= {"equal", "bound"}
    for peer in ("xgboost", "nvforest", "torch"):
        assert said[peer]["why"] == f"ImportError: no {peer} here"


@pytest.mark.slow
def test_figures_are_medians_beside_their_bounds(folder: Path) -> None:
    done, results = quickly(folder)
    assert [cell["batch"] for cell in results["cells"]] == [8, 40]
    for cell in results["cells"]:
        assert cell["kernel_bound_us"] > 0 and cell["total_bound_us"] > 0
        assert cell["engines"].keys() == {"ours: default", "ours: fil packed"}
        for one in cell["engines"].values():
            assert 0 < one["kernel_least_us"] <= one["kernel_us"] <= one["kernel_most_us"]
            assert one["host_waits"], "the emulated GPU has done all work at once"
    assert "| tiny | 40 | total |" in done.stdout


@pytest.mark.slow
def test_wrong_answers_end_with_status_1_and_are_not_timed(folder: Path, tmp_path: Path) -> None:
    import gpu_files

    changed, path = tmp_path / "models", folder / "models" / "tiny.tvmf.gz"
    changed.mkdir()
    model = gpu_files.read(path, None)
    margin = model.checks["hard"]["margin"]
    model.checks["hard"]["margin"] = np.nextafter(margin, np.float32(np.inf))
    gpu_files.write(model, changed / path.name)
    out, quick = tmp_path / "out.json", "--batches 8 --rounds 1 --seconds 0.001 --copy 4096".split()
    done = run(folder, "--folder", str(changed), "--driver", libcuda(), "--out", str(out), *quick)
    results = json.loads(out.read_text())
    assert done.returncode == 1, done.stderr
    assert results["engines"][0]["hard"] == "WRONG"
    assert "ours: default" not in results["cells"][0]["engines"]


@pytest.mark.slow
def test_without_a_driver_one_line_says_so(folder: Path) -> None:
    done = run(folder, "--driver", "libcuda-that-is-not-there.so")
    assert done.returncode == 2
    assert done.stdout.startswith("gpu: cuda: no driver of NVIDIA found")
    assert done.stdout.count("\n") == 1 and not done.stderr
    done = run(folder, "--models", "other")
    assert (done.returncode, "no model other in" in done.stdout) == (2, True)
