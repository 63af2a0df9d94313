"""Categories, targets, vector leaves, weighted trees and own missing values have XGBoost's bits."""

import json
import warnings

import numpy as np
import pytest
import xgboost as xgb

import tvm_forest
from models import COMMON, data, leaves, margins, matrix_of, train, values
from tvm_forest.forest import CategoryRule, choose_labels
from tvm_forest.frontends import load
from xgboost_models import KINDS, NAMES, ODD_CODES, coded, frame, odd_rows

pytestmark = pytest.mark.slow

LINK_ULPS = 8  # numpy's exp against the C library's


@pytest.mark.parametrize("name", KINDS)
def test_margins_equal_those_of_xgboost_bit_for_bit(name):
    model = KINDS[name]()
    forest = load(model)
    rows = odd_rows(model, forest, 1000)
    margin = forest.predict_reference(rows)
    assert margin.dtype == np.float32
    assert np.array_equal(margin, margins(model, rows))
    assert (forest.n_outputs > 1) == any(
        word in name for word in ("targets", "quantiles", "classes", "vectors", "labels")
    )


@pytest.mark.parametrize("name", KINDS)
def test_leaf_numbers_equal_those_of_xgboost(name):
    model = KINDS[name]()
    forest = load(model)
    rows = odd_rows(model, forest, 500)
    if forest.missing != np.inf:
        rows = np.nan_to_num(rows, nan=np.nan)
    giver = model.get_booster() if name == "estimator_named_categories" else model
    leaf, expected = forest.predict_reference(rows, "apply"), leaves(giver, rows)
    assert leaf.dtype == expected.dtype
    assert np.array_equal(leaf, expected)


@pytest.mark.parametrize("name", KINDS)
def test_values_and_labels_equal_those_of_xgboost_within_ulps(name):
    model = KINDS[name]()
    forest = load(model)
    rows = odd_rows(model, forest, 500)
    value, expected = forest.predict_reference(rows, "value"), values(model, rows)
    if forest.label_rule == "top_margin":
        value = forest.labels[forest.predict_reference(rows).argmax(axis=1)][:, None]
    if forest.label_rule in ("argmax_probability", "half"):
        label, known = (
            choose_labels(forest, forest.predict_reference(rows), value),
            model.predict(rows),
        )
        assert label.dtype == known.dtype and np.array_equal(label, known)
    assert value.shape == expected.shape and value.dtype == expected.dtype
    assert np.all(np.abs(value - expected) <= LINK_ULPS * np.spacing(np.abs(expected)))


def test_a_compiled_classifier_of_several_labels_predicts_as_xgboost_does():
    model = KINDS["estimator_labels"]()
    predictor = tvm_forest.build(model, schedule=lambda start: start)
    rows = odd_rows(model, predictor.forest, 300)
    found, expected = predictor.predict(rows), model.predict(rows)
    assert found.shape == (300, 3) and found.dtype == expected.dtype
    assert np.array_equal(found, expected)
    likely = predictor.predict_proba(rows)
    assert np.all(np.abs(likely - model.predict_proba(rows)) <= LINK_ULPS * np.spacing(likely))


@pytest.mark.parametrize("name", ["categories_in_sets", "vectors", "named_categories", "targets"])
@pytest.mark.parametrize("suffix", ["json", "ubj"])
def test_a_file_loads_as_the_booster_that_it_holds(tmp_path, name, suffix):
    booster = KINDS[name]()
    path = tmp_path / f"saved.{suffix}"
    booster.save_model(path)
    assert load(path).signature == load(booster).signature


# -- categories -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in KINDS if "categories" in name])
def test_a_matrix_with_types_has_the_margins_of_the_rows(name):
    model = KINDS[name]()
    booster = model if isinstance(model, xgb.Booster) else model.get_booster()
    forest = load(booster)
    rows = np.nan_to_num(odd_rows(booster, forest, 1000), nan=np.nan)
    margin = booster.predict(matrix_of(booster, rows), output_margin=True)
    assert np.array_equal(forest.predict_reference(rows), margin.reshape(len(rows), -1))


@pytest.mark.parametrize("name", ["categories_one_hot", "categories_in_sets"])
@pytest.mark.parametrize("code", ODD_CODES)
def test_every_odd_code_goes_the_way_of_xgboost(name, code):
    booster = KINDS[name]()
    rows = coded()[0][:200].copy()
    rows[:, 0] = code
    margin = booster.inplace_predict(rows, predict_type="margin")
    assert np.array_equal(load(booster).predict_reference(rows)[:, 0], margin)


def test_categories_have_the_rule_of_xgboost_and_sets_of_one_or_more():
    one_hot, in_sets = (load(KINDS[f"categories_{how}"]()) for how in ("one_hot", "in_sets"))
    assert one_hot.category_rule == in_sets.category_rule == CategoryRule("right")
    assert {len(codes) for codes in one_hot.categories.values()} == {1}
    assert max(len(codes) for codes in in_sets.categories.values()) > 10
    assert load(KINDS["targets"]()).category_rule is None


def test_nodes_behind_dropped_ones_keep_their_categories(tmp_path):
    document = json.loads(KINDS["categories_in_sets"]().save_raw("json"))
    tree = document["learner"]["gradient_booster"]["model"]["trees"][0]
    cut = tree["left_children"][0]  # its subtree becomes a leaf; no path leads below it any more
    for name in ("left_children", "right_children"):
        tree[name][cut] = -1
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(document))
    forest, booster = load(path), xgb.Booster(model_file=path)
    rows = odd_rows(booster, forest, 500)
    assert np.diff(forest.tree_offset)[0] < int(tree["tree_param"]["num_nodes"])
    assert not forest.is_leaf[list(forest.categories)].any()
    assert np.array_equal(forest.predict_reference(rows), margins(booster, rows))


def test_the_names_of_categories_are_those_of_the_frame():
    names = load(KINDS["named_categories"]()).category_names
    assert names == {
        NAMES.index(name): tuple(frame()[name].cat.categories) for name in ("hue", "size")
    }
    assert load(KINDS["categories_in_sets"]()).category_names == {}


@pytest.mark.parametrize("name", ["named_categories", "estimator_named_categories"])
def test_a_frame_in_the_encoding_of_the_model_predicts_as_its_codes_do(name):
    model = KINDS[name]()
    forest = load(model)
    shuffled = frame().assign(hue=frame()["hue"].cat.set_categories(forest.category_names[0][::-1]))
    for given in (frame(), shuffled):
        codes = given.copy()
        for feature, names in forest.category_names.items():
            column = given[NAMES[feature]].cat.set_categories(names).cat.codes
            codes[NAMES[feature]] = column
        expected = model.predict(given) if hasattr(model, "fit") else model.inplace_predict(given)
        assert np.array_equal(forest.predict_reference(codes.to_numpy())[:, 0], expected)


def test_names_that_xgboost_cuts_in_the_wrong_places_are_left_out():
    """It counts the characters of pandas' names, but cuts bytes; codes predict all the same."""
    given = frame().assign(hue=frame()["hue"].cat.rename_categories(lambda name: "ä" + name))
    booster = xgb.train(COMMON, xgb.DMatrix(given, coded()[1], enable_categorical=True), 3)
    forest = load(booster)
    rows = odd_rows(booster, forest, 200)
    assert list(forest.category_names) == [2]
    assert np.array_equal(forest.predict_reference(rows), margins(booster, rows))


# -- targets and vectors --------------------------------------------------------------------------


def test_quantiles_are_sorted_since_3_4():
    booster = train("reg:quantileerror", data()[1], 3, quantile_alpha=[0.3, 0.4, 0.5], eta=1.0)
    document = json.loads(booster.save_raw("json"))
    rows = odd_rows(booster, load(booster), 300)
    margin = margins(booster, rows)
    crossed = int((np.diff(margin) < 0).any(axis=1).sum())
    assert 0 < crossed < 300
    for version, expected in (([3, 3, 0], margin), ([3, 4, 1], np.sort(margin))):
        document["version"] = version
        predictor = tvm_forest.build(
            load(json.dumps(document).encode()), schedule=lambda start: start
        )
        assert np.array_equal(predictor.predict_margin(rows), margin)
        assert np.array_equal(predictor.predict(rows), expected)


def test_a_single_expectile_is_its_margin():
    booster = train("reg:squarederror", data()[1], 3)
    document = json.loads(booster.save_raw("json"))
    document |= {"version": [3, 4, 1]}
    document["learner"]["objective"]["name"] = "reg:expectileerror"
    forest = load(json.dumps(document).encode())
    rows = odd_rows(booster, forest, 100)
    for output in ("margin", "value"):
        assert np.array_equal(forest.predict_reference(rows, output), margins(booster, rows))


def test_an_estimator_of_the_base_class_predicts_values():
    model = xgb.XGBModel(objective="binary:logistic", n_estimators=3, n_jobs=1)
    model.fit(data()[0], data()[1] > 3)
    forest = load(model)
    assert not forest.gives_labels
    rows = odd_rows(model, forest, 100)
    assert np.array_equal(forest.predict_reference(rows), margins(model, rows))


def test_a_tree_of_vectors_adds_to_every_output():
    forest = load(KINDS["vectors"]())
    assert forest.leaf_value.shape == (forest.n_nodes, 3)
    assert forest.n_trees == forest.n_rounds == 12
    assert set(forest.tree_class) == {-1}


def test_rounds_count_the_trees_of_all_targets_once():
    assert load(KINDS["targets"]()).n_rounds == 12
    assert load(KINDS["targets_of_a_forest"]()).n_trees == 12 * 4 * 3
    assert load(KINDS["vectors_of_a_forest"]()).n_rounds == 12


@pytest.mark.parametrize("name", [name for name in KINDS if "stopped_early" in name])
def test_an_estimator_keeps_the_trees_up_to_its_best_round(name):
    model = KINDS[name]()
    forest = load(model)
    assert forest.n_rounds == model.best_iteration + 1 < model.get_booster().num_boosted_rounds()


# -- missing values and DART ----------------------------------------------------------------------


def test_the_missing_value_of_an_estimator_is_its_own_and_nan_stays_one():
    model = KINDS["estimator_missing_999"]()
    assert load(model).missing == -999
    assert load(model.get_booster()).missing is None
    rows = data()[0].copy()
    rows[:, ::2] = -999
    holes = np.where(rows == -999, np.float32(np.nan), rows)
    assert np.array_equal(model.predict(rows), model.predict(holes))
    assert np.array_equal(load(model).predict_reference(rows), load(model).predict_reference(holes))


def test_a_missing_value_beyond_float32_is_infinity():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(xgb.XGBRegressor(n_estimators=1, missing=1e40).fit(*data())).missing == np.inf


def test_a_dart_estimator_rounds_in_another_way_than_its_booster():
    model = KINDS["estimator_dart"]()
    rows = data()[0]
    by_rows, by_matrix = (
        load(each).predict_reference(rows) for each in (model, model.get_booster())
    )
    assert not np.array_equal(by_rows, by_matrix)
    assert np.allclose(by_rows, by_matrix, rtol=1e-5)
    assert np.array_equal(by_matrix, margins(model.get_booster(), rows))
