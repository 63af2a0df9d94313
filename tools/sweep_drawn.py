"""What the models of a sweep have in common: rows, targets and options, drawn from a seed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Options = dict[str, Any]
Table = Mapping[str, Sequence[Any]]
"""For each option the values that it may take, beside the library's default."""
Labels = dict[int, list[Any] | None]

DEFAULTS = (0.0, 0.1, 0.3, 0.3, 0.6)
"""How likely an option is not left at its default; drawn for each model."""


@dataclass
class Drawn:
    """A trained model, and what is needed to ask its library.

    Attributes:
        model: a Booster or a fitted estimator.
        given: what `tvm_forest.load` is given: `model`, or a file that holds it.
        rows: (R, F) float64, what it was trained on; codes in columns of categories.
        labels: of the columns of categories, in the order of codes; None if there are codes only.
        said: what was drawn, for a report.
        rounds: of the model, where its library tells; 0 if it does not.
    """

    model: Any
    given: Any
    rows: Any
    labels: Labels
    said: Options
    rounds: int = 0

    @property
    def takes_frames(self) -> bool:
        """Whether it was trained on a frame whose categories have names."""
        return any(names is not None for names in self.labels.values())


@dataclass
class Job:
    """A model that is to be trained.

    Attributes:
        rng: where all is drawn from.
        rows, labels, said: see `Drawn`.
        folder: where a file of the model may lie.
        share: how likely an option is not left at its default.
    """

    rng: Any
    rows: Any
    labels: Labels
    said: Options
    folder: Path
    share: float
    options: Options = field(default_factory=dict)

    @property
    def x(self) -> Any:
        """What the library is given: a frame where categories have names."""
        named = any(names is not None for names in self.labels.values())
        return frame_of(self.rows, self.labels) if named else self.rows

    def says(self, word: str, share: float) -> bool:
        """Draw whether something is so, and note it if it is."""
        found = bool(self.rng.random() < share)
        if found:
            self.said[word] = True
        return found

    def options_of(self, table: Table, share: float | None = None) -> Options:
        """Draw the options that are not left at their defaults, and note them."""
        share = self.share if share is None else share
        found = {
            name: pick(self.rng, values)
            for name, values in table.items()
            if self.rng.random() < share
        }
        self.said |= found
        return found

    def target(self, kind: str, classes: int = 2) -> Any:
        """Draw a target of a kind, see `drawn_target`."""
        self.said["target"] = kind
        return drawn_target(self.rng, self.rows, kind, classes)

    def weight(self) -> Any:
        """Weights of rows, for one model in ten."""
        n = len(self.rows)
        return self.rng.integers(0, 3, n) + 0.5 if self.says("weighted", 0.1) else None

    def kept(self) -> int:
        """Return how many rows are for training; all, unless it stops early by the others."""
        n = len(self.rows)
        return n * 2 // 3 if n >= 20 and self.says("stops early", 0.15) else n


def pick(rng: Any, choices: Any) -> Any:
    """Draw one of some values."""
    found = [*choices]
    return found[int(rng.integers(len(found)))]


def drawn_job(rng: Any, folder: Path, coded: float) -> Job:
    """Draw the rows of a model; `coded` is how likely they have categories."""
    rows, counts, said = drawn_rows(rng, bool(rng.random() < coded))
    labels = drawn_labels(rng, counts)
    if counts:
        said["labels"] = {i: names if names is None else names[-1] for i, names in labels.items()}
    return Job(rng, rows, labels, said, folder, pick(rng, DEFAULTS))


def handed_over(job: Job, model: Any) -> Any:
    """Return the model, or for one in five what pickle or a deep copy makes of it."""
    if job.rng.random() > 0.2:
        return model
    job.said["handed over"] = way = pick(job.rng, ("pickled", "copied"))
    return pickle.loads(pickle.dumps(model)) if way == "pickled" else copy.deepcopy(model)


# -- rows and targets -----------------------------------------------------------------------------

COLUMNS: dict[str, Callable[[Any, int], Any]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "whole": lambda rng, n: rng.integers(-5, 6, n),
    "flags": lambda rng, n: rng.integers(0, 2, n),
    "tenths": lambda rng, n: rng.choice([0.1, 0.2, 0.3, 0.7], n),
    "zeros": lambda rng, n: rng.normal(size=n) * (rng.random(n) < 0.3),
    "huge": lambda rng, n: rng.normal(size=n) * 1e30,
    "denormal": lambda rng, n: rng.normal(size=n) * 1e-40,
    "wide": lambda rng, n: 10.0 ** rng.uniform(-30, 30, n) * rng.choice([-1, 1], n),
    "near zero": lambda rng, n: rng.choice([1e-35, -1e-35, 2e-35, 0, 1e-36, -3e-35], n),
    "constant": lambda rng, n: np.full(n, 1.5),
    "counts": lambda rng, n: 2.0**24 + rng.integers(0, 9, n),
    "missing": lambda rng, n: np.full(n, np.nan),
}
HEIGHTS = (1, 2, 5, 20, 50, 100, 100, 200, 300, 300, 300, 500, 500, 500)
ORDINARY = ("normal", "normal", "whole", "flags", "tenths", "zeros")
LABELS: dict[str, Callable[[int], list[Any]]] = {
    "text": lambda k: [f"hue-{i * 37 % k}-{i}" for i in range(k)],
    "beyond ASCII": lambda k: [f"Größe {i} 色" for i in range(k)],
    "whole": lambda k: [i * 7 - 3 for i in range(k)],
    "halves": lambda k: [i + 0.5 for i in range(k)],
    "flags": lambda k: [False, True],
}


def drawn_rows(rng: Any, coded: bool) -> tuple[Any, dict[int, int], Options]:
    """Draw rows (R, F) float64, the number of categories of coded columns, and words for both."""
    n, width = pick(rng, HEIGHTS), pick(rng, (1, 2, 3, 5, 8, 20))
    odd = rng.random() < 0.35
    kinds = [pick(rng, COLUMNS if odd else ORDINARY) for _ in range(width)]
    columns = [COLUMNS[kind](rng, n) for kind in kinds]
    counts: dict[int, int] = {}
    for place in rng.permutation(width)[: int(rng.integers(1, 4)) if coded else 0]:
        counts[int(place)] = count = pick(rng, (2, 2, 3, 5, 31, 33, 70, 300))
        columns[place] = rng.integers(0, count, n)
    rows = np.column_stack(columns).astype(np.float64)
    holes = pick(rng, (0, 0, 0.1, 0.4))
    rows[rng.random(rows.shape) < holes] = np.nan
    said: Options = {"rows": n, "columns": kinds if odd else width, "holes": holes}
    return rows, counts, said | ({"categories": counts} if counts else {})


def drawn_labels(rng: Any, counts: Mapping[int, int]) -> Labels:
    """Draw names for the categories of all columns, or for none."""
    if not counts or rng.random() < 0.4:
        return dict.fromkeys(counts)
    few, many = [*LABELS], [kind for kind in LABELS if kind != "flags"]
    return {i: LABELS[pick(rng, few if k == 2 else many)](k) for i, k in counts.items()}


def drawn_score(rng: Any, rows: Any) -> Any:
    """Numbers (R,) that depend on some columns, whatever the size of these."""
    ranks = np.argsort(np.argsort(rows, axis=0), axis=0) / max(1, len(rows) - 1)
    weights = rng.normal(size=rows.shape[1]) * (rng.random(rows.shape[1]) < 0.6)
    bent = np.sin(6 * ranks) @ weights + np.isnan(rows).sum(axis=1) * rng.normal()
    return bent + (ranks[:, 0] > 0.5) * (ranks[:, -1] > 0.3) + rng.normal(size=len(rows)) * 0.1


def drawn_target(rng: Any, rows: Any, kind: str, classes: int = 2) -> Any:
    """Draw a target of a kind; one in 20 has the same value everywhere."""
    score = drawn_score(rng, rows)
    if rng.random() < 0.05:
        score = np.zeros(len(rows))
    share = np.argsort(np.argsort(score)) / len(rows)
    above = score - score.min()
    signs = np.where(rng.random(len(rows)) < 0.7, 1, -1)
    made: dict[str, Callable[[], Any]] = {
        "real": lambda: score * pick(rng, (1, 1, 1e-3, 1e4, 1e30)),
        "positive": lambda: above + 0.01,
        "counts": lambda: np.floor(2 * above),
        "share": lambda: share,
        "flags": lambda: (score > np.median(score)).astype(int),
        "classes": lambda: np.floor(share * classes).astype(int),
        "times": lambda: signs * (above + 0.1),
    }
    return made[kind]()


def frame_of(rows: Any, labels: Mapping[int, list[Any] | None]) -> Any:
    """Return rows as a frame, with columns of categories where labels are known."""
    columns: Options = {f"f{i}": column for i, column in enumerate(rows.T)}
    for place, names in labels.items():
        if names is not None:
            codes = np.nan_to_num(rows[:, place], nan=-1).astype(int)
            columns[f"f{place}"] = pd.Categorical.from_codes(codes, names)
    return pd.DataFrame(columns)
