"""Models of a kind share their code: what a kind is, and that code depends on nothing else.

As a program, `python tests/layouts/test_kinds.py 2000` compares as many pairs of models as
it is told.
"""

from __future__ import annotations

import errno
import functools
import gc
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from sklearn.ensemble import RandomForestRegressor

import tvm_forest
from drawn_schedules import drawn_schedule
from forests import drawn_forest, full_forest
from scheduled_models import MODELS, forest_named
from schedules import in_blocks
from tvm_forest import compiler
from tvm_forest.errors import ForestError
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.forest.rewrites.ordering import take_trees
from tvm_forest.layouts.laying_out import LaidOut, kinds, lay_out
from tvm_forest.layouts.laying_out.kinds import describe_kinds
from tvm_forest.layouts.laying_out.request import BuildRequest
from tvm_forest.layouts.protocol import LAYOUTS
from tvm_forest.predictor import compiling
from tvm_forest.runtime.results import OUTPUTS, SUMS, Output
from tvm_forest.system import archive, code_cache
from tvm_forest.target import Target, parse_target
from tvm_forest.tir_gen.canonical import emit_canonical

TARGETS = ("x86-64-v2", "x86-64-v3", "cascadelake", "znver4")
OTHERWISE = {"depths", "shallowest", "hits", "is_leaf", "leaf_table", "leaf_value", "threshold"}
OTHERWISE |= {"n_trees", "trees_of_class"}
"""What code asks a forest for that a kind says in other words: forms of walks, arrays, and numbers
of trees where these are not an array too."""


def train(seed: int, rounds: int = 70) -> xgb.Booster:
    """Return a model of drawn rows; all seeds and numbers of rounds give models of one kind."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(800, 3)).astype(np.float32)
    matrix = xgb.DMatrix(rows, rows[:, 0] * rows[:, 1] + rows[:, 2])
    return xgb.train({"max_depth": 4, "nthread": 1}, matrix, rounds)


def ask_for(
    forest: Forest,
    schedules: Any = None,
    target: Target | None = None,
    outputs: tuple[Output, ...] = OUTPUTS,
) -> BuildRequest:
    """Ask for all functions that give sums or say something of leaves."""
    target = target or parse_target("llvm")
    chosen = tvm_forest.default_schedules(forest) if schedules is None else schedules
    return BuildRequest.of(forest, chosen, target, outputs=outputs)


def lower(request: BuildRequest, laid_out: LaidOut) -> str:
    """Return the functions of a model as a text that does not say how long arrays are."""
    after = compiler.lower_request(request, laid_out).after
    texts = [f"{x.name_hint}\n{func.script()}" for x, func in after.functions.items()]
    return re.sub(r"(\w+: T\.Buffer\(\()\d+", r"\1long", "\n".join(sorted(texts)))


def train_again(forest: Forest, rng: np.random.Generator) -> Forest:
    """Return a forest of the same trees with other thresholds, leaves, features and sides."""
    moved = forest.threshold + np.where(rng.random(forest.n_nodes) < 0.5, rng.normal(), 0)
    numbers = np.round(moved, int(rng.integers(1, 3))).astype(forest.threshold.dtype)
    inner = ~forest.is_leaf & (forest.feature < forest.n_features)
    kept = {"threshold": np.where(inner & (rng.random() < 0.9), numbers, forest.threshold)}
    if rng.random() < 0.5:
        shuffled = rng.permutation(forest.n_features)[forest.feature % forest.n_features]
        kept["feature"] = np.where(inner, shuffled, forest.feature).astype(forest.feature.dtype)
    values = forest.leaf_value * rng.normal(size=(len(forest.leaf_value), 1))
    return replace(forest, leaf_value=values.astype(forest.leaf_value.dtype), **kept)


def compare(seed: int) -> tuple[str, list[str]]:
    """Compare a drawn model under a drawn schedule with others; return what they are, and layouts.

    Raises:
        AssertionError: two models are of one kind, and their code differs.
    """
    rng = random.Random(seed)
    first = canonicalize(forest_named(rng.choice(sorted(MODELS)), seen=False))
    target = parse_target({"kind": "llvm", "mcpu": rng.choice(TARGETS)})
    drawn, outputs = rng.random() < 0.7, OUTPUTS
    try:
        other = train_again(first, np.random.default_rng(seed))
        if rng.random() < 0.5 and first.n_trees > first.round_size:
            left = rng.choice((1, first.n_trees // first.round_size - 1))
            other, outputs = take_trees(other, np.arange(left * first.round_size)), (SUMS,)
        schedules = [draw_schedules(seed, x) if drawn else None for x in (first, other)]
        asked = [ask_for(first, schedules[0], target, outputs)]
        asked += [ask_for(other, schedules[1], target, outputs)]
        laid = [lay_out(x) for x in asked]
        here = [describe_kinds(x.functions) for x in laid]  # type: ignore[arg-type]
        if here[0] != here[1]:
            return "others", []
        texts = [lower(*x) for x in zip(asked, laid, strict=True)]
    except ForestError:
        return "refused", []
    assert texts[0] == texts[1], f"seed {seed}: one kind, two codes"
    fewer = ["fewer trees"] if other.n_trees < first.n_trees else []
    return "equal", sorted({x.layout for x in asked[0].schedules.values()}) + fewer


def draw_schedules(seed: int, forest: Forest) -> dict[int, Any]:
    """Return a schedule; drawn by the same steps for models with the same loops."""
    return {1: drawn_schedule(random.Random(seed), tvm_forest.new_schedule(forest), forest)}


@pytest.mark.slow
@pytest.mark.cases(1)
@pytest.mark.parametrize("first", range(0, 40, 4))
def test_models_of_one_kind_have_the_same_code(first: int) -> None:
    found = [compare(seed)[0] for seed in range(first, first + 4)]
    assert "equal" in found


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.cases(15, others="long")
def test_code_asks_a_forest_for_nothing_that_its_kind_does_not_say(name: str) -> None:
    forest = forest_named(name, seen=False)
    asked = set[str]()
    for laid in lay_out(ask_for(forest)).functions:
        with recording(asked):
            emit_canonical(laid.packed.forest, laid.packed.layout, laid.output)  # type: ignore[union-attr]
    assert asked - OTHERWISE <= set(kinds.FACTS)


@contextmanager
def recording(asked: set[str]) -> Iterator[None]:
    """Note which attributes of forests are asked for, but by forests themselves."""
    plain: Callable[..., Any] = Forest.__getattribute__

    def note(self: Forest, name: str) -> Any:
        caller = Path(sys._getframe(1).f_code.co_filename)
        if not {"forest", "process"}.intersection(caller.parts[-3:-1]):
            asked.add(name)
        return plain(self, name)

    Forest.__getattribute__ = note  # type: ignore[method-assign]
    try:
        yield
    finally:
        del Forest.__getattribute__  # type: ignore[misc]


@pytest.mark.parametrize("name", kinds.FACTS)
def test_each_fact_of_a_forest_counts(name: str) -> None:
    laid_out = lay_out(ask_for(drawn_forest(6, 3, base=[0.5])))
    first: Any = laid_out.functions[0]
    packed = first.packed
    changed = type("Changed", (), {"__getattr__": lambda self, x: getattr(packed.forest, x)})()
    setattr(changed, name, "something else")
    other = replace(first, packed=packed._replace(forest=changed))
    vars(other)["arguments"] = first.arguments
    assert describe_kinds([first]) != describe_kinds([other])


@pytest.mark.parametrize("n_outputs", [3, 1100])  # numpy's text of 1,100 numbers has six of them
def test_the_number_of_trees_of_each_average_counts(n_outputs: int) -> None:
    base, at = [0.0] * n_outputs, n_outputs // 2
    first = drawn_forest(2, 2, base=base, aggregate="average", base_first=False)
    other = replace(first, tree_class=np.array([0, at], np.int32))
    first = replace(first, tree_class=np.array([0, at + 1], np.int32))
    packed = [kinds.Packed(x, None, {}) for x in (first, other)]  # type: ignore[arg-type]
    assert kinds._describe_packed(packed[0]) != kinds._describe_packed(packed[1])


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_each_field_of_a_layout_counts_but_how_long_arrays_are(layout: str) -> None:
    forest, laid = forest_named("xgboost default_options", seen=True), None
    for size in LAYOUTS[layout].tile_sizes:
        start = tvm_forest.new_schedule(forest)
        start = start.tile_nodes(size) if size > 1 else start
        laid = LAYOUTS[layout].pack(tvm_forest.rewrite(forest, start))[0]
    for field in (x for x in fields(laid) if x.name != "specs"):  # type: ignore[arg-type]
        other = replace(laid, **{field.name: "something else"})  # type: ignore[type-var]
        assert kinds._describe_value(other) != kinds._describe_value(laid), field.name


@functools.cache
def train_seen(seed: int) -> Any:
    """Return the canonical form of a model of drawn rows, with the hits of these."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(400, 6)).astype(np.float32)
    trained = RandomForestRegressor(20, max_depth=6, random_state=seed)
    forest = tvm_forest.load(trained.fit(rows, rows[:, 0] * rows[:, 1] + rows[:, 2]))
    hits = np.bincount(forest.reference_nodes(rows).ravel(), minlength=forest.n_nodes)
    return canonicalize(replace(forest, hits=hits))


@pytest.mark.parametrize("layout", sorted({*LAYOUTS} - {"banked"}))  # how it searches is code
def test_a_layout_is_alike_for_trees_that_are_about_as_large(layout: str) -> None:
    kind, found = LAYOUTS[layout], set[str]()
    for seed in range(6):
        forest = train_seen(seed)
        start = tvm_forest.new_schedule(forest)
        size = min(kind.tile_sizes)
        start = start.tile_nodes(size) if size > 1 else start
        laid = kind.pack(tvm_forest.rewrite(forest, start))[0]
        found.add(repr(kinds._describe_value(laid)))
    assert len(found) <= 2


def test_a_model_that_is_trained_again_is_not_lowered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(code_cache.VARIABLE, str(tmp_path / "cache"))
    tvm_forest.build(train(0)).apply(np.zeros((1, 3), np.float32))
    monkeypatch.setattr(compiling.compiler, "compile_forest", None)
    for seed, rounds in ((1, 70), (2, 61), (3, 90)):
        model = train(seed, rounds)
        predictor, forest = tvm_forest.build(model), tvm_forest.load(model)
        for n_rows in (1, 5, 33, 100, 300):
            rows = hard_rows(forest, n_rows)
            assert np.array_equal(
                predictor.predict_margin(rows), forest.predict_reference(rows)[:, 0]
            )
            if rounds == 70:  # leaves are said in as many columns
                assert np.array_equal(
                    predictor.apply(rows), forest.predict_reference(rows, "apply")
                )


def build(model: Any) -> tvm_forest.Predictor:
    """Compile by one schedule, which takes a fifth of the time of the default ones."""
    forest = tvm_forest.load(model)
    return tvm_forest.build(forest, schedule=in_blocks(forest, "bitsliced", 64))


def test_code_that_a_predictor_runs_is_not_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(code_cache.VARIABLE, str(tmp_path / "cache"))
    first = build(train(0))
    forest = tvm_forest.load(train(1))
    rows, loaded = hard_rows(forest, 300), compiling.load_kept
    monkeypatch.setattr(compiling, "load_kept", None)
    second = build(forest)
    del first
    gc.collect()
    third = build(train(2))  # of what the second one runs
    assert np.array_equal(second.predict_margin(rows), forest.predict_reference(rows)[:, 0])
    keys = [code.key for code in third.libraries]
    del second, third
    gc.collect()
    asked = list[str]()
    monkeypatch.setattr(
        compiling,
        "load_kept",
        lambda cache, key, target: asked.append(key) or loaded(cache, key, target),
    )
    found = build(forest).predict_margin(rows)
    assert asked == keys and np.array_equal(found, forest.predict_reference(rows)[:, 0])


@pytest.mark.filterwarnings("ignore:cache:RuntimeWarning")
def test_of_code_that_there_is_no_room_for_no_kind_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(code_cache.VARIABLE, str(tmp_path / "cache"))
    replace_file = archive.replace_file

    def fill(path: Path, data: bytes, **how: Any) -> None:
        if len(data) > 10_000:
            raise OSError(errno.ENOSPC, "no room")
        replace_file(path, data, **how)

    monkeypatch.setattr(archive, "replace_file", fill)
    forest = full_forest(2, 2)
    rows = hard_rows(forest, 70)
    found = tvm_forest.build(forest).predict_margin(rows)
    assert np.array_equal(found, forest.predict_reference(rows)[:, 0])
    files = (tmp_path / "cache").glob("*.code")
    entries = [archive.unpack(file.read_bytes(), "cache").manifest for file in files]
    assert all(entry.keys() == {"key", "kept"} for entry in entries)  # which schedules were chosen


def test_a_kind_whose_code_is_gone_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(code_cache.VARIABLE, str(tmp_path / "cache"))
    build(train(0))
    large = [x for x in (tmp_path / "cache").iterdir() if x.stat().st_size > 20_000]
    for file in large:
        file.unlink()
    assert large
    forest = tvm_forest.load(train(1))
    rows = hard_rows(forest, 70)
    found = build(forest).predict_margin(rows)
    assert np.array_equal(found, forest.predict_reference(rows)[:, 0])


if __name__ == "__main__":
    counts = Counter[str]()
    for number in range(int(sys.argv[1])):
        became, layouts = compare(number)
        counts.update([became, *layouts])
    print(counts)


@pytest.mark.parametrize("base", [[0.5], [0.5, -1.0, 0.25]], ids=["one output", "classes"])
def test_a_model_of_one_round_is_of_another_kind_than_one_of_several(base: list[float]) -> None:
    one, two = (drawn_forest(rounds * len(base), 3, base=base) for rounds in (1, 2))
    schedules = [{1: tvm_forest.new_schedule(x).represent_as("sparse")} for x in (one, two)]
    asked = [ask_for(x, sch, outputs=(SUMS,)) for x, sch in zip((one, two), schedules, strict=True)]
    laid = [lay_out(x) for x in asked]
    texts = [lower(*x) for x in zip(asked, laid, strict=True)]
    assert texts[0] != texts[1]  # whose only tree has the number 0, whatever `sizes` says
    first, other = (x.functions[0] for x in laid)
    assert describe_kinds([first]) != describe_kinds([other])  # type: ignore[arg-type]
