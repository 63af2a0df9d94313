"""The compiled model on a GPU.

takes: KernelLibrary, arrays, Forest; gives: DevicePredictor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compiler import Compiled
from ..errors import InputError
from ..forest import Array
from ..gpu_runtime import dlpack
from ..gpu_runtime.executor import DeviceArray
from ..gpu_runtime.library import KernelFunction, ModelArray
from ..inputs import to_rows
from ..inputs.checks import check_shape
from ..tir_gen.canonical import Output
from .predictor import Predictor, Range, tensors

DEFAULT_STREAM = {"cuda": 1, "rocm": 0}
"""As DLPack numbers it."""


class DevicePredictor(Predictor):
    """A forest compiled for a GPU.

    Rows on the host are copied there, and results back. Rows on the GPU that export DLPack, such as
    those of PyTorch and CuPy, stay there: nobody copies them or waits for them. Results stay there
    as well, as a `DeviceArray` for `torch.from_dlpack` and the like, but for labels and what
    is put together of several columns: these are numpy arrays. Rows that a model wants converted or
    looked at (another dtype, a number that means missing, categories, values that scikit-learn
    refuses) go by way of the host, which waits for them.

    Attributes:
        stream: on which work for rows of the GPU is done, as the driver knows it, such as
            `torch.cuda.current_stream().cuda_stream`; None for the stream that the rows name by
            `__cuda_array_interface__`, else the default one.
    """

    stream: int | None = None

    def source(self, kind: str) -> str:
        """Return the text of the kernels.

        Args:
            kind: that of the target, such as "cuda".

        Raises:
            BuildError: there is no such text.
        """
        text: str = self.library.inspect(kind)
        return text

    def predict(self, rows: Any, n_jobs: int | None = None, iteration_range: Range = None) -> Any:
        """See `Predictor.predict`; a DeviceArray for rows on the GPU, unless these are labels."""
        if not on_device(rows) or self._gives_labels:
            return super().predict(rows, n_jobs, iteration_range)
        return self._sums_there(rows, iteration_range)[-1].squeezed()

    def predict_proba(
        self, rows: Any, n_jobs: int | None = None, iteration_range: Range = None
    ) -> Any:
        """See `Predictor.predict_proba`; a DeviceArray for rows on the GPU, of several columns."""
        several = self.forest.n_outputs > 1 and not self.forest.targets
        if not on_device(rows) or not several or not self.gives_probabilities:
            return super().predict_proba(rows, n_jobs, iteration_range)
        return self._sums_there(rows, iteration_range)[-1]

    def predict_margin(
        self, rows: Any, n_jobs: int | None = None, iteration_range: Range = None
    ) -> Any:
        """See `Predictor.predict_margin`; a DeviceArray for rows on the GPU."""
        if not on_device(rows):
            return super().predict_margin(rows, n_jobs, iteration_range)
        return self._sums_there(rows, iteration_range)[0].squeezed()

    def put(self, rows: Array) -> DeviceArray:
        """Copy (R, F) rows of the host to the GPU, cleaned as `start` wants them."""
        rows = to_rows(rows, self.forest)
        return self._uploaded(rows, self._serves(len(rows)), 0)

    def _uploaded(self, rows: Array, function: Any, stream: int) -> DeviceArray:
        prepare = self.forest.prepared if function.is_wide else self.forest.cleaned
        ready, run = np.ascontiguousarray(prepare(rows)), self.library.executor
        there = DeviceArray(run, ready.shape, ready.dtype, stream)
        run.driver.upload(there.pointer, ready, stream)
        return there

    def start(self, rows: DeviceArray) -> list[DeviceArray]:
        """Start the work for rows of `put`: margins, and values where they differ, both (R, C)."""
        tensor = dlpack.Tensor(rows.pointer, rows.shape, rows.dtype, 0, rows)
        return self._started(tensor, 0)

    # -- rows on the GPU --------------------------------------------------------------------------

    def _sums_there(self, rows: Any, iteration_range: Range) -> list[DeviceArray]:
        """Start the work of margins, and of values where they differ, both (R, C)."""
        if iteration_range is not None and (part := self._part(iteration_range)) is not self:
            return part._sums_there(rows, None)
        return self._started(*self._taken(rows))

    def _started(self, rows: dlpack.Tensor, stream: int) -> list[DeviceArray]:
        shape = (rows.shape[0], self.forest.n_outputs)
        results = [(shape, dtype) for dtype in self._results.values()]
        return _started(self._serves(shape[0]), rows, results, stream)

    def _sums(
        self, rows: Any, n_jobs: int | None, iteration_range: Range = None
    ) -> tuple[Array, Array]:
        if not on_device(rows):
            return super()._sums(rows, n_jobs, iteration_range)
        made = [array.numpy() for array in self._sums_there(rows, iteration_range)]
        return made[0], made[-1]

    def _leaves(
        self, name: Output, dtype: str, rows: Any, n_jobs: int | None, iteration_range: Range = None
    ) -> Array:
        if not on_device(rows):
            return super()._leaves(name, dtype, rows, n_jobs, iteration_range)
        if iteration_range is not None and (part := self._part(iteration_range)) is not self:
            return part._leaves(name, dtype, rows, n_jobs)
        there, stream = self._taken(rows, self._function_of(name))
        results = [((there.shape[0], self.forest.n_trees), np.dtype(dtype))]
        (leaves,) = _started(self._function_of(name), there, results, stream)
        return leaves.numpy()[:, self.columns]

    def _taken(self, rows: Any, function: Any = None) -> tuple[dlpack.Tensor, int]:
        """Return rows on the GPU as a function reads them, and the stream for the work on them."""
        stream = self.stream
        if stream is None:
            named = getattr(rows, "__cuda_array_interface__", None) or {}
            stream = int(named.get("stream") or 0)
        kind, place = self.library.kind, dlpack.device_of(rows)
        wanted = (dlpack.KINDS[kind], self.library.executor.device)
        if place != wanted:
            raise InputError(
                f"predict: argument 'rows': they are on device {place} of DLPack, the model is on "
                f"{wanted} ({kind}); move them, or give 'device' in the target"
            )
        there = dlpack.take(rows, stream or DEFAULT_STREAM[kind])
        stream = 0 if stream == 1 else stream
        check_shape(there.shape, self.forest)
        function, forest = function or self._serves(there.shape[0]), self.forest
        asks = forest.needs_preparation if function.is_wide else forest.needs_cleaning
        if there.dtype == self._row_dtype and not asks and not forest.refuses:
            return there, stream
        here = np.empty(there.shape, there.dtype)
        if here.size:
            self.library.executor.driver.download(here, there.pointer, stream)
        ready = self._uploaded(to_rows(here, forest), function, stream)
        return dlpack.Tensor(ready.pointer, ready.shape, ready.dtype, there.device, ready), stream

    def _part(self, iteration_range: Any) -> DevicePredictor:
        part: Any = super()._part(iteration_range)
        part.library.backend, part.stream = self.library.backend, self.stream
        return part

    def _compiled(self, outputs: tuple[Output, ...]) -> Compiled:
        compiled = super()._compiled(outputs)
        compiled.library.backend = self.library.backend
        return compiled

    def _tensors(self, arguments: dict[str, list[Array]]) -> dict[str, list[Any]]:
        return tensors(arguments, ModelArray)

    def _given(self, model: list[Any]) -> tuple[Any, ...]:
        return tuple(model)

    def _kept_frames(self) -> dict[Any, Any]:
        return {}


def on_device(rows: Any) -> bool:
    """Return whether rows are in the memory of a GPU."""
    return dlpack.device_of(rows)[0] in dlpack.KINDS.values()


def _started(function: Any, rows: dlpack.Tensor, results: Any, stream: int) -> list[DeviceArray]:
    run: KernelFunction = function.alone
    return run.on_device(
        rows.pointer, rows.shape[0], function.arguments, results, stream, rows.keeps
    )
