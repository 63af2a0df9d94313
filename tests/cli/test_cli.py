"""The command line, as a person types it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import xgboost
from pyarrow import parquet

import tvm_forest
from tvm_forest.cli import calibrate, main
from tvm_forest.frontends import SUPPORT
from tvm_forest.predictor.inputs import to_rows
from tvm_forest.search.machines import VARIABLE, Machine, shipped_machines
from tvm_forest.streams.reading import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kept_code")]

ROWS = np.array([[0.5, -1, np.nan], [1e-3, 2, 3], [-2, 0, 0.1]], np.float32)


@pytest.fixture(scope="module")
def booster() -> Any:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 3)).astype(np.float32)
    data = xgboost.DMatrix(rows, rows[:, 0] > rows[:, 1], feature_names=["a", "b", "c"])
    # Of stumps, for which default schedules compile three times as fast.
    return xgboost.train({"objective": "binary:logistic", "max_depth": 1, "nthread": 1}, data, 5)


@pytest.fixture
def model(booster: Any, tmp_path: Path) -> Path:
    booster.save_model(tmp_path / "model.json")
    return tmp_path / "model.json"


def expected(booster: Any) -> Any:
    return booster.inplace_predict(ROWS, validate_features=False)


def test_info_says_what_the_model_is(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(model)]) == 0
    shown = capsys.readouterr().out
    parts = ("binary:logistic", "trees", "distinct thresholds", "float32 <", "for tree in")
    assert all(part in shown for part in parts)


def test_info_says_why_a_schedule_is_the_default(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(model), "--why"]) == 0
    said = capsys.readouterr().out
    assert "batches of 1 row and more:\n" in said
    assert ": call " in said and ", walk " in said


@pytest.mark.slow
def test_info_prints_a_function_after_every_pass(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(model), "--stages", "--function", "predict_from_1"]) == 0
    _, said = capsys.readouterr().out.split("\nschedule\n")
    assert "tvm_forest_walk(" in said
    assert "tvm_forest.ThreadSums: no change\n" in said
    _, last = said.split("\ntvm_forest.LowerReductions\n")
    assert "tvm_forest_walk(" not in last
    assert main(["info", str(model), "--stages", "--function", "transform"]) == 2
    _, known = capsys.readouterr().err.split("none 'transform' (have: ")
    assert {"apply", "per_tree", "predict_from_1"} <= {*known.strip().rstrip(")").split(", ")}


@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_predictions_are_written_whole(
    model: Path, booster: Any, tmp_path: Path, suffix: str
) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    out = tmp_path / f"out{suffix}"
    assert main(["predict", str(model), str(tmp_path / "rows.npy"), "-o", str(out)]) == 0
    found = np.load(out) if suffix == ".npy" else np.loadtxt(out, dtype=np.float32)
    assert np.array_equal(found, expected(booster))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["model.json", "rows.npy", out.name]
    )


@pytest.mark.parametrize("header", ["", "a,b,c\n"])
def test_rows_may_come_as_csv_and_predictions_go_to_the_terminal(
    model: Path, booster: Any, tmp_path: Path, header: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(header + "0.5,-1,\n1e-3,2,3\n-2,0,0.1\n")
    assert main(["predict", str(model), str(path)]) == 0
    lines = capsys.readouterr().out.split()
    assert (lines[0] == "prediction") == bool(header)
    assert np.array_equal(np.array(lines[bool(header) :], np.float32), expected(booster))


def test_other_kinds_of_prediction_can_be_asked_for(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    assert main(["predict", str(model), str(tmp_path / "rows.npy"), "--kind", "apply"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [len(line.split(",")) for line in lines] == [5, 5, 5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n", "line 1: 2 fields, but the model has 3 features"),
        ("1,2,3\n1,x,3\n", "line 2: 'x' is no number"),
        ("a,c,d\n1,2,3\n", "no column 'b' (have: 'a', 'c', 'd')"),
    ],
)
def test_a_wrong_csv_is_told_in_one_line(
    model: Path, tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    assert main(["predict", str(model), str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tvm-forest: predict: rows file") and message in line


def test_a_wrong_place_for_the_output_leaves_nothing_behind(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    rows = str(tmp_path / "rows.npy")
    for out in ("out.txt", "no/such/folder/out.npy"):
        assert main(["predict", str(model), rows, "-o", str(tmp_path / out)]) == 2
        assert "argument '--output'" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "rows.npy"]
    assert main(["predict", "no model", rows, "-o", str(tmp_path / "no/out.npy")]) == 2
    assert "argument '--output': cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["rows.parquet", "missing.npy"])
def test_unreadable_rows_are_refused(
    model: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(model), str(tmp_path / name)]) == 2
    assert name in capsys.readouterr().err


def test_a_damaged_model_is_told_in_one_line(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(json.loads(model.read_text()))
    model.write_text(text[: len(text) // 2])
    assert main(["info", str(model)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "field 'document': not valid JSON" in line


def test_the_demo_proves_that_margins_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    assert "bit for bit: 4143 of 4143 rows" in capsys.readouterr().out


def test_export_writes_a_library_and_a_header_and_names_the_functions(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(model), str(tmp_path / "made.so"), "--prefix", "airline_"]
    assert main(["export", *words]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/made.so, {tmp_path}/made.h\n"
    assert {path.name for path in tmp_path.iterdir()} == {"model.json", "made.so", "made.h"}
    library = ctypes.CDLL(str(tmp_path / "made.so"))
    assert library.airline_features() == 3
    assert "int airline_predict(const float *rows" in (tmp_path / "made.h").read_text()


WASM = '{"kind": "llvm", "mtriple": "wasm32-wasi"}'


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["made.dll"], "argument 'path': 'made.dll' does not end with '.so'"),
        (["no/made.so"], "argument 'path': cannot write 'no/made.so'"),
        (["made.so", "--prefix", "1_"], "argument 'prefix': '1_' cannot begin the names"),
        (
            ["made.so", "--target", WASM],
            "'made.so' does not end with '.wasm' or '.zip', which are",
        ),
    ],
)
def test_export_refuses_what_it_cannot_write_before_it_reads_the_model(
    wanted: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "no model", *wanted]) == 2
    assert message in capsys.readouterr().err


def test_calibrate_writes_a_file_that_is_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = replace(shipped_machines()[0], name="here")
    monkeypatch.setattr(calibrate, "calibrate", lambda target, show: show(1, 1) or machine)
    out = tmp_path / "new" / "machine.json"
    assert main(["calibrate", "--out", str(out)]) == 0
    assert f"operations, written to {out}" in capsys.readouterr().out
    assert Machine.from_json(out.read_text(encoding="utf-8"), "out") == machine
    monkeypatch.setenv(VARIABLE, "off")
    assert main(["calibrate"]) == 2
    assert f"{VARIABLE} is 'off'; name a file by --out" in capsys.readouterr().err


WRONG_ROWS = {
    "1,2\n": "line 1: 2 fields, but the model has 3 features",
    "a,b,c\n\n1,2,x\n": "line 3: 'x' is no number",
    "a,b\n1,2,3\n": "no column 'c' (have: 'a', 'b')",
}


@pytest.mark.parametrize("text", WRONG_ROWS)
def test_rows_to_verify_that_do_not_fit_are_told_in_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text(text, encoding="utf-8")
    assert main(["verify", str(model), str(rows)]) == 2
    assert f"verify: rows file '{rows}': {WRONG_ROWS[text]}" in capsys.readouterr().err


def test_rows_to_verify_may_have_names_and_gaps_and_any_format(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("c,b,a,d\n,-1,0.5,x\n\n3,2,1e-3,y\n", encoding="utf-8")
    names = {"a": [0.5, 1e-3], "b": [-1.0, 2.0], "c": [None, 3.0], "d": ["x", "y"]}
    parquet.write_table(pyarrow.table(names), tmp_path / "rows.parquet")
    known = tvm_forest.load(str(model))
    rows = [
        to_rows(read_rows(tmp_path / name, known, "verify"), known)
        for name in ("rows.csv", "rows.parquet")
    ]
    assert np.array_equal(rows[0], np.float32([[0.5, -1, np.nan], [1e-3, 2, 3]]), equal_nan=True)
    assert np.array_equal(*rows, equal_nan=True)
    for name in ("rows.csv", "rows.parquet"):
        assert main(["verify", str(model), str(tmp_path / name), "--n-rows", "9"]) == 0
        said = capsys.readouterr().out
        assert "xgboost" in said and "2 given" in said


@pytest.mark.parametrize("asks", [[], ["--contributions"]])
def test_compile_keeps_the_code_of_contributions_that_are_asked_for(
    model: Path, tmp_path: Path, asks: list[str]
) -> None:
    assert main(["compile", str(model), "-o", str(tmp_path / "made.tvmf"), *asks]) == 0
    made = tvm_forest.load_predictor(tmp_path / "made.tvmf")
    assert ["contributions" in part.symbols for part in made.libraries] == [False, True][
        : len(asks) + 1
    ]


@pytest.mark.parametrize("name", ["model.so", "model.DLL", "model.a", "model.wasm", "model.zip"])
def test_compile_refuses_the_name_of_a_library_before_it_reads_the_model(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", "no model", "-o", str(tmp_path / name)]) == 2
    assert f"{name}' has the suffix of what `tvm-forest export` writes" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        "{model} {rows} --keep id",
        "--keep id {model} {rows}",
        "{model} --keep id {rows}",
        "--keep id -- {model} {rows}",
        "--keep id {model} {rows} --kind predict",
        "--keep id {model} -o - {rows}",
        "--keep id --kind predict {model} {rows}",
        "{model} {rows} --keep id --keep id",
        "--keep id --keep id {model} {rows}",
        "{model} --keep id --keep id {rows}",
        "--keep id -o - --keep id {model} {rows}",
    ],
)
def test_kept_columns_may_be_named_before_the_files(
    model: Path, tmp_path: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.csv").write_text("id,a,b,c\n7,1,2,3\n")
    rows = str(tmp_path / "rows.csv")
    assert main(["predict", *words.format(model=model, rows=rows).split()]) == 0
    assert capsys.readouterr().out.startswith("id,prediction\n7,")


def test_words_that_make_no_command_are_told_as_they_were_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, said in (
        ("predict model --keep id", "the following arguments are required: rows"),
        ("predict --keep id --nix model rows", "unrecognized arguments: --nix"),
        ("tune --batch-size x model", "argument --batch-size: invalid int value: 'x'"),
    ):
        with pytest.raises(SystemExit) as end:
            main(words.split())
        assert end.value.code == 2 and said in capsys.readouterr().err
    assert main("tune --batch-size 1 64 nowhere.json".split()) == 2  # is a file, and not there
    assert "'nowhere.json'" in capsys.readouterr().err


COMMAND = [sys.executable, "-m", "tvm_forest"]


@pytest.mark.parametrize(
    "words",
    [
        ["info", "--support"],
        pytest.param(["info", "{model}"], marks=pytest.mark.long),
        ["predict", "{model}", "{rows}"],
    ],
)
def test_a_closed_pipe_ends_a_command_without_a_word(
    model: Path, tmp_path: Path, words: list[str]
) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    places = {"model": model, "rows": tmp_path / "rows.npy"}
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as nobody:
        command = [*COMMAND, *(word.format(**places) for word in words)]
        done = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_ends_a_command_without_a_word(model: Path) -> None:
    words = ["predict", str(model), "-", "--format", "csv", "--output-format", "csv"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, *words], **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"1,2.5,3\n" * 70_000)  # so that a block of them is predicted
        process.stdin.flush()
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert (process.returncode, said) == (130, b"")


def test_the_help_names_all_libraries_whose_files_are_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["info", "--help"])
    said = capsys.readouterr().out.lower()
    assert all(row.library.lower() in said for row in SUPPORT)


def test_a_first_line_of_doubt_is_decided_by_an_option_of_every_command_that_reads_rows(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("0,1,2\n0.5,-1,3\n")
    for words in (
        ["predict", str(model), str(rows)],
        ["verify", str(model), str(rows)],
        ["tune", str(model), "--rows", str(rows), "--records", str(tmp_path / "records.jsonl")],
    ):
        assert main(words) == 2
        assert "'0,1,2') may name the columns" in capsys.readouterr().err
    assert main(["predict", str(model), str(rows), "--no-header"]) == 0
    assert len(capsys.readouterr().out.split()) == 2
    assert main(["predict", str(model), str(rows), "--header"]) == 2
    assert "no column 'a', 'b', 'c' (have: '0', '1', '2')" in capsys.readouterr().err
    assert main(["verify", str(model), str(rows), "--no-header", "--n-rows", "1"]) == 0
