"""Write the model files of one old XGBoost version, with what that version predicts.

    for v in 0.90 1.0.2 1.3.3 1.7.6 2.1.4 3.0.5 3.1.1 3.3.0 3.4.1; do
        python3.8 -m venv x$v                  # 3.10 or newer from 3.0, 3.12 or newer from 3.3
        x$v/bin/pip install numpy scipy xgboost==$v
        x$v/bin/python make_old_models.py
    done

The .npz of a version holds `rows`, and for each model `<name>_margin` and `<name>_leaf`. Versions
before 1.3 added the base score last and round otherwise than all later ones, so 1.7.6 also says
what it makes of their binary files: `<version>-<name>_margin`. This file runs on Python 3.8.
"""

import os

import numpy as np
import xgboost as xgb

HERE = os.path.dirname(os.path.abspath(__file__))
VERSION = xgb.__version__
NUMBERS = tuple(int(part) for part in VERSION.split(".")[:2])
COMMON = {"nthread": 1, "seed": 3, "max_depth": 4, "tree_method": "exact", "min_child_weight": 0}


def make_data():
    """Rows on a coarse grid, so that they meet thresholds, a fifth of them missing."""
    rng = np.random.RandomState(3)
    rows = (np.round(rng.normal(size=(300, 5)) * 4) / 4).astype(np.float32)
    rows[rng.uniform(size=rows.shape) < 0.2] = np.nan
    score = np.nan_to_num(rows).dot([2.0, -1.0, 0.5, 0.0, 1.0]) + rng.normal(size=300) / 2
    return rows, score


def train_models(rows, score):
    """Train the models of all versions."""
    binary = xgb.DMatrix(rows, (score > 0) * 1.0)
    classes = xgb.DMatrix(rows, np.digitize(score, [-1.0, 1.0]))
    positive = xgb.DMatrix(rows, np.abs(score))
    logistic = dict(COMMON, objective="binary:logistic", base_score=0.3, gamma=1.0)
    return {
        "logistic": xgb.train(logistic, binary, 5),
        "raw": xgb.train(dict(logistic, objective="binary:logitraw"), binary, 2),
        "classes": xgb.train(dict(COMMON, objective="multi:softprob", num_class=3), classes, 2),
        "dart": xgb.train(
            dict(COMMON, objective="count:poisson", booster="dart", rate_drop=0.5), positive, 4
        ),
    }


def suffixes():
    """Formats to write: each one that a version brought, and one afterwards."""
    if NUMBERS < (1, 0):
        return ["model"]
    if NUMBERS < (1, 6):
        return ["model", "json"]
    if NUMBERS < (2, 0):
        return ["model", "json", "ubj"]
    if NUMBERS < (3, 0) or NUMBERS == (3, 3):
        return ["json"]
    return ["ubj"] if NUMBERS < (3, 1) else ["json", "ubj"]


def margins_of_older(rows):
    """Margins of the binary models of versions before 1.3."""
    found = {}
    for version in ("0.90", "1.0.2"):
        for name in ("logistic", "raw", "classes", "dart"):
            path = os.path.join(HERE, f"xgboost-{version}-{name}.model")
            margin = xgb.Booster(model_file=path).predict(xgb.DMatrix(rows), output_margin=True)
            found[f"{version}-{name}_margin"] = margin
    return found


def main():
    """Write everything."""
    rows, score = make_data()
    matrix, arrays = xgb.DMatrix(rows), {"rows": rows}
    # Without a limit 0.90 drops trees of a DART model when it predicts.
    limit = {"ntree_limit": 99} if NUMBERS < (1, 0) else {}
    for name, booster in train_models(rows, score).items():
        arrays[name + "_margin"] = booster.predict(matrix, output_margin=True, **limit)
        arrays[name + "_leaf"] = booster.predict(matrix, pred_leaf=True).astype(np.int16)
        for suffix in suffixes():
            booster.save_model(os.path.join(HERE, f"xgboost-{VERSION}-{name}.{suffix}"))
    if VERSION == "1.7.6":
        arrays.update(margins_of_older(rows))
    np.savez_compressed(os.path.join(HERE, f"xgboost-{VERSION}.npz"), **arrays)


if __name__ == "__main__":
    main()
