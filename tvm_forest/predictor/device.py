"""The compiled model on a GPU.

takes: KernelLibrary, arrays, Forest; gives: DevicePredictor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import InputError
from ..forest import Array
from ..gpu_runtime import dlpack
from ..gpu_runtime.arrays import DeviceArray
from ..gpu_runtime.library import ModelArray
from ..inputs import to_rows
from ..inputs.checks import check_shape
from ..process.locks import cached_property
from ..runtime import Library
from ..runtime.results import Output
from ..threads import check_n_jobs
from .functions import BoundFunction, Functions
from .predictor import Predictor, Range

GPUS = frozenset(dlpack.KINDS.values())
DeviceRows = dlpack.Tensor | DeviceArray

MAX_ROWS_WITH_MEMBERSHIPS = 1 << 16
"""Rows that get their membership columns together, which may take many times their memory."""

STREAM_VERSION = 3
"""Of `__cuda_array_interface__`: the first that may name a stream."""

DEFAULT_STREAM = {"cuda": 1, "rocm": 0}
"""As DLPack numbers it."""


class DeviceFunctions(Functions):
    """Functions whose model stays on the host until they are called first."""

    def adopt(self, library: Library, has_threads: bool) -> None:
        """See `Functions.adopt`; all find the GPU as the first one does."""
        library.backend = self.libraries[0][0].backend if self.libraries else library.backend

    def compute_sums(self, rows: Any, n_jobs: int | None) -> tuple[Array, Array]:
        """See `Functions.compute_sums`; there are no threads to share rows out to."""
        rows = to_rows(rows, self.forest)
        if n_jobs is not None:
            check_n_jobs("predict", n_jobs)
        n_rows = len(rows)
        function, results = self.for_batch(n_rows), self.new_results(n_rows)
        step = MAX_ROWS_WITH_MEMBERSHIPS if function.takes_memberships else n_rows
        for begin in range(0, n_rows, step or 1):
            part = slice(begin, begin + step)
            ready = self.prepare_rows(function, rows[part])
            function.serial.on_host(ready, function.model, [array[part] for array in results])
        return results[self.margin_place], results[-1]

    def to_tensor(self, array: Array) -> ModelArray:
        """Return an array for executors, which copy it to the GPU once."""
        return ModelArray(array)

    def to_arguments(self, tensors: list[ModelArray]) -> tuple[ModelArray, ...]:
        """Return what a function takes for the arrays of the model."""
        return tuple(tensors)


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
    _functions_class = DeviceFunctions
    _max_small_batch = 0

    def _become(self, other: Any) -> None:
        for library, _ in other.libraries:
            library.backend = self.library.backend
        other.stream = self.stream
        super()._become(other)

    def _describe_target(self) -> str:
        made_for = self.library.architectures
        return f"{self.target.kind} ({', '.join(made_for)})" if made_for else self.target.kind

    def source(self, kind: str = "asm") -> str:
        """Return the text of the kernels.

        Args:
            kind: that of the target, such as "cuda", which not all give as assembly.

        Raises:
            BuildError: there is no such text.
        """
        text: str = (self._present or self).library.inspect(kind)
        return text

    def predict(
        self,
        rows: Any,
        n_jobs: int | None = None,
        iteration_range: Range = None,
        **as_source: Any,
    ) -> Any:
        """See `Predictor.predict`; a DeviceArray for rows on the GPU, unless these are labels."""
        if self._gives_labels or as_source:
            return super().predict(rows, n_jobs, iteration_range, **as_source)
        return self.predict_value(rows, n_jobs, iteration_range)

    def predict_value(
        self, rows: Any, n_jobs: int | None = None, iteration_range: Range = None
    ) -> Any:
        """See `Predictor.predict_value`; a DeviceArray for rows on the GPU."""
        place = dlpack.device_of(rows)
        if place[0] not in GPUS:
            return super().predict_value(rows, n_jobs, iteration_range)
        now: Any = self._present or self
        return now._part(iteration_range)._start_sums(rows, place)[1].squeeze()

    def predict_proba(
        self,
        rows: Any,
        n_jobs: int | None = None,
        iteration_range: Range = None,
        **as_source: Any,
    ) -> Any:
        """See `Predictor.predict_proba`; a DeviceArray for rows on the GPU, of several columns."""
        now: Any = self._present or self
        several = now.forest.n_outputs > 1 and not now.forest.targets
        place = dlpack.device_of(rows)
        if place[0] not in GPUS or not several or not now.gives_probabilities or as_source:
            return super().predict_proba(rows, n_jobs, iteration_range, **as_source)
        return now._part(iteration_range)._start_sums(rows, place)[1]

    def predict_margin(
        self, rows: Any, n_jobs: int | None = None, iteration_range: Range = None
    ) -> Any:
        """See `Predictor.predict_margin`; a DeviceArray for rows on the GPU."""
        place = dlpack.device_of(rows)
        if place[0] not in GPUS:
            return super().predict_margin(rows, n_jobs, iteration_range)
        now: Any = self._present or self
        return now._part(iteration_range)._start_sums(rows, place)[0].squeeze()

    def put(self, rows: Array) -> DeviceArray:
        """Copy (R, F) rows of the host to the GPU, cleaned as `start` wants them."""
        now: Any = self._present or self
        rows = to_rows(rows, now.forest)
        return now._upload(rows, now._functions.for_batch(len(rows)), 0)

    def start(self, rows: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        """Start the work for rows of `put`; return margins and values, see `_start_sums`."""
        now: Any = self._present or self
        return now._start_on(rows, 0)

    # -- rows on the GPU --------------------------------------------------------------------------

    def _sums(
        self, rows: Any, n_jobs: int | None = None, iteration_range: Range = None
    ) -> tuple[Array, Array]:
        place = dlpack.device_of(rows)
        if place[0] not in GPUS:
            return super()._sums(rows, n_jobs, iteration_range)
        margin, value = self._part(iteration_range)._start_sums(rows, place)
        return margin.numpy(), value.numpy()

    def _compute_leaves(self, name: Output, rows: Any, n_jobs: int | None) -> Array:
        place = dlpack.device_of(rows)
        if place[0] not in GPUS:
            return super()._compute_leaves(name, rows, n_jobs)
        function = self._functions.find(name)
        tensor, stream = self._take(rows, place, function)
        shape = (tensor.shape[0], self._functions.n_places)
        result = (shape, np.dtype(self._functions.leaf_dtype(name)))
        bound = function.serial.bind(function.model, stream)
        return bound.start(tensor.pointer, shape[0], [result], stream, tensor)[0].numpy()

    def _compute_contributions(self, name: Output, rows: Any, n_jobs: int | None) -> Array:
        place = dlpack.device_of(rows)
        if place[0] not in GPUS:
            return super()._compute_contributions(name, rows, n_jobs)
        own = self._contributions
        function = own.find(name, 0)
        tensor, stream = self._take(rows, place, function)
        result = ((tensor.shape[0], *own.shape_of(name)), np.dtype(np.float64))
        bound = function.serial.bind(function.model, stream)
        values = bound.start(tensor.pointer, tensor.shape[0], [result], stream, tensor)[0].numpy()
        return own.complete(name, values)

    def _start_sums(self, rows: Any, place: tuple[int, int]) -> tuple[DeviceArray, DeviceArray]:
        """Start the work of margins and values, both (R, C); one array if the link is identity."""
        return self._start_on(*self._take(rows, place))

    def _start_on(self, rows: DeviceRows, stream: int) -> tuple[DeviceArray, DeviceArray]:
        functions = self._functions
        shape = (rows.shape[0], self.forest.n_outputs)
        wanted = [(shape, dtype) for dtype in functions.result_dtypes]
        function = functions.for_batch(shape[0])
        bound = function.serial.bind(function.model, stream)
        results = bound.start(rows.pointer, shape[0], wanted, stream, rows)
        return results[functions.margin_place], results[-1]

    def _take(
        self, rows: Any, place: tuple[int, int], function: BoundFunction | None = None
    ) -> tuple[DeviceRows, int]:
        """Return rows at a place as a function reads them, and the stream for the work on them.

        The function is that of their number if none is given.
        """
        kind = self.library.kind
        stream = _stream_of(rows) if self.stream is None else self.stream
        wanted = (dlpack.KINDS[kind], self.library.executor.driver.device)
        if place != wanted:
            raise InputError(
                f"predict: argument 'rows': they are on device {place} of DLPack, the model is on "
                f"{wanted} ({kind}); move them, or give 'device' in the target"
            )
        if type(rows) is DeviceArray:
            tensor: DeviceRows = rows.let_wait(stream)
        else:
            tensor = dlpack.take(rows, stream or DEFAULT_STREAM[kind])
        stream = 0 if stream == 1 else stream
        check_shape(tensor.shape, self.forest)
        if self.forest.encoder is not None and type(rows) is not DeviceArray:
            raise InputError(
                "predict: argument 'rows': they are on a GPU, and the model has features of "
                "categories, whose texts the host encodes; give rows on the host, or those of `put`"
            )
        function, forest = function or self._functions.for_batch(tensor.shape[0]), self.forest
        changes = forest.needs_preparation if function.takes_memberships else forest.needs_cleaning
        if tensor.dtype == self._row_dtype and not changes and not forest.looks_at_values:
            return tensor, stream
        host_rows = np.empty(tensor.shape, tensor.dtype)
        if host_rows.size:
            self.library.executor.driver.download(host_rows, tensor.pointer, stream)
        return self._upload(to_rows(host_rows, forest), function, stream), stream

    @cached_property
    def _row_dtype(self) -> np.dtype[Any]:
        return np.dtype(self.forest.row_dtype)

    def _upload(self, rows: Array, function: BoundFunction, stream: int) -> DeviceArray:
        """Copy rows of the host to the GPU, cleaned as a function reads them."""
        ready = np.ascontiguousarray(self._functions.prepare_rows(function, rows))
        driver = self.library.executor.driver
        copy = DeviceArray(driver, ready.shape, ready.dtype, stream)
        driver.upload(copy.pointer, ready, stream)
        return copy

    def _for_rows(self, rows: Any) -> DevicePredictor:
        """This one, which refuses rows that an estimator of XGBoost copies."""
        return self

    def _part(self, iteration_range: Any) -> DevicePredictor:
        if iteration_range is None:
            return self
        part: Any = super()._part(iteration_range)
        part.library.backend, part.stream = self.library.backend, self.stream
        return part


_streamless: set[type] = set()
"""Classes whose `__cuda_array_interface__` is too old to name a stream, such as PyTorch's."""


def _stream_of(rows: Any) -> int:
    """Return the stream that rows name; 0 for the default one, and where they name none."""
    if type(rows) in _streamless:
        return 0
    try:
        named = getattr(rows, "__cuda_array_interface__", {})
    except RuntimeError:  # a tensor that requires a gradient, which DLPack will refuse by name
        return 0
    if named.get("version", STREAM_VERSION) < STREAM_VERSION:
        _streamless.add(type(rows))
    return int(named.get("stream") or 0)
