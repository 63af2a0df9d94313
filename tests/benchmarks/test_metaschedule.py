"""MetaSchedule's space over our functions: what it draws is built, exact, and what was timed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir

import tvm_forest
from benchmarks.tuning import metaschedule_space as space
from scheduled_models import answers_of
from test_studies import tiny


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["bitsliced", pytest.param("packed", marks=pytest.mark.long)])
def test_a_schedule_that_metaschedule_draws_is_built_and_exact(layout: str) -> None:
    known = answers_of("xgboost default_options")
    func = space.canonical(known.forest, layout)
    given = tvm.IRModule({"main": space.fix_rows(func)})
    drawn = space.make_space(layout, 64).generate_design_space(given)[-1]
    repeated = s_tir.Schedule(func)
    drawn.trace.apply_to_schedule(repeated, remove_postproc=True)
    predictor = tvm_forest.build(known.forest, schedule=repeated)
    assert np.array_equal(predictor.predict_margin(known.rows), known.margins[:, 0])
    timed = space.free_rows(drawn.mod["main"])
    assert tvm_ffi.structural_equal(timed, repeated.mod["main"], map_free_vars=True)


@pytest.mark.slow
@pytest.mark.rare
def test_metaschedule_searches_beside_tune(tmp_path: Path) -> None:
    said, results = tiny(tmp_path, "metaschedule", "--cache", str(tmp_path / "models"))
    (cell,) = results["cells"]
    assert all(cell[who]["trials"] and cell[who]["seconds"] > 0 for who in ("ours", "metaschedule"))
    assert "| tiny | 64 |" in said
