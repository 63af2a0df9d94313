"""The compiled model.

takes: library, arrays, Forest; gives: Predictor.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

# TVM would otherwise use half of the cores, and pin the calling thread to one of them.
os.environ.setdefault("TVM_NUM_THREADS", str(os.cpu_count() or 1))
os.environ.setdefault("TVM_BIND_THREADS", "0")

import numpy as np
import tvm
import tvm_ffi

from .errors import InputError, UnsupportedModel
from .forest import Array, Forest, by_target, labelled
from .nest import Loop
from .rows import to_rows, writable_view
from .schedule import Schedule
from .target import Target
from .tir_gen.canonical import result_dtype, result_names

WALKS_WORTH_A_THREAD = 10_000
"""Rows times trees from which all cores are used by default: 96 rows of `airline` or `higgs` (100
trees of depth 8) take 65 us on one core of Zen 4, 45 to 52 us on two; fewer rows gain nothing."""

PROBABILITIES = ("sigmoid", "unbounded_sigmoid", "logistic", "softmax", "rounded_softmax")
"""Links that make probabilities."""

MOST_THREADS = 1024
"""More are taken as so many; TVM fails to count 2**31."""

Range = tuple[int, int] | None
"""The first boosting round and the one after the last; None for all."""

_pool = threading.local()


class Predictor:
    """A compiled forest. Calls are re-entrant and release the interpreter lock.

    Attributes:
        forest: the model, with its trees in the order of the compiled code.
        schedule: how it is evaluated.
        target: what it is compiled for.
        library: TVM's executable, e.g. for `library.mod.inspect_source("asm")`; a loaded one may
            hold machine code only.
        signature: `Forest.signature` of the model that was compiled.
        arguments: for each function, the tensors between the rows and its outputs.
        model_bytes: size of the arrays that `predict` reads.
        n_jobs: threads used if a call does not say; None for all cores when a batch is large
            enough and one otherwise, -1 for all cores.
    """

    def __init__(
        self,
        library: tvm.runtime.Executable,
        arguments: dict[str, list[Array]],
        forest: Forest,
        schedule: Schedule,
        target: Target,
        signature: str,
    ) -> None:
        """Bind the functions of a library to the model's arrays; users call `build`.

        `arguments` are the arrays that each function takes between the rows and its outputs.
        """
        self.forest, self.schedule, self.target, self.library = forest, schedule, target, library
        self.signature = signature
        self.n_jobs: int | None = None
        tensors: dict[int, Any] = {}  # functions share arrays, and so they share tensors
        for array in (array for arrays in arguments.values() for array in arrays):
            tensors.setdefault(id(array), tvm.runtime.tensor(array))
        self.model_bytes = sum(array.nbytes for array in arguments["predict"])
        self.arguments = {
            name: [tensors[id(array)] for array in arrays] for name, arrays in arguments.items()
        }
        parallel = [loop for loop in schedule.loops() if loop.parallel]
        suffixes = ("", "_parallel") if parallel else ("",)
        self._functions = {name + s: library[name + s] for name in arguments for s in suffixes}
        self._block = _rows_of_one_thread(parallel)
        self._results = {name: result_dtype(forest, name) for name in result_names(forest)}
        self._columns = _columns_of_trees(forest)
        self._parts: dict[tuple[int, int], Predictor] = {}  # of some rounds, the latest last

    # -- public -----------------------------------------------------------------------------------

    if TYPE_CHECKING:  # attached by saving and by ranges

        def save(self, path: str | os.PathLike[str]) -> None: ...  # noqa: D102
        def rounds(self, begin: int = 0, end: int = 0) -> Predictor: ...  # noqa: D102

    def predict(self, rows: Any, n_jobs: int | None = None, iteration_range: Range = None) -> Array:
        """Predict what the source object's `predict` returns.

        Args:
            rows: (R, F), see `rows.to_rows`; NaN is a missing value.
            n_jobs: threads, see the attribute.
            iteration_range: (begin, end), use the rounds `begin` to `end - 1` only; None and (0, 0)
                for all. See `rounds` for what that costs.

        Returns:
            (R,) or (R, C): values, probabilities, or labels where the source object gives labels;
            of a model of several targets, a label for each.

        Raises:
            InputError: rows, n_jobs or iteration_range of the wrong kind.
        """
        margin, value = self._sums(rows, n_jobs, iteration_range)
        if self.forest.labels is None or self.forest.label_rule == "none":
            return _squeeze(value)
        return labelled(self.forest, margin, value)

    def predict_proba(
        self, rows: Any, n_jobs: int | None = None, iteration_range: Range = None
    ) -> Array | list[Array]:
        """Predict the probability of every class.

        Returns:
            (R, 2) or (R, C) in the order of the labels. If there are several targets, (R, C) where
            each is a yes or no, and a list of such arrays where they have classes of their own.

        Raises:
            UnsupportedModel: the model gives no probabilities.
            InputError: rows, n_jobs or iteration_range of the wrong kind.
        """
        link, rule = self.forest.link, self.forest.label_rule
        likely = link in PROBABILITIES or rule in ("half", "argmax_probability")
        if not likely:
            raise UnsupportedModel(
                f"predict_proba: the model '{self.forest.source}' gives no probabilities; "
                "use predict or predict_margin"
            )
        value = self._sums(rows, n_jobs, iteration_range)[1]
        if self.forest.targets and rule == "argmax_probability":
            return by_target(value, self.forest)
        return value if value.shape[1] > 1 else np.concatenate([1 - value, value], axis=1)

    def predict_margin(
        self, rows: Any, n_jobs: int | None = None, iteration_range: Range = None
    ) -> Array:
        """Predict raw scores, before the link.

        Returns:
            (R,) or (R, C), equal to the source library's to the bit if the schedule keeps order.

        Raises:
            InputError: rows, n_jobs or iteration_range of the wrong kind.
        """
        return _squeeze(self._sums(rows, n_jobs, iteration_range)[0])

    def apply(self, rows: Any, n_jobs: int | None = None, iteration_range: Range = None) -> Array:
        """Return the number of the leaf that every row reaches in every tree.

        Returns:
            (R, T), numbers of the source model's nodes, in its order of trees.

        Raises:
            InputError: rows, n_jobs or iteration_range of the wrong kind.
        """
        ids = self._leaves("apply", "int32", rows, n_jobs, iteration_range)[:, :, 0]
        return ids.astype(self.forest.leaf_id_dtype)

    def predict_per_tree(
        self, rows: Any, n_jobs: int | None = None, iteration_range: Range = None
    ) -> Array:
        """Return the leaf value that every tree adds to the margin.

        Returns:
            (R, T), in the source model's order of trees; (R, T, C) if leaves hold vectors.

        Raises:
            InputError: rows, n_jobs or iteration_range of the wrong kind.
        """
        leaves = self._leaves("per_tree", self.forest.sum_dtype, rows, n_jobs, iteration_range)
        return leaves[:, :, 0] if leaves.shape[2] == 1 else leaves

    def tolerance(self, rows: Any) -> Array:
        """Return how far a margin may be from the source model's, to be compared with |difference|.

        Zero if the schedule keeps the order of additions. Otherwise two sums of the same T + 1
        numbers in any order differ by at most 2 (T + 1) u (|base score| + sum of |leaf values|),
        where u is the unit round-off, 2^-24 for float32.

        Returns:
            (R, C) float64.

        Raises:
            InputError: rows of the wrong kind.
        """
        leaves = self._leaves("per_tree", self.forest.sum_dtype, rows, None).astype(np.float64)
        leaves = np.abs(leaves.reshape(len(leaves), -1))
        total = np.zeros((len(leaves), self.forest.n_outputs)) + np.abs(self.forest.base_score)
        np.add.at(total.T, self.forest.tree_class[self._columns.ravel()], leaves.T)
        unit = np.finfo(self.forest.sum_dtype).eps / 2
        return (
            0 * total if self.schedule.keeps_order else 2 * (len(self._columns) + 1) * unit * total
        )

    def __repr__(self) -> str:
        forest = self.forest
        size = f"{len(self._columns)} trees, {forest.row_width} features"
        return f"<Predictor of {forest.source}: {size}, target {self.target.kind}>"

    # -- calls ------------------------------------------------------------------------------------

    def _sums(
        self, rows: Any, n_jobs: int | None, iteration_range: Range = None
    ) -> tuple[Array, Array]:
        """Return margins and values, both (R, C); one array if the link is the identity."""
        if iteration_range is not None and (part := self._part(iteration_range)) is not self:
            return part._sums(rows, self.n_jobs if n_jobs is None else n_jobs)
        rows = self.forest.prepared(to_rows(rows, self.forest))
        shape = (len(rows), self.forest.n_outputs)
        results = {name: np.empty(shape, dtype) for name, dtype in self._results.items()}
        self._call("predict", rows, list(results.values()), n_jobs)
        return results["margin"], results.get("value", results["margin"])

    def _leaves(
        self, name: str, dtype: str, rows: Any, n_jobs: int | None, iteration_range: Range = None
    ) -> Array:
        """Return (R, T, W), what the leaves of each tree of the source model say."""
        if iteration_range is not None and (part := self._part(iteration_range)) is not self:
            return part._leaves(name, dtype, rows, self.n_jobs if n_jobs is None else n_jobs)
        rows = self.forest.prepared(to_rows(rows, self.forest))
        leaves = np.empty((len(rows), self.forest.n_trees), dtype)
        self._call(name, rows, [leaves], n_jobs)
        whole = np.array_equal(self._columns[:, 0], np.arange(self.forest.n_trees))
        return leaves[:, :, None] if whole else leaves[:, self._columns]

    def _part(self, iteration_range: Any) -> Predictor:
        try:
            begin, end = iteration_range
        except (TypeError, ValueError):
            raise InputError(
                f"predict: argument 'iteration_range': {iteration_range!r} is no pair; give the "
                "first round and the one after the last, such as (0, 10)"
            ) from None
        return self.rounds(begin, end)

    def _call(self, name: str, rows: Array, outputs: list[Array], n_jobs: int | None) -> None:
        threads = self._threads(len(rows), self.n_jobs if n_jobs is None else n_jobs)
        if not len(rows):
            return
        parallel = self._functions.get(f"{name}_parallel") if threads > 1 else None
        if parallel is not None:
            _set_threads(threads)
        function = parallel or self._functions[name]
        function(writable_view(rows), *self.arguments[name], *outputs)

    def _threads(self, n_rows: int, n_jobs: Any) -> int:
        if n_jobs is None:
            large = n_rows * self.forest.n_trees >= WALKS_WORTH_A_THREAD
            return self.target.cores if large and n_rows > self._block else 1
        check_n_jobs("predict", n_jobs)
        return self.target.cores if n_jobs == -1 else min(int(n_jobs), MOST_THREADS)


def _columns_of_trees(forest: Forest) -> Array:
    """Return (T, W), the compiled trees that stand for each tree of the source model."""
    known = np.flatnonzero(forest.tree_id >= 0)
    order = known[np.argsort(forest.tree_id[known], kind="stable")]
    trees = len(np.unique(forest.tree_id[known]))
    return order.reshape(trees, -1) if trees else order.reshape(0, 1)


def _rows_of_one_thread(parallel: list[Loop]) -> int:
    """Rows that the parallel loops leave to one thread; 0 if they share out trees as well."""
    if any(loop.kind == "tree" for loop in parallel):
        return 0
    return max((loop.step for loop in parallel if isinstance(loop.step, int)), default=1)


def check_n_jobs(where: str, n_jobs: Any) -> None:
    """Raise InputError unless n_jobs is None, -1 or a positive number."""
    whole = isinstance(n_jobs, (int, np.integer)) and not isinstance(n_jobs, bool)
    if n_jobs is not None and not (whole and (n_jobs == -1 or n_jobs >= 1)):
        raise InputError(
            f"{where}: argument 'n_jobs': {n_jobs!r} is no number of threads; use 1 or more, "
            "-1 for all cores, or None"
        )


def _squeeze(array: Array) -> Array:
    return array[:, 0] if array.shape[1] == 1 else array


def _set_threads(count: int) -> None:
    """Set the size of the calling thread's pool; TVM keeps one for each."""
    if getattr(_pool, "count", None) != count:
        tvm_ffi.get_global_func("runtime.config_threadpool")(1, count)
        _pool.count = count
