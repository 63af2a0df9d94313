"""A model and rows for the tests of clusters, and a worker that is killed once.

Rows have the columns of the model in another order, among others; missing values are nulls.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xgboost
from pyarrow import parquet

import tvm_forest
from tvm_forest.forest.probe_rows import hard_rows

NAMES = ["age", "income", "debt"]
CITIES = ["Oslo", "Rome", "Lima"]
N_ROWS = 240
PAGE = Path(__file__).resolve().parents[2] / "docs" / "clusters.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
(COMMAND,) = re.findall(r"^```sh\n(.*)\n```$", PAGE.read_text(), re.MULTILINE)


@lru_cache
def model() -> Any:
    """A Booster with names, whose last feature is a category."""
    import pandas as pd

    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 3)).astype(np.float32), columns=NAMES)
    frame["city"] = pd.Categorical(rng.choice(CITIES, 300))
    answer = frame["age"] * frame["income"] + (frame["city"] == "Rome") > 0.2
    data = xgboost.DMatrix(frame, answer, enable_categorical=True)
    parameters = {"objective": "binary:logistic", "max_depth": 4, "nthread": 1}
    return xgboost.train(parameters, data, 5)


def build_fast(model: Any) -> Any:
    """Compile a model by the schedule that compiles in the shortest time."""
    return tvm_forest.build(model, schedule=tvm_forest.new_schedule(model))


@lru_cache
def predictor() -> Any:
    return build_fast(model())


@lru_cache
def table() -> pa.Table:
    """Hard rows, and texts for the codes of categories."""
    rows = hard_rows(predictor().forest, N_ROWS, 1)
    columns = {name: pa.array(rows[:, i], from_pandas=True) for i, name in enumerate(NAMES)}
    rng = np.random.default_rng(2)
    city = pa.array([None if x == 3 else CITIES[x] for x in rng.integers(4, size=N_ROWS)])
    ids, notes = pa.array(np.arange(N_ROWS)), pa.array(["ü"] * N_ROWS)
    return pa.table({"id": ids, "city": city, "note": notes, **dict(reversed(columns.items()))})


def given() -> pa.Table:
    """The same rows as a Predictor takes them."""
    rows = table().select([*NAMES, "city"])
    return rows.set_column(3, "city", rows["city"].dictionary_encode())


def equal_bits(found: Any, expected: Any) -> bool:
    found, expected = np.asarray(found), np.asarray(expected)
    same = found.dtype == expected.dtype and found.shape == expected.shape
    return bool(same and found.tobytes() == expected.tobytes())


def check_predictions(found: Any, name: str = "prediction") -> None:
    """Compare a frame of pandas or a table with what one process predicts, each row once."""
    frame = found.to_pandas() if isinstance(found, pa.Table) else found
    frame = frame.sort_values("id")
    assert frame["id"].tolist() == list(range(N_ROWS))
    expected = predictor().predict(given(), n_jobs=1)
    assert equal_bits(frame[name].to_numpy(np.float32), expected)


def die_once(flag: Path) -> None:
    """Kill this process, unless a process has been killed."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # until the signal is there


@contextmanager
def worker_paths() -> Iterator[pytest.MonkeyPatch]:
    """Let processes of workers find this package and the tests, however these were started."""
    with pytest.MonkeyPatch.context() as patch:
        for place in (tvm_forest.__file__, __file__):
            folder = Path(place).resolve().parents[place == tvm_forest.__file__]
            patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield patch


def run_blocks(word: str, names: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run the programs of the page that hold a word, beside `model.tvmf` and `rows.parquet`."""
    predictor().save(folder / "model.tvmf")
    parquet.write_table(table(), folder / "rows.parquet")
    blocks = [text for text in BLOCKS if word in text]
    assert blocks
    for text in blocks:
        exec(compile(text, str(PAGE), "exec", dont_inherit=True), names)
    return names
