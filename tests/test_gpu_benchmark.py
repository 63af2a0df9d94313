"""The benchmark on a GPU: its folder runs with numpy and a driver alone, here the emulated one."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from test_bench import BENCHMARKS, module

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


MAKE = """
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
benchmarks, tests, made, cache = sys.argv[1:]
sys.path[:0] = [benchmarks]
sys.path.append(tests)
import emulated_cuda, gpu_folder, models
from tvm_forest.gpu_runtime.library import Backend
emulated_cuda.folder = lambda: SimpleNamespace(name=cache)
backend = Backend(lambda: None, emulated_cuda.translate)
chosen = [models.get("tiny", Path(cache))]
gpu_folder.write(Path(made), chosen, ("default", "fil packed"), backend)
print(emulated_cuda.libcuda())
"""


class Made(NamedTuple):
    """A folder of the benchmark, and the emulated driver for its kernels."""

    folder: Path
    driver: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    if shutil.which("g++") is None:
        pytest.skip("no g++, which the emulation of CUDA needs")
    folder, cache = (tmp_path_factory.mktemp(name) for name in ("gpu", "models"))
    places = (BENCHMARKS, Path(__file__).parent, folder, cache)
    command = [sys.executable, "-c", MAKE, *map(str, places)]
    paths = [str(BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return Made(folder, done.stdout.splitlines()[-1])


def run(folder: Path, *arguments: str) -> Any:
    command = [sys.executable, "-c", WITH_NUMPY_ALONE, str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={})


@functools.cache
def quickly(made: Made) -> Any:
    out = made.folder / "results.json"
    quick = "--batches 8 40 --rounds 2 --seconds 0.001 --copy 4096".split()
    done = run(made.folder, "--driver", made.driver, "--out", str(out), *quick)
    return done, json.loads(out.read_text()) if out.exists() else {}


@pytest.mark.slow
@pytest.mark.long
def test_the_folder_runs_with_numpy_and_a_driver_alone(made: Made) -> None:
    done, results = quickly(made)
    assert done.returncode == 0, done.stdout + done.stderr
    said = {record["engine"]: record for record in results["engines"]}
    assert [said["ours: default"][kind] for kind in ("typical", "hard", "wild")] == ["equal"] * 3
    assert {said["ours: fil packed"][kind] for kind in ("typical", "hard")} <= {"equal", "bound"}
    for peer in ("xgboost", "nvforest", "torch"):
        assert said[peer]["why"] == f"ImportError: no {peer} here"


@pytest.mark.slow
def test_figures_are_medians_beside_their_bounds(made: Made) -> None:
    done, results = quickly(made)
    assert [cell["batch"] for cell in results["cells"]] == [8, 40]
    for cell in results["cells"]:
        assert cell["kernel_bound_us"] > 0 and cell["total_bound_us"] > 0
        assert cell["engines"].keys() == {"ours: default", "ours: fil packed"}
        best = cell["total"]
        assert best["after_us"] == min(one["total_us"] for one in cell["engines"].values())
        assert best["before_us"] == cell["engines"]["ours: default"]["total_us"]
        assert best["schedule"] in ("default", "fil packed") and best["peer"] is None
        for one in cell["engines"].values():
            assert 0 < one["kernel_least_us"] <= one["kernel_us"] <= one["kernel_most_us"]
            assert one["host_waits"], "the emulated GPU has done all work at once"
    assert "| tiny | 40 | total |" in done.stdout


def run_changed(made: Made, folder: Path, change: Callable[[Any], None]) -> tuple[Any, Any]:
    """Run the benchmark of a model in which something was changed."""
    gpu_files, name = module("gpu_files"), "tiny.tvmf.gz"
    model = gpu_files.read(made.folder / "models" / name, None)
    change(model)
    (folder / "models").mkdir()
    gpu_files.write(model, folder / "models" / name)
    quick = "--batches 8 --rounds 1 --seconds 0.001 --copy 4096".split()
    named = {"folder": folder / "models", "driver": made.driver, "out": folder / "out.json"}
    given = [text for key, value in named.items() for text in (f"--{key}", str(value))]
    done = run(made.folder, *given, *quick)
    return done, json.loads((folder / "out.json").read_text())


def test_a_table_has_the_fastest_schedule_beside_the_fastest_peer() -> None:
    times = {"ours: default": 9.0, "ours: fil": 4.0, "torch": 80.0, "xgboost": 12.0}
    cell: dict[str, Any] = {"model": "m", "batch": 8, "kernel_bound_us": 1, "total_bound_us": 2}
    cell["engines"] = {
        name: {"kernel_us": us, "total_us": 2 * us, "host_waits": name == "xgboost"}
        for name, us in times.items()
    }
    cell["engines"]["torch"] = {"kernel_why": "no", "total_us": 10.0}
    kernel, total = module("gpu_report").row_of(cell).splitlines()
    assert kernel == "| m | 8 | kernel | 1 | 9 | 4 | fil | 12* | xgboost | 3.00 |"
    assert total == "| m | 8 | total | 2 | 18 | 8 | fil | 10 | torch | 1.25 |"


@pytest.mark.slow
def test_wrong_answers_end_with_status_1_and_are_not_timed(made: Made, tmp_path: Path) -> None:
    def change(model: Any) -> None:
        hard = model.checks["hard"]
        hard["margin"] = np.nextafter(hard["margin"], np.float32(np.inf))

    done, results = run_changed(made, tmp_path, change)
    assert done.returncode == 1, done.stderr
    assert results["engines"][0]["hard"] == "WRONG"
    assert "ours: default" not in results["cells"][0]["engines"]


@pytest.mark.slow
def test_kernels_that_the_driver_refuses_are_compiled_or_it_is_said_why(
    made: Made, tmp_path: Path
) -> None:
    def change(model: Any) -> None:
        model.candidates["default"].library.images["any"] = b"of another world"

    done, results = run_changed(made, tmp_path, change)
    said = {record["engine"]: record for record in results["engines"]}
    here = "on sm_90, driver for CUDA 13.0; the emulator says why"
    refused = f"cuda: cuModuleLoadDataEx ({here}) failed with 200"
    why = said["ours: default"]["why"]
    assert why.startswith(refused) and "; and compiled here: " in why
    assert said["ours: fil packed"]["hard"] in ("equal", "bound")
    assert done.returncode == 1


@pytest.mark.slow
def test_without_a_driver_one_line_says_so(made: Made) -> None:
    done = run(made.folder, "--driver", "libcuda-that-is-not-there.so")
    assert done.returncode == 2
    assert done.stdout.startswith("gpu: cuda: no driver of NVIDIA found")
    assert done.stdout.count("\n") == 1 and not done.stderr
    done = run(made.folder, "--models", "other")
    assert (done.returncode, "no model other in" in done.stdout) == (2, True)
