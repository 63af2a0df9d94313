"""Schedules drawn from a seed, each built for a model and compared with its reference walk.

    python tools/random_schedules.py --schedules 2000 --simt 500 --each 50 --json build/found.json
    python tools/random_schedules.py --only cpu 17     # one schedule, in this process
    python tools/random_schedules.py --least cpu 17    # and the fewest of its steps that still fail

Schedule number S of a device is drawn from the seed S, and its model too, see `drawn_schedules.py`
and `scheduled_models.py`. Seeds are tried until so many schedules were built for each device, in
processes that are replaced when one of them crashes or hangs. With `--json FILE` each result is a
line of that file, and seeds that it has are not tried again. A schedule may be refused, but by an
error of ours, and by `build`. Ends with a table, and with status 1 if a schedule fails, or if of a
layout or directive that a device takes fewer than `--each` schedules were built.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import _path  # noqa: F401 (what tests share)

os.environ.setdefault("TVM_FOREST_CACHE", "off")
os.environ.setdefault("TVM_FOREST_MACHINE", "off")

import numpy as np

import tvm_forest
from child import Child
from drawn_schedules import LAYOUTS, drawn_schedule, layouts_of, words_of
from races import find_kernel_races
from scheduled_models import MODELS, MOST_ROWS, Answers, answers_of, forest_named
from tvm_forest.errors import ForestError, ScheduleError
from tvm_forest.forest import Array, Forest
from tvm_forest.schedule_prims import DIRECTIVES, Schedule

DEVICES = ("cpu", "simt")
BUILT = ("equal", "near")
FAILURES = ("wrong", "foreign", "late", "crash", "hang")
"""What must not be: "foreign" is an error that is not ours, "late" is one of ours after `build`."""
LIMITS = {"": 1800.0}
"""Seconds after which a schedule hangs, also on a busy machine."""
CHUNK = 400
"""Schedules that a process tries before another one takes its place, as code is never unloaded."""
REPEATS = {"batch": 10, "class": 10, "tree": 100}
"""Calls with two threads, of which one may show that they write to the same memory, by the kind of
loop that they share."""
Found = dict[str, Any]


class Wrong(Exception):
    """An answer that is not the model's."""


def drawn(device: str, seed: int) -> tuple[str, Schedule, random.Random]:
    """Draw the name of a model and a schedule of it."""
    rng = random.Random(f"{device} {seed}")
    name = rng.choice(sorted(MODELS))
    forest = forest_named(name, rng.random() < 0.7)
    start = tvm_forest.new_schedule(forest)
    return name, drawn_schedule(rng, start, forest, gpu=device != "cpu"), rng


def drawn_for(device: str, seed: int) -> tuple[Forest, Schedule]:
    """Draw a model and a schedule of it."""
    rng = random.Random(f"{device} {seed}")
    name = rng.choice(sorted(MODELS))
    forest = forest_named(name, rng.random() < 0.7)
    return forest, drawn_schedule(rng, tvm_forest.new_schedule(forest), forest, gpu=device != "cpu")


def check(device: str, seed: int) -> Found:
    """Draw, build and compare one schedule; return what became of it."""
    begin = time.process_time()
    found: Found = {"device": device, "seed": seed, "words": [], "layout": "", "why": ""}
    try:
        name, sch, rng = drawn(device, seed)
        found |= {"model": name, "layout": sch.layout, "steps": sch.to_json()}
        found["words"] = sorted({step.do for step in sch.steps})
        found["outcome"] = compare(device, name, sch, rng)
    except Refused as error:
        found |= {"outcome": "refused", "why": str(error.__cause__).split("\n")[0]}
    except Wrong as error:
        found |= {"outcome": "wrong", "why": str(error)}
    except ForestError:
        found |= {"outcome": "late", "why": traceback.format_exc(limit=-6)}
    except Exception:  # whatever goes wrong is told with its seed, and the next one follows
        found |= {"outcome": "foreign", "why": traceback.format_exc(limit=-6)}
    return found | {"seconds": round(time.process_time() - begin, 3)}


class Refused(Exception):
    """What `build` refused by an error of ours."""


def compare(device: str, name: str, sch: Schedule, rng: random.Random) -> str:
    """Build a schedule and compare all it gives; return whether sums are "equal" or "near"."""
    forest, answers = forest_named(name, seen=True), answers_of(name)
    target = "llvm" if device == "cpu" else {"kind": "simt", "order": rng.choice(ORDERS)}
    _check_permission(forest, target, sch)
    try:
        predictor = tvm_forest.build(forest, target, sch, exact=sch.keeps_order)
    except ForestError as error:
        raise Refused from error
    if device != "cpu":
        _check_kernels(forest, sch)
    most = MOST_ROWS if device == "cpu" else 200
    spans = [(0, most), (0, 0), (rng.randrange(most), 1)]
    spans += [(rng.randrange(most // 2), rng.randint(2, most // 2)) for _ in range(3)]
    shared = [REPEATS[loop.kind] for loop in sch.loops() if loop.parallel]
    for begin, rows in spans:
        for jobs in (1, 2) if device == "cpu" else (None,):
            many = jobs == 2 and rows > 1000
            for _ in range(max(shared, default=1) if many else 1):
                check_margins(answers, predictor, sch, slice(begin, begin + rows), jobs)
    if rng.random() < 0.15:
        begin, rows = rng.choice(spans)
        _check_leaves(answers, predictor, slice(begin, begin + rows))
    return "equal" if sch.keeps_order else "near"


ORDERS = ("forwards", "backwards")


def _check_permission(forest: Any, target: Any, sch: Schedule) -> None:
    """See a schedule that adds in another order refused unless that is allowed."""
    if sch.keeps_order:
        return
    try:
        tvm_forest.build(forest, target, sch)
    except ScheduleError:
        return
    raise Wrong("built with exact=True, though the order of additions is another")


def _check_kernels(forest: Forest, sch: Schedule) -> None:
    """See no threads write to one place; where they run one after the other, sums may be right."""
    for name, function in tvm_forest.lower(forest, sch, "simt").after.functions.items():
        if races := find_kernel_races(function):
            raise Wrong(f"threads of {name.name_hint} write to one place of {sorted(races)}")


def check_margins(
    answers: Answers, predictor: Any, sch: Schedule, part: slice, jobs: int | None
) -> None:
    given = {} if jobs is None else {"n_jobs": jobs}
    expected = answers.margins[part]
    with np.errstate(all="ignore"):
        found = predictor.predict_margin(answers.rows[part], **given).reshape(expected.shape)
        wrong = ~are_same(found, expected)
        if not sch.keeps_order:
            wrong &= np.abs(found.astype(np.float64) - expected) > answers.bound[part]
    _report(f"margins with n_jobs={jobs}", found, expected, wrong, part)


def _check_leaves(answers: Answers, predictor: Any, part: slice) -> None:
    """Compare the leaves and the values of single trees, which no order of additions changes."""
    rows = answers.rows[part]
    for what, found, all_expected in (
        ("values of trees", predictor.predict_per_tree(rows), answers.per_tree),
        ("leaves", predictor.apply(rows), answers.leaves),
    ):
        expected = all_expected[part]
        _report(what, found, expected, ~are_same(found.reshape(expected.shape), expected), part)
    assert predictor.tolerance(rows).shape == answers.margins[part].shape


def are_same(found: Array, expected: Array) -> Array:
    """Compare to the bit, but for what a NaN holds."""
    if found.dtype != expected.dtype:
        raise Wrong(f"dtype {found.dtype}, not {expected.dtype}")
    same = found == expected
    if found.dtype.kind == "f":
        same = same & (np.signbit(found) == np.signbit(expected))
        same |= np.isnan(found) & np.isnan(expected)
    return same


def _report(what: str, found: Array, expected: Array, wrong: Array, part: slice) -> None:
    if wrong.any():
        at = np.unravel_index(np.argmax(wrong), wrong.shape)
        rows = int(wrong.reshape(len(wrong), -1).any(axis=1).sum())
        values = f"first in row {at[0]}: {found.reshape(wrong.shape)[at]!r}, not {expected[at]!r}"
        raise Wrong(f"{what}: {rows} of rows {part.start}:{part.stop} are wrong, {values}")


# -- the fewest steps that still fail -------------------------------------------------------------


def shorten(sch: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Leave out all steps without which a schedule still fails, the last ones first."""
    place = len(sch.steps)
    while place:
        place -= 1
        shorter = sch.fresh()
        for step in (*sch.steps[:place], *sch.steps[place + 1 :]):
            with contextlib.suppress(ScheduleError):
                shorter = DIRECTIVES[step.do].apply(shorter, step.arguments)
        if fails(shorter):
            sch, place = shorter, min(place, len(shorter.steps))
    return sch


def outcome(device: str, name: str, sch: Schedule) -> str:
    """Return how a schedule fails; "" if it does not."""
    try:
        compare(device, name, sch, random.Random(1))
    except Refused:
        return ""
    except Exception as error:
        return type(error).__name__
    return ""


# -- the processes that try -----------------------------------------------------------------------


def _serve(pipe: Any) -> None:
    """Answer until there is nothing more to try."""
    warnings.simplefilter("ignore")
    with contextlib.suppress(EOFError, ConnectionError):  # nobody asks any more
        while (case := pipe.recv()) is not None:
            pipe.send(check(*case))


class Trial:
    """Seeds of one device, tried until enough schedules were built."""

    def __init__(self, device: str, wanted: int, first: int, path: Path | None) -> None:
        self.device, self.wanted, self.path = device, wanted, path
        self.found = [x for x in read(path) if x["device"] == device]
        known = {x["seed"] for x in self.found}
        self.seeds = (seed for seed in count(first) if seed not in known)
        self.lock = threading.Lock()

    def run(self, processes: int) -> None:
        """Try seeds in so many processes."""
        workers = [threading.Thread(target=self._work) for _ in range(processes)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def _work(self) -> None:
        while True:
            child = Child(_serve, LIMITS)
            for _ in range(CHUNK):
                with self.lock:
                    if sum(x["outcome"] in BUILT + FAILURES for x in self.found) >= self.wanted:
                        child.close()
                        return
                    seed = next(self.seeds)
                answer = child.tried((self.device, seed))
                if not isinstance(answer, dict):
                    why = f"exit code {answer.code}"
                    answer = {"device": self.device, "seed": seed, "outcome": answer.how}
                    answer |= {"why": why, "words": [], "layout": ""}
                self._keep(answer)
            child.close()

    def _keep(self, answer: Found) -> None:
        with self.lock:
            self.found.append(answer)
            if answer["outcome"] in FAILURES:
                print(*(answer.get(k) for k in ("device", "seed", "model", "outcome", "why")))
                sys.stdout.flush()
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(answer) + "\n")


def read(path: Path | None) -> list[Found]:
    """Return the results that a file has."""
    if path is None or not path.exists():
        return []
    return list(map(json.loads, path.read_text(encoding="utf-8").splitlines()))


def counted(found: list[Found]) -> Counter[str]:
    """Count in how many schedules each layout and directive is."""
    return Counter(name for answer in found for name in (answer["layout"], *answer["words"]))


def counted_built(found: list[Found]) -> Counter[str]:
    """Count in how many of those that were built."""
    return counted([answer for answer in found if answer["outcome"] in BUILT])


def taken_by(device: str) -> list[str]:
    """Return the layouts and directives that a device takes."""
    return [*layouts_of(device != "cpu"), *words_of(device != "cpu")]


def rare(results: dict[str, list[Found]], each: int) -> Iterator[str]:
    """Yield what a device takes and what was built too seldom."""
    for device, found in results.items():
        built = counted_built(found)
        for name in (x for x in taken_by(device) if built[x] < each):
            yield f"{device}: {name} was built {built[name]} times, fewer than {each}"


def table(results: dict[str, list[Found]]) -> Iterator[str]:
    """Yield the lines of a table: how often each layout and directive was drawn, and built."""
    counts = [how(found) for found in results.values() for how in (counted, counted_built)]
    takes = [set(taken_by(device)) for device in results for _ in range(2)]
    yield "| |" + "".join(f" {device}: drawn | built |" for device in results)
    yield "|---|" + "---:|---:|" * len(results)
    for name in (*LAYOUTS, *sorted(DIRECTIVES)):
        cells = (
            count[name] if name in x else "none" for count, x in zip(counts, takes, strict=True)
        )
        yield f"| {name} |" + "".join(f" {cell} |" for cell in cells)
    yield "none: the device takes no such schedule"
    for device, found in results.items():
        outcomes = Counter(answer["outcome"] for answer in found)
        said = ", ".join(f"{outcomes[x]} {x}" for x in (*BUILT, "refused", *FAILURES))
        yield f"{device}: {len(found)} schedules: {said}"


def main() -> int:
    """Read the command line; return whether a schedule failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=2000, help="to be built for CPUs")
    parser.add_argument("--simt", type=int, default=500, help="to be built for GPUs")
    parser.add_argument("--each", type=int, default=0, help="of a layout or directive, to be built")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file for the results, a line each")
    parser.add_argument("--only", nargs=2, metavar=("DEVICE", "SEED"))
    parser.add_argument("--least", nargs=2, metavar=("DEVICE", "SEED"))
    options = parser.parse_args()
    if options.only:
        found = check(options.only[0], int(options.only[1]))
        print(drawn(options.only[0], int(options.only[1]))[1])
        print(*(f"{key}: {value}" for key, value in found.items()), sep="\n")
        return int(found["outcome"] in FAILURES)
    if options.least:
        device, (name, sch, _) = options.least[0], drawn(options.least[0], int(options.least[1]))
        how = outcome(device, name, sch)
        shorter = shorten(sch, lambda other: outcome(device, name, other) == how)
        print(name, how, shorter, shorter.to_json(), sep="\n")
        return int(bool(how))
    results = {}
    for device, wanted in zip(DEVICES, (options.schedules, options.simt), strict=True):
        trial = Trial(device, wanted, options.seed, options.json)
        trial.run(options.processes)
        results[device] = trial.found
    seldom = list(rare(results, options.each))
    print(*table(results), *seldom, sep="\n")
    failed = any(x["outcome"] in FAILURES for found in results.values() for x in found)
    return int(failed or bool(seldom))


if __name__ == "__main__":
    sys.exit(main())
