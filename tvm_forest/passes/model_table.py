"""Passes the arrays of a model as one argument.

takes: IRModule of functions (rows, model ..., results ...); gives: functions (rows, table, results
...), or (rows, bytes, results ...) for functions with the attribute `OFFSETS`.

    def predict(rows, nodes, base, margin):         def predict(rows, table, margin):
        S                                    -->        nodes = buffer at table[0]
                                                        base = buffer at table[1]
                                                        S

TVM checks every tensor of a call against its buffer: 20 conditions, each with its message. For the
arrays of a model, which never change, these checks would only cost time, in every compilation and
every call. A table of addresses is valid in one process only; a module that is saved contains the
bytes instead.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ..tir_gen.ir import i64, join_statements
from .function_pass import function_pass

MODEL = "tvm_forest.model"
"""Function attribute: number of the parameters after the rows that are arrays of the model."""


OFFSETS = "tvm_forest.offsets"
"""Function attribute: byte offsets of the model's arrays in the single array that replaces them,
and last the size of that array."""


@function_pass
class ModelTable:
    """Replaces the parameters for the arrays of the model by one parameter."""

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Rewrite a function with the attribute `MODEL`; return others unchanged."""
        if MODEL not in (func.attrs or {}):
            return func
        count = int(func.attrs[MODEL])
        rows, model, results = func.params[0], func.params[1 : count + 1], func.params[count + 1 :]
        find = _declare_bytes if OFFSETS in func.attrs else _declare_table
        param, declared, addresses = find(func, count)
        declared += [
            tirx.DeclBuffer(buffer, data=tirx.reinterpret(buffer.data.ty, address))
            for buffer, address in zip(model, addresses, strict=True)
        ]
        body = join_statements([*declared, func.body])
        return tirx.PrimFunc([rows, param, *results], body, func.ret_type, func.attrs)


def _declare_table(func: tirx.PrimFunc, count: int) -> tuple[Any, list[tirx.Stmt], list[Any]]:
    """Return the parameter for the address table, its declaration, and the addresses."""
    table = tirx.decl_buffer((i64(count),), "uint64", "table")
    address = tirx.Var("table_address", tvm.ir.PointerType(tvm.ir.PrimType("uint64"), "global"))
    declared = tirx.DeclBuffer(table, data=address)
    return address, [declared], [table[i64(place)] for place in range(count)]


def _declare_bytes(func: tirx.PrimFunc, count: int) -> tuple[Any, list[tirx.Stmt], list[Any]]:
    """Return the parameter for the bytes of all arrays, no declarations, and the addresses."""
    *offsets, size = (int(x) for x in func.attrs[OFFSETS])
    whole = tirx.decl_buffer((i64(size),), "uint8", "model")
    first = tirx.reinterpret(tvm.ir.PrimType("uint64"), whole.data)
    return whole, [], [first + tirx.const(offset, "uint64") for offset in offsets]
