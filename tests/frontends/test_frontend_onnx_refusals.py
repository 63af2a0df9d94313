"""What is no ONNX forest, or cannot be reproduced, gives one error with place and field."""

import sys
import time

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnx_models import (
    PLAIN,
    Tree,
    attribute,
    classifier,
    drawn_trees,
    ensemble,
    regressor,
    without,
)
from tvm_forest.errors import ForestError, ModelFormatError, UnsupportedModel
from tvm_forest.frontends import load

SEED = 7  # two trees or more have inner nodes below the root


def trees(targets=1, votes="one", low=-1.0):
    return drawn_trees(SEED, 4, PLAIN, targets, votes=votes, low=low)


def uneven():
    return [Tree("LT", branches=(Tree(votes={0: 1.0}), Tree(votes={1: 1.0})))]


def edited(make, name, change):
    def build():
        model = make()
        change(attribute(model, name))
        return model

    return build


def listed():
    return regressor(trees())


def split():
    return ensemble(trees())


def ints(place, value):
    return lambda a: a.ints.__setitem__(place, value)


def root_of_last(a):
    """Point to the root of the tree, which is number 0."""
    a.ints[next(i for i, child in enumerate(a.ints) if child)] = 0


def external(a):
    a.t.data_location = TensorProto.EXTERNAL


DAMAGES = {
    "a column too short": (edited(listed, "nodes_values", lambda a: a.floats.pop()), "entries"),
    "a list of modes too long": (
        edited(listed, "nodes_modes", lambda a: a.strings.append(b"LEAF")),
        "'nodes_modes'",
    ),
    "a weight too few": (edited(listed, "target_weights", lambda a: a.floats.pop()), "target_w"),
    "a child that is nowhere": (edited(listed, "nodes_truenodeids", ints(0, 999)), "no node 999"),
    "a child below zero": (edited(listed, "nodes_falsenodeids", ints(0, -1)), "no node -1"),
    "a child beyond any number": (
        edited(listed, "nodes_falsenodeids", ints(0, 1 << 62)),
        "no node 4611686018427387904",
    ),
    "a child that is the root": (
        edited(listed, "nodes_truenodeids", root_of_last),
        "two parents or is the root",
    ),
    "two nodes of one number": (edited(listed, "nodes_nodeids", ints(1, 0)), "the same number"),
    "a number below zero": (edited(listed, "nodes_nodeids", ints(1, -4)), "not within 0 to"),
    "a feature too high": (
        edited(listed, "nodes_featureids", ints(0, 4)),
        "4 is not within 0 to 3",
    ),
    "a feature below zero": (edited(listed, "nodes_featureids", ints(0, -1)), "-1 is not within"),
    "a target too high": (edited(listed, "target_ids", ints(0, 1)), "1 is not within 0 to 0"),
    "a weight of no tree": (edited(listed, "target_treeids", ints(0, 77)), "in tree 77"),
    "a weight that is no number": (
        edited(listed, "target_weights", lambda a: a.floats.__setitem__(0, np.nan)),
        "a weight is not a number",
    ),
    "a threshold that is no number": (
        edited(listed, "nodes_values", lambda a: a.floats.__setitem__(0, np.nan)),
        "a threshold that is not a number",
    ),
    "no targets": (edited(listed, "n_targets", lambda a: setattr(a, "i", 0)), "0 targets"),
    "more targets than weights": (
        edited(listed, "n_targets", lambda a: setattr(a, "i", 1 << 40)),
        "1099511627776 targets",
    ),
    "too many base values": (lambda: regressor(trees(), base=[1, 2]), "2 values for 1"),
    "a flag of two": (edited(listed, "nodes_missing_value_tracks_true", ints(0, 2)), "got 2"),
    "an unknown aggregate": (lambda: regressor(trees(), aggregate_function="MEDIAN"), "'MEDIAN'"),
    "a leaf without weight": (
        lambda: regressor([Tree("LT", branches=(Tree(), Tree(votes={0: 1.0})))]),
        "a leaf has no weight",
    ),
    "a list in place of a number": (
        edited(listed, "n_targets", lambda a: setattr(a, "type", 7)),
        "expected an integer, got integers",
    ),
    "values twice": (lambda: regressor(trees(), base=[1], base_values_as_tensor=_one()), "beside"),
    "no trees": (lambda: without(without(_bare(), "nodes_modes"), "nodes_values"), "no trees"),
    "a child beyond the leaves": (edited(split, "nodes_truenodeids", ints(0, 99)), "99 is not"),
    "a root beyond the nodes": (edited(split, "tree_roots", ints(0, 99)), "99 is not within"),
    "a root twice": (edited(split, "tree_roots", ints(1, 0)), "two parents"),
    "a cycle": (edited(split, "nodes_truenodeids", ints(0, 0)), "two parents"),
    "a set too few": (
        lambda: ensemble(
            drawn_trees(SEED, 4, ["MEMBER"]),
            membership_values=helper.make_tensor("v", TensorProto.FLOAT, [1], [3.0]),
        ),
        "1 sets for",
    ),
    "a shape that lies": (
        edited(split, "leaf_weights", lambda a: a.t.dims.__setitem__(0, 1 << 40)),
        "for the shape [1099511627776]",
    ),
}


def _one():
    return helper.make_tensor("b", TensorProto.FLOAT, [1], [1.0])


def _bare():
    """Build a regressor whose lists are all gone."""
    model = listed()
    for name in ("nodeids", "treeids", "featureids", "truenodeids", "falsenodeids"):
        without(model, f"nodes_{name}")
    for name in ("ids", "nodeids", "treeids", "weights"):
        without(model, f"target_{name}")
    return without(model, "nodes_missing_value_tracks_true")


def noted(model, name="note"):
    model.graph.node[0].attribute.append(helper.make_attribute(name, 1))
    return model


def followed(kind, domain="", **settings):
    def build():
        model = listed()
        model.graph.node[0].output[0] = "y"
        node = helper.make_node(kind, ["y"], ["Y"], domain=domain, **settings)
        model.graph.node.append(node)
        return model

    return build


def with_input(**fields):
    def build():
        model = listed()
        tensor = model.graph.input[0].type.tensor_type
        if "elem_type" in fields:
            tensor.elem_type = fields["elem_type"]
        if "dims" in fields:
            del tensor.shape.dim[fields["dims"] :]
        return model

    return build


def on_opset(make, version):
    model = make()
    model.opset_import[0].version = version
    return model


def doubled():
    model = listed()
    model.graph.node.append(model.graph.node[0])
    return model


def equal_chain(depth):
    node = Tree(votes={0: 1.0})
    for _ in range(depth):
        node = Tree("EQ", 0, 0.5, branches=(Tree(votes={0: 2.0}), node))
    return regressor([node])


TWO = ["a", "b"]
REFUSALS = {
    "a scaler": (followed("Scaler", "ai.onnx.ml"), "computes 'Scaler'"),
    "a cast of scores": (followed("Cast", to=TensorProto.DOUBLE), "computes 'Cast'"),
    "a normalizer": (followed("Normalizer", "ai.onnx.ml"), "computes 'Normalizer'"),
    "two tree operators": (doubled, "2 tree operators"),
    "an unknown attribute": (lambda: noted(listed()), "'note': unknown"),
    "an unknown mode": (
        edited(listed, "nodes_modes", lambda a: a.strings.__setitem__(0, b"BRANCH_MAYBE")),
        "'BRANCH_MAYBE'",
    ),
    "probit": (lambda: regressor(trees(), post_transform="PROBIT"), "'PROBIT' is not among"),
    "softmax zero": (
        lambda: regressor(trees(2), targets=2, post_transform="SOFTMAX_ZERO"),
        "'SOFTMAX_ZERO'",
    ),
    "a transform of one target": (
        lambda: regressor(trees(), post_transform="LOGISTIC"),
        "onnxruntime computes something else",
    ),
    "a transform of opset 5": (
        lambda: ensemble(trees(2), targets=2, post_transform=1),
        "onnxruntime computes something else",
    ),
    "two weights of one leaf": (
        edited(lambda: regressor(trees(2, "all"), targets=2), "target_ids", ints(0, 1)),
        "two weights for one output",
    ),
    "a base that some rows do not get": (
        lambda: regressor(uneven(), targets=2, base=[1, 2]),
        "no weight for output",
    ),
    "a minimum of nothing": (
        lambda: regressor(uneven(), targets=2, aggregate_function="MIN"),
        "no weight for output",
    ),
    "a class that some rows do not score": (
        lambda: classifier(trees(3, "some"), ["a", "b", "c"]),
        "no weight for output",
    ),
    "two classes with two scores": (lambda: classifier(trees(2, "all"), TWO), "both have a score"),
    "two base values of two classes": (lambda: classifier(trees(), TWO, base=[1, 2]), "both have"),
    "a weight of an inner node": (
        edited(lambda: classifier(trees(), TWO), "class_nodeids", ints(0, 0)),
        "a weight of an inner node",
    ),
    "one class": (lambda: classifier(trees(), ["a"]), "1 classes"),
    "sets of fractions": (
        lambda: ensemble(
            [Tree("MEMBER", members=(0.5,), branches=(Tree(votes={0: 1.0}),) * 2)] * 2
        ),
        "a set holds 0.5",
    ),
    "too many copies": (lambda: equal_chain(20), "more than 4 times the nodes"),
    "integer rows": (with_input(elem_type=TensorProto.INT64), "'X' has data type 7"),
    "half floats": (with_input(elem_type=TensorProto.FLOAT16), "'X' has data type 10"),
    "a row without a batch": (with_input(dims=1), "'X' has 1 dimensions"),
    "double tables for float rows": (
        lambda: _float_rows(regressor(trees(), dtype="float64")),
        "holds float64, but rows are float32",
    ),
    "a later opset": (lambda: on_opset(listed, 6), "ai.onnx.ml [6]"),
    "an ensemble before opset 5": (lambda: on_opset(split, 3), "expected 5 to 5"),
    "weights in another file": (edited(split, "leaf_weights", external), "data location 1"),
}


def _float_rows(model):
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return model


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_model_is_named(name):
    make, words = DAMAGES[name]
    with pytest.raises(ModelFormatError) as raised:
        load(make())
    assert words in str(raised.value)


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_exact_is_refused_by_name(name):
    make, words = REFUSALS[name]
    with pytest.raises(UnsupportedModel) as raised:
        load(make())
    assert words in str(raised.value)


def test_a_truncated_file_is_an_error_at_every_length(tmp_path):
    path = tmp_path / "model.onnx"
    data = listed().SerializeToString()
    for size in range(0, len(data) - 30, 37):
        path.write_bytes(data[:size])
        with pytest.raises(ForestError):
            load(path)


@pytest.mark.parametrize("make", [listed, split, lambda: classifier(trees(3, "all"), [1, 2, 3])])
def test_changed_bytes_load_or_give_an_error_of_ours(make):
    data, rng = make().SerializeToString(), np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(data)
        for place in rng.integers(2, len(data), 3):
            changed[place] = rng.integers(256)
        began = time.perf_counter()
        try:
            load(bytes(changed))
        except ForestError as error:
            assert "\n" not in str(error)
        assert time.perf_counter() - began < 30  # it does not hang


def test_a_missing_onnx_package_is_named(monkeypatch):
    data = listed().SerializeToString()
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UnsupportedModel, match=r"pip install 'tvm-forest\[onnx\]'"):
        load(data)


def test_bytes_that_are_no_model_are_named():
    with pytest.raises(ModelFormatError, match=r"'bytes' is no model file \(begins with"):
        load(b"hello, this is no model")
