"""Predictors that start before their code is compiled.

takes: BuildRequest; gives: a Predictor that uses the reference walk, and switches to compiled code
between two calls.

    build_later --> Predictor --rows--> ReferenceFunctions --> Forest.predict_reference
                        |
                       Job --thread--> Compiling, a process --code--> the Predictor is switched
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import Any

import numpy as np

from ...errors import BuildError, ForestError, InputError
from ...forest import Array
from ...forest.c_functions import apply_c_function
from ...layouts.laying_out.request import BuildRequest
from ...runtime.results import Output, columns_of_trees, result_names
from ...runtime.threads import check_n_jobs
from ...runtime.threads.by_batch import ByBatch
from ...system.process.locks import make_lock
from ..building import to_predictor
from ..compiling import are_ours, compile_or_load, find_known
from ..functions import Functions
from ..inputs import to_rows
from ..predictor import Predictor
from .child import Compiling

LOG = logging.getLogger(__name__)

KINDS = ("llvm", "simt")
"""Kinds of targets whose rows are on the host, so that the reference walk can be used."""

PART = 1 << 20
"""Rows times trees of a block of the reference walk; their leaves take some megabytes."""

MOST_HOPS = 1 << 25
"""Hops of a batch from which it waits for compiled code, as numpy would take as long."""


def build_later(request: BuildRequest) -> Predictor:
    """Return a predictor at once; its code is compiled in the background.

    Raises:
        ScheduleError: a schedule does not fit the machine.
        InputError: the target has no reference walk.
    """
    target = request.target
    if target.kind not in KINDS or target.is_elsewhere:
        raise InputError(
            f"build: argument 'wait': False is for the CPU at hand, the target is "
            f"{target.to_dict()}; leave it out"
        )
    request.check_machine()
    known = find_known(request)
    if known is not None:
        return to_predictor(*known)
    predictor = Predictor.__new__(Predictor)
    job = Job(request, predictor)
    functions = ReferenceFunctions(request, job)
    predictor._serve(functions, columns_of_trees(request.forest), max_small_batch=0)
    predictor._job = job
    job.begin()
    return predictor


class Job:
    """A compilation that a predictor waits for.

    Only the predictor and its calls refer to a job; when these are gone, or have another model, the
    process is ended.
    """

    def __init__(self, request: BuildRequest, owner: Predictor) -> None:
        self._request, self._owner = request, weakref.ref(owner)
        self._made: Predictor | None = None
        self._error: ForestError | None = None
        self._child: Compiling | None = None
        self._lock = make_lock()

    def begin(self) -> None:
        """Start to compile: in a process, or on a thread if no process can be used."""
        self._pid, self._ended = os.getpid(), threading.Event()
        compiles = compile_or_load
        if _travels(self._request):
            try:
                self._child = Compiling()
            except OSError as error:
                LOG.info("build: a thread compiles, for no process can be started: %s", error)
            else:
                weakref.finalize(self, self._child.end)  # also at the end of the program
                compiles = self._child.compile
        arguments = (weakref.ref(self), self._request, compiles)
        threading.Thread(target=_follow, args=arguments, daemon=True).start()

    def find(self) -> Predictor | None:
        """Return the predictor with compiled code; None if there is none yet."""
        if self._pid != os.getpid():  # after a fork, the compiling thread exists in the parent only
            with self._lock:
                if self._pid != os.getpid() and self._made is None and self._error is None:
                    self.begin()
        return self._made

    def wait(self, timeout: float | None = None) -> Predictor | None:
        """Wait for the predictor with compiled code; None after the timeout.

        Raises:
            ForestError: the model cannot be compiled.
        """
        if self.find() is None:
            self._ended.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._made

    def end(self, made: Predictor | ForestError) -> None:
        """Switch the owner to the compiled predictor, or record the error; wake waiting threads."""
        if isinstance(made, Predictor):
            self._made, owner = made, self._owner()
            if owner is not None:
                owner._adopt(self, made)
        elif self._child is None or not self._child.is_ended:
            self._error = made
            LOG.error("build: rows go on through the reference walk: %s", made)
        self._ended.set()


def _follow(job: weakref.ref[Job], request: BuildRequest, compiles: Any) -> None:
    """Compile a request, and pass the result to the job if it still exists."""
    begin = time.perf_counter()
    made: Predictor | ForestError
    try:
        made = to_predictor(*compiles(request))
    except ForestError as error:
        made = error
    except Exception as error:  # our fault; without an error, `wait` would never end
        made = BuildError(f"build: {type(error).__name__}: {error}; leave out 'wait' to see where")
    waiting = job()
    if waiting is not None:
        if isinstance(made, Predictor):
            LOG.info("build: compiled code is there after %.2f s", time.perf_counter() - begin)
        waiting.end(made)


def _travels(request: BuildRequest) -> bool:
    """Return whether a request can be pickled to another process."""
    labels = request.forest.labels
    objects = labels if labels is not None and labels.dtype == object else ()
    return are_ours(request) and all(isinstance(label, str) for label in objects)


class ReferenceFunctions(Functions):
    """Functions that use numpy's reference walk until compiled ones are ready."""

    def __init__(self, request: BuildRequest, job: Job) -> None:
        forest = request.forest
        self.request, self.forest, self.target = request, forest, request.target
        self.n_places = forest.n_trees * forest.leaf_value.shape[1]
        self._job = job
        steps = int(forest.depths.sum()) + forest.n_trees
        ByBatch.__init__(self, [], [], steps, request.target.cores)
        self._by_name, self.arguments, self.libraries = {}, {}, []  # contributions bind theirs

    def compute_sums(self, rows: Any, n_jobs: int | None) -> tuple[Array, Array]:
        """Return margins and values of rows, as `Functions.compute_sums` does."""
        rows = to_rows(rows, self.forest)
        made = self._find_compiled(len(rows), n_jobs)
        if made is not None:
            return made.compute_sums(rows, n_jobs)
        margin = self._walk("margin", rows, self.forest.n_outputs, self.forest.sum_dtype)
        is_value = "value" not in result_names(self.forest)
        return margin, margin if is_value else self.forest.values_of(margin, apply_c_function)

    def compute_leaves(self, name: Output, rows: Any, n_jobs: int | None) -> Array:
        """Return the numbers or values of leaves, as `Functions.compute_leaves` does."""
        rows = to_rows(rows, self.forest)
        if n_jobs is not None:
            check_n_jobs("predict", n_jobs)
        return self._walk(name, rows, self.n_places, self.leaf_dtype(name))

    def _walk(self, output: Any, rows: Array, width: int, dtype: str) -> Array:
        """Return (R, width), an output of the reference walk, computed block by block."""
        results = np.empty((len(rows), width), dtype)
        step = max(1, PART // max(1, self.n_places))
        for begin in range(0, len(rows), step):
            part = slice(begin, begin + step)
            with np.errstate(all="ignore"):
                found = self.forest.predict_reference(rows[part], output)
            found = found.reshape(len(found), -1)
            results[part] = np.repeat(found, width // found.shape[1], axis=1)
        return results

    def _find_compiled(self, n_rows: int, n_jobs: int | None) -> Functions | None:
        """Return the compiled functions; None if they are not ready, or cannot be compiled.

        For a batch that would take the reference walk long, this waits until they are ready.

        Raises:
            InputError: n_jobs, which is only checked, is of the wrong kind.
        """
        if n_jobs is not None:
            check_n_jobs("predict", n_jobs)
        made = self._job.find()
        if made is None and n_rows * self.steps_per_row > MOST_HOPS:
            try:
                made = self._job.wait()
            except ForestError:  # logged already, and raised by `wait`
                return None
        return None if made is None else made._functions
