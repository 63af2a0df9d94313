"""The compiled model.

takes: BuildRequest, Compiled; gives: Predictor.

    Predictor --few rows---> SmallBatches --> Functions: compiled code, bound to the model
              --other rows----------------->
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ..errors import BuildError, UnsupportedModel
from ..forest import Array, choose_labels
from ..forest.structure.facts import ShownAsTable
from ..layouts.laying_out import Compiled
from ..layouts.laying_out.request import BuildRequest
from ..runtime.linked import LinkedLibrary
from ..runtime.threads import FEW_ROWS
from ..schedule_prims.batches import name_functions, select_schedule
from ..system.late import import_late
from ..system.process.ending import is_waited_for
from .class_numbers import ClassMethods, EarlyMethods, to_probabilities
from .contributions import ContributionMethods
from .few_rows.small_batches import MARGIN, VALUE, SmallBatches, squeeze
from .functions import Functions
from .live import LiveMethods
from .parts import PartMethods
from .parts.leaves import LeafMethods
from .parts.rounds import RoundCache
from .source_calls import PROBABILITIES, predict_as_source

if TYPE_CHECKING:
    from .. import compiler
    from . import exporting, saving
else:
    compiler = import_late("tvm_forest.compiler")
    exporting = import_late("tvm_forest.predictor.exporting")
    saving = import_late("tvm_forest.predictor.saving")  # imports this module

Range = tuple[int, int] | None
"""The first boosting round and the one after the last; None for all."""


class Predictor(
    ContributionMethods,
    ClassMethods,
    EarlyMethods,
    LeafMethods,
    PartMethods,
    LiveMethods,
    ShownAsTable,
):
    """A compiled forest. Calls are re-entrant and release the interpreter lock.

    Attributes:
        request: the build request: the model, schedules, target and outputs.
        forest: the model, with its trees in the order of rounds and classes.
        schedule: the schedule of the largest batches.
        schedules: schedule by smallest batch, see `arrange_by_batch`.
        target: the compilation target.
        library: TVM's executable, or a LinkedLibrary, which holds machine code only, if it comes
            from a file or the cache; `source` gives its text. On a GPU, a KernelLibrary.
        columns: (T, W), for each tree of the source model, its columns in results per tree.
        arguments: for each function by name, the arrays of the model that it reads.
        libraries: all compiled libraries, each with the names of its functions.
        model_bytes: size of the arrays that `predict` reads, for all batches together.
        n_jobs: threads of calls that do not give `n_jobs`; None for all cores when a batch is
            large enough and one otherwise, -1 for all cores.
    """

    _functions_class = Functions
    _max_small_batch = FEW_ROWS

    def __init__(self, request: BuildRequest, compiled: Compiled) -> None:
        """Bind the functions of a library to the model's arrays; users call `build`."""
        schedules, functions = request.schedules, self._functions_class(request, compiled)
        self._serve(functions, compiled.columns, self._max_small_batch)
        self.schedules, self.schedule = schedules, schedules[max(schedules)]
        self.library, self.libraries = compiled.library, functions.libraries
        self.arguments = functions.arguments
        sums = name_functions(schedules).values()
        read = {id(x): x.array.nbytes for name in sums for x in functions.arguments[name]}
        self.model_bytes = sum(read.values())

    def _serve(self, functions: Functions, columns: Array, max_small_batch: int) -> None:
        """Set all attributes that do not need compiled code."""
        self._begin()
        self.request = request = functions.request
        self.forest, self.target = request.forest, request.target
        self.columns = columns
        self.n_jobs: int | None = None
        self._functions, self._job = functions, None
        self._small_batches = SmallBatches(functions, max_small_batch)
        self._gives_labels, self._rounds = request.forest.gives_labels, RoundCache()

    def export_library(
        self,
        path: str | os.PathLike[str],
        prefix: str = "tvm_forest_",
        cc: str | Sequence[str] | None = None,
        to: str | None = None,
        contributions: bool = False,
        background: Any = None,
    ) -> None:
        """Write a library with the model, such as "model.so", and a C header, "model.h".

        On a processor that lacks instructions, its functions return an error that names them.

        Args:
            path: ".so" makes a shared library (".dll", ".dylib" or ".wasm" for other systems), ".a"
                a static one, ".o" an object file, ".zip" a package of sources with CMakeLists.txt.
            prefix: beginning of the names of its C functions, with an underscore at its end;
                libraries that are linked into one program need different prefixes.
            cc: command of the C compiler; None for that of the system, a cross compiler or Zig's.
            to: a language, "c", "cpp", "go", "java", "node" or "rust"; `path` is then a folder for
                a package in that language, with the library and tests; see docs/bindings.md.
            contributions, background: whether it has `predict_contributions`, too; rows for that.

        Raises:
            InputError: invalid prefix, suffix, command or background, or no file can be written.
            UnsupportedModel: model or target are not exported, at all or as these arguments ask.
            BuildError, DeviceError: there is no compiler for C or CUDA, or it fails.

        Examples:
            >>> predictor.export_library("model.so")  # doctest: +SKIP
        """
        wishes = prefix, cc, to, contributions, background
        exporting.export_library(self._present or self, path, *wishes)

    def source(self, kind: str = "asm") -> str:
        """Return the source text of the functions that `predict` calls.

        Args:
            kind: "asm" for assembly, "ll" for LLVM IR.

        Raises:
            BuildError: the kind of text is unknown, or TVM cannot make it.

        Examples:
            >>> print(predictor.source("ll"))  # doctest: +SKIP
        """
        if kind not in ("asm", "ll"):
            raise BuildError(f"source: argument 'kind': {kind!r} is not there; use 'asm' or 'll'")
        library = (now := self._present or self).library
        if isinstance(library, LinkedLibrary):  # machine code only, without text
            library = compiler.compile_forest(now.request, anew=True).library
        return str(library.mod.inspect_source(kind))

    def save(self, file: str | os.PathLike[str] | BinaryIO) -> None:
        """Write the predictor to a file, which appears only when it is complete.

        Args:
            file: its path, by convention `<name>.tvmf`, or a binary file object; read it with
                `tvm_forest.load_predictor`.

        Raises:
            InputError: the file cannot be written.
            UnsupportedModel: labels neither strings nor numbers, or code for another machine.
            BuildError: there is no room for temporary files.

        Examples:
            >>> predictor.save("model.tvmf")
        """
        saving.save(file, lambda: saving.to_bytes(self._present or self))

    def __reduce__(self) -> tuple[Callable[[bytes], Predictor], tuple[bytes]]:
        """Support pickle and copy: return `from_bytes` and the bytes that it reads."""
        return saving.from_bytes, (saving.to_bytes(self._present or self),)

    @is_waited_for
    def predict(
        self,
        rows: Any,
        n_jobs: int | None = None,
        iteration_range: Range = None,
        *,
        which: Any = None,
        **as_source: Any,
    ) -> Array:
        """Predict the same as the source object's `predict`.

        Args:
            rows: (R, F), see `inputs.to_rows`; NaN is a missing value.
            n_jobs: threads, see the attribute.
            iteration_range: (begin, end), use the rounds `begin` to `end - 1` only; None and (0, 0)
                for all. An end of 0 is the model's, and to estimators of XGBoost it means all,
                whatever `begin`. See `rounds` for what that costs.
            which: (R,) whole numbers, the output to compute for each row, for example the number of
                its model in a list; None for all outputs. Runs on one thread.
            as_source: arguments of `predict` in the library of the model, with the same meaning.
                XGBoost: output_margin, pred_leaf, pred_contribs, approx_contribs, base_margin
                (values are then within the link's error bound), pred_interactions. LightGBM:
                raw_score, pred_leaf, pred_contrib, start_iteration, num_iteration, pred_early_stop
                (inexact) with its _freq and _margin. Both: validate_features. CatBoost:
                prediction_type, ntree_start, ntree_end, thread_count, verbose, task_type.

        Returns:
            (R,) or (R, C), values, probabilities, or labels where the source object gives labels,
            one for each target. (R,) with `which`.

        Raises:
            InputError: rows, n_jobs or another argument of the wrong kind, or one that the library
                does not have.
            UnsupportedModel: with `which`, the outputs cannot be computed one by one; or an
                argument asks for what the model does not give, such as contributions.

        Examples:
            >>> predictor.predict(rows[::50])
            array([0, 1, 2])
        """
        if as_source:
            now = self._present or self
            return predict_as_source(now, rows, n_jobs, iteration_range, as_source, which=which)
        if which is not None:
            return (self._present or self)._predict_one_of(rows, which, n_jobs, iteration_range)
        if iteration_range is None:
            jobs, few = self.n_jobs if n_jobs is None else n_jobs, self._small_batches
            calls = few.usual if jobs is None else few.find_calls(jobs)
            if self._gives_labels:
                found = few.predict_labels(rows, calls)
            elif (found := calls.values(rows)) is None:
                found = few.predict(rows, VALUE, jobs)
            if found is not None:
                return found
        now = self._present or self
        margin, value = now._sums(rows, n_jobs, iteration_range, on_host=now._gives_labels)
        return choose_labels(now.forest, margin, value) if now._gives_labels else squeeze(value)

    @is_waited_for
    def predict_value(
        self,
        rows: Any,
        n_jobs: int | None = None,
        iteration_range: Range = None,
        *,
        which: Any = None,
    ) -> Array:
        """Predict values: margins after the link function.

        `predict` returns the same, unless it returns labels.

        Args:
            rows, n_jobs, iteration_range, which: see `predict`.

        Returns:
            (R,) or (R, C); (R,) with `which`.

        Raises:
            InputError, UnsupportedModel: see `predict`.

        Examples:
            >>> predictor.predict_value(rows).shape
            (150, 3)
        """
        if which is not None:
            now = self._present or self
            return now._predict_one_of(rows, which, n_jobs, iteration_range, VALUE)
        if iteration_range is None:
            jobs, few = self.n_jobs if n_jobs is None else n_jobs, self._small_batches
            values = (few.usual if jobs is None else few.find_calls(jobs)).values(rows)
            if values is not None:
                return values
        now = self._present or self
        return squeeze(now._sums(rows, n_jobs, iteration_range, on_host=False)[1])

    @is_waited_for
    def predict_proba(
        self, rows: Any, n_jobs: int | None = None, iteration_range: Range = None, **as_source: Any
    ) -> Array | list[Array]:
        """Predict the probability of every class.

        Args:
            rows, n_jobs, iteration_range: see `predict`.
            as_source: arguments that `predict_proba` has in the library of the model, with the
                meaning that they have there. XGBoost: validate_features, base_margin. LightGBM:
                those of `predict`. CatBoost: those of `predict` except prediction_type.

        Returns:
            (R, 2) or (R, C) in the order of the labels. For several targets, (R, C) if each is a
            yes or no, else a list with one such array for each target.

        Raises:
            UnsupportedModel: the model gives no probabilities.
            InputError: see `predict`.

        Examples:
            >>> predictor.predict_proba(rows[:1]).round(2)
            array([[0.83, 0.09, 0.08]], dtype=float32)
        """
        if iteration_range is None and not as_source:
            jobs, few = self.n_jobs if n_jobs is None else n_jobs, self._small_batches
            found = (few.usual if jobs is None else few.find_calls(jobs)).probabilities(rows)
            if found is not None:
                return found
        now = self._present or self
        if not now.gives_probabilities:
            raise UnsupportedModel(
                f"predict_proba: the model '{now.forest.source}' gives no probabilities; "
                "use predict or predict_margin"
            )
        if as_source:
            return predict_as_source(now, rows, n_jobs, iteration_range, as_source, PROBABILITIES)
        joined = now.forest.n_outputs == 1 or bool(now.forest.targets)  # of several columns
        value = now._sums(rows, n_jobs, iteration_range, on_host=joined)[1]
        return to_probabilities(now.forest, value)

    @is_waited_for
    def predict_margin(
        self,
        rows: Any,
        n_jobs: int | None = None,
        iteration_range: Range = None,
        *,
        which: Any = None,
    ) -> Array:
        """Predict raw scores, before the link.

        Args:
            rows, n_jobs, iteration_range, which: see `predict`.

        Returns:
            (R,) or (R, C), or (R,) with `which`; bit-equal to the source library's if the schedule
            keeps the order; for averaging models, averages: LightGBM's sums are `predict(rows,
            raw_score=True)`.

        Raises:
            InputError, UnsupportedModel: see `predict`.

        Examples:
            >>> predictor.predict_margin(rows).shape
            (150, 3)
        """
        if which is not None:
            now = self._present or self
            return now._predict_one_of(rows, which, n_jobs, iteration_range, MARGIN)
        if iteration_range is None:
            jobs, few = self.n_jobs if n_jobs is None else n_jobs, self._small_batches
            margins = (few.usual if jobs is None else few.find_calls(jobs)).margins(rows)
            margins = few.predict(rows, MARGIN, jobs) if margins is None else margins
            if margins is not None:
                return margins
        now = self._present or self
        return squeeze(now._sums(rows, n_jobs, iteration_range, on_host=False)[0])

    def tolerance(self, rows: Any) -> Array:
        """Return a bound on the absolute difference between margins and those of the source model.

        Zero if the schedule keeps the order of additions. Otherwise two sums of the same T + 1
        numbers in any order differ by at most 2 (T + 1) u (|base score| + sum of |leaf values|),
        where u is the unit round-off, 2^-24 for float32.

        Returns:
            (R, C) float64.

        Raises:
            InputError: rows of the wrong kind.

        Examples:
            >>> float(predictor.tolerance(rows).max())  # the schedule keeps the order
            0.0
        """
        now = self._present or self
        forest, columns = now.forest, now.columns
        leaves = now._leaves("per_tree", rows).astype(np.float64)
        leaves = np.abs(leaves.reshape(len(leaves), columns.size))
        total = np.zeros((len(leaves), forest.n_outputs)) + abs(forest.base_score)
        with np.errstate(over="ignore"):
            np.add.at(total.T, columns.ravel() % forest.n_outputs, leaves.T)
        if select_schedule(now.schedules, len(leaves)).keeps_order:
            return np.zeros_like(total)
        return (len(columns) + 1) * np.finfo(forest.sum_dtype).eps * total  # eps is 2 u

    def __repr__(self) -> str:
        now, forest = self._present or self, self.forest
        size = f"{len(now.columns)} trees, {forest.row_width} features"
        return f"<Predictor of {forest.source}: {size}, target {now._describe_target()}>"

    def _describe_target(self) -> str:
        return self.target.kind

    def _sums(
        self, rows: Any, n_jobs: int | None, iteration_range: Range, on_host: bool = True
    ) -> tuple[Array, Array]:
        """Return margins and values, both (R, C); one array if the link is the identity.

        Results for rows on a GPU may stay there unless `on_host`.
        """
        part = self._for_rows(rows)._part(iteration_range)
        jobs = self.n_jobs if n_jobs is None else n_jobs
        sums = part._small_batches.compute_sums(rows, jobs)
        return part._functions.compute_sums(rows, jobs) if sums is None else sums
