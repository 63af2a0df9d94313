"""TVMScript: what is printed of our functions, before and after a schedule, parses back."""

from __future__ import annotations

import importlib
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import tvm
from tvm import s_tir

import tvm_forest
from drawn_schedules import drawn_schedule
from forests import drawn_forest
from linear_models import by_hand
from schedules import with_vectors
from tvm_forest.forest.rewrites.canonical_form import canonicalize
from tvm_forest.layouts import protocol
from tvm_forest.runtime.leaves import with_leaf_numbers
from tvm_forest.runtime.results import OUTPUTS
from tvm_forest.schedule_prims import replay
from tvm_forest.tir_gen import ops
from tvm_forest.tir_gen.canonical import emit_canonical

CLASSES = drawn_forest(12, 4, seed=3, base=[0.3, -0.2, 0.1], link="softmax")
FORESTS = {
    "one class": drawn_forest(11, 4, seed=1, base=[0.3]),
    "classes": CLASSES,
    "averages": replace(CLASSES, aggregate="average", base_first=False),
    "maxima": replace(drawn_forest(11, 4, seed=1), aggregate="max", base_first=False),
    "float64": drawn_forest(11, 4, seed=1, base=[0.3], dtype="float64"),
    "leaf vectors": with_vectors(drawn_forest(12, 4), 5),
    "linear leaves": by_hand(0.5, [1.0, 2.0]),
}


def assert_parses_back(mod: tvm.IRModule) -> None:
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script(show_meta=True)), mod)


@pytest.mark.parametrize("name", FORESTS)
def test_canonical_functions_parse_back(name: str) -> None:
    forest = FORESTS[name]
    before = tvm_forest.lower(forest, tvm_forest.new_schedule(forest)).before
    assert set(OUTPUTS) == {var.name_hint for var in before.functions}
    assert "T.tvm_forest_reduce(" in before.script()
    assert_parses_back(before)


def scheduled(forest: Any, sch: Any, output: Any) -> tvm.IRModule:
    """Return a function behind the directives and before our passes."""
    forest = canonicalize(forest)
    rep, _ = protocol.find("array").pack(with_leaf_numbers(forest))
    tir = s_tir.Schedule(emit_canonical(forest, rep, output))
    replay(tir, sch)
    return tir.mod


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.cases(6)
def test_scheduled_functions_parse_back(gpu: bool, seed: int) -> None:
    name = sorted(set(FORESTS) - {"linear leaves"})[seed % 6]  # one tree has nothing to schedule
    rng = random.Random(seed)
    sch = drawn_schedule(rng, tvm_forest.new_schedule(FORESTS[name]), gpu=gpu)
    assert_parses_back(scheduled(FORESTS[name], sch, rng.choice(OUTPUTS)))


def test_a_module_of_operators_may_be_imported_again() -> None:
    counts = Counter(tvm.ir.Op.list_op_names())
    tir = s_tir.Schedule(scheduled(FORESTS["one class"], tvm_forest.Schedule(11), "predict"))
    importlib.reload(ops)
    assert Counter(tvm.ir.Op.list_op_names()) == counts
    assert_parses_back(tir.mod)


def test_lowered_functions_survive_json() -> None:
    forest = FORESTS["classes"]
    after = tvm_forest.lower(forest, tvm_forest.new_schedule(forest)).after
    tvm.ir.assert_structural_equal(tvm.ir.load_json(tvm.ir.save_json(after)), after)
