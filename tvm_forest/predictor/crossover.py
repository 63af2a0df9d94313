"""One model on a CPU and a GPU: small batches on the CPU, large ones on the GPU.

takes: two Predictors of a model, a number of rows; gives: predictions by one of them.

The GPU pays from some batch size on; below it, launches take longer than walks. SilvanForge's
authors put this size at about 100. `measure` finds it for a model on this machine.
"""

from __future__ import annotations

import contextlib
import os
import time
from statistics import median
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ..errors import DeviceError, InputError
from ..forest import Array, Forest
from ..forest.probe_rows import typical_rows
from ..runtime.gpu import dlpack
from ..system import archive
from ..system.late import import_late
from ..target import REAL_GPUS, Target
from .building import build, plan
from .predictor import Predictor

if TYPE_CHECKING:
    from . import saving
    from .saving import Source
else:
    saving = import_late("tvm_forest.predictor.saving")

ROWS = 100
"""The batch size that SilvanForge's authors name."""

METHODS = (
    *("predict", "predict_value", "predict_proba", "predict_margin", "predict_class"),
    *("apply", "predict_per_tree", "tolerance"),
)
"""Methods that are forwarded to the predictor chosen by the number of rows."""

MEASURED = tuple(1 << power for power in range(18))
"""Batch sizes at which both predictors are timed; the last keeps every GPU busy."""
MOST_BYTES = 256 << 20
"""Most bytes of random rows for timing; wide models get fewer rows."""
CALLS = 7
"""Timed calls per size; an untimed call before them compiles code and copies the model."""


class Crossover:
    """Two predictors of a model; the number of rows decides which one is used.

    It has those methods of a Predictor that `METHODS` lists. Rows that lie on a GPU stay
    there. Margins of both have the same bits if both are exact. `tvm_forest.build` makes one of a
    model and two targets, such as `["llvm", "cuda"]`.

    Attributes:
        cpu: serves batches of fewer rows.
        gpu: serves batches of at least `rows` rows, and all rows that are on the GPU.
        rows: smallest batch for the GPU.
    """

    def __init__(self, cpu: Predictor, gpu: Predictor, rows: int = ROWS) -> None:
        """Combine two predictors.

        Args:
            cpu: a predictor for a CPU, from `build`.
            gpu: one of the same model for a GPU.
            rows: the smallest batch for the GPU, from 0 on.

        Raises:
            InputError: these are not such predictors, or of different models, or they refuse the
                categories of different columns; or an invalid number.
        """
        for name, given, on_gpu in (("cpu", cpu, False), ("gpu", gpu, True)):
            if not isinstance(given, Predictor) or given.target.on_gpu != on_gpu:
                got = given.target.kind if isinstance(given, Predictor) else type(given).__name__
                kind = "GPU" if on_gpu else "CPU"
                raise InputError(
                    f"Crossover: argument '{name}': expected a Predictor for a {kind}, got {got}; "
                    "make one with tvm_forest.build"
                )
        if cpu.signature != gpu.signature:
            raise InputError(
                f"Crossover: argument 'gpu': {gpu!r} is of another model than {cpu!r}; build both "
                "of one model"
            )
        refused = [sorted(x.forest.refuses_unseen) for x in (cpu, gpu)]
        if refused[0] != refused[1]:
            raise InputError(
                f"Crossover: argument 'gpu': it refuses unseen categories of columns {refused[1]}, "
                f"and 'cpu' those of {refused[0]}; build both with the same 'refuse_unseen'"
            )
        if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 0:
            raise InputError(f"Crossover: argument 'rows': expected 0 or more, got {rows!r}")
        self.cpu, self.gpu, self.rows = cpu, gpu, int(rows)

    def measure(self) -> int:
        """Time both on host rows, and set the smallest batch for which the GPU is faster.

        Takes some tenths of a second; other work on the machine disturbs it.

        Returns:
            The new value of `rows`; twice the largest batch tried if the CPU is faster for it.

        Raises:
            DeviceError: the GPU cannot be used.
            InputError: the model refuses random rows, since it has categories as texts or was built
                with `refuse_unseen`.

        Examples:
            >>> both = tvm_forest.build(model, ["llvm", "cuda"])
            >>> both.measure()  # doctest: +SKIP
            256
        """
        drawn = self._draw_rows()
        counts = [count for count in MEASURED if count <= len(drawn)]
        rows, ahead = 2 * counts[-1], 0
        for count in counts:
            batch = drawn[:count].copy()
            faster = _time_calls(self.gpu, batch) < _time_calls(self.cpu, batch)
            rows, ahead = (rows, 0) if not faster else (count if not ahead else rows, ahead + 1)
            if ahead == 2:  # a single size may be chance
                break
        self.rows = rows if ahead else 2 * counts[-1]
        return self.rows

    def _draw_rows(self) -> Array:
        """Return random rows for timing, as many as the largest of `MEASURED` if memory allows.

        Raises:
            InputError: the model refuses such rows.
        """
        forest = self.cpu.forest
        fit = MOST_BYTES // (forest.row_width * np.dtype(forest.row_dtype).itemsize or 1)
        drawn = typical_rows(forest, min(MEASURED[-1], max(1, fit)))
        try:
            self.cpu.predict(drawn)
        except InputError as error:
            what = f"rows drawn to be timed are none of this model's ({error})"
            raise InputError(f"Crossover.measure: {what}; set the attribute 'rows'") from None
        return drawn

    def save(self, file: str | os.PathLike[str] | BinaryIO) -> None:
        """Write both predictors and the number of rows into one file for `Crossover.load`.

        Raises:
            InputError, UnsupportedModel, BuildError: see `Predictor.save`.

        Examples:
            >>> tvm_forest.Crossover(predictor, on_gpu, rows=64).save("both.tvmf")
            >>> tvm_forest.Crossover.load("both.tvmf").rows
            64
        """
        saving.save(file, self._to_bytes)

    def _to_bytes(self) -> bytes:
        manifest = {**saving.describe(self.cpu), "kind": saving.PAIR, "rows": self.rows}
        parts = {"cpu.tvmf": saving.to_bytes(self.cpu), "gpu.tvmf": saving.to_bytes(self.gpu)}
        return archive.pack(archive.Archive(manifest, parts))

    @classmethod
    def load(cls, file: Source, *, recompile: bool = False) -> Crossover:
        """Read a file that `save` wrote.

        Args:
            file, recompile: see `tvm_forest.load_predictor`.

        Raises:
            ModelFormatError, BuildError, InputError: see `tvm_forest.load_predictor`.

        Examples:
            >>> tvm_forest.Crossover(predictor, on_gpu).save("pair.tvmf")
            >>> tvm_forest.Crossover.load("pair.tvmf").rows
            100
        """
        data, where = saving.read(file, "Crossover.load: argument 'file'")
        manifest, parts = archive.unpack(data, where)
        saving.check_manifest(manifest, where, None, saving.PAIR)
        with saving.refuse_unexpected(where):
            cpu, gpu = (
                saving.from_bytes(bytes(parts[name]), where, recompile=recompile)
                for name in ("cpu.tvmf", "gpu.tvmf")
            )
            return cls(cpu, gpu, manifest["rows"])

    def choose(self, rows: Any) -> Predictor:
        """Return the predictor that is used for these rows.

        Calls with `which` do not ask this, and always use the one for the CPU.

        Raises:
            InputError: only one of the two was updated to another model.

        Examples:
            >>> tvm_forest.Crossover(predictor, on_gpu, rows=64).choose(rows[:63]) is predictor
            True
        """
        if self.cpu.signature != self.gpu.signature:
            raise InputError(
                "Crossover: one of its predictors was updated to another model; update both `cpu` "
                "and `gpu`"
            )
        if dlpack.device_of(rows)[0] in dlpack.KINDS.values():
            return self.gpu
        shape = getattr(rows, "shape", None)
        try:
            count = shape[0] if shape else len(rows)
        except TypeError:  # not rows; the predictor raises the error
            return self.cpu
        return self.gpu if count >= self.rows else self.cpu

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:  # pickle looks up some, too
            raise AttributeError(f"'Crossover' has no attribute {name!r}")

        def method(rows: Any, *args: Any, **kwargs: Any) -> Any:
            chosen = self.cpu if "which" in kwargs else self.choose(rows)  # GPUs do not take it
            return getattr(chosen, name)(rows, *args, **kwargs)

        return method

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *METHODS]

    def __repr__(self) -> str:
        return f"<Crossover at {self.rows} rows: {self.cpu!r}, {self.gpu!r}>"


def build_both(forest: Forest, targets: list[Target], exact: bool, n_jobs: int | None) -> Crossover:
    """Build a model for a CPU and a GPU, and time both if a GPU is present.

    Raises:
        InputError: the targets are not one CPU and one GPU.
        ScheduleError, BuildError: see `tvm_forest.build`.
    """
    targets = sorted(targets, key=lambda target: target.on_gpu)
    if [target.on_gpu for target in targets] != [False, True]:
        what = f"expected one for a CPU and one for a GPU, got {[x.kind for x in targets]}"
        raise InputError(f"build: argument 'target': {what}; give ['llvm', 'cuda']")
    cpu, gpu = (build(plan(forest, None, target, exact=exact)) for target in targets)
    cpu.n_jobs = n_jobs
    both = Crossover(cpu, gpu)
    if gpu.target.kind in REAL_GPUS:
        with contextlib.suppress(DeviceError, InputError):
            both.measure()
    return both


def _time_calls(predictor: Predictor, rows: Any) -> float:
    """Return the median seconds of a call, after an untimed one."""
    predictor.predict(rows)
    seconds = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        predictor.predict(rows)
        seconds.append(time.perf_counter() - begin)
    return median(seconds)
