"""Rows of a large Parquet file: memory, speed beside reading alone, and what a kill leaves.

    python -m benchmarks features.streams --rows 10000000 --folder /tmp/streams

Draws a file of 28 float32 columns and a number for each row, trains a model of XGBoost on some of
them, and measures in processes of their own, by turns: reading alone (the same batches by pyarrow),
reading with conversion, and the command `tvm-forest predict`. Predictions of some rows are compared
with XGBoost's. Then the command is killed (SIGKILL) half-way. Removes the folder at the end.

    python -m benchmarks features.streams --step csv sparse

measures rows of CSV a second of processor time, as they are read by Python and by pyarrow, by
turns, and the time and the memory that a sparse matrix of 20,000 x 5,000 takes.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

FEATURES = 28
STEPS = ["make", "measure", "kill", "remove", "csv", "sparse"]
STEP = 500_000
PEAK = """
from pathlib import Path
lines = Path("/proc/self/status").read_text().splitlines()  # ru_maxrss counts the parent's as well
peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
print(json.dumps({"rows": rows, "seconds": seconds, "peak_mb": peak / 1024}))
"""
READ = (
    """
import json, sys, time
from pyarrow import parquet
begin = time.perf_counter()
rows = 0
with parquet.ParquetFile(sys.argv[1], pre_buffer=False, buffer_size=1 << 16) as file:
    for batch in file.iter_batches(65536):
        rows += batch.num_rows
seconds = time.perf_counter() - begin
"""
    + PEAK
)
PREDICT = (
    """
import json, sys, time
import tvm_forest
predictor = tvm_forest.load_predictor(sys.argv[2])
begin = time.perf_counter()
rows = tvm_forest.predict_file(predictor, sys.argv[1], sys.argv[3], ["id"], kind="predict")
seconds = time.perf_counter() - begin
"""
    + PEAK
)
MEMORY = """
import sys, time
import numpy as np, tvm_forest
predictor = tvm_forest.load_predictor(sys.argv[1])
rows = np.random.default_rng(1).normal(size=(65536, 28)).astype(np.float32)
predictor.predict(rows)
begin = time.perf_counter()
for _ in range(20):
    predictor.predict(rows)
print(20 * len(rows) / (time.perf_counter() - begin))
"""


CSV_ROWS = {10: 100_000, 28: 50_000}
SPARSE = """
import json, sys, time
import numpy as np, scipy.sparse, tvm_forest, xgboost
draw = dict(density=0.01, format="csr", dtype=np.float32)
rows = scipy.sparse.random(20_000, 5_000, random_state=1, **draw)
labels = np.asarray(rows[:, :50].sum(1)).ravel() > 0.1
data = xgboost.DMatrix(rows[:2000], labels[:2000])
booster = xgboost.train({"objective": "binary:logistic", "max_depth": 6, "nthread": 2}, data, 100)
predictor = tvm_forest.build(booster)
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
found, seconds = {}, {}
predictor.predict(rows[:1])
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak begins anew
before = peak()
for name, call in (("ours", predictor.predict), ("XGBoost", booster.inplace_predict)):
    found[name] = call(rows)
    if name == "ours":
        grown = peak() - before
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        call(rows)
        times.append(time.perf_counter() - begin)
    seconds[name] = min(times)
assert np.array_equal(found["ours"], found["XGBoost"])
print(json.dumps({"grown_mb": grown, **seconds}))
"""


def read_csv(data: bytes, forest: Any, with_arrow: bool) -> float:
    """Return how many rows of CSV are read in a second of processor time."""
    from unittest import mock

    from tvm_forest.streams import text_blocks
    from tvm_forest.streams.batches import choose_columns
    from tvm_forest.streams.formats import Reading
    from tvm_forest.streams.separated_rows import SeparatedRows

    reading = Reading(keep=("id",))
    with mock.patch.object(text_blocks, "has_arrow", lambda: with_arrow):
        begin = time.process_time()
        rows = SeparatedRows(io.BufferedReader(io.BytesIO(data)), "rows", forest, reading)
        columns = choose_columns(rows.names, forest, reading, "rows")
        count = sum(batch.length for batch in rows.batches(columns, 65536))
        return count / (time.process_time() - begin)


def measure_csv(turns: int) -> None:
    """Read float32 numbers with all their digits, as pandas writes them, beside an id."""
    import pandas
    import xgboost

    import tvm_forest

    for width, count in CSV_ROWS.items():
        rows = np.random.default_rng(0).standard_normal((count, width), np.float32)
        frame = pandas.DataFrame(rows, columns=[f"f{i}" for i in range(width)])
        data = xgboost.DMatrix(frame[:500], rows[:500, 0])
        forest = tvm_forest.load(xgboost.train({"max_depth": 3, "nthread": 1}, data, 3))
        frame.insert(0, "id", range(count))
        text = frame.to_csv(index=False).encode()
        speeds: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(2 * max(turns, 3)):
            speeds[turn % 2 == 1].append(read_csv(text, forest, turn % 2 == 1))
        alone, arrow = (float(np.median(x)) / 1e3 for x in speeds.values())
        print(f"{count:,} rows of {width} columns, {len(text) / count:.0f} bytes each: ", end="")
        print(f"Python {alone:,.0f}, pyarrow {arrow:,.0f} thousand rows a CPU second, ", end="")
        print(f"{arrow / alone:.1f} times")


def measure_sparse() -> None:
    seen = measure(SPARSE)
    seconds = f"{seen['ours']:.3f} s, XGBoost {seen['XGBoost']:.3f} s, equal"
    print(f"sparse, 20,000 x 5,000, 1 %: {seconds}; {seen['grown_mb']:.0f} MB beyond the matrix")


def draw_rows(rng: np.random.Generator, count: int) -> Any:
    return rng.standard_normal((count, FEATURES), np.float32)


def make_file(path: Path, n_rows: int, seed: int) -> None:
    """Draw rows part by part, so that no more than one part is in memory."""
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(seed)
    names = [f"f{i}" for i in range(FEATURES)]
    schema = pa.schema([("id", pa.int64()), *((name, pa.float32()) for name in names)])
    with parquet.ParquetWriter(path, schema) as writer:
        for begin in range(0, n_rows, STEP):
            rows = draw_rows(rng, min(STEP, n_rows - begin))
            columns = [np.arange(begin, begin + len(rows)), *rows.T]
            writer.write_table(pa.Table.from_arrays([pa.array(x) for x in columns], schema=schema))


def make_model(folder: Path, trees: int) -> Any:
    """Train a model, and save it and its predictor."""
    import xgboost

    import tvm_forest

    rows = draw_rows(np.random.default_rng(7), 20_000)
    labels = rows[:, 0] * rows[:, 1] + np.sin(rows[:, 2]) > 0.3
    names = [f"f{i}" for i in range(FEATURES)]
    data = xgboost.DMatrix(rows, labels, feature_names=names)
    parameters = {"objective": "binary:logistic", "max_depth": 6, "nthread": 2}
    booster = xgboost.train(parameters, data, trees)
    booster.save_model(folder / "model.json")
    tvm_forest.build(booster).save(folder / "model.tvmf")
    return booster


def measure(program: str, *arguments: Path) -> dict[str, float]:
    """Run a program in a process of its own, and return what it prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def check(folder: Path, booster: Any, seed: int) -> int:
    """Compare the first rows with XGBoost, and all numbers of rows; return how many there are."""
    import xgboost
    from pyarrow import parquet

    found = parquet.read_table(folder / "out.parquet")
    rows = draw_rows(np.random.default_rng(seed), min(STEP, len(found)))[:20_000]
    names = [f"f{i}" for i in range(FEATURES)]
    expected = booster.predict(xgboost.DMatrix(rows, feature_names=names))
    assert np.array_equal(found["prediction"].to_numpy()[: len(rows)], expected)
    assert np.array_equal(found["id"].to_numpy(), np.arange(len(found)))
    return len(found)


def kill_half_way(folder: Path, after_s: float) -> None:
    """Kill the command, and say what is left."""
    (folder / "killed").mkdir()
    target = folder / "killed" / "out.parquet"
    model, rows = folder / "model.tvmf", folder / "rows.parquet"
    command = [sys.executable, "-m", "tvm_forest", "predict", str(model), str(rows)]
    process = subprocess.Popen([*command, "-o", str(target), "--keep", "id"])
    drafts: list[Path] = []
    while not drafts or not drafts[0].stat().st_size:  # until something is written
        time.sleep(0.05)
        drafts = list(target.parent.glob(".*.draft"))
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = {path.name: path.stat().st_size for path in target.parent.iterdir()}
    assert not target.exists()
    print(f"killed: status {process.returncode}; left {left}; no {target.name}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--trees", type=int, default=300)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/streams"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step", choices=STEPS, nargs="*")
    options = parser.parse_args()
    folder, steps = options.folder, options.step or ["make", "measure", "kill", "remove"]
    rows = folder / "rows.parquet"
    if "csv" in steps:
        measure_csv(options.turns)
    if "sparse" in steps:
        measure_sparse()
    if "make" in steps:
        folder.mkdir(parents=True, exist_ok=True)
        make_model(folder, options.trees)
        make_file(rows, options.rows, options.seed)
        print(f"{options.rows:,} rows, {rows.stat().st_size / 1e6:,.0f} MB")
    if "measure" in steps:
        for _ in range(options.turns):
            speed = float(measure(MEMORY, folder / "model.tvmf"))  # type: ignore[arg-type]
            print(f"in memory: {speed / 1e3:,.0f} thousand rows a second")
            arguments = (rows, folder / "model.tvmf", folder / "out.parquet")
            for name, program in {"reading alone": READ, "predict_file": PREDICT}.items():
                seen = measure(program, *arguments)
                speed = seen["rows"] / seen["seconds"] / 1e3
                size = f"{seen['rows']:,} rows, {seen['seconds']:.1f} s, {speed:,.0f} k/s"
                print(f"{name}: {size}, peak {seen['peak_mb']:,.0f} MB")
        import xgboost

        booster = xgboost.Booster(model_file=folder / "model.json")
        print(f"equal to XGBoost's; {check(folder, booster, options.seed):,} rows in order")
    if "kill" in steps:
        kill_half_way(folder, 1.0)
    if "remove" in steps:
        shutil.rmtree(folder)
