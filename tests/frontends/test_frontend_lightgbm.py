"""LightGBM models load with the bits of LightGBM: equal margins and leaves, links within ulps."""

import pickle
import re
from time import perf_counter

import lightgbm as lgb
import numpy as np
import pytest

import tvm_forest
from lightgbm_models import (
    COMMON,
    MODELS,
    data,
    estimator,
    frame,
    labels,
    margins,
    probe_rows,
    values,
)
from tvm_forest.frontends import load

pytestmark = pytest.mark.slow

LINK_ULPS = 4  # numpy's exp against the C library's


@pytest.mark.parametrize("name", MODELS)
def test_margins_equal_those_of_lightgbm_bit_for_bit(name):
    model = MODELS[name]()
    forest = load(model)
    rows = probe_rows(forest, 1000)
    margin = forest.predict_reference(rows)
    assert margin.dtype == np.float64
    assert np.array_equal(margin, margins(model, rows), equal_nan=True)


@pytest.mark.parametrize("name", MODELS)
def test_leaf_numbers_equal_those_of_lightgbm(name):
    model = MODELS[name]()
    forest = load(model)
    rows = probe_rows(forest, 500)
    leaf = forest.predict_reference(rows, "apply")
    booster = model if isinstance(model, lgb.Booster) else model.booster_
    expected = booster.predict(rows, pred_leaf=True)
    assert leaf.dtype == expected.dtype
    assert np.array_equal(leaf, expected)


def change_number(text, key, word):
    """Return a text in which the first number of a line is another word."""
    return sized(re.sub(rf"(?m)^{key}=\S+", f"{key}={word}", text, count=1))


def sized(text):
    """Return a text whose header tells the sizes of the trees that are there."""
    begins = [match.start() for match in re.finditer("Tree=|end of trees", text)]
    sizes = " ".join(map(str, np.diff(begins)))
    return re.sub(r"tree_sizes=[^\r\n]*", f"tree_sizes={sizes}", text, count=1)


TEXTS = {
    "a second blank line": lambda text: text.replace("\n\nTree=0", "\n\n\nTree=0"),
    "no blank line": lambda text: text.replace("\n\nTree=0", "\nTree=0"),
    "a blank line in the header": lambda text: text.replace("\nobjective", "\n\nobjective"),
    "blank lines between trees": lambda text: sized(text.replace("\nTree=1", "\n\n\nTree=1")),
    "no parameters": lambda text: text[: text.index("parameters:")],
    "nothing behind the trees": lambda text: text[: text.index("end of trees")],
    "the end of the trees alone": lambda text: text[: text.index("\n\nfeature_importances")],
    "lines of Windows": lambda text: sized(text.replace("\n", "\r\n")),
    "lines of Windows without sizes": lambda text: re.sub("tree_sizes=.*\n", "", text).replace(
        "\n", "\r\n"
    ),
    "lines of Windows in the header": lambda text: "\n\n".join(
        [text.partition("\n\n")[0].replace("\n", "\r\n"), text.partition("\n\n")[2]]
    ),
    **{
        f"{key}={word}": lambda text, key=key, word=word: change_number(text, key, word)
        for key in ("leaf_value", "threshold")
        for word in ("1.#QNAN", "-1.#IND", "1.#INF", "inf", "-INF", "1_0", "1e", "0x1p3", "1,5")
    },
    **{
        f"leaf_value={word}": lambda text, word=word: change_number(text, "leaf_value", word)
        for word in ("-nan(ind)", "nan(snan)", "NaN", "1e400")
    },
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_other_systems_tools_and_times_say_what_they_say_to_lightgbm(tmp_path, name):
    text = TEXTS[name](MODELS["binary"]().model_to_string())
    (tmp_path / "model.txt").write_bytes(text.encode())
    forest, rows = load(tmp_path / "model.txt"), data()[0][:200]
    expected = lgb.Booster(model_str=text).predict(rows, raw_score=True, num_threads=1)
    assert np.array_equal(forest.predict_reference(rows)[:, 0], expected, equal_nan=True)


@pytest.mark.parametrize("name", MODELS)
def test_values_equal_those_of_lightgbm_within_ulps(name):
    model = MODELS[name]()
    forest = load(model)
    rows = probe_rows(forest, 500)
    value, expected = forest.predict_reference(rows, "value"), values(model, rows)
    bound = 0 if forest.link in ("identity", "signed_square") else LINK_ULPS
    with np.errstate(invalid="ignore"):  # linear leaves can be infinite
        near = np.abs(value - expected) <= bound * np.spacing(np.abs(expected))
    assert np.all(near | (value == expected) | np.isnan(value) & np.isnan(expected))


@pytest.mark.parametrize("name", [name for name in MODELS if "classifier" in name])
def test_labels_equal_those_of_a_classifier(name):
    model = MODELS[name]()
    forest = load(model)
    rows = probe_rows(forest, 500)
    value = forest.predict_reference(rows, "value")
    place = value.argmax(axis=1) if forest.label_rule != "half" else (value[:, 0] > 0.5).astype(int)
    expected = model.predict(rows)
    assert forest.labels[place].dtype == expected.dtype
    assert np.array_equal(forest.labels[place], expected)


@pytest.mark.parametrize("name", ["categories", "ova", "own_objective", "one_leaf", "zero_rounds"])
def test_a_file_and_a_pickle_load_as_the_booster_that_they_hold(tmp_path, name):
    if name == "own_objective":
        booster = lgb.Booster(model_str=MODELS[name]().model_to_string())
    else:
        booster = MODELS[name]()
    path = tmp_path / "saved.json"  # told by content
    booster.save_model(path)
    assert load(path).signature == load(booster).signature
    assert load(pickle.loads(pickle.dumps(booster))).signature == load(booster).signature


def test_a_pickled_classifier_loads_as_before():
    model = MODELS["estimator_classifier_objects"]()
    again = pickle.loads(pickle.dumps(model))
    assert load(again).signature == load(model).signature
    assert load(model).signature != load(model.booster_).signature  # which has no labels


def test_early_stopping_is_followed_by_boosters_estimators_and_files(tmp_path):
    booster = MODELS["early_stopped"]()
    assert load(booster).n_rounds == booster.best_iteration
    booster.save_model(tmp_path / "all", num_iteration=-1)
    assert load(tmp_path / "all").n_rounds == booster.num_trees()
    rows, target = data()
    stop = lgb.early_stopping(3, verbose=False)
    model = lgb.LGBMRegressor(n_estimators=60, verbose=-1, learning_rate=0.7)
    model.fit(rows[:300], target[:300], eval_X=rows[300:], eval_y=target[300:], callbacks=[stop])
    assert load(model).n_rounds == model.best_iteration_ < 60
    assert np.array_equal(load(model).predict_reference(rows)[:, 0], model.predict(rows))


def test_an_estimator_with_an_own_objective_predicts_margins():
    model = estimator("LGBMClassifier", labels(2), objective=lambda y, z: (z - y, np.ones(len(y))))
    forest = load(model)
    assert (forest.link, forest.label_rule, forest.labels) == ("identity", "none", None)
    with pytest.warns(UserWarning, match="customized objective"):
        expected = model.predict(data()[0])
    assert np.array_equal(forest.predict_reference(data()[0])[:, 0], expected)


def test_categories_of_a_frame_are_kept_and_their_places_are_the_codes():
    model = MODELS["pandas_categories"]()
    forest, rows = load(model), frame()
    assert forest.pandas_categories[1] == (20, 0, 10)
    assert forest.pandas_categories[0][:3] == ("c0", "c1", "c10")
    assert forest.feature_names == ("a", "b", "c", "d", "city", "size")
    coded = rows.assign(city=rows["city"].cat.codes, size=rows["size"].cat.codes)
    expected = model.predict(rows, raw_score=True)
    assert np.array_equal(forest.predict_reference(coded.to_numpy(float))[:, 0], expected)


def test_what_a_missing_zero_means_becomes_a_rule_of_the_forest():
    assert load(MODELS["nothing_missing"]()).zero_missing == ()
    assert 3 in load(MODELS["missing_zero"]()).zero_missing
    assert load(MODELS["nothing_missing"]()).category_rule is None
    assert load(MODELS["nothing_missing"]()).feature_names is None


def test_numbers_within_1e_35_of_zero_are_zero_to_every_model():
    forest = load(MODELS["nothing_missing"]())
    small = np.float64(np.float32(1e-35))
    near = forest.tests[forest.tests[:, 0] == 3, 1]
    assert -small not in near
    assert np.nextafter(-small, -1) in near


def test_a_large_model_loads_without_hanging():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5000, 10))
    booster = lgb.train(COMMON | {"num_leaves": 255}, lgb.Dataset(rows, rows.sum(axis=1)), 40)
    begin = perf_counter()
    forest = load(booster)
    assert perf_counter() - begin < 30  # it does not hang; 0.02 s on a quiet machine
    assert forest.n_trees == 40
    assert np.array_equal(forest.predict_reference(rows[:500])[:, 0], booster.predict(rows[:500]))


def test_leaves_that_are_nan_make_margins_nan():
    model = MODELS["categories"]()
    text = re.sub(r"(?m)^(leaf_value=\S+ )\S+", r"\1nan", model.model_to_string(), count=1)
    text = without("tree_sizes=", text)
    predictor = tvm_forest.build(load(text.encode()), schedule=lambda start: start)
    rows = probe_rows(predictor.forest, 200)
    expected = margins(lgb.Booster(model_str=text), rows)[:, 0]
    assert 0 < np.isnan(expected).sum() < 200
    assert np.array_equal(predictor.predict_margin(rows), expected, equal_nan=True)


def without(line: str, text: str) -> str:
    return re.sub(rf"(?m)^{line}.*\n", "", text)


def as_2_1(text: str) -> str:
    """Nothing says where trees end but what follows them."""
    trees, _, tail = text.partition("end of trees\n")
    return f"{trees}\n\nfeature importances:\n" + tail.partition("feature_importances:\n")[2]


def as_2_0(text: str) -> str:
    """Nor is there a version, nor how long trees are; and the average is a tree of its own."""
    text = without("(version|tree_sizes)=", as_2_1(text))
    text = text.replace("feature_names", "boost_from_average\nfeature_names", 1)
    return re.sub(r"(?m)^leaf_value=", "leaf_parent=0\nleaf_value=", text)


OLD = {"2.0": as_2_0, "2.1": as_2_1, "no sizes": lambda text: without("tree_sizes=", text)}


@pytest.mark.parametrize("name", ["categories", "telling_holes", "multiclass", "linear"])
@pytest.mark.parametrize("version", OLD)
def test_files_of_old_versions_are_the_models_that_lightgbm_makes_of_them(version, name):
    model = MODELS[name]()
    old = OLD[version](model.model_to_string())
    forest = load(old.encode())
    assert forest.signature == load(model).signature
    rows = probe_rows(forest, 200)
    expected = margins(lgb.Booster(model_str=old), rows)
    assert np.array_equal(forest.predict_reference(rows), expected, equal_nan=True)
