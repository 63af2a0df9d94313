"""The compiled functions of a predictor, bound to the arrays of its model.

takes: Compiled, Forest, schedules, Target; gives: BoundFunction by size of batch or by name.
"""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tvm

from ..compiler import Compiled, compile_forest
from ..forest import Array, Forest
from ..layouts.representation import takes_memberships
from ..schedule import Schedule
from ..schedule_prims import batches
from ..target import Target
from ..targets import Library
from ..threads import count_rows_of_a_thread
from ..threads.pool import POOL
from ..tir_gen.canonical import Output

_compile_lock = threading.Lock()
"""Held while a function is compiled that was left out at first."""


class BoundFunction(NamedTuple):
    """A compiled function with the arrays of the model that it reads.

    Attributes:
        serial: the code that runs on the caller's thread.
        parallel: the code that shares its rows or trees out to threads; None if the schedule has no
            parallel loop.
        model: the arguments between the rows and the results.
        rows_per_thread: rows that the parallel loops leave to one thread at a time; 0 if threads
            share out trees as well.
        rows_per_block: rows of a block of bit planes, which takes as long as a full one if it is
            not; 0 if the function has no such blocks.
        takes_memberships: whether rows need membership columns, which numpy appends.
        keeps_order: whether it adds the trees of a row in the order of the model.
    """

    serial: Any
    parallel: Any
    model: tuple[Any, ...]
    rows_per_thread: int
    rows_per_block: int
    takes_memberships: bool
    keeps_order: bool


class AddressTable(ctypes.c_void_p):
    """The addresses of the arrays of a model, in the order in which a function reads them.

    Functions for CPUs take this pointer in place of the arrays, for TVM would check every array at
    every call. The table keeps the arrays alive.
    """

    def __init__(self, tensors: list[Any]) -> None:
        self.arrays = [np.from_dlpack(tensor) for tensor in tensors]
        self.addresses = np.array([array.ctypes.data for array in self.arrays], np.uint64)
        super().__init__(self.addresses.ctypes.data)


class Functions:
    """The functions of a predictor.

    Those that sum up leaves are there from the start. What says which leaves rows reach ("apply")
    and what these add ("per_tree") is compiled when it is asked for first.

    Attributes:
        arguments: for each function by name, the tensors of the model that it reads.
        libraries: what was compiled, in order, each with the names of its functions.
    """

    def __init__(
        self, compiled: Compiled, forest: Forest, schedules: dict[int, Schedule], target: Target
    ) -> None:
        self._forest, self._schedules, self._target = forest, schedules, target
        self._by_name: dict[str, BoundFunction] = {}
        self.arguments: dict[str, list[Any]] = {}
        self.libraries: list[tuple[Library, list[str]]] = []
        self.bind(compiled.library, compiled.arguments)
        names = batches.name_functions(schedules)
        self.smallest_batches = list(names)
        self.for_batches = [self._by_name[name] for name in names.values()]

    def bind(self, library: Library, arrays: dict[str, list[Array]]) -> None:
        """Add the functions of a library; `arrays` are those of the model that each reads."""
        tensors = _tensors_of(arrays, self.to_tensor)
        names = batches.name_functions(self._schedules)
        schedules = {name: self._schedules[smallest] for smallest, name in names.items()}
        for name in arrays:
            sch = schedules.get(name) or batches.select_hop_schedule(self._schedules)
            self._by_name[name] = self._bind_function(library, name, sch, tensors[name])
        self.arguments |= tensors
        self.libraries.append((library, list(arrays)))

    def _bind_function(
        self, library: Library, name: str, sch: Schedule, tensors: list[Any]
    ) -> BoundFunction:
        parallel = [loop for loop in sch.loops() if loop.parallel]
        if parallel:
            POOL.serve(library)
        return BoundFunction(
            library[name],
            library[name + batches.PARALLEL] if parallel else None,
            self.to_arguments(tensors),
            count_rows_of_a_thread(parallel),
            rows_per_block(sch, self._schedules),
            takes_memberships(sch.representation, self._forest),
            sch.keeps_order,
        )

    def to_tensor(self, array: Array) -> Any:
        """Return an array of the model as functions of this target read it."""
        return tvm.runtime.tensor(array)

    def to_arguments(self, tensors: list[Any]) -> tuple[Any, ...]:
        """Return what a function takes for the tensors of the model."""
        return (AddressTable(tensors),)

    def for_batch(self, n_rows: int) -> BoundFunction:
        """Return the function that predicts batches of so many rows."""
        return self.for_batches[max(0, bisect_right(self.smallest_batches, n_rows) - 1)]

    def named(self, name: Output) -> BoundFunction:
        """Return a function by name, compiled if it was left out."""
        if name not in self._by_name:
            with _compile_lock:
                if name not in self._by_name:
                    model = (self._forest, self._schedules, self._target)
                    compiled = compile_forest(*model, outputs=(name,))
                    self.bind(compiled.library, compiled.arguments)
        return self._by_name[name]


def rows_per_block(sch: Schedule, schedules: dict[int, Schedule]) -> int:
    """Return how many rows of a batch go to the function of a schedule together; 0 for any number.

    What a batch has beyond a multiple of a block of bit planes goes to the function of smaller
    batches, unless one of the schedules adds up in another order: results would depend on it.
    """
    return sch.sliced if all(x.keeps_order for x in schedules.values()) else 0


def _tensors_of(
    arrays: dict[str, list[Array]], to_tensor: Callable[[Array], Any]
) -> dict[str, list[Any]]:
    """Make tensors of the arrays of each function; an array that functions share becomes one."""
    distinct = {id(array): array for read in arrays.values() for array in read}
    tensors = {key: to_tensor(array) for key, array in distinct.items()}
    return {name: [tensors[id(array)] for array in read] for name, read in arrays.items()}
