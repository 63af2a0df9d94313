"""SHAP values of a predictor: tables, code on demand, and results in the library's shape.

takes: Forest, Functions, rows; gives: contributions and interactions, float64.

The functions for one row and for blocks of rows give equal bits, so a batch may be split anywhere.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, UnsupportedModel
from ..forest import Array, Forest
from ..forest.contributions import CONTRIBUTIONS, INTERACTIONS, ContributionTables
from ..forest.reference import cast_rows
from ..layouts.laying_out import LaidOut, LaidTables
from ..layouts.laying_out.request import BuildRequest
from ..runtime.results import OF_TABLES, Output
from ..runtime.threads import check_n_jobs
from ..runtime.threads.by_batch import BoundFunction
from ..schedule_prims.batches import PARALLEL
from ..system.late import import_late
from ..system.process.locks import cached_property, make_lock
from .compiling import compile_or_load
from .functions import Functions
from .inputs import to_rows
from .parts.rounds import refuse_which

if TYPE_CHECKING:
    from .. import compiler
    from . import approximation, explanations
else:
    approximation = import_late("tvm_forest.predictor.approximation")
    compiler = import_late("tvm_forest.compiler")
    explanations = import_late("tvm_forest.predictor.explanations")

FLATTENS = "lightgbm "
"""Prefix of `Forest.source` for the library that flattens contributions, output after output."""

OF_OUTPUTS = "of the values of all outputs, take those that you want"

MAX_SINGLE_ROWS = 2
"""Most rows that are computed one by one; a partly filled block costs as much as a full one."""

_lock = make_lock()
"""Held while functions are compiled."""


class Contributions:
    """The functions of contributions and of interactions, compiled on first use.

    Attributes:
        tables: tables of the forest.
    """

    def __init__(self, functions: Functions, background: Any = None) -> None:
        """Compute the tables.

        Args:
            functions: functions of the model.
            background: rows that replace unknown features; None for the training rows.

        Raises:
            UnsupportedModel: see `ContributionTables`; or a background on a GPU.
            InputError: a background that holds no rows of the model.
        """
        self._requests = {name: functions.request.with_outputs(name) for name in OF_TABLES}
        self._has_background = background is not None
        if background is None:
            self.tables = self._requests[CONTRIBUTIONS].tables
        else:
            rows = read_background(functions.request, background)
            self.tables = ContributionTables(functions.forest, rows)
        self._functions = functions
        self._bound: dict[str, tuple[BoundFunction, BoundFunction]] = {}

    def compute(self, name: Output, rows: Any, n_jobs: int | None) -> Array:
        """Return contributions (R, C, F + 1) or interactions (R, C, F + 1, F + 1), float64.

        The rows are on the host, in any form that `to_rows` takes.

        Raises:
            InputError: rows or n_jobs of the wrong kind.
        """
        if n_jobs is not None:
            check_n_jobs(f"predict_{name}", n_jobs)
        rows = to_rows(rows, self._functions.forest)
        values = np.empty((len(rows), *self.shape_of(name)))
        function = self.find(name, len(rows))
        n_jobs = -1 if n_jobs is None else n_jobs
        threads = self._functions.count_threads(function, len(rows), n_jobs)
        self._functions.run(function, rows, [values], threads)
        return self.complete(name, values)

    def find(self, name: Output, n_rows: int) -> BoundFunction:
        """Return the function of an output for batches of `n_rows` rows, compiled if necessary."""
        if name not in self._bound:
            with _lock:
                if name not in self._bound:
                    self._bound[name] = self._compile(name)
        return self._bound[name][n_rows > MAX_SINGLE_ROWS]

    def shape_of(self, name: Output) -> tuple[int, int]:
        """Return the shape of a compiled function's result for one row: (groups, players + 1).

        A group is an output, or for interactions an output together with the first player of a
        pair. A player is a column, or several from which one statistic is made.
        """
        players = len(self.tables.players)
        groups = self.tables.forest.n_outputs * (players if name == INTERACTIONS else 1)
        return groups, players + 1

    def complete(self, name: Output, values: Array) -> Array:
        """Turn a compiled function's result into one value per column, or per pair of columns.

        Contributions get the expected margin as their last entry. The diagonal of interactions
        is filled in later, see `fill_diagonal`.

        Returns:
            float64, contributions (R, C, F + 1) or interactions (R, C, F + 1, F + 1).
        """
        if name == CONTRIBUTIONS:
            values[:, :, -1] = self.tables.expected
            return self.tables.share_out(values)
        outputs, width = self.tables.forest.n_outputs, len(self.tables.players)
        whole = np.zeros((len(values), outputs, width + 1, width + 1))
        whole[:, :, :width] = values.reshape(len(values), outputs, width, width + 1)
        half = np.moveaxis(self.tables.share_out(whole), -1, -2)
        return self.tables.share_out(half) if half.shape != whole.shape else whole

    def _compile(self, name: Output) -> tuple[BoundFunction, BoundFunction]:
        """Return the function for single rows, and that for blocks."""
        functions = self._functions
        if self._has_background:
            laid_out = LaidOut([LaidTables(name, self.tables, on_gpu=False)], np.zeros((0, 1)))
            compiled = compiler.compile_forest(self._requests[name], laid_out)
            (code,), tensors = compiled.code, [*map(functions.to_tensor, compiled.arguments[name])]
        else:
            if name not in functions.arguments:  # as they are if they come from a file
                functions.bind(compile_or_load(self._requests[name])[1])
            code = next(x for x in functions.libraries if name in x.symbols)
            tensors = functions.arguments[name]
        library, model = code.library, functions.to_arguments(tensors)
        functions.adopt(library, has_threads=any(size > 1 for size in code.block_rows.values()))
        bound = list[BoundFunction]()
        for function, size in code.block_rows.items():
            parallel = library[function + PARALLEL] if size > 1 else None
            bound.append(BoundFunction(library[function], parallel, model, rows_per_thread=size))
        return bound[0], bound[-1]


def read_background(
    request: BuildRequest, background: Any, caller: str = "predict_contributions"
) -> Array:
    """Return background rows in the form that compiled code reads.

    Raises:
        InputError: no rows, or rows that the model does not accept.
        UnsupportedModel: the model is on a GPU.
    """
    where = f"{caller}: argument 'background'"
    if request.target.on_gpu:
        raise UnsupportedModel(f"{where}: GPUs do without; build for the target 'llvm'")
    try:
        rows = to_rows(background, request.forest)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if not len(rows):
        raise InputError(f"{where}: there are no rows; give some that are typical")
    return cast_rows(request.forest, rows)


def refuse_both(background: Any) -> None:
    """Refuse a background that is given together with `approximate`, which has no use for it.

    Raises:
        InputError: there is a background.
    """
    if background is not None:
        raise InputError(
            "predict_contributions: arguments 'approximate' and 'background': give one of them"
        )


def fill_diagonal(interactions: Array, contributions: Array) -> Array:
    """Fill the diagonal of interactions (R, C, F + 1, F + 1), in place, and return them.

    The diagonal entry of a feature is its contribution (R, C, F + 1) minus its interactions with
    other features, so each line of a matrix adds up to a contribution.
    """
    place = np.arange(contributions.shape[-1])
    interactions[..., place, place] = 0
    interactions[..., place, place] = contributions - interactions.sum(axis=-1)
    return interactions


def shape_contributions(forest: Forest, values: Array) -> Array:
    """Return contributions (R, C, F + 1) in the shape in which the source library gives them."""
    if values.shape[1] == 1:
        return values[:, 0]
    if not forest.source.startswith(FLATTENS):
        return values
    return values.reshape(len(values), values.shape[1] * values.shape[2])  # -1 fails for no rows


class ContributionMethods:
    """The methods of a predictor that give SHAP values."""

    n_jobs: int | None
    _functions: Functions
    _part: Any
    _present: Any
    _of_background: tuple[Any, Contributions] | None = None

    def predict_contributions(
        self,
        rows: Any,
        n_jobs: int | None = None,
        iteration_range: tuple[int, int] | None = None,
        background: Any = None,
        *,
        approximate: bool = False,
        which: None = None,
    ) -> Array:
        """Return SHAP values: the contribution of each feature to the margin of each row.

        Without a background this is path-dependent TreeSHAP, which replaces unknown features by
        training rows, weighted by the cover of each node; with one it is interventional TreeSHAP,
        which replaces them by the rows of the background. The first call compiles the code.

        Args:
            rows, n_jobs, iteration_range: see `predict`.
            background: (B, F), rows that replace unknown features; None for the training rows. The
                time per row does not depend on B.
            approximate: for models of XGBoost, what its `approx_contribs=True` gives: float32, with
                its bits, by the method of Saabas.
            which: is refused; of all outputs' values, take those that you want.

        Returns:
            float64 (R, F + 1), or (R, C, F + 1) for several outputs; for LightGBM's models
            flattened, one output after the other, (R, C * (F + 1)). The last entry of an output is
            the expected margin; entries add up to the margin.

        Raises:
            UnsupportedModel: the model has linear leaves, its margin is not a sum, or a tree is too
                deep; without a background, covers are missing or do not add up; with one, a path
                has more than 9 tests, the tables get too large, or the model is on a GPU; with
                `approximate`, it is not one model of XGBoost for the CPU at hand, its leaves are
                vectors, covers are missing, or DART has weighted its trees.
            InputError: rows, background, n_jobs or iteration_range of the wrong kind, a background
                without rows or together with `approximate`, or `which` is given.

        Examples:
            >>> predictor.predict_contributions(rows).shape
            (150, 3, 5)
        """
        refuse_which("predict_contributions", which, OF_OUTPUTS)
        part = (self._present or self)._part(iteration_range)
        jobs = self.n_jobs if n_jobs is None else n_jobs
        if approximate:
            refuse_both(background)
            return shape_contributions(part.forest, part._approximation.compute(rows, jobs))
        values = part._explain_rows(rows, jobs, background)
        return shape_contributions(part.forest, values)

    def predict_interactions(
        self,
        rows: Any,
        n_jobs: int | None = None,
        iteration_range: tuple[int, int] | None = None,
        *,
        which: None = None,
    ) -> Array:
        """Return SHAP interaction values: contributions, split among pairs of features.

        Args:
            rows, n_jobs, iteration_range, which: see `predict_contributions`.

        Returns:
            float64 (R, F + 1, F + 1), or (R, C, F + 1, F + 1) for several outputs. Line i of a
            matrix adds up to the contribution of feature i; the last line, to the expected margin.

        Raises:
            UnsupportedModel, InputError: see `predict_contributions`.

        Examples:
            >>> predictor.predict_interactions(rows).shape
            (150, 3, 5, 5)
        """
        refuse_which("predict_interactions", which, OF_OUTPUTS)
        part = (self._present or self)._part(iteration_range)
        jobs = self.n_jobs if n_jobs is None else n_jobs
        whole = part._compute_contributions(CONTRIBUTIONS, rows, jobs)
        pairs = part._compute_contributions(INTERACTIONS, rows, jobs)
        pairs = fill_diagonal(pairs, whole)
        return pairs[:, 0] if pairs.shape[1] == 1 else pairs

    def explain(
        self,
        rows: Any,
        n_jobs: int | None = None,
        iteration_range: tuple[int, int] | None = None,
        background: Any = None,
    ) -> Any:
        """Return SHAP values as a `shap.Explanation`, for the plots of the package `shap`.

        Args:
            rows, n_jobs, iteration_range, background: see `predict_contributions`.

        Returns:
            `shap.Explanation`: values (R, F), or (R, F, C) for several outputs; base_values (R,) or
            (R, C), the expected margin; data, the rows; names of features and outputs.

        Raises:
            UnsupportedModel, InputError: see `predict_contributions`; or shap is not installed.

        Examples:
            >>> explained = predictor.explain(rows)  # doctest: +SKIP
            >>> shap.plots.beeswarm(explained[:, :, 0])  # doctest: +SKIP
        """
        part = (self._present or self)._part(iteration_range)
        jobs = self.n_jobs if n_jobs is None else n_jobs
        values = part._explain_rows(rows, jobs, background)
        return explanations.make_explanation(part.forest, rows, values)

    def reasons(
        self,
        rows: Any,
        k: int = 4,
        toward: explanations.Toward = "any",
        n_jobs: int | None = None,
        iteration_range: tuple[int, int] | None = None,
        background: Any = None,
    ) -> explanations.Reasons:
        """Return the features that contribute most to each row, such as reason codes of a score.

        Args:
            rows, n_jobs, iteration_range, background: see `predict_contributions`.
            k: the number of features, at most.
            toward: "any" for the largest contributions of both signs, "higher" for those that
                raise the margin, "lower" for those that lower it.

        Returns:
            Indices, contributions and names of the features, (R, k), or (R, C, k) for several
            outputs, the largest first.

        Raises:
            UnsupportedModel, InputError: see `predict_contributions`; or k or toward is invalid.

        Examples:
            >>> predictor.reasons(rows, k=2).columns.shape
            (150, 3, 2)
        """
        part = (self._present or self)._part(iteration_range)
        jobs = self.n_jobs if n_jobs is None else n_jobs
        values = part._explain_rows(rows, jobs, background)
        return explanations.pick_reasons(part.forest, values, k, toward)

    @cached_property
    def _contributions(self) -> Contributions:
        return Contributions(self._functions)

    @cached_property
    def _approximation(self) -> approximation.Approximation:
        return approximation.Approximation(self._functions)

    def _explain_rows(self, rows: Any, n_jobs: int | None, background: Any) -> Array:
        """Return contributions (R, C, F + 1), relative to training rows or to a background.

        The tables of a background are kept until another background is given.
        """
        if background is None:
            return self._compute_contributions(CONTRIBUTIONS, rows, n_jobs)
        functions = self._functions
        read = read_background(functions.request, background)
        key = (read.shape, hashlib.sha256(np.ascontiguousarray(read).data).digest())
        known = self._of_background
        if known is None or known[0] != key:
            known = self._of_background = (key, Contributions(functions, background))
        return known[1].compute(CONTRIBUTIONS, rows, n_jobs)

    def _compute_contributions(self, name: Output, rows: Any, n_jobs: int | None) -> Array:
        """Return (R, C, F + 1) contributions, or (R, C, F + 1, F + 1) interactions."""
        return self._contributions.compute(name, rows, n_jobs)
