"""XGBoost models load with the bits of XGBoost: equal margins and leaves, links within ulps."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import xgboost as xgb

import tvm_forest
from models import CLASSES, MODELS, data, labels, leaves, margins, probe_rows, train, values
from shared_models import shared_model
from tvm_forest.errors import UnsupportedModel
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.frontends import load

pytestmark = pytest.mark.slow

OLD = Path(__file__).parents[1] / "data"
OLD_FILES = sorted(path.name for path in OLD.glob("xgboost-*-*.*"))
LINK_ULPS = 8  # numpy's exp against the C library's


def without_infinities(rows):
    return np.nan_to_num(rows, nan=np.nan)


# -- parity ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_margins_equal_those_of_xgboost_bit_for_bit(name):
    model = MODELS[name]()
    forest = load(model)
    rows = probe_rows(model, forest, 500)
    margin = forest.predict_reference(rows)
    assert margin.dtype == np.float32
    assert np.array_equal(margin, margins(model, rows))
    assert (forest.n_outputs > 1) == (name in CLASSES)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "zero_rounds"])
def test_leaf_numbers_equal_those_of_xgboost(name):
    model = MODELS[name]()
    forest = load(model)
    rows = without_infinities(hard_rows(forest, 500))
    leaf = forest.predict_reference(rows, "apply")
    expected = leaves(model, rows)
    assert leaf.dtype == expected.dtype
    assert np.array_equal(leaf, expected)


@pytest.mark.parametrize("name", MODELS)
def test_values_equal_those_of_xgboost_within_ulps(name):
    model = MODELS[name]()
    forest = load(model)
    rows = probe_rows(model, forest, 300)
    value, expected = forest.predict_reference(rows, "value"), values(model, rows)
    if forest.label_rule == "top_margin" and isinstance(model, xgb.Booster):
        value = forest.labels[forest.predict_reference(rows).argmax(axis=1)][:, None]
        assert value.dtype == expected.dtype
    assert value.shape == expected.shape
    assert np.all(np.abs(value - expected) <= LINK_ULPS * np.spacing(np.abs(expected)))


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize(
    "objective",
    "binary:logistic binary:hinge count:poisson multi:softprob multi:softmax".split(),
)
@pytest.mark.cases(6, others="long")
def test_margins_that_are_no_numbers_have_the_values_and_labels_of_xgboost(
    tmp_path, objective, odd
):
    """Class `odd` has one, as leaves of 0 / 0 or sums of infinities make them."""
    several = {"num_class": 3, "base_score": 0.5} if "multi" in objective else {}
    model = json.loads(train(objective, labels(3 if several else 2), 3, **several).save_raw("json"))
    for number, tree in enumerate(model["learner"]["gradient_booster"]["model"]["trees"]):
        if number % (3 if several else 1) in (odd, odd - 1):
            far = [float("nan"), float("inf"), -float("inf")][number % 3]
            ends = zip(tree["split_conditions"], tree["left_children"], strict=True)
            tree["split_conditions"] = [far if left < 0 and x > 0 else x for x, left in ends]
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(model))
    predictor = tvm_forest.build(path, schedule=tvm_forest.new_schedule(path))
    rows = without_infinities(hard_rows(predictor.forest, 300))
    matrix, booster = xgb.DMatrix(rows), xgb.Booster(model_file=path)
    for margin in (True, False):
        found = predictor.predict(rows, output_margin=margin)
        wanted = booster.predict(matrix, output_margin=margin)
        np.testing.assert_allclose(found, wanted, rtol=LINK_ULPS * 2**-23)


@pytest.mark.parametrize("name", [name for name in MODELS if "classifier" in name])
def test_labels_equal_those_of_a_classifier(name):
    model = MODELS[name]()
    forest = load(model)
    rows = hard_rows(forest, 300)
    value = forest.predict_reference(rows, "value")
    place = value.argmax(axis=1) if forest.label_rule != "half" else (value[:, 0] > 0.5).astype(int)
    expected = model.predict(rows)
    assert forest.labels[place].dtype == expected.dtype
    assert np.array_equal(forest.labels[place], expected)


@pytest.mark.parametrize("name", ["regression", "softprob", "dart", "pruned", "zero_rounds"])
@pytest.mark.parametrize("suffix", ["json", "ubj", "model"])
def test_a_file_loads_as_the_booster_that_it_holds(tmp_path, name, suffix):
    booster = MODELS[name]()
    path = tmp_path / f"saved.{suffix}"
    booster.save_model(path)
    assert load(path).signature == load(booster).signature
    assert load(str(path)).signature == load(booster).signature


@pytest.mark.parametrize("name", ["airline", "higgs", "year", "epsilon"])
def test_real_models_have_the_margins_and_values_of_xgboost(name):
    path = shared_model(f"{name}.json")
    forest = load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # XGBoost's about old files
        booster = xgb.Booster(model_file=path)
    rows = hard_rows(forest, 300)
    assert np.array_equal(forest.predict_reference(rows), margins(booster, rows))
    if name != "epsilon":  # whose rows are not published
        table = np.loadtxt(shared_model(f"{name}.csv"), delimiter=",", dtype=np.float32)
        rows, expected = table[:, :-1], table[:, -1:]
        value = forest.predict_reference(rows, "value")
        assert np.array_equal(forest.predict_reference(rows), margins(booster, rows))
        assert np.all(np.abs(value - expected) <= LINK_ULPS * np.spacing(np.abs(expected)))


def test_missing_values_go_both_ways_in_the_models_of_this_file():
    forest = load(MODELS["missing_values"]())
    inner = ~forest.is_leaf
    assert 0.1 < forest.default_left[inner].mean() < 0.9


def test_pruned_nodes_are_dropped_and_the_others_keep_their_numbers():
    booster = MODELS["pruned"]()
    forest = load(booster)
    trees = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    assert forest.n_nodes < sum(int(tree["tree_param"]["num_nodes"]) for tree in trees)
    assert np.any(forest.node_id > np.diff(forest.tree_offset)[forest.node_tree])


# -- what the model says about itself -------------------------------------------------------------


def test_a_forest_loads_as_itself():
    forest = load(MODELS["regression"]())
    assert load(forest) is forest


def test_a_booster_keeps_all_trees_and_an_estimator_those_up_to_its_best_round():
    booster = MODELS["early_stopped_booster"]()
    estimator = MODELS["estimator_regressor_early_stopped"]()
    assert load(booster).n_trees == booster.num_boosted_rounds() > booster.best_iteration + 1
    assert load(estimator).n_trees == estimator.best_iteration + 1
    assert load(estimator.get_booster()).n_trees > estimator.best_iteration + 1


def test_the_best_round_of_a_forest_of_classes_has_many_trees():
    estimator = MODELS["estimator_forest_classes_early_stopped"]()
    forest = load(estimator)
    assert forest.n_rounds == estimator.best_iteration + 1
    assert forest.n_trees == forest.n_rounds * 2 * 3


def test_feature_names_come_from_the_model():
    names = ("height", "größe", 'a "quoted" [name]')
    matrix = xgb.DMatrix(data()[0][:, :3], data()[1])
    matrix.feature_names = ["height", "größe", "third"]
    booster = xgb.train({"max_depth": 2, "nthread": 1}, matrix, 1)
    assert load(booster).feature_names == ("height", "größe", "third")
    booster.feature_names = [name.replace("[", "(").replace("]", ")") for name in names]
    assert load(booster).feature_names[2] == 'a "quoted" (name)'
    assert load(MODELS["regression"]()).feature_names is None


def test_rounds_count_parallel_trees_and_classes_once():
    assert load(MODELS["random_forest"]()).n_rounds == 2
    assert load(MODELS["random_forest_classes"]()).n_rounds == 3
    assert load(MODELS["zero_rounds"]()).n_rounds == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_logistic_base_score_becomes_a_margin_in_float32(seed):
    for score in np.random.default_rng(seed).random(20).astype(np.float32):
        booster = train("binary:logistic", labels(2), rounds=0, base_score=float(score))
        assert load(booster).base_score[0] == margins(booster, data()[0][:1])[0, 0]


@pytest.mark.parametrize("score", [0.0, 1e-9, 1e-6, 0.99999994, 1.0])
def test_a_base_score_at_the_ends_is_bounded_as_xgboost_does(score):
    booster = train("binary:logistic", labels(2), rounds=0, base_score=score)
    assert load(booster).base_score[0] == margins(booster, data()[0][:1])[0, 0]


@pytest.mark.parametrize("objective", ["count:poisson", "reg:gamma", "reg:tweedie", "survival:aft"])
def test_a_base_score_of_a_log_link_becomes_its_logarithm(objective):
    for score in (1e-6, 0.3, 1.7, 1e6):
        booster = train(objective, data()[1], rounds=0, base_score=score)
        assert load(booster).base_score[0] == margins(booster, data()[0][:1])[0, 0]


def test_the_base_score_is_right_without_the_c_library(monkeypatch):
    from tvm_forest.frontends.xgboost import objectives

    before = load(MODELS["logistic_with_base_score"]()).base_score
    objectives.find_logf.cache_clear()
    monkeypatch.setattr(objectives, "find_c_function", lambda name, dtype: None)
    after = load(MODELS["logistic_with_base_score"]()).base_score
    objectives.find_logf.cache_clear()
    assert after == pytest.approx(before, rel=1e-6)


class OldBooster:
    """Before XGBoost 1.6 a Booster saves itself in the binary format only."""

    def __init__(self, name):
        self.content = (OLD / name).read_bytes()

    def save_raw(self):
        return bytearray(self.content)


OldBooster.__name__, OldBooster.__module__ = "Booster", "xgboost.core"


def test_a_booster_of_an_old_installation_loads_by_way_of_the_binary_format():
    name = "xgboost-1.3.3-classes.model"
    assert load(OldBooster(name)).signature == load(OLD / name).signature


class OldEstimator:
    """An estimator of XGBoost 1.3, stopped in its first round of two."""

    num_parallel_tree = 1

    def get_booster(self):
        booster = OldBooster("xgboost-1.3.3-classes.model")
        booster.attr = {"best_iteration": "0"}.get
        return booster


OldEstimator.__name__, OldEstimator.__module__ = "XGBRegressor", "xgboost.sklearn"


def test_an_old_estimator_tells_how_many_trees_a_round_has():
    forest = load(OldEstimator())
    assert (forest.n_rounds, forest.n_trees) == (1, 3)


# -- old files ------------------------------------------------------------------------------------


def means_another_number_now(name):
    return "raw" in name and name.split("-")[1] in ("1.0.2", "1.3.3", "1.7.6")


@pytest.mark.parametrize("name", [n for n in OLD_FILES if not means_another_number_now(n)])
def test_an_old_file_predicts_as_its_version_did(name):
    version, model = name.rsplit(".", 1)[0].split("-")[1:]
    then = np.load(OLD / f"xgboost-{version}.npz")
    forest = load(OLD / name)
    margin = forest.predict_reference(then["rows"])
    written = then[f"{model}_margin"].reshape(margin.shape)
    leaf = forest.predict_reference(then["rows"], "apply")
    assert np.array_equal(leaf, then[f"{model}_leaf"].reshape(leaf.shape))
    assert np.allclose(margin, written, rtol=1e-6, atol=1e-6)
    since_1_3 = version not in ("0.90", "1.0.2") and (version, model) != ("1.3.3", "dart")
    assert np.array_equal(margin, written) or not since_1_3


@pytest.mark.parametrize("version", ["0.90", "1.0.2"])
@pytest.mark.parametrize("model", ["logistic", "classes", "dart"])
def test_an_ancient_file_predicts_as_xgboost_1_7_does_bit_for_bit(version, model):
    later = np.load(OLD / "xgboost-1.7.6.npz")
    margin = load(OLD / f"xgboost-{version}-{model}.model").predict_reference(later["rows"])
    assert np.array_equal(margin, later[f"{version}-{model}_margin"].reshape(margin.shape))


def test_all_formats_of_a_version_give_the_same_forest():
    forests = [load(OLD / f"xgboost-1.7.6-classes.{suffix}") for suffix in ("json", "ubj", "model")]
    rows = hard_rows(forests[0], 200)
    expected = forests[0].predict_reference(rows)
    assert all(np.array_equal(forest.predict_reference(rows), expected) for forest in forests)
    assert [forest.n_rounds for forest in forests] == [2, 2, 2]


def test_the_raw_margins_of_versions_1_x_are_refused():
    with pytest.raises(UnsupportedModel, match="'base_score': binary:logitraw of XGBoost 1.7.6"):
        load(OLD / "xgboost-1.7.6-raw.ubj")
