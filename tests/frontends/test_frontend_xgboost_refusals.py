"""What is no XGBoost model, or cannot be reproduced, gives one error with place and field."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xgboost as xgb

from models import MODELS, data, labels, train
from tvm_forest.errors import ModelFormatError, UnsupportedModel
from tvm_forest.forest import Forest
from tvm_forest.frontends import load
from xgboost_models import KINDS

OLD = Path(__file__).parents[1] / "data"
OLD_FILES = sorted(path.name for path in OLD.glob("xgboost-*-*.*"))


def edited(tmp_path, change, name="logistic"):
    """Write a model as JSON after `change` has been applied to its document."""
    document = json.loads((MODELS | KINDS)[name]().save_raw("json"))
    change(document)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    return path


def gb(document):
    return document["learner"]["gradient_booster"]["model"]


def weights_of(document):
    """Return the weights of DART, which XGBoost 3.3 keeps beside the trees, and 3.4 among them."""
    booster = document["learner"]["gradient_booster"]
    return booster["weight_drop"] if "weight_drop" in booster else gb(document)["weight_drop"]


def param(**fields):
    return lambda document: document["learner"]["learner_model_param"].update(fields)


def tree(field, node, value):
    return lambda document: gb(document)["trees"][0][field].__setitem__(node, value)


def children(node, left):
    """Give a node of the first tree other children, beside each other."""
    return lambda document: (
        tree("left_children", node, left)(document),
        tree("right_children", node, left + 1)(document),
    )


def learner(**fields):
    return lambda document: document["learner"].update(fields)


DAMAGES = {
    "a file without a learner": (lambda d: d.pop("learner"), "'learner': missing"),
    "a learner that is a list": (lambda d: d.update(learner=[]), "'learner': expected an object"),
    "no trees": (lambda d: gb(d).pop("trees"), "'trees': missing in 'model'"),
    "a booster name that is a number": (
        lambda d: d["learner"]["gradient_booster"].update(name=3),
        "'name': expected text, got 3",
    ),
    "a count of classes in words": (param(num_class="x"), "'num_class': expected an integer"),
    "a negative count of features": (param(num_feature="-2"), "'num_feature': expected an integer"),
    "more classes than trees": (param(num_class="99"), "'num_class': 99 classes for 12 trees"),
    "a base score in words": (param(base_score="hello"), "'base_score': expected numbers"),
    "a base score that is none": (param(base_score="nan"), "'base_score': not a number"),
    "a probability above one": (
        param(base_score="[2E0]"),
        "'base_score': expected 0 to 1, got 2.0",
    ),
    "two base scores": (param(base_score="[5E-1,5E-1]"), "'base_score': 2 values for 1 outputs"),
    "a name too few": (learner(feature_names=["a"] * 5), "'feature_names': 5 names for 6 features"),
    "names that are numbers": (learner(feature_names=[1]), "'feature_names': expected a list of"),
    "a class too few": (lambda d: gb(d)["tree_info"].pop(), "'trees': expected a list of 11 trees"),
    "a class too high": (
        lambda d: gb(d)["tree_info"].__setitem__(2, 1),
        "'tree_info': tree 2 is of class 1 of 1",
    ),
    "rounds that end elsewhere": (
        lambda d: gb(d)["iteration_indptr"].append(50),
        "'iteration_indptr': expected bounds of 12 trees",
    ),
    "a tree that is none": (lambda d: gb(d)["trees"].__setitem__(1, 5), "'trees': tree 1 has no"),
    "a version in words": (
        lambda d: d.update(version="a"),
        "'version': expected a list of integers",
    ),
    "a child beyond the tree": (children(0, 999), "tree 0, node 0 has left child 999"),
    "a child that is the root": (children(1, 0), "tree 0, node 1 has left child 0"),
    "a node with two parents": (children(2, 3), "tree 0, node 3 has two parents"),
    "a node that is its own child": (children(2, 2), "tree 0, node 2 has two parents"),
    "children that are not neighbours": (
        tree("left_children", 1, 4),
        "'right_children': tree 0, node 1 has a right child that does not follow the left one",
    ),
    "a child in words": (
        tree("left_children", 0, "1"),
        "'left_children': expected a list of integers in tree 0, got ['1', ",
    ),
    "a child beyond 32 bits": (
        tree("left_children", 0, 2**40),
        "'left_children': tree 0, node 0 has a number that is none of its integers",
    ),
    "a child beyond 64 bits": (
        tree("right_children", 0, 2**70),
        "'right_children': expected a list of integers in tree 0",
    ),
    "a side for missing values that is none": (
        tree("default_left", 3, 2),
        "'default_left': tree 0, node 3 has a number that is none of its booleans",
    ),
    "an integer for a threshold": (
        tree("split_conditions", 0, 1),
        "'split_conditions': expected a list of floats in tree 0",
    ),
    "a tree without thresholds": (
        lambda d: gb(d)["trees"][3].pop("split_conditions"),
        "'split_conditions': expected a list of floats in tree 3, got None",
    ),
    "trees in another order": (
        lambda d: gb(d)["trees"].reverse(),
        "'id': tree 0 has the number 11",
    ),
    "a feature beyond the rows": (tree("split_indices", 0, 99), "tests feature 99 of 6"),
    "a threshold that is none": (tree("split_conditions", 0, float("nan")), "has a threshold that"),
    "a node too few": (
        lambda d: gb(d)["trees"][0]["left_children"].pop(),
        "'left_children': tree 0 has ",
    ),
    "nodes that are none": (
        lambda d: gb(d)["trees"][0]["tree_param"].update(num_nodes="0"),
        "'num_nodes': expected an integer of at least 1, got '0'",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_header_or_tree_is_refused_by_file_and_field(tmp_path, capfd, damage):
    change, message = DAMAGES[damage]
    path = edited(tmp_path, change)
    with pytest.raises(ModelFormatError) as error:
        load(path)
    assert str(error.value).startswith(f"xgboost {path}: field '")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


REFUSALS = {
    "a field of a later version": (
        lambda d: gb(d)["trees"][0].update(oblique=[1]),
        "'oblique': 'tree 0' has this field of a later version of XGBoost; update tvm_forest",
    ),
    "an unknown objective": (
        lambda d: d["learner"]["objective"].update(name="reg:magic"),
        "'objective': 'reg:magic' is not among those known",
    ),
    "several expectiles": (
        lambda d: (
            d["learner"]["objective"].update(name="reg:expectileerror"),
            param(num_target="2")(d),
        ),
        "'expectile_alpha': 2 expectiles, each of which adds to those before it; train one model",
    ),
    "targets of classes": (
        param(num_target="2", num_class="3"),
        "'num_target': 2 targets of 3 classes; train one model per target",
    ),
    "a field of a later version in the model": (
        lambda d: gb(d).update(tree_powers=[1]),
        "'tree_powers': 'model' has this field of a later version of XGBoost",
    ),
    "weights without DART": (
        lambda d: (
            d["learner"]["gradient_booster"].update(weight_drop=[1.0] * 12),
            d.update(version=[3, 2, 0]),
        ),
        "'weight_drop': XGBoost 3.2.0 knows no trees with weights in 'gbtree'",
    ),
    "no trees before 3.1": (
        lambda d: (
            gb(d).update(trees=[], tree_info=[], iteration_indptr=[0]),
            d.update(version=[3, 0, 0]),
        ),
        "'base_score': an estimate that XGBoost 3.0.0 never made, but 3.1 asks for",
    ),
    "a tiny base score before 3.2": (
        lambda d: (param(base_score="[1E-9]")(d), d.update(version=[3, 0, 0])),
        "'base_score': 1e-09 from XGBoost 3.0.0 means another number since 3.2",
    ),
    "raw margins before 2.0": (
        lambda d: (
            d["learner"]["objective"].update(name="binary:logitraw"),
            d.update(version=[1, 7, 6]),
        ),
        "'base_score': binary:logitraw of XGBoost 1.7.6 means another number since 2.0",
    ),
}


@pytest.mark.parametrize("part", REFUSALS)
def test_what_cannot_be_reproduced_is_refused_by_field(tmp_path, capfd, part):
    change, message = REFUSALS[part]
    with pytest.raises(UnsupportedModel) as error:
        load(edited(tmp_path, change))
    assert message in str(error.value)
    assert capfd.readouterr() == ("", "")


def tree_part(field, change):
    return lambda document: change(gb(document)["trees"][2][field])


SETS = ("nodes", "segments", "sizes")


def encoding(**fields):
    return lambda document: gb(document)["cats"]["enc"][0].update(fields)


KIND_DAMAGES = {
    "a set too few": (
        "categories_in_sets",
        tree_part("categories_sizes", list.pop),
        "'categories_sizes': tree 2 has {fewer} entries for {sets} categorical nodes",
    ),
    "a set that is too large": (
        "categories_in_sets",
        tree_part("categories_sizes", lambda sizes: sizes.__setitem__(0, 10**9)),
        "'categories_segments': tree 2 has a segment beyond its",
    ),
    "a set that begins beyond the end": (
        "categories_in_sets",
        tree_part("categories_segments", lambda begin: begin.__setitem__(0, 2**62)),
        "'categories_segments': tree 2 has a segment beyond its",
    ),
    "a negative category": (
        "categories_in_sets",
        tree_part("categories", lambda codes: codes.__setitem__(0, -3)),
        "'categories': tree 2 has a category that is not within 0 and 16777215",
    ),
    "a category in words": (
        "categories_in_sets",
        tree_part("categories", lambda codes: codes.__setitem__(0, "a")),
        "'categories': expected a list of integers",
    ),
    "a category beyond all integers": (
        "categories_in_sets",
        tree_part("categories", lambda codes: codes.__setitem__(0, 2**70)),
        "'categories': expected a list of integers",
    ),
    "a categorical node without a set": (
        "categories_in_sets",
        tree_part("categories_nodes", lambda nodes: nodes.__setitem__(0, 999)),
        "'categories_nodes': tree 2 has categorical nodes that are not in order",
    ),
    "a categorical node too few": (
        "categories_in_sets",
        lambda d: [gb(d)["trees"][2][f"categories_{name}"].pop() for name in SETS],
        "has a set of categories that it cannot use",
    ),
    "an empty set": (
        "categories_in_sets",
        tree_part("categories_sizes", lambda sizes: sizes.__setitem__(0, 0)),
        "'categories_segments': tree 2 has a segment beyond its",
    ),
    "names of too few features": (
        "named_categories",
        lambda d: gb(d)["cats"]["enc"].pop(),
        "'enc': expected the categories of 6 features",
    ),
    "names without values": (
        "named_categories",
        lambda d: gb(d)["cats"]["enc"][0].pop("values"),
        "'values': missing in 'enc'",
    ),
    "names that end beyond the text": (
        "named_categories",
        encoding(offsets=[0, 5]),
        "'offsets': expected bounds of",
    ),
    "a vector too short": (
        "vectors",
        tree_part("leaf_weights", list.pop),
        " leaves of 3 values",
    ),
    "a vector that is not there": (
        "vectors",
        tree_part("right_children", lambda right: right.__setitem__(-1, 10**6)),
        "'right_children': tree 2, node ",
    ),
    "vectors of two sizes": (
        "vectors",
        tree_part("tree_param", lambda tree: tree.update(size_leaf_vector="10000000")),
        "'size_leaf_vector': leaves of [3, 10000000] values for 3 outputs",
    ),
    "a weight too few": (
        "dart",
        lambda d: weights_of(d).pop(),
        "'weight_drop': expected 12 numbers",
    ),
}


@pytest.mark.parametrize("damage", KIND_DAMAGES)
def test_damaged_categories_vectors_and_weights_are_refused(tmp_path, capfd, damage):
    name, change, message = KIND_DAMAGES[damage]
    if "{sets}" in message:  # versions of XGBoost grow different trees
        sets = len(gb(json.loads(KINDS[name]().save_raw("json")))["trees"][2]["categories_sizes"])
        message = message.format(fewer=sets - 1, sets=sets)
    with pytest.raises(ModelFormatError) as error:
        load(edited(tmp_path, change, name))
    assert message in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_vectors_and_categories_of_old_versions_are_refused(tmp_path):
    def without_vectors(document):
        for each in gb(document)["trees"]:
            del each["leaf_weights"]

    with pytest.raises(UnsupportedModel, match="'leaf_weights': tree 0 keeps its vectors as XGB"):
        load(edited(tmp_path, without_vectors, "vectors"))
    with pytest.raises(UnsupportedModel, match="'version': unknown categories .* got XGBoost 1.6"):
        load(edited(tmp_path, lambda d: d.update(version=[1, 6, 2]), "categories_in_sets"))


BINARY_DAMAGES = {
    "a negative count of trees": (0, -1, "field 'header': -1 trees, 5 features, 3 classes"),
    "a tree without nodes": (160 + 4, 0, "field 'tree 0': 0 nodes and 1 roots"),
    "a tree of many nodes": (160 + 4, 2**30, "field 'tree 0': needs 21474836480 bytes at byte"),
    "a child beyond the tree": (160 + 148 + 4, 77, "field 'right_children': tree 0, node 0 has a"),
    "two roots": (160, 2, "field 'tree 0': 27 nodes and 2 roots"),
}


@pytest.mark.parametrize("damage", BINARY_DAMAGES)
def test_a_damaged_binary_file_is_refused_by_file_and_place(tmp_path, damage):
    place, value, message = BINARY_DAMAGES[damage]
    wrong = bytearray((OLD / "xgboost-0.90-classes.model").read_bytes())
    place += wrong.index(b"gbtree") + len(b"gbtree")
    wrong[place : place + 4] = value.to_bytes(4, "little", signed=True)
    (tmp_path / "wrong.model").write_bytes(wrong)
    with pytest.raises(ModelFormatError, match="wrong.model") as error:
        load(tmp_path / "wrong.model")
    assert message in str(error.value)


def test_a_linear_booster_is_refused():
    with pytest.raises(UnsupportedModel, match="expected 'gbtree' or 'dart', got 'gblinear'"):
        load(train("reg:squarederror", data()[1], booster="gblinear"))


def test_a_linear_booster_in_the_binary_format_is_refused_by_its_name(tmp_path):
    head, _, _ = (OLD / "xgboost-1.0.2-logistic.model").read_bytes().partition(b"gbtree")
    name = len(b"gblinear").to_bytes(8, "little") + b"gblinear"
    weights = (2).to_bytes(8, "little") + np.float32([0.5, 0.1]).tobytes()
    (tmp_path / "linear.model").write_bytes(head[:-8] + name + bytes(136) + weights)
    with pytest.raises(UnsupportedModel, match="expected 'gbtree' or 'dart', got 'gblinear'"):
        load(tmp_path / "linear.model")


def test_a_dart_estimator_of_an_unknown_version_is_refused(monkeypatch):
    from tvm_forest.frontends import xgboost as frontend

    model = KINDS["estimator_dart"]()
    read = frontend.read_header
    older = lambda *arguments: replace(read(*arguments), version=(2, 1, 0))  # noqa: E731
    monkeypatch.setattr(frontend, "read_header", older)
    with pytest.raises(UnsupportedModel, match="'booster': 'dart' estimators of XGBoost 2.1.0"):
        load(model)
    assert load(model.get_booster()).n_trees == 10


def test_a_classifier_of_two_classes_with_two_outputs_is_refused():
    params = {"objective": "multi:softprob", "num_class": 2, "n_estimators": 2}
    model = xgb.XGBClassifier(**params).fit(data()[0], labels(2))
    with pytest.raises(UnsupportedModel, match="field 'num_class': a classifier of 2 classes"):
        load(model)
    assert load(model.get_booster()).n_outputs == 2


def test_a_classifier_of_several_labels_that_are_all_0_is_refused():
    """XGBoost counts one class, and gives probabilities of an odd shape."""
    model = xgb.XGBClassifier(n_estimators=2).fit(data()[0], np.zeros((len(data()[0]), 3)))
    with pytest.raises(UnsupportedModel, match="field 'num_class': a classifier of 1 class with 3"):
        load(model)
    assert load(model.get_booster()).n_outputs == 3


def test_a_best_round_beyond_the_model_is_refused():
    model = xgb.XGBRegressor(n_estimators=3).fit(*data())
    model.get_booster().set_attr(best_iteration="3")
    with pytest.raises(
        ModelFormatError, match="'best_iteration': expected one of 3 rounds, got '3'"
    ):
        load(model)


def test_a_negative_base_score_has_no_logarithm(tmp_path):
    path = edited(tmp_path, param(base_score="-1E0"), "poisson")
    with pytest.raises(ModelFormatError, match=r"'base_score': expected 0 or more, got -1\.0"):
        load(path)


def test_a_booster_that_saves_itself_as_something_else_is_refused():
    class Booster:
        def save_raw(self):
            return b"what"

    Booster.__module__ = "xgboost.core"
    with pytest.raises(ModelFormatError, match="'model': saves itself in an unknown format"):
        load(Booster())


@pytest.mark.parametrize("model", [xgb.XGBRegressor(), xgb.XGBClassifier(), xgb.Booster()])
def test_a_model_before_training_is_refused(model):
    with pytest.raises(
        ModelFormatError, match="field 'model': holds no trained model .*; train it"
    ):
        load(model)


def test_objects_of_other_kinds_are_refused_by_name():
    class Pool:
        pass

    Pool.__module__ = "catboost.core"
    with pytest.raises(UnsupportedModel, match=r"catboost\S*Pool cannot be loaded"):
        load(Pool())
    for other in (3, None, data()[0], MODELS):
        with pytest.raises(ModelFormatError, match="argument 'model': got an object of type"):
            load(other)


KEY = b"{L" + bytes(7) + b"\x01a"
FOREIGN = {
    "empty.json": (b"", "is empty; give a model file of XGBoost"),
    "picture.png": (b"\x89PNG\r\n\x1a\n" + bytes(300), "is no model file (begins with b'\\x89PNG"),
    "rows.csv": (b"1.5,2,3\n" * 99, "is no model file (begins with b'1.5,2,3"),
    "other.json": (b'{"a": 1}', "field 'learner': missing in 'document'; this is no complete"),
    "list.json": (b"[1, 2]", "is no model file (begins with b'[1, 2]')"),
    "model.pickle": (
        b"\x80\x04\x95",
        "is no model file (begins with b'\\x80\\x04\\x95'); unpickle",
    ),
    "long.ubj": (KEY + b"Z}more", "not valid UBJSON: 4 bytes too many from byte 13"),
    "deep.json": (b'{"a":' * 100_000, "field 'document': not valid JSON"),
    "deep.ubj": (KEY * 100_000, "field 'document': not valid UBJSON: nested more than 100"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_is_refused(tmp_path, name):
    content, message = FOREIGN[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelFormatError) as error:
        load(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize("place", ["nowhere.json", "."])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, place):
    with pytest.raises(ModelFormatError, match=r"argument 'model': cannot read '.*' \("):
        load(tmp_path / place)


@pytest.mark.parametrize("suffix", ["json", "ubj", "model"])
def test_a_file_cut_off_anywhere_is_refused(tmp_path, suffix):
    whole = (OLD / f"xgboost-1.7.6-classes.{suffix}").read_bytes()
    end = len(whole) - 1 if suffix != "model" else len(whole) - 200  # behind lie attributes
    path = tmp_path / "cut"
    for length in np.linspace(0, end, 60).astype(int):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFormatError, match="cut"):
            load(path)


@pytest.mark.parametrize("name", OLD_FILES[::5])
def test_a_file_with_wrong_bytes_gives_a_forest_or_one_error(tmp_path, capfd, name):
    whole = (OLD / name).read_bytes()
    rng = np.random.default_rng(len(whole))
    path = tmp_path / "wrong"
    for _ in range(60):
        wrong = bytearray(whole)
        for place in rng.integers(0, len(whole), 3):
            wrong[place] = rng.integers(256)
        path.write_bytes(wrong)
        try:
            assert isinstance(load(path), Forest)
        except (ModelFormatError, UnsupportedModel) as error:
            assert "\n" not in str(error)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["categories_in_sets", "named_categories_dart", "vectors"])
@pytest.mark.parametrize("form", ["json", "ubj"])
def test_wrong_bytes_among_categories_and_vectors_give_a_forest_or_one_error(tmp_path, name, form):
    whole = KINDS[name]().save_raw(form)
    rng = np.random.default_rng(len(whole))
    path = tmp_path / "wrong"
    for _ in range(40):
        wrong = bytearray(whole)
        for place in rng.integers(0, len(whole), 2):
            wrong[place] = rng.integers(256)
        path.write_bytes(wrong)
        try:
            assert isinstance(load(path), Forest)
        except (ModelFormatError, UnsupportedModel) as error:
            assert "\n" not in str(error)
