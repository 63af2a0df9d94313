"""Measuring in a process of its own, which may crash or hang; and whole searches of tiny models."""

from __future__ import annotations

import contextlib
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planted
import tvm_forest
from forests import drawn_forest
from tvm_forest import Schedule
from tvm_forest.cli import main
from tvm_forest.errors import BuildError, InputError
from tvm_forest.forest.probe_rows import typical_rows
from tvm_forest.search import measuring as tuning
from tvm_forest.search.measuring import Trials, make_setup
from tvm_forest.search.measuring.child import Child, Failure
from tvm_forest.search.measuring.measure import (
    CallTimes,
    TimedCalls,
    check_margins,
    cut_batches,
    time_beside_fastest,
    time_in_rounds,
)
from tvm_forest.search.measuring.progress import ProgressBar
from tvm_forest.search.records import Journal, TrialRecord, describe_context, read_records
from tvm_forest.search.strategies import StopSearch
from tvm_forest.target import Target

MODEL = drawn_forest(6, 3)
START = tvm_forest.new_schedule(MODEL)
CONTEXT = describe_context(MODEL, Target())


# -- the child ------------------------------------------------------------------------------------


DEEDS: list[tuple[Any, float, Failure]] = [
    (planted.crash, 30, Failure("crashed: SIGSEGV", False)),
    (planted.spin, 0.3, Failure("over 0.3 s", True)),
    (planted.wait, 0.3, Failure("over 0.3 s", True)),
]


def test_a_child_that_crashes_or_hangs_is_replaced() -> None:
    with Child() as child:
        child.prepare(planted.add, 1, 1)
        known = {child.call(planted.process, seconds=30)}
        for deed, seconds, failure in DEEDS:
            assert child.call(deed, seconds=seconds) == failure
            another = child.call(planted.process, seconds=30)
            assert another not in known
            known.add(another)


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at in /proc")


@contextlib.contextmanager
def busy_core() -> Iterator[int]:
    """A core that three others have, as long as the context lasts."""
    core = max(os.sched_getaffinity(0))
    own = (
        f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile os.getppid() == {os.getpid()}: pass"
    )
    command = [sys.executable, "-I", "-S", "-c", own]
    others = [subprocess.Popen(command) for _ in range(3)]
    try:
        yield core
    finally:
        for other in others:
            other.kill()
            other.wait()


@LINUX
@pytest.mark.slow
def test_work_that_waits_for_a_busy_core_is_no_hang_and_an_endless_loop_is_one() -> None:
    with Child() as child:
        child.prepare(planted.add, 1, 1)
        assert child.call(planted.add, 1, 1, seconds=30) == 2
        with busy_core() as core:
            begin = time.monotonic()
            assert child.call(planted.work_on, core, 0.3, seconds=0.6) == "done"
            assert time.monotonic() - begin > 0.6  # or the core was not busy
            assert child.call(planted.spin_on, core, seconds=0.2) == Failure("over 0.2 s", True)


@LINUX
def test_a_child_that_outgrows_its_memory_is_ended() -> None:
    with Child(megabytes=300) as child:
        assert child.call(planted.grow, seconds=30) == Failure("over 300 MB of memory")
        assert child.call(planted.add, 2, 3, seconds=30) == 5


def test_a_child_lives_on_after_answers_and_refusals_and_ends_by_a_bug() -> None:
    with Child() as child:
        assert child.call(planted.add, 2, 3, seconds=30) == 5
        before = child.call(planted.process, seconds=30)
        assert child.call(planted.fail, "no\nway", seconds=30) == Failure("refused: no")
        assert child.call(planted.process, seconds=30) == before
        said = child.call(planted.fail, "", seconds=30).reason
        assert said == "crashed: exit status 1: RuntimeError: a bug"


def test_a_child_that_cannot_prepare_says_why() -> None:
    with Child() as child:
        child.prepare(planted.fail, "no compiler")
        for _ in range(2):
            with pytest.raises(BuildError, match="cannot be prepared: refused: no compiler"):
                child.call(planted.add, 1, 2, seconds=30)


def test_a_child_imports_ahead_of_its_first_call() -> None:
    with Child("colorsys") as child:
        assert child.call(planted.imported, "colorsys", seconds=30)
        assert not child.call(planted.imported, "wave", seconds=30)
    with Child("tvm_forest.no_compiler") as child:
        child.prepare(planted.add, 1, 1)
        with pytest.raises(BuildError, match="prepared: crashed: .*No module named .*no_compiler"):
            child.call(planted.add, 1, 2, seconds=30)


def test_a_process_prepares_once_and_so_does_the_one_in_its_place() -> None:
    with Child() as child:
        child.prepare(planted.count)
        for _ in range(2):
            assert child.call(planted.counted, seconds=30) == 1
        child.call(planted.crash, seconds=30)
        assert child.call(planted.counted, seconds=30) == 1


# -- trials ---------------------------------------------------------------------------------------


def trials(ask: Any, **fields: Any) -> Trials:
    return Trials(Journal(CONTEXT), 1, ask, **fields)


def test_a_search_survives_what_it_measures() -> None:
    answers = {
        "packed": Failure("crashed: SIGSEGV"),
        "reorg": Failure("over 1 s", timed_out=True),
        "sparse": Failure("refused: too deep"),
        "ranked": CallTimes(0.5, 1.0, 3),
    }
    measure = trials(lambda text, *_, **__: answers[Schedule.from_json(text).layout], limit_s=1.0)
    times = [measure(START.represent_as(name)) for name in answers]
    assert times == [math.inf, math.inf, math.inf, 0.5]
    problems = [record.problem for record in measure.journal.records]
    assert problems == ["crashed: SIGSEGV", "over 1 s", "refused: too deep", None]


def test_what_is_known_is_not_measured_again_and_costs_no_trial() -> None:
    asked: list[str] = []
    measure = trials(lambda text, *_, **__: asked.append(text) or CallTimes(2.0, 3.0, 4), left=1)
    assert [measure(START), measure(START)] == [2.0, 2.0]
    assert len(asked) == 1
    with pytest.raises(StopSearch):
        measure(START.interleave("tree", 2))


def test_time_ends_a_search_and_cuts_the_last_candidate_without_a_record() -> None:
    clock = iter([0.0, 3.0, 4.0, 8.5, 9.0, 10.0, 11.0])
    limits: list[float] = []

    def ask(text: str, batch: int, best: float, seconds: float) -> Any:
        limits.append(seconds)
        return Failure("over", True) if len(limits) == 3 else CallTimes(1.0, 1.0, 3)

    measure = trials(ask, end=10.0, limit_s=5.0, clock=clock.__next__)
    sizes = (2, 3, 4, 5)
    assert [measure(START.interleave("tree", k)) for k in sizes[:2]] == [1.0, 1.0]
    with pytest.raises(StopSearch):
        measure(START.interleave("tree", 4))
    with pytest.raises(StopSearch):
        measure(START.interleave("tree", 5))
    assert limits == [5.0, 5.0, 1.0]
    assert [record.spent for record in measure.journal.records] == [3.0, 4.5]
    assert len(measure.journal.records) == 2


def test_a_candidate_is_told_the_best_time_so_far() -> None:
    told: list[float] = []
    measure = trials(
        lambda text, batch, best, seconds: told.append(best) or CallTimes(3.0 - len(told), 3, 3)
    )
    for factor in (2, 3, 4):
        measure(START.interleave("tree", factor))
    assert told == [math.inf, 2.0, 1.0]


def test_the_bar_says_how_many_were_tried_and_the_best(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for shown in (True, None):
        with ProgressBar(10.0, shown) as bar:
            for seconds in (None, 5e-6, 7e-6):
                bar.show(TrialRecord(CONTEXT, 64, START, seconds))
        said = capsys.readouterr().err
        assert ("batch 64: 3 tried, best 5.00 us" in said) == bool(shown)


# -- measuring ------------------------------------------------------------------------------------


def fake_calls(seconds: float) -> tuple[Any, Any, list[Any]]:
    """Return a call that takes so long on a clock of its own, the clock, and what is called."""
    now, called = [0.0], list[Any]()

    def call(batch: Any) -> None:
        called.append(batch)
        now[0] += seconds

    return call, lambda: now[0], called


def test_batches_rotate_and_rounds_are_long_enough() -> None:
    call, clock, called = fake_calls(0.001)
    times = time_in_rounds(TimedCalls(call, list("abc"), clock))
    assert np.allclose(times, (0.001, 0.001, 15))
    assert "".join(called).startswith("abcabcabc")


@pytest.mark.parametrize(("best", "rounds"), [(1.0, 15), (0.011, 15), (0.006, 5), (0.001, 2)])
def test_a_hopeless_candidate_is_stopped_early(best: float, rounds: int) -> None:
    call, clock, _ = fake_calls(0.01)
    assert time_in_rounds(TimedCalls(call, ["a"], clock), best).rounds == rounds


def test_a_slow_candidate_gets_few_rounds() -> None:
    call, clock, _ = fake_calls(2.0)
    assert time_in_rounds(TimedCalls(call, ["a"], clock)).rounds == 5


def test_candidates_that_come_near_are_timed_in_turns_with_the_fastest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fastest = dict[int, Any]()
    monkeypatch.setattr(sys.modules[time_beside_fastest.__module__], "_fastest", fastest)
    now, load, warm = [0.0], [1.0], [0.0]

    def course(seconds: float) -> TimedCalls:
        def call(batch: Any) -> None:
            now[0] += seconds * load[0] + 0.005 * (warm[0] != seconds)  # a model in the memory
            warm[0] = seconds

        return TimedCalls(call, ["a"], lambda: now[0])

    assert time_beside_fastest(course(0.010), 64, math.inf).seconds == pytest.approx(0.010)
    load[0] = 1.2  # the machine is disturbed from here on, which ratios do not show
    assert time_beside_fastest(course(0.009), 64, 0.010).seconds == pytest.approx(0.009)
    assert time_beside_fastest(course(0.012), 64, 0.009).seconds == pytest.approx(
        0.012 * 1.2
    )  # not near
    assert time_beside_fastest(course(0.0093), 64, 0.009).seconds == pytest.approx(0.0093)
    assert time_beside_fastest(course(0.0088), 64, 0.009).seconds == pytest.approx(
        0.009
    )  # hardly a lead
    assert time_beside_fastest(course(0.008), 1, math.inf).seconds == pytest.approx(
        0.008 * 1.2
    )  # another batch
    assert {batch: times.seconds for batch, (_, times) in fastest.items()} == pytest.approx(
        {64: 0.009, 1: 0.0096}
    )


def test_batches_are_distinct_rows_of_the_pool() -> None:
    pool = np.arange(20.0).reshape(10, 2)
    assert [batch.tolist() for batch in cut_batches(pool, 4)] == [
        pool[:4].tolist(),
        pool[4:8].tolist(),
    ]
    assert len(cut_batches(np.zeros((4096, 1)), 1)) == 256


@pytest.mark.parametrize("batch", [1, 500])
def test_wrong_margins_are_refused_with_their_row(batch: int) -> None:
    bench, _ = make_setup(MODEL, Target(), batch, None, 0, None)

    def wrong(rows: Any, n_jobs: int) -> Any:
        margin = MODEL.predict_reference(rows)[:, 0]
        margin[40:] += n_jobs < 0
        return margin

    check_margins(bench, wrong, batch, parallel=False)
    with pytest.raises(BuildError, match="row 40 of 97: margin .* differs from the reference"):
        check_margins(bench, wrong, batch, parallel=True)


def test_rows_that_are_given_are_all_used_before_any_comes_again() -> None:
    rows = typical_rows(MODEL, 3000, 1)
    pool = make_setup(MODEL, Target(), 1000, rows, 0, None)[0].pool
    assert len(pool) == 4000
    assert len(np.unique(pool[:3000], axis=0)) == len(np.unique(rows, axis=0))


def test_the_name_of_the_rows_tells_them_apart() -> None:
    rows = typical_rows(MODEL, 50, 1)
    names = [
        make_setup(MODEL, Target(), 8, x, seed, None)[1] for x in (None, rows) for seed in (0, 1)
    ]
    assert len(set(names)) == 4
    with pytest.raises(InputError, match="no rows"):
        make_setup(MODEL, Target(), 8, rows[:0], 0, None)


# -- whole searches -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tuned_model_predicts_the_same_bits_with_a_schedule_for_each_size(tmp_path: Path) -> None:
    path, rows = tmp_path / "tune.jsonl", typical_rows(MODEL, 300)
    tuned = tvm_forest.tune(MODEL, batch_size=[1, 8], rows=rows, trials=2, records=path)
    assert list(tuned.schedules) == [1, 8]
    assert [record.batch for record in tuned.records] == [1] * 2 + [8] * 2
    assert all(record.problem is None for record in tuned.records)
    assert not tuned.finished
    assert read_records(path) == list(tuned.records)
    predictor = tvm_forest.build(MODEL, records=path)
    assert set(predictor.schedules.values()) == set(tuned.schedules.values())
    margin = predictor.predict_margin(rows)
    assert np.array_equal(margin, MODEL.predict_reference(rows)[:, 0])


@pytest.mark.slow
def test_a_search_goes_on_in_its_file_and_ctrl_c_keeps_what_was_found(tmp_path: Path) -> None:
    path, seen = tmp_path / "tune.jsonl", list[Any]()

    def impatient(space: Any, measure: Any, rng: random.Random) -> None:
        for schedule in (space.start, space.start.interleave("tree", 2)):
            seen.append(measure(schedule))
            if len(seen) == 2:
                raise KeyboardInterrupt

    first = tuning.tune(MODEL, Target(), [8], strategy=impatient, records=path)
    assert (len(first.records), first.finished) == (2, False)
    second = tuning.tune(MODEL, Target(), [8], strategy=impatient, records=path)
    assert (second.records, second.finished) == (first.records, True)
    assert seen[:2] == seen[2:4]


@pytest.mark.slow
def test_the_command_tunes_and_says_how_to_use_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_forest.frontends.load", lambda model: MODEL)
    words = ["tune", "m.json", "--batch-size", "1", "--trials", "2", "--budget", "30"]
    words += ["--limit-s", "20"]
    assert main([*words, "--records", str(tmp_path / "r.jsonl")]) == 0
    said = capsys.readouterr().out
    assert "default us" in said
    assert "build('m.json', records=" in said
    assert len(read_records(tmp_path / "r.jsonl")) == 2
    assert main([*words, "--limit-mb", "1", "--records", str(tmp_path / "none.jsonl")]) == 2
    assert "over 1 MB of memory" in capsys.readouterr().err


def test_without_time_the_default_schedules_are_what_is_found() -> None:
    tuned = tvm_forest.tune(MODEL, batch_size=[1, 4096], budget_s=0)
    known = tvm_forest.default_schedules(MODEL)
    assert tuned.schedules == {1: known[1], 4096: known[max(known)]}
    assert tuned.records == ()
    assert not tuned.finished


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch_size": 0}, "argument 'batch_size': expected 1 or more, got 0"),
        ({"batch_size": [1, 2.5]}, "argument 'batch_size': expected 1 or more, got 2.5"),
        ({"batch_size": []}, "argument 'batch_size'"),
        ({"trials": 0}, "argument 'trials': expected 1 or more, got 0"),
        ({"budget_s": -1.0}, "argument 'budget_s': expected a number from 0 on, got -1.0"),
        ({"limit_s": math.nan}, "argument 'limit_s': expected a number from 0 on, got nan"),
        ({"limit_mb": "2 GB"}, "argument 'limit_mb': expected a number from 0 on, got '2 GB'"),
        ({"strategy": "luck"}, "'luck' is unknown .have: heuristic, exhaustive, beam"),
        ({"n_jobs": 0}, "argument 'n_jobs'"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        tvm_forest.tune(MODEL, **arguments)
