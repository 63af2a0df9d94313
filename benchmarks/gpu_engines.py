"""The engines of the benchmark on a GPU.

takes: PackedModel, a driver; gives: Engine, whose calls are timed. None needs TVM.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gpu_files import PackedModel
from tvm_forest.errors import DeviceError, ForestError
from tvm_forest.gpu_runtime.library import KernelLibrary, ModelArray

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
        one = model.candidates[name]
        _load(one.library)
        self.keeps_order = one.keeps_order
        self.function = one.library["predict"]
        self.arrays = [ModelArray(array) for array in one.arrays]
        self.outputs = model.forest.n_outputs
        self.dtypes = [np.dtype(dtype) for _, dtype in model.results]

    def here(self, rows: Any) -> Any:
        found = [np.empty((len(rows), self.outputs), dtype) for dtype in self.dtypes]
        self.function(rows, *self.arrays, *found)
        return found[0]

    def there(self, rows: RowsThere) -> Any:
        shapes = [((len(rows), self.outputs), dtype) for dtype in self.dtypes]
        return self.function.on_device(rows.pointer, len(rows), self.arrays, shapes, 0)


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
    """nvForest as its defaults are."""

    def __init__(self, model: PackedModel, file: Path) -> None:
        import nvforest

        made = nvforest.load_model(str(file), model_type="xgboost_ubj", device="gpu")
        self.predict = getattr(made, "predict_proba", made.predict)

    def here(self, rows: Any) -> Any:
        return on_host(self.predict(rows))

    def there(self, rows: RowsThere) -> Any:
        import cupy

        return self.predict(cupy.asarray(rows))


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


PEERS: dict[str, type[Engine]] = {"xgboost": XGBoost, "nvforest": NvForest, "torch": Torch}
