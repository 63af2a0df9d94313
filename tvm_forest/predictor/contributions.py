"""SHAP values of a predictor: tables and code on demand, and the shapes of the source library.

takes: Forest, Functions, rows; gives: contributions and interactions, float64.

The functions of one row and of blocks of rows give equal bits, so a batch may be cut anywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..contributions import CONTRIBUTIONS, INTERACTIONS
from ..forest import Array, Forest
from ..inputs import to_rows
from ..process.locks import cached_property, make_lock
from ..runtime.results import OF_TABLES, Output
from ..schedule_prims.batches import PARALLEL
from ..threads import check_n_jobs
from .compiling import compile_or_load
from .functions import BoundFunction, Functions

FLATTENS = "lightgbm "
"""How the source of a forest begins whose library puts the outputs of a row one after the other."""

MAX_SINGLE_ROWS = 2
"""Rows that are computed one by one: a block of more takes as long as one that is full."""

_lock = make_lock()
"""Held while functions are compiled."""


class Contributions:
    """The functions of contributions and of interactions, compiled when they are asked for.

    Attributes:
        tables: of the forest.
    """

    def __init__(self, functions: Functions) -> None:
        """Compute the tables.

        Raises:
            UnsupportedModel: see `ContributionTables`.
        """
        self._requests = {name: functions.request.with_outputs(name) for name in OF_TABLES}
        self.tables = self._requests[CONTRIBUTIONS].tables
        self._functions = functions
        self._bound: dict[str, tuple[BoundFunction, BoundFunction]] = {}

    def compute(self, name: Output, rows: Any, n_jobs: int | None) -> Array:
        """Return float64 (R, C, ..., F + 1) of rows on the host."""
        if n_jobs is not None:
            check_n_jobs(f"predict_{name}", n_jobs)
        rows = to_rows(rows, self._functions.forest)
        values = np.empty((len(rows), *self.shape_of(name)))
        function = self.find(name, len(rows))
        has_work = function.parallel is not None and len(rows) > function.rows_per_thread
        jobs = n_jobs if n_jobs is not None and function.parallel is not None else -1
        self._functions.run(function, rows, [values], jobs if has_work else 1)
        return self.complete(name, values)

    def find(self, name: Output, n_rows: int) -> BoundFunction:
        """Return the function of so many rows, compiled if it is not there."""
        if name not in self._bound:
            with _lock:
                if name not in self._bound:
                    self._bound[name] = self._compile(name)
        return self._bound[name][n_rows > MAX_SINGLE_ROWS]

    def shape_of(self, name: Output) -> tuple[int, int]:
        """Return the groups and the features of what a function gives for a row."""
        forest = self.tables.forest
        groups = forest.n_outputs * (forest.row_width if name == INTERACTIONS else 1)
        return groups, forest.row_width + 1

    def complete(self, name: Output, values: Array) -> Array:
        """Return what a function gave with its last column: what is expected of all rows.

        The diagonal of interactions is not known yet, see `fill_diagonal`.
        """
        if name == CONTRIBUTIONS:
            values[:, :, -1] = self.tables.expected
            return values
        forest = self.tables.forest
        width = forest.row_width
        whole = np.zeros((len(values), forest.n_outputs, width + 1, width + 1))
        whole[:, :, :width] = values.reshape(len(values), forest.n_outputs, width, width + 1)
        return whole

    def _compile(self, name: Output) -> tuple[BoundFunction, BoundFunction]:
        """Return the function of single rows, and that of blocks."""
        functions = self._functions
        _, compiled = compile_or_load(self._requests[name])
        library, arrays = compiled.library, compiled.arguments[name]
        model = functions.to_arguments([functions.to_tensor(array) for array in arrays])
        sizes, bound = compiled.block_rows, list[BoundFunction]()
        functions.adopt(library, has_threads=any(size > 1 for size in sizes.values()))
        for function, size in sizes.items():
            parallel = library[function + PARALLEL] if size > 1 else None
            bound.append(BoundFunction(library[function], parallel, model, rows_per_thread=size))
        return bound[0], bound[-1]


def fill_diagonal(interactions: Array, contributions: Array) -> Array:
    """Write the diagonal (R, C, F + 1, F + 1), so that rows add up to contributions (R, C, F + 1).

    A feature's own part is what its interactions leave of its contribution.
    """
    place = np.arange(contributions.shape[-1])
    interactions[..., place, place] = 0
    interactions[..., place, place] = contributions - interactions.sum(axis=-1)
    return interactions


def shape_contributions(forest: Forest, values: Array) -> Array:
    """Return contributions (R, C, F + 1) in the shape of the source library."""
    if values.shape[1] == 1:
        return values[:, 0]
    return values.reshape(len(values), -1) if forest.source.startswith(FLATTENS) else values


class ContributionMethods:
    """The methods of a predictor that give SHAP values."""

    n_jobs: int | None
    _functions: Functions
    _part: Any
    _present: Any

    def predict_contributions(
        self, rows: Any, n_jobs: int | None = None, iteration_range: tuple[int, int] | None = None
    ) -> Array:
        """Return SHAP values: what each feature adds to the margin of each row.

        They are path-dependent TreeSHAP, which takes rows of training for what is not known, by
        their weight in each node. The first call compiles it.

        Returns:
            float64 (R, F + 1), or (R, C, F + 1) for several outputs; of LightGBM's models, one
            output after the other, (R, C * (F + 1)). The last entry of an output is the margin of
            a row of which nothing is known; entries add up to the margin.

        Raises:
            UnsupportedModel: the source does not tell the weights; linear leaves; a margin that is
                no sum.
            InputError: rows, n_jobs or iteration_range of the wrong kind.

        Examples:
            >>> predictor.predict_contributions(rows).shape
            (150, 3, 5)
        """
        part = (self._present or self)._part(iteration_range)
        jobs = self.n_jobs if n_jobs is None else n_jobs
        values = part._compute_contributions(CONTRIBUTIONS, rows, jobs)
        return shape_contributions(part.forest, values)

    def predict_interactions(
        self, rows: Any, n_jobs: int | None = None, iteration_range: tuple[int, int] | None = None
    ) -> Array:
        """Return SHAP interaction values: contributions, shared out to pairs of features.

        Returns:
            float64 (R, F + 1, F + 1), or (R, C, F + 1, F + 1) for several outputs. Rows add up to
            contributions; the last entry is the margin of a row of which nothing is known.

        Raises:
            UnsupportedModel, InputError: see `predict_contributions`.

        Examples:
            >>> predictor.predict_interactions(rows).shape
            (150, 3, 5, 5)
        """
        part = (self._present or self)._part(iteration_range)
        jobs = self.n_jobs if n_jobs is None else n_jobs
        whole = part._compute_contributions(CONTRIBUTIONS, rows, jobs)
        pairs = part._compute_contributions(INTERACTIONS, rows, jobs)
        pairs = fill_diagonal(pairs, whole)
        return pairs[:, 0] if pairs.shape[1] == 1 else pairs

    @cached_property
    def _contributions(self) -> Contributions:
        return Contributions(self._functions)

    def _compute_contributions(self, name: Output, rows: Any, n_jobs: int | None) -> Array:
        """Return (R, C, F + 1) contributions, or (R, C, F + 1, F + 1) interactions."""
        return self._contributions.compute(name, rows, n_jobs)
