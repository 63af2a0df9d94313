"""Damaged models of CatBoost, as JSON and `.cbm`, and folders of YDF.

`CHECKS` maps a kind to what draws an input, tries it and says what became of it. CatBoost reads a
`.cbm` file itself, and YDF its folder: what ends the process meanwhile is theirs.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import catboost
import numpy as np
import ydf

import _path  # noqa: F401 (what tests share)
import catboost_models
import tvm_forest
from fuzz_files import (
    MOST_FEATURES,
    N_ROWS,
    Phase,
    check_message,
    compared,
    damaged_bytes,
    damaged_json,
    memory_folder,
)
from tvm_forest.errors import ModelFormatError, UnsupportedModel
from tvm_forest.forest.probe_rows import given_rows, hard_rows
from tvm_forest.frontends.ydf.columns import find_sayable, to_columns
from tvm_forest.predictor.inputs import to_rows

_LONG = re.compile(rb"-?\d+\.\d{9,}")
NAMES = ("regressor", "missing_above", "depthwise", "classes", "targets", "categories", "one_hot")


@lru_cache
def catboost_files(form: str) -> list[bytes]:
    """Small models as JSON or `.cbm`."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            model = catboost_models.MODELS[name]()
            path = Path(folder, f"model.{form}")
            model.save_model(str(path), format=form)
            data = path.read_bytes()
            found.append(data if form == "cbm" else _LONG.sub(_shorten, data))
    return found


def _shorten(number: re.Match[bytes]) -> bytes:
    """Write fewer digits, which CatBoost reads as they are."""
    return repr(round(float(number[0]) * 1024) / 1024).encode()


def check_catboost(form: str, damage: Callable[..., bytes], rng: random.Random, said: Phase) -> str:
    """Load a damaged file; where we and CatBoost take it, margins are equal."""
    data = damage(rng.choice(catboost_files(form)), rng)
    with tempfile.NamedTemporaryFile(suffix=f".{form}", dir=memory_folder()) as file:
        file.write(data)
        file.flush()
        said("ours")
        try:
            with _told(said, catboost.CatBoost, "load_model", "save_model"):
                forest = tvm_forest.load(file.name)
        except (ModelFormatError, UnsupportedModel) as error:
            check_message(str(error))
            return "refused"
        if forest.row_width > MOST_FEATURES:
            return "taken"
        rows = hard_rows(forest, N_ROWS)
        given = rows if forest.encoder is None else given_rows(forest, rows)
        sums = forest.predict_reference(to_rows(given, forest))
        said("library")
        return compared(forest, sums, rows, lambda: _margins(file.name, form, given))


@contextmanager
def _told(said: Phase, holder: Any, *names: str) -> Iterator[None]:
    """Say so while functions of a library run."""

    def telling(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            said("library")
            try:
                return function(*arguments, **options)
            finally:
                said("ours")

        return call

    with ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(holder, name, telling(getattr(holder, name))))
        yield


def _margins(path: str, form: str, rows: Any) -> Any:
    model = catboost.CatBoost().load_model(path, format=form)
    if form == "json":
        _check_numbers(model, json.loads(Path(path).read_bytes()))
    return catboost_models.margins(model, rows).reshape(len(rows), -1)


def _check_numbers(model: Any, document: Any) -> None:
    """Give up where CatBoost reads other numbers than JSON says: it rounds long ones wrongly."""
    written = [x for tree in document.get("oblivious_trees", ()) for x in tree["leaf_values"]]
    stack = list(document.get("trees", ()))
    while stack:
        node = stack.pop()
        stack += [node[side] for side in ("left", "right") if side in node]
        written += np.ravel(node.get("value", ())).tolist()
    scale, bias = document["scale_and_bias"]
    read = [np.sort(model.get_leaf_values()), *map(np.ravel, model.get_scale_and_bias())]
    pairs = zip(read, (np.sort(written), [scale], np.ravel(bias)), strict=True)
    if not all(np.array_equal(a, b) for a, b in pairs):
        raise NotImplementedError("CatBoost reads other numbers than are written")


# -- YDF ------------------------------------------------------------------------------------------


@lru_cache
def folders() -> list[dict[str, bytes]]:
    """Saved models, file by file."""
    rng = np.random.default_rng(1)
    columns = {
        "a": rng.normal(size=300).astype(np.float32),
        "b": np.where(rng.random(300) < 0.1, np.nan, rng.normal(size=300)).astype(np.float32),
        "c": rng.choice(["x", "y", "z", ""], 300),
    }
    real = (2 * columns["a"] + (columns["c"] == "x")).astype(np.float32)
    found = []
    ydf.verbose(0)
    for learner, target, task in (
        ("GradientBoostedTreesLearner", real, "REGRESSION"),
        ("RandomForestLearner", np.where(real > 0, "no", "yes"), "CLASSIFICATION"),
    ):
        made = getattr(ydf, learner)(
            label="label", task=ydf.Task[task], num_trees=4, max_depth=4, num_threads=1
        )
        model = made.train(columns | {"label": target}, verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            model.save(folder + "/model")
            found.append({file.name: file.read_bytes() for file in Path(folder, "model").iterdir()})
    return found


def check_folder(rng: random.Random, said: Phase) -> str:
    """Load a folder of which a file is damaged or missing."""
    files = dict(rng.choice(folders()))
    name = rng.choice(sorted(files))
    if rng.random() < 0.05:
        del files[name]
    else:
        files[name] = damaged_bytes(files[name], rng)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        said("ours")
        try:
            with _told(said, ydf, "load_model"):
                forest = tvm_forest.load(folder)
        except (ModelFormatError, UnsupportedModel) as error:
            check_message(str(error))
            return "refused"
        source = ydf.load_model(folder)
    if forest.link != "identity" or forest.row_width > MOST_FEATURES:
        return "taken"
    rows = hard_rows(forest, N_ROWS)
    for i, labels in forest.category_names.items():
        rows[:, i] = rng.randrange(max(1, len(labels)))
    rows = rows[find_sayable(forest, source, rows)]
    sums = forest.predict_reference(rows)
    said("library")
    return compared(forest, sums, rows, lambda: _answers(forest, source, rows))


def _answers(forest: Any, source: Any, rows: Any) -> Any:
    found = source.predict(to_columns(forest, source, rows), num_threads=1)
    if forest.n_outputs == 2 and found.ndim == 1:
        raise NotImplementedError("YDF tells the second of two classes")
    return found.reshape(len(rows), -1)


def _of(form: str, damage: Any) -> Callable[..., str]:
    return lambda rng, said: check_catboost(form, damage, rng, said)


CHECKS: dict[str, Callable[..., str]] = {
    "catboost bytes": _of("json", damaged_bytes),
    "catboost values": _of("json", damaged_json),
    "cbm bytes": _of("cbm", damaged_bytes),
    "ydf folders": check_folder,
}


def prepare() -> None:
    """Train the models."""
    catboost_files("json")
    catboost_files("cbm")
    folders()
