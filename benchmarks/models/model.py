"""A trained model of the benchmark in a file, with rows.

takes: a name, the library that trained it; gives: Model, Trained.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import BUILD
from benchmarks.models.published import MODELS

CACHE = BUILD / "models"
ROWS = 20_480
PUBLISHED = ("airline", "higgs", "year", "epsilon")
SUFFIX = {"xgboost": ".json", "lightgbm": ".txt", "scikit-learn": ".pickle", "catboost": ".cbm"}


@dataclass(frozen=True)
class Model:
    """A trained model in a file.

    Attributes:
        library: that trained it: "xgboost", "lightgbm", "scikit-learn" or "catboost".
        rows_from: where the rows come from.
        gives: what `predict` is to return: "value", or for classifiers of scikit-learn
            "probability".
        folder: of the file, unless the model is a published one, and of the rows.
    """

    name: str
    library: str
    rows_from: str
    gives: str = "value"
    folder: Path = CACHE

    @property
    def path(self) -> Path:
        """JSON, text or pickle."""
        if self.name in PUBLISHED:
            return MODELS / f"{self.name}.json"
        return self.folder / f"{self.name}{SUFFIX[self.library]}"

    @property
    def rows_path(self) -> Path:
        """`.npy`: (ROWS, F) float32, or float64 where the library compares so."""
        return self.folder / f"{self.name}.npy"

    def load(self) -> Any:
        """Return the object of the training library."""
        if self.library == "xgboost":
            import xgboost

            return xgboost.Booster(model_file=self.path)
        if self.library == "lightgbm":
            import lightgbm

            return lightgbm.Booster(model_file=self.path)
        if self.library == "catboost":
            import catboost

            return catboost.CatBoost().load_model(str(self.path))
        return pickle.loads(self.path.read_bytes())

    def rows(self) -> Any:
        """Return the rows, which share the memory of all processes that read them."""
        return np.load(self.rows_path, mmap_mode="c").view(np.ndarray)

    def reference(self, rows: Any) -> tuple[Any, Any]:
        """Return margins and values of the training library on one thread, each (R, C)."""
        model = self.load()
        if self.library == "xgboost":
            model.set_param({"nthread": 1})
            kinds = ("margin", "value")
            both = [model.inplace_predict(rows, predict_type=kind) for kind in kinds]
        elif self.library == "lightgbm":
            both = [model.predict(rows, raw_score=raw, num_threads=1) for raw in (True, False)]
        elif self.library == "catboost":
            both = 2 * [model.predict(rows, prediction_type="RawFormulaVal", thread_count=1)]
        else:
            limit_threads(model, 1)  # more threads add in any order
            both = [model.predict_proba(rows) if self.gives == "probability" else None]
            both = 2 * [model.predict(rows) if both[0] is None else both[0]]
        return tuple(np.asarray(array).reshape(len(rows), -1) for array in both)

    def to_json(self) -> str:
        """Return the fields as text."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Model:
        """Rebuild what `to_json` wrote."""
        fields = json.loads(text)
        return cls(**fields | {"folder": Path(fields["folder"])})


class Trained(NamedTuple):
    """What a recipe gives: the object, the library, and rows like those of the training."""

    model: Any
    library: str
    rows: Any
    rows_from: str = "drawn like those of the training"


def drawn_again(rows: Any) -> Any:
    """Return `ROWS` of the rows, drawn at random."""
    return rows[np.random.default_rng(0).integers(0, len(rows), ROWS)]


def limit_threads(estimator: Any, count: int) -> None:
    """Let an estimator of scikit-learn use so many threads; some take what OpenMP has."""
    if "n_jobs" in estimator.get_params(deep=False):
        estimator.set_params(n_jobs=count)
