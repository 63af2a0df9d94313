"""Approximate contributions of a predictor, as XGBoost's `approx_contribs` gives them.

takes: Functions, rows; gives: contributions, float32, with XGBoost's bits.

The function "apply" finds the leaves, and code that is the same for all models adds up what they
add. A process and the user's cache keep that code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsupportedModel
from ..forest import Array
from ..forest.contributions.approximate import make_tables
from ..runtime import Library
from ..runtime.gpu import ModelArray
from ..runtime.threads import check_n_jobs
from ..runtime.threads.pool import POOL
from ..schedule_prims.batches import PARALLEL
from ..system.cores import available_cores
from ..system.late import import_late
from ..system.process.ending import is_waited_for
from .functions import AddressTable, Functions
from .inputs import to_rows

if TYPE_CHECKING:
    from .. import compiler
    from ..tir_gen import approximate_contributions as emission
else:
    compiler = import_late("tvm_forest.compiler")
    emission = import_late("tvm_forest.tir_gen.approximate_contributions")

NAME = "approximation"

MOST_LEAVES = 1 << 20
"""Most leaves that are looked up together, counted over rows and trees: they fit a cache."""

MOST_LEAVES_ALONE = 1 << 15
"""Largest number of leaves of a call for which one thread is used by default."""


class Approximation:
    """The tables of a model, and the code that adds up what its leaves add."""

    def __init__(self, functions: Functions) -> None:
        """Compute the tables of a model.

        Args:
            functions: functions of the model, one of which finds the leaves.

        Raises:
            UnsupportedModel: see `make_tables`; or the target is a GPU or another machine.
        """
        target = functions.target
        if target.kind != "llvm" or target.is_elsewhere:
            raise UnsupportedModel(
                f"predict_contributions: argument 'approximate': {target.to_dict()}: only the CPU "
                "at hand adds them up; build for the target 'llvm'"
            )
        *arrays, self._expected = make_tables(functions.forest)
        self._functions = functions
        self._table = AddressTable([ModelArray(x) for x in arrays])

    @is_waited_for
    def compute(self, rows: Any, n_jobs: int | None) -> Array:
        """Return approximate contributions, float32 (R, C, F + 1), the expected margin last.

        Raises:
            InputError: rows or n_jobs of the wrong kind, see `Predictor.predict`.
        """
        if n_jobs is not None:
            check_n_jobs("predict_contributions", n_jobs)
        functions, forest = self._functions, self._functions.forest
        rows, library = to_rows(rows, forest), self._find_library()
        values = np.zeros((len(rows), forest.n_outputs, forest.row_width + 1), np.float32)
        step = max(64, MOST_LEAVES // max(1, forest.n_trees) // 64 * 64)
        for begin in range(0, len(rows), step):
            part = slice(begin, begin + step)
            leaves = functions.compute_leaves("apply", rows[part], n_jobs)
            threads = 1 if n_jobs is None and leaves.size <= MOST_LEAVES_ALONE else n_jobs or -1
            cores = available_cores()
            helpers = (cores if threads == -1 else min(threads, cores)) - 1
            arguments = (leaves, self._table, values[part].reshape(len(leaves), -1))
            if not helpers or not POOL.run(library[NAME + PARALLEL], arguments, helpers, False):
                library[NAME](*arguments)
        values[:, :, -1] = self._expected
        return values

    def _find_library(self) -> Library:
        def compile() -> Library:
            emitted, arrays = emission.emit_approximation(), len(emission.MODEL)
            return compiler.compile_shared(NAME, emitted, arrays, self._functions.target)

        return self._functions.find_shared(NAME, compile)
