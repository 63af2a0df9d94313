"""The C that models are exported as, under sanitizers; as a program, says what they find.

    python tools/sanitize.py [--calls 1000000] [--seed 0] [--models 20] [--json FILE]
    make sanitize

Models are exported as packages of sources, which are compiled as `FLAGS` says and linked into one
program, `sanitized.c`: it calls them with rows of which every margin is known, rows of any bits,
bad arguments, odd numbers of names, from many threads, and from libraries that are opened and
closed again. Those for GPUs run on the emulated driver of other tests. A sanitizer that finds
something ends the program. What TVM compiles is not instrumented, so of its reads and writes the
sanitizers see nothing.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import _path  # noqa: F401 (what tests share)
import lightgbm_models
import models
import sklearn_models
import tvm_forest
import xgboost_models
from emulated_cuda import emulated, libcuda
from forests import Split, drawn_forest, forest_of
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.predictor.exporting.package import C_TYPES
from tvm_forest.runtime.results import result_dtype, result_names

PROGRAM = Path(__file__).with_name("sanitized.c")
POOL, LIBRARIES, GPU_MODELS = 200, 3, 3
"""Rows of which the margins are known; models that are also opened and closed again, and models
that are exported for GPUs as well."""
COMMON = ("-std=gnu11", "-g", "-O1", "-fno-omit-frame-pointer", "-pthread", "-Wall", "-Wextra")
FLAGS = {
    "address,undefined": (
        "-fsanitize=address,undefined,float-cast-overflow,float-divide-by-zero",
        "-fno-sanitize-recover=all",
    ),
    "thread": ("-fsanitize=thread",),
}
"""Flags of gcc and clang, by sanitizer."""
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}
EMULATED = re.compile(r"WARNING: ASan doesn't fully support makecontext/swapcontext")
"""What the sanitizer says of the threads of emulated kernels, which are contexts."""
TRAINED: dict[str, Callable[[], Any]] = {
    "categories and missing values of LightGBM": lightgbm_models.MODELS["categories"],
    "zeros that are missing": lightgbm_models.MODELS["missing_zero_and_nan"],
    "sets of categories of XGBoost": xgboost_models.KINDS["categories_in_sets"],
    "names of categories": xgboost_models.KINDS["named_categories"],
    "classes of XGBoost": models.MODELS["softprob"],
    "a forest that refuses infinities": sklearn_models.MODELS["rf"],
    "categories of scikit-learn": sklearn_models.MODELS["hist categories"],
}


def forests(count: int) -> Iterator[Any]:
    """Yield models, drawn ones and trained ones in turn."""
    trained = iter(TRAINED.values())
    names = ("age", 'a "quoted" \\ name??', "naïve\n")
    odd = [Split(0, 0.5, -1.0, 2.0), Split(1, -0.25, 0.5, Split(2, 1.5, 0.25, 4.0), True), 0.125]
    yield forest_of(odd, base=[0.1], feature_names=names, category_names={1: ("low", "", "ü")})
    for k in range(1, count):
        made = next(trained, None) if k % 2 else None
        if made is not None:
            yield tvm_forest.load(made())
            continue
        dtype = "float64" if k % 3 == 0 else "float32"
        base = (0.1, 0.2, 0.3) if k % 4 == 2 else (0.5,)
        yield drawn_forest(
            6 + k, 3, seed=k, n_features=3 + k % 4, dtype=dtype, row_dtype=dtype, base=base
        )


@functools.cache
def compiler() -> str | None:
    """Return a C compiler that has the sanitizers, or None."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "main.c")
        source.write_text("int main(void) { return 0; }\n")
        for name in filter(shutil.which, ("gcc", "clang")):
            flags = [[*FLAGS[kind], str(source), "-o", f"{folder}/main"] for kind in FLAGS]
            runs = (subprocess.run([name, *each], capture_output=True) for each in flags)
            if all(done.returncode == 0 for done in runs):
                return name
    return None


def export(folder: Path, count: int, target: str = "llvm") -> None:
    """Write the packages m0, m1, ..., rows, margins and "models.h" into a folder.

    Kernels for the target "cuda" are emulated, behind a driver in the folder "driver".
    """
    listed = []
    if target == "cuda":
        (folder / "driver").mkdir()
        (folder / "driver/leaks").write_text("leak:emulation::run\n")  # those of the emulation
        (folder / "driver/libcuda.so.1").symlink_to(libcuda())
    for k, forest in enumerate(forests(count)):
        schedule = tvm_forest.new_schedule(forest) if target == "llvm" else None
        made = tvm_forest.build(forest, target, schedule)
        made = made if target == "llvm" else emulated(made)
        _unpack(made, folder / f"m{k}", f"m{k}_")
        if k < LIBRARIES and target == "llvm":  # a GPU's memory stays when a library goes
            _unpack(made, folder / f"shared{k}", "tvm_forest_")
        rows = hard_rows(forest, 4 * POOL, seed=k)
        rows = _taken(made, rows)[:POOL]
        rows.tofile(folder / f"rows{k}")
        made.predict_margin(rows).tofile(folder / f"margin{k}")
        value = result_dtype(forest, result_names(forest)[-1])
        types = (forest.row_dtype, result_dtype(forest, "margin"), value)
        listed.append(f"M(m{k}_, {', '.join(C_TYPES[dtype] for dtype in types)})")
    headers = "".join(f'#include "m{k}/include/m{k}.h"\n' for k in range(count))
    text = f"{headers}#define POOL {POOL}\n#define MODELS(M) {' '.join(listed)}\n"
    (folder / "models.h").write_text(text)


def _unpack(made: Any, folder: Path, prefix: str) -> None:
    package = folder.with_suffix(".zip")
    made.export_library(package, prefix=prefix)
    with zipfile.ZipFile(package) as packed:
        packed.extractall(folder)


def _taken(made: Any, rows: Any) -> Any:
    """Return the rows that a model does not refuse."""
    if not made.forest.refuses:
        return rows
    return rows[np.isfinite(rows).all(axis=1)]


def build(folder: Path, cc: str, kind: str, count: int) -> list[str]:
    """Compile packages and the program; return it, and the libraries that it is to open."""
    parts = []
    flags = [cc, *COMMON, *FLAGS[kind], "-fPIC"]
    short = kind.partition(",")[0]
    for k in range(count):
        parts.append(str(folder / f"{short}-m{k}.o"))
        _compile([*flags, *_source(folder, k, 0), "-c", "-o", parts[-1]])
        parts += map(str, (folder / f"m{k}/source").glob("code.o"))
    program = folder / f"{short}-main"
    _compile([*flags, f"-I{folder}", str(PROGRAM), *parts, "-lm", "-ldl", "-o", str(program)])
    made = []
    shared = ["-shared", "-fvisibility=hidden", "-Wl,-Bsymbolic"]
    for k in range(len([*folder.glob("shared*/")])):
        made.append(str(folder / f"{short}-m{k}.so"))
        source = [*_source(folder, k, 1), str(folder / f"shared{k}/source/code.o")]
        _compile([*flags, *shared, *source, "-lm", "-ldl", "-o", made[-1]])
    return [str(program), *made]


def _source(folder: Path, k: int, entry: int) -> list[str]:
    source = folder / f"{'shared' if entry else 'm'}{k}/source"
    data = f'-DDATA="{source / "data.bin"}"'
    return [f"-I{source}", data, f"-DENTRY={entry}", str(source / "library.c")]


def _compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or "warning" in done.stderr:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-4000:]}")


def run(command: list[str], folder: Path, calls: int, seed: int) -> dict[str, int]:
    """Run the program; return its counts.

    Raises:
        AssertionError: a sanitizer has found something, or an answer is wrong.
    """
    program, *libraries = command
    driver = folder / "driver"
    environment = {**os.environ, **ENVIRONMENT, "LD_LIBRARY_PATH": str(driver)}
    if driver.exists():
        environment["LSAN_OPTIONS"] = f"suppressions={driver / 'leaks'}:print_suppressions=0"
    done = subprocess.run(
        [program, str(calls), str(seed), *libraries],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    said = "\n".join(line for line in done.stderr.splitlines() if not EMULATED.search(line))
    assert (done.returncode, said) == (0, ""), f"{done.returncode}: {said[-6000:]}"
    return dict(json.loads(done.stdout))


def check(folder: Path, kind: str, count: int, calls: int, seed: int = 0) -> dict[str, int]:
    """Compile and run what `export` wrote under a sanitizer; return counts."""
    cc = compiler()
    assert cc is not None, "asked for by the caller"
    return run(build(folder, cc, kind, count), folder, calls, seed)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if compiler() is None:
        raise SystemExit("no C compiler here has sanitizers")
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for target, count, fewer in (("llvm", options.models, 1), ("cuda", GPU_MODELS, 50)):
            place = Path(folder, target)
            place.mkdir()
            export(place, count, target)
            for kind in FLAGS:  # threads are slow to watch
                calls = options.calls // fewer // (10 if kind == "thread" else 1)
                name = kind if target == "llvm" else f"{kind}, emulated GPU"
                found[name] = check(place, kind, count, calls, options.seed)
    text = json.dumps({"compiler": compiler(), "runs": found}, indent=1)
    print(text)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
