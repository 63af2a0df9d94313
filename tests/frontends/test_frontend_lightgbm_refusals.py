"""What is no LightGBM model, or cannot be reproduced, gives one error with place and field."""

import re
from functools import lru_cache
from time import perf_counter

import lightgbm as lgb
import numpy as np
import pytest

import tvm_forest
from lightgbm_models import COMMON, MODELS, data, estimator, labels, train
from tvm_forest.errors import ForestError, ModelFormatError, UnsupportedModel
from tvm_forest.frontends import load


@lru_cache
def text(name="categories"):
    return MODELS[name]().model_to_string()


def loaded(tmp_path, content):
    path = tmp_path / "model.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load(path)


def edited(whole, field, line):
    """Replace the first line of a field, keeping the sizes of trees right."""
    old, trees = re.search(rf"^{field}=.*\n", whole, re.MULTILINE), whole.index("\nTree=0")
    new = line if line.endswith("\n") or not line else f"{line}\n"
    whole = whole[: old.start()] + new + whole[old.end() :]
    if old.start() > trees:
        size = re.search(r"tree_sizes=(\d+)", whole)
        longer = int(size[1]) + len(new) - len(old[0])
        whole = whole[: size.start(1)] + str(longer) + whole[size.end(1) :]
    return whole


def without_a_number(field):
    line = re.search(rf"^{field}=.*$", text(), re.MULTILINE)[0]
    return line.rpartition(" ")[0]


DAMAGES = {
    "no count of classes": ("num_class", "", "'num_class': missing in the header"),
    "a count in words": ("num_class", "num_class=x", "'num_class': expected numbers"),
    "more classes than trees a round": ("num_class", "num_class=3", "3 classes, but 1 trees"),
    "a name too few": ("feature_names", "feature_names=a b", "2 names for 6 features"),
    "no features": ("max_feature_idx", "max_feature_idx=-1", "'max_feature_idx': -1 is out of"),
    "classes in the objective": ("objective", "objective=multiclass num_class:3", "1 classes"),
    "a sigmoid of zero": ("objective", "objective=binary sigmoid:0", "expected a positive sigmoid"),
    "a sigmoid that is none": ("objective", "objective=binary", "expected a positive sigmoid"),
    "sizes that are wrong": ("tree_sizes", "tree_sizes=10 20", "the trees do not end where"),
    "no sizes": ("tree_sizes", "tree_sizes=", "the trees do not end where they should"),
    "another tree": ("Tree", "Tree=7", "tree 0 does not begin and end"),
    "two counts of leaves": ("num_leaves", "num_leaves=3 4", "2 numbers where 1 are expected"),
    "no leaves": ("num_leaves", "num_leaves=0", "'num_leaves': 0 is out of range"),
    "too many leaves": ("num_leaves", "num_leaves=2000000000", "11 numbers where 1999999999 are"),
    "a leaf too few": ("leaf_value", without_a_number, "11 numbers where 12 are expected"),
    "a leaf in words": ("leaf_value", "leaf_value=a", "'leaf_value': expected numbers"),
    "a threshold too few": ("threshold", without_a_number, "10 numbers where 11 are expected"),
    "a threshold in words": ("threshold", "threshold=a", "'threshold': expected numbers"),
    "a threshold that is none": ("threshold", "threshold=nan", "'threshold': nan is out of range"),
    "an unknown missing type": ("decision_type", "decision_type=12", "12 is out of range"),
    "a child that is no node": ("left_child", "left_child=" + "11 " * 11, "no inner node 11"),
    "a child beyond the leaves": ("left_child", "left_child=" + "-13 " * 11, "has left child 23"),
    "a circle": ("left_child", "left_child=" + "1 " * 11, "has two parents"),
    "a child of 33 bits": ("left_child", f"left_child={2**32}", "4294967296 is out of range"),
    "a feature too high": ("split_feature", "split_feature=" + "6 " * 11, "tests feature 6 of 6"),
    "too many sets": ("num_cat", "num_cat=77", "'cat_boundaries': tree 0 has"),
    "too few sets": ("cat_threshold", "cat_threshold=1", "1 numbers where"),
    "a linear tree without terms": ("is_linear", "is_linear=1", "0 numbers where 12 are expected"),
    "a tree that is twice linear": ("is_linear", "is_linear=2", "'is_linear': 2 is out of range"),
    "a set of 33 bits": ("cat_threshold", f"cat_threshold={2**32}", "4294967296 is out of range"),
}
LACKS = {
    "an unknown key of the header": ("label_index", "boost_by_average=1", "'boost_by_average'"),
    "an unknown key of a tree": ("shrinkage", "colour=red", "'colour': unknown in tree 0"),
    "an unknown version": ("version", "version=v5", "'version': expected one of v2, v3, v4"),
    "an unknown objective": ("objective", "objective=magic", "'magic' is not among those known"),
    "an unknown option": ("objective", "objective=binary alpha:2", "option 'alpha' of 'binary'"),
    "a root of something else": ("objective", "objective=poisson sqrt", "option 'sqrt'"),
}


@pytest.mark.parametrize("name", [*DAMAGES, *LACKS])
def test_a_changed_line_is_refused_by_its_name(tmp_path, name):
    field, line, message = (DAMAGES | LACKS)[name]
    kind = ModelFormatError if name in DAMAGES else UnsupportedModel
    content = edited(text(), field, line(field) if callable(line) else line)
    with pytest.raises(kind) as error:
        loaded(tmp_path, content)
    assert str(error.value).startswith(f"lightgbm {tmp_path / 'model.txt'}: field '")
    assert message in str(error.value)


def test_a_set_of_categories_that_does_not_exist_is_refused(tmp_path):
    bounds = re.search(r"^cat_boundaries=(.*)$", text(), re.MULTILINE)[1].split()
    middle = [bounds[0], "99", *bounds[2:]]
    with pytest.raises(ModelFormatError, match="a set without end"):
        loaded(tmp_path, edited(text(), "cat_boundaries", f"cat_boundaries={' '.join(middle)}"))
    decisions = "decision_type=" + "1 " * 11
    with pytest.raises(ModelFormatError, match="sets of categories, got set"):
        loaded(tmp_path, edited(text(), "decision_type", decisions))


@pytest.mark.parametrize("line", ["[1, 2]", "{", "[[1,", "7", "[" * 99999])
def test_pandas_categories_that_are_none_are_refused(tmp_path, line):
    with pytest.raises(ModelFormatError, match="'pandas_categorical': expected lists"):
        loaded(tmp_path, text().replace("pandas_categorical:null", f"pandas_categorical:{line}"))


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    whole = text().encode()
    last = whole.index(b"\n\npandas_categorical")  # from here on it may come from the command line
    for length in [*np.linspace(6, last - 1, 60).astype(int), *range(last + 3, len(whole) - 1)]:
        with pytest.raises(ModelFormatError):
            loaded(tmp_path, whole[:length])
    assert loaded(tmp_path, whole[: last + 1]).signature == load(MODELS["categories"]()).signature


def test_a_damaged_file_is_refused_quickly_or_loads(tmp_path):
    rng = np.random.default_rng(1)
    whole = np.frombuffer(text().encode(), np.uint8)
    refused = 0
    for _ in range(150):
        damaged = whole.copy()
        damaged[rng.integers(6, whole.size * 2 // 3, 3)] = rng.integers(0, 256, 3)
        begin = perf_counter()
        try:
            loaded(tmp_path, damaged.tobytes())
        except ForestError:
            refused += 1
        assert perf_counter() - begin < 30  # it does not hang
    assert refused > 100


LINEAR_DAMAGES = {
    "terms in a plain tree": ("is_linear", "is_linear=0", "12 numbers where 0 are expected"),
    "no constants": ("leaf_const", "", "'leaf_const': tree 0 has 0 numbers where 12"),
    "a constant that is none": ("leaf_const", "leaf_const=nan", "nan is out of range"),
    "fewer than no terms": ("num_features", "num_features=-1", "-1 is out of range"),
    "more terms than are told": ("num_features", "num_features=" + "1 " * 12, "0 numbers where 12"),
    "a coefficient too many": ("leaf_coeff", "leaf_coeff=1", "1 numbers where 0 are expected"),
    "a coefficient in words": ("leaf_coeff", "leaf_coeff=a", "'leaf_coeff': expected numbers"),
}


@pytest.mark.parametrize("name", LINEAR_DAMAGES)
def test_a_changed_line_of_a_linear_tree_is_refused_by_its_name(tmp_path, name):
    field, line, message = LINEAR_DAMAGES[name]
    with pytest.raises(ModelFormatError) as error:
        loaded(tmp_path, edited(text("linear"), field, line))
    assert message in str(error.value)


def test_a_term_of_a_feature_that_does_not_exist_is_refused(tmp_path):
    whole = text("linear")
    first = re.search(r"leaf_features=0(.*)\n", whole)
    whole = whole.replace(first[0], f"leaf_features=6{first[1]}\n")
    with pytest.raises(ModelFormatError, match="'term_feature' names a feature beyond the 6"):
        loaded(tmp_path, whole)


def test_a_term_of_a_feature_with_missing_zeros_is_refused(tmp_path):
    whole = text("linear")
    line = re.search(r"decision_type=.*", whole)[0]
    with pytest.raises(UnsupportedModel, match="'leaf_features': feature 0 is a term"):
        loaded(tmp_path, whole.replace(line, line.replace("2", "6")))


def test_zeros_that_are_missing_in_some_rounds_only_are_refused():
    first = MODELS["missing_zero"]()
    rows, target = data()
    rows = np.where(rows == 0, np.nan, rows)
    second = lgb.train(COMMON, lgb.Dataset(rows, target), 10, init_model=first)
    with pytest.raises(UnsupportedModel, match="'decision_type': zero is missing at some nodes"):
        load(second)


def test_a_forest_without_trees_has_no_average(tmp_path):
    content = text("zero_rounds").replace("\nfeature_names", "\naverage_output\nfeature_names")
    with pytest.raises(UnsupportedModel, match="'average_output': no trees to average"):
        loaded(tmp_path, content)


def test_a_sigmoid_with_more_digits_than_are_saved_is_refused():
    booster = train(labels(2), objective="binary", sigmoid=0.123456789)
    with pytest.raises(UnsupportedModel, match="'sigmoid': 0.123456789 in memory, but 0.123457"):
        load(booster)
    assert load(lgb.Booster(model_str=booster.model_to_string())).link_scale == 0.123457


def test_an_objective_that_has_no_sigmoid_ignores_that_option():
    booster = train(labels(2), objective="cross_entropy", sigmoid=0.123456789)
    again = lgb.Booster(model_str=booster.model_to_string())
    assert load(booster).signature == load(again).signature


def test_estimators_that_predict_in_other_ways_are_refused():
    with pytest.raises(ModelFormatError, match="LGBMRegressor: .*holds no trained model"):
        load(lgb.LGBMRegressor())
    with pytest.raises(UnsupportedModel, match="'pred_early_stop': expected False"):
        load(estimator("LGBMClassifier", labels(2), pred_early_stop=True))
    model = estimator("LGBMClassifier", labels(4))
    model._classes = model._classes[:3]
    with pytest.raises(UnsupportedModel, match="'classes_': 3 classes with 4 outputs"):
        load(model)


def test_a_classifier_of_one_class_predicts_it():
    model = estimator("LGBMClassifier", labels(1) + 7)
    predictor, rows = tvm_forest.build(load(model)), data()[0][:9]
    assert np.array_equal(predictor.predict(rows), model.predict(rows))
    assert np.array_equal(predictor.predict_proba(rows), model.predict_proba(rows))


def test_other_objects_of_lightgbm_are_refused():
    with pytest.raises(UnsupportedModel, match="an object of type lightgbm.basic.Dataset"):
        load(lgb.Dataset(*data()))
