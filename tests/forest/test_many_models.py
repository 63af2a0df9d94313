"""A list of models is one model with an output for each, and every output keeps its bits."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import catboost_models
import lightgbm_models
import models as xgboost_models
import sklearn_models
import treelite_models
import tvm_forest
from forests import drawn_forest
from tvm_forest.errors import InputError, ModelFormatError, UnsupportedModel
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.forest.rewrites.ordering import take_rounds
from tvm_forest.system.values import replace

LIBRARIES = {
    "xgboost": xgboost_models.MODELS,
    "lightgbm": lightgbm_models.MODELS,
    "catboost": catboost_models.MODELS,
    "sklearn": sklearn_models.MODELS,
    "treelite": treelite_models.MODELS,
}
CASES = [(library, name) for library, found in LIBRARIES.items() for name in found]


def simple(start: Any) -> Any:
    """Build by a schedule that fits any tree and compiles fast."""
    return start.represent_as("sparse")


def parts_of(forest: Forest) -> list[Forest]:
    """Return models that differ in trees, their number, and base scores; one has no tree."""
    half = take_rounds(forest, 0, forest.n_rounds // 2)
    other = replace(forest, base_score=forest.base_score + forest.base_score.dtype.type(0.25))
    return [half, forest, take_rounds(forest, 0, 0), other]


def bits(array: Any) -> tuple[Any, ...]:
    return array.dtype, array.shape, np.ascontiguousarray(array).tobytes()


@pytest.mark.cases(5)
@pytest.mark.parametrize(("library", "name"), CASES)
def test_outputs_are_those_of_the_models_of_the_list(library: str, name: str) -> None:
    forest = tvm_forest.load(LIBRARIES[library][name]())
    forest = replace(forest, refuses=(), encoder=None)  # rows of numbers, whatever they are
    parts = parts_of(forest)
    if forest.n_outputs > 1 or forest.has_vectors:
        with pytest.raises(UnsupportedModel, match=r"has \d+ outputs; only models of one output"):
            tvm_forest.load(parts)
        return
    rows = hard_rows(forest, 33, seed=2)
    one = tvm_forest.build(parts, schedule=simple)
    margins, leaves = (
        [part.predict_reference(rows, output) for part in parts] for output in ("margin", "apply")
    )
    assert bits(one.predict_margin(rows)) == bits(np.concatenate(margins, 1))
    assert bits(one.apply(rows)) == bits(np.concatenate(leaves, 1))
    expected = one.predict(rows)
    alone = tvm_forest.build(parts[3], schedule=simple)  # all outputs have one link
    assert bits(expected[:, 3]) == bits(alone.predict(rows))
    if forest.aggregate == "average" or forest.link == "variance":
        with pytest.raises(UnsupportedModel, match="argument 'which'"):
            one.predict(rows, which=np.zeros(len(rows), int))
        return
    rng = np.random.default_rng(3)
    for n_rows in (33, 9, 1, 0):
        which = rng.integers(0, len(parts), n_rows)
        for method in ("predict", "predict_margin", "predict_value"):
            every = getattr(one, method)(rows[:n_rows])
            chosen = every[np.arange(n_rows), which]
            assert bits(getattr(one, method)(rows[:n_rows], which=which)) == bits(chosen)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.cases(1, others="long")
def test_default_schedules_keep_the_bits(dtype: str) -> None:
    forests = [drawn_forest(8, 4, seed=k, dtype=dtype, base=(k / 8,)) for k in range(5)]
    one = tvm_forest.build(forests)
    rows = hard_rows(one.forest, 513, seed=4)
    expected = np.stack([x.predict_reference(rows)[:, 0] for x in forests], 1)
    for n_rows in (1, 7, 64, 513):
        assert bits(one.predict_margin(rows[:n_rows])) == bits(expected[:n_rows])


def test_a_saved_list_has_the_same_outputs_and_rounds(tmp_path: Any) -> None:
    forests = [drawn_forest(6, 3, seed=k) for k in range(3)]
    one = tvm_forest.build(forests, schedule=simple)
    one.save(tmp_path / "several.tvmf")
    again = tvm_forest.load_predictor(tmp_path / "several.tvmf")
    rows = hard_rows(one.forest, 20, seed=5)
    which = np.arange(20, dtype=np.uint8) % 3
    assert bits(again.predict(rows, which=which)) == bits(one.predict(rows, which=which))
    part = [take_rounds(x, 1, 4).predict_reference(rows) for x in forests]
    assert bits(again.predict(rows, iteration_range=(1, 4))) == bits(np.concatenate(part, 1))
    chosen = again.predict(rows, iteration_range=(1, 4), which=which)
    assert bits(chosen) == bits(np.concatenate(part, 1)[np.arange(20), which])


@functools.cache
def many() -> Any:
    """More models than are called one by one, one of them without trees; 70 trees in all."""
    drawn = [drawn_forest(1 + k % 6, 3, seed=k, base=[k / 8]) for k in range(20)]
    drawn[7] = take_rounds(drawn[7], 0, 0)
    columns = max(x.row_width for x in drawn)
    assert all(x.row_width == columns for x in drawn)
    return tvm_forest.build(drawn, schedule=simple)


def draw_numbers(kind: str, n_rows: int) -> Any:
    rng = np.random.default_rng(n_rows)
    if kind == "sorted":
        return np.sort(rng.integers(0, 20, n_rows))
    return rng.choice([3, 7, 19] if kind == "few" else 20, n_rows)


@pytest.mark.parametrize("kind", ["random", "sorted", "few"])
def test_ranges_of_rows_have_the_bits_whoever_calls_them(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = many()
    for n_rows in (5, 40, 700):
        rows, which = hard_rows(one.forest, n_rows, seed=n_rows), draw_numbers(kind, n_rows)
        expected = one.predict_margin(rows)[np.arange(n_rows), which]
        part = one._present._one_of_several
        for call in (part._call_ranges, None, lambda plan: 1):  # native, none, and one that fails
            monkeypatch.setattr(part, "_call_ranges", call)
            assert bits(one.predict_margin(rows, which=which)) == bits(expected)
        monkeypatch.undo()


def test_membership_columns_are_made_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = tvm_forest.load(lightgbm_models.MODELS["categories_and_holes"]())
    one = tvm_forest.build([forest] * 6, schedule=simple)
    rows, which = hard_rows(forest, 90, seed=1), np.arange(90) % 6
    one.predict(rows[:6], which=which[:6])
    functions = one._present._one_of_several._functions
    assert functions.for_batches[0].takes_memberships
    monkeypatch.setattr(functions, "max_rows_with_memberships", 32)
    assert bits(one.predict(rows, which=which)) == bits(one.predict(rows)[np.arange(90), which])


OTHER_RESULTS: dict[str, dict[str, Any]] = {
    "three results": {"link": "sigmoid", "base_first": False, "sum_scale": 0.7},
    "labels": {"labels": np.array(["no", "yes"]), "label_rule": "cut", "label_cut": 0.1},
}


@pytest.mark.parametrize("kind", OTHER_RESULTS)
def test_ranges_write_all_results(kind: str) -> None:
    more = {"dtype": "float64"} if kind == "three results" else {}
    drawn = [drawn_forest(4, 3, seed=k, base=[k / 8], **more) for k in range(6)]
    one = tvm_forest.build([replace(x, **OTHER_RESULTS[kind]) for x in drawn], schedule=simple)
    rows, which = hard_rows(one.forest, 130, seed=3), np.random.default_rng(2).integers(0, 6, 130)
    if kind == "labels":
        rows = np.nan_to_num(rows)
    for method in ("predict", "predict_margin", "predict_value"):
        chosen = getattr(one, method)(rows)[np.arange(130), which]
        found = getattr(one, method)(rows, which=which)
        if method == "predict" and kind == "labels":
            assert found.tolist() == chosen.tolist()
        else:
            assert bits(found) == bits(chosen)


def test_native_code_calls_the_ranges() -> None:
    """Else the test above would compare Python's calls with themselves."""
    one = many()
    one.predict(np.zeros((1, one.forest.row_width), np.float32), which=[0])
    calls, part = [], one._present._one_of_several
    native = part._call_ranges
    part._call_ranges = lambda plan: calls.append(native(plan)) or calls[-1]
    try:
        rows = np.zeros((40, one.forest.row_width), np.float32)
        one.predict(rows, which=np.arange(40) % 20)
    finally:
        part._call_ranges = native
    assert calls == [0]


@pytest.mark.parametrize(
    ("method", "arguments", "remedy"),
    [
        ("apply", (), "of the columns that this gives"),
        ("predict_per_tree", (), "of the columns that this gives"),
        ("predict_class", (), "predict gives labels by it"),
        ("predict_above", (0.5,), "compare what predict_value gives"),
        ("top_k", (1,), "sort what predict_value gives"),
        ("predict_contributions", (), "of the values of all outputs"),
        ("predict_interactions", (), "of the values of all outputs"),
    ],
)
def test_other_methods_refuse_to_choose_an_output(method: str, arguments: Any, remedy: str) -> None:
    rows = np.zeros((1, two().forest.row_width), np.float32)
    with pytest.raises(InputError, match=f"{method}: argument 'which': only predict.*{remedy}"):
        getattr(two(), method)(rows, *arguments, which=[0])


def test_probabilities_by_model_are_values() -> None:
    forests = [replace(drawn_forest(3, 1, seed=k), link="sigmoid") for k in range(2)]
    one = tvm_forest.build(forests, schedule=simple)
    rows = hard_rows(one.forest, 9, seed=1)
    with pytest.raises(InputError, match="predict_proba: argument 'which'.*predict_value gives"):
        one.predict_proba(rows, which=np.arange(9) % 2)
    found = one.predict_value(rows, which=np.arange(9) % 2)
    assert bits(found) == bits(one.predict_proba(rows)[np.arange(9), np.arange(9) % 2])


def test_models_that_differ_are_refused_by_the_field() -> None:
    first, other = drawn_forest(3, 2, seed=1), drawn_forest(3, 2, seed=2)
    with pytest.raises(UnsupportedModel, match="model 1 of the list.*field 'link' is 'sigmoid'"):
        tvm_forest.load([first, replace(other, link="sigmoid")])
    with pytest.raises(UnsupportedModel, match="field 'feature_names' is"):
        tvm_forest.load([first, replace(other, feature_names=tuple("abcde"[: other.n_features]))])
    with pytest.raises(UnsupportedModel, match="model 1 .*field 'row_dtype'"):
        tvm_forest.load([first, replace(other, row_dtype="float64")])
    with pytest.raises(ModelFormatError, match="the list of models is empty"):
        tvm_forest.load([])


@functools.cache
def two() -> Any:
    return tvm_forest.build([drawn_forest(3, 2, seed=k) for k in (1, 2)], schedule=simple)


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ([0, 1], "expected 3 whole numbers, one for each row"),
        ([0.0, 1.0, 1.0], "expected 3 whole numbers"),
        ([0, 2, 1], "row 1 asks for number 2; the outputs have the numbers 0 to 1"),
        ([0, -1, 1], "row 1 asks for number -1"),
        (1, "expected 3 whole numbers"),
        (np.ma.masked_array([0, 1, 1], [False, True, False]), "got a masked array"),
        ([[0, 1], [1]], "expected 3 whole numbers"),
    ],
)
def test_numbers_of_outputs_are_checked(which: Any, message: str) -> None:
    one = two()
    with pytest.raises(InputError, match=message):
        one.predict(np.zeros((3, one.forest.row_width), np.float32), which=which)
    assert one.predict(np.zeros((0, one.forest.row_width), np.float32), which=[]).shape == (0,)
    with pytest.raises(InputError, match="argument 'n_jobs'"):
        one.predict(np.zeros((1, one.forest.row_width), np.float32), n_jobs=0, which=[1])


def test_an_output_cannot_be_chosen_where_there_is_only_one() -> None:
    single = tvm_forest.build(drawn_forest(3, 2, seed=1), schedule=simple)
    with pytest.raises(UnsupportedModel, match="argument 'which'.*it has one output"):
        single.predict(np.zeros((1, single.forest.row_width), np.float32), which=[0])


@pytest.mark.long
def test_the_page_shows_what_its_code_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "many_models.md"
    blocks = re.findall(r"```(python|text)\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    for (_, code), (_, shown) in zip(blocks[::2], blocks[1::2], strict=True):
        exec(compile(code, page.name, "exec", dont_inherit=True), names)
        assert capsys.readouterr().out == shown


def test_an_output_is_not_chosen_beside_an_argument_of_the_library() -> None:
    two = replace(drawn_forest(6, 2, base=(0.5, 1.0)), source="xgboost reg:squarederror")
    one = tvm_forest.build(two, schedule=simple)
    rows = np.zeros((1, one.forest.row_width), np.float32)
    with pytest.raises(InputError, match="arguments 'which' and 'output_margin': give one of them"):
        one.predict(rows, which=[0], output_margin=True)


def test_rows_are_read_as_the_library_of_the_models_reads_them() -> None:
    forest = replace(
        drawn_forest(3, 2, n_features=1), source="scikit-learn DecisionTreeRegressor", missing=None
    )
    threshold = forest.threshold.copy()
    threshold[:] = 2.0**54
    forest = replace(forest, threshold=threshold, comparison="<=", object_dtype="float32")
    frame = pandas.DataFrame({"a": [2**54 + 2**30 + 1], "b": [0.5]})[["a"]]
    for rows in (frame, [["18014398509481984"]]):
        one = tvm_forest.build([forest, forest], schedule=simple)
        alone = tvm_forest.build(forest, schedule=simple)
        assert bits(one.predict(rows)[:, 0]) == bits(alone.predict(rows))


def test_models_of_several_libraries_are_refused() -> None:
    first = replace(drawn_forest(3, 2, seed=1), source="scikit-learn x")
    with pytest.raises(UnsupportedModel, match="model 1 .* is of another library than model 0"):
        tvm_forest.load([first, replace(first, source="xgboost y")])
