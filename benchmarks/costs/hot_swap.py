"""Say what a retrained model takes until it predicts: CPU milliseconds of each stop on the way.

    python -m benchmarks costs.hot_swap [--kinds K ...] [--times N]

Models of a kind have the same hyperparameters and other rows, as if one were trained again and
again. The first of them fills what a process keeps; the others are timed, each stop on its own, and
the least of all times is told, since other work on the machine only adds to them:

    object, UBJSON, JSON, text    from a Booster, or from the bytes of a file, to a Forest
    signature                     the digest by which caches know a model
    choose                        the default schedules
    pack                          the arrays of all layouts that these ask for
    lay out, lower, compile       code and arrays, where no cache has the code
    bind                          a predictor, given code and arrays
    first row                     its first prediction
    find                          a build of the very model again, all of it found in the cache
    swap from ...                 all of it: a build of a model whose kind the cache knows, and its
                                  first prediction; as in a service, the one before predicts until
                                  then
    of a known kind               how many of the models that is
    pylignum ...                  where it is installed: its way from JSON or text to a first row
    N rows, ...                   microseconds of a row in batches of N from then on, ours and
                                  pylignum's, on one thread, in turns

Every model predicts what its library does, to the bit, or nothing is told.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tvm_forest
from benchmarks.checks import compare
from tvm_forest.compiler import compile_forest
from tvm_forest.frontends import load
from tvm_forest.layouts.laying_out import LaidOut, lay_out
from tvm_forest.layouts.laying_out.request import BuildRequest
from tvm_forest.predictor.predictor import Predictor
from tvm_forest.search.heuristic import default_schedules
from tvm_forest.system.code_cache import OFF, VARIABLE
from tvm_forest.target import parse_target

STOPS = (
    *("object", "UBJSON", "JSON", "text", "signature", "choose", "pack"),
    *("lay out, lower, compile", "bind", "first row", "find"),
    *(f"swap from {name}" for name in ("object", "UBJSON", "JSON", "text")),
    "of a known kind",
    "pylignum from JSON or text",
    *(f"{rows} rows, {name}, us a row" for rows in (1, 64, 4096) for name in ("ours", "pylignum")),
)
COMPILE = STOPS[7]

MODELS = 3
"""Models of a kind that are timed."""

ROWS, CHECKED = 3000, 64
"""Rows that a model is trained with, and rows on which it is compared with its library."""


class Kind(NamedTuple):
    """Hyperparameters.

    Attributes:
        library: "xgboost" or "lightgbm".
        trees: how many.
        size: greatest depth of XGBoost's trees, leaves of LightGBM's.
        features: columns of a row.
    """

    library: str
    trees: int
    size: int
    features: int = 30


KINDS = {
    "xgboost 100x6": Kind("xgboost", 100, 6),
    "xgboost 300x8": Kind("xgboost", 300, 8, 28),
    "xgboost 1000x6": Kind("xgboost", 1000, 6),
    "lightgbm 100x31": Kind("lightgbm", 100, 31),
}


class Trained(NamedTuple):
    """A model.

    Attributes:
        sources: what can be loaded, by name.
        rows: some of those that it was trained with.
        margins: what its library predicts of them.
    """

    sources: dict[str, Any]
    rows: Any
    margins: Any


def train(kind: Kind, seed: int) -> Trained:
    """Train a model of a kind with rows of its own."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(ROWS, kind.features)).astype(np.float32)
    answer = rows[:, 0] * rows[:, 1] + np.sin(2 * rows[:, 2]) + rng.normal(size=ROWS) / 2
    if kind.library == "lightgbm":
        import lightgbm

        params = {"num_leaves": kind.size, "num_threads": 1, "verbose": -1}
        model = lightgbm.train(params, lightgbm.Dataset(rows, answer), kind.trees)
        text = model.model_to_string().encode()
        return Trained(
            {"object": model, "text": text}, rows[:CHECKED], model.predict(rows[:CHECKED])
        )
    import xgboost

    # One thread: others would wait by running on while the model is saved, which is CPU time, too.
    params = {"max_depth": kind.size, "eta": 0.1, "nthread": 1}
    model = xgboost.train(params, xgboost.DMatrix(rows, answer), kind.trees)
    files = {
        name: bytes(model.save_raw(raw)) for name, raw in (("UBJSON", "ubj"), ("JSON", "json"))
    }
    return Trained(
        {"object": model, **files}, rows[:CHECKED], model.inplace_predict(rows[:CHECKED])
    )


class Laps:
    """The least CPU milliseconds of each stop."""

    def __init__(self) -> None:
        self.least: dict[str, float] = {}

    def time(self, stop: str, call: Callable[[], Any]) -> Any:
        """Time a call, and return what it gives."""
        begin = time.process_time()
        given = call()
        taken = 1000 * (time.process_time() - begin)
        self.least[stop] = min(taken, self.least.get(stop, taken))
        return given


def prepare(laps: Laps, trained: Trained) -> tuple[BuildRequest, LaidOut]:
    """Time what numpy does between a model and its arrays."""
    target = parse_target("llvm")
    forest = None
    for name, source in trained.sources.items():
        forest = laps.time(name, lambda source=source: load(source))
    laps.time("signature", lambda: forest.signature)
    schedules = laps.time("choose", lambda: default_schedules(forest, target))
    request = BuildRequest.of(forest, schedules, target)
    return request, laps.time("pack", lambda: lay_out(request))


def run(laps: Laps, trained: Trained, times: int) -> None:
    """Time all stops of a model, and compare what it predicts at the last."""
    os.environ[VARIABLE] = OFF  # a retrained model is in no cache
    for _ in range(times):
        request, laid_out = prepare(laps, trained)
    with tempfile.TemporaryDirectory() as folder:  # which holds no code
        os.environ[VARIABLE] = folder
        compiled = laps.time(COMPILE, lambda: compile_forest(request))
        compiled = compiled._replace(arguments=laid_out.arguments)
        predictor = laps.time("bind", lambda: Predictor(request.settled(), compiled))
        laps.time("first row", lambda: predictor.predict(trained.rows[:1]))
        source = next(iter(trained.sources.values()))
        tvm_forest.build(source)
        laps.time("find", lambda: tvm_forest.build(source))
    check(predictor, trained)


def check(predictor: Predictor, trained: Trained) -> None:
    """Stop if a predictor is not that of a model."""
    found = compare(predictor.predict_margin(trained.rows), trained.margins.reshape(CHECKED, -1))
    if found["equal"] < CHECKED:
        raise SystemExit(f"the model is wrong: {found}")


def swap(laps: Laps, first: Trained, others: list[Trained], times: int) -> None:
    """Time models that come after one of their kind."""
    laps.least["of a known kind"] = 0

    def build(source: Any) -> Predictor:
        predictor = tvm_forest.build(source)
        predictor.predict(first.rows[:1])
        return predictor

    with tempfile.TemporaryDirectory() as folder:
        os.environ[VARIABLE] = folder
        running = build(next(iter(first.sources.values())))
        for trained in others:
            known = count_code(Path(folder))
            running = build(next(iter(trained.sources.values())))
            check(running, trained)
            if count_code(Path(folder)) > known:  # it was compiled
                continue
            laps.least["of a known kind"] += 1
            for name, source in (x for x in trained.sources.items() for _ in range(times)):
                running = laps.time(f"swap from {name}", lambda source=source: build(source))


def compare_with_lignum(laps: Laps, trained: Trained, times: int) -> None:
    """Time pylignum's first row, and rows of both from then on; nothing if it is not there."""
    try:
        import lignum
    except ImportError:
        return
    form = "JSON" if "JSON" in trained.sources else "text"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.json" if form == "JSON" else "model.txt")
        path.write_bytes(trained.sources[form])

        def start() -> Any:
            model = lignum.load(str(path))
            model.predict(trained.rows[:1].astype(np.float64), n_jobs=1)
            return model

        for _ in range(times):
            peer = laps.time("pylignum from JSON or text", start)
        ours = tvm_forest.build(path, n_jobs=1)
    rng, width = np.random.default_rng(0), trained.rows.shape[1]
    for count in (1, 64, 4096):
        batches = rng.normal(size=(max(2, 4096 // count), count, width)).astype(np.float32)
        wide = batches.astype(np.float64)
        for _ in range(2 * times):  # `time` tells milliseconds of a call for all batches
            scale = 1000 / (len(batches) * count)
            for name, rows, call in (
                ("ours", batches, ours.predict),
                ("pylignum", wide, lambda rows: peer.predict(rows, n_jobs=1)),
            ):
                laps.time(f"{count} rows, {name}, us a row", lambda c=call, r=rows: [*map(c, r)])
        for name in ("ours", "pylignum"):
            laps.least[f"{count} rows, {name}, us a row"] *= scale


def count_code(folder: Path) -> int:
    """Count the entries of a cache that hold machine code."""
    return sum(b"code.so" in entry.read_bytes() for entry in folder.iterdir())


def measure(kind: Kind, times: int) -> dict[str, float]:
    """Return the milliseconds of each stop."""
    first, *others = (train(kind, seed) for seed in range(MODELS + 1))
    run(Laps(), first, 1)
    laps = Laps()
    for trained in others:
        run(laps, trained, times)
    swap(laps, first, others, times)
    compare_with_lignum(laps, first, times)
    return laps.least


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--times", type=int, default=5, help="times of each stop (default: 5)")
    chosen = parser.parse_args()
    found = {name: measure(KINDS[name], chosen.times) for name in chosen.kinds}
    print("| CPU ms | " + " | ".join(found) + " |\n|---|" + "---:|" * len(found))
    for stop in STOPS:
        cells = (f"{laps[stop]:.3g}" if stop in laps else "" for laps in found.values())
        print(f"| {stop} | " + " | ".join(cells) + " |")
