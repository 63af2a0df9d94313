"""Reads the attributes of an ONNX tree operator, by name and type.

takes: the protobuf message of a node; gives: TreeOp.

All attributes that ONNX defines are read, so that nothing that decides a prediction is missed.
Refused are unknown attributes, those of another type or length, and tensors outside of the file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...forest import Array
from ...system.values import dataclass
from ..refusals import damaged, refuse_damaged, unsupported

OPERATORS = {"TreeEnsembleRegressor": 3, "TreeEnsembleClassifier": 3, "TreeEnsemble": 5}
"""The supported operators, with the version that defines all attributes."""
_TYPES = ("", "a float", "an integer", "a text", "a tensor", "", "floats", "integers", "texts")
_DTYPES = {1: "float32", 2: "uint8", 11: "float64"}
_TENSOR_FIELDS = {"float32": "float_data", "uint8": "int32_data", "float64": "double_data"}


@dataclass(frozen=True)
class TreeOp:
    """A tree operator and its attributes.

    Attributes:
        kind: "TreeEnsembleRegressor", "TreeEnsembleClassifier" or "TreeEnsemble".
        dtype: "float32" or "float64", dtype of rows, comparisons and sums.
        n_features: number of columns of the input, None if the graph does not fix it.
        attributes: the protobuf messages of attributes, by name.

    Methods that take a `size` refuse an attribute of another length.
    """

    kind: str
    dtype: str
    n_features: int | None
    attributes: dict[str, Any]

    @classmethod
    def read(cls, node: Any, known: Any, dtype: str, n_features: int | None) -> TreeOp:
        """Return the TreeOp of a node; refuse attributes that are not as ONNX defines (`known`)."""
        attributes: dict[str, Any] = {}
        for attribute in node.attribute:
            if attribute.name not in known:
                what = f"unknown for {node.op_type}"
                raise unsupported(f"{attribute.name}", what, "leave it out")
            expected, given = known[attribute.name].type.value, attribute.type
            if given != expected:
                given = _TYPES[given] if given < len(_TYPES) and _TYPES[given] else f"type {given}"
                raise damaged(attribute.name, f"expected {_TYPES[expected]}, got {given}")
            if attribute.name in attributes:
                raise damaged(attribute.name, "given twice")
            attributes[attribute.name] = attribute
        return cls(node.op_type, dtype, n_features, attributes)

    @property
    def is_listed(self) -> bool:
        """Whether the operator is of opsets 1 to 3, with inner nodes and leaves in one table."""
        return self.kind != "TreeEnsemble"

    def integers(self, name: str, size: int | None = None) -> Array:
        """Return a list of integers, int64; empty if absent."""
        return _check_size(name, np.array(self._list(name, "ints"), np.int64), size)

    def flags(self, name: str, size: int, optional: bool = False) -> Array:
        """Return a list of 0 and 1 as bools; all False if optional and absent."""
        flags = self.integers(name)
        if optional and not flags.size:
            return np.zeros(size, bool)
        wrong = _check_size(name, flags, size) >> 1 != 0
        refuse_damaged(wrong, name, lambda at: f"expected 0 or 1, got {flags[at]}")
        return flags == 1

    def integer(self, name: str, default: int) -> int:
        """Return one integer; `default` if absent."""
        return int(self.attributes[name].i) if name in self.attributes else default

    def option(self, name: str, options: tuple[str, ...], default: int) -> str:
        """Return the name of an option, which opset 5 stores as an index into `options`.

        If the attribute is absent, the option is ``options[default]``. An index that is out of
        range is returned in digits, and any name as it is stored: callers refuse unknown ones.
        """
        if not self.is_listed:
            number = self.integer(name, default)
            return options[number] if 0 <= number < len(options) else str(number)
        if name not in self.attributes:
            return options[default]
        return str(self.attributes[name].s.decode(errors="replace"))

    def texts(self, name: str, size: int | None = None) -> list[bytes]:
        """Return a list of strings; empty if absent."""
        texts: list[bytes] = _check_size(name, list(self._list(name, "strings")), size)
        return texts

    def numbers(self, name: str, size: int | None = None) -> Array:
        """Return floats in `dtype` from list `name` or tensor `name`_as_tensor; else empty."""
        tensor = f"{name}_as_tensor"
        values = np.array(self._list(name, "floats"), np.float32).astype(self.dtype)
        if tensor in self.attributes:
            if values.size:
                raise damaged(tensor, f"given beside '{name}'")
            values = self.tensor(tensor)
        return _check_size(name, values, size)

    def tensor(self, name: str, size: int | None = None, dtype: str = "") -> Array:
        """Return the elements of a tensor of `dtype`, by default that of rows; empty if absent."""
        if name not in self.attributes:
            return _check_size(name, np.zeros(0, dtype or self.dtype), size)
        values = _read_tensor(name, self.attributes[name].t)
        if str(values.dtype) != (dtype or self.dtype):
            what = f"holds {values.dtype}, but rows are {self.dtype}"
            raise unsupported(name, what, "give both the same type")
        return _check_size(name, values, size)

    def _list(self, name: str, field: str) -> Any:
        return getattr(self.attributes[name], field) if name in self.attributes else []


def _check_size(name: str, values: Any, size: int | None) -> Any:
    if size is not None and len(values) != size:
        raise damaged(name, f"{len(values)} entries, expected {size}")
    return values


def _read_tensor(name: str, tensor: Any) -> Array:
    dtype = _DTYPES.get(tensor.data_type)
    if dtype is None or tensor.data_location:
        what = f"data type {tensor.data_type}, data location {tensor.data_location}"
        raise unsupported(name, what, "give floats or doubles, inside the file")
    if tensor.HasField("raw_data"):
        stored = np.dtype(dtype).newbyteorder("<")
        if len(tensor.raw_data) % stored.itemsize:
            raise damaged(name, f"{len(tensor.raw_data)} bytes do not make {dtype} numbers")
        values = np.frombuffer(tensor.raw_data, stored).astype(dtype)
    else:
        wide = np.array(getattr(tensor, _TENSOR_FIELDS[dtype]))
        values = wide.astype(dtype)
        if dtype == "uint8" and np.any(values != wide):
            raise damaged(name, "holds numbers beyond 255")
    if list(tensor.dims) != [len(values)]:  # onnxruntime ignores tensors without dimensions
        raise damaged(name, f"{len(values)} numbers for the shape {list(tensor.dims)}")
    return values
