"""Moves parts of a function into separate functions.

takes: IRModule whose functions TVM can call; gives: IRModule.

    def forest(args):                          def forest_part_0(n, rows, model, margin):
        if n < 64:                                 S
            part: S                   -->      def forest(args):
        else:                                      if n < 64: forest_part_0(n, rows, ...)
            part: T                                else: forest_part_1(n, rows, ...)

LLVM allocates registers per function. In a function with several large parts, it computes the
addresses of all of them at the beginning, and spills them to memory.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, GlobalVar, PrimType, StringImm

from ...tir_gen.internals.names import DEVICE_ID, DEVICE_TYPE
from ...tir_gen.ir import join_statements
from ..function_pass import expanding_pass

PART = "tvm_forest.part"
"""Attribute of a statement that `OutlineParts` moves to a function."""

INSIDE = "tvm_forest.inside"
"""Attribute around the body of an outlined function: TVM frees memory at its end, since code after
the `Return` would never run."""

SYMBOL = "global_symbol"

INT = PrimType("int32")

Functions = dict[GlobalVar, tirx.PrimFunc]


def mark_part(statement: tirx.Stmt) -> tirx.Stmt:
    """Return a statement with a mark, by which `OutlineParts` makes it a function of its own."""
    return tirx.AttrStmt(tirx.IntImm("int32", 0), PART, tirx.IntImm("int32", 1), statement)


@expanding_pass
class OutlineParts:
    """Moves the parts that `mark_part` has marked into functions."""

    def expand(self, var: GlobalVar, func: tirx.PrimFunc) -> Functions:
        """Return the function, which now calls its parts, and a function for each part."""
        parts: Functions = {}

        def move(statement: tirx.AttrStmt) -> tirx.Stmt:
            if str(statement.attr_key) != PART:
                return statement
            name = GlobalVar(f"{var.name_hint}_part_{len(parts)}")
            part, call = outline(name, statement.body, func.attrs["target"])
            parts[name] = part.with_attr(PART, 1)
            return call

        body = tvm_ffi.structural_map(func.body, (tirx.AttrStmt, move))
        return {**parts, var: func.with_body(body)} if parts else {}


@expanding_pass
class FinishOutlined:
    """Finishes outlined functions, as TVM's pipeline finishes functions that it can call.

    Their memory is allocated on the host. Parts get a global symbol, since LLVM would inline a
    private function that is called once.
    """

    def expand(self, var: GlobalVar, func: tirx.PrimFunc) -> Functions:
        """Finish a function that has no symbol yet; leave others as they are."""
        if SYMBOL in func.attrs:
            return {}
        func = func.with_body(_on_host(func.body))
        return {var: func.with_attr(SYMBOL, var.name_hint) if PART in func.attrs else func}


def _on_host(code: tirx.Stmt) -> tirx.Stmt:
    for key, number in ((DEVICE_ID, 0), (DEVICE_TYPE, int(tvm.cpu().dlpack_device_type()))):
        code = tirx.AttrStmt(StringImm("default"), key, tirx.const(number, "int32"), code)
    return code


def outline(
    name: GlobalVar, body: tirx.Stmt, target: tvm.target.Target
) -> tuple[tirx.PrimFunc, tirx.Stmt]:
    """Return a function with a statement as its body, and a statement that calls it.

    Its parameters are the variables and buffers that the statement uses. It returns a value other
    than 0 if it cannot allocate memory; the call then raises an error.
    """
    params, arguments, declared = [], [], []
    for var in tirx.analysis.undefined_vars(body, []):
        param = argument = var
        if hasattr(var, "data"):  # a buffer
            param, argument = tirx.Var(f"{var.name}_address", var.data.ty), var.data
            declared.append(tirx.DeclBuffer(var, data=param))
        params.append(param)
        arguments.append(argument)
    body = tirx.AttrStmt(tirx.IntImm("int32", 0), INSIDE, tirx.IntImm("int32", 1), body)
    code = join_statements([*declared, body, tirx.Return(tirx.const(0, "int32"))])
    func = tirx.PrimFunc(params, code, INT).with_attr("target", target)
    failed = StringImm("RuntimeError"), [StringImm("out of memory")]
    return func, tirx.AssertStmt(Call(name, arguments, ret_ty=INT) == 0, *failed)
