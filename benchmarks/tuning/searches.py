"""What searches have found: records of every model, and the schedules that won.

takes: a folder that `tuning.search` writes to; gives: Cell, one model and size of batch.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
from benchmarks import BUILD, models
from tvm_forest.forest import Forest
from tvm_forest.schedule_prims import Schedule
from tvm_forest.search.heuristic import find_spaces
from tvm_forest.search.records import TrialRecord, read_records
from tvm_forest.search.space import Point, Space
from tvm_forest.target import Target

RECORDS = BUILD / "search"
BATCHES = (1, 64, 512, 4096)
LEAST = 4
"""Points that must have been measured for a search to count."""


@functools.cache
def forest_of(name: str) -> Forest:
    """Return a model of the benchmark."""
    return tvm_forest.load(models.get(name).load())


@dataclass(frozen=True)
class Cell:
    """A search of one model and size of batch on one thread.

    Attributes:
        model: its name.
        space: what can be chosen.
        records: of points of the space, in the order in which they were measured.
    """

    model: str
    space: Space
    records: list[TrialRecord]

    @functools.cached_property
    def seconds(self) -> dict[Point, float]:
        """Seconds of a call at each point that has a time, in the order of measuring."""
        points = {sch: p for p, sch in points_of(self.model, self.space.batch).items()}
        return {points[r.schedule]: r.seconds for r in self.records if r.seconds is not None}

    @property
    def fastest(self) -> list[Point]:
        """Points, the fastest first, and the earlier of equals."""
        return sorted(self.seconds, key=self.seconds.__getitem__)

    @property
    def spent(self) -> float:
        """Seconds for all measurements."""
        return sum(r.spent for r in self.records)

    @property
    def times(self) -> Any:
        """Logarithms of nanoseconds a hop."""
        return np.log(np.array(list(self.seconds.values())) / (1e-9 * self.space.hops))


@functools.cache
def space_of(name: str, batch: int) -> Space:
    """Return the space of one thread."""
    return find_spaces(forest_of(name), Target(), [batch], n_jobs=1)[batch]


@functools.cache
def points_of(name: str, batch: int) -> dict[Point, Schedule]:
    """Return all points of the space of one thread, and the schedule of each."""
    return space_of(name, batch).points()


def path_of(folder: Path, name: str, strategy: str) -> Path:
    """Return where the records of a search are kept."""
    return folder / f"{name}.{strategy}.jsonl"


def cell_of(folder: Path, name: str, batch: int, strategy: str = "exhaustive") -> Cell:
    """Return what is known of one search."""
    path, space = path_of(folder, name, strategy), space_of(name, batch)
    known = set(points_of(name, batch).values())
    records = [r for r in read_records(path) if r.batch == batch] if path.exists() else []
    return Cell(name, space, [r for r in records if r.schedule in known])


def cells(folder: Path) -> list[Cell]:
    """Return the exhaustive searches that have got somewhere."""
    names = sorted(path.name.partition(".")[0] for path in folder.glob("*.exhaustive.jsonl"))
    found = [cell_of(folder, name, batch) for name in names for batch in BATCHES]
    return [cell for cell in found if len(cell.seconds) >= LEAST]
