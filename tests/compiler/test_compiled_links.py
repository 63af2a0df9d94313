"""The links that compiled code computes, beside those of the reference walk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as tb

import tvm_forest
from forests import drawn_forest, forest_of
from links import LINKS
from tvm_forest.forest import Forest
from tvm_forest.forest.c_functions import apply_c_function
from tvm_forest.forest.coarse_powers import COARSE_LINKS, LEAST_POWER
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.reference import apply_link
from tvm_forest.forest.rules import LINK_ULPS
from tvm_forest.runtime.results import link_arrays
from tvm_forest.tir_gen.links import emit_epilogue


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("link", "targets"), LINKS)
@pytest.mark.cases(5)
def test_a_compiled_link_is_that_of_the_reference(
    link: str, targets: tuple[int, ...], dtype: str
) -> None:
    forest = drawn_forest(12, 3, seed=3, base=[0.3, -0.2, 0.1], dtype=dtype)
    forest = replace(forest, link=link, targets=targets)
    rows = hard_rows(forest, 40)
    expected = forest.predict_reference(rows, "value")
    found = tvm_forest.build(forest, schedule=lambda start: start).predict(rows)
    unit = np.finfo(np.float32 if link == "rounded_softmax" else dtype).eps
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert np.allclose(found, expected, rtol=(1 + LINK_ULPS[link]) * unit, atol=unit / 2)


# -- all links on margins that few models have ----------------------------------------------------

SCALED = ("sigmoid", "unbounded_sigmoid", "isolation", "halving")
CASES: list[dict[str, Any]] = [
    *({"link": link} for link in LINK_ULPS if link != "identity"),
    *({"link": link, "link_scale": 2.5} for link in SCALED),
    *({"link": link, "targets": (1, 4)} for link in LINK_ULPS if link.endswith("softmax")),
]
CLASSES = 5
"""One more than CatBoost takes powers of at once."""


def hard_margins(dtype: str) -> Any:
    """Return margins (R, CLASSES): on edges of links, in order, in none, alike, and not finite."""
    edges = [0.0, 0.5, 1.0, 1.5, 88.0, 89.0, 200.0, -LEAST_POWER, 720.0, 1e-40]
    drawn = np.random.default_rng(1).choice([*edges, *np.negative(edges)], (300, CLASSES))
    near = np.random.default_rng(2).normal(size=(100, CLASSES))
    ordered = [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1] * 5, [0, 0, 0, 0, LEAST_POWER]]
    beyond = np.random.default_rng(3).choice([np.nan, np.inf, -np.inf, 0.5, -2], (100, CLASSES))
    return np.concatenate([drawn, near, ordered, beyond]).astype(dtype)


def link_function(forest: Forest) -> Any:
    """Return the function (margin, value, base) of what comes after the sums."""
    n, dtype = tirx.Var("n", "int64"), forest.sum_dtype
    with IRBuilder() as ib, tb.prim_func(s_tir=True):
        tb.func_name("main")
        both = {name: tb.arg(name, tb.buffer((n, CLASSES), dtype)) for name in ("margin", "value")}
        base = tb.arg("base", tb.buffer((CLASSES,), dtype))
        tables = link_arrays(forest).items()
        made_with = [tb.arg(name, tb.buffer(x.shape, str(x.dtype))) for name, x in tables]
        emit_epilogue(forest, n, base, both, *made_with)
    return ib.get()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_link_is_that_of_the_reference_on_hard_margins(dtype: str) -> None:
    stumps = forest_of([0.0] * CLASSES, base=[0.0] * CLASSES, dtype=dtype)
    forests = [replace(stumps, **case) for case in CASES]
    functions = {f"f{k}": link_function(forest) for k, forest in enumerate(forests)}
    named = {name: f.with_attr("global_symbol", name) for name, f in functions.items()}
    library = tvm.compile(tvm.IRModule(named), {"kind": "llvm", "opt-level": 0})  # the quickest
    margin = hard_margins(dtype)
    for name, forest in zip(named, forests, strict=True):
        found = np.full_like(margin, 7.5)
        library[name](margin, found, forest.base_score.copy(), *link_arrays(forest).values())
        with np.errstate(all="ignore"):
            expected = apply_link(forest.link, margin, forest.link_scale, forest.targets)
        unit = np.finfo(np.float32 if forest.link == "rounded_softmax" else dtype).eps
        least = unit / 2 if forest.link.endswith(("softmax", "logistic")) else 0.0
        bound = {"rtol": (1 + LINK_ULPS[forest.link]) * unit, "atol": least}
        np.testing.assert_allclose(found, expected, **bound, err_msg=str(forest.link))
        assert np.array_equal(found == 0, expected == 0), forest.link  # below any bound
        if forest.link not in (
            "isolation",
            "halving",
        ):  # LLVM makes exp2 of these, if it is told to
            with np.errstate(all="ignore"):
                same = forest.values_of(margin, apply_c_function)
            assert np.array_equal(found, same, equal_nan=True), forest.link


@pytest.mark.parametrize("n_rows", [1, 3, 4, 5, 300, 302])
@pytest.mark.parametrize("link", COARSE_LINKS)
@pytest.mark.cases(8, others="long")
def test_links_of_catboost_are_those_of_the_reference_to_the_bit(link: str, n_rows: int) -> None:
    stumps = replace(forest_of([0.0] * CLASSES, base=[0.0] * CLASSES, dtype="float64"), link=link)
    function = link_function(stumps).with_attr("global_symbol", "link")
    library = tvm.compile(tvm.IRModule({"link": function}), {"kind": "llvm", "opt-level": 3})
    margin = np.resize(hard_margins("float64")[-300:], (n_rows, CLASSES))
    margin.ravel()[::11] = np.resize(
        [np.inf, -np.inf, np.nan, 709.7827, 5e-324], len(margin.ravel()[::11])
    )
    found = np.full_like(margin, 7.5)
    library["link"](margin, found, stumps.base_score.copy(), *link_arrays(stumps).values())
    with np.errstate(all="ignore"):
        expected = apply_link(link, margin)
    assert np.array_equal(found, expected, equal_nan=True)
