"""Forest: what it refuses, and the walk that is the oracle of all other tests."""

import dataclasses
import pickle

import numpy as np
import pytest

from tvm_forest.errors import ModelFormatError
from tvm_forest.forest import Forest, apply_link
from tvm_forest.forest.fields import from_fields, to_fields
from tvm_forest.forest.hits import are_skewed, find_peel_depths
from tvm_forest.forest.probe_rows import hard_rows, typical_rows
from tvm_forest.forest.rewrites.ordering import NULL_TREE, take_trees
from tvm_forest.forest.structure.metadata import read_roles


def two_trees(**changes):
    """Tree 0: feature 0 < 1.5 ? (feature 1 < -2 ? 1 : 2) : 4; tree 1: the single leaf 8."""
    arrays = {
        "tree_offset": np.array([0, 5, 6]),
        "feature": np.array([0, 1, -1, -1, -1, -1], np.int32),
        "threshold": np.array([1.5, -2, 0, 0, 0, 0], np.float32),
        "left": np.array([1, 3, -1, -1, -1, -1], np.int32),
        "right": np.array([2, 4, -1, -1, -1, -1], np.int32),
        "default_left": np.array([True, False, False, False, False, False]),
        "leaf_value": np.array([[0], [0], [4], [1], [2], [8]], np.float32),
        "node_id": np.array([0, 1, 2, 5, 6, 0], np.int32),
        "tree_class": np.array([0, 0], np.int32),
        "tree_id": np.array([0, 1], np.int32),
        "base_score": np.array([0.5], np.float32),
        "n_features": 2,
    }
    return Forest(**(arrays | changes))


ROWS = np.array(
    [[1, -3], [1, -2], [1.5, -3], [np.nan, np.nan], [-np.inf, -np.inf], [np.inf, 0]], np.float32
)


def test_the_reference_walk_goes_left_below_the_threshold_only():
    assert two_trees().predict_reference(ROWS, "per_tree")[:, 0].tolist() == [1, 2, 4, 2, 1, 4]


def test_a_comparison_with_equality_goes_left_on_the_threshold():
    forest = two_trees(comparison="<=")
    assert forest.predict_reference(ROWS, "per_tree")[:, 0].tolist() == [1, 1, 1, 2, 1, 4]


def test_apply_reports_the_numbers_of_the_source_model():
    leaf = two_trees(leaf_id_dtype="float32").predict_reference(ROWS, "apply")
    assert leaf.dtype == np.float32
    assert leaf.tolist() == [[5, 0], [6, 0], [2, 0], [6, 0], [5, 0], [2, 0]]


def test_margins_start_from_the_base_score_and_add_trees_in_order():
    big = np.array([2.0**27], np.float32)  # floats are 16 apart there
    first = two_trees(base_score=big).predict_reference(ROWS[:1])
    last = two_trees(base_score=big, base_first=False).predict_reference(ROWS[:1])
    assert first == 2**27
    assert last == 2**27 + 16


def test_an_averaged_forest_divides_by_its_number_of_trees():
    assert two_trees(aggregate="average").predict_reference(ROWS[:1]) == (0.5 + 1 + 8) / 2


def test_trees_add_to_their_own_class():
    forest = two_trees(tree_class=np.array([1, 0]), base_score=np.array([0.5, 1], np.float32))
    assert forest.predict_reference(ROWS[:2]).tolist() == [[8.5, 2], [8.5, 3]]


def test_rows_are_cast_before_they_are_compared():
    just_below = np.array([[1.5 - 1e-12, 0.0]])
    assert two_trees().predict_reference(just_below, "per_tree")[0, 0] == 4
    exact = two_trees(row_dtype="float64").predict_reference(just_below, "per_tree")
    assert exact[0, 0] == 2


@pytest.mark.parametrize("output", ["margin", "value", "apply", "per_tree"])
def test_no_rows_give_no_answers(output):
    forest = two_trees()
    expected = (0, 1) if output in ("margin", "value") else (0, 2)
    assert forest.predict_reference(np.zeros((0, 2)), output).shape == expected


def test_counts_describe_the_trees():
    forest = two_trees()
    assert (forest.n_trees, forest.n_nodes, forest.n_outputs) == (2, 6, 1)
    assert forest.depths.tolist() == [2, 0]
    assert forest.tests.tolist() == [[0, 1.5], [1, -2]]
    assert forest.sum_dtype == "float32"


def test_a_forest_cannot_be_changed():
    forest = two_trees()
    with pytest.raises(dataclasses.FrozenInstanceError):
        forest.n_features = 3
    with pytest.raises(ValueError, match="read-only"):
        forest.threshold[0] = 7


def test_a_forest_answers_a_question_once_and_pickles_no_answer():
    forest, asked = two_trees(), []

    def count(forest, tree):
        asked.append(tree)
        return forest.n_trees + tree

    assert [forest.ask_once(count, 1), forest.ask_once(count, 1)] == [3, 3]
    assert forest.ask_once(count, 2) == 4 and asked == [1, 2]
    again = pickle.loads(pickle.dumps(forest))  # a local function would not be pickled
    assert again.signature == forest.signature and again.ask_once(count, 1) == 3
    assert asked == [1, 2, 1]


def test_the_signature_tells_models_apart():
    assert two_trees().signature == two_trees().signature
    assert two_trees().signature != two_trees(comparison="<=").signature
    assert two_trees().signature != two_trees(base_score=np.array([0.25], np.float32)).signature


def node(name, place, value):
    """Two trees with one entry of a node array changed."""
    array = np.array(getattr(two_trees(), name))
    array[place] = value
    return {name: array}


DAMAGES = {
    "a child beyond the tree": (node("left", 0, 9), "tree 0, node 0 has left child 9"),
    "the root as child": (node("left", 1, 0), "tree 0, node 1 has left child 0"),
    "one child only": (node("right", 0, -1), "tree 0, node 0 has right child -1"),
    "a node with two parents": (node("left", 0, 3), "tree 0, node 3 has two parents"),
    "a cycle": (node("right", 1, 1) | node("left", 0, 4), "node 1 is part of a cycle"),
    "a root that is a leaf": (
        {name: np.array([-1, x, -1, -1, -1, -1]) for name, x in (("left", 1), ("right", 2))}
        | {"tree_offset": np.array([0, 3, 4, 5, 6])}
        | {name: np.zeros(4, np.int32) for name in ("tree_class", "tree_id")},
        "node 1 is part of a cycle",
    ),
    "a feature beyond the rows": (node("feature", 0, 2), "node 0 tests feature 2 of 2"),
    "a threshold that is none": (node("threshold", 1, np.nan), "node 1 has a threshold"),
    "a class beyond the outputs": (node("tree_class", 1, 1), "'tree_class' names a class beyond"),
    "trees that overlap": (node("tree_offset", 1, 6), "'tree_offset' does not cover"),
    "an array too short": ({"node_id": np.zeros(5, np.int32)}, "'node_id' has 5 entries"),
    "a tree without a class": ({"tree_class": np.zeros(1, np.int32)}, "has 1 entries for 2 trees"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_forest_is_refused_by_place(damage):
    changes, message = DAMAGES[damage]
    with pytest.raises(ModelFormatError, match="the model is damaged") as error:
        two_trees(**changes)
    assert message in str(error.value)


def test_a_tree_whose_paths_double_at_every_level_is_refused_at_once():
    levels = 60  # nodes 2k + 1 and 2k + 2 both lead to nodes 2k + 3 and 2k + 4
    left = np.append(np.minimum(2 * ((np.arange(2 * levels) + 1) // 2) + 1, 2 * levels - 1), -1)
    left[-2:] = -1
    size = len(left)
    right = np.where(left < 0, -1, left + 1)
    with pytest.raises(ModelFormatError, match="two parents"):
        Forest(
            tree_offset=np.array([0, size]),
            feature=np.where(left < 0, -1, 0),
            threshold=np.zeros(size, np.float32),
            left=left,
            right=right,
            default_left=np.zeros(size, bool),
            leaf_value=np.zeros((size, 1), np.float32),
            node_id=np.arange(size),
            tree_class=np.zeros(1, np.int32),
            tree_id=np.zeros(1, np.int32),
            base_score=np.zeros(1, np.float32),
            n_features=1,
        )


def test_links_turn_margins_into_values():
    margin = np.array([[-2.0, 0.0, 1.0]], np.float32)
    assert apply_link("identity", margin) is margin
    assert np.allclose(apply_link("sigmoid", margin), [[0.1192029, 0.5, 0.7310586]])
    assert np.allclose(apply_link("exp", margin), [[0.1353353, 1, 2.7182817]])
    assert apply_link("step", margin).tolist() == [[0, 0, 1]]
    assert np.allclose(apply_link("softmax", margin), [[0.0351190, 0.2594965, 0.7053845]])
    assert apply_link("softmax", margin).dtype == np.float32


def test_hard_rows_meet_every_threshold_and_its_neighbours():
    forest = two_trees()
    rows = hard_rows(forest, 400)
    assert rows.shape == (400, 2) and rows.dtype == np.float32
    threshold = np.float32(1.5)
    for value in (threshold, np.nextafter(threshold, np.float32(9)), np.float32(-np.inf)):
        assert (rows[:, 0] == value).any()
    assert np.isnan(rows).any()
    assert np.array_equal(rows, hard_rows(forest, 400), equal_nan=True)


def test_typical_rows_take_every_branch():
    forest = two_trees()
    rows = typical_rows(forest, 200)
    assert set(forest.predict_reference(rows, "apply")[:, 0]) == {2, 5, 6}
    assert np.isnan(typical_rows(forest, 200, missing=0.5)).mean() == pytest.approx(0.5, abs=0.1)


def test_every_field_has_a_role_and_no_two_share_a_place_in_the_signature() -> None:
    roles = read_roles(Forest)
    places = sorted(role.place for role in roles.values() if role.place is not None)
    assert places == list(range(len(places)))
    unsigned = {name for name, role in roles.items() if role.place is None}
    rows = {"listed_categories", "labels_are_numbers", "refuses_unseen", "object_dtype"}
    rows |= {"blank", "takes_by_name", "spares_columns", "ignored_columns"}
    ranges = {"needs_end", "rounds_left_out", "with_all_rounds"}  # what users may ask for
    assert unsigned == {"tile", "tile_size", "hits", "cover", *rows, *ranges}


def test_a_null_tree_has_an_entry_in_every_array_of_nodes_and_trees() -> None:
    forest = take_trees(two_trees(), np.array([NULL_TREE]))
    assert (forest.n_trees, forest.n_nodes) == (1, 1)
    assert np.array_equal(np.signbit(forest.leaf_value), [[True]]) and forest.leaf_value == 0
    arrays = {**forest.arrays_per("node"), **forest.arrays_per("tree")}
    assert all(len(array) == 1 for array in arrays.values())


LINKS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "unbounded_sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "exp": np.exp,
    "log1p_exp": lambda x: np.log1p(np.exp(x)),
    "coarse_exp": np.exp,
    "variance": lambda x: np.where(np.arange(x.shape[1]) % 2, np.exp(2 * x), x),
    "clamp": lambda x: np.clip(x, 0, 1),
    "step": lambda x: x > 0,
    "sorted": lambda x: np.sort(x, axis=1),
    "signed_square": lambda x: x * np.abs(x),
    "halving": lambda x: 2**-x,
    "isolation": lambda x: -(2**-x),
    **dict.fromkeys(
        ("softmax", "plain_softmax", "rounded_softmax", "coarse_softmax"),
        lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True),
    ),
}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_link_is_its_formula(link, dtype):
    margin = np.random.default_rng(1).normal(scale=2, size=(50, 4)).astype(dtype)
    found = apply_link(link, margin)
    assert found.dtype == dtype
    assert np.allclose(found, LINKS[link](margin.astype(np.float64)), rtol=1e-5)


def test_links_differ_where_powers_are_large():
    wide = np.array([[-200.0, 0.0]], np.float32)
    assert apply_link("sigmoid", wide)[0, 0] > 0 == apply_link("unbounded_sigmoid", wide)[0, 0]
    assert apply_link("softmax", np.float32([[1000, 0]])).tolist() == [[1, 0]]
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.isnan(apply_link("plain_softmax", np.float32([[1000, 0]]))[0, 0])
    least = np.array([[-1e9, 0.0, -1e9, -1e9, -1e9]])
    powers = apply_link("coarse_exp", least.T)[:, 0]
    assert powers[0] > 0 == powers[4]  # the last of five rows is computed alone
    assert apply_link("coarse_softmax", least)[0, 0] > 0 == apply_link("softmax", least)[0, 0]
    assert apply_link("coarse_softmax", least)[0, 4] == 0  # which is computed one by one
    one = np.float64([[0.1, 0.3]])
    assert (apply_link("rounded_softmax", one) != apply_link("softmax", one)).any()


def test_a_scale_multiplies_or_divides_the_margin():
    margin = np.array([[0.5, -1.0]], np.float32)
    assert np.allclose(apply_link("sigmoid", margin, 2.0), 1 / (1 + np.exp(-2 * margin)))
    assert np.allclose(apply_link("halving", margin, 4.0), 2 ** -(margin / 4))


def test_targets_have_their_own_softmax():
    margin = np.array([[0.5, -1.0, 2.0, 1.0, 0.0]])
    parts = [apply_link("softmax", margin[:, :2]), apply_link("softmax", margin[:, 2:])]
    assert (apply_link("softmax", margin, 1.0, (2, 3)) == np.concatenate(parts, axis=1)).all()


def test_a_signature_is_what_earlier_versions_computed():
    """It names entries of the cache and records of searches; a new field must leave it alone."""
    assert (
        two_trees().signature == "7394a5955648ef9535bc86fdcfe7cd84fd94cd58cd8e3f494aa2db66931a853c"
    )


def test_skewed_trees_are_those_whose_likeliest_leaves_get_most_rows():
    even, skewed, empty = [5] * 20, [1] * 18 + [300, 300], [0] * 20
    hits, counts = np.array([*even, *skewed, *empty, 9]), np.array([20, 20, 20, 1])
    assert are_skewed(hits, counts).tolist() == [False, True, False, False]
    assert are_skewed(hits, counts, leaves=1.0).tolist() == [True, True, False, True]
    assert are_skewed(hits, counts, rows=0.99).tolist() == [False] * 4


def test_one_row_is_enough_to_know_how_deep_rows_go():
    some, none = np.array([0, 0, 1, 0, 0, 0]), np.zeros(6, np.int64)
    assert find_peel_depths(two_trees(hits=some)).tolist() == [1, 0]
    assert find_peel_depths(two_trees(hits=none)).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("fields", "cleaned"),
    [({}, False), ({"missing": -999.0}, True), ({"zero_missing": (0,)}, True)],
)
def test_a_forest_says_whether_rows_have_to_be_cleaned(fields, cleaned):
    forest = two_trees(**fields)
    assert forest.needs_cleaning is cleaned is forest.needs_preparation


@pytest.mark.parametrize(
    "labels", [np.array([3, 5]), np.array(["a", "b"]), np.array(["a", 7], object)]
)
def test_labels_keep_their_dtype_in_fields(labels):
    forest = two_trees(labels=labels, label_rule="cut")
    again = from_fields(*to_fields(forest))
    assert again.labels.dtype == labels.dtype and again.labels.tolist() == labels.tolist()
    assert again.signature == forest.signature
