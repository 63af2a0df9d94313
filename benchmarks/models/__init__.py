"""The models of the benchmark: published ones, and others that are trained here, always alike.

takes: a name; gives: Model, a file that every engine can read, with rows to predict.

Trained models and all rows are kept in `build/models`; delete that folder after a change to
`trained.py`. Rows are those that were published, drawn again and again in random order, rows like
those of the training, or, where neither is known, `typical_rows` of the model's thresholds.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.models.model import CACHE, PUBLISHED, ROWS, Model, Trained, drawn_again
from benchmarks.models.published import MODELS, rows_of
from benchmarks.models.trained import TRAINED, draw

OBLIVIOUS = ("cat_1000", "cat_100", "cat_500", "cat_26")
NAMES = (*PUBLISHED, *(name for name in TRAINED if name not in ("tiny", *OBLIVIOUS)))
"""All but `tiny`, which is there to try the harness, and those of `features.oblivious`."""
RANDOM = "random-"
"""How the names of the random models begin, such as "random-100-8-6-0"; see `drawn.py`."""
SHORT = ("airline", "year", "xgb_nan")
_NEEDS_ROWS = ("abalone", "covtype", "letters")


def at_hand(name: str) -> bool:
    """Whether a model can be had here: the published ones lie beside the checkout or do not."""
    return MODELS.is_dir() or name not in (*PUBLISHED, *_NEEDS_ROWS)


def get(name: str, folder: Path = CACHE) -> Model:
    """Return a model, trained and with its rows written if that has not been done."""
    return keep(name, folder, _published if name in PUBLISHED else _trained)


def keep(name: str, folder: Path, make: Callable[[str, Path], Model]) -> Model:
    """Return a model that a folder has, or make it there."""
    folder.mkdir(parents=True, exist_ok=True)
    about = folder / f"{name}.about.json"
    if not about.exists():
        model = make(name, folder)
        about.write_text(model.to_json(), encoding="utf-8")  # last, so that all is there
    return replace(Model.from_json(about.read_text(encoding="utf-8")), folder=folder)


def _published(name: str, folder: Path) -> Model:
    if (MODELS / f"{name}.csv").exists():
        model, rows = Model(name, "xgboost", "published", folder=folder), rows_of(name)[0]
        np.save(model.rows_path, drawn_again(rows))
        return model
    import tvm_forest
    from tvm_forest.forest.probe_rows import typical_rows

    model = Model(name, "xgboost", "drawn between thresholds", folder=folder)
    np.save(model.rows_path, typical_rows(tvm_forest.load(model.path), ROWS))
    return model


def _trained(name: str, folder: Path) -> Model:
    made = draw(name) if name.startswith(RANDOM) else TRAINED[name]()
    return write(name, made, folder)


def write(name: str, made: Trained, folder: Path) -> Model:
    """Write a trained model and its rows into a folder."""
    trained, library, rows, rows_from = made
    gives = (
        "probability"
        if library == "scikit-learn" and hasattr(trained, "predict_proba")
        else "value"
    )
    model = Model(name, library, rows_from, gives, folder)
    if library == "scikit-learn":
        model.path.write_bytes(pickle.dumps(trained))
    elif library == "catboost":
        trained.save_model(str(model.path))
    else:
        trained.save_model(model.path)
    np.save(model.rows_path, np.ascontiguousarray(rows))
    return model
