"""What was measured, as a file: whole lines, refusals by name, the best of a model."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tvm_forest
from forests import drawn_forest
from tvm_forest.errors import InputError
from tvm_forest.search.records import (
    Journal,
    TrialRecord,
    describe_context,
    load_schedules,
    read_records,
)
from tvm_forest.target import Target

MODEL, OTHER = drawn_forest(6, 3), drawn_forest(6, 3, seed=1)
START = tvm_forest.new_schedule(MODEL)
CONTEXT = describe_context(MODEL, Target())
SLOW, FAST = START.interleave("tree", 2), START.interleave("tree", 4)

WRITER = """
import sys
from pathlib import Path
import tvm_forest
from tvm_forest.search.records import Journal, TrialRecord
journal = Journal({name: "x" for name in ("model", "target", "cpu", "versions", "n_jobs", "rows")},
                  Path(sys.argv[1]))
schedule = tvm_forest.Schedule(5).interleave("tree", 2)
while True:
    journal.add(TrialRecord(journal.context, 1, schedule, 1.0))
    print(len(journal.records), flush=True)
"""


def record(
    schedule: Any = START, seconds: float | None = 1.0, batch: int = 1, **fields: Any
) -> TrialRecord:
    about = {**CONTEXT, **fields.pop("context", {})}
    return TrialRecord(about, batch, schedule, seconds, seconds, 3, **fields)


def file_of(path: Path, *records: TrialRecord) -> Path:
    path.write_text("".join(x.to_line() + "\n" for x in records))
    return path


@pytest.mark.parametrize("problem", [None, 'crashed: "SIGSEGV"\n'])
def test_a_record_is_a_line_and_back(problem: str | None) -> None:
    told = record(SLOW, None if problem else 0.1, problem=problem)
    assert "\n" not in told.to_line()
    assert TrialRecord.from_line(told.to_line()) == told


def test_a_file_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "tune.jsonl"
    Journal(CONTEXT, path).add(record(SLOW))
    again = Journal(CONTEXT, path)
    again.add(record(FAST, 0.5))
    assert again.find(1, SLOW) == record(SLOW)
    assert again.find(2, SLOW) is None
    assert read_records(path) == [record(SLOW), record(FAST, 0.5)]
    assert again.best(1) == record(FAST, 0.5)


@pytest.mark.parametrize("name", ["model", "target", "cpu", "versions", "n_jobs", "rows"])
def test_a_journal_knows_nothing_of_another_context(name: str, tmp_path: Path) -> None:
    path = file_of(tmp_path / "tune.jsonl", record(SLOW))
    assert Journal(CONTEXT, path).records == [record(SLOW)]
    assert Journal({**CONTEXT, name: "other"}, path).records == []


def test_half_a_line_at_the_end_is_left_out_and_cut_off(tmp_path: Path) -> None:
    path = file_of(tmp_path / "tune.jsonl", record(SLOW))
    with path.open("a") as file:
        file.write(record(FAST).to_line()[:40])
    assert read_records(path) == [record(SLOW)]
    Journal(CONTEXT, path).add(record(FAST))
    assert read_records(path) == [record(SLOW), record(FAST)]


def test_a_killed_process_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "tune.jsonl"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said = [process.stdout.readline() for _ in range(50)] if process.stdout else []
        process.kill()
    assert int(said[-1]) == 50
    assert len(read_records(path)) >= 50


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 is no record .Expecting"),
        ("[]", "line 2 is no record"),
        ('{"format": 9}', "line 2 is no record .format 9, this version reads 2"),
        (record().to_line().replace('"batch": 1', '"size": 1'), "'batch'"),
        (record(FAST).to_line().replace("interleave", "weave"), "no directive 'weave'"),
    ],
)
def test_a_line_that_is_no_record_is_refused_by_number(
    line: str, said: str, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "tune.jsonl", record())
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InputError, match=said):
        read_records(path)


def test_a_missing_file_and_one_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        tvm_forest.build(MODEL, records=tmp_path / "none.jsonl")
    for path in (tmp_path / "no folder" / "tune.jsonl", tmp_path):
        with pytest.raises(InputError, match="tune: argument 'records'"):
            Journal(CONTEXT, path)


def test_the_fastest_of_each_batch_is_taken_and_the_first_serves_smaller_ones(
    tmp_path: Path,
) -> None:
    records = [record(SLOW, 2.0, 8), record(FAST, 1.0, 8), record(START, None, 8)]
    records += [record(START, None, 99), record(SLOW, 3.0, 64), record(FAST, 4.0, 64)]
    path = file_of(tmp_path / "tune.jsonl", *records)
    assert load_schedules(path, MODEL, Target()) == {1: FAST, 64: SLOW}


@pytest.mark.parametrize(
    ("fact", "value", "said"),
    [
        (
            "model",
            OTHER.signature,
            f"no record of model {MODEL.signature[:12]} .have: {OTHER.signature[:12]}",
        ),
        ("target", {"kind": "llvm", "mcpu": "znver4"}, "no record of target .* .have: .*znver4"),
        ("cpu", "Z80, 1 cores", "no record of cpu .* .have: Z80, 1 cores"),
        ("versions", {"tvm": "0.26"}, "no record of versions .* .have: .*0.26"),
    ],
)
def test_stale_and_foreign_records_are_refused_by_name(
    fact: str, value: Any, said: str, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "tune.jsonl", record(context={fact: value}))
    with pytest.raises(InputError, match=said):
        tvm_forest.build(MODEL, records=path)


def test_records_without_a_time_or_beside_a_schedule_are_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path / "tune.jsonl", record(SLOW, None))
    with pytest.raises(InputError, match="no schedule of this model has a time"):
        tvm_forest.build(MODEL, records=path)
    with pytest.raises(InputError, match="a schedule is given as well"):
        tvm_forest.build(MODEL, records=path, schedule=SLOW)


def test_the_latest_tuning_of_this_model_counts(tmp_path: Path) -> None:
    foreign = record(START, 0.1, context={"model": OTHER.signature})
    old = record(SLOW, 0.2, context={"rows": "old"})
    records = (old, foreign, record(FAST, 0.3), record(SLOW, 0.4), replace(foreign, batch=8))
    path = file_of(tmp_path / "tune.jsonl", *records)
    assert load_schedules(path, MODEL, Target()) == {1: FAST}


def test_the_context_names_versions_and_machine() -> None:
    assert json.loads(json.dumps(CONTEXT)) == CONTEXT
    assert CONTEXT["versions"]["tvm_forest"] == tvm_forest.__version__
    assert str(Target().cores) in CONTEXT["cpu"]
