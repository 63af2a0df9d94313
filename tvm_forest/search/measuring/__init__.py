"""Searches for the fastest schedule of a model, measuring in a child process.

takes: Forest, Target, batch sizes, rows; gives: `Tuned`: schedules, and all records.

A strategy chooses the schedules to try, `child` runs code that may crash, and `measure` and `gpu`
build, check and time each schedule; this module combines them. The parent never imports TVM.
"""

from __future__ import annotations

import functools
import hashlib
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...forest import Array, Forest
from ...forest.probe_rows import hard_rows, typical_rows
from ...predictor.inputs import to_rows
from ...schedule_prims import Schedule
from ...target import Target
from .. import heuristic
from ..gpu_space import GpuSpace
from ..records import Journal, TrialRecord, describe_context, serve_from_one_row
from ..space import Space
from ..strategies import StopSearch, Strategy, strategies_of
from . import gpu, measure
from .child import Child, Failure
from .progress import ProgressBar

LEAST_POOL_ROWS, POOL_BATCHES, MAX_POOL_BYTES = 2048, 4, 1 << 25
"""Least numbers of distinct rows and of batches, and the largest size of rows in bytes."""

CHECK_ROWS = 97
"""Number of rows whose predictions are checked: no multiple of a block."""

Ask = Callable[..., Any]
"""A function of a schedule, a batch size, the seconds of the best schedule, and the time limit
`seconds`, which returns CallTimes or a Failure."""


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    Attributes:
        schedules: the fastest by the smallest batch that each serves, for `build(schedule=...)`;
            the default schedule for sizes without a time.
        records: everything measured or refused, also in earlier searches with the same file.
        defaults: the default schedule of each size of batch.
        finished: whether the strategy finished, rather than run out of time or get Ctrl-C.
    """

    schedules: dict[int, Schedule]
    records: tuple[TrialRecord, ...]
    defaults: dict[int, Schedule]
    finished: bool

    def __str__(self) -> str:
        return "\n".join(
            ["   batch  default us     best us  tried  failed", *map(self._line, self.defaults)]
        )

    def _line(self, batch: int) -> str:
        records = [r for r in self.records if r.batch == batch]
        default = next((r.time for r in records if r.schedule == self.defaults[batch]), math.inf)
        best = min((r.time for r in records), default=math.inf)
        times = (f"{1e6 * x:12.2f}" if x < math.inf else f"{'-':>12}" for x in (default, best))
        failed = sum(r.seconds is None for r in records)
        return f"{batch:8}{''.join(times)}{len(records):7}{failed:8}"


@dataclass
class Trials:
    """The `measure` function of a strategy, for one batch size, with a journal and limits.

    Attributes:
        journal: known records, to which new ones are added.
        batch: number of rows in a call.
        ask: measures a schedule in the child.
        end: clock time when the search must stop.
        left: remaining trials; infinity for any number.
        limit_s: most seconds for one candidate.
        clock: returns seconds since some fixed moment.
        show: called with every new record.
    """

    journal: Journal
    batch: int
    ask: Ask
    end: float = math.inf
    left: float = math.inf
    limit_s: float = 30.0
    clock: Callable[[], float] = time.monotonic
    show: Callable[[TrialRecord], None] = lambda record: None

    def __call__(self, schedule: Schedule) -> float:
        """Return the seconds of a call, from the journal if it has them; infinity for a failure.

        Raises:
            StopSearch: trials or time are used up.
        """
        return (self.journal.find(self.batch, schedule) or self._measure(schedule)).time

    def _measure(self, schedule: Schedule) -> TrialRecord:
        begin = self.clock()
        time_left = self.end - begin
        if self.left == 0 or time_left <= 0:
            raise StopSearch
        best = self.journal.best(self.batch)
        fastest, limit = best.time if best else math.inf, min(self.limit_s, time_left)
        answer = self.ask(schedule.to_json(), self.batch, fastest, seconds=limit)
        spent = round(self.clock() - begin, 3)
        failed = isinstance(answer, Failure)
        if failed and answer.timed_out and limit < self.limit_s:
            raise StopSearch  # cut short: it may be a good one
        result = {"problem": answer.reason} if failed else answer._asdict()
        record = TrialRecord(self.journal.context, self.batch, schedule, spent=spent, **result)
        self.left -= 1
        self.journal.add(record)
        self.show(record)
        return record


def tune(
    forest: Forest,
    target: Target,
    batches: Sequence[int],
    rows: Any = None,
    strategy: Strategy | str = "heuristic",
    *,
    budget_s: float = 60.0,
    trials: int | None = None,
    seed: int = 0,
    records: Path | None = None,
    n_jobs: int | None = None,
    limit_s: float = 30.0,
    limit_mb: float = 8192.0,
    progress: bool | None = None,
    exact: bool = True,
    machine: Any = None,
) -> Tuned:
    """Search on a `RemoteMachine`, or on this one; see `api.tune`."""
    search = strategies_of(target)[strategy] if isinstance(strategy, str) else strategy
    start_child = Child if machine is None else machine.child
    # The process imports the compiler while this one prepares what it is to measure.
    child = start_child(measure.COMPILER, megabytes=limit_mb)
    with child, ProgressBar(budget_s, progress) as bar:
        setup, name = make_setup(forest, target, max(batches), rows, seed, n_jobs)
        child.prepare(measure.prepare, setup)
        space_of = _make_spaces(forest, target, batches, n_jobs, exact)
        left, most, finished = budget_s, math.inf if trials is None else trials, True
        ran_on = gpu.identify_in(child, target) or (machine.cpu if machine else "")
        name += "" if exact else ", in any order"
        context = describe_context(forest, target, n_jobs, name, ran_on)
        journal = Journal(context, records)
        ask = functools.partial(child.call, (gpu if target.on_gpu else measure).measure_candidate)
        try:
            if budget_s > 0:
                child.ready()
            for place, (batch, space) in enumerate(space_of.items()):
                begin, share = time.monotonic(), left / (len(batches) - place)
                run = Trials(journal, batch, ask, begin + share, most, limit_s, show=bar.show)
                try:
                    search(space, run, random.Random(seed))
                except StopSearch:
                    finished = False
                left -= min(share, time.monotonic() - begin)  # what a last one takes is on top
        except KeyboardInterrupt:
            finished = False
    defaults = {batch: space.default for batch, space in space_of.items()}
    ours = tuple(record for record in journal.records if record.batch in space_of)
    best = {batch: journal.best(batch) for batch in batches}
    chosen = {k: record.schedule if record else defaults[k] for k, record in best.items()}
    return Tuned(serve_from_one_row(chosen), ours, defaults, finished)


def _make_spaces(
    forest: Forest, target: Target, batches: Sequence[int], n_jobs: int | None, exact: bool
) -> Mapping[int, Space | GpuSpace]:
    """Return the search space for each batch size; arguments as those of `tune`."""
    if target.on_gpu:
        return {batch: GpuSpace.of(forest, target, batch, exact) for batch in batches}
    return heuristic.find_spaces(forest, target, batches, n_jobs)


def make_setup(
    forest: Forest, target: Target, largest: int, rows: Any, seed: int, n_jobs: int | None
) -> tuple[measure.TrialSetup, str]:
    """Return the setup that all candidates share, and a name of the rows for the records.

    Raises:
        InputError: rows of the wrong kind, or no rows.
    """
    if forest.encoder is not None and rows is not None:
        rows = to_rows(rows, forest)
    # What is timed are walks of rows that are encoded, of any categories.
    forest = replace(forest, encoder=None, refuses_unseen=())
    width = max(1, forest.row_width * np.dtype(forest.row_dtype).itemsize)
    size = min(max(LEAST_POOL_ROWS, POOL_BATCHES * largest), MAX_POOL_BYTES // width)
    size = max(2 * largest, size)
    pool = typical_rows(forest, size, seed) if rows is None else _draw(forest, rows, size, seed)
    checks = hard_rows(forest, CHECK_ROWS, seed)
    for word, is_refused in (("nan", np.isnan), ("inf", np.isinf)):
        if word in forest.refuses:
            checks[is_refused(checks)] = 0
    finite = checks[:, (columns := list(forest.finite_columns))]
    checks[:, columns] = np.where(np.isinf(finite), 0, finite)
    margins = forest.predict_reference(checks)
    name = f"typical {seed}" if rows is None else hashlib.sha256(pool.tobytes()).hexdigest()
    return measure.TrialSetup(forest, target, pool, checks, margins, n_jobs), name


def _draw(forest: Forest, rows: Any, size: int, seed: int) -> Array:
    """Draw `size` rows from a user's rows; each is used once before any is repeated.

    Raises:
        InputError: there are no rows, or they are of the wrong kind.
    """
    known = to_rows(rows, forest)
    if not len(known):
        raise InputError("tune: argument 'rows': no rows; give some like those to be predicted")
    rng = np.random.default_rng(seed)
    order = [rng.permutation(len(known)) for _ in range(-(-size // len(known)))]
    return known[np.concatenate(order)[:size]]
