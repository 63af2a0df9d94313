"""One model on two machines: small batches on the CPU, large ones on the GPU.

takes: two Predictors of a model, a number of rows; gives: predictions of one of them.

The GPU pays from some number of rows on, below which the launches take longer than the walks:
SilvanForge's authors put it at about 100. `tune` and the benchmarks tell it for a model.
"""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ..gpu_runtime import dlpack
from .predictor import Predictor

ROWS = 100
"""The number of rows that SilvanForge's authors name."""

METHODS = (
    *("predict", "predict_value", "predict_proba", "predict_margin", "predict_class"),
    *("apply", "predict_per_tree", "tolerance"),
)
"""What is asked of the predictor that the number of rows chooses."""


class Crossover:
    """Two predictors of a model, of which the number of rows chooses one.

    It has the methods `METHODS` of a Predictor, with their arguments. Rows that lie on a GPU stay
    there. Margins of both have the same bits if both are exact.

    Attributes:
        cpu: serves batches of fewer rows.
        gpu: serves batches of `rows` rows and more, and all rows on the GPU.
        rows: the number.
    """

    def __init__(self, cpu: Predictor, gpu: Predictor, rows: int = ROWS) -> None:
        """Join two predictors.

        Args:
            cpu: a predictor for a CPU, from `build`.
            gpu: one of the same model for a GPU.
            rows: the smallest batch for the GPU, from 0 on.

        Raises:
            InputError: they are no such predictors, or of two models; no such number.
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
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0:
            raise InputError(f"Crossover: argument 'rows': expected 0 or more, got {rows!r}")
        self.cpu, self.gpu, self.rows = cpu, gpu, rows

    def choose(self, rows: Any) -> Predictor:
        """Return the predictor that serves some rows."""
        if dlpack.device_of(rows)[0] in dlpack.KINDS.values():
            return self.gpu
        shape = getattr(rows, "shape", None)
        count = shape[0] if shape else len(rows)
        return self.gpu if count >= self.rows else self.cpu

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(f"'Crossover' has no attribute {name!r}")

        def method(rows: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(self.choose(rows), name)(rows, *args, **kwargs)

        return method

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *METHODS]

    def __repr__(self) -> str:
        return f"<Crossover at {self.rows} rows: {self.cpu!r}, {self.gpu!r}>"
