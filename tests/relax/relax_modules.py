"""Relax modules with forests, and their results beside those of a Predictor."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

import tvm_forest.relax
from tvm_forest.forest import Forest
from tvm_forest.forest.probe_rows import hard_rows
from tvm_forest.relax.model import to_tensor_constant

HERE = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
BATCHES = (0, 1, 7, 64, 600)


def rows_of(forest: Forest, n: int) -> Any:
    """Draw n hard rows that the source library does not refuse."""
    rows = np.resize(hard_rows(forest, max(n, 1)), (n, forest.row_width)).astype(forest.row_dtype)
    return np.clip(np.nan_to_num(rows), -1e30, 1e30) if forest.refuses else rows


def module_of(
    forest: Forest, outputs: str | Sequence[str] = "margin", n: Any = None, **attributes: Any
) -> tvm.IRModule:
    """Return a module whose `main` does nothing but predict."""
    n = tirx.Var("n", "int64") if n is None else n
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((n, forest.row_width), forest.row_dtype))
    with bb.function("main", [x]):
        with bb.dataflow():
            call = tvm_forest.relax.predict(x, forest, outputs, **attributes)
            result = bb.emit_output(bb.emit(call))
        bb.emit_func_output(result)
    return bb.get()


def chain_of(forest: Forest, n: Any = None, **attributes: Any) -> tvm.IRModule:
    """Return scaler -> forest -> add -> matmul -> softmax; it gives rows, margins and the end."""
    n = tirx.Var("n", "int64") if n is None else n
    op, constant = relax.op, to_tensor_constant
    ones = np.ones(forest.row_width, forest.row_dtype)
    weights = np.linspace(-1, 1, 3 * forest.n_outputs).reshape(-1, 3).astype(forest.sum_dtype)
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((n, forest.row_width), forest.row_dtype))
    with bb.function("main", [x]):
        with bb.dataflow():
            scaled = bb.emit(op.multiply(op.subtract(x, constant(ones)), constant(2 * ones)))
            margin = bb.emit(tvm_forest.relax.predict(scaled, forest, "margin", **attributes))
            added = bb.emit(op.add(margin, constant(weights[:, 0])))
            end = bb.emit(op.nn.softmax(op.matmul(added, constant(weights)), axis=-1))
            result = bb.emit_output(relax.Tuple([scaled, margin, end]))
        bb.emit_func_output(result)
    return bb.get()


@functools.lru_cache(maxsize=1)
def start(executable: Any) -> relax.VirtualMachine:
    """Start a machine, for which LLVM makes the code of the whole module; it serves many calls."""
    return relax.VirtualMachine(executable, tvm.cpu())


def run(executable: Any, rows: Any) -> list[Any]:
    """Return what `main` gives, as arrays."""
    result = start(executable)["main"](tvm.runtime.tensor(rows))
    tensors = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [tensor.numpy() for tensor in tensors]
