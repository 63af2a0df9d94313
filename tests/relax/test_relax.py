"""Forests inside Relax modules: the operator, and both ways down to machine code."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import lightgbm_models
import models as booster_models
import sklearn_models
import tvm_forest
import tvm_forest.relax
import xgboost_models
from forests import Split, drawn_forest, forest_of
from relax_modules import BATCHES, HERE, chain_of, module_of, rows_of, run
from shared_models import shared_model
from tvm_forest.errors import InputError, ModelFormatError, ScheduleError, UnsupportedModel
from tvm_forest.forest import Forest, choose_labels
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.layouts import SIMDIZED_TREES
from tvm_forest.layouts.laying_out.request import BuildRequest
from tvm_forest.relax import LinkForests, register_linked
from tvm_forest.relax.functions import hide_buffers, lower_for_batches
from tvm_forest.relax.link_forests import join_arrays
from tvm_forest.relax.lowering import choose_schedules
from tvm_forest.relax.model import from_constant, to_constant, to_tensor_constant
from tvm_forest.relax.outputs import label_table
from tvm_forest.relax.targets import from_tvm
from tvm_forest.system import archive
from tvm_forest.target import Target


@functools.cache
def small_forest() -> Forest:
    return drawn_forest(12, 3, base=(0.5, -1.0, 2.0), n_features=6)


def build(mod: tvm.IRModule, way: str, target: Any = HERE, **options: Any) -> Any:
    """Compile a module, its forests linked or legalised."""
    mod = LinkForests()(mod) if way == "linked" else mod
    if options.get("exec_mode") == "compiled":
        register_linked(mod)
    return relax.build(mod, target, **options)


WAYS = pytest.mark.parametrize("way", ["linked", "legalised"])


# -- modules --------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("name", ["letters", "airline.json", "year.json"])
@pytest.mark.cases(1)
def test_margins_in_a_chain_have_the_bits_of_a_predictor(name: str, way: str) -> None:
    forest = small_forest() if name == "letters" else tvm_forest.load(shared_model(name))
    executable = build(chain_of(forest), way)
    predictor = tvm_forest.build(forest, schedule=tvm_forest.new_schedule(forest))
    for n in (*BATCHES, 5000):
        scaled, margin, end = run(executable, rows_of(forest, n))
        expected = predictor.predict_margin(scaled).reshape(n, forest.n_outputs)
        assert np.array_equal(margin.view(np.uint8), expected.view(np.uint8))
        assert end.shape == (n, 3)


@WAYS
@pytest.mark.parametrize("mode", ["bytecode", "compiled"])
@pytest.mark.parametrize("pipeline", ["default", "zero", "cpu_generic"])
@pytest.mark.cases(1)
def test_pipelines_and_modes_give_the_same_bits(pipeline: str, mode: str, way: str) -> None:
    forest = small_forest()
    chosen: Any = pipeline
    if pipeline == "zero":  # which stops before the virtual machine
        stages = [relax.get_pipeline("zero"), relax.get_pipeline("default")]
        chosen = tvm.transform.Sequential(stages)
    elif pipeline == "cpu_generic":
        chosen = relax.backend.cpu_generic.get_default_pipeline(HERE)
    for n in (None, 7):
        mod = chain_of(forest, n, schedule=tvm_forest.new_schedule(forest))
        executable = build(mod, way, relax_pipeline=chosen, exec_mode=mode)
        scaled, margin, _ = run(executable, rows_of(forest, 7))
        assert np.array_equal(margin, forest.predict_reference(scaled))


def test_a_module_without_forests_stays_as_it_is() -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with bb.function("main", [x]):
        bb.emit_func_output(bb.emit(relax.op.exp(x)))
    mod = bb.get()
    assert tvm_ffi.structural_equal(LinkForests()(mod), mod)


def test_forests_of_several_functions_and_passes_are_linked_together() -> None:
    first, second = (drawn_forest(7, 4, seed=k) for k in (1, 2))
    mod = LinkForests()(module_of(first, schedule=tvm_forest.new_schedule(first)))
    other = module_of(second, schedule=tvm_forest.new_schedule(second))
    other = other["main"].with_attr("global_symbol", "other")
    mod = LinkForests()(tvm.IRModule({**mod.functions, "other": other}, attrs=mod.attrs))
    machine = relax.VirtualMachine(relax.build(mod, HERE), tvm.cpu())
    for name, forest in (("main", first), ("other", second)):
        rows = rows_of(forest, 9)
        margin = machine[name](tvm.runtime.tensor(rows)).numpy()
        assert np.array_equal(margin, forest.predict_reference(rows))


# -- outputs --------------------------------------------------------------------------------------


SOURCES = {
    "xgboost softprob_26_classes": booster_models.MODELS["softprob_26_classes"],
    **{
        f"xgboost {x}": xgboost_models.KINDS[x]
        for x in (
            *("categories_in_both", "targets", "vectors", "vectors_softmax_classes"),
            *("estimator_missing_999", "estimator_dart_classifier_classes"),
        )
    },
    **{
        f"lightgbm {x}": lightgbm_models.MODELS[x]
        for x in (
            *("missing_zero", "categories_and_zero", "binary", "infinite_leaves", "zero_rounds"),
            *("estimator_classifier_words", "estimator_classifier_flags", "linear_holes"),
        )
    },
    **{
        f"scikit-learn {x}": sklearn_models.MODELS[x]
        for x in ("rf several words", "rf classes holes", "hist categories holes", "isolation")
    },
}


BY_DEFAULT = (
    *("xgboost estimator_missing_999", "xgboost estimator_dart_classifier_classes"),
    "lightgbm missing_zero",
)
"""Models with their default schedules, which take several times as long to compile."""


def results_of(predictor: Any, rows: Any, output: str) -> Any:
    """Return what a module shall give."""
    forest = predictor.forest
    if output in ("margin", "value"):
        return predictor._functions.compute_sums(rows, 1)[output == "value"]
    if output == "probability":
        probabilities = predictor.predict_proba(rows)
        several = isinstance(probabilities, list)
        return np.concatenate(probabilities, axis=1) if several else probabilities
    if output == "label":
        places = replace(forest, labels=label_table(forest))
        return choose_labels(places, *predictor._functions.compute_sums(rows, 1))
    return predictor.apply(rows) if output == "leaf" else predictor.predict_per_tree(rows)


@WAYS
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.cases(1)
def test_outputs_are_those_of_a_predictor(name: str, way: str) -> None:
    forest = tvm_forest.load(SOURCES[name]())
    schedule = None if name in BY_DEFAULT else tvm_forest.new_schedule(forest)
    if schedule is not None and forest.categories:  # whose membership needs a code of rows
        schedule = schedule.tile("batch", "b0", "b1", 16).represent_as("ranked")
    predictor = tvm_forest.build(forest, schedule=schedule)
    outputs = ["margin", "value", "leaf", "per_tree"]
    if predictor.gives_probabilities:
        outputs.append("probability")
    if forest.labels is not None and forest.label_rule != "none":
        outputs.append("label")
    executable = build(module_of(forest, outputs, schedule=schedule), way)
    for n in (0, 1, 65):
        rows = rows_of(forest, n)
        for output, result in zip(outputs, run(executable, rows), strict=True):
            expected = results_of(predictor, rows, output)
            assert (result.dtype, result.shape) == (expected.dtype, expected.shape), output
            assert np.array_equal(result, expected, equal_nan=True), output


def test_one_output_is_a_tensor_and_several_are_a_tuple() -> None:
    forest = small_forest()
    one, several = (module_of(forest, x)["main"].ret_ty for x in ("value", ["value", "leaf"]))
    assert str(one.dtype.dtype) == "float32"
    assert len(several.fields) == 2


@pytest.mark.parametrize(
    ("rule", "labels"), [("argmax_margin", {10, 12}), ("top_margin", {10, 11})]
)
def test_nan_is_the_largest_score_to_numpy_and_behind_the_first_never_to_cpp(
    rule: Any, labels: set[int]
) -> None:
    far = float("inf")
    trees = [Split(0, 0.5, x, 2.0) for x in (1.0, far, far, far, 1.0, 0.0, -far, -far)]
    forest = forest_of(trees, base=[0.0] * 4)
    forest = replace(forest, labels=np.array([10, 11, 12, 13]), label_rule=rule)
    rows = rows_of(forest, 33)
    schedule = tvm_forest.new_schedule(forest)
    (result,) = run(build(module_of(forest, "label", schedule=schedule), "legalised"), rows)
    assert set(result) == labels
    assert np.array_equal(result, tvm_forest.build(forest, schedule=schedule).predict(rows))


def test_labels_that_are_texts_are_places() -> None:
    forest = tvm_forest.load(sklearn_models.MODELS["rf strings"]())
    assert label_table(forest).tolist() == list(range(len(forest.labels)))


# -- text, JSON, equality -------------------------------------------------------------------------


def test_a_call_survives_tvmscript_and_json() -> None:
    forest = small_forest()
    schedules = tvm_forest.default_schedules(forest)
    mod = module_of(forest, ["margin", "leaf"], schedule=schedules, exact=False)
    assert "R.tvm_forest.predict(" in mod.script()
    again = tvm.script.from_source(mod.script(show_meta=True))
    for other in (again, tvm.ir.load_json(tvm.ir.save_json(mod))):
        assert tvm_ffi.structural_equal(other, mod)
    assert tvm_ffi.structural_equal(
        module_of(forest, ["margin", "leaf"], schedule=schedules, exact=False), mod
    )
    assert not tvm_ffi.structural_equal(module_of(forest, ["margin", "leaf"]), mod)


def test_a_constant_is_an_archive_that_holds_the_whole_forest() -> None:
    forest = tvm_forest.load(lightgbm_models.MODELS["categories"]())
    constant = to_constant(forest)
    assert archive.is_archive(constant.value.numpy().tobytes())
    assert from_constant(constant).signature == forest.signature


# -- schedules ------------------------------------------------------------------------------------


@WAYS
def test_schedules_of_a_call_are_used(way: str) -> None:
    forest = drawn_forest(6, 4)
    start = tvm_forest.new_schedule(forest)
    schedules = {1: start.represent_as("sparse"), 5: start.tile("batch", "b0", "b1", 4)}
    mod = module_of(forest, schedule=schedules)
    if way == "legalised":
        with HERE:
            text = relax.transform.LegalizeOps()(mod).script()
        assert '"tvm_forest.name": "b1"' in text
    executable = build(mod, way)
    for n in (1, 4, 5, 9):
        rows = rows_of(forest, n)
        assert np.array_equal(run(executable, rows)[0], forest.predict_reference(rows))


@WAYS
def test_a_schedule_that_reorders_additions_has_to_be_allowed(way: str) -> None:
    forest = drawn_forest(8, 3)
    sch = tvm_forest.new_schedule(forest).tile("tree", "t0", "t1", 4).parallel("t0")
    with pytest.raises(ScheduleError, match="order"):
        build(module_of(forest, schedule=sch), way)
    rows = rows_of(forest, 5)
    (margin,) = run(build(module_of(forest, schedule=sch, exact=False), way), rows)
    np.testing.assert_allclose(margin, forest.predict_reference(rows), rtol=1e-5)


def test_rows_that_need_membership_columns_are_refused_by_name() -> None:
    forest = tvm_forest.load(lightgbm_models.MODELS["categories"]())
    sch = tvm_forest.new_schedule(forest).represent_as("sparse")
    with pytest.raises(UnsupportedModel, match="layout 'sparse'"):
        build(module_of(forest, schedule=sch), "legalised")


# -- targets --------------------------------------------------------------------------------------


@pytest.mark.long
def test_code_is_for_the_target_of_the_module() -> None:
    """A plain "llvm" is the oldest CPU of 64 bits, and no instruction is beyond it."""
    forest = tvm_forest.load(shared_model("airline.json"))
    executable = build(module_of(forest), "legalised", "llvm")
    rows = rows_of(forest, 600)
    assert np.array_equal(run(executable, rows)[0], forest.predict_reference(rows))


def test_a_target_without_cpu_is_the_baseline() -> None:
    assert from_tvm(tvm.target.Target("llvm")).options == (("mcpu", "x86-64"),)
    assert from_tvm(None).options == (("mcpu", "x86-64"),)
    assert from_tvm(HERE) == Target()


def test_forests_are_linked_on_cpus_only() -> None:
    with pytest.raises(InputError, match="'cuda' is a GPU"):
        LinkForests("cuda")


# -- bad input ------------------------------------------------------------------------------------


def damaged_constant() -> Any:
    data = to_constant(small_forest()).value.numpy().copy()
    data[len(data) // 2] ^= 1
    return to_tensor_constant(data)


def call_with(model: Any = None, shape: Any = (5, 6), dtype: str = "float32", **more: Any) -> Any:
    model = small_forest() if model is None else model
    kind = (
        relax.TensorType(dtype=dtype, ndim=2) if shape is None else relax.TensorType(shape, dtype)
    )
    bb = relax.BlockBuilder()
    x = relax.Var("x", kind)
    with bb.function("main", [x]):
        bb.emit_func_output(bb.emit(tvm_forest.relax.predict(x, model, **more)))
    return bb.get()


REFUSALS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "width": ({"shape": (5, 9)}, InputError, "argument 'rows': expected .*got T.int64.9. columns"),
    "dimensions": ({"shape": (6,)}, InputError, "argument 'rows': expected a tensor"),
    "unknown shape": ({"shape": None}, InputError, "match_cast"),
    "dtype": ({"dtype": "float64"}, InputError, "got float64; cast them"),
    "output": ({"outputs": "odds"}, InputError, "argument 'outputs': 'odds' is unknown"),
    "no output": ({"outputs": []}, InputError, "none is named"),
    "no labels": ({"outputs": "label"}, UnsupportedModel, "gives no label"),
    "a variable": (
        {"model": relax.Var("model", relax.TensorType((9,), "uint8"))},
        ModelFormatError,
        "expected a constant, got",
    ),
    "no archive": (
        {"model": to_tensor_constant(np.zeros(9, np.uint8))},
        ModelFormatError,
        "argument 'model'",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_wrong_call_is_one_error_of_ours(name: str) -> None:
    arguments, kind, message = REFUSALS[name]
    with pytest.raises(kind, match=message):
        call_with(**arguments)


def test_a_damaged_model_is_one_error_of_ours() -> None:
    with pytest.raises(ModelFormatError, match="argument 'model': the file is damaged"):
        call_with(model=damaged_constant())


@WAYS
def test_texts_that_are_no_schedules_are_refused(way: str) -> None:
    with pytest.raises(ScheduleError, match="argument 'text': no schedule"):
        build(call_with(schedule={"1": "{}"}), way)


# -- parts ----------------------------------------------------------------------------------------


def test_joined_arrays_begin_at_cache_lines() -> None:
    arrays = [np.arange(3, dtype=np.int64), np.zeros(0, np.float32), np.array([[7]], np.uint8)]
    data, offsets = join_arrays(arrays)
    *begins, size = offsets
    assert [begin % 64 for begin in begins] == [0, 0, 0]
    assert size == len(data)
    for array, begin in zip(arrays, begins, strict=True):
        assert data[begin : begin + array.nbytes].tobytes() == array.tobytes()


def test_schedules_share_the_arrays_that_both_read() -> None:
    forest = drawn_forest(9, 4)
    start = tvm_forest.new_schedule(forest)
    schedules = {1: start.interleave("tree", 3), 8: start.tile("batch", "b0", "b1", 8)}
    function = lower_for_batches(BuildRequest.of(forest, schedules, Target()))
    alone = lower_for_batches(BuildRequest.of(forest, {1: start}, Target()))
    assert set(alone.arrays) < set(function.arrays)
    # each schedule has a base score and a number of rounds of its own
    assert len(function.arrays) == len(alone.arrays) + 2


def test_buffers_at_loaded_places_are_views() -> None:
    forest = tvm_forest.load(shared_model("airline.json"))
    sch = tvm_forest.new_schedule(forest).represent_as("bitsliced").tile("batch", "b0", "b1", 512)
    sch = sch.reorder("b0", "tree", "b1").simdize("b1", "bits")
    function = lower_for_batches(BuildRequest.of(forest, {1: sch}, Target())).func
    assert "planes = memory.view(" in hide_buffers(function).script()
    assert "planes = T.alloc_buffer(" in function.script()


def test_codes_of_all_rows_are_hidden_too() -> None:
    forest = drawn_forest(12, 4)
    sch = tvm_forest.new_schedule(forest).represent_as("ranked").reorder("tree", "batch")
    function = lower_for_batches(BuildRequest.of(forest, {1: sch}, Target())).func
    assert "codes = memory.view(n, " in hide_buffers(function).script()
    rows = hard_rows(forest, 65)
    (margin,) = run(build(module_of(forest, schedule=sch), "legalised"), rows)
    assert np.array_equal(margin, forest.predict_reference(rows))


def in_registers(forest: Forest, layout: str) -> Any:
    """Return a schedule whose code gives addresses of buffers to functions in LLVM's language."""
    sch = tvm_forest.new_schedule(forest).represent_as(layout)
    if layout in SIMDIZED_TREES:
        return sch.simdize("tree", layout)
    sch = sch.tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
    return sch.simdize("b1", "permute" if layout == "levels" else "bits")


@pytest.mark.parametrize("layout", ["octets", "pieces", "levels", "bitsliced"])
@pytest.mark.cases(2, others="long")
def test_what_functions_read_behind_an_address_stays(layout: str) -> None:
    """TVM would keep of 64 codes in a register those columns that are written."""
    forest = drawn_forest(6, 3)
    sch, rows = in_registers(forest, layout), hard_rows(forest, 70)
    (margin,) = run(build(module_of(forest, schedule=sch), "legalised"), rows)
    assert np.array_equal(margin, forest.predict_reference(rows))


def test_buffers_whose_addresses_are_given_away_are_views() -> None:
    forest = drawn_forest(20, 5)
    vbmi = Target(abilities=frozenset({"avx2", "avx512f", "avx512vbmi"}), cores=1)
    sch = in_registers(forest, "octets")
    function = lower_for_batches(BuildRequest.of(forest, {1: sch}, vbmi)).func
    hidden = hide_buffers(function).script()
    assert "codes = memory.view(T.int64(1), T.int64(64))" in hidden
    assert "codes = T.alloc_buffer(" in function.script()


def test_rows_are_cleaned_in_the_module() -> None:
    forest = replace(drawn_forest(9, 4), missing=-999.0, zero_missing=(1, 2))
    rows = hard_rows(forest, 65).astype(np.float32)
    rows[::3, 0], rows[::4, 1], rows[::5, 2], rows[::6, 3] = -999, 0, 1e-36, 0
    schedule = tvm_forest.new_schedule(forest)
    for way in ("linked", "legalised"):
        (margin,) = run(build(module_of(forest, schedule=schedule), way), rows)
        assert np.array_equal(margin, forest.predict_reference(rows))


def test_records_that_tune_has_not_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="argument 'records': a schedule is given as well; leave"):
        module_of(small_forest(), schedule={1: "{}"}, records=tmp_path / "records.jsonl")
    with pytest.raises(InputError, match="records: file '.*records.jsonl': cannot be read"):
        module_of(small_forest(), records=tmp_path / "records.jsonl")


def test_threads_of_tvm_share_batches_of_512_rows_and_more_only() -> None:
    schedules = choose_schedules(drawn_forest(100, 6), replace(Target(), cores=4))
    parallel = {k: any(x.parallel for x in sch.loops()) for k, sch in schedules.items()}
    ends = [*list(parallel)[1:], None]
    shared = {k: end is None or end > 512 for k, end in zip(parallel, ends, strict=True)}
    assert parallel == shared
