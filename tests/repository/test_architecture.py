"""`ARCHITECTURE.md` leads to files and functions that are there, and says each word once."""

import ast
import functools
import os
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tvm_forest
import tvm_forest.compiler  # ahead: while calls are noted, imports take several times as long
from code_size import PACKAGE, ROOT
from tvm_forest.system import code_cache

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
STOPS = re.findall(r"^\| \d+ \| `([\w/.]+)` \| `(\w+)` \|", TEXT, re.MULTILINE)
PATHS = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py|(?:[a-z_]+/)+)`", TEXT)
GLOSSARY = re.findall(
    r"^\| ([^|]+) \|", TEXT.partition("## Glossary")[2].partition("\n## ")[0], re.MULTILINE
)
WORDS = Counter(word for entry in GLOSSARY for word in entry.split(", "))


def test_the_walk_has_stops_from_the_file_to_the_prediction() -> None:
    assert STOPS[0] == ("api/__init__.py", "build") and len(STOPS) > 12


@pytest.mark.parametrize(("path", "name"), STOPS)
def test_a_stop_is_a_function_or_class_of_its_file(path: str, name: str) -> None:
    source = (PACKAGE / path).read_text(encoding="utf-8")
    assert re.search(rf"^\s*(def|class) {name}\b", source, re.MULTILINE)


@pytest.mark.parametrize("path", sorted(set(PATHS)))
def test_a_path_that_is_named_exists(path: str) -> None:
    places = [PACKAGE, ROOT, *(x for x in PACKAGE.rglob("*") if x.is_dir())]
    assert any((place / path).exists() for place in places), path


def test_a_word_of_the_glossary_has_one_entry() -> None:
    assert {"forest", "point", "record", "twin", "sliced", "oracle"} <= set(WORDS)
    assert [word for word, entries in WORDS.items() if entries > 1] == []


@functools.cache
def lines_of(path: str) -> dict[str, range]:
    """Return the lines of the functions and classes of a file of the package, with decorators."""
    places = {}
    for node in ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.end_lineno is not None:
            first = min([node.lineno, *(x.lineno for x in node.decorator_list)])
            places[node.name] = range(first, node.end_lineno + 1)
    return places


def trace_calls(work) -> list[tuple[str, int]]:
    """Return the file of the package and the line of each function that some work calls."""
    calls, root = list[tuple[str, int]](), f"{PACKAGE}{os.sep}"

    def note(frame, event, _) -> None:  # at each call of Python or C, so it does little
        if event == "call" and frame.f_code.co_filename.startswith(root):
            calls.append((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    paths = {file: Path(file).relative_to(PACKAGE).as_posix() for file, _ in set(calls)}
    return [(paths[file], line) for file, line in calls]


@pytest.fixture(scope="module")
def calls_of_a_build(tmp_path_factory) -> list[tuple[str, int]]:
    """The calls of a build from a file, for which nothing is in the cache, and of a prediction."""
    xgboost = pytest.importorskip("xgboost")
    folder, rng = tmp_path_factory.mktemp("stops"), np.random.default_rng(1)
    rows = rng.random((2000, 13), np.float32)
    trained = xgboost.XGBRegressor(n_estimators=10, max_depth=4, n_jobs=1).fit(rows, rows[:, 0])
    trained.save_model(folder / "model.json")
    with pytest.MonkeyPatch.context() as changes:
        changes.setenv(code_cache.VARIABLE, str(folder / "cache"))
        return trace_calls(lambda: tvm_forest.build(folder / "model.json").predict(rows))


@pytest.mark.slow
def test_the_stops_are_called_in_their_order(calls_of_a_build) -> None:
    firsts = list[int]()
    for path, name in STOPS:
        lines = lines_of(path)[name]
        of_layout = Path(path).parent.name == "layouts"  # which one depends on the processor
        firsts.append(
            next(
                at
                for at, (file, line) in enumerate(calls_of_a_build)
                if (file == path and line in lines)
                or (
                    of_layout and Path(file).parent.name == "layouts" and is_start(file, line, name)
                )
            )
        )
    assert firsts == sorted(firsts), [*zip(STOPS, firsts, strict=True)]


def is_start(path: str, line: int, name: str) -> bool:
    """Return whether a function of that name begins in a line of a file."""
    return name in lines_of(path) and line == lines_of(path)[name].start


@pytest.mark.slow
def test_a_build_brings_the_model_into_its_form_once_and_checks_each_schedule_once(
    calls_of_a_build,
) -> None:
    count = Counter(calls_of_a_build)
    canonical = "forest/rewrites/canonical_form.py"
    assert count[canonical, lines_of(canonical)["canonicalize"].start] == 1
    fitting, walks = "schedule_prims/fitting.py", "tir_gen/walks/__init__.py"
    lowered = count["compiler.py", lines_of("compiler.py")["_lower_function"].start]
    assert count[fitting, lines_of(fitting)["check_fit"].start] == lowered > 1
    assert count[walks, lines_of(walks)["check_walks"].start] == lowered
