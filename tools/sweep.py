"""Models drawn from a seed, default and odd options, each compared with its library on hard rows.

    PYTHONPATH=. python tools/sweep.py --library xgboost --models 500 --seed 1 --rows 1000
    PYTHONPATH=. python tools/sweep.py --only xgboost 17     # one model, in this process

Model number S of a library is drawn from the seed S; `--seed 1 --models 500` tries 1 to 500. With
`--json FILE` each result is a line of that file, and models that it has are not tried again. All
are tried in one child process, which is replaced when it crashes or hangs. Every answer must equal
the library's to the bit, values within the bound of their link, and what is refused must be a field
that `docs/support.md` names. Ends with status 1 if a model fails.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import _path  # noqa: F401 (what tests share)
import sweep_catboost
import sweep_lightgbm
import sweep_sklearn
import sweep_xgboost
import sweep_ydf
import tvm_forest
from child import Child, Ended
from drawn_schedules import drawn_schedule
from sweep_drawn import Drawn, pick
from sweep_rows import drawn_rows, in_kind
from tvm_forest.errors import BuildError, ScheduleError, UnsupportedModel
from tvm_forest.forest import Forest
from tvm_forest.forest.rules import LINK_ULPS
from tvm_forest.verification import ulps

LIBRARIES: dict[str, Any] = {
    "xgboost": sweep_xgboost,
    "lightgbm": sweep_lightgbm,
    "scikit-learn": sweep_sklearn,
    "ydf": sweep_ydf,
    "catboost": sweep_catboost,
}
FAILURES = ("wrong", "crash", "hang")
BATCHES = (0, 1, 7, 64)
ATTEMPTS = 60
"""Models that a library may refuse to train, before a seed is given up."""
LIMITS = {"training": 60.0, "ours": 90.0, "comparing": 60.0}
"""Seconds after which a model hangs, by what is being done."""
Said = Callable[[str], None]


class Wrong(Exception):
    """An answer of ours that is not the library's."""


def check(library: str, seed: int, n_rows: int, said: Said = lambda phase: None) -> dict[str, Any]:
    """Draw, compile and compare one model; return what became of it."""
    start = time.perf_counter()
    found: dict[str, Any] = {"library": library, "seed": seed, "outcome": "equal", "why": ""}
    with tempfile.TemporaryDirectory() as folder:
        said("training")
        drawn, rng = drawn_model(library, seed, Path(folder))
        if drawn is None:
            return found | {"outcome": "untrained"}
        found["options"] = drawn.said
        try:
            said("ours")
            _compare(library, drawn, rng, n_rows, said)
        except UnsupportedModel as error:
            named = _is_named(library, error)
            found |= {"outcome": "refused" if named else "wrong", "why": str(error)}
        except Wrong as error:
            found |= {"outcome": "wrong", "why": str(error)}
        except Exception:  # whatever goes wrong is told with its seed, and the next one follows
            found |= {"outcome": "wrong", "why": traceback.format_exc(limit=-4)[-2000:]}
    return found | {"seconds": round(time.perf_counter() - start, 2)}


def drawn_model(library: str, seed: int, folder: Path) -> tuple[Drawn | None, Any]:
    """Draw models until the library trains one."""
    rng = np.random.default_rng([zlib.crc32(library.encode()), seed])
    for _ in range(ATTEMPTS):
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return LIBRARIES[library].drawn_model(rng, folder), rng
        except Exception:  # libraries raise what they like about options that do not fit
            continue
    return None, rng


def _is_named(library: str, error: UnsupportedModel) -> bool:
    field = re.search(r"field '(.*?)'", str(error))
    known = {
        row.name for row in tvm_forest.SUPPORT if (row.library, row.how) == (library, "refused")
    }
    return field is not None and field[1] in known


# -- what is compared -----------------------------------------------------------------------------


def _compare(library: str, drawn: Drawn, rng: Any, n_rows: int, said: Said) -> None:
    forest = tvm_forest.load(drawn.given)
    predictor = _built(forest, rng, drawn.said)
    of = LIBRARIES[library]
    rows = getattr(of, "drawn_rows", drawn_rows)(drawn, forest, rng, n_rows)
    if library == "scikit-learn" and drawn.takes_frames:
        rows = in_kind("frame", drawn, forest, rows)
    said("comparing")
    theirs = compare_answers(drawn, predictor, of, rows)
    for n in BATCHES:
        for name, expected in theirs.items():
            _check(f"{name} of {n} rows", forest, getattr(predictor, name)(rows[:n]), expected, n)
    if library == "scikit-learn" and not drawn.labels:
        _check_refusals(drawn, predictor, rows)
    is_array = isinstance(rows, np.ndarray)
    if is_array and rng.random() < 0.4:
        plain = rows if rows.dtype == object else np.nan_to_num(rows, nan=np.nan)
        _check_leaves(predictor, of, drawn, plain)
    if is_array and rng.random() < 0.4:
        kind = pick(rng, of.kinds_of_rows(drawn))
        drawn.said["kind of rows"] = kind
        convert = getattr(of, "in_kind", in_kind)
        compare_answers(drawn, predictor, of, convert(kind, drawn, forest, rows))
    if drawn.rounds > 1 and rng.random() < 0.2:
        begin = int(rng.integers(0, drawn.rounds))
        part = (begin, int(rng.integers(begin + 1, drawn.rounds + 1)))
        drawn.said["part"] = part
        compare_answers(drawn, predictor, of, rows, part)


def compare_answers(
    drawn: Drawn, predictor: Any, of: Any, rows: Any, part: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Compare all that the library says about rows, by some rounds; return that, or raise Wrong."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        theirs: dict[str, Any] = of.answers(drawn, rows, part)
    count = rows.shape[0]
    for name, expected in theirs.items():
        found = getattr(predictor, name)(rows, iteration_range=part)
        what = f"{name} of {type(rows).__name__}{part or ''}"
        _check(what, predictor.forest, found, expected, count)
    return theirs


def _check_leaves(predictor: Any, of: Any, drawn: Drawn, rows: Any) -> None:
    leaves = of.leaves(drawn, rows)
    if leaves is not None:
        found = predictor.apply(rows)
        _check("apply", predictor.forest, found, np.reshape(leaves, (len(rows), -1)), len(rows))


def _check_refusals(drawn: Drawn, predictor: Any, rows: Any) -> None:
    """Rows are refused where scikit-learn refuses them, and nowhere else."""
    for value in (np.nan, np.inf, 1e39):
        row = np.array(rows[:1], np.float64)
        row[0, -1] = value
        refused = []
        for predict in (predictor.predict, drawn.model.predict):
            try:
                predict(row)
            except ValueError:  # InputError is one
                refused.append(predict)
        if len(refused) == 1:
            raise Wrong(
                f"refused by {'us' if refused[0] == predictor.predict else 'them'}: {value}"
            )


def _check(what: str, forest: Forest, found: Any, expected: Any, count: int) -> None:
    """Raise Wrong unless the answers for the first so many rows are equal, or near enough."""
    if isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            _check(what, forest, one, other, count)
        return
    expected = np.asarray(expected)[:count]
    if found.shape != expected.shape:
        raise Wrong(f"{what}: shape {found.shape}, not {expected.shape}")
    if found.dtype != expected.dtype:
        raise Wrong(f"{what}: dtype {found.dtype}, not {expected.dtype}")
    if found.dtype.kind != "f":
        wrong = found != expected
    else:
        if "proba" in what and forest.n_outputs == 1:  # the other is what 1 lacks
            found, expected = found[:, 1:], expected[:, 1:]
        bound = 0 if "margin" in what else LINK_ULPS[forest.link]
        wrong = ulps(found, expected) > bound
    if wrong.any():
        at = np.unravel_index(np.argmax(wrong), wrong.shape)
        counted = int(wrong.reshape(len(wrong), -1).any(axis=1).sum())
        values = f"row {at[0]}: {found[at]!r}, not {expected[at]!r}"
        raise Wrong(f"{what}: {counted} of {count} rows differ; {values}")


def _built(forest: Forest, rng: Any, said: dict[str, Any]) -> Any:
    """Compile by the default schedule, or for one model in four by a drawn one."""
    draw = random.Random(int(rng.integers(1 << 30)))
    if rng.random() > 0.25:
        return tvm_forest.build(forest)
    sch = start = tvm_forest.new_schedule(forest)
    while sch == start or not sch.keeps_order:
        sch = drawn_schedule(draw, start, forest, most=5)
    said["schedule"] = sch.to_json()
    try:
        return tvm_forest.build(forest, schedule=sch)
    except (ScheduleError, BuildError) as error:  # such as a layout that holds no doubles
        said["schedule"] = f"refused: {error}"
        return tvm_forest.build(forest)


# -- the process that tries, and the one that counts ----------------------------------------------


def _serve(pipe: Connection) -> None:
    """Answer until there is nothing more to try."""
    warnings.simplefilter("ignore")
    while (case := pipe.recv()) is not None:
        pipe.send(check(*case, lambda phase: pipe.send(phase)))


def _tried(child: Child, library: str, seed: int, n_rows: int) -> dict[str, Any]:
    """Try a model in a process of its own."""
    answer = child.tried((library, seed, n_rows))
    if not isinstance(answer, Ended):
        return answer
    how = "untrained" if answer.phase == "training" else answer.how  # that is the library alone
    why = f"while {answer.phase}, exit code {answer.code}"
    return {"library": library, "seed": seed, "outcome": how, "why": why}


def read(path: Path | None) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the results that a file has."""
    if path is None or not path.exists():
        return {}
    entries = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {(entry["library"], entry["seed"]): entry for entry in entries}


def run(
    libraries: list[str], seeds: range, n_rows: int, path: Path | None
) -> Iterator[dict[str, Any]]:
    """Yield what becomes of every model; those that the file has are not tried again."""
    known, child = read(path), Child(_serve, LIMITS)
    for library in libraries:
        for seed in seeds:
            found = known.get((library, seed)) or _tried(child, library, seed, n_rows)
            if path and (library, seed) not in known:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found, default=str, ensure_ascii=False) + "\n")
            yield found
    child.close()


def main() -> int:
    """Read the command line; return whether a model failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=[*LIBRARIES], action="append")
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="file for the results, a line each")
    parser.add_argument("--only", nargs=2, metavar=("LIBRARY", "SEED"))
    options = parser.parse_args()
    if options.only:
        print(
            json.dumps(
                check(options.only[0], int(options.only[1]), options.rows, print),
                default=str,
                indent=1,
                ensure_ascii=False,
            )
        )
        return 0
    counts: Counter[tuple[str, str]] = Counter()
    seeds = range(options.seed, options.seed + options.models)
    for found in run(options.library or [*LIBRARIES], seeds, options.rows, options.json):
        counts[found["library"], found["outcome"]] += 1
        if found["outcome"] != "equal":
            print(found["library"], found["seed"], found["outcome"], found["why"], flush=True)
    for library in options.library or LIBRARIES:
        own = {outcome: n for (of, outcome), n in sorted(counts.items()) if of == library}
        print(
            library, f"{sum(own.values())} models:", ", ".join(f"{n} {o}" for o, n in own.items())
        )
    return int(any(outcome in FAILURES for _, outcome in counts))


if __name__ == "__main__":
    sys.exit(main())
