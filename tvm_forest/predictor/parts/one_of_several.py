"""Predicts each row by one of several models: rows are grouped by model.

takes: Functions of a forest of several outputs, rows, the number of an output for each row; gives:
the values of these outputs.

    which = [2 0 2 1]    -->    row 1 by output 0, row 3 by output 1, rows 0 and 2 by output 2

One function serves all outputs. Trees are stored output by output, and the function takes the first
tree and the number of trees as arguments, so another output needs no other code.

    trees         a b c | d e | f g h i         of the outputs 0, 1, 2
    of output 1         ^ 2 trees from here

Native code calls it for one range of rows after the other (`runtime/threads/ranges.ll`), for a call
from Python takes as long as the walks of ten rows.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...errors import InputError, UnsupportedModel
from ...forest import Array, Forest, choose_labels
from ...forest.rewrites.ordering import take_trees
from ...layouts import ANY_FOREST, WORD_NODES
from ...layouts.laying_out import LaidFunction, lay_out
from ...layouts.laying_out.request import BuildRequest
from ...runtime.gpu import ModelArray
from ...runtime.results import SIZES, SUMS, link_arrays
from ...runtime.threads.pool import POOL
from ...schedule_prims import Schedule
from ...schedule_prims.batches import name_functions
from ...search.layout_fit import fitting_layouts
from ...search.workload import Workload
from ...system.process.ending import is_waited_for
from ...target import Target
from ..compiling import compile_or_load
from ..few_rows.builtin import load_own_code
from ..few_rows.small_batches import MARGIN, squeeze
from ..functions import AddressTable, Functions
from ..inputs import to_rows, writable_view
from ..inputs.checks import as_array

PER_TREE = ("offset", "root", "depth")
"""Arrays of the layouts `WORD_NODES` and `ANY_FOREST` with an entry for each tree."""

WALKS = 16
"""Number of interleaved walks: one row in several trees, or several rows in one tree."""

MANY_ROWS = 8
"""Group size from which rows are interleaved, not trees."""

FEW_RANGES = 4
"""Outputs of a call up to which calls from Python take less time than to write down a plan."""

_OF_A_ROW = ("softmax", "sorted", "variance")
"""Suffixes of links whose values depend on all margins of a row."""


class OneOfSeveral:
    """Predicts one output per row.

    Attributes:
        forest: a forest of one output, with the trees of all outputs.
        n_outputs: number of outputs to choose from.
    """

    def __init__(self, functions: Functions) -> None:
        """Compile the functions for groups of few and of many rows, or load them from the cache.

        Args:
            functions: functions of the model with all outputs.

        Raises:
            UnsupportedModel: the outputs cannot be computed one by one, or are for a GPU.
        """
        several = functions.forest
        _check(functions.request)
        self.n_outputs = several.n_outputs
        self.forest, first = _put_in_a_line(several)
        plan = BuildRequest.of(self.forest, _make_schedules(self.forest), functions.target)
        self._functions = Functions(*compile_or_load(plan))
        places = [slice(*ends) for ends in pairwise(first)]
        ends = {
            "base": functions.to_tensor(several.base_score.astype(several.base_dtype)).array,
            SIZES: functions.to_tensor(np.diff(first).astype(np.int64)).array,
        }
        laid = {x.name: x for x in lay_out(plan).functions if isinstance(x, LaidFunction)}
        self._tables = dict[int, list[AddressTable]]()
        for smallest, name in name_functions(plan.schedules).items():
            names = [*laid[name].packed.read_by(SUMS), "base", *link_arrays(several), SIZES]
            tensors = self._functions.arguments[name]
            arrays = {k: x.array for k, x in zip(names, tensors, strict=True)} | ends
            self._tables[smallest] = [
                AddressTable([ModelArray(x) for x in _take_output(arrays, output, trees)])
                for output, trees in enumerate(places)
            ]
        self._codes = np.array(
            [x.serial.__chandle__() for x in self._functions.for_batches], np.uint64
        )
        self._addresses = np.array(
            [[table.value for table in tables] for tables in self._tables.values()], np.uint64
        )
        self._call_ranges = load_own_code(self._functions, POOL.load_ranges)

    @is_waited_for
    def predict(self, rows: Any, which: Any, result: int | None = None) -> Array:
        """Return the result of the output `which` for each row, (R,), in the order of rows.

        Args:
            rows: see `Predictor.predict`.
            which: (R,), numbers of outputs, from 0.
            result: VALUE, MARGIN, or None for what `Predictor.predict` gives, maybe labels.

        Raises:
            InputError: rows of the wrong kind, or `which` has no valid output number for each row.
        """
        functions, array = self._functions, to_rows(rows, self.forest)
        wanted = _read_numbers(which, len(array), self.n_outputs)
        order = np.argsort(wanted, kind="stable")
        results, grow = functions.new_results(len(array)), functions.for_batches[0]
        step = functions.max_rows_with_memberships if grow.takes_memberships else len(array)
        for begin in range(0, len(array), max(1, step)):
            places, end = order[begin : begin + step], begin + step
            part = functions.prepare_rows(grow, np.take(array, places, axis=0))
            counts = np.bincount(wanted[places], minlength=self.n_outputs)
            self._run(part, counts, [x[begin:end] for x in results])
        margin, value = results[functions.margin_place], results[-1]
        gives_labels = self.forest.gives_labels and result is None
        of_rows = margin if result == MARGIN else value
        chosen = choose_labels(self.forest, margin, value) if gives_labels else squeeze(of_rows)
        found = np.empty_like(chosen)
        found[order] = chosen
        return found

    def _run(self, rows: Array, counts: Array, results: list[Array]) -> None:
        """Compute the results of rows that are sorted by the number of their output.

        Args:
            rows: (R, F), from `Functions.prepare_rows`.
            counts: (n_outputs,), how many of the rows belong to each output.
            results: arrays (R, 1) to write into.
        """
        outputs = counts.nonzero()[0]
        sizes = counts[outputs]
        if len(outputs) > FEW_RANGES and self._run_natively(rows, outputs, sizes, results):
            return
        begin = 0
        for output, size in zip(outputs.tolist(), sizes.tolist(), strict=True):
            table = self._tables[MANY_ROWS if size >= MANY_ROWS else 1][output]
            part, places = rows[begin : begin + size], [x[begin : begin + size] for x in results]
            self._functions.for_batch(size).serial(writable_view(part), table, *places)
            begin += size

    def _run_natively(
        self, rows: Array, outputs: Array, sizes: Array, results: list[Array]
    ) -> bool:
        """Do what `_run` does by one native call; return False if that is impossible or fails.

        Args:
            rows, results: see `_run`.
            outputs: numbers of the outputs that rows ask for, ascending.
            sizes: how many of the rows belong to each of these outputs.
        """
        if self._call_ranges is None:
            return False
        kinds = (sizes >= MANY_ROWS).astype(np.intp)
        rows = np.ascontiguousarray(rows)
        ranges, width = np.empty((len(sizes), 3), np.uint64), rows.shape[1]
        ranges[:, 0], ranges[:, 1] = sizes, self._codes[kinds]
        ranges[:, 2] = self._addresses[kinds, outputs]
        plan = [len(ranges), ranges.ctypes.data, rows.ctypes.data, 8 * rows.itemsize, width]
        plan += [width, 1, 1, 1, len(results)]  # steps, see `ranges.ll`
        plan += [word for x in results for word in (x.ctypes.data, 8 * x.itemsize)]
        words = np.array(plan, np.uint64)
        return self._call_ranges(words.ctypes.data) == 0


def _check(request: BuildRequest) -> None:
    """Refuse a forest whose outputs cannot be computed one by one.

    Raises:
        UnsupportedModel: they cannot; the message gives the reason.
    """
    forest = request.forest
    if forest.n_outputs == 1:
        reason = "it has one output"
    elif forest.has_vectors:
        reason = "its leaves hold values for all outputs"
    elif forest.link.endswith(_OF_A_ROW) or forest.class_rule not in ("none", "half", "cut"):
        reason = f"its values are made of all margins of a row ({forest.link})"
    elif forest.aggregate == "average":
        reason = "it averages, and the numbers of trees are in its code"
    elif request.target.on_gpu:
        reason = f"it is for a GPU ({request.target.kind})"
    else:
        return
    raise UnsupportedModel(
        f"predict: argument 'which': '{forest.source}' cannot choose an output for each row, since "
        f"{reason}; use predict(rows), which gives all outputs"
    )


def _put_in_a_line(forest: Forest) -> tuple[Forest, list[int]]:
    """Return a forest of one output that has the trees of all outputs, output by output.

    Returns:
        The forest, and the first tree of each output, followed by the number of trees.
    """
    known = np.flatnonzero(forest.tree_id >= 0)
    order = known[np.lexsort((forest.tree_id[known], forest.tree_class[known]))]
    first = np.searchsorted(forest.tree_class[order], np.arange(forest.n_outputs + 1)).tolist()
    line = replace(
        take_trees(forest, order),
        tree_class=np.zeros(len(order), np.int32),
        tree_id=np.arange(len(order), dtype=np.int32),
        tree_round=None,
        n_rounds=len(order),
        base_score=forest.base_score[:1],
        targets=(),
    )
    return line, first


def _make_schedules(forest: Forest) -> dict[int, Schedule]:
    """Return schedules for groups of few and of many rows, by the smallest size of a group.

    They walk hop by hop, and serve any number of trees.
    """
    work = Workload.of(forest, Target())
    layout = WORD_NODES if WORD_NODES in fitting_layouts(work) else ANY_FOREST
    start = work.start.represent_as(layout)
    by_rows = start.reorder("tree", "batch").interleave("batch", WALKS)
    return {1: start.interleave("tree", WALKS), MANY_ROWS: by_rows}


def _take_output(arrays: dict[str, Array], output: int, trees: slice) -> list[Array]:
    """Return the arguments for one output, in order: of arrays per tree, the part of its trees."""
    parts = dict.fromkeys(PER_TREE, trees) | dict.fromkeys(
        ("base", SIZES), slice(output, output + 1)
    )
    return [array[parts[name]] if name in parts else array for name, array in arrays.items()]


def _read_numbers(which: Any, n_rows: int, n_outputs: int) -> Array:
    """Check the argument `which`, the number of an output for each row, and return it as (R,).

    Numpy sorts 100,000 numbers of 16 bits in 0.4 ms, and of 64 bits in 9.

    Raises:
        InputError: they are not valid, or not as many as rows.
    """
    numbers = as_array(which)
    numbers = numbers.astype(np.int64) if not numbers.size else numbers  # [] is of float64
    if numbers.dtype.kind not in "iu" or numbers.shape != (n_rows,):
        kind = "a masked array" if isinstance(which, np.ma.MaskedArray) else "an array"
        raise InputError(
            f"predict: argument 'which': expected {n_rows} whole numbers, one for each row, got "
            f"{kind} of {numbers.dtype} of shape {numbers.shape}"
        )
    if n_rows and not (0 <= numbers.min() and numbers.max() < n_outputs):
        row = int(np.argmax((numbers < 0) | (numbers >= n_outputs)))
        raise InputError(
            f"predict: argument 'which': row {row} asks for number {numbers[row]}; the outputs "
            f"have the numbers 0 to {n_outputs - 1}"
        )
    return numbers.astype(np.uint16 if n_outputs <= 1 << 16 else np.int64)
