"""ONNX models drawn at random, every mode and awkward thresholds; onnxruntime's answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
PLAIN = MODES[:6]
FEATURES = 4
EDGES = (0.0, -0.0, 1e-45, -1e-45, np.inf, -np.inf, 3.4028235e38, -3.4028235e38, 0.1, 0.5, 1, 2, 7)


@dataclass
class Tree:
    """A node; a leaf has `votes` and no branches."""

    mode: str = ""
    feature: int = 0
    threshold: float = 0.0
    nan_true: int = 0
    members: tuple[float, ...] = ()
    votes: dict[int, float] = field(default_factory=dict)
    branches: tuple[Tree, ...] = ()


def drawn_trees(seed, n_trees, modes, targets=1, depth=4, votes="one", low=-1.0, edges=True):
    """Draw trees. `votes` says which targets a leaf has: one a tree ("one"), "all", or "some"."""
    rng = np.random.default_rng(seed)

    def leaf(tree):
        some = {"one": [tree % targets], "all": range(targets)}.get(votes)
        some = rng.permutation(targets)[: rng.integers(1, targets + 1)] if some is None else some
        return Tree(votes={int(t): float(rng.uniform(low, 1)) for t in some})

    def node(tree, depth):
        if depth == 0 or rng.random() < 0.15:
            return leaf(tree)
        threshold = rng.choice(EDGES) if edges and rng.random() < 0.5 else rng.normal()
        mode = str(rng.choice(modes))
        if mode in ("EQ", "NEQ") and rng.random() < 0.7:
            threshold = float(rng.integers(0, 4))
        members = tuple(float(m) for m in rng.permutation(40)[: rng.integers(1, 9)])
        branches = node(tree, depth - 1), node(tree, depth - 1)
        nan_true = int(rng.random() < 0.5)
        return Tree(mode, int(rng.integers(FEATURES)), threshold, nan_true, members, {}, branches)

    return [node(tree, depth) for tree in range(n_trees)]


def _listed(trees, first_id=0):
    """The `nodes_` table of opsets 1 to 3, parents first, and the votes."""
    table: list[tuple[Any, ...]] = []
    votes: list[tuple[int, int, int, float]] = []
    for number, root in enumerate(trees):
        stack, count = [(root, first_id)], first_id + 1
        while stack:
            node, at = stack.pop()
            mode = f"BRANCH_{node.mode}" if node.branches else "LEAF"
            true, false = (count, count + 1) if node.branches else (0, 0)
            test = (node.feature, node.threshold, node.nan_true)
            table.append((number, at, mode, *test, true, false))
            votes += [(number, at, target, weight) for target, weight in node.votes.items()]
            stack += [(child, count + i) for i, child in enumerate(node.branches)]
            count += len(node.branches)
    return [list(column) for column in zip(*table, strict=True)], votes


def _wrapped(node, dtype, outputs, version, around=()):
    kind = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    rows = helper.make_tensor_value_info("X", kind, [None, FEATURES])
    graph = helper.make_graph([node, *around], "forest", [rows], outputs)
    opsets = [helper.make_opsetid("ai.onnx.ml", version), helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _reals(name, values, dtype):
    if dtype == "float32":
        return {name: [float(value) for value in values]}
    tensor = helper.make_tensor(name, TensorProto.DOUBLE, [len(values)], values)
    return {f"{name}_as_tensor": tensor}


def _table_attributes(trees, prefix, dtype, base, first_id):
    columns, votes = _listed(trees, first_id)
    names = "treeids nodeids modes featureids values missing_value_tracks_true truenodeids"
    names = [*names.split(), "falsenodeids"]
    attributes = {f"nodes_{name}": column for name, column in zip(names, columns, strict=True)}
    attributes |= _reals("nodes_values", attributes.pop("nodes_values"), dtype)
    of = [list(column) for column in zip(*votes, strict=True)]
    for name, column in zip(("treeids", "nodeids", "ids"), of, strict=False):
        attributes[f"{prefix}_{name}"] = column
    attributes |= _reals(f"{prefix}_weights", of[3], dtype)
    return attributes | (_reals("base_values", base, dtype) if base else {})


def regressor(trees, dtype="float32", targets=1, base=(), first_id=0, version=3, **more):
    attributes = _table_attributes(trees, "target", dtype, base, first_id)
    kind = "TreeEnsembleRegressor"
    node = helper.make_node(
        kind, ["X"], ["Y"], domain="ai.onnx.ml", n_targets=targets, **attributes, **more
    )
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
    return _wrapped(node, dtype, outputs, version)


def classifier(trees, labels, dtype="float32", base=(), version=3, around=(), **more):
    attributes = _table_attributes(trees, "class", dtype, base, 0)
    texts = isinstance(labels[0], str)
    attributes["classlabels_strings" if texts else "classlabels_int64s"] = list(labels)
    node = helper.make_node(
        "TreeEnsembleClassifier", ["X"], ["L", "Y"], domain="ai.onnx.ml", **attributes, **more
    )
    kind = TensorProto.STRING if texts else TensorProto.INT64
    outputs = [
        helper.make_tensor_value_info("L", kind, None),
        helper.make_tensor_value_info("Y", TensorProto.FLOAT, None),
    ]
    return _wrapped(node, dtype, outputs, version, around)


def ensemble(trees, dtype="float32", targets=1, **more):
    """Write trees as `TreeEnsemble` of opset 5; every leaf has one vote."""
    inner, leaves, roots = [], [], []

    def place(node):
        if not node.branches:
            leaves.append(next(iter(node.votes.items())))
            return len(leaves) - 1, 1
        at = len(inner)
        inner.append([])
        inner[at] = [node, *place(node.branches[0]), *place(node.branches[1])]
        return at, 0

    for root in trees:
        at, is_leaf = place(root)
        if is_leaf:
            inner.append([Tree("LEQ"), at, 1, at, 1])
            at = len(inner) - 1
        roots.append(at)
    kind = TensorProto.DOUBLE if dtype == "float64" else TensorProto.FLOAT
    nodes, true, true_leaf, false, false_leaf = (list(c) for c in zip(*inner, strict=True))
    sets = [v for n in nodes if n.mode == "MEMBER" for v in (*n.members, np.nan)]
    modes = bytes(MODES.index(n.mode) for n in nodes)
    attributes = {
        "nodes_modes": helper.make_tensor("m", TensorProto.UINT8, [len(modes)], modes, raw=True),
        "nodes_splits": helper.make_tensor("s", kind, [len(nodes)], [n.threshold for n in nodes]),
        "leaf_weights": helper.make_tensor("w", kind, [len(leaves)], [w for _, w in leaves]),
        "leaf_targetids": [target for target, _ in leaves],
        "nodes_featureids": [n.feature for n in nodes],
        "nodes_missing_value_tracks_true": [n.nan_true for n in nodes],
        "nodes_truenodeids": true,
        "nodes_trueleafs": true_leaf,
        "nodes_falsenodeids": false,
        "nodes_falseleafs": false_leaf,
        "tree_roots": roots,
        "n_targets": targets,
    }
    if sets:
        attributes["membership_values"] = helper.make_tensor("v", kind, [len(sets)], sets)
    attributes |= more
    node = helper.make_node("TreeEnsemble", ["X"], ["Y"], domain="ai.onnx.ml", **attributes)
    return _wrapped(node, dtype, [helper.make_tensor_value_info("Y", kind, None)], 5)


def answers(model, rows):
    """What onnxruntime computes with one thread, which adds the trees in their order."""
    data = model if isinstance(model, bytes) else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: rows})


def attribute(model, name):
    """The message of an attribute, to be edited."""
    return next(a for a in model.graph.node[0].attribute if a.name == name)


def without(model, name):
    model.graph.node[0].attribute.remove(attribute(model, name))
    return model
