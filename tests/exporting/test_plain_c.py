"""Models as plain C99: the bits of the reference walk, by gcc and under emulators of ARM."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris

import tvm_forest
from forests import drawn_forest
from tvm_forest.cli import main
from tvm_forest.errors import UnsupportedModel
from tvm_forest.predictor.exporting.plain import write_array
from tvm_forest.predictor.exporting.plain.printing import Printer, write_number
from tvm_forest.search import heuristic

WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off")
LINUX = ("arm-linux-gnueabihf-gcc", "qemu-arm")
CORTEX = ("arm-none-eabi-gcc", "qemu-system-arm")
START = """
extern char stack_top;
void _start(void);
static void begin(void) { _start(); }
__attribute__((section(".vectors"), used)) static void *const vectors[] =
    {&stack_top, (void *)begin};
"""
LAYOUT = """
ENTRY(_start)
MEMORY { CODE (rx) : ORIGIN = 0, LENGTH = 4M  RAM (rwx) : ORIGIN = 0x20000000, LENGTH = 4M }
SECTIONS {
  .text : { KEEP(*(.vectors)) *(.text*) KEEP(*(.init)) KEEP(*(.fini)) *(.rodata*) *(.ARM.*) } > CODE
  .init_array : {
    __preinit_array_start = .; __preinit_array_end = .;
    __init_array_start = .; KEEP(*(.init_array*)) __init_array_end = .;
    __fini_array_start = .; __fini_array_end = .;
  } > CODE
  .data : { *(.data*) } > RAM
  .bss : { __bss_start__ = .; *(.bss*) *(COMMON) __bss_end__ = .; } > RAM
  end = .; __end__ = .;
  stack_top = ORIGIN(RAM) + LENGTH(RAM);
}
"""


@functools.cache
def models() -> dict[str, Any]:
    """Return models of the libraries, each with another way of walking or adding."""
    ensemble = pytest.importorskip("sklearn.ensemble")
    rows, labels = load_iris(return_X_y=True)
    options = {"max_depth": 4, "random_state": 0}
    return {
        "leaf vectors": ensemble.RandomForestClassifier(5, **options).fit(rows, labels),
        "averages": ensemble.RandomForestRegressor(5, **options).fit(rows[:, :3], rows[:, 3]),
        "exp of float64": ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0).fit(
            rows, labels > 0
        ),
        "holes": ensemble.HistGradientBoostingClassifier(max_iter=4).fit(
            np.where(rows > 6, np.nan, rows), labels
        ),
        "isolation": ensemble.IsolationForest(n_estimators=4, random_state=0).fit(rows),
    }


def library_model(name: str) -> Any:
    """Return a model of one of the libraries that boost."""
    rows, labels = load_iris(return_X_y=True)
    if name == "linear leaves":
        lightgbm = pytest.importorskip("lightgbm")
        fixed = {"linear_tree": True, "verbose": -1, "num_threads": 1, "num_leaves": 6}
        return lightgbm.train(fixed, lightgbm.Dataset(rows[:, :3], rows[:, 3]), 4)
    if name == "coarse":
        catboost = pytest.importorskip("catboost")
        fixed = {"thread_count": 1, "verbose": 0}
        model = catboost.CatBoostClassifier(
            iterations=3, depth=3, allow_writing_files=False, **fixed
        )
        return model.fit(rows, labels)
    xgboost = pytest.importorskip("xgboost")
    missing = 1.4 if name == "a number" else np.nan
    model = xgboost.XGBClassifier(n_estimators=20, max_depth=3, n_jobs=1, missing=missing)
    return model.fit(np.where(rows > 6, np.nan, rows), labels)


def write(model: Any, folder: Path) -> Path:
    """Write a model as plain C."""
    tvm_forest.build(model, schedule=lambda start: start).export_library(folder, to="c")
    return folder


def run(folder: Path, compiler: str = "cc", *options: str, runner: tuple[str, ...] = ()) -> None:
    """Compile the test of a model, and run it in its folder."""
    command = [compiler, "-O1", *WARNINGS, "test.c", "model.c", *options, "-lm", "-o", "program"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    done = subprocess.run(
        [*runner, "./program"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "all tests passed" in done.stdout, (done.stdout, done.stderr)


def skip_without(*tools: str) -> None:
    """Skip a test where a tool is missing."""
    missing = next((tool for tool in tools if shutil.which(tool) is None), None)
    if missing:
        pytest.skip(f"no {missing}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["leaf vectors", "averages", "exp of float64", "holes", "linear leaves", "softmax"]
)
def test_plain_c_has_the_bits_of_the_model(name: str, tmp_path: Path) -> None:
    skip_without("cc")
    run(write(models()[name] if name in models() else library_model(name), tmp_path))


@pytest.mark.slow
def test_it_includes_standard_headers_alone_and_takes_kilobytes(tmp_path: Path) -> None:
    skip_without("cc")
    folder = write(library_model("softmax"), tmp_path)
    texts = [(folder / name).read_text() for name in ("model.c", "model.h")]
    included = {line.split()[1] for line in "\n".join(texts).split("\n") if line[:8] == "#include"}
    assert included == {"<float.h>", "<math.h>", "<stdint.h>", "<string.h>", '"model.h"'}
    subprocess.run(["cc", "-Os", *WARNINGS, "-c", "model.c"], cwd=folder, check=True)
    assert (folder / "model.o").stat().st_size < 12_000  # with what links it
    called = subprocess.check_output(["nm", "-u", "model.o"], cwd=folder, text=True).split()
    assert {word for word in called if word != "U"} <= {"memcpy", "_GLOBAL_OFFSET_TABLE_"}


def test_flags_that_change_predictions_are_refused(tmp_path: Path) -> None:
    skip_without("cc")
    folder = write(drawn_forest(2, 2), tmp_path)
    command = ["cc", "-O1", "-ffast-math", "-c", "model.c"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "-ffast-math gives other predictions" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", ["softmax", "exp of float64", "linear leaves", "leaf vectors"])
@pytest.mark.parametrize("tools", [LINUX, CORTEX], ids=["ARMv7", "Cortex-M3"])
def test_arm_gives_the_same_bits(tools: tuple[str, str], name: str, tmp_path: Path) -> None:
    skip_without(*tools)
    compiler, emulator = tools
    folder = write(models()[name] if name in models() else library_model(name), tmp_path)
    if tools == LINUX:
        return run(folder, compiler, "-static", runner=(emulator,))
    (folder / "start.c").write_text(START)
    (folder / "layout.ld").write_text(LAYOUT)
    options = ["-mcpu=cortex-m3", "-mthumb", "start.c", "-T", "layout.ld", "--specs=rdimon.specs"]
    semihosting = ("-semihosting-config", "enable=on,target=native")
    run(
        folder,
        compiler,
        *options,
        runner=(emulator, "-M", "mps2-an385", "-nographic", *semihosting, "-kernel"),
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("isolation", "computes by 'tirx.pow', which is not printed as C"),
        ("a number", "computes by numbers that stand for missing ones"),
        ("coarse", "the link 'coarse_softmax', whose values depend on the batch"),
    ],
)
def test_what_is_not_printed_is_refused_by_its_name(
    name: str, message: str, tmp_path: Path
) -> None:
    model = models()[name] if name in models() else library_model(name)
    with pytest.raises(UnsupportedModel, match=message):
        write(model, tmp_path / "made")
    assert not list(tmp_path.glob("made/*"))


def test_numbers_keep_their_bits_and_arrays_the_fewest_bytes() -> None:
    for x in (0.1, -0.0, 5e-324, 1.7976931348623157e308, float(np.float32(0.1))):
        assert float.fromhex(write_number(x, "float64")) == x
    assert write_number(float("-inf"), "float32") == "-INFINITY"
    assert write_number(-(2**63), "int64") == "INT64_MIN"
    texts = {"int8_t": [0, -128], "int16_t": [0, 128], "int32_t": [40000, 0], "int64_t": [2**31, 0]}
    for kind, numbers in texts.items():
        assert write_array("a", np.array(numbers, "int64")).startswith(f"static const {kind} a[2]")


def test_a_statement_that_is_not_known_is_refused() -> None:
    from tvm import tirx

    with pytest.raises(UnsupportedModel, match="the statement 'Evaluate'"):
        list(Printer({}).print(tirx.Evaluate(tirx.Var("x", "int32"))))


def test_the_command_builds_no_default_schedules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> Any:
        raise AssertionError("defaults are of no use to plain C")

    monkeypatch.setattr(heuristic, "default_schedules_for", fail)
    model = str(Path(__file__).parents[1] / "data" / "xgboost-1.0.2-logistic.json")
    assert main(["export", model, "--to", "c", "-o", str(tmp_path / "plain")]) == 0
    assert "model.c" in {path.name for path in (tmp_path / "plain").iterdir()}
    with pytest.raises(AssertionError, match="no use"):
        main(["export", model, "-o", str(tmp_path / "model.zip")])
