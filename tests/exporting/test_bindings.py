"""Packages of other languages, as `export_library(folder, to=...)` makes them, by their own tests.

A package turns from one model to another while threads predict; a third model has other types.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris

import jna
import tvm_forest
from code_size import ROOT
from forests import drawn_forest
from tvm_forest.cli import main
from tvm_forest.errors import BuildError, InputError, UnsupportedModel
from tvm_forest.predictor.exporting import languages
from tvm_forest.predictor.exporting.languages import LANGUAGES, WEB_TARGET

COMMANDS = {
    "c": "make test",
    "cpp": "make test OTHER=../other",
    "go": "go test",
    "rust": "cargo test --offline",
    "java": "make test",
    "node": "node --test",
}
TOOLS = {"c": "cc", "cpp": "c++", "go": "go", "rust": "cargo", "java": "javac", "node": "node"}
LONG = ("go", "rust", "java", "node")  # whose compilers take more than three seconds


def each_language(*names: str) -> list[Any]:
    """Return cases, long where a compiler takes seconds."""
    marks = {name: [pytest.mark.long] if name in LONG else [pytest.mark.slow] for name in names}
    return [pytest.param(name, marks=marks[name]) for name in names]


@functools.cache
def predictor(name: str, target: str) -> tvm_forest.Predictor:
    """Return a model of iris with holes and labels, another of its shape, or one of float64."""
    xgboost = pytest.importorskip("xgboost")
    rows, labels = load_iris(return_X_y=True)
    rows[np.random.default_rng(0).random(rows.shape) < 0.1] = np.nan
    if name == "float64":
        model: Any = drawn_forest(9, 4, dtype="float64", row_dtype="float64", n_features=3)
    else:
        options = {"subsample": 0.7, "random_state": len(name), "n_jobs": 1}
        model = xgboost.XGBClassifier(n_estimators=9, max_depth=4, **options)
        model.fit(rows, labels)
    machine = WEB_TARGET if target == "web" else "llvm"
    return tvm_forest.build(model, machine, schedule=lambda start: start)


def export(name: str, to: str, folder: Path) -> Path:
    """Make a package of a language."""
    predictor(name, "web" if LANGUAGES[to].is_web else "").export_library(folder, to=to)
    return folder


def skip_without_tools(to: str) -> None:
    """Skip a test where there is no compiler for a language."""
    missing = [tool for tool in (TOOLS[to], *COMMANDS[to].split()[:1]) if not shutil.which(tool)]
    if missing:
        pytest.skip(f"no {missing[0]}")
    if to == "java" and java_version() < 22 and not jna.find_jna():
        pytest.skip("no JNA (libjna-java), and Java is older than 22")
    if (
        to == "go"
        and subprocess.run(["go", "env", "CGO_ENABLED"], capture_output=True).stdout[:1] != b"1"
    ):
        pytest.skip("Go without cgo")
    if to == "node":
        pytest.importorskip("ziglang", reason="no compiler for WebAssembly")


def java_version() -> int:
    """Return the number of the installed Java."""
    said = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=False)
    found = re.search(r"\d+", said.stdout + said.stderr)
    return int(found[0]) if found else 0


def run(to: str, folder: Path, command: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the tests of a package."""
    environment = {**os.environ, "TVM_FOREST_OTHER": str(folder.parent / "other")}
    environment |= {"GOFLAGS": "-count=1", "GOPROXY": "off"}
    return subprocess.run(
        (command or COMMANDS[to]).split(),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("to", each_language(*COMMANDS))
def test_the_tests_of_a_package_pass_and_fail_where_one_bit_differs(
    to: str, tmp_path: Path
) -> None:
    skip_without_tools(to)
    if to != "c":
        export("other", to, tmp_path / "other")
    folder = export("classes", to, tmp_path / "made")
    done = run(to, folder)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    text = (folder / "expected.txt").read_text()
    # 4 columns, 3 margins, 3 values, a label, which plain C does not give
    for at in (4, 7) if to == "c" else (4, 7, 10):
        lines = [line.split(" ") for line in text.split("\n")]
        word = lines[20][at]
        lines[20][at] = f"{int(word) + 1}" if at == 10 else format(int(word, 16) ^ 1, "08x")
        (folder / "expected.txt").write_text("\n".join(" ".join(line) for line in lines))
        done = run(to, folder)
        assert done.returncode != 0 and "fail" in (done.stdout + done.stderr).lower(), at


@pytest.mark.long
@pytest.mark.parametrize("to", COMMANDS)
def test_the_tests_of_a_package_pass_for_a_model_of_float64(to: str, tmp_path: Path) -> None:
    skip_without_tools(to)
    export("float64", to, tmp_path / "other")
    done = run(to, export("float64", to, tmp_path / "made"))
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])


@pytest.mark.long
def test_maven_runs_the_tests(tmp_path: Path) -> None:
    if shutil.which("mvn") is None:
        pytest.skip("no mvn")
    skip_without_tools("java")
    folder = export("classes", "java", tmp_path / "made")
    shutil.copytree(folder, tmp_path / "other")
    done = run("java", folder, "mvn --offline --batch-mode --quiet test")
    if "PluginResolutionException" in done.stdout or "has not been downloaded" in done.stdout:
        pytest.skip("Maven has not downloaded its plugins")
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_library_of_other_types_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    skip_without_tools("cpp")
    folder = export("classes", "cpp", tmp_path / "made")
    predictor("float64", "").export_library(tmp_path / "wide.so")
    (folder / "wide.cpp").write_text(
        '#include <iostream>\n#include "libmodel.h"\n#include "tvm_forest.hpp"\nint main() {\n'
        "  using Model = tvm_forest::Model<decltype(tvm_forest_predict)>;\n"
        '  try { Model("../wide.so"); }\n'
        "  catch (const tvm_forest::Error &error) { std::cout << error.what(); }\n}\n"
    )
    flags = ["-std=c++17", "-pthread", "wide.cpp", "-o", "wide", "-ldl"]
    subprocess.run(["c++", *flags], cwd=folder, check=True)
    said = subprocess.check_output(["./wide"], cwd=folder, text=True)
    assert "'float64 float64 float64', and 'float32 float32 float32' in this program" in said


def test_sources_have_the_types_of_the_model(tmp_path: Path) -> None:
    for name, row in (("classes", 32), ("float64", 64)):
        texts = languages.list_sources(predictor(name, ""), "go")
        assert f"type Row = float{row}\n".encode() in texts["types.go"]
        assert f"type Value = float{row}\n".encode() in texts["types.go"]
        texts = languages.list_sources(predictor(name, ""), "rust")
        assert f"pub type Margin = f{row};\n".encode() in texts["src/types.rs"]


def test_expected_rows_are_hard_and_have_the_bits_of_predict() -> None:
    made = predictor("classes", "")
    head, *lines = languages.write_expected(made).split("\n")[:-1]
    assert head == "4 3 1 33 0" and len(lines) == 33
    bits = np.array([[int(word, 16) for word in line.split(" ")[:10]] for line in lines], "u4")
    rows, margin, value = np.split(np.ascontiguousarray(bits).view("f4"), [4, 7], axis=1)
    assert np.isnan(rows).any() and np.isinf(rows).any()
    assert margin.tobytes() == made.predict_margin(rows).tobytes()
    assert value.tobytes() == made.predict_proba(rows).tobytes()
    assert [int(line.split(" ")[10]) for line in lines] == made.predict(rows).tolist()
    web = languages.write_expected(predictor("classes", "web"))
    assert web.split("\n") == [head, *lines, ""]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"to": "perl"},
            "argument 'to': 'perl' is no language that there is a package for; give one",
        ),
        ({"to": 3}, "argument 'to': 3 is no language"),
        (
            {"to": "go", "prefix": "iris_"},
            "argument 'prefix': 'iris_', but a package for 'go' loads",
        ),
    ],
)
def test_wishes_that_no_package_has_are_refused(
    words: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        predictor("classes", "").export_library(tmp_path / "made", **words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("to", "target", "message"),
    [
        ("node", "llvm", "'node', but the model is compiled for Linux; build it for .*wasm32-wasi"),
        ("go", WEB_TARGET, "'go', but the model is compiled for WebAssembly; build it for llvm"),
        ("rust", {"kind": "llvm", "mtriple": "x86_64-pc-windows-gnu"}, "compiled for Windows, and"),
    ],
)
def test_machines_that_no_package_is_for_are_refused(
    to: str, target: Any, message: str, tmp_path: Path
) -> None:
    made = tvm_forest.build(drawn_forest(2, 2), target, schedule=lambda start: start)
    with pytest.raises(UnsupportedModel, match=message):
        made.export_library(tmp_path / "made", to=to)
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "made").touch()
    with pytest.raises(InputError, match="argument 'path': cannot write"):
        predictor("classes", "").export_library(tmp_path / "made", to="cpp")


def test_an_installation_without_the_sources_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(languages, "__file__", "/nowhere/tvm_forest/predictor/exporting/x.py")
    with pytest.raises(BuildError, match="tvm_forest/bindings is missing; install tvm-forest anew"):
        languages.find_bindings("go")


def test_the_command_makes_a_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, folder = tmp_path / "iris.tvmf", tmp_path / "made"
    predictor("classes", "").save(saved)
    assert main(["export", str(saved), "--to", "cpp", "-o", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}\n"
    names = {file.name for file in folder.iterdir()}
    assert {"tvm_forest.hpp", "README.md", "expected.txt", "libmodel.h"} <= names
    assert main(["export", str(saved), "--to", "cpp"]) == 2
    assert "argument 'library': missing; name it, or a folder" in capsys.readouterr().err
    assert main(["export", str(saved), "--to", "node", "-o", str(folder)]) == 2
    assert "is compiled already; give the model from which it was made" in capsys.readouterr().err


def test_every_language_has_a_readme_and_stands_on_the_page() -> None:
    page = (ROOT / "docs" / "bindings.md").read_text(encoding="utf-8")
    assert {path.name for path in (ROOT / "bindings").iterdir()} == set(LANGUAGES) == set(COMMANDS)
    for name in LANGUAGES:
        lines = (ROOT / "bindings" / name / "README.md").read_text(encoding="utf-8").splitlines()
        assert f"--to {name} -o folder" in "\n".join(lines) and len(lines) <= 40
        assert f"| `{name}` |" in page
