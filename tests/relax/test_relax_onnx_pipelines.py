"""Pipelines of scikit-learn come through skl2onnx with what onnxruntime gives on one thread.

Each is compiled once, for batches of any size. `python tests/relax/test_relax_onnx_pipelines.py`
prints a table of all.
"""

import warnings

import numpy as np
import pytest

from sklearn_pipelines import PIPELINES
from test_relax_onnx import compiled, expected, from_onnx, plain

skl2onnx = pytest.importorskip("skl2onnx")

MOST_ULP = 4
"""Bound for what exponentials make of equal margins, in units in the last place of the score."""
BATCHES = (0, 1, 7, 64)
CONVERTED = [name for name, case in PIPELINES.items() if case.onnx]
IN_DOUBLE = {
    "bins ordinal",
    "minmax",
    "normalizer l1",
    "normalizer l2",
    "one hot",
    "one hot sparse, dropped",
    "standard",
    "union",
}
"""Those that onnxruntime also loads with rows of float64."""


def distances(name, dtype=None):
    """Return by outputs how far they are from onnxruntime: units in the last place, or True."""
    case = PIPELINES[name]
    dtype = dtype or ("float32" if np.dtype(case.dtype).kind == "f" else case.dtype)
    rows = case.rows(max(BATCHES)).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opsets = {"": 18, "ai.onnx.ml": 3}
        model = skl2onnx.to_onnx(case.fit(), rows[:1], target_opset=opsets)
    mod = from_onnx(model)
    run, wanted = compiled(mod), expected(model, rows)
    for n in BATCHES:
        found = dict(zip(output_names(model), plain(mod, model, run(rows[:n])), strict=True))
        far = {
            key: distance(*found[key], answer[:n])
            for key, answer in zip(found, wanted, strict=True)
        }
        yield n, far


def output_names(model):
    return [output.name for output in model.graph.output]


def distance(result, classes, wanted):
    if isinstance(wanted, list):  # of maps
        wanted = [[row[label] for label in classes] for row in wanted]
        wanted = np.array(wanted, np.float32).reshape(-1, len(classes))
    wanted = wanted.astype(str) if wanted.dtype == object else wanted
    assert result.shape == wanted.shape
    if wanted.dtype.kind != "f":
        return bool(np.array_equal(result, wanted))
    assert result.dtype == wanted.dtype
    assert not np.isnan(wanted).any()
    apart = np.abs(result.astype(np.float64) - wanted) / np.spacing(np.abs(wanted))
    return float(apart.max(initial=0))


def check(name, dtype=None):
    for _, far in distances(name, dtype):
        assert all(x is True or (x is not False and x <= MOST_ULP) for x in far.values()), far


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVERTED)
@pytest.mark.cases(1)
def test_a_pipeline_gives_what_onnxruntime_gives(name):
    check(name)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(IN_DOUBLE))
def test_a_pipeline_of_float64_gives_what_onnxruntime_gives(name):
    check(name, "float64")


def print_table():
    for name in CONVERTED:
        for dtype in [None, *(["float64"] if name in IN_DOUBLE else [])]:
            *_, (_, far) = distances(name, dtype)
            said = (f"{key}: {'equal' if x in (0, True) else x}" for key, x in far.items())
            print(f"| {name} | {dtype or 'as trained, float32'} | {', '.join(said)} |", flush=True)


if __name__ == "__main__":
    print_table()
