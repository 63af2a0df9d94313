"""What of the package runs on a system: builds, predicts, compares, stores and exports a model.

python tools/platform_features.py                           # one line for each; fails if one does
python tools/platform_features.py --make FOLDER MTRIPLE     # here, libraries for another system
python tools/platform_features.py --library FOLDER          # there: runs them, too

Models are drawn, so no training library is needed, and the reference walk says what is right.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import _path  # noqa: F401 (what tests share)

FOLDER = Path(tempfile.mkdtemp())
os.environ["TVM_FOREST_CACHE"] = str(FOLDER / "cache")  # an empty one, before it is looked for

import numpy as np  # noqa: E402

import tvm_forest  # noqa: E402
from exported import Library  # noqa: E402
from forests import drawn_forest  # noqa: E402
from tvm_forest.forest.probe_rows import hard_rows  # noqa: E402
from tvm_forest.target import Target, cpu_name, cpu_vendor  # noqa: E402

FOREST = drawn_forest(60, 5, seed=4, n_features=8, base=(0.5,), link="sigmoid")
ROWS = hard_rows(FOREST, 600, seed=1)
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
SAVED = FOLDER / "model.tvmf"


def same(predictor: Any, **options: Any) -> str:
    """Compare margins, leaves and values; these may differ by the last bits of an exponential."""
    margin, value = predictor.predict_margin(ROWS, **options), predictor.predict(ROWS, **options)
    expected = FOREST.predict_reference(ROWS)
    assert margin.tobytes() == expected.reshape(margin.shape).tobytes(), "margins differ"
    nearly = FOREST.predict_reference(ROWS, "value").reshape(value.shape)
    np.testing.assert_allclose(value, nearly, rtol=1e-6)
    return f"{len(ROWS)} margins equal"


def name_machine() -> str:
    target = Target()
    known = sorted(x for x in target.abilities or () if x in ("neon", "avx2", "avx512f"))
    return f"{cpu_name()} of {cpu_vendor() or 'no maker'}, {target.cores} cores, {', '.join(known)}"


def build() -> str:
    return same(tvm_forest.build(FOREST))


def build_plain() -> str:
    return same(tvm_forest.build(FOREST, schedule=lambda start: start))


def share_rows() -> str:
    return same(tvm_forest.build(FOREST), n_jobs=2)


def find_leaves() -> str:
    found = tvm_forest.build(FOREST).apply(ROWS)
    assert np.array_equal(found, FOREST.predict_reference(ROWS, "apply")), "leaves differ"
    return "leaves equal"


def save() -> str:
    tvm_forest.build(FOREST).save(SAVED)
    return f"{SAVED.stat().st_size} bytes"


def load() -> str:
    return same(tvm_forest.load_predictor(SAVED))


def save_again() -> str:
    """Windows replaces no file that is open."""
    with open(SAVED, "rb") as file:
        head = file.read(8)
        try:
            tvm_forest.build(FOREST).save(SAVED)
        except tvm_forest.InputError as error:
            return f"refused: {error}"
    return f"replaced while open, {head[:2]!r}"


def keep_code() -> str:
    kept = [x for x in (FOLDER / "cache").rglob("*") if x.is_file()]
    assert kept, "nothing is kept"
    return f"{len(kept)} files; {same(tvm_forest.build(FOREST))}"


def export() -> str:
    """Values of a library are those of the package to the bit, where this calls glibc."""
    file = FOLDER / f"model{SUFFIX}"
    made = tvm_forest.build(FOREST)
    made.export_library(file)
    margin, value = Library(file, FOREST).predict(ROWS, n_jobs=2)
    expected = made.predict(ROWS).reshape(value.shape)
    assert margin.tobytes() == FOREST.predict_reference(ROWS).reshape(margin.shape).tobytes()
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    return f"margins equal, values equal {(value == expected).sum()} of {value.size}"


LINKS = {"sigmoid": "float32", "logistic": "float64"}
"""Links of libraries that are made elsewhere, with their dtype."""


def forest_of_link(link: str) -> Any:
    dtype = LINKS[link]
    return drawn_forest(60, 5, seed=4, n_features=8, base=(0.5,), link=link, dtype=dtype)


def make_libraries(folder: Path, triple: str) -> None:
    """Write libraries for a machine, with rows and what they give here, where glibc is called."""
    folder.mkdir(parents=True, exist_ok=True)
    suffix = ".dll" if "windows" in triple else ".so"
    target = {"kind": "llvm", "mtriple": triple}
    for link in LINKS:
        forest = forest_of_link(link)
        drawn = np.random.default_rng(1).normal(size=(20_000, 8))
        rows = np.concatenate([hard_rows(forest, 600, seed=1), drawn]).astype(forest.row_dtype)
        begin = tvm_forest.new_schedule(forest)
        tvm_forest.build(forest, target, begin).export_library(folder / f"{link}{suffix}")
        here = tvm_forest.build(forest, schedule=begin)
        given = {"rows": rows, "margin": here.predict_margin(rows), "value": here.predict(rows)}
        np.savez(folder / f"{link}.npz", **given)


def run_library() -> str:
    """Values are those of the package beside glibc, to the bit."""
    folder, said = Path(sys.argv[sys.argv.index("--library") + 1]), []
    for link in LINKS:
        with np.load(folder / f"{link}.npz") as given:
            rows, margin, value = (given[name] for name in ("rows", "margin", "value"))
        for n_jobs in (1, 2):
            library = Library(folder / f"{link}{SUFFIX}", forest_of_link(link))
            found = [x.ravel() for x in library.predict(rows, n_jobs=n_jobs)]
            assert found[0].tobytes() == margin.tobytes(), f"margins of {link} differ"
            differ = int((found[1] != value.ravel()).sum())
            assert not differ, f"{differ} of {len(rows)} values of {link} differ"
        said.append(f"{len(rows)} margins and values of {link} equal")
    return ", ".join(said)


def export_sources() -> str:
    tvm_forest.build(FOREST).export_library(FOLDER / "model.zip")
    return f"{(FOLDER / 'model.zip').stat().st_size} bytes"


def run(feature: Callable[[], str]) -> bool:
    """Run a feature, and print how it went."""
    begin, name = time.monotonic(), feature.__name__.replace("_", " ")
    try:
        said, is_fine = feature(), True
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        said, is_fine = f"FAILED at {where}: {type(error).__name__}: {error!s:.400}", False
    print(f"{name}: {said} ({time.monotonic() - begin:.1f} s)", flush=True)
    return is_fine


FEATURES = [name_machine, build, build_plain, share_rows, find_leaves, save, load, save_again]
FEATURES += [keep_code, export_sources]

if __name__ == "__main__":
    if "--make" in sys.argv:
        sys.exit(make_libraries(Path(sys.argv[-2]), sys.argv[-1]))
    FEATURES.append(run_library if "--library" in sys.argv else export)
    print(f"{sys.platform}, Python {sys.version.split()[0]}, ziglang: {bool(find_spec('ziglang'))}")
    sys.exit(not all([run(feature) for feature in FEATURES]))
