"""How much is lost when the schedule of one size of batch, or model, serves another.

    python -m benchmarks tuning.sensitivity [--records FOLDER]

Reads the exhaustive searches of `tuning.search`. A point of one space is looked up in the
records of the other; where they lack it, since blocks depend on the batch, it is measured now, and
kept in records of its own. Writes sensitivity.json, sensitivity.md and sensitivity.png: for batches
the geometric mean over models, for models a matrix for each size of batch. A number is the time
over that of the best schedule; "-" where the schedule is not legal.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import models
from benchmarks.tuning.searches import BATCHES, RECORDS, Cell, cells, forest_of, path_of
from tvm_forest.schedule_prims import Schedule
from tvm_forest.search import measuring as tuning
from tvm_forest.target import Target

Matrix = dict[str, dict[str, float | None]]
"""By what the schedule was found for, and what it serves: times of the best."""


def measured(folder: Path, cell: Cell, schedule: Schedule) -> float | None:
    """Return the seconds of a schedule that the space of a cell lacks; None if it fails."""

    def once(space: Any, measure: Callable[[Schedule], float], rng: Any) -> None:
        measure(schedule)

    rows, path = models.get(cell.model).rows(), path_of(folder, cell.model, "sensitivity")
    arguments = (forest_of(cell.model), Target(), [cell.space.batch], rows, once)
    records = tuning.tune(*arguments, records=path, n_jobs=1).records
    return next((r.seconds for r in records if r.schedule == schedule), None)


def loss(folder: Path, of: Cell, at: Cell) -> float | None:
    """Return the time of the best schedule of one cell where another is served, over its best."""
    point = of.fastest[0]
    seconds = at.seconds.get(point)
    if seconds is None and of.model == at.model:
        seconds = measured(folder, at, of.space.points()[point])
    return None if seconds is None else seconds / at.seconds[at.fastest[0]]


def of_batches(folder: Path, known: list[Cell]) -> Matrix:
    """Return the geometric mean over the models that have both sizes of batch."""
    found: Matrix = {str(of): {str(at): None for at in BATCHES} for of in BATCHES}
    for of, at in itertools.product(BATCHES, BATCHES):
        served = {cell.model: cell for cell in known if cell.space.batch == at}
        givers = [c for c in known if c.space.batch == of and c.model in served]
        losses = [x for c in givers if (x := loss(folder, c, served[c.model])) is not None]
        found[str(of)][str(at)] = math.exp(np.mean(np.log(losses))) if losses else None
    return found


def of_models(folder: Path, known: list[Cell], batch: int) -> Matrix:
    """Return the matrix of the models for one size of batch."""
    own = [cell for cell in known if cell.space.batch == batch]
    return {of.model: {at.model: loss(folder, of, at) for at in own} for of in own}


def text(matrix: Matrix, corner: str) -> str:
    """Return a matrix as Markdown."""
    columns = list(next(iter(matrix.values()), {}))
    lines = [f"| {corner} | {' | '.join(columns)} |", "|---" + "|--:" * len(columns) + "|"]
    for name, row in matrix.items():
        shown = ("-" if x is None else f"{x:.2f}" for x in row.values())
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def draw(matrices: dict[str, Matrix], figure: Any) -> None:
    """Draw the matrices beside each other."""
    panels = figure.subplots(1, len(matrices))
    for panel, (title, matrix) in zip(np.atleast_1d(panels), matrices.items(), strict=True):
        values = [[np.nan if x is None else x for x in row.values()] for row in matrix.values()]
        image = panel.imshow(np.array(values, float), vmin=1, vmax=3, cmap="viridis_r")
        columns = list(next(iter(matrix.values()), {}))
        panel.set_xticks(range(len(columns)), columns, rotation=90)
        panel.set_yticks(range(len(matrix)), list(matrix))
        panel.set_title(title)
        panel.set_xlabel("serves")
        figure.colorbar(image, ax=panel, shrink=0.6)
    figure.supylabel("schedule found for")


def plot(matrices: dict[str, Matrix], path: Path) -> None:
    """Write a picture of the matrices."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(5 * len(matrices), 5), layout="tight")
    draw(matrices, figure)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Read, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, default=RECORDS)
    folder = parser.parse_args().records
    known = cells(folder)
    matrices = {"batches, all models": of_batches(folder, known)}
    at_hand = [batch for batch in BATCHES if any(c.space.batch == batch for c in known)]
    matrices |= {f"models, {batch} rows": of_models(folder, known, batch) for batch in at_hand}
    words = [f"{title}\n\n{text(matrix, 'found for')}" for title, matrix in matrices.items()]
    print("\n\n".join(words))
    (folder / "sensitivity.json").write_text(json.dumps(matrices, indent=1), encoding="utf-8")
    (folder / "sensitivity.md").write_text("\n\n".join(words) + "\n", encoding="utf-8")
    plot(matrices, folder / "sensitivity.png")
