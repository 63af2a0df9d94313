"""Take the arrays of a model from a table of addresses.

takes: IRModule of functions (rows, model ..., results ...); gives: functions (rows, table,
results ...).

    def predict(rows, nodes, base, margin):         def predict(rows, table, margin):
        S                                    -->        nodes = buffer at table[0]
                                                        base = buffer at table[1]
                                                        S

TVM checks every tensor of a call against its buffer: 20 conditions, each with its message. For the
arrays of a model, which never change, these checks would only cost time, in every compilation and
every call.
"""

from __future__ import annotations

import tvm
from tvm import tirx

from ..tir_gen.ir import i64, join_statements
from .function_pass import function_pass

MODEL = "tvm_forest.model"
"""Attribute of a function: how many of its parameters, behind the rows, are arrays of the model."""


@function_pass
class ModelTable:
    """Replace the parameters that hold the model by one."""

    def rewrite(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Rewrite a function that says how many there are."""
        if MODEL not in (func.attrs or {}):
            return func
        count = int(func.attrs[MODEL])
        rows, model, results = func.params[0], func.params[1 : count + 1], func.params[count + 1 :]
        table = tirx.decl_buffer((i64(count),), "uint64", "table")
        address = tirx.Var("table_address", tvm.ir.PointerType(tvm.ir.PrimType("uint64"), "global"))
        declared = [tirx.DeclBuffer(table, data=address)]
        for place, buffer in enumerate(model):
            data = tirx.reinterpret(buffer.data.ty, table[i64(place)])
            declared.append(tirx.DeclBuffer(buffer, data=data))
        body = join_statements([*declared, func.body])
        return tirx.PrimFunc([rows, address, *results], body, func.ret_type, func.attrs)
