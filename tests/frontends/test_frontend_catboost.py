"""CatBoost models give CatBoost's own margins to the bit, and what cannot be is refused."""

from __future__ import annotations

import json
import pickle
import sys

import catboost as cb
import numpy as np
import pandas as pd
import pytest

import tvm_forest
from catboost_models import (
    CATEGORIES,
    MODELS,
    OPTIONS,
    TARGETS,
    data,
    margins,
    train,
    with_categories,
    yes,
)
from tvm_forest.errors import InputError, ModelFormatError, UnsupportedModel
from tvm_forest.forest import choose_labels
from tvm_forest.forest.probe_rows import given_rows, hard_rows, make_text
from tvm_forest.forest.rules import LINK_ULPS
from tvm_forest.frontends import load
from tvm_forest.predictor.inputs import to_rows
from tvm_forest.verification import ulps

BY_DEFAULT = ("regressor", "categories")
"""Models with their default schedules, which take ten times as long to compile."""
CODED = [name for name in MODELS if "categor" in name or "one_hot" in name]


def rows_for(forest, n=500):
    """Hard rows as users pass them."""
    rows = hard_rows(forest, n)
    return rows if forest.encoder is None else given_rows(forest, rows)


def pool(model, rows):
    return cb.Pool(rows, cat_features=model.get_cat_feature_indices() or None)


def document(model, tmp_path):
    model.save_model(str(tmp_path / "model.json"), format="json")
    return json.loads((tmp_path / "model.json").read_text())


@pytest.mark.parametrize("name", MODELS)
def test_margins_leaves_and_predictions_are_those_of_catboost(name):
    model = MODELS[name]()
    forest = load(model)
    rows = rows_for(forest)
    matrix = to_rows(rows, forest)
    margin = margins(model, rows)
    assert np.array_equal(forest.predict_reference(matrix).reshape(margin.shape), margin)
    leaves = model.calc_leaf_indexes(pool(model, rows), thread_count=1)
    assert np.array_equal(forest.predict_reference(matrix, "apply"), leaves)


@pytest.mark.cases(6)
@pytest.mark.parametrize("name", MODELS)
def test_compiled_models_predict_what_catboost_predicts(name):
    model = MODELS[name]()
    predictor = tvm_forest.build(
        model, schedule=None if name in BY_DEFAULT else lambda start: start
    )
    rows = rows_for(predictor.forest)
    for n in (1, 4, 127, 500):
        assert np.array_equal(predictor.predict_margin(rows[:n]), margins(model, rows[:n]))
    found, expected = predictor.predict(rows), np.asarray(model.predict(rows, thread_count=1))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if found.dtype != np.float64:
        assert np.array_equal(found, expected)
        found, expected = predictor.predict_proba(rows), model.predict_proba(rows, thread_count=1)
    assert ulps(found, expected).max() <= LINK_ULPS[predictor.forest.link]


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", MODELS)
def test_files_hold_the_same_model(name, tmp_path):
    model = MODELS[name]()
    forest = load(model)
    rows = to_rows(rows_for(forest, 100), forest)
    for form in ("json", "cbm"):
        path = tmp_path / f"model.{form}"
        model.save_model(str(path), format=form)
        again = load(path)
        assert np.array_equal(again.predict_reference(rows), forest.predict_reference(rows))
        assert repr(again.encoder) == repr(forest.encoder)


@pytest.mark.parametrize("name", ["regressor", "category_classes"])
def test_the_bias_belongs_to_the_first_trees(name):
    model = MODELS[name]().copy()
    bias = model.get_scale_and_bias()[1]
    model.set_scale_and_bias(0.7, np.add(bias, 0.1).tolist())
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    assert predictor.forest.sum_scale == 0.7
    rows = rows_for(predictor.forest)
    assert np.array_equal(predictor.predict_margin(rows), margins(model, rows))
    # Some rounds of the other model are compiled anew.
    for begin, end in ((0, 3), (2, 7))[: 2 if name == "regressor" else 1]:
        expected = margins(model, rows, ntree_start=begin, ntree_end=end)
        found = predictor.predict_margin(rows, iteration_range=(begin, end))
        assert np.array_equal(found, expected)


def test_a_product_is_rounded_before_the_bias_is_added():
    model = MODELS["regressor"]().copy()
    model.set_scale_and_bias(1 / 3, -1e-3)
    for target in ("llvm", "simt"):
        schedule = tvm_forest.hop_schedule(load(model), target)
        predictor = tvm_forest.build(model, target, schedule)
        rows = rows_for(predictor.forest)
        assert np.array_equal(predictor.predict_margin(rows), margins(model, rows))


def test_sums_of_models_and_models_without_trees():
    models = [MODELS["categories"](), train("CatBoostRegressor", coded=True, random_seed=3)]
    models[1].set_scale_and_bias(2.0, 0.3)
    first = train("CatBoostRegressor", coded=True, nan_mode="Min", depth=2)
    total = cb.sum_models([first, models[1]], weights=[0.3, 0.9])
    forest = load(total)
    rows = rows_for(forest)
    assert np.array_equal(
        forest.predict_reference(to_rows(rows, forest))[:, 0], margins(total, rows)
    )
    none = MODELS["regressor"]().copy()
    none.shrink(0, 0)
    with pytest.raises(UnsupportedModel, match="field 'trees': there are none"):
        load(none)


SOME_CLASSES = {
    "one against all": ([0, 3], {"classes_count": 4, "loss_function": "MultiClassOneVsAll"}),
    "all of a count": ([0, 1, 2], {"classes_count": 3}),
    "some of a count": ([0, 2], {"classes_count": 4}),
    "some of a count, weighted": ([0, 2], {"classes_count": 3, "class_weights": [1, 2, 3]}),
    "some of the names": (["pear", "fig"], {"class_names": ["kiwi", "fig", "plum", "pear"]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SOME_CLASSES)
@pytest.mark.cases(1)
def test_classes_may_be_told_and_have_no_rows(case, tmp_path):
    seen, options = SOME_CLASSES[case]
    rows = data()[0]
    target = np.array(seen)[np.arange(len(rows)) % len(seen)]
    model = cb.CatBoostClassifier(
        **{"loss_function": "MultiClass", **OPTIONS, "iterations": 4, **options}
    ).fit(rows, target)
    model.save_model(str(tmp_path / "model.json"), format="json")
    hard = hard_rows(load(model), 200)
    for given in (model, tmp_path / "model.json"):
        forest = load(given)
        margin = forest.predict_reference(hard)
        assert margin.tobytes() == model.predict(hard, "RawFormulaVal").tobytes()
        assert (np.isneginf(margin).all(axis=0) == ~np.isin(forest.labels, seen)).all()
        assert np.array_equal(forest.labels, model.classes_)
    predict = tvm_forest.build(model, schedule=lambda start: start).predict_margin
    for begin, end in ((0, 2), (3, 4)):
        expected = model.predict(hard, "RawFormulaVal", ntree_start=begin, ntree_end=end)
        np.testing.assert_array_equal(predict(hard, iteration_range=(begin, end)), expected)
    report = tvm_forest.verify(model, n_rows=100, schedule=lambda start: start)
    assert report.ok and not isinstance(report.library, str), report


def test_a_threshold_of_probability_moves_the_labels():
    model = MODELS["classifier"]().copy()
    model.set_probability_threshold(0.7)
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    rows = rows_for(predictor.forest)
    assert np.array_equal(predictor.predict(rows), model.predict(rows))


@pytest.mark.parametrize("name", ["regressor", "category_classes"])
def test_a_saved_predictor_keeps_the_encoder(name):
    predictor = tvm_forest.build(MODELS[name](), schedule=lambda start: start)
    rows = rows_for(predictor.forest, 50)
    again = pickle.loads(pickle.dumps(predictor))
    assert again.signature == predictor.signature
    assert np.array_equal(again.predict_margin(rows), predictor.predict_margin(rows))


def test_another_table_gives_another_signature():
    forest = load(MODELS["categories"]())
    other = load(train("CatBoostRegressor", coded=True, nan_mode="Max", one_hot_max_size=4))
    assert forest.signature == load(MODELS["categories"]()).signature != other.signature


def test_verification_knows_catboost(tmp_path):
    for name in ("classes", "category_classes"):
        report = tvm_forest.verify(MODELS[name](), n_rows=100, schedule=lambda start: start)
        assert report.ok, report
        assert "catboost" in str(report)
    path = tmp_path / "model.json"
    MODELS["one_hot"]().save_model(str(path), format="json")
    rows = with_categories()[0][:20]
    report = tvm_forest.verify(path, rows, n_rows=40, schedule=lambda start: start)
    assert report.ok and report.rows["given"] == 20, report


# -- rows with categories -------------------------------------------------------------------------


def test_kinds_of_rows_with_categories_are_read_alike():
    model = MODELS["categories"]()
    forest = load(model)
    rows = with_categories()[0][:60].copy()
    rows[::7, 6], rows[::9, 5] = "never seen", -5
    expected = margins(model, rows)
    frame = pd.DataFrame(rows)
    for at in range(4):
        frame[at] = frame[at].astype("float64")
    frame[5] = frame[5].astype("int16")
    coded = frame.copy()
    for at in CATEGORIES:
        coded[at] = coded[at].astype("category")
    frame.columns = coded.columns = [str(at) for at in frame.columns]
    kinds = {"objects": rows, "list": rows.tolist(), "frame": frame, "coded": coded}
    for kind, given in kinds.items():
        found = forest.predict_reference(to_rows(given, forest))[:, 0]
        assert np.array_equal(found, expected), kind
        if kind != "list":
            assert to_rows(given[:0], forest).shape == (0, forest.row_width)


def test_categories_are_texts_bytes_integers_and_bools():
    model = MODELS["categories"]()
    forest = load(model)
    rows = with_categories()[0][:6].copy()
    rows[:, 5] = [1, "1", b"1", np.int16(1), True, np.bool_(True)]
    rows[:, :5], rows[:, 6] = rows[0, :5], rows[0, 6]
    assert len(np.unique(margins(model, rows))) == 1
    matrix = to_rows(rows, forest)
    assert np.array_equal(matrix, matrix[[0] * 6], equal_nan=True)


def test_a_text_is_made_for_every_hash():
    from clickhouse_cityhash.cityhash import CityHash64

    for code in (0, 1, 0xFFFFFFFF, 0x1234ABCD):
        assert CityHash64(make_text(code)) & 0xFFFFFFFF == code


UNREADABLE = {
    "a missing category": (lambda rows: rows.__setitem__((1, 5), None), "got None"),
    "a real number": (lambda rows: rows.__setitem__((1, 5), 1.0), "column 5 holds categories"),
    "a text in a column of numbers": (
        lambda rows: rows.__setitem__((1, 0), "0.5"),
        "column 0 holds numbers, got '0.5'",
    ),
    "half of a pair": (lambda rows: rows.__setitem__((1, 6), "\udc80"), "no text of Unicode"),
    "too large an integer": (lambda rows: rows.__setitem__((1, 5), 2**63), "64 bits"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_values_that_catboost_refuses_are_refused(case):
    change, message = UNREADABLE[case]
    rows = with_categories()[0][:3].copy()
    change(rows)
    with pytest.raises(InputError, match=message):
        to_rows(rows, load(MODELS["categories"]()))


def test_rows_of_other_kinds_are_refused():
    forest = load(MODELS["categories"]())
    rows = with_categories()[0][:3]
    for given, message in (
        (np.zeros((3, 7)), "holds numbers alone"),
        (rows[:, :4], r"shape \(R, 7\), got \(3, 4\)"),
        (rows[0], "for one row use"),
        (pd.DataFrame(rows[:, :4]), "expected 7 columns, got 4"),
        (3, "cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            to_rows(given, forest)


def test_the_package_that_hashes_is_named_where_it_is_missing(monkeypatch):
    forest = load(MODELS["categories"]())
    monkeypatch.setitem(sys.modules, "clickhouse_cityhash.cityhash", None)
    with pytest.raises(InputError, match="install it, e.g. with pip install 'tvm-forest"):
        to_rows(with_categories()[0][:3], forest)


def test_an_encoder_is_not_exported(tmp_path):
    predictor = tvm_forest.build(MODELS["categories"](), schedule=lambda start: start)
    with pytest.raises(UnsupportedModel, match="field 'encoder'"):
        predictor.export_library(tmp_path / "model.so")
    from tvm_forest.relax import to_constant

    with pytest.raises(UnsupportedModel, match="field 'encoder'"):
        to_constant(predictor.forest)


# -- refusals -------------------------------------------------------------------------------------


def changed(holder, **members):
    for name, value in members.items():
        holder[name] = value


def floats(content):
    return content["features_info"]["float_features"]


DAMAGES = {
    "no features": (lambda d: d.pop("features_info"), "'features_info': missing"),
    "no trees": (lambda d: d.pop("oblivious_trees"), "'oblivious_trees': missing"),
    "no bias": (lambda d: changed(d, scale_and_bias=[1]), "expected two parts"),
    "a leaf too few": (
        lambda d: d["oblivious_trees"][0]["leaf_values"].pop(),
        "15 numbers for 4 levels and 1 outputs",
    ),
    "a leaf that is none": (
        lambda d: changed(d["oblivious_trees"][0], leaf_values=[float("nan")] * 16),
        "expected finite numbers",
    ),
    "a border in words": (
        lambda d: changed(d["oblivious_trees"][0]["splits"][0], border="x"),
        "'border': expected a list of numbers",
    ),
    "a feature that is not there": (
        lambda d: changed(d["oblivious_trees"][0]["splits"][0], float_feature_index=9),
        "'float_feature_index': no feature 9",
    ),
    "two features in one column": (
        lambda d: changed(d["features_info"]["float_features"][0], flat_feature_index=1),
        "two features in one column",
    ),
    "another treatment": (
        lambda d: [
            changed(x, nan_value_treatment="?") for x in d["features_info"]["float_features"]
        ],
        "'nan_value_treatment': '\\?' is not known",
    ),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_document_is_refused(case, tmp_path):
    damage, message = DAMAGES[case]
    content = document(MODELS["regressor"](), tmp_path)
    damage(content)
    with pytest.raises(ModelFormatError, match=message):
        load(json.dumps(content).encode())


REFUSED = {
    "another loss": (
        lambda d: changed(d["model_info"]["params"], loss_function={"type": "Magic"}),
        "'loss_function': 'Magic' is not among those known",
    ),
    "texts": (lambda d: changed(d["features_info"], text_features=[{}]), "field 'text_features'"),
    "embeddings": (
        lambda d: changed(d["features_info"], embedding_features=[{}]),
        "field 'embedding_features'",
    ),
    "another test": (
        lambda d: changed(d["oblivious_trees"][0]["splits"][0], split_type="Magic"),
        "'split_type': 'Magic' is not among those known",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_reproduced_is_refused_by_name(case, tmp_path):
    change, message = REFUSED[case]
    content = document(MODELS["regressor"](), tmp_path)
    change(content)
    with pytest.raises(UnsupportedModel, match=message):
        load(json.dumps(content).encode())


def test_truncated_files_are_refused(tmp_path):
    for form in ("json", "cbm"):
        path = tmp_path / f"model.{form}"
        MODELS["categories"]().save_model(str(path), format=form)
        whole = path.read_bytes()
        for end in (30, len(whole) // 2, len(whole) - 9, len(whole) - 1):
            with pytest.raises(ModelFormatError):
                load(whole[:end])


def test_a_binary_file_needs_the_library(tmp_path, monkeypatch):
    path = tmp_path / "model.cbm"
    MODELS["regressor"]().save_model(str(path))
    monkeypatch.setitem(sys.modules, "catboost", None)
    with pytest.raises(UnsupportedModel, match="field 'catboost'.*not installed; install it"):
        load(path)


def test_an_untrained_object_is_refused():
    with pytest.raises(ModelFormatError, match="holds no trained model; train it"):
        load(cb.CatBoostRegressor())


def test_statistics_that_json_confuses_are_refused():
    several = {"simple_ctr": ["Borders:TargetBorderCount=5", "Borders:TargetBorderCount=2"]}
    with pytest.raises(UnsupportedModel, match="field 'target_binarization': two ways"):
        load(train("CatBoostRegressor", coded=True, **several))
    flags = {"loss_function": "MultiLogloss"}
    with pytest.raises(UnsupportedModel, match="field 'target_binarization': Borders of the loss"):
        load(train("CatBoostClassifier", lambda y: np.stack([yes(y), yes(-y)], 1), True, **flags))
    assert load(train("CatBoostRegressor", coded=True, simple_ctr=TARGETS)).encoder is not None


def test_a_classifier_of_an_unknown_loss_is_refused():
    class Loss:
        def calc_ders_range(self, approxes, targets, weights):
            return [(targets[at] - approxes[at], -1.0) for at in range(len(targets))]

    rows, target = data()
    own = {"loss_function": Loss(), "eval_metric": "Logloss", **OPTIONS}
    with pytest.raises(UnsupportedModel, match="a classifier of the loss 'PythonUserDefined"):
        load(cb.CatBoostClassifier(**own).fit(rows, yes(target)))


# -- labels of models of older versions -----------------------------------------------------------

OLD = '{"classes_count":0,"class_names":["x","y","z"],"class_to_label":[0,1,2]}'
OLD_LABELS = {
    "by another name": ("classes", {"multiclass_params": OLD}),
    "in another order": ("classes", {"multiclass_params": OLD.replace("0,1,2", "2,0,1")}),
    "numbers of classes": ("classes", {"class_params": OLD.replace('["x","y","z"]', "[]")}),
    "others": ("classes", {"multiclass_params": '{"class_names":[],"class_to_label":[5,7.0,9]}'}),
    "a count": ("classes", {"multiclass_params": '{"classes_count":3,"class_to_label":[0,1,2]}'}),
    "nowhere": ("classes", {}),
    "nowhere, two classes": ("classifier", {}),
    "one against all": ("one_versus_all", {}),
    "several labels": ("labels", {}),
}


def without_labels(name, members):
    """Return a copy of a model that says what older versions say."""
    model = MODELS[name]().copy()
    about = model.get_metadata()
    del about["class_params"]
    for key, value in members.items():
        about[key] = value
    return model


@pytest.mark.parametrize("case", OLD_LABELS)
def test_labels_that_older_versions_tell_are_those_that_catboost_takes(case, tmp_path):
    model = without_labels(*OLD_LABELS[case])
    rows = hard_rows(load(MODELS[OLD_LABELS[case][0]]()), 50)
    expected = model.predict(rows)
    for file, kind in (("model.cbm", "cbm"), ("model.json", "json")):
        model.save_model(str(tmp_path / file), format=kind)
        forest = load(tmp_path / file)
        margin = forest.predict_reference(rows)
        found = choose_labels(forest, margin, forest.values_of(margin))
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
        assert case == "several labels" or np.array_equal(forest.labels, model.classes_)


@pytest.mark.parametrize("name", ["classes", "regressor", "lossguide"])
@pytest.mark.parametrize("bias", ["none", "scalar", "empty", "null"])
def test_files_of_older_versions_say_the_bias_otherwise(name, bias, tmp_path):
    model = MODELS[name]()
    content = document(model, tmp_path)
    content["scale_and_bias"] = {"scalar": [2, 0], "empty": [2, []], "null": [2, None]}.get(bias)
    if bias == "none":
        del content["scale_and_bias"]
    (tmp_path / "old.json").write_text(json.dumps(content))
    forest = load(tmp_path / "old.json")
    rows = hard_rows(forest, 50)
    expected = margins(cb.CatBoost().load_model(str(tmp_path / "old.json"), "json"), rows)
    found = forest.predict_reference(rows).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-14)  # whose reader of JSON rounds numbers


def test_what_a_model_says_of_itself_may_be_text(tmp_path):
    content = document(MODELS["category_classes"](), tmp_path)
    content["model_info"] = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in content["model_info"].items()
    }
    forest = load(json.dumps(content).encode())
    assert forest.signature == load(MODELS["category_classes"]()).signature
