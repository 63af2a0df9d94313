"""Models of LightGBM, drawn from a seed, and what LightGBM says about rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np

from sweep_drawn import Drawn, Job, Options, Table, drawn_job, handed_over, pick

OPTIONS: Table = {
    "boosting": ("gbdt", "dart", "rf"),
    "data_sample_strategy": ("goss",),
    "linear_tree": (True,),
    "linear_lambda": (0.1,),
    "num_leaves": (2, 3, 12, 200),
    "max_depth": (1, 3, 12),
    "min_data_in_leaf": (1, 5, 50),
    "min_sum_hessian_in_leaf": (0, 10),
    "learning_rate": (0.01, 1, 3),
    "lambda_l1": (0.5,),
    "lambda_l2": (0, 100),
    "min_gain_to_split": (0.1, 1e9),
    "max_bin": (2, 15, 1000),
    "min_data_in_bin": (1,),
    "zero_as_missing": (True,),
    "use_missing": (False,),
    "extra_trees": (True,),
    "feature_fraction": (0.5,),
    "boost_from_average": (False,),
    "drop_rate": (0.5, 0.9),
    "xgboost_dart_mode": (True,),
    "uniform_drop": (True,),
    "max_cat_to_onehot": (1, 64),
    "min_data_per_group": (1, 2),
    "cat_smooth": (0, 1),
    "max_cat_threshold": (2, 64),
    "path_smooth": (1,),
    "enable_bundle": (False,),
    "reg_sqrt": (True,),
    "sigmoid": (0.7, 2, 1 / 3),
    "cegb_tradeoff": (0.5,),
    "cegb_penalty_split": (0.01,),
    "bagging_fraction": (0.5,),
    "bagging_freq": (1, 3),
    "bagging_by_query": (True,),
    "feature_fraction_bynode": (0.5,),
    "monotone_constraints_method": ("intermediate", "advanced"),
    "monotone_penalty": (1.5,),
    "max_delta_step": (0.3,),
    "use_quantized_grad": (True,),
    "two_round": (True,),
    "cat_l2": (0.1,),
    "max_drop": (3, -1),
    "skip_drop": (0.0,),
    "force_row_wise": (True,),
    "poisson_max_delta_step": (0.1,),
    "is_provide_training_metric": (True,),
    "bin_construct_sample_cnt": (30,),
}
TARGETS = {
    "regression": "real",
    "regression_l1": "real",
    "huber": "real",
    "fair": "real",
    "quantile": "real",
    "mape": "real",
    "poisson": "counts",
    "gamma": "positive",
    "tweedie": "counts",
    "binary": "flags",
    "multiclass": "classes",
    "multiclassova": "classes",
    "cross_entropy": "share",
    "cross_entropy_lambda": "share",
    "lambdarank": "classes",
    "rank_xendcg": "classes",
    "custom": "real",
    "custom classes": "classes",
}
OF_OBJECTIVE: dict[str, Table] = {
    "quantile": {"alpha": (0.1, 0.9)},
    "huber": {"alpha": (0.1, 2)},
    "tweedie": {"tweedie_variance_power": (1.1, 1.9)},
    "binary": {"is_unbalance": (True,)},
}
FORMS = {
    "train": [*TARGETS],
    "LGBMRegressor": [name for name in [*TARGETS][:9]],
    "LGBMClassifier": ["binary", "multiclass", "multiclassova", "cross_entropy", None],
    "LGBMModel": ["regression", "poisson", "binary", "own"],
    "LGBMRanker": ["lambdarank", "rank_xendcg"],
}
WORDS = {
    "whole": np.array([7, -2, 40, 5, 1000, 3]),
    "text": np.array(["red", "a", "äh", "b", "z", "B"]),
    "objects": np.array(["red", "a", "äh", "b", "z", "B"], object),
    "flags": np.array([True, False]),
    "floats": np.array([0.5, -1.5, 3.0, 9.0, 7.0, 8.0]),
}


def drawn_model(rng: Any, folder: Path) -> Drawn:
    """Train a Booster or an estimator."""
    job = drawn_job(rng, folder, 0.35)
    form = pick(rng, ["train"] * 3 + [*FORMS])
    objective = pick(rng, FORMS[form])
    options = job.options_of(OPTIONS) | job.options_of(OF_OBJECTIVE.get(objective, {}), 0.5)
    if options.get("boosting") == "rf":
        options |= {"bagging_freq": 1, "bagging_fraction": pick(rng, (0.4, 0.8))}
    if job.says("monotone", 0.1):
        drawn = rng.integers(-1, 2, job.rows.shape[1])
        options["monotone_constraints"] = [
            0 if i in job.labels else int(x) for i, x in enumerate(drawn)
        ]
    if job.says("interactions", 0.1):
        order = [int(x) for x in rng.permutation(job.rows.shape[1])]
        options["interaction_constraints"] = [
            order[: len(order) // 2 + 1],
            order[len(order) // 2 :],
        ]
    job.options = {"num_threads": 1, "seed": 7, "verbosity": -1, "deterministic": True} | options
    if len(job.rows) < 50 and rng.random() < 0.7:
        job.options |= {"min_data_in_leaf": 1, "min_data_in_bin": 1}
    classes = pick(rng, (2, 3, 6))
    target = job.target(TARGETS.get(objective or "multiclass", "real"), classes)
    rounds = pick(rng, (0, 1, 2, 5, 10, 10, 20, 40))
    job.said |= {"form": form, "objective": objective, "rounds": rounds, "classes": classes}
    if form == "train":
        model = _booster(job, objective, target, rounds, classes)
    else:
        model = _estimator(job, objective, target, max(1, rounds), form)
    model = handed_over(job, model)
    booster = model if form == "train" else model.booster_
    drawn = Drawn(model, model, job.rows, job.labels, job.said)
    best = max(booster.best_iteration, 0) or booster.current_iteration()
    drawn.rounds = min(best, booster.current_iteration())
    return _saved(drawn, job) if form == "train" else drawn


def _saved(drawn: Drawn, job: Job) -> Drawn:
    """Take some rounds of a Booster, or leave it as it is; and let it be a file, or an object."""
    model = drawn.model
    if drawn.rounds > 1 and job.says("middle rounds", 0.07):
        text = model.model_to_string(start_iteration=1, num_iteration=drawn.rounds - 1)
        drawn.model = drawn.given = model = lgb.Booster(model_str=text)
        drawn.rounds -= 1
    if job.says("file", 0.5):
        drawn.given = job.folder / "model.txt"
        model.save_model(drawn.given)
        if job.says("no sizes", 0.2):
            text = drawn.given.read_text(encoding="utf-8")
            text = "".join(x for x in text.splitlines(True) if not x.startswith("tree_sizes="))
            drawn.given.write_text(text, encoding="utf-8")
            drawn.model = lgb.Booster(model_file=drawn.given)
    elif job.says("text", 0.2):
        drawn.given = model.model_to_string().encode()
    return drawn


def _constraints(job: Job) -> Options:
    found: Options = {}
    if job.says("monotone", 0.1):
        drawn = job.rng.integers(-1, 2, job.rows.shape[1])
        found["monotone_constraints"] = [
            0 if i in job.labels else int(x) for i, x in enumerate(drawn)
        ]
    if job.says("interactions", 0.1):
        order = [int(x) for x in job.rng.permutation(job.rows.shape[1])]
        half = len(order) // 2
        found["interaction_constraints"] = [order[: half + 1], order[half:]]
    return found


def _coded(job: Job) -> Options:
    """What tells LightGBM that codes are categories; a frame says so itself."""
    return {"categorical_feature": [*job.labels]} if job.labels and job.x is job.rows else {}


def _booster(job: Job, objective: str, target: Any, rounds: int, classes: int) -> Any:
    options = job.options | {"objective": objective}
    if objective.startswith("multi"):
        options["num_class"] = classes
    if objective == "custom classes":
        options |= {"num_class": classes, "objective": _softmax_gradients}
    if objective == "custom":
        options["objective"] = lambda margin, data: (
            margin - data.get_label(),
            np.ones(len(margin)),
        )
    cut, weight = job.kept(), job.weight()
    fields: Options = _coded(job)
    if objective in FORMS["LGBMRanker"]:
        fields["group"] = [7, cut - 7] if cut > 9 else [cut]
    weights = None if weight is None else weight[:cut]
    if job.says("names", 0.1):
        fields["feature_name"] = [f"the_{i}th_größe" for i in range(job.rows.shape[1])]
    if job.says("initial scores", 0.07):
        outputs = options.get("num_class", 1)
        fields["init_score"] = np.linspace(-1, 1, cut * outputs)
    data = lgb.Dataset(job.x[:cut], target[:cut], weight=weights, params=options, **fields)
    if rounds == 0:
        return lgb.Booster(
            {**options, "objective": objective.split()[0].replace("custom", "none")}, data
        )
    if cut == len(job.rows):
        model = lgb.train(options, data, rounds)
        if job.says("trained on", 0.07):
            options["zero_as_missing"] = False
            more = lgb.Dataset(job.x, target, weight=weights, params=options, **fields)
            return lgb.train(options, more, 3, init_model=model)
        return _changed(job, model, target)
    group = {"group": [len(target) - cut]} if "group" in fields else {}
    held = data.create_valid(job.x[cut:], target[cut:], **group)
    stop = lgb.early_stopping(2, verbose=False)
    more: Options = {"feval": _error} if objective.startswith("custom") else {}
    return lgb.train(options, data, rounds, valid_sets=[held], callbacks=[stop], **more)


def _changed(job: Job, model: Any, target: Any) -> Any:
    """Return the model, or for one in ten what its methods make of it."""
    ways = {
        "refit": lambda: model.refit(job.x, target, decay_rate=0.5),
        "rolled back": lambda: model.rollback_one_iter(),
        "shuffled": lambda: model.shuffle_models(),
        "another leaf": lambda: model.set_leaf_output(0, 0, -1.25),
    }
    if job.rng.random() > 0.1:
        return model
    job.said["changed"] = way = pick(job.rng, ways)
    return ways[way]() or model


def _softmax_gradients(margin: Any, data: Any) -> Any:
    """Gradients for several outputs, whose margins come as a matrix."""
    own = np.arange(margin.shape[1]) == data.get_label()[:, None]
    likely = np.exp(margin - margin.max(axis=1, keepdims=True))
    likely /= likely.sum(axis=1, keepdims=True)
    return likely - own, likely * (1 - likely)


def _error(margin: Any, data: Any) -> tuple[str, float, bool]:
    wrong = np.reshape(margin, (len(data.get_label()), -1), order="F")[:, 0] - data.get_label()
    return "error", float(np.mean(wrong**2)), False


def _estimator(job: Job, objective: str | None, target: Any, rounds: int, form: str) -> Any:
    options = job.options | {"n_estimators": rounds, "objective": objective}
    if objective == "own" or (form != "LGBMRanker" and job.says("own objective", 0.07)):
        options["objective"] = lambda label, margin: (margin - label, np.ones_like(margin))
        target = target.astype(float) if form != "LGBMClassifier" else (target > 0).astype(float)
    fields: Options = _coded(job) | {"sample_weight": job.weight()}
    if form == "LGBMRanker":
        fields["group"] = [7, len(target) - 7] if len(target) > 9 else [len(target)]
    if form == "LGBMClassifier":
        words = pick(job.rng, WORDS)
        target = target.astype(int) if objective != "cross_entropy" else (target > 0.5).astype(int)
        target = WORDS[words][target % len(WORDS[words])]
        job.said["words"] = words
        if job.says("pred_early_stop", 0.05):
            options["pred_early_stop"] = True
    cut = job.kept() if form != "LGBMRanker" else len(target)
    if fields["sample_weight"] is not None:
        fields["sample_weight"] = fields["sample_weight"][:cut]
    if cut < len(target):
        fields["eval_set"] = [(job.x[cut:], target[cut:])]
        fields["callbacks"] = [lgb.early_stopping(2, verbose=False)]
    return getattr(lgb, form)(**options).fit(job.x[:cut], target[:cut], **fields)


def kinds_of_rows(drawn: Drawn) -> tuple[str, ...]:
    """Return the other kinds in which rows may be given."""
    if drawn.takes_frames:
        return ("frame",)
    kinds = ("float32", "whole", "csr_matrix", "csr_array", "csc_matrix", "frame", "mixed frame")
    return kinds


def answers(drawn: Drawn, rows: Any, part: tuple[int, int] | None) -> Options:
    """Return what LightGBM says, by the methods of a Predictor."""
    model, span = drawn.model, {}
    booster = model if isinstance(model, lgb.Booster) else model.booster_
    if part:
        span = {"start_iteration": part[0], "num_iteration": part[1] - part[0]}
    raw = booster.predict(rows, raw_score=True, **span)
    averages = "\naverage_output\n" in booster.model_to_string(num_iteration=1)
    count = part[1] - part[0] if part else drawn.rounds
    found = {
        "predict_margin": raw / count if averages else raw,
        "predict": model.predict(rows, **span),
    }
    if isinstance(model, lgb.LGBMClassifier) and not callable(model.objective_):
        found["predict_proba"] = model.predict_proba(rows, **span)
    return found


def leaves(drawn: Drawn, rows: Any) -> Any:
    """Return the leaf numbers (R, T)."""
    return drawn.model.predict(rows, pred_leaf=True)
