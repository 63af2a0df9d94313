"""Models of YDF, drawn from a seed, and what YDF says about rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ydf

import tvm_forest
from sweep_drawn import Drawn, Job, Options, Table, drawn_job, pick
from tvm_forest.frontends.ydf.columns import to_columns

OPTIONS: Table = {
    "max_depth": (1, 3, 12, -1),
    "min_examples": (1, 2, 50),
    "growing_strategy": ("BEST_FIRST_GLOBAL",),
    "categorical_algorithm": ("RANDOM",),
    "missing_value_policy": ("RANDOM_LOCAL_IMPUTATION", "LOCAL_IMPUTATION"),
    "allow_na_conditions": (True,),
    "num_candidate_attributes_ratio": (0.5,),
    "split_axis": ("SPARSE_OBLIQUE",),
    "discretize_numerical_columns": (True,),
    "num_discretized_numerical_bins": (5, 30),
}
OF_LEARNER: dict[str, Table] = {
    "GradientBoostedTreesLearner": {
        "shrinkage": (0.01, 0.5, 1.0),
        "subsample": (0.5,),
        "sampling_method": ("GOSS",),
        "dart_dropout": (0.5,),
        "l2_regularization": (1.0,),
        "l2_categorical_regularization": (10.0,),
        "use_hessian_gain": (True,),
        "apply_link_function": (False,),
        "validation_ratio": (0.0, 0.3),
    },
    "RandomForestLearner": {"winner_take_all": (False,), "bootstrap_training_dataset": (False,)},
    "CartLearner": {"validation_ratio": (0.0,)},
}
TARGETS = {
    ("REGRESSION", "SQUARED_ERROR"): "real",
    ("REGRESSION", "MEAN_AVERAGE_ERROR"): "real",
    ("CLASSIFICATION", "BINOMIAL_LOG_LIKELIHOOD"): "flags",
    ("CLASSIFICATION", "BINARY_FOCAL_LOSS"): "flags",
    ("CLASSIFICATION", "MULTINOMIAL_LOG_LIKELIHOOD"): "classes",
    ("RANKING", "LAMBDA_MART_NDCG"): "classes",
    ("RANKING", "XE_NDCG_MART"): "classes",
}
Columns = dict[str, Any]


def drawn_model(rng: Any, folder: Path) -> Drawn:
    """Train a model; columns are numbers, booleans and texts."""
    job = drawn_job(rng, folder, 0.5)
    if len(job.rows) < 20:  # of which YDF ends the process for some
        raise ValueError("too few rows")
    learner = pick(rng, ["GradientBoostedTreesLearner"] * 2 + [*OF_LEARNER])
    task, loss = pick(rng, TARGETS)
    if learner != "GradientBoostedTreesLearner" and task == "RANKING":
        task, loss = "REGRESSION", "SQUARED_ERROR"
    options = job.options_of(OPTIONS) | job.options_of(OF_LEARNER[learner])
    if options.get("growing_strategy") == "BEST_FIRST_GLOBAL":
        options["max_num_nodes"] = pick(rng, (5, 31, 150))
    if learner == "GradientBoostedTreesLearner":
        options["loss"] = loss
    if learner != "CartLearner":
        options["num_trees"] = pick(rng, (1, 2, 5, 20, 60))
    target = job.target(TARGETS[task, loss], pick(rng, (2, 3, 6)))
    job.said |= {"learner": learner, "task": task, "loss": loss}
    columns = _columns(job)
    if task == "RANKING":
        columns["group"] = (np.arange(len(target)) // 9).astype(np.bytes_)
        options["ranking_group"] = "group"
    if task == "CLASSIFICATION" and len(np.unique(target)) == 1:
        raise ValueError("a single class")
    words = np.array(["red", "a", "b", "z", "green", "Ab"])
    is_class = task == "CLASSIFICATION"
    columns["label"] = words[target % len(words)] if is_class else target.astype(np.float32)
    made = getattr(ydf, learner)(
        label="label", task=ydf.Task[task], random_seed=7, num_threads=1, **options
    )
    ydf.verbose(0)
    model = made.train(columns, verbose=0)
    drawn = Drawn(model, model, _codes(model, job.rows), {}, job.said)
    if job.says("file", 0.3):
        drawn.given = folder / "model"
        model.save(str(drawn.given))
    return drawn


def _columns(job: Job) -> Columns:
    """Return the rows by column; codes as texts, and some columns of 0 and 1 as booleans."""
    found: Columns = {}
    for i, values in enumerate(job.rows.T):
        if i in job.labels:
            texts = np.array([f"hue {code:g}" for code in values], object)
            values = np.where(np.isnan(values), "", texts)
        elif np.isin(values, (0, 1)).all() and job.rng.random() < 0.7:
            values = values != 0
        else:
            values = values.astype(np.float32)
        found[f"f{i}"] = values
    if job.says("whole", 0.2) and not job.labels and len(found) > 1:
        found = {"whole": job.rows.astype(np.float32)}
    return found


def _codes(model: Any, rows: Any) -> Any:
    """Return rows as they were trained on: YDF leaves out columns, and gives texts its own codes.

    What is not a number is drawn anew by its hard rows.
    """
    names = model.input_feature_names()
    places = [int(name.split(".")[1].split("_")[0] if "." in name else name[1:]) for name in names]
    return rows[:, places]


def kinds_of_rows(drawn: Drawn) -> tuple[str, ...]:
    """Return the other kinds in which rows may be given."""
    return ("float64",)


def answers(drawn: Drawn, rows: Any, part: tuple[int, int] | None) -> Options:
    """Return what YDF says, by the methods of a Predictor."""
    forest, model = tvm_forest.load(drawn.model), drawn.model
    with np.errstate(all="ignore"):
        columns = to_columns(forest, model, rows.astype(np.float32))
    found = {"predict": model.predict(columns, num_threads=1)}
    if forest.link == "identity":
        found["predict_margin"] = found["predict"]
    elif "Boosted" in type(model).__name__ and model.task().name == "CLASSIFICATION":
        raw = ydf.deserialize_model(model.serialize())
        raw.set_output_logits(True)
        found["predict_margin"] = raw.predict(columns, num_threads=1)
    return found


def leaves(drawn: Drawn, rows: Any) -> Any:
    """Return the leaf numbers (R, T)."""
    model, count = drawn.model, len(rows)
    columns = to_columns(tvm_forest.load(model), model, rows)
    label = np.zeros(count, np.float32)
    if model.task().name == "CLASSIFICATION":
        label = np.full(count, model.label_classes()[0])
    extra = {"label": label, "group": np.full(count, b"0")}
    unused = {column.name: np.zeros(count, np.float32) for column in model.data_spec().columns}
    return model.predict_leaves(unused | extra | columns)
