"""ONNX models load with the bits of onnxruntime at one thread, and follow the text at NaN."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.aionnxml.op_tree_ensemble_helper import TreeEnsemble

from onnx_cases import CLASSIFIERS, MODELS, PLAIN
from onnx_models import (
    EDGES,
    FEATURES,
    Tree,
    answers,
    drawn_trees,
    ensemble,
    regressor,
)
from shared_models import shared_model
from tvm_forest.forest import choose_labels
from tvm_forest.forest.probe_rows import hard_rows, typical_rows
from tvm_forest.frontends import load

LINK_ERROR = 2.0**-22  # numpy's exp against the C library's, near 1


def probes(forest, model, n=700):
    """Hard rows and category codes, without what onnxruntime takes wrongly.

    It sends NaN at NEQ to the true branch, and cuts off fractions for the test of large sets.
    """
    rows = hard_rows(forest, n, seed=1)
    rng = np.random.default_rng(2)
    codes = np.less(rng.random(rows.shape), 0.3)
    rows[codes] = rng.choice([*EDGES, *range(45), 1e9, -3.0, 16777216.0], int(codes.sum()))
    if any(len(members) > 1 for members in forest.categories.values()):
        rows = np.trunc(rows)
    opset5 = model.graph.node[0].op_type == "TreeEnsemble"
    unequal = opset5 or b"BRANCH_NEQ" in model.SerializeToString()
    return np.where(np.isnan(rows), rows.dtype.type(1), rows) if unequal else rows


def picked(forest, rows):
    """The labels that a forest gives, by its rule."""
    margin, value = forest.predict_reference(rows), forest.predict_reference(rows, "value")
    return choose_labels(forest, margin, value)


def both_scores(forest, value):
    """onnxruntime gives two scores where a forest has one."""
    if value.shape[1] > 1 or forest.label_rule == "none":
        return value
    plain = forest.link == "identity" and 0 < forest.label_cut < 0.5
    return np.concatenate([-value if plain else 1 - value, value], axis=1)


@pytest.mark.parametrize("name", MODELS)
def test_values_equal_those_of_onnxruntime(name):
    model = MODELS[name]()
    forest = load(model)
    rows = probes(forest, model)
    *_, scores = answers(model, rows)
    value = both_scores(forest, forest.predict_reference(rows, "value"))
    assert (value.dtype, value.shape) == (scores.dtype, scores.shape)
    assert not forest.leaf_value[~forest.is_leaf].any()
    if forest.link == "identity":
        column = 1 if "two classes double" in name else 0  # 1 - score, before it is rounded
        assert value[:, column:].tobytes() == scores[:, column:].tobytes()
    else:
        assert np.all(np.abs(value - scores) <= LINK_ERROR)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_labels_equal_those_of_onnxruntime(name):
    model = CLASSIFIERS[name]()
    forest = load(model)
    rows = probes(forest, model)
    label = picked(forest, rows)
    expected = answers(model, rows)[0]
    assert len(np.unique(label)) > 1
    assert np.array_equal(label, expected)
    assert label.dtype == expected.dtype or label.dtype.kind == "U"


@pytest.mark.parametrize("n_rows", [1, 2, 50, 51, 127, 128, 129, 700])
def test_onnxruntime_adds_in_tree_order_for_every_number_of_rows(n_rows):
    for name in ("200 trees", "every leaf has all targets", "LEQ and LT double"):
        model = MODELS[name]()
        forest = load(model)
        rows = probes(forest, model)[:n_rows]
        expected = answers(model, rows)[0]
        assert np.array_equal(forest.predict_reference(rows, "value"), expected)


# -- nodes ----------------------------------------------------------------------------------------


def stump(mode, threshold, nan_true=0, members=()):
    leaves = Tree(votes={0: 1.0}), Tree(votes={0: 2.0})
    return Tree(mode, 0, threshold, nan_true, members, {}, leaves)


def column(values, dtype):
    rows = np.zeros((len(values), FEATURES), dtype)
    rows[:, 0] = values
    return rows


TESTS = {
    "LEQ": np.less_equal,
    "LT": np.less,
    "GTE": np.greater_equal,
    "GT": np.greater,
    "EQ": np.equal,
    "NEQ": np.not_equal,
}


@pytest.mark.parametrize("modes", [["LEQ", "LT"], ["LT", "GTE"], ["GT", "GTE"], PLAIN])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_mode_asks_at_every_edge_what_the_text_says(modes, dtype):
    info = np.finfo(dtype)
    edges = np.array([*np.float32(EDGES), info.max, -info.max, info.tiny, -1], dtype)
    cases = [(mode, edge, flag) for mode in modes for edge in edges for flag in (0, 1)]
    forest = load(regressor([stump(*case) for case in cases], dtype))
    top = edges.dtype.type(np.inf)
    with np.errstate(over="ignore"):
        near = [np.nextafter(edges, top), np.nextafter(edges, -top)]
    values = np.concatenate([edges, *near, np.array([np.nan], dtype)])
    leaf = forest.predict_reference(column(values, dtype), "per_tree")
    for at, (mode, edge, flag) in enumerate(cases):
        true = np.where(np.isnan(values), flag == 1, TESTS[mode](values, edge))
        assert np.array_equal(leaf[:, at], np.where(true, 1, 2)), (mode, edge, flag)


@pytest.mark.parametrize("flag", [0, 1])
def test_a_set_holds_its_members_and_no_fractions(flag):
    sets = [(0.0,), (1.0, 40.0), (3.0, 16777215.0)]
    forest = load(ensemble([stump("MEMBER", 0, flag, members) for members in sets]))
    values = np.float32([0, -0.0, 1, 1.5, 40, 40.5, 3, 16777215, 16777216, -1, np.inf, -np.inf])
    values = np.append(values, np.float32(np.nan))
    leaf = forest.predict_reference(column(values, np.float32), "per_tree")
    for at, members in enumerate(sets):
        true = np.where(np.isnan(values), flag == 1, np.isin(values, members))
        assert np.array_equal(leaf[:, at], np.where(true, 1, 2))


@pytest.mark.parametrize("mode", PLAIN)
def test_missing_values_go_where_the_reference_evaluator_sends_them(mode):
    model = regressor(drawn_trees(4, 5, [mode]))
    forest = load(model)
    rows = hard_rows(forest, 40)
    expected = ReferenceEvaluator(model).run(None, {"X": rows})[0]
    assert np.isnan(rows).any()
    assert np.array_equal(forest.predict_reference(rows), expected)


def test_leaves_have_the_numbers_of_the_model():
    model = regressor(drawn_trees(8, 6, PLAIN), first_id=7)
    forest = load(model)
    rows = hard_rows(forest, 60)
    attributes = {a.name: helper.get_attribute_value(a) for a in model.graph.node[0].attribute}
    attributes["nodes_modes"] = [mode.decode() for mode in attributes["nodes_modes"]]
    found = TreeEnsemble(**attributes).leave_index_tree(rows)
    leaf = forest.predict_reference(rows, "apply")
    assert leaf.dtype == np.int64
    assert np.array_equal(leaf, np.array(attributes["nodes_nodeids"])[found])


def test_leaves_of_opset_5_have_their_place_in_the_list():
    forest = load(ensemble([stump("LT", 0.5), Tree(votes={0: 3.0}), stump("LT", 0.5)]))
    leaf = forest.predict_reference(column([0, 1], np.float32), "apply")
    assert leaf.tolist() == [[0, 2, 3], [1, 2, 4]]


# -- real models ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["abalone", "airline"])
def test_real_models_have_the_bits_of_onnxruntime(name):
    path = shared_model(f"{name}.onnx")
    forest = load(path)
    table = np.loadtxt(shared_model(f"{name}.csv"), delimiter=",", max_rows=300)
    rows = np.concatenate(
        [table[:, :-1].astype(np.float32), hard_rows(forest, 300), typical_rows(forest, 300)]
    )
    margin = forest.predict_reference(rows)
    assert np.array_equal(margin, answers(path.read_bytes(), rows)[0])
    if name == "abalone":
        assert np.abs(margin[: len(table), 0] - table[:, -1]).max() < 4e-5


SKLEARN = {
    "RandomForestClassifier": 3,
    "RandomForestClassifier ": 2,
    "ExtraTreesClassifier": 2,
    "DecisionTreeClassifier": 3,
    "GradientBoostingClassifier": 3,
    "GradientBoostingClassifier ": 2,
    "RandomForestRegressor": 0,
    "GradientBoostingRegressor": 0,
    "ExtraTreesRegressor": 0,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SKLEARN)
@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.cases(9)
def test_what_skl2onnx_makes_of_scikit_learn_loads(name, texts):
    sklearn, skl2onnx = pytest.importorskip("sklearn.ensemble"), pytest.importorskip("skl2onnx")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, FEATURES)).astype(np.float32)
    goal = (rows @ rng.normal(size=FEATURES) * 2).astype(int) % max(SKLEARN[name], 5)
    if SKLEARN[name]:
        goal = goal % SKLEARN[name]
        goal = np.char.add("class", goal.astype(str)) if texts else goal * 3 - 1
    room = sklearn if "Decision" not in name else pytest.importorskip("sklearn.tree")
    fitted = getattr(room, name.strip())(max_depth=5, random_state=0).fit(rows, goal)
    model = skl2onnx.to_onnx(fitted, rows[:1])
    forest = load(model)
    rows = hard_rows(forest, 400)
    expected = answers(model, rows)
    if not SKLEARN[name]:
        assert np.array_equal(forest.predict_reference(rows), expected[0])
        return
    assert np.array_equal(picked(forest, rows), expected[0])
    value = both_scores(forest, forest.predict_reference(rows, "value"))
    scores = np.array([[row[label] for label in forest.labels.tolist()] for row in expected[1]])
    assert np.abs(value - scores).max() <= (0 if forest.link == "identity" else LINK_ERROR)


# -- ways in --------------------------------------------------------------------------------------


def test_files_bytes_and_objects_are_one_model(tmp_path):
    model = MODELS["all modes"]()
    data = model.SerializeToString()
    (tmp_path / "model.onnx").write_bytes(data)
    (tmp_path / "model").write_bytes(data)
    ways = [model, data, tmp_path / "model.onnx", str(tmp_path / "model")]
    assert len({load(way).signature for way in ways}) == 1


def test_identities_and_a_zipmap_change_nothing():
    make = CLASSIFIERS["three classes"]
    plain = load(make())
    model = make()
    node, ml = model.graph.node[0], "ai.onnx.ml"
    node.input[0], node.output[0], node.output[1] = "x", "l", "y"
    labels = {"classlabels_int64s": [4, -1, 9]}
    model.graph.node.insert(0, helper.make_node("Identity", ["X"], ["x"]))
    model.graph.node.extend(
        [
            helper.make_node("Cast", ["l"], ["L"], to=TensorProto.INT64),
            helper.make_node("Identity", ["y"], ["z"]),
            helper.make_node("ZipMap", ["z"], ["Y"], domain=ml, **labels),
        ]
    )
    assert load(model).signature == plain.signature
