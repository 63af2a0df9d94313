"""The compiled functions of a predictor, bound to the model's arrays.

takes: BuildRequest, Compiled, rows on the host; gives: margins, values, leaf numbers and leaf
values, as arrays.

    700 rows by bit planes in blocks of 512      rows 0 to 511 by the function of large batches
                                                 rows 512 to 699 by that for batches of 188 rows
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..forest import Array
from ..layouts.laying_out import CodeOf, Compiled
from ..layouts.laying_out.request import BuildRequest
from ..layouts.protocol import takes_memberships
from ..runtime import Library
from ..runtime.gpu import ModelArray
from ..runtime.linked import LinkedLibrary
from ..runtime.results import OF_TABLES, Output, result_dtype, result_names
from ..runtime.threads import count_rows_of_a_thread
from ..runtime.threads.by_batch import BoundFunction, ByBatch
from ..runtime.threads.pool import POOL
from ..schedule_prims import Schedule, batches
from ..schedule_prims.batches import count_steps_of_a_thread, rows_per_block
from ..system.cores import available_cores
from ..system.late import import_late
from ..system.process.ending import is_waited_for
from ..system.process.locks import holds_off_forks, make_lock
from ..target import Target
from .compiling import compile_or_load, keep_shared
from .inputs import split_blocks, to_blocks, writable_view

if TYPE_CHECKING:
    from ..runtime.threads import pool_code
else:
    pool_code = import_late("tvm_forest.runtime.threads.pool_code")

LINE_BYTES = 64
"""Bytes of a cache line; aligned arrays keep a walk's vectors within one line."""

_compile_lock = make_lock()
"""Held while a function that was left out at first is compiled."""

_shared: dict[tuple[str, Target], Library] = {}
"""Code that depends on no model, by its name and target."""


class AddressTable(ctypes.c_void_p):
    """The addresses of a model's arrays, in the order in which a function reads them.

    CPU functions take this pointer in place of the arrays, because TVM would check every array in
    every call. The table keeps the arrays alive.
    """

    def __init__(self, tensors: list[ModelArray]) -> None:
        self.arrays = [tensor.array for tensor in tensors]
        self.addresses = np.array([array.ctypes.data for array in self.arrays], np.uint64)
        super().__init__(self.addresses.ctypes.data)


class Functions(ByBatch):
    """The functions of a predictor.

    Functions of sums exist from the start. Those for leaf numbers ("apply") and leaf values
    ("per_tree") are compiled on first use. Arguments `n_jobs` are as in `ByBatch`.

    Attributes:
        request: the build request.
        forest: the model in canonical form.
        target: the compilation target.
        arguments: for each function by name, the arrays of the model that it reads.
        libraries: compiled libraries, in the order in which `bind` added them.
        result_dtypes: dtypes of the arrays that a function of sums writes, see `result_names`;
            values are the last.
        margin_place: index of the margins among these.
        max_rows_with_memberships: rows that get membership columns at a time; for thousands of rows
            this memory would have to be requested from the system each time.
        n_places: number of places `round * C + class` of trees.
    """

    max_rows_with_memberships = 512

    def __init__(self, request: BuildRequest, compiled: Compiled) -> None:
        forest, schedules = request.forest, request.schedules
        self.request, self.forest, self.target = request, forest, request.target
        self._by_name: dict[str, BoundFunction] = {}
        self.arguments: dict[str, list[ModelArray]] = {}
        self.libraries: list[CodeOf] = []
        self.bind(compiled)
        names = batches.name_functions(schedules)
        of_batches = [self._by_name[name] for name in names.values()]
        steps = int(forest.depths.sum()) + forest.n_trees
        super().__init__(list(names), of_batches, steps, request.target.cores)
        results = result_names(forest)
        self.result_dtypes = [np.dtype(result_dtype(forest, name)) for name in results]
        self.margin_place = results.index("margin")
        self.n_places = forest.n_trees * forest.leaf_value.shape[1]

    # -- binding ----------------------------------------------------------------------------------

    @is_waited_for
    @holds_off_forks
    def bind(self, compiled: Compiled) -> None:
        """Add the functions of libraries, bound to the model's arrays.

        `Contributions` binds those of contributions and interactions when they are used.
        """
        arrays = compiled.arguments
        distinct = {id(array): array for read in arrays.values() for array in read}
        tensors = {
            key: array if isinstance(array, ModelArray) else self.to_tensor(array)
            for key, array in distinct.items()
        }
        chosen = self.request.schedules  # none yet if the model is still to be compiled
        named = batches.name_functions(chosen) if chosen else {}
        schedules = {name: chosen[k] for k, name in named.items()}
        for code in compiled.code:
            for name in (x for x in code.symbols if x in arrays):
                self.arguments[name] = [tensors[id(array)] for array in arrays[name]]
                if name not in OF_TABLES:
                    sch = schedules.get(name) or batches.select_hop_schedule(chosen)
                    self._by_name[name] = self._bind_function(code, name, sch)
            self.libraries.append(code)

    def _bind_function(self, code: CodeOf, name: str, sch: Schedule) -> BoundFunction:
        parallel = [loop for loop in sch.loops() if loop.parallel]
        library, symbol = code.library, code.symbols[name]
        self.adopt(library, has_threads=bool(parallel))
        return BoundFunction(
            library[symbol],
            library[symbol + batches.PARALLEL] if parallel else None,
            self.to_arguments(self.arguments[name]),
            count_rows_of_a_thread(parallel),
            rows_per_block(sch, self.request.schedules),
            takes_memberships(sch.layout, self.forest),
            sch.keeps_order,
            count_steps_of_a_thread(sch),
        )

    def adopt(self, library: Library, has_threads: bool) -> None:
        """Connect a library to the thread pool, if it has functions that use threads."""
        if has_threads:
            holds_pool = isinstance(library, LinkedLibrary)
            POOL.serve(library, (lambda: library) if holds_pool else pool_code.compile_pool)

    def share(self, library: Library) -> Library:
        """Return a library of the same code, for a predictor of another model."""
        return library

    def to_tensor(self, array: Array) -> ModelArray:
        """Return a copy of a model's array, in the form that functions of this target read."""
        return ModelArray(copy_to_lines(array))

    def to_arguments(self, tensors: list[ModelArray]) -> tuple[Any, ...]:
        """Return what functions take in place of these arrays: one pointer, an AddressTable."""
        return (AddressTable(tensors),)

    # -- finding a function ------------------------------------------------------------------------

    def find(self, name: Output) -> BoundFunction:
        """Return the function of an output by name; it is compiled now if it is not there yet.

        Raises:
            ScheduleError, BuildError, InputError: see `compile_or_load`.
        """
        if name not in self._by_name:
            with _compile_lock:
                if name not in self._by_name:
                    _, compiled = compile_or_load(self.request.with_outputs(name))
                    self.bind(compiled)
        return self._by_name[name]

    @holds_off_forks
    def find_shared(self, name: str, compile: Callable[[], Library]) -> Library:
        """Return code that depends on no model; it is compiled now if it is not there yet.

        See `compiling.keep_shared` for the arguments. This process and the user's cache keep it.
        """
        key = name, self.target
        if key not in _shared:
            with _compile_lock:
                if key not in _shared:
                    library = keep_shared(self.request, name, compile)
                    self.adopt(library, has_threads=True)
                    _shared[key] = library
        return _shared[key]

    # -- calls -------------------------------------------------------------------------------------

    def compute_sums(self, rows: Any, n_jobs: int | None) -> tuple[Array, Array]:
        """Return margins and values, both (R, C); one array if the link is the identity.

        Raises:
            InputError: rows or n_jobs of the wrong kind.
        """
        blocks = to_blocks(rows, self.forest)
        results = self.new_results(len(blocks))
        self.write_sums(blocks, results, n_jobs)
        return results[self.margin_place], results[-1]

    def write_sums(self, blocks: Any, results: Sequence[Array], n_jobs: int | None) -> None:
        """Write results for rows from `to_blocks` into arrays such as those of `new_results`."""
        function, threads = self.plan(len(blocks), n_jobs)
        multiple = function.rows_per_block
        rest = len(blocks) % multiple if len(blocks) > multiple > 0 else 0
        whole = len(blocks) - rest
        for begin, part in split_blocks(blocks, self.forest, max(1, multiple)):
            end = min(begin + len(part), whole)
            inside = [array[begin:end] for array in results]
            self.run(function, part[: end - begin], inside, threads)
            if end < begin + len(part):
                last, count = self.plan(rest, n_jobs)
                self.run(last, part[end - begin :], [array[whole:] for array in results], count)

    def compute_leaves(self, name: Output, rows: Any, n_jobs: int | None) -> Array:
        """Return the numbers ("apply") or values ("per_tree") of the leaves that rows reach.

        Returns:
            (R, n_places), by place `round * C + class` of the tree.

        Raises:
            InputError: rows or n_jobs of the wrong kind.
        """
        blocks = to_blocks(rows, self.forest)
        leaves = np.empty((len(blocks), self.n_places), self.leaf_dtype(name))
        function = self.find(name)
        threads = self.count_threads(function, len(blocks), n_jobs)
        for begin, part in split_blocks(blocks, self.forest, 1):
            self.run(function, part, [leaves[begin : begin + len(part)]], threads)
        return leaves

    def new_results(self, n_rows: int) -> list[Array]:
        """Return an uninitialised array (n_rows, C) for each of `result_dtypes`."""
        return [np.empty((n_rows, self.forest.n_outputs), dtype) for dtype in self.result_dtypes]

    def leaf_dtype(self, name: Output) -> str:
        """Return the dtype of leaf numbers if `name` is "apply", else of leaf values."""
        return "int32" if name == "apply" else self.forest.sum_dtype

    def prepare_rows(self, function: BoundFunction, rows: Array) -> Array:
        """Return cleaned rows, with membership columns if the function takes them."""
        forest = self.forest
        return (forest.prepare_rows if function.takes_memberships else forest.clean_rows)(rows)

    @is_waited_for
    def run(
        self, function: BoundFunction, rows: Array, outputs: Sequence[Array], threads: int
    ) -> None:
        """Compute the results of some rows into `outputs`.

        Args:
            function: the function to call.
            rows: (R, row_width), from `to_rows`; they are cleaned here.
            outputs: arrays with R rows each, to write into.
            threads: most threads to share the rows.
        """
        n_rows = len(rows)
        if not n_rows:
            return
        step = self.max_rows_with_memberships if function.takes_memberships else n_rows
        for begin in range(0, n_rows, step):
            part = slice(begin, begin + step)
            ready = writable_view(self.prepare_rows(function, rows[part]))
            arguments = (ready, *function.model, *(array[part] for array in outputs))
            if threads > 1 and function.is_divided(n_rows):
                _run_parallel(function, arguments, threads)
            else:
                function.serial(*arguments)


def _run_parallel(function: BoundFunction, arguments: tuple[Any, ...], threads: int) -> None:
    """Run a function with helper threads; without, if another call has them and order is kept."""
    helpers = min(threads, available_cores()) - 1
    if not POOL.run(function.parallel, arguments, helpers, waits=not function.keeps_order):
        function.serial(*arguments)


def copy_to_lines(array: Array) -> Array:
    """Return a copy aligned to a cache line."""
    memory = np.empty(array.nbytes + LINE_BYTES, np.uint8)
    begin = -memory.ctypes.data % LINE_BYTES
    copied = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied
