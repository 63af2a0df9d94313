"""The benchmark on a GPU: its folder runs with numpy and a driver alone, here the emulated one."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import emulated_cuda
from benchmarks import environment, models
from benchmarks.gpu import files, folder, goals, report, sanitize
from tvm_forest.runtime.gpu.library import Backend

WITH_NUMPY_ALONE = """
import os, runpy, sys
sys.argv = sys.argv[1:]
folder = sys.argv[0]
known = sys.stdlib_module_names | {"numpy"} | set(os.listdir(folder))
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in known:
            raise ImportError(f"no {name} here")
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, folder)
sys.argv[0:1] = ["", "gpu.speed"]
runpy.run_module("benchmarks", run_name="__main__")
"""


DRAWN = """
import sys
from pathlib import Path
tests, made = sys.argv[1:]
sys.path.insert(0, tests)
import emulated_cuda
from benchmarks.gpu import drawn
from tvm_forest.runtime.gpu.cuda import CudaDriver
from tvm_forest.runtime.gpu.library import Backend
drawn.write(Path(made), 2, 1, "sm_90", Backend(lambda: None, emulated_cuda.translate))
driver = CudaDriver(library=emulated_cuda.libcuda())
for path in (Path(made) / "models").iterdir():
    for how, number in drawn.check(path, driver).items():
        print(*[how] * number, sep="\\n")
"""


class Made(NamedTuple):
    """A folder of the benchmark, and the emulated driver for its kernels."""

    folder: Path
    driver: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    if shutil.which("g++") is None:
        pytest.skip("no g++, which the emulation of CUDA needs")
    backend = Backend(lambda: None, emulated_cuda.translate)
    place, cache = (tmp_path_factory.mktemp(name) for name in ("gpu", "models"))
    folder.write(place, [models.get("tiny", cache)], ("default", "fil packed"), backend)
    return Made(place, emulated_cuda.libcuda())


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
def test_drawn_schedules_are_compared_where_the_gpu_is(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++, which the emulation of CUDA needs")
    places = (Path(__file__).parents[1] / "helpers", tmp_path / "made")
    command = [sys.executable, "-c", DRAWN, *map(str, places)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 3 and set(said[1:]) <= {"equal", "near"}, said


@pytest.mark.slow
@pytest.mark.long
def test_the_folder_runs_with_numpy_and_a_driver_alone(made: Made) -> None:
    done, results = quickly(made)
    assert done.returncode == 0, done.stdout + done.stderr
    said = {record["engine"]: record for record in results["engines"]}
    assert [said["ours: default"][kind] for kind in ("typical", "hard", "wild")] == ["equal"] * 3
    assert {said["ours: fil packed"][kind] for kind in ("typical", "hard")} <= {"equal", "bound"}
    assert said["ours on the CPU"]["typical"] == "equal"
    assert "memcheck: not run: no compute-sanitizer" in done.stdout
    for peer in ("xgboost", "nvforest", "torch"):
        assert said[peer]["why"] == f"ImportError: no {peer} here"


@pytest.mark.slow
def test_figures_are_medians_beside_their_bounds(made: Made) -> None:
    done, results = quickly(made)
    assert [cell["batch"] for cell in results["cells"]] == [8, 40]
    for cell in results["cells"]:
        assert cell["kernel_bound_us"] > 0 and cell["host_bound_us"] > 0
        ours = {x: y for x, y in cell["engines"].items() if x != "ours on the CPU"}
        assert ours.keys() == {"ours: default", "ours: fil packed"} and len(cell["engines"]) == 3
        best = cell["host"]
        assert best["after_us"] == min(one["host_us"] for one in ours.values())
        assert best["before_us"] == ours["ours: default"]["host_us"]
        assert best["schedule"] in ("default", "fil packed") and best["peer"] is None
        assert "GPU's memory" in cell["engines"]["ours on the CPU"]["kernel_why"]
        for one in ours.values():
            assert 0 < one["kernel_least_us"] <= one["kernel_us"] <= one["kernel_most_us"]
            assert one["host_waits"], "the emulated GPU has done all work at once"
    assert "| tiny | 40 | host |" in done.stdout


def run_changed(made: Made, folder: Path, change: Callable[[Any], None]) -> tuple[Any, Any]:
    """Run the benchmark of a model in which something was changed."""
    name = "tiny.tvmf.gz"
    model = files.read(made.folder / "models" / name, None)
    change(model)
    (folder / "models").mkdir()
    files.write(model, folder / "models" / name)
    quick = "--batches 8 --rounds 1 --seconds 0.001 --copy 4096".split()
    named = {"folder": folder / "models", "driver": made.driver, "out": folder / "out.json"}
    given = [text for key, value in named.items() for text in (f"--{key}", str(value))]
    done = run(made.folder, *given, *quick)
    return done, json.loads((folder / "out.json").read_text())


def test_a_table_has_the_fastest_schedule_beside_the_fastest_peer() -> None:
    times = {"ours: default": 9.0, "ours: fil": 4.0, "torch": 80.0, "xgboost": 12.0}
    bounds = {"kernel_bound_us": 1, "device_bound_us": 1, "host_bound_us": 2}
    cell: dict[str, Any] = {"model": "m", "batch": 8, **bounds}
    cell["engines"] = {
        name: {"kernel_us": us, "device_us": us, "host_us": 2 * us, "host_waits": name == "xgboost"}
        for name, us in times.items()
    }
    cell["engines"]["torch"] = {"kernel_why": "no", "host_us": 10.0}
    kernel, device, host = report.row_of(cell).splitlines()
    assert kernel == "| m | 8 | kernel | 1 | 9 | 4 | fil | 12* | xgboost | 3.00 |"
    assert device == "| m | 8 | device | 1 | 9 | 4 | fil | 12 | xgboost | 3.00 |"
    assert host == "| m | 8 | host | 2 | 18 | 8 | fil | 10 | torch | 1.25 |"


def results_of(gpu: str, times: dict[int, dict[str, float]]) -> dict[str, Any]:
    """Return results as `gpu.speed` writes them, with one time for all figures."""
    named = ("kernel_us", "device_us", "host_us")
    cells = [
        {
            "model": "m",
            "batch": batch,
            "engines": {name: dict.fromkeys(named, us) for name, us in engines.items()},
        }
        for batch, engines in times.items()
    ]
    ours = {"model": "m", "engine": "ours: default", "typical": "equal"}
    return {"about": {"gpu": gpu}, "engines": [ours], "cells": cells}


def test_goals_are_said_to_hold_or_not_and_where() -> None:
    small = {"ours: default": 4.0, "ours: fil": 2.0, "nvforest": 8.0, "nvforest chunk 4": 5.0}
    large = {"ours: default": 2.0, "ours: fil": 9.0, "nvforest": 6.0, "ours on the CPU": 7.0}
    results = results_of("A", {32: {**small, "ours on the CPU": 3.0}, 65_536: large})
    text = "\n".join(goals.lines_of(results))
    assert (
        "kernels, 65536 rows and more: at least 3 is wanted: mean 3.00, least 3.00; holds" in text
    )
    assert "1 to 4096 rows: at least 1.5 is wanted: mean 1.25, least 1.25; does NOT hold" in text
    assert "(m 32: 1.25)" in text and "all batches: at least 10 is wanted; nothing" in text
    assert "m: rows of the host are faster on the GPU from 65536 rows on" in text
    assert "to the bit where the order is kept): all of 1 compiled models" in text
    assert "| model | 32 | 65536 |" in text and "| m | 2.50 | 3.00 |" in text


def test_the_choice_of_another_gpu_has_its_price() -> None:
    times = {"ours: default": 4.0, "ours: fil": 2.0}
    here = results_of("A", {32: times, 512: times})
    there = results_of("B", {32: {"ours: default": 1.0, "ours: fil": 3.0}, 512: times})
    assert goals.transfer(here, there) == {("m", 32): 2.0, ("m", 512): 1.0}
    assert "fastest on B over the best (figure 12)" in "\n".join(goals.lines_of(here, there))


def test_a_missing_sanitizer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: None)
    assert set(sanitize.sanitize_all([]).values()) == {sanitize.MISSING}


@pytest.mark.parametrize(
    ("status", "said"), [(0, "clean"), (9, "found something"), (1, "status 1")]
)
def test_what_a_sanitizer_says_is_told(status: int, said: str, tmp_path: Path) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!/bin/sh\nexit {status}\n")
    tool.chmod(0o755)
    assert sanitize.sanitize("racecheck", str(tool), []) == said


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
