"""Exported libraries, called through ctypes.

takes: a path, a prefix; gives: `Library`, whose methods are the C functions for arrays.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from tvm_forest.forest import Forest
from tvm_forest.runtime.results import result_dtype, result_names


class Library:
    """A library with a model.

    Attributes:
        code: what the last call returned.
    """

    def __init__(self, path: Path, forest: Forest, prefix: str = "tvm_forest_") -> None:
        """Load it so that others see its functions."""
        self.forest, self.prefix, self.code = forest, prefix, 0
        self.functions = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)

    def __getattr__(self, name: str) -> Any:
        """Return a C function that gives a number."""
        function = self.functions[self.prefix + name]
        function.restype = ctypes.c_int64
        return function

    def text(self, name: str, *numbers: int) -> str | None:
        """Return what a C function says."""
        function = self.functions[self.prefix + name]
        function.restype = ctypes.c_char_p
        found = function(*map(ctypes.c_int64, numbers))
        return None if found is None else found.decode()

    def predict(self, rows: Any, n_jobs: int = 1) -> tuple[Any, Any]:
        """Return margins and values, of shape (n, outputs)."""
        shape, value = (len(rows), self.forest.n_outputs), result_names(self.forest)[-1]
        margin = np.zeros(shape, result_dtype(self.forest, "margin"))
        values = np.zeros(shape, result_dtype(self.forest, value))
        self._call("predict", rows, margin, values, n_jobs=n_jobs)
        return margin, values

    def predict_labels(self, rows: Any, n_jobs: int = 1) -> Any:
        """Return numbers of classes, of shape (n, labels)."""
        label = np.full((len(rows), self.labels()), -1, np.int64)
        self._call("predict_labels", rows, label, n_jobs=n_jobs)
        return label

    def predict_contributions(self, rows: Any, n_jobs: int = 1) -> Any:
        """Return contributions, of shape (n, outputs, features + 1)."""
        found = np.full((len(rows), self.forest.n_outputs, self.forest.row_width + 1), -7.0)
        self._call("predict_contributions", rows, found, n_jobs=n_jobs)
        return found

    def _call(self, name: str, rows: Any, *results: Any, n_jobs: int) -> None:
        rows = np.ascontiguousarray(rows, self.forest.row_dtype)
        at, *others = (ctypes.c_void_p(array.ctypes.data) for array in (rows, *results))
        function = self.functions[self.prefix + name]
        self.code = function(at, ctypes.c_int64(len(rows)), *others, ctypes.c_int(n_jobs))
