"""The engines of the benchmark on a GPU.

takes: PackedModel, a driver; gives: Engine, whose calls are timed. None needs TVM.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.files import PackedModel
from tvm_forest.errors import DeviceError, ForestError
from tvm_forest.runtime.gpu.library import KernelLibrary, ModelArray

CPU_LEVEL, CPU_FLAGS = "x86-64-v3", ("avx2", "fma", "bmi2")
"""What the libraries for CPUs are made for, and the flags by which Linux names it."""
CHUNKS = (1, 2, 4, 8, 16, 32)
"""Rows that a block of nvForest takes at once."""
MAX_WALKS = 1 << 24
"""Rows x trees that the baseline in torch walks together; each takes some 60 bytes."""


class Refused(Exception):
    """An engine that has no figures, and why."""


class RowsThere:
    """Rows in the GPU's memory, as CuPy, torch and XGBoost take them."""

    def __init__(self, pointer: int, shape: tuple[int, int], dtype: Any) -> None:
        """Describe rows, one behind the other."""
        self.pointer, self.shape, self.dtype = pointer, shape, np.dtype(dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def part(self, at: int, n: int) -> RowsThere:
        """Return n rows from row `at` on."""
        width = self.shape[1]
        return RowsThere(self.pointer + at * width * self.dtype.itemsize, (n, width), self.dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        about = {"shape": self.shape, "typestr": self.dtype.str, "strides": None, "version": 3}
        return {**about, "data": (self.pointer, False), "stream": 1}


class Engine:
    """One engine and one model.

    Attributes:
        gives: what `here` returns, "margin" or "value".
    """

    gives = "value"

    def __init__(self, model: PackedModel, file: Path) -> None:
        """Make a predictor of a model, or of its `file` for XGBoost.

        Raises:
            Refused, ImportError: it cannot be made.
        """
        raise NotImplementedError

    def here(self, rows: Any) -> Any:
        """Predict rows of the host; the answers are on the host too."""
        raise NotImplementedError

    def there(self, rows: RowsThere) -> Any:
        """Predict rows of the GPU on the default stream; the answers stay there."""
        raise NotImplementedError


class Ours(Engine):
    """One of the compiled schedules; margins, and values where they are something else."""

    gives = "margin"

    def __init__(self, model: PackedModel, name: str) -> None:
        self.one = model.candidates[name]
        _load(self.one.library)
        self.keeps_order = self.one.keeps_order
        functions = self.one.functions.items()
        self.bound = {
            smallest: (self.one.library[function.name], list(map(ModelArray, function.arrays)))
            for smallest, function in functions
        }
        self.outputs = model.forest.n_outputs
        self.dtypes = [np.dtype(dtype) for _, dtype in model.results]

    def _function(self, rows: int) -> tuple[Any, list[ModelArray]]:
        """Return the function that predicts so many rows, and its arguments of the model."""
        return self.bound[self.one.smallest_for(rows)]

    def here(self, rows: Any) -> Any:
        function, model = self._function(len(rows))
        found = [np.empty((len(rows), self.outputs), dtype) for dtype in self.dtypes]
        function(rows, *model, *found)
        return found[0]

    def there(self, rows: RowsThere) -> Any:
        function, model = self._function(len(rows))
        shapes = [((len(rows), self.outputs), dtype) for dtype in self.dtypes]
        return function.bind(model).start(rows.pointer, len(rows), shapes, 0, None)


class OursOnCpu(Engine):
    """Our code for the CPU, on one thread, from the exported library beside the model."""

    gives = "margin"

    def __init__(self, model: PackedModel, file: Path) -> None:
        if platform.machine() not in ("x86_64", "AMD64"):
            raise Refused(f"the library is made for x86-64, this is {platform.machine()}")
        flags = Path("/proc/cpuinfo")
        if flags.exists() and not set(CPU_FLAGS) <= set(flags.read_text().split()):
            raise Refused(f"the library is made for CPUs with {', '.join(CPU_FLAGS)}")
        self.predict = ctypes.CDLL(str(file.with_suffix(".so"))).tvm_forest_predict
        self.predict.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int64,
            *[ctypes.c_void_p] * 2,
            ctypes.c_int,
        ]
        self.outputs = model.forest.n_outputs
        self.dtypes = [np.dtype(dtype) for _, dtype in model.results]

    def here(self, rows: Any) -> Any:
        found = [np.empty((len(rows), self.outputs), dtype) for dtype in self.dtypes]
        margin, value = found[0].ctypes.data, found[1].ctypes.data if found[1:] else None
        if self.predict(rows.ctypes.data, len(rows), margin, value, 1):
            raise Refused("the library returned an error")
        return found[0]

    def there(self, rows: RowsThere) -> Any:
        raise Refused("the CPU does not read the GPU's memory")


def _load(library: KernelLibrary) -> None:
    """Load the kernels; compile their text if the driver does not take what is stored.

    Raises:
        Refused: that is not possible either.
    """
    try:
        library.executor  # noqa: B018  # loads them
    except DeviceError as refused:  # such as a driver that is older than the compiler
        library.architecture = None
        try:
            library.executor  # noqa: B018
        except ForestError as error:
            raise Refused(f"{refused}; and compiled here: {error}") from None


class XGBoost(Engine):
    """`inplace_predict` of rows on the GPU; of rows on the host, by way of a DMatrix."""

    def __init__(self, model: PackedModel, file: Path) -> None:
        import xgboost

        if not xgboost.build_info().get("USE_CUDA"):
            raise Refused("this XGBoost was built without CUDA")
        self.matrix = xgboost.DMatrix
        self.booster = xgboost.Booster(model_file=file)
        self.booster.set_param({"device": "cuda"})

    def here(self, rows: Any) -> Any:
        return self.booster.predict(self.matrix(rows))

    def there(self, rows: RowsThere) -> Any:
        return self.booster.inplace_predict(rows)


class NvForest(Engine):
    """nvForest: as its defaults are, with a chunk size, or as its `optimize` wants it.

    It optimizes for the rows and for the size of batch that it sees first of each size, which is
    when answers are compared or in the round that is not counted.
    """

    def __init__(
        self, model: PackedModel, file: Path, chunk: int | None = None, optimizes: bool = False
    ) -> None:
        import nvforest

        self.made = nvforest.load_model(str(file), model_type="xgboost_ubj", device="gpu")
        self.options = {} if chunk is None else {"chunk_size": chunk}
        self.optimizes, self.optimized = optimizes, dict[int, Any]()

    def _predict(self, rows: Any) -> Any:
        made = self.made
        if self.optimizes:
            if len(rows) not in self.optimized:
                self.optimized[len(rows)] = made.optimize(data=rows)
            made = self.optimized[len(rows)]
        return getattr(made, "predict_proba", made.predict)(rows, **self.options)

    def here(self, rows: Any) -> Any:
        return on_host(self._predict(rows))

    def there(self, rows: RowsThere) -> Any:
        import cupy

        return self._predict(cupy.asarray(rows))


class Torch(Engine):
    """A loop of gathers: all trees of all rows go down by one hop together."""

    gives = "margin"

    def __init__(self, model: PackedModel, file: Path | None, device: str = "cuda") -> None:
        import torch

        if device == "cuda" and not torch.cuda.is_available():
            raise Refused("torch finds no GPU")
        forest = model.forest
        if forest.is_linear or forest.categories or forest.has_vectors or not forest.base_first:
            raise Refused("the loop in torch knows numeric tests and plain leaves only")
        if forest.aggregate != "sum" or forest.comparison != "<":
            raise Refused("the loop in torch knows sums and '<' only")
        self.torch, self.device = torch, device
        at, leaf = np.arange(forest.n_nodes), np.asarray(forest.is_leaf)
        begin = np.repeat(forest.tree_offset[:-1], np.diff(forest.tree_offset))

        def put(array: Any) -> Any:
            return torch.tensor(np.array(array), device=device)

        self.feature = put(np.maximum(forest.feature, 0).astype(np.int64))
        self.threshold, self.default_left = put(forest.threshold), put(forest.default_left)
        self.left = put(np.where(leaf, at, begin + forest.left))
        self.right = put(np.where(leaf, at, begin + forest.right))
        self.leaf, self.base = put(forest.leaf_value[:, 0]), put(forest.base_score)
        self.root, self.depth = put(forest.tree_offset[:-1]), int(forest.depths.max())
        classes = np.asarray(forest.tree_class)
        self.trees = [put(np.flatnonzero(classes == c)) for c in range(forest.n_outputs)]

    def here(self, rows: Any) -> Any:
        there = self.torch.from_numpy(rows).to(self.device)
        return self._margins(there).cpu().numpy()

    def there(self, rows: RowsThere) -> Any:
        return self._margins(self.torch.as_tensor(rows, device=self.device))

    def _margins(self, rows: Any) -> Any:
        step = max(1, MAX_WALKS // len(self.root))
        parts = [self._few(rows[at : at + step]) for at in range(0, len(rows), step)]
        return self.torch.cat(parts)

    def _few(self, rows: Any) -> Any:
        torch, node = self.torch, self.root.expand(len(rows), -1)
        for _ in range(self.depth):
            value = rows.gather(1, self.feature[node])
            left = torch.where(value.isnan(), self.default_left[node], value < self.threshold[node])
            node = torch.where(left, self.left[node], self.right[node])
        leaf = self.leaf[node]
        sums = [leaf.index_select(1, trees).sum(1) for trees in self.trees]
        return torch.stack(sums, 1) + self.base


def on_host(array: Any) -> Any:
    """Return an array of CuPy, torch or numpy as one of numpy."""
    return array.get() if hasattr(array, "get") else np.asarray(array)


PEERS: dict[str, Callable[[PackedModel, Path], Engine]] = {
    "xgboost": XGBoost,
    "nvforest": NvForest,
    "nvforest optimized": partial(NvForest, optimizes=True),
    **{f"nvforest chunk {size}": partial(NvForest, chunk=size) for size in CHUNKS},
    "torch": Torch,
}
"""Engines of others, by their names in tables."""
