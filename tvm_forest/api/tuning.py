"""The public function that searches for schedules.

takes: a model in any form, sizes of batches; gives: Tuned.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..runtime.threads import check_n_jobs
from ..system.late import import_late
from ..target import Target, TvmTarget, parse_target

if TYPE_CHECKING:
    from .. import frontends
    from ..search import measuring, strategies
    from ..search.measuring import Tuned
    from ..search.measuring import remote as remote_machines
else:
    frontends = import_late("tvm_forest.frontends")
    measuring = import_late("tvm_forest.search.measuring")
    remote_machines = import_late("tvm_forest.search.measuring.remote")
    strategies = import_late("tvm_forest.search.strategies")

TargetLike = str | dict[str, Any] | Target | TvmTarget


def tune(
    model: Any,
    target: TargetLike = "llvm",
    batch_size: int | Sequence[int] = (1, 64, 4096),
    rows: Any = None,
    strategy: str = "heuristic",
    *,
    budget_s: float = 60.0,
    trials: int | None = None,
    seed: int = 0,
    records: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    limit_s: float = 30.0,
    limit_mb: float = 8192.0,
    progress: bool | None = None,
    exact: bool = True,
    remote: str | None = None,
) -> Tuned:
    """Search for the fastest schedules of a model, by measuring on this machine.

    Every candidate is built and timed in a process of its own, after its margins were compared
    with the reference walk to the bit. Ctrl-C ends the search and keeps what was found.

    Args:
        model: see `load`.
        target: see `build`. For a GPU, times are measured by the GPU, with rows in its memory;
            times of "simt" mean nothing for GPUs.
        batch_size: number of rows in a call, or several such numbers; each gets a schedule.
        rows: (R, F) rows like those that will be predicted, see `predict`; None for rows between
            the model's thresholds.
        strategy: "heuristic": the default schedule, then 2 to 18 schedules for each size that a
            cost model, corrected by the times so far, expects to be fastest; on a GPU, Algorithm 1
            of SilvanForge. "exhaustive": all of some hundred schedules, on a GPU thousands, in an
            order drawn by the seed. "beam": beam search that adds one directive at a time, on CPUs
            only.
        budget_s: seconds for all sizes together, counted from when the process is ready.
        trials: most schedules to measure for each size; None for any number.
        seed: the same seed gives the same rows, and the same order if a strategy draws one.
        records: file to which each result is appended; results that it has are not measured again.
        n_jobs: number of threads of a call, see `build`.
        limit_s: seconds to build and time one schedule; on Linux, time spent waiting for a busy
            core does not count.
        limit_mb: megabytes of memory that the measuring process may use (Linux only).
        progress: whether to show a progress bar; None shows it on a terminal.
        exact: on a GPU, leave out schedules that add leaves in another order than the model does;
            with False, `build` needs `exact=False` as well.
        remote: "host:port" of a machine that runs `tvm-forest rpc`, to measure there; the target
            is that machine's.

    Returns:
        Tuned: pass its `schedules` to `build(schedule=...)`, or the file to `build(records=...)`.

    Raises:
        InputError: an argument of the wrong kind, or a file that holds something else.
        DeviceError: there is no GPU that the target names, or no driver or compiler for it.
        BuildError: the process that measures cannot be prepared.
        ModelFormatError, UnsupportedModel: see `load`.

    Examples:
        >>> tuned = tvm_forest.tune(model, batch_size=64, trials=2)  # doctest: +SKIP
        >>> predictor = tvm_forest.build(model, schedule=tuned.schedules)  # doctest: +SKIP
    """
    check_n_jobs("tune", n_jobs)
    sizes = list(batch_size) if isinstance(batch_size, Sequence) else [batch_size]
    for size in sizes or [0]:
        check_count("tune", "batch_size", size, 1)
    if trials is not None:
        check_count("tune", "trials", trials, 1)
    for name, number in {"budget_s": budget_s, "limit_s": limit_s, "limit_mb": limit_mb}.items():
        _check_limit(name, number)
    place: Any = contextlib.nullcontext()  # None: schedules are measured here
    if remote is not None:
        place = remote_machines.RemoteMachine(remote)
    with place as machine:
        aim = parse_target(target) if machine is None else machine.target(target)
        known = strategies.strategies_of(aim)
        if strategy not in known:
            names = ", ".join(known)
            raise InputError(f"tune: argument 'strategy': {strategy!r} is unknown (have: {names})")
        return measuring.tune(
            frontends.load(model),
            aim,
            sorted(set(sizes)),
            rows,
            strategy,
            budget_s=budget_s,
            trials=trials,
            seed=seed,
            records=None if records is None else Path(records),
            n_jobs=n_jobs,
            limit_s=limit_s,
            limit_mb=limit_mb,
            progress=progress,
            exact=exact,
            machine=machine,
        )


def check_count(where: str, name: str, value: Any, least: int) -> None:
    """Refuse a value that is not an integer >= `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{where}: argument '{name}': expected {least} or more, got {value!r}")


def _check_limit(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InputError(f"tune: argument '{name}': expected a number from 0 on, got {value!r}")
