"""Detects changes of boosters of XGBoost, LightGBM and CatBoost, and checks their rows.

takes: fitted estimators, rows; gives: states, plain arrays of rows.

The trees of a booster can only be changed through its methods. Every method that is not known to
leave the booster unchanged gives it a new stamp (`list_changers`).
"""

from __future__ import annotations

import json
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, UnsupportedModel
from ..forest import Array
from .states import stamp_of, with_new_stamp

if TYPE_CHECKING:
    from ..forest import Forest

_READERS = set(
    # of all libraries, and of XGBoost
    "predict predict_proba predict_log_proba inplace_predict score attr attributes copy dump_model "
    "eval eval_set get_categories get_dump get_fscore get_score get_split_value_histogram "
    "num_boosted_rounds num_features save_config save_model save_raw trees_to_dataframe "
    "_get_feature_info _validate_features _assign_dmatrix_features "
    # of LightGBM
    "current_iteration eval_train eval_valid feature_importance feature_name get_leaf_output "
    "lower_bound model_to_string num_feature num_model_per_iteration num_trees upper_bound "
    "_get_loaded_param _Booster__inner_eval _Booster__get_eval_info _Booster__inner_predict "
    # of CatBoost
    "is_fitted get_params get_param get_all_params calc_leaf_indexes iterate_leaf_indexes "
    "get_feature_importance get_cat_feature_indices get_text_feature_indices "
    "get_embedding_feature_indices get_borders get_leaf_values get_leaf_weights get_metadata "
    "get_n_features_in get_scale_and_bias get_tree_leaf_counts get_best_iteration get_best_score "
    "get_evals_result get_test_eval get_test_evals staged_predict staged_predict_proba "
    "staged_predict_log_proba save_borders _predict _staged_predict _base_predict "
    "_calc_leaf_indexes _base_calc_leaf_indexes _get_tags _serialize_model _save_model "
    "_is_comparable_to "
    "_process_predict_input_data _validate_prediction_type _get_canonized_params "
    "_is_classification_objective _is_classifier _is_multiclass_compatible "
    "_is_multilabel_objective _is_multiregression_objective _is_multitarget_objective "
    "_is_ranking_objective _is_regression_objective _is_survivalregression_objective "
    "_get_cat_feature_indices _get_text_feature_indices _get_embedding_feature_indices "
    "_get_float_feature_indices _get_borders _get_nan_treatments _get_tree_leaf_values "
    "_get_tree_node_to_leaf _get_tree_splits _get_tree_step_nodes _staged_predict_iterator "
    "_leaf_indexes_iterator".split()
)
"""Methods that do not change a booster."""
_CHANGERS = {"__init__", "__setstate__"}
"""Special methods that change a booster."""

BOOSTERS = {
    "xgboost.sklearn": ("xgboost.core", ("Booster",)),
    "lightgbm.sklearn": ("lightgbm.basic", ("Booster",)),
    "catboost.core": (
        "catboost.core",
        ("_CatBoostBase", "CatBoost", "CatBoostClassifier", "CatBoostRegressor", "CatBoostRanker"),
    ),
}
"""By module of the estimators, the module and the classes of the objects that hold the trees."""


def list_changers(cls: type) -> dict[str, Any]:
    """Return replacements for the methods of a class that may change its trees, by name."""
    return {
        name: with_new_stamp(own)
        for name, own in vars(cls).items()
        if isinstance(own, FunctionType)
        and (name in _CHANGERS or not (name in _READERS or name.startswith("__")))
    }


def _find_booster(model: Any) -> Any:
    """Return the object that contains the trees; CatBoost's estimators do so themselves.

    Raises:
        UnsupportedModel: the estimator is not fitted.
    """
    for name in ("_Booster", "_object"):
        found = vars(model).get(name)
        if found is not None:
            return found if name == "_Booster" else model
    raise UnsupportedModel("the estimator is not fitted")


def state_of_booster(model: Any) -> Any:
    """Return a key that changes whenever the estimator's predictions may change.

    Parameters and other attributes are compared by value if they are plain, else by identity.

    Raises:
        UnsupportedModel: the estimator is not fitted.
    """
    booster = _find_booster(model)
    about = [
        (name, _to_plain(value))
        for each in ((model,) if booster is model else (model, booster))
        for name, value in vars(each).items()
        if value is not booster
    ]
    return stamp_of(booster), about


def refuse_options(model: Any) -> None:
    """Refuse parameters that change predictions, or select another device.

    Raises:
        UnsupportedModel: an option of that kind.
    """
    given = dict(model.get_params()) if hasattr(model, "get_params") else {}
    if type(model).__module__.startswith("xgboost."):
        given["device"] = json.loads(_find_booster(model).save_config())["learner"][
            "generic_param"
        ].get("device")
    words = ("predict", "pred_", "raw_score", "contrib", "leaf_index", "shape_check", "gpu", "cuda")
    for name, value in given.items():
        text = f"{name}={value}" if isinstance(value, str) else str(name)
        if any(word in text for word in words) and value not in (None, False):
            raise UnsupportedModel(f"{name}: may change what is predicted, or where")


def _to_plain(value: Any) -> Any:
    if value is None or isinstance(value, int | float | str | bytes):
        return repr(value)
    if isinstance(value, np.ndarray):
        held = value.ravel().tolist() if value.dtype.hasobject else value.tobytes()
        return value.dtype.str, value.shape, _to_plain(held)
    if isinstance(value, dict):
        return [(str(key), _to_plain(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    return id(value)


def to_plain_rows(model: Any, rows: Any, forest: Forest) -> Array:
    """Return rows as an array, if the library would accept them without an error or a warning.

    Raises:
        InputError: the library might refuse the rows, warn about them, or reorder their columns.
    """
    named = hasattr(rows, "columns") and hasattr(rows, "to_numpy")
    names, given = forest.given_names, rows
    if named:
        if names is None or list(rows.columns) != list(names) or len(set(rows.dtypes)) != 1:
            raise InputError("columns of other names or of several dtypes")
        given = rows.to_numpy()
    elif names is not None and names != tuple(f"Column_{i}" for i in range(len(names))):
        if not all(str(name) == str(place) for place, name in enumerate(names)):
            raise InputError("rows have no names of columns")
    if type(given) is not np.ndarray or given.dtype not in (np.float32, np.float64):
        raise InputError("rows are no array or frame of float32 or float64")
    if given.ndim != 2 or given.shape[1] != forest.given_width or forest.encoder is not None:
        raise InputError("rows have other columns than the model")
    with np.errstate(over="ignore"):
        if np.isinf(given.astype(np.float32, copy=False)).any():
            raise InputError("rows hold infinities")
    return given
