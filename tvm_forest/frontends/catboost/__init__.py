"""Loads CatBoost models: JSON files, fitted objects, and, by the library, `.cbm` files.

takes: bytes, `CatBoost` or fitted estimator; gives: Forest.

CatBoost adds float64 leaves in tree order from zero, multiplies the sum by a scale and adds a bias.
It compares float32 rows; `x > border` goes right. A missing value counts as below, or above, all
borders if the feature had missing values in training; otherwise it goes left.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ...forest import LEAF, Array, Forest
from ...system.process.scratch import make_folder
from ..assemble import Nodes, build_forest
from ..cursor import Cursor
from ..objects import find_class
from ..refusals import TRUNCATED, damaged, name_in_errors, unsupported
from ..support import list_accepted, list_linked, list_refused
from .categories import KINDS, DocumentFeatures, EncodedColumns, missing_above, refuse_ambiguous
from .document import Document, as_numbers, parse, take, take_index, take_number
from .losses import CLASSES, NUMBERS, RANKS, Kind, read_loss, read_outputs, widen
from .trees import Test, read_oblivious, read_others

_KINDS: dict[str, Kind] = {
    "CatBoostClassifier": "classifier",
    "CatBoostRegressor": "regressor",
    "CatBoostRanker": "margins",
    "CatBoost": "margins",
}
_PARTS = "ctr_data features_info model_info oblivious_trees scale_and_bias trees"
_JSON = re.compile(rf'\s*{{\s*"({"|".join(_PARTS.split())})"\s*:'.encode())
_BINARY = b"CBM1"

_WITHOUT = "train without them"

SUPPORT = [
    *list_accepted("catboost", "format", ["JSON"]),
    *list_accepted("catboost", "format", ["cbm"], "read by the package catboost"),
    *list_accepted("catboost", "object", _KINDS),
    *list_accepted("catboost", "grow_policy", ("SymmetricTree", "Depthwise", "Lossguide")),
    *list_accepted("catboost", "category", ["one-hot", *KINDS], "needs clickhouse-cityhash"),
    *list_linked("catboost", "loss", CLASSES | NUMBERS | dict.fromkeys(RANKS, "identity")),
    *list_refused(
        "catboost",
        loss_function="any other",
        class_params="labels that are not those of the classes",
        text_features="features of text",
        embedding_features="features of embeddings",
        ctr_type="any other statistic, such as FeatureFreq and FloatTargetMeanValue of GPUs",
        target_binarization="two statistics of one kind that divide the target in other ways, or "
        "of several targets, of which JSON keeps one",
        split_type="any other test",
        combination_element="any other part of a combination",
        catboost="a .cbm file where the package catboost is not installed",
        trees="no trees",
        model="what CatBoost itself cannot write as JSON",
        leaf_numbers="an object with other than oblivious trees of which CatBoost tells no numbers",
    ),
]


def from_bytes(data: bytes, name: str) -> Forest | None:
    """Load the content of a model file; return None if it is not CatBoost's.

    Raises:
        ModelFormatError, UnsupportedModel: see `frontends.load`.
    """
    with name_in_errors(f"catboost {name}"):
        if data.startswith(_BINARY):
            forest = _load_object(_read_binary(data), "by loss")
            _check_whole(data)
            return forest
        return _build(parse(data), "by loss") if _JSON.match(data) else None


def from_object(model: Any) -> Forest | None:
    """Load a fitted object, with all of its trees; return None if it is not CatBoost's.

    Raises:
        ModelFormatError, UnsupportedModel: see `frontends.load`.
    """
    name = find_class(model, "catboost", _KINDS)
    if name is None:
        return None
    with name_in_errors(f"catboost {type(model).__name__}"):
        if not model.is_fitted():
            raise damaged("model", "holds no trained model", "train it")
        return _load_object(model, _KINDS[name])


def read_numbers(data: bytes) -> tuple[Array, tuple[float, list[float]]]:
    """Return the values of all leaves of a JSON file, (values,), and its scale and biases.

    CatBoost itself reads some of these numbers inexactly.
    """
    document = parse(data)
    scale, bias = _read_scale_and_bias(document)
    columns = EncodedColumns(_read_features(document), document)
    _, nodes = _read_trees(document, len(bias), columns, None)
    leaves = nodes["leaf_value"][nodes["left"] == LEAF]
    return leaves.ravel(), (scale, bias.tolist())


def _read_binary(data: bytes) -> Any:
    """Return the `CatBoost` object that the library loads from a `.cbm` file.

    Raises:
        ModelFormatError: the library refuses the file.
        UnsupportedModel: the library is not installed.
    """
    try:
        import catboost
    except ImportError:
        what = "a .cbm file is read by the package catboost, which is not installed"
        remedy = "install it, or give model.save_model(path, format='json')"
        raise unsupported("catboost", what, remedy) from None
    try:
        return catboost.CatBoost().load_model(blob=data)
    except Exception as error:  # its own errors, those of JSON, and those of decoding texts
        raise damaged("model", f"cannot be read ({str(error)[:200]})", TRUNCATED) from None


def _check_whole(data: bytes) -> None:
    """Refuse a `.cbm` file with truncated tables of statistics, which CatBoost accepts."""
    cursor = Cursor(data, len(_BINARY))
    cursor.read_array("u1", cursor.read_number("<I", "model"), "model")
    if cursor.at < len(data):
        for table in range(cursor.read_number("<I", "ctr_data")):
            cursor.read_array("u1", cursor.read_number("<I", "ctr_data"), f"ctr_data {table}")


def _load_object(model: Any, kind: Kind) -> Forest:
    """Load an object through the JSON file that it writes."""
    with make_folder("load") as folder:
        path = folder / "model.json"
        try:
            model.save_model(str(path), format="json")
        except Exception as error:  # a CatBoostError; the class cannot be named without the library
            if type(error).__module__.split(".")[0] not in ("catboost", "_catboost"):
                raise
            what = f"CatBoost cannot write it as JSON ({str(error)[:200]})"
            raise unsupported("model", what, "give a model of the other kinds") from None
        document = parse(path.read_bytes())
    return _build(document, kind, model)


def _build(document: Document, kind: Kind, model: Any = None) -> Forest:
    info, features = take(document, "model_info", dict, {}), _read_features(document)
    loss = read_loss(info)
    scale, base_score = _read_scale_and_bias(document)
    refuse_ambiguous(info, loss, features)
    columns = EncodedColumns(features, document)
    encoder = columns.make_encoder() if features.categories else None
    sizes, nodes = _read_trees(document, len(base_score), columns, model)
    nodes["leaf_value"], base_score = widen(info, loss, nodes["leaf_value"], base_score)
    return build_forest(
        sizes,
        nodes,
        np.full(len(sizes), 0 if len(base_score) == 1 else -1),
        n_features=features.width if encoder is None else encoder.n_columns,
        feature_names=features.names if encoder is None else columns.name_all(),
        encoder=encoder,
        takes_by_name=features.names is not None,
        spares_columns=True,
        comparison="<=",
        row_dtype="float32",
        object_dtype="float64",
        base_score=base_score,
        base_first=False,
        base_of_first=True,
        sum_scale=scale,
        leaf_id_dtype="uint32",
        n_rounds=len(sizes),
        source=f"catboost {loss or 'sum'}",
        **read_outputs(info, loss, kind, len(base_score)),
    )


def _read_features(document: Document) -> DocumentFeatures:
    """Return the features that the document lists; refuse those of texts and embeddings."""
    info = take(document, "features_info", dict)
    if take(info, "text_features", list, []):
        raise unsupported("text_features", "how texts are read is not reproduced", _WITHOUT)
    if take(info, "embedding_features", list, []):
        raise unsupported("embedding_features", "what is made of them is not reproduced", _WITHOUT)
    listed = [take(info, kind, list, []) for kind in ("float_features", "categorical_features")]
    flat = [take_index(x, "flat_feature_index", 2**24) for kind in listed for x in kind]
    names = [take(x, "feature_id", str, "") for kind in listed for x in kind]
    if len(set(flat)) < len(flat):
        raise damaged("flat_feature_index", "two features in one column")
    floats, categories = ({take_index(x, "feature_index"): x for x in kind} for kind in listed)
    for numbered in (floats, categories):
        places = [numbered[number]["flat_feature_index"] for number in sorted(numbered)]
        if places != sorted(places):
            raise damaged("flat_feature_index", "columns in another order than their features")
    width = max(flat, default=-1) + 1
    is_named = len(flat) == width and all(names) and width > 0
    return DocumentFeatures(
        floats,
        categories,
        statistics=take(info, "ctrs", list, []),
        width=width,
        names=tuple(dict(sorted(zip(flat, names, strict=True))).values()) if is_named else None,
    )


def _read_scale_and_bias(document: Document) -> tuple[float, Array]:
    """Return the scale, and the bias of each output.

    Files of CatBoost 0.2x have one bias for all outputs, which CatBoost 1.2 forgets when it reads
    them; older files have neither scale nor bias.
    """
    pair = take(document, "scale_and_bias", list, [1.0, []])
    if len(pair) != 2:
        raise damaged("scale_and_bias", f"expected two parts, got {pair!r:.80}")
    scale = float(as_numbers(pair[:1], "scale_and_bias")[0])
    bias = pair[1] or []  # 0 and null stand for zeros
    base_score = as_numbers(bias if isinstance(bias, list) else [bias], "scale_and_bias")
    outputs = _count_outputs(document)
    return scale, base_score if len(base_score) else np.zeros(outputs)


def _count_outputs(document: Document) -> int:
    """Return the number of values in a leaf of the first tree."""
    name, trees = _find_trees(document)
    tree = trees[0] if isinstance(trees[0], dict) else {}
    if name == "oblivious_trees":
        values = take(tree, "leaf_values", list)
        return max(1, len(values) >> len(take(tree, "splits", list, [])))
    while tree.get("split") is not None:
        tree = take(tree, "left", dict)
    value = take(tree, "value", object)
    return max(1, len(value)) if isinstance(value, list) else 1


def _find_trees(document: Document) -> tuple[str, list[Any]]:
    """Return the name of the document's list of trees, and that list; refuse an empty one."""
    name = "trees" if "trees" in document else "oblivious_trees"
    trees = [] if document.get(name, 0) is None else take(document, name, list)
    if not trees:
        raise unsupported("trees", "there are none, and CatBoost predicts nothing", "train some")
    return name, trees


def _read_trees(
    document: Document, n_outputs: int, columns: EncodedColumns, model: Any
) -> tuple[Array, Nodes]:
    floats, encodes = columns.features.floats, bool(columns.features.categories)

    def read_split(split: Any) -> Test:
        kind = take(split, "split_type", str, "FloatFeature")
        if kind == "OneHotFeature":
            return Test(columns.find_single(split), 0.5, True)
        if kind == "OnlineCtr":
            return Test(*columns.find_statistic(split), missing_left=True)
        if kind != "FloatFeature":
            what = f"'{kind:.40}' is not among those known (FloatFeature, OneHotFeature, OnlineCtr)"
            raise unsupported("split_type", what, "train with one of these")
        number = take_index(split, "float_feature_index")
        if number not in floats:
            raise damaged("float_feature_index", f"no feature {number}")
        with np.errstate(over="ignore"):
            border = float(np.float32(take_number(split, "border")))
        columns.check_border(split, number, border)
        feature = floats[number]
        column = columns.of_float[number] if encodes else feature["flat_feature_index"]
        return Test(column, border, not missing_above(feature))

    name, trees = _find_trees(document)
    if name == "oblivious_trees":
        return read_oblivious(trees, n_outputs, read_split)
    numbers = None if model is None else _ask_leaf_numbers(model)
    return read_others(trees, n_outputs, read_split, numbers)


def _ask_leaf_numbers(model: Any) -> list[list[int]]:
    """Return, for each non-oblivious tree, the numbers of its leaves from left to right.

    CatBoost stores the distance from each node to its children; 0 means that the child is a leaf,
    which is stored in the node's own place.
    """
    trees = []
    try:
        for tree in range(model.tree_count_):
            steps = model._object._get_tree_step_nodes(tree)
            trees.append(_list_leaves(steps, model._object._get_tree_node_to_leaf(tree)))
    except AttributeError as error:
        what, remedy = f"CatBoost has no {error.name}", "give the file model.save_model writes"
        raise unsupported("leaf_numbers", what, remedy) from None
    return trees


def _list_leaves(steps: list[tuple[int, int]], leaf_of: list[int]) -> list[int]:
    """Return the numbers of a tree's leaves from left to right.

    Args:
        steps: for each node, the distances to its children, 0 for a leaf in the node's own place.
        leaf_of: for each node, the number of the leaf that is stored in its place.
    """
    leaves, rest = list[int](), [(0, False)]
    while rest:
        node, ends = rest.pop()
        if ends or steps[node] == (0, 0):
            leaves.append(leaf_of[node])
            continue
        rest += [(node + step, step == 0) for step in reversed(steps[node])]
    return leaves
