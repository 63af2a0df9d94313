"""treelite models: converted from other libraries, and drawn node by node; treelite's answers.

`MODELS` maps a name to a function that makes the model on its first call. `margins`, `values` and
`leaves` are what treelite's interpreter GTIL says, in the shapes of `Forest.predict_reference`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import treelite
from treelite.model_builder import Metadata, ModelBuilder, PostProcessorFunc, TreeAnnotation

import lightgbm_models
import models
import sklearn_models
import xgboost_models
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows

MODELS: dict[str, Callable[[], Any]] = {}
FEATURES = 4
OPERATORS = ("<", "<=", ">", ">=")
THRESHOLDS = (0.0, -0.0, 1e-45, -1e-45, np.inf, -np.inf, 3.4028235e38, 0.1, 0.5, -1.3, 2.0)
ODD_CODES = np.array(
    [0, 1, 7, 30, 31, 32, 39, 40, -1, -3, -0.5, -0.0, 0.5, 7.99, 2**24 - 1, 2**24, 2**24 + 2, 2**31]
    + [2**32 - 1, 2.0**32, 2.0**53, 1e300, -1e300, 1e-40, np.nan, np.inf, -np.inf]
)


# -- converted ------------------------------------------------------------------------------------


def converted(library: str, name: str) -> Any:
    """What treelite makes of a model of another library."""
    if library == "xgboost":
        trained = (models.MODELS | xgboost_models.KINDS)[name]()
        return treelite.frontend.from_xgboost(getattr(trained, "get_booster", lambda: trained)())
    if library == "lightgbm":
        trained = lightgbm_models.MODELS[name]()
        return treelite.frontend.from_lightgbm(lightgbm_models.booster_of(trained))
    return treelite.sklearn.import_model(sklearn_models.MODELS[name]())


CONVERTED = {
    "xgboost": (
        "regression logistic_with_base_score poisson hinge softprob dart pruned zero_rounds "
        "missing_values categories_in_sets targets vectors targets_logistic quantiles"
    ),
    "lightgbm": (
        "missing_zero categories sqrt binary_sigmoid multiclass ova cross_entropy_lambda "
        "random_forest_classes one_leaf"
    ),
    "sklearn": ("rf,rf targets,rf classes,rf several classes,gb classes,hist categories,isolation"),
}
for library, names in CONVERTED.items():
    for name in names.split("," if "," in names else None):
        MODELS[f"{library} {name}"] = lru_cache(partial(converted, library, name))


# -- drawn ----------------------------------------------------------------------------------------


def drawn(
    *,
    dtype: str = "float32",
    num_class: tuple[int, ...] = (1,),
    shape: tuple[int, int] = (1, 1),
    ids: Callable[[int], tuple[int, int]] = lambda tree: (0, 0),
    operators: tuple[str, ...] = OPERATORS,
    sets: tuple[bool, ...] = (),
    post: str = "identity",
    base: float = 0.3,
    average: bool = False,
    n_trees: int = 12,
    scale: float = 1.0,
    top: int = 40,
    seed: int = 0,
) -> Any:
    """Draw a model.

    Args:
        ids: target and class of a tree.
        sets: whether members may go to the right; no node asks for sets if empty.
        top: a member of every set.
    """
    rng = np.random.default_rng(seed)
    places = [ids(tree) for tree in range(n_trees)]
    outputs = len(num_class) * max(num_class)
    builder = ModelBuilder(
        threshold_type=dtype,
        leaf_output_type=dtype,
        metadata=Metadata(
            num_feature=FEATURES,
            task_type="kMultiClf" if max(num_class) > 1 else "kRegressor",
            average_tree_output=average,
            num_target=len(num_class),
            num_class=list(num_class),
            leaf_vector_shape=shape,
        ),
        tree_annotation=TreeAnnotation(n_trees, *(list(part) for part in zip(*places))),  # noqa: B905
        postprocessor=PostProcessorFunc(post, sigmoid_alpha=0.7, ratio_c=1.9),
        base_scores=(rng.normal(size=outputs) * base).tolist(),
    )
    for _ in range(n_trees):
        builder.start_tree()
        _draw_node(builder, rng, 0, 4, dtype, shape, operators, sets, scale, top)
        builder.end_tree()
    return builder.commit()


def _draw_node(builder: Any, rng: Any, key: int, depth: int, *about: Any) -> None:
    """Draw a node and those below it; the children of node k are 2k + 1 and 2k + 2."""
    dtype, shape, operators, sets, scale, top = about
    builder.start_node(key)
    is_leaf = depth == 0 or (depth < 4 and rng.random() < 0.2)
    children = {"left_child_key": 2 * key + 1, "right_child_key": 2 * key + 2}
    if is_leaf:
        values = (rng.normal(size=shape) * scale).ravel().astype(dtype).tolist()
        builder.leaf(values if len(values) > 1 else values[0])
    elif sets and rng.random() < 0.5:
        codes = rng.permutation(40)[: rng.integers(0, 9)].tolist() + [top]
        builder.categorical_test(
            int(rng.integers(2)),
            default_left=bool(rng.random() < 0.5),
            category_list=codes,
            category_list_right_child=bool(rng.choice(sets)),
            **children,
        )
    else:
        near = rng.random() < 0.5
        builder.numerical_test(
            int(rng.integers(2, FEATURES) if sets else rng.integers(FEATURES)),
            float(rng.choice(THRESHOLDS) if near else rng.normal()),
            default_left=bool(rng.random() < 0.5),
            opname=str(rng.choice(operators)),
            **children,
        )
    builder.end_node()
    for side in () if is_leaf else (1, 2):
        _draw_node(builder, rng, 2 * key + side, depth - 1, *about)


def _every_class(classes: int) -> Callable[[int], tuple[int, int]]:
    return lambda tree: (0, tree % classes)


DRAWN: dict[str, dict[str, Any]] = {
    **{f"operator {op}": {"operators": (op,)} for op in OPERATORS},
    **{f"operator {op} double": {"operators": (op,), "dtype": "float64"} for op in OPERATORS},
    "all operators": {"n_trees": 40},
    "all operators double": {"n_trees": 40, "dtype": "float64"},
    "sets to the left": {"sets": (False,)},
    "sets to the right": {"sets": (True,)},
    "sets to both sides double": {"sets": (False, True), "dtype": "float64", "n_trees": 30},
    **{
        post: {"post": post, "scale": 6.0}
        for post in ("signed_square", "hinge", "sigmoid", "exponential", "logarithm_one_plus_exp")
    },
    "sigmoid beyond exp": {"post": "sigmoid", "scale": 70.0},
    "sigmoid double": {"post": "sigmoid", "scale": 300.0, "dtype": "float64"},
    "halving": {"post": "exponential_standard_ratio", "average": True, "scale": 5.0},
    "halving double": {"post": "exponential_standard_ratio", "dtype": "float64"},
    "average": {"average": True, "n_trees": 7},
    "large base": {"base": 1e6},
    "tiny base": {"base": 1e-12, "scale": 1e-9},
    "classes softmax": {"num_class": (3,), "ids": _every_class(3), "post": "softmax"},
    "classes softmax double": {
        "num_class": (3,),
        "ids": _every_class(3),
        "post": "softmax",
        "dtype": "float64",
        "scale": 9.0,
    },
    "classes average": {"num_class": (3,), "ids": _every_class(3), "average": True, "n_trees": 8},
    "class without trees": {"num_class": (4,), "ids": _every_class(3), "post": "multiclass_ova"},
    "vectors of classes": {
        "num_class": (3,),
        "shape": (1, 3),
        "ids": lambda _: (-1, -1),
        "post": "softmax",
    },
    "targets": {"num_class": (1, 1, 1), "ids": lambda tree: (tree % 3, 0)},
    "targets of classes": {
        "num_class": (2, 4, 1),
        "ids": lambda tree: ((0, 0), (0, 1), (1, 0), (1, 3), (2, 0), (1, 2), (1, 1))[tree % 7],
        "post": "softmax",
        "n_trees": 21,
    },
    "vectors of all": {
        "num_class": (2, 4, 1),
        "shape": (3, 4),
        "ids": lambda _: (-1, -1),
        "average": True,
        "post": "softmax",
        "dtype": "float64",
    },
    "vectors of targets": {"num_class": (3, 2), "shape": (2, 1), "ids": lambda t: (-1, t % 3)},
    "vectors of each target": {
        "num_class": (3, 2),
        "shape": (1, 3),
        "ids": lambda tree: (tree % 2, -1),
        "post": "softmax",
    },
}
for name, options in DRAWN.items():
    MODELS[f"drawn {name}"] = lru_cache(partial(drawn, **options))


# -- rows and answers -----------------------------------------------------------------------------


def probe_rows(forest: Forest, n: int) -> Any:
    """Hard rows, with odd codes where sets are asked for."""
    rng = np.random.default_rng(n)
    rows = hard_rows(forest, n)
    for feature in np.unique(forest.feature[list(forest.categories)]):
        with np.errstate(over="ignore"):
            codes = rng.choice([*range(40), *ODD_CODES], n).astype(rows.dtype)
        rows[:, feature] = np.where(rng.random(n) < 0.9, codes, rows[:, feature])
    return rows


def margins(model: Any, rows: Any, pred_margin: bool = True) -> Any:
    """Sums and base scores, (R, C), without the columns of classes that a target lacks."""
    found = treelite.gtil.predict(model, rows, nthread=1, pred_margin=pred_margin)
    classes = model.get_header_accessor().get_field("num_class")
    return np.concatenate([found[:, at, :count] for at, count in enumerate(classes)], axis=1)


def values(model: Any, rows: Any) -> Any:
    """What the postprocessor makes of them, (R, C)."""
    return margins(model, rows, pred_margin=False)


def leaves(model: Any, rows: Any) -> Any:
    """Leaf numbers, (R, T)."""
    return treelite.gtil.predict_leaf(model, rows, nthread=1)
