"""The compiled model.

takes: library, arrays, Forest; gives: Predictor.
"""

from __future__ import annotations

import ctypes
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm
import tvm_ffi

from ..compiler import Compiled
from ..errors import InputError, UnsupportedModel
from ..forest import Array, Forest, by_target, labelled
from ..inputs import to_rows, writable_view
from ..layouts.representation import takes_memberships
from ..schedule import Schedule
from ..schedule_prims.batches import PARALLEL, function_names, schedule_of, walked
from ..target import Target, available_cores
from ..targets import Library
from ..threads import STEPS_WORTH_A_THREAD, check_n_jobs, rows_of_one_thread
from ..threads.pool import POOL
from ..tir_gen.canonical import Output, result_dtype, result_names

PROBABILITIES = ("sigmoid", "unbounded_sigmoid", "logistic", "softmax", "rounded_softmax")
"""Links that make probabilities."""

FEW = 64
"""Rows of a batch that goes through a `_Frame`, if they take no more than `FEW_BYTES`."""

FEW_BYTES = 1 << 15

DERIVED_ROWS = 512
"""Rows that are prepared together where memberships in categories become columns: thousands of
them, which memory would have to take and give back. 4,096 rows at once took 6 times as long a row.
"""

_lock = threading.Lock()
"""Held while functions are compiled that were left out."""

Range = tuple[int, int] | None
"""The first boosting round and the one after the last; None for all."""


class _Function(NamedTuple):
    """A compiled function.

    Attributes:
        alone: runs on the caller's thread.
        parallel: uses threads; None if the schedule has no parallel loop.
        arguments: what stands for the model between the rows and the outputs.
        block: rows that its parallel loops leave to one thread.
        slices: rows of a block that costs the same whether it is full or not; 0 if there is none.
        is_wide: takes rows with memberships in categories as columns.
        keeps_order: adds the trees of a row in the order of the model.
    """

    alone: Any
    parallel: Any
    arguments: tuple[Any, ...]
    block: int
    slices: int
    is_wide: bool
    keeps_order: bool


class _Frame(NamedTuple):
    """Memory for one call with few rows.

    To make a TVM tensor of an array takes 0.3 us, to allocate an array 0.2 us, and a call needs
    three; to copy a row in and a result out takes 0.3 us together (Zen 4).

    Attributes:
        rows: (R, F), where rows are copied to.
        call: the function.
        arguments: all that it takes.
        results: margins and values, (R,) or (R, C).
    """

    rows: Array
    call: Any
    arguments: tuple[Any, ...]
    results: tuple[Array, Array]


class _Table(ctypes.c_void_p):
    """The addresses of the arrays of a model, which stay as long as the table, see `ModelTable`."""

    def __init__(self, model: list[Any]) -> None:
        self.arrays = [np.from_dlpack(tensor) for tensor in model]
        self.addresses = np.array([array.ctypes.data for array in self.arrays], np.uint64)
        super().__init__(self.addresses.ctypes.data)


class Predictor:
    """A compiled forest. Calls are re-entrant and release the interpreter lock.

    Attributes:
        forest: the model, with its trees in the order of rounds and classes.
        schedule: how large batches are evaluated.
        schedules: how batches of so many rows and more are evaluated, see `by_batch`.
        target: what it is compiled for.
        library: TVM's executable, e.g. for `library.mod.inspect_source("asm")`; a loaded one may
            hold machine code only. On a GPU, a KernelLibrary.
        signature: `Forest.signature` of the model that was compiled.
        columns: (T, W), the places `round * C + class` of each tree of the source model.
        arguments: for each function, the tensors between the rows and its outputs.
        libraries: that one, and what was compiled since, each with the names of its functions.
        model_bytes: size of the arrays that `predict` reads, for all batches together.
        n_jobs: threads used if a call does not say; None for all cores when a batch is large
            enough and one otherwise, -1 for all cores.
    """

    def __init__(
        self,
        library: Library,
        arguments: dict[str, list[Array]],
        forest: Forest,
        schedules: dict[int, Schedule],
        columns: Array,
        target: Target,
        signature: str,
        later: Callable[[tuple[Output, ...]], Compiled] | None = None,
    ) -> None:
        """Bind the functions of a library to the model's arrays; users call `build`.

        `arguments` are the arrays that each function takes between the rows and its outputs;
        `later` compiles what the library does not have, if it is asked for.
        """
        self.forest, self.schedules, self.target, self.library = forest, schedules, target, library
        self.schedule = schedules[max(schedules)]
        self.signature, self.columns = signature, columns
        self.n_jobs: int | None = None
        self._later, self._functions = later, dict[str, _Function]()
        self.arguments: dict[str, list[Any]] = {}
        self.libraries: list[tuple[Library, list[str]]] = []
        self.bind(library, arguments)
        names = function_names(schedules)
        read = {id(array): array.nbytes for name in names.values() for array in arguments[name]}
        self.model_bytes = sum(read.values())
        self._starts = list(names)
        self._serving = [self._functions[name] for name in names.values()]
        dtypes = {name: result_dtype(forest, name) for name in result_names(forest)}
        self._results = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
        self._row_dtype = np.dtype(forest.row_dtype)
        # What is not among these becomes `other_dtype` first.
        known = "fd" if forest.other_dtype is not None else "?bBhHiIlLqQefd"
        self._copied = frozenset(map(np.dtype, known))
        self._gives_labels = forest.labels is not None and forest.label_rule != "none"
        self._steps = int(forest.depths.sum()) + forest.n_trees  # of a row
        self._frames = self._kept_frames()
        self._parts: dict[tuple[int, int], Predictor] = {}  # of some rounds, the latest last

    def _function(
        self, library: Any, arguments: dict[str, list[Any]], name: str, sch: Schedule
    ) -> _Function:
        parallel = [loop for loop in sch.loops() if loop.parallel]
        if parallel:
            POOL.serve(library)
        return _Function(
            library[name],
            library[name + PARALLEL] if parallel else None,
            self._given(arguments[name]),
            rows_of_one_thread(parallel),
            sch.sliced if all(x.keeps_order for x in self.schedules.values()) else 0,
            takes_memberships(sch.representation, self.forest),
            sch.keeps_order,
        )

    def bind(self, library: Library, arguments: dict[str, list[Array]]) -> None:
        """Take the functions of a library, and the arrays of each."""
        given, walks = self._tensors(arguments), walked(self.schedules)
        by_name = {name: self.schedules[k] for k, name in function_names(self.schedules).items()}
        self.arguments |= given
        for name in arguments:
            self._functions[name] = self._function(library, given, name, by_name.get(name, walks))
        self.libraries.append((library, list(arguments)))

    def _compiled(self, outputs: tuple[Output, ...]) -> Compiled:
        """Compile functions that were left out."""
        assert self._later is not None, "what has no later has all functions"
        return self._later(outputs)

    def _function_of(self, name: Output) -> _Function:
        """Return what says of leaves; compiles it when it is asked for first."""
        if name not in self._functions:
            with _lock:
                if name not in self._functions:
                    compiled = self._compiled((name,))
                    self.bind(compiled.library, compiled.arguments)
        return self._functions[name]

    # -- public -----------------------------------------------------------------------------------

    # The first four delegate to rooms above, which the first call imports.

    def export_library(self, path: str | os.PathLike[str], prefix: str = "tvm_forest_") -> None:
        """Write a shared library with the model, and a C header beside it.

        It predicts margins and values by the schedules of this predictor, on the caller's thread,
        or on a GPU through its driver. Missing values are NaN; class labels are left to the caller.

        Args:
            path: of the library, which ends with ".so", such as "model.so"; the header is
                "model.h".
            prefix: what the names of its C functions begin with, which ends with an underscore;
                libraries that are linked into one program need different ones.

        Raises:
            InputError: no such prefix, or the files cannot be written.
            UnsupportedModel: rows have to be prepared in Python, or the target is neither "llvm"
                nor "cuda".
            BuildError: there is no C compiler, or it fails.
            DeviceError: there is no compiler for CUDA, and the kernels are not compiled yet.
        """
        from .exporting import export_library

        export_library(self, path, prefix)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the predictor to a file, which appears under its name once it is complete.

        Args:
            path: of the file, by custom `<name>.tvmf`; read it with `tvm_forest.load_predictor`.

        Raises:
            InputError: the file cannot be written.
            UnsupportedModel: class labels that are neither texts nor numbers.
        """
        from .saving import save

        save(self, path)

    def __reduce__(self) -> tuple[Callable[[bytes], Predictor], tuple[bytes]]:
        """Say how to pickle and copy a predictor."""
        from .saving import from_bytes, to_bytes

        return from_bytes, (to_bytes(self),)

    def rounds(self, begin: int = 0, end: int = 0) -> Predictor:
        """Return the predictor of the rounds `begin` to `end - 1`; the base score stays.

        A round of XGBoost holds all its parallel trees and classes, a round of LightGBM one tree of
        each class. Other models have no rounds by name: theirs are one tree of each class, too.
        Sums are divided by the trees of the range where the model averages.

        The first call for a range compiles it, by the default schedule, for a schedule is made for
        a number of trees; the latest `ranges.MOST_PARTS` are kept. What is kept is not saved.

        Args:
            begin: first round.
            end: the one after the last; 0 for the end of the model.

        Returns:
            Predictor: this one if the range is the whole model.

        Raises:
            InputError: the range is empty or beyond the model, which for an estimator that stopped
                early ends with its best round.
            UnsupportedModel: isolation forests, whose scores are of all trees.
        """
        from .rounds import rounds

        return rounds(self, begin, end)

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
        if not self._gives_labels:
            found = self._of_few(rows, n_jobs, iteration_range, 1)
            if found is not None:
                return found
        margin, value = self._sums(rows, n_jobs, iteration_range)
        if not self._gives_labels:
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
        if not self.gives_probabilities:
            raise UnsupportedModel(
                f"predict_proba: the model '{self.forest.source}' gives no probabilities; "
                "use predict or predict_margin"
            )
        value = self._sums(rows, n_jobs, iteration_range)[1]
        if self.forest.targets and self.forest.label_rule == "argmax_probability":
            return by_target(value, self.forest)
        return value if value.shape[1] > 1 else np.concatenate([1 - value, value], axis=1)

    @property
    def gives_probabilities(self) -> bool:
        """Whether `predict_proba` can be asked."""
        rule = self.forest.label_rule
        return self.forest.link in PROBABILITIES or rule in ("half", "argmax_probability")

    def predict_margin(
        self, rows: Any, n_jobs: int | None = None, iteration_range: Range = None
    ) -> Array:
        """Predict raw scores, before the link.

        Returns:
            (R,) or (R, C), equal to the source library's to the bit if the schedule keeps order.

        Raises:
            InputError: rows, n_jobs or iteration_range of the wrong kind.
        """
        found = self._of_few(rows, n_jobs, iteration_range, 0)
        if found is not None:
            return found
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
        leaves = np.abs(leaves.reshape(len(leaves), self.columns.size))
        total = np.zeros((len(leaves), self.forest.n_outputs)) + np.abs(self.forest.base_score)
        np.add.at(total.T, self.columns.ravel() % self.forest.n_outputs, leaves.T)
        unit = np.finfo(self.forest.sum_dtype).eps / 2
        if schedule_of(self.schedules, len(leaves)).keeps_order:
            return np.zeros_like(total)
        return 2 * (len(self.columns) + 1) * unit * total

    def __repr__(self) -> str:
        forest = self.forest
        size = f"{len(self.columns)} trees, {forest.row_width} features"
        return f"<Predictor of {forest.source}: {size}, target {self.target.kind}>"

    # -- calls ------------------------------------------------------------------------------------

    def _tensors(self, arguments: dict[str, list[Array]]) -> dict[str, list[Any]]:
        """Return the arrays of the model as the library's functions take them."""
        return tensors(arguments, tvm.runtime.tensor)

    def _given(self, model: list[Any]) -> tuple[Any, ...]:
        """Return what a function takes for the arrays of the model."""
        return (_Table(model),)

    def _kept_frames(self) -> dict[tuple[int, int], list[_Frame]]:
        """Return room for frames by the shape of rows, as far as rows are used as they are."""
        forest, width = self.forest, self.forest.row_width
        if forest.needs_cleaning or forest.refuses:
            return {}
        most = min(FEW, FEW_BYTES // max(1, width * self._row_dtype.itemsize))
        serves = {n: self._serves(n) for n in range(1, most + 1)}
        alone = {n: self._threads(x, n, None) == 1 for n, x in serves.items() if not x.is_wide}
        return {(n, width): [] for n, is_alone in alone.items() if is_alone}

    def _of_few(self, rows: Any, n_jobs: Any, iteration_range: Range, which: int) -> Array | None:
        """Predict margins (0) or values (1) the short way; None if rows ask for the long one."""
        if type(rows) is not np.ndarray:
            return None
        # Arrays that were pickled have a dtype of their own, which is equal but not the same.
        plain = rows.dtype is self._row_dtype or rows.dtype == self._row_dtype
        if not plain and rows.dtype not in self._copied:
            return None
        frames = self._frames.get(rows.shape)
        if frames is None or iteration_range is not None:
            return None
        if n_jobs is None:
            n_jobs = self.n_jobs
        if n_jobs is not None and (type(n_jobs) is not int or n_jobs != 1):
            return None
        try:
            frame = frames.pop()
        except IndexError:  # all are in use, by other threads
            frame = self._new_frame(len(rows))
        if plain:
            frame.rows[...] = rows
        else:
            with np.errstate(all="ignore"):  # as `to_rows` converts them
                frame.rows[...] = rows
        frame.call(*frame.arguments)
        found = frame.results[which].copy()
        frames.append(frame)
        return found

    def _new_frame(self, count: int) -> _Frame:
        function = self._serves(count)
        rows = np.empty((count, self.forest.row_width), self._row_dtype)
        results = self._new_results(count)
        ends = (tvm_ffi.from_dlpack(array) for array in results.values())
        arguments = (tvm_ffi.from_dlpack(rows), *function.arguments, *ends)
        margin = _squeeze(results["margin"])
        value = _squeeze(results["value"]) if "value" in results else margin
        return _Frame(rows, function.alone, arguments, (margin, value))

    def _new_results(self, count: int) -> dict[str, Array]:
        shape = (count, self.forest.n_outputs)
        return {name: np.empty(shape, dtype) for name, dtype in self._results.items()}

    def _serves(self, count: int) -> _Function:
        """Return the function that predicts so many rows."""
        return self._serving[max(0, bisect_right(self._starts, count) - 1)]

    def _shared_out(self, count: int, n_jobs: int | None) -> _Function:
        """Return the same, or one with smaller blocks if threads would get none otherwise.

        Not one that adds in another order, for `tolerance` goes by the number of rows.
        """
        serves = self._serves(count)
        for function in reversed(self._serving[: self._serving.index(serves) + 1]):
            threads = self._threads(function, count, n_jobs)
            shares = function.parallel and threads > 1 and function.block * threads <= count
            if shares and (function.keeps_order or function is serves):
                return function
        return serves

    def _sums(
        self, rows: Any, n_jobs: int | None, iteration_range: Range = None
    ) -> tuple[Array, Array]:
        """Return margins and values, both (R, C); one array if the link is the identity."""
        if iteration_range is not None and (part := self._part(iteration_range)) is not self:
            return part._sums(rows, self.n_jobs if n_jobs is None else n_jobs)
        rows = to_rows(rows, self.forest)
        results = self._new_results(len(rows))
        self._add_up(rows, list(results.values()), n_jobs)
        return results["margin"], results.get("value", results["margin"])

    def _add_up(self, rows: Array, outputs: list[Array], n_jobs: int | None) -> None:
        """Write sums."""
        function = self._shared_out(len(rows), self.n_jobs if n_jobs is None else n_jobs)
        left = len(rows) % function.slices if len(rows) > function.slices > 0 else 0
        full = len(rows) - left
        self._call(function, rows[:full], [array[:full] for array in outputs], n_jobs)
        if left:  # 10 rows of a block of 512 would cost as much as 500
            rest = [array[full:] for array in outputs]
            self._call(self._serves(left), rows[full:], rest, n_jobs)

    def _leaves(
        self, name: Output, dtype: str, rows: Any, n_jobs: int | None, iteration_range: Range = None
    ) -> Array:
        """Return (R, T, W), what the leaves of each tree of the source model say."""
        if iteration_range is not None and (part := self._part(iteration_range)) is not self:
            return part._leaves(name, dtype, rows, self.n_jobs if n_jobs is None else n_jobs)
        rows = to_rows(rows, self.forest)
        places = self.forest.n_trees // self.forest.round_size * self.forest.n_outputs
        leaves = np.empty((len(rows), places), dtype)
        self._call(self._function_of(name), rows, [leaves], n_jobs)
        whole = np.array_equal(self.columns.ravel(), np.arange(places))
        return leaves.reshape(len(rows), *self.columns.shape) if whole else leaves[:, self.columns]

    def _part(self, iteration_range: Any) -> Predictor:
        try:
            begin, end = iteration_range
        except (TypeError, ValueError):
            raise InputError(
                f"predict: argument 'iteration_range': {iteration_range!r} is no pair; give the "
                "first round and the one after the last, such as (0, 10)"
            ) from None
        return self.rounds(begin, end)

    def _call(
        self, function: _Function, rows: Array, outputs: Sequence[Array], n_jobs: int | None
    ) -> None:
        count = len(rows)
        threads = self._threads(function, count, self.n_jobs if n_jobs is None else n_jobs)
        if not count:
            return
        step = DERIVED_ROWS if function.is_wide else count
        prepare = self.forest.prepared if function.is_wide else self.forest.cleaned
        for begin in range(0, count, step):
            some = slice(begin, begin + step)
            ready = writable_view(prepare(rows[some]))
            arguments = (ready, *function.arguments, *(array[some] for array in outputs))
            if function.parallel is None or threads == 1:
                function.alone(*arguments)
            else:
                self._run_parallel(function, arguments, threads)

    def _run_parallel(self, function: _Function, arguments: tuple[Any, ...], threads: int) -> None:
        """Run with helpers; while another call has them, on this thread if that adds up alike."""
        helpers = min(threads, available_cores()) - 1  # more would only get in each other's way
        with POOL.helpers(helpers, waits=not function.keeps_order) as ready:
            (function.parallel if ready else function.alone)(*arguments)

    def _threads(self, function: _Function, n_rows: int, n_jobs: Any) -> int:
        if n_jobs is None:
            large = n_rows > function.block and n_rows * self._steps >= STEPS_WORTH_A_THREAD
            return self.target.cores if large else 1
        check_n_jobs("predict", n_jobs)
        return self.target.cores if n_jobs == -1 else int(n_jobs)


def tensors(
    arguments: dict[str, list[Array]], make: Callable[[Array], Any]
) -> dict[str, list[Any]]:
    """Make tensors of arrays; functions share arrays, and so they share tensors."""
    made: dict[int, Any] = {}
    for array in (array for arrays in arguments.values() for array in arrays):
        made.setdefault(id(array), make(array))
    return {name: [made[id(array)] for array in arrays] for name, arrays in arguments.items()}


def _squeeze(array: Array) -> Array:
    return array[:, 0] if array.shape[1] == 1 else array
