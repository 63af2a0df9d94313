"""Records of measurements, kept line by line.

takes: records; gives: a file of JSON lines, and the fastest known schedules of a model.

A line is written and flushed at once, so that a killed process leaves whole lines, and at most one
partial line at the end, which is cut off when the file is opened again.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from ..errors import InputError, ScheduleError
from ..forest import Forest
from ..schedule_prims import Schedule
from ..target import REAL_GPUS, Target, cpu_name

FORMAT = 2
NAMELESS = "a GPU"
"""GPU name in records without one; such records hold for no known GPU."""

FACTS = ("model", "target", "cpu", "versions")
"""Context fields that must match for a schedule to be reused."""

CONDITIONS = ("n_jobs", "rows")
"""Context fields that must match, in addition, for two times to be compared."""


RESULTS = ("seconds", "median", "rounds", "spent", "problem")
"""Result fields of a line, in addition to the context, batch size and schedule."""

_KINDS: dict[str, Any] = dict.fromkeys(("batch", "rounds"), int)
_KINDS |= {"seconds": float | int | None, "median": float | int | None, "spent": float | int}
_KINDS |= {"problem": str | None}


@dataclass(frozen=True)
class TrialRecord:
    """The result for one schedule and batch size: a time or a refusal.

    Attributes:
        context: the values of `FACTS` and `CONDITIONS`, see `describe_context`.
        batch: number of rows in a call.
        schedule: the schedule measured.
        seconds: seconds of a call in the best round; None if there is a problem.
        median: seconds of a call in the median round.
        rounds: rounds measured; few if the schedule was hopeless.
        spent: seconds that the trial took.
        problem: why there is no time: refused, wrong, crashed, or too slow; else None.
    """

    context: dict[str, Any]
    batch: int
    schedule: Schedule
    seconds: float | None = None
    median: float | None = None
    rounds: int = 0
    spent: float = 0.0
    problem: str | None = None

    @property
    def time(self) -> float:
        """Seconds of a call; infinity if there is a problem."""
        return math.inf if self.seconds is None else self.seconds

    def to_line(self) -> str:
        """Return JSON text without a line break."""
        line = {"format": FORMAT, **self.context, "batch": self.batch}
        line |= {name: getattr(self, name) for name in RESULTS}
        return json.dumps({**line, "schedule": json.loads(self.schedule.to_json())})

    @classmethod
    def from_line(cls, line: str) -> TrialRecord:
        """Parse the output of `to_line`.

        Raises:
            ValueError, KeyError, TypeError, ScheduleError: the line has another form.
        """
        data = json.loads(line)
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']!r}, this version reads {FORMAT}")
        context = {name: data[name] for name in (*FACTS, *CONDITIONS)}
        for name, kind in _KINDS.items():
            if not isinstance(data[name], kind) or data[name] is True or data[name] is False:
                raise ValueError(f"field '{name}' cannot be {data[name]!r:.80}")
        if data["batch"] < 1 or not 0 <= (data["seconds"] or 0) < math.inf:
            raise ValueError("a size of batch or a time is out of range")
        schedule = Schedule.from_json(json.dumps(data["schedule"]))
        return cls(context, data["batch"], schedule, **{name: data[name] for name in RESULTS})


def describe_context(
    forest: Forest, target: Target, n_jobs: int | None = None, rows: str = "", machine: str = ""
) -> dict[str, Any]:
    """Return the facts that decide whether a record can be reused.

    Args:
        forest: the model.
        target: the compilation target.
        n_jobs: number of threads of a call.
        rows: a name or digest of the rows that were predicted.
        machine: name of the processor, by default this machine's; or of the GPU, "" for any.
    """
    package = sys.modules[__name__.partition(".")[0]]
    versions = {"tvm_forest": package.__version__, "tvm": metadata.version("apache-tvm")}
    if target.kind not in REAL_GPUS:
        machine = f"{machine or cpu_name()}, {target.cores} cores"
    facts = {"model": forest.signature, "target": target.to_dict(), "cpu": machine}
    return {**facts, "versions": versions, "n_jobs": n_jobs, "rows": rows}


@dataclass
class Journal:
    """The records of one tuning, including those already in its file.

    Attributes:
        context: context of new records.
        path: where lines are appended; None to keep them in memory only.
        records: those of the same context, in order.

    Raises:
        InputError: the file cannot be written to, or has a line that is no record.
    """

    context: dict[str, Any]
    path: Path | None = None
    records: list[TrialRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path is not None:
            self._write("")  # before anything is measured in vain
            _drop_half_a_line(self.path)
            self.records += [r for r in read_records(self.path) if r.context == self.context]

    def find(self, batch: int, schedule: Schedule) -> TrialRecord | None:
        """Return the record of a schedule and batch size, or None."""
        same = (r for r in self.records if r.batch == batch and r.schedule == schedule)
        return next(same, None)

    def add(self, record: TrialRecord) -> None:
        """Keep a record, and write its line.

        Raises:
            InputError: the file cannot be written to.
        """
        self.records.append(record)
        self._write(record.to_line() + "\n")

    def _write(self, text: str) -> None:
        if self.path is None:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise InputError(f"tune: argument 'records': {error}") from None

    def best(self, batch: int) -> TrialRecord | None:
        """Return the fastest record for a batch size; None if none has a time."""
        return find_fastest(r for r in self.records if r.batch == batch)


def find_fastest(records: Iterable[TrialRecord]) -> TrialRecord | None:
    """Return the record with the shortest time, the earliest of equal ones; None without times."""
    timed = (record for record in records if record.seconds is not None)
    return min(timed, key=lambda record: record.time, default=None)


def read_records(path: str | os.PathLike[str]) -> list[TrialRecord]:
    """Return the records of a file; a partial last line is ignored.

    Raises:
        InputError: no such file, or a line that is no record.
    """
    where = f"records: file '{os.fspath(path)}'"
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot be read: {error}; give what tune has written") from None
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(TrialRecord.from_line(line))
        except (ValueError, KeyError, TypeError, RecursionError, ScheduleError) as error:
            raise InputError(
                f"{where}: line {number} is no record ({error}); take it out, or tune anew"
            ) from None
    return records


def _drop_half_a_line(path: Path) -> None:
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


def load_schedules(
    path: str | os.PathLike[str], forest: Forest, target: Target, gpu: str = ""
) -> dict[int, Schedule]:
    """Return the fastest known schedules of a model, by the smallest batch that each serves.

    Of several tunings, with other rows or numbers of threads, the latest counts. For a target that
    is a GPU, `gpu` is its `Driver.identity`; if that is "", all records must be of one GPU.

    Raises:
        InputError: no such file, or no record of this model, target, machine and version with a
            time.
    """
    wanted = describe_context(forest, target, machine=gpu)
    where, records = f"build: argument 'records': '{os.fspath(path)}'", read_records(path)
    for name in FACTS:
        recorded = sorted({_shorten(r.context[name]) for r in records})
        value = wanted[name] or _find_only_gpu(recorded)
        records = [r for r in records if r.context[name] == value]
        if not records:
            what, remedy = f"{name} {_shorten(value)}", "tune this model here"
            if not value:
                what, remedy = "one GPU by name, and none is at hand", "build where the GPU is"
            others = ", ".join(recorded) or "nothing"
            raise InputError(f"{where}: no record of {what} (have: {others}); {remedy}")
    latest = [r for r in records if r.context == records[-1].context]
    best = {r.batch: find_fastest(x for x in latest if x.batch == r.batch) for r in latest}
    schedules = {batch: record.schedule for batch, record in best.items() if record is not None}
    if not schedules:
        raise InputError(f"{where}: no schedule of this model has a time; tune it again")
    return serve_from_one_row(schedules)


def _find_only_gpu(recorded: list[str]) -> str:
    named = [gpu for gpu in recorded if gpu != NAMELESS]
    return named[0] if len(named) == 1 else ""


def serve_from_one_row(schedules: dict[int, Schedule]) -> dict[int, Schedule]:
    """Return schedules by batch size, with 1 in place of the smallest, to serve all batches."""
    return {batch if i else 1: schedules[batch] for i, batch in enumerate(sorted(schedules))}


def _shorten(value: Any) -> str:
    """Return a fact as text; digests are shortened."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text
