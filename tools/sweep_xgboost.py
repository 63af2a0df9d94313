"""Models of XGBoost, drawn from a seed, and what XGBoost says about rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import xgboost as xgb

import _path  # noqa: F401 (what tests share)
from models import XGBOOST, is_dart, matrix_of
from sweep_drawn import Drawn, Job, Options, Table, drawn_job, drawn_target, handed_over, pick

OPTIONS: Table = {
    "booster": (*4 * ("gbtree",), *5 * ("dart",), "gblinear"),
    "tree_method": ("hist", "exact", "approx"),
    "grow_policy": ("depthwise", "lossguide"),
    "max_leaves": (0, 2, 5, 31),
    "max_depth": (0, 1, 2, 3, 8, 12),
    "num_parallel_tree": (1, 2, 4),
    "subsample": (0.3, 0.7),
    "colsample_bynode": (0.5,),
    "min_child_weight": (0, 0.01, 20),
    "gamma": (0.01, 1, 1e9),
    "reg_lambda": (0, 100),
    "reg_alpha": (0.5,),
    "learning_rate": (0.01, 1, 3),
    "max_delta_step": (0.7,),
    "max_bin": (2, 16),
    "base_score": (0.0, 0.1, 0.3, 0.9, 1.0, 2.5, -3.0, 1e6),
    "scale_pos_weight": (0.2, 7),
    "multi_strategy": ("multi_output_tree", "one_output_per_tree"),
    "max_cat_to_onehot": (1, 4, 100),
    "max_cat_threshold": (2, 64),
    "colsample_bytree": (0.5,),
    "colsample_bylevel": (0.5,),
    "sampling_method": ("uniform",),
    "refresh_leaf": (0,),
    "lambdarank_pair_method": ("mean", "topk"),
    "lambdarank_unbiased": (True,),
}
DART: Table = {
    "rate_drop": (0.1, 0.5, 0.9),
    "skip_drop": (0, 0.5),
    "normalize_type": ("tree", "forest"),
    "sample_type": ("uniform", "weighted"),
    "one_drop": (1,),
}
TARGETS = {
    "reg:squarederror": "real",
    "reg:linear": "real",
    "reg:squaredlogerror": "positive",
    "reg:pseudohubererror": "real",
    "reg:absoluteerror": "real",
    "reg:quantileerror": "real",
    "reg:logistic": "share",
    "reg:gamma": "positive",
    "reg:tweedie": "counts",
    "count:poisson": "counts",
    "survival:cox": "times",
    "survival:aft": "positive",
    "binary:logistic": "flags",
    "binary:logitraw": "flags",
    "binary:hinge": "flags",
    "multi:softprob": "classes",
    "multi:softmax": "classes",
    "rank:pairwise": "classes",
    "rank:ndcg": "classes",
    "rank:map": "flags",
}
if XGBOOST >= (3, 3):
    TARGETS["reg:expectileerror"] = "real"
OF_OBJECTIVE: dict[str, Table] = {
    "reg:expectileerror": {"expectile_alpha": (0.5, 0.9, [0.1, 0.5], [0.2, 0.4, 0.6, 0.95])},
    "reg:quantileerror": {"quantile_alpha": (0.5, 0.9, [0.1, 0.5], [0.2, 0.4, 0.6, 0.95])},
    "reg:tweedie": {"tweedie_variance_power": (1.1, 1.5, 1.9)},
    "reg:pseudohubererror": {"huber_slope": (0.5, 2)},
    "survival:aft": {"aft_loss_distribution": ("normal", "logistic", "extreme")},
}
FORMS = {
    "train": [*TARGETS],
    "XGBRegressor": [name for name in TARGETS if name[:3] in ("reg", "cou")],
    "XGBModel": [name for name in TARGETS if name[:3] in ("reg", "cou", "bin")],
    "XGBRFRegressor": ["reg:squarederror", "reg:absoluteerror", "reg:gamma"],
    "XGBClassifier": [name for name in TARGETS if name[:3] in ("bin", "mul")],
    "XGBRFClassifier": ["binary:logistic", "multi:softprob"],
    "XGBRanker": [name for name in TARGETS if name.startswith("rank")],
}
ALONE = ("rank", "surv", "multi", "reg:q", "reg:e")
"""Objectives that have one target."""


def drawn_model(rng: Any, folder: Path) -> Drawn:
    """Train a Booster or an estimator."""
    job = drawn_job(rng, folder, 0.3)
    form = pick(rng, ["train"] * 4 + [*FORMS])
    objective = pick(rng, FORMS[form])
    _draw_options(job, objective)
    classes = pick(rng, (2, 3, 5, 12))
    target = _target(job, objective, classes)
    rounds = pick(rng, (0, 1, 2, 5, 5, 10, 10, 20, 40))
    if target.ndim > 1 or objective.startswith("multi"):
        rounds = min(rounds, 10)
    job.said |= {"form": form, "objective": objective, "rounds": rounds}
    job.said |= {"shape": target.shape, "classes": classes}
    if form == "train":
        if objective.startswith("multi"):
            job.options["num_class"] = classes
        return _sliced(job, _booster(job, target, rounds))
    model = handed_over(job, _estimator(job, target, max(1, rounds), form))
    count = model.get_booster().num_boosted_rounds()
    if "stops early" in job.said:
        count = model.best_iteration + 1
    return Drawn(model, _reloaded(job, model), job.rows, job.labels, job.said, count)


def _reloaded(job: Job, model: Any) -> Any:
    """Return the estimator, or for one in ten another that reads its file."""
    if job.rng.random() > 0.1:
        return model
    job.said["read by an estimator"] = True
    file = job.folder / "estimator.ubj"
    model.save_model(file)
    other = type(model)(missing=model.missing, n_jobs=1)
    other.load_model(file)
    return other


def _draw_options(job: Job, objective: str) -> None:
    options = job.options_of(OPTIONS) | _constraints(job)
    if options.get("booster") == "dart":
        options |= job.options_of(DART, 0.6)
        if "multi_strategy" in options:  # it cannot predict the other
            job.said["multi_strategy"] = options["multi_strategy"] = "one_output_per_tree"
    options |= job.options_of(OF_OBJECTIVE.get(objective, {}), 1.0)
    if TARGETS[objective] != "real" and options.get("base_score") == -3.0:
        job.said["base_score"] = options["base_score"] = 0.2  # many take its logarithm
    job.options = options | {"objective": objective}


def _constraints(job: Job) -> Options:
    found: Options = {}
    width = job.rows.shape[1]
    if job.says("monotone", 0.1):
        found["monotone_constraints"] = tuple(int(x) for x in job.rng.integers(-1, 2, width))
    if width > 1 and job.says("interactions", 0.1):
        order = [int(x) for x in job.rng.permutation(width)]
        found["interaction_constraints"] = [order[: width // 2], order[width // 2 :]]
    return found


def _target(job: Job, objective: str, classes: int) -> Any:
    target = job.target(TARGETS[objective], classes)
    several = "multi_strategy" in job.options or job.rng.random() < 0.1
    if not several or objective.startswith(ALONE):
        return target
    if job.says("base scores", 0.1):
        job.options["base_score"] = [0.2, 0.5, 0.7]
    others = (drawn_target(job.rng, job.rows, TARGETS[objective]) for _ in range(2))
    return np.column_stack([target, *others])


def _sliced(job: Job, model: Any) -> Drawn:
    """Take some rounds of a Booster, or leave it as it is; and let it be a file, or an object."""
    drawn = Drawn(model, model, job.rows, job.labels, job.said, model.num_boosted_rounds())
    if drawn.rounds > 1 and job.says("slice", 0.1):
        begin = int(job.rng.integers(0, drawn.rounds - 1))
        step = pick(job.rng, (1, 1, 2)) if drawn.rounds - begin > 1 else 1
        # with an open end, slices of DART lose their weights, and XGBoost cannot predict
        drawn.model = drawn.given = model[begin : drawn.rounds : step]
        drawn.rounds = drawn.model.num_boosted_rounds()
    drawn.given = handed_over(job, drawn.model)
    if job.rng.random() < 0.5:
        job.said["file"] = form = pick(job.rng, ("json", "ubj", "raw json", "raw ubj"))
        if form.startswith("raw"):
            drawn.given = bytes(drawn.model.save_raw(raw_format=form[4:]))
        else:
            drawn.given = job.folder / f"model.{form}"
            drawn.model.save_model(drawn.given)
    return drawn


def _types(job: Job) -> list[str] | None:
    kinds = ["c" if i in job.labels else "float" for i in range(job.rows.shape[1])]
    return kinds if job.labels else None


def _booster(job: Job, target: Any, rounds: int) -> Any:
    fields: Options = {}
    if not isinstance(job.x, pd.DataFrame):
        fields["feature_types"] = _types(job)
        if job.says("names", 0.2):
            fields["feature_names"] = [f"näme {i}" for i in range(job.rows.shape[1])]
    cut, parts = job.kept(), []
    for some in (slice(0, cut), slice(cut, None)):
        matrix = xgb.DMatrix(job.x[some], enable_categorical=bool(job.labels), **fields)
        label = target[some]
        if job.options["objective"] == "survival:aft":
            matrix.set_float_info("label_lower_bound", label)
            matrix.set_float_info("label_upper_bound", label * 1.5)
        else:
            matrix.set_label(label)
        if job.options["objective"].startswith("rank"):
            matrix.set_group([len(label)] if len(label) < 9 else [7, len(label) - 7])
        parts.append(matrix)
    if (weight := job.weight()) is not None and not job.options["objective"].startswith("rank"):
        parts[0].set_weight(weight[:cut])
    more: Options = {}
    if cut < len(job.rows):
        more = {"evals": [(parts[1], "held out")], "early_stopping_rounds": 2}
    params = {"nthread": 1, "verbosity": 0, "seed": 3} | job.options
    if target.ndim == 1 and job.options["objective"] == "reg:squarederror":
        if job.says("own objective", 0.2):
            more["obj"] = lambda margin, data: (margin - data.get_label(), np.ones(len(margin)))
    model = xgb.train(params, parts[0], rounds, verbose_eval=False, **more)
    return _trained_on(job, model, params, parts[0], more)


def _trained_on(job: Job, model: Any, params: Options, data: Any, more: Options) -> Any:
    """Return the model, or for one in ten what comes of more rounds, or of its trees anew."""
    chosen, count = job.rng.random(), model.num_boosted_rounds()
    more = {name: value for name, value in more.items() if name == "obj"}
    if chosen < 0.05:
        job.said["more rounds"] = boosters = pick(job.rng, ("as before", "dart"))
        if boosters == "dart" and params.get("booster", "gbtree") == "gbtree":
            params = params | {"rate_drop": 0.4}
        return xgb.train(params, data, 3, xgb_model=model, **more)
    if chosen < 0.1 and count and params.get("booster", "gbtree") == "gbtree":
        job.said["trees anew"] = True
        anew = {"process_type": "update", "updater": pick(job.rng, ("refresh", "prune,refresh"))}
        return xgb.train(params | anew, data, count, xgb_model=model, **more)
    return model


def _estimator(job: Job, target: Any, rounds: int, form: str) -> Any:
    options = job.options | {"n_estimators": rounds, "n_jobs": 1, "random_state": 3, "verbosity": 0}
    if job.labels:
        options["enable_categorical"] = True
        if not isinstance(job.x, pd.DataFrame):
            options["feature_types"] = _types(job)
    if job.rng.random() < 0.3:
        job.said["missing"] = options["missing"] = pick(job.rng, (-999, 0, 0.1, 1.5, np.inf))
    if form == "XGBRanker":
        groups = np.arange(len(job.rows)) // 10
        return xgb.XGBRanker(**options).fit(job.x, target, qid=groups)
    cut = len(job.rows) if "RF" in form else job.kept()
    weight = job.weight()
    more: Options = {"sample_weight": weight if weight is None else weight[:cut]}
    if cut < len(job.rows):
        options["early_stopping_rounds"] = 2
        more |= {"eval_set": [(job.x[cut:], target[cut:])], "verbose": False}
    return getattr(xgb, form)(**options).fit(job.x[:cut], target[:cut], **more)


def kinds_of_rows(drawn: Drawn) -> tuple[str, ...]:
    """Return the other kinds in which rows may be given."""
    names = "".join(str(name) for known in drawn.labels.values() for name in known or ())
    if drawn.takes_frames and drawn.said["rounds"] > 0 and names.isascii():
        return ("frame",)
    if drawn.labels:  # no names are stored before the first round, and others are cut wrong
        return ("float64", "csr_matrix")
    return ("float64", "csr_matrix", "frame", "mixed frame", "csr_array", "csc_matrix", "coo_array")


def answers(drawn: Drawn, rows: Any, part: tuple[int, int] | None) -> Options:
    """Return what XGBoost says, by the methods of a Predictor."""
    model = drawn.model
    span: Options = {"iteration_range": part} if part else {}
    if not isinstance(model, xgb.Booster):
        found = {
            "predict_margin": model.predict(rows, output_margin=True, **span),
            "predict": model.predict(rows, **span),
        }
        # for softmax these come from scipy, whose `exp` is another
        if isinstance(model, xgb.XGBClassifier) and model.objective != "multi:softmax":
            found["predict_proba"] = model.predict_proba(rows, **span)
        return found
    sparse = scipy.sparse.issparse(rows)
    if is_dart(model) or (sparse and not isinstance(rows, scipy.sparse.csr_matrix)):
        frame = isinstance(rows, pd.DataFrame)
        matrix = xgb.DMatrix(rows, enable_categorical=True) if frame else matrix_of(model, rows)
        return {
            "predict_margin": model.predict(matrix, output_margin=True, **span),
            "predict": model.predict(matrix, **span),
        }
    kinds = {"predict_margin": "margin", "predict": "value"}
    span["validate_features"] = False
    return {
        name: model.inplace_predict(rows, predict_type=kind, **span) for name, kind in kinds.items()
    }


def leaves(drawn: Drawn, rows: Any) -> Any:
    """Return the leaf numbers (R, T) of rows without infinities."""
    model, span = drawn.model, {"iteration_range": (0, drawn.rounds)}
    booster = model if isinstance(model, xgb.Booster) else model.get_booster()
    matrix = xgb.DMatrix(
        rows,
        missing=getattr(model, "missing", np.nan),
        feature_names=booster.feature_names,
        feature_types=booster.feature_types,
        enable_categorical=True,
    )
    return booster.predict(matrix, pred_leaf=True, **span)
