"""Compiles and calls tallies: functions that count the samples in the leaves of each row.

takes: LeafSamples, leaves of rows; gives: counts, means, ranks or scores for each row.

A tally is compiled when it is first called. Its code is the same for all models, so the process and
the user's cache keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsupportedModel
from ..forest import Array
from ..predictor.functions import AddressTable, Functions
from ..runtime import Library
from ..runtime.gpu import ModelArray
from ..runtime.results import OF_SAMPLES, SHARED
from ..runtime.threads import check_n_jobs
from ..runtime.threads.pool import POOL
from ..schedule_prims.batches import PARALLEL
from ..system.cores import available_cores
from ..system.late import import_late
from ..system.process.ending import is_waited_for
from ..target import Target
from .samples import LeafSamples

if TYPE_CHECKING:
    from .. import compiler
    from ..tir_gen import leaf_samples
else:
    compiler = import_late("tvm_forest.compiler")
    leaf_samples = import_late("tvm_forest.tir_gen.leaf_samples")

RANKS_OF_BLOCK = 256

MOST_LEAVES_ALONE = 85_000
"""Largest number of leaves in a batch, counted over rows and trees, for which one thread is used by
default."""

PARTS_OF_THREAD, MAX_COUNTERS = 4, 1 << 16
"""Into how many parts rows are divided per thread, so that threads end at about the same time; 1 if
a part needs more counters than the second number."""


class Tallies:
    """Runs tallies on the samples of a model."""

    def __init__(self, functions: Functions, samples: LeafSamples) -> None:
        """Keep the samples that tallies read, and the functions of the compiled model.

        Raises:
            UnsupportedModel: the model is for a GPU or another machine.
        """
        check_target(functions.target)
        self.samples, self._functions = samples, functions
        self._tables: dict[tuple[int, bool], AddressTable] = {}

    def run(
        self,
        name: str,
        leaves: Array,
        output: int = 0,
        inputs: tuple[Array, ...] = (),
        n_jobs: int | None = None,
    ) -> list[Array]:
        """Call a tally for rows, and return its results.

        Args:
            name: see `OF_SAMPLES`.
            leaves: int32 (R, T), numbers of the leaves that rows reach.
            output: index of the target whose ranks are read, from 0.
            inputs: float64 (R,) if the tally takes a number per row, then thresholds (R, Q).
            n_jobs: see `Predictor.predict`.

        Returns:
            the results that `OF_SAMPLES` lists: (R,) each, (R, Q) of tallies that take thresholds,
            (R, N) of "proximity".
        """
        shared, n_ranks = name.endswith(SHARED), self.samples.values.shape[1]
        threads = self._count_threads(leaves, n_jobs)
        parts = threads * PARTS_OF_THREAD if threads > 1 and n_ranks <= MAX_COUNTERS else threads
        parts = min(len(leaves), parts)
        counts = np.zeros((parts, n_ranks), "float64" if shared else "int32")
        blocks = np.zeros((parts, -(-n_ranks // RANKS_OF_BLOCK)), "int32")
        shape = inputs[-1].shape if name.startswith("select") else (len(leaves),)
        shape = (len(leaves), n_ranks) if name == "proximity" else shape
        results = [np.zeros(shape, dtype) for dtype in OF_SAMPLES[name].values()]
        if results[0].size:
            table = self._find_table(output, shared)
            self._call(name, threads, (leaves, table, *inputs, counts, blocks, *results))
        return results

    @is_waited_for
    def _call(self, name: str, threads: int, arguments: tuple[Any, ...]) -> None:
        library = self._find_library(name)
        helpers = min(threads, available_cores()) - 1
        if threads == 1 or not POOL.run(library[name + PARALLEL], arguments, helpers, waits=False):
            library[name](*arguments)

    def _count_threads(self, leaves: Array, n_jobs: int | None) -> int:
        if n_jobs is None:
            return self._functions.target.cores if leaves.size > MOST_LEAVES_ALONE else 1
        check_n_jobs("predict_quantiles", n_jobs)
        return self._functions.target.cores if n_jobs == -1 else int(n_jobs)

    def _find_table(self, output: int, shared: bool) -> AddressTable:
        """Return the addresses of the arrays that tallies read for the target `output`.

        With `shared`, one of them has the weight of a sample in each node: 1 / number of samples.
        """
        if (output, shared) not in self._tables:
            samples = self.samples
            shares = np.zeros(1)
            if shared:
                shares = 1 / np.maximum(samples.sizes, 1).astype(np.float64)
            arrays = (
                *(samples.offsets, samples.starts, samples.ranks[output]),
                *(samples.values[output], shares, samples.order),
            )
            self._tables[output, shared] = AddressTable([ModelArray(x) for x in arrays])
        return self._tables[output, shared]

    def _find_library(self, name: str) -> Library:
        target, dtype = self._functions.target, str(self.samples.ranks.dtype)

        def compile() -> Library:
            emitted = leaf_samples.emit_tally(name, dtype)
            return compiler.compile_shared(name, emitted, len(leaf_samples.MODEL), target)

        return self._functions.find_shared(f"{name} of {dtype}", compile)


def check_target(target: Target) -> None:
    """Refuse targets other than the CPU at hand.

    Raises:
        UnsupportedModel: the target is a GPU or another machine.
    """
    if target.kind != "llvm" or target.is_elsewhere:
        raise UnsupportedModel(
            f"build: argument 'target': {target.to_dict()}: quantile forests are for the CPU at "
            "hand; build for the target 'llvm'"
        )
