"""Predictors whose model is on a GPU.

takes: KernelLibrary, arrays, Forest; gives: DevicePredictor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import InputError
from ..forest import Array
from ..runtime import Library
from ..runtime.gpu import ModelArray, dlpack
from ..runtime.gpu.arrays import DeviceArray
from ..runtime.gpu.executor import Shapes
from ..runtime.results import Output
from ..runtime.threads.by_batch import BoundFunction
from .functions import Functions
from .inputs import to_rows
from .inputs.checks import check_shape
from .predictor import Predictor, Range

GPUS = frozenset(dlpack.KINDS.values())
DeviceRows = dlpack.Tensor | DeviceArray

STREAM_VERSION = 3
"""First version of `__cuda_array_interface__` that can name a stream."""

DEFAULT_STREAM = {"cuda": 1, "rocm": 0}
"""DLPack's number of the default stream."""


class DeviceFunctions(Functions):
    """Functions for a GPU, to which the model's arrays are copied at the first call."""

    max_rows_with_memberships = 1 << 16

    def adopt(self, library: Library, has_threads: bool) -> None:
        """See `Functions.adopt`; all libraries use the GPU of the first one."""
        library.backend = self.libraries[0].library.backend if self.libraries else library.backend

    def share(self, library: Library) -> Library:
        """Return a library with the same kernels for another model's arrays."""
        return library.share()

    def to_tensor(self, array: Array) -> ModelArray:
        """Return an array in the form that executors take; they copy it to the GPU once."""
        return ModelArray(array)

    def to_arguments(self, tensors: list[ModelArray]) -> tuple[ModelArray, ...]:
        """Return the arrays of the model as they are: each is an argument of GPU functions."""
        return tuple(tensors)


class DevicePredictor(Predictor):
    """A forest compiled for a GPU.

    Rows on the host are copied to the GPU, and results back. Rows on the GPU that export DLPack,
    such as those of PyTorch and CuPy, are used in place, without a copy or a wait. Results stay
    there as well, as a `DeviceArray` for `torch.from_dlpack` and the like, except labels and
    results combined from several columns: these are numpy arrays. Rows that must be converted or
    checked (another dtype, a number that means missing, categories, values that scikit-learn
    refuses) go by way of the host, which waits for them.

    Attributes:
        stream: the stream for work on rows of the GPU, as the driver's handle, for example
            `torch.cuda.current_stream().cuda_stream`; None for the stream that the rows name in
            `__cuda_array_interface__`, else the default one.
    """

    stream: int | None = None
    _functions_class = DeviceFunctions
    _max_small_batch = 0

    def _become(self, other: Any) -> None:
        for code in other.libraries:
            code.library.backend = self.library.backend
        other.stream = self.stream
        super()._become(other)

    def _describe_target(self) -> str:
        made_for = self.library.architectures
        return f"{self.target.kind} ({', '.join(made_for)})" if made_for else self.target.kind

    def source(self, kind: str = "asm") -> str:
        """Return the source text of the kernels.

        Args:
            kind: the form of text, such as "cuda"; not all targets have assembly.

        Raises:
            BuildError: the target has no text of this kind.
        """
        text: str = (self._present or self).library.inspect(kind)
        return text

    def put(self, rows: Array) -> DeviceArray:
        """Copy (R, F) rows from the host to the GPU, cleaned as `start` requires.

        Raises:
            InputError: rows of the wrong kind.
            DeviceError: the GPU cannot be used.
        """
        now: Any = self._present or self
        rows = to_rows(rows, now.forest)
        return now._upload(rows, now._functions.for_batch(len(rows)), 0)

    def start(self, rows: DeviceRows, stream: int = 0) -> tuple[DeviceArray, DeviceArray]:
        """Start the computation for rows from `put`; return margins and values, both (R, C).

        They are one array if the link is the identity. `stream` is the driver's handle of the
        stream for the work; 0 is the default one.

        Raises:
            DeviceError: the driver refuses a call.
        """
        now: Any = self._present or self
        functions, n_rows = now._functions, rows.shape[0]
        wanted = [((n_rows, now.forest.n_outputs), dtype) for dtype in functions.result_dtypes]
        results = _start(functions.for_batch(n_rows), rows, stream, wanted)
        return results[functions.margin_place], results[-1]

    # -- rows on the GPU --------------------------------------------------------------------------

    def _sums(
        self, rows: Any, n_jobs: int | None, iteration_range: Range, on_host: bool = True
    ) -> tuple[Any, Any]:
        place = dlpack.device_of(rows)
        if place[0] not in GPUS:
            return super()._sums(rows, n_jobs, iteration_range)
        part = self._part(iteration_range)
        margin, value = part.start(*part._take(rows, place))
        return (margin.numpy(), value.numpy()) if on_host else (margin, value)

    def _compute_leaves(self, name: Output, rows: Any, n_jobs: int | None) -> Array:
        place, functions = dlpack.device_of(rows), self._functions
        if place[0] not in GPUS:
            return super()._compute_leaves(name, rows, n_jobs)
        function = functions.find(name)
        tensor, stream = self._take(rows, place, function)
        wanted = ((tensor.shape[0], functions.n_places), np.dtype(functions.leaf_dtype(name)))
        return _start(function, tensor, stream, [wanted])[0].numpy()

    def _compute_contributions(self, name: Output, rows: Any, n_jobs: int | None) -> Array:
        place, own = dlpack.device_of(rows), self._contributions
        if place[0] not in GPUS:
            return super()._compute_contributions(name, rows, n_jobs)
        function = own.find(name, 0)
        tensor, stream = self._take(rows, place, function)
        wanted = ((tensor.shape[0], *own.shape_of(name)), np.dtype(np.float64))
        return own.complete(name, _start(function, tensor, stream, [wanted])[0].numpy())

    def _take(
        self, rows: Any, place: tuple[int, int], function: BoundFunction | None = None
    ) -> tuple[DeviceRows, int]:
        """Return rows on the GPU as a function reads them, and the stream for the computation.

        Args:
            rows: rows on a GPU.
            place: DLPack's type and index of the device that they are on.
            function: the function that reads them; None to choose by the number of rows.

        Raises:
            InputError: rows on another device, or of the wrong kind.
        """
        kind, driver = self.library.kind, self.library.executor.driver
        stream = _stream_of(rows) if self.stream is None else self.stream
        wanted = (dlpack.KINDS[kind], driver.device)
        if place != wanted:
            raise InputError(
                f"predict: argument 'rows': they are on device {place} of DLPack, the model is on "
                f"{wanted} ({kind}); move them, or give 'device' in the target"
            )
        if type(rows) is not DeviceArray and not driver.is_shared:
            raise InputError(
                f"predict: argument 'rows': they are in memory of {kind} that the predictor cannot "
                "read, as it has a context of its own; give rows on the host, or those of `put`"
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
        if tensor.dtype == forest.row_dtype and not changes and not forest.looks_at_values:
            return tensor, stream
        host_rows = np.empty(tensor.shape, tensor.dtype)
        if host_rows.size:
            driver.download(host_rows, tensor.pointer, stream)
        return self._upload(to_rows(host_rows, forest), function, stream), stream

    def _upload(self, rows: Array, function: BoundFunction, stream: int) -> DeviceArray:
        """Copy rows of the host to the GPU, cleaned as a function reads them."""
        ready = np.ascontiguousarray(self._functions.prepare_rows(function, rows))
        driver = self.library.executor.driver
        copy = DeviceArray(driver, ready.shape, ready.dtype, stream)
        driver.upload(copy.pointer, ready, stream)
        return copy

    def _for_rows(self, rows: Any) -> DevicePredictor:
        """Return this predictor; `to_rows` refuses rows that XGBoost's estimator would copy."""
        return self

    def _part(self, iteration_range: Any) -> DevicePredictor:
        if iteration_range is None:
            return self
        part: Any = super()._part(iteration_range)
        part.library.backend, part.stream = self.library.backend, self.stream
        return part


def _start(
    function: BoundFunction, rows: DeviceRows, stream: int, wanted: Shapes
) -> list[DeviceArray]:
    """Start work on rows of the GPU; return result arrays of the given shapes and dtypes."""
    bound = function.serial.bind(function.model, stream)
    return bound.start(rows.pointer, rows.shape[0], wanted, stream, rows)


_streamless: set[type] = set()
"""Classes whose `__cuda_array_interface__` is too old to name a stream, such as PyTorch's."""


def _stream_of(rows: Any) -> int:
    """Return the stream that rows name; 0, the default stream, if they name none."""
    if type(rows) in _streamless:
        return 0
    try:
        named = getattr(rows, "__cuda_array_interface__", {})
    except RuntimeError:  # a tensor that requires a gradient, which DLPack will refuse by name
        return 0
    if named.get("version", STREAM_VERSION) < STREAM_VERSION:
        _streamless.add(type(rows))
    return int(named.get("stream") or 0)
