"""Prints lowered TIR functions as C99.

takes: a lowered function without threads and vector instructions; gives: C statements.

    for batch in T.serial(n):              for (int64_t batch = 0; batch < n; ++batch) {
        margin[batch, c] = base[c]           margin[batch * 3 + c] = base[c];
                                           }

Unsupported statements and expressions are refused by errors that name them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NoReturn

import tvm
from tvm import tirx

from ....errors import UnsupportedModel
from ....tir_gen.internals import names
from ..toolchain import WHERE

OPERATORS = {
    **{"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "EQ": "==", "NE": "!=", "LT": "<"},
    **{"LE": "<=", "GT": ">", "GE": ">=", "And": "&&", "Or": "||", "BitwiseAnd": "&"},
    **{"BitwiseOr": "|", "BitwiseXor": "^", "RShift": ">>"},
}
"""C operators by the names of TVM's nodes. The shift `>>` of signed numbers is arithmetic in all
usual compilers, as in TVM."""
IN_TURN = (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)
"""Kinds of loops that can be printed as serial loops."""
MAY_WRAP = ("Add", "Sub", "Mul", "BitwiseXor")
CALLS = {
    names.IF_THEN_ELSE: "({0} ? {1} : {2})",
    names.IS_NAN: "({0} != {0})",
    names.FABS: "fabs({0})",
    names.CALL_LLVM: "{1}",  # an arithmetic fence; the header asks for a compiler flag instead
}
FENCE = tvm.target.codegen.llvm_lookup_intrinsic_id("llvm.arithmetic.fence")
BITS = {
    ("int32", "float32"): "float_of_bits((uint32_t){0})",
    ("uint32", "float32"): "float_of_bits({0})",
    ("int64", "float64"): "double_of_bits((uint64_t){0})",
    ("uint64", "float64"): "double_of_bits({0})",
}
"""C text for TVM's `reinterpret`, by old and new dtype."""

C_TYPES = {"float32": "float", "float64": "double", "bool": "int"}
C_TYPES |= {f"{u}int{bits}": f"{u}int{bits}_t" for u in ("", "u") for bits in (8, 16, 32, 64)}


def refuse(what: str) -> NoReturn:
    """Raise UnsupportedModel for a construct that cannot be printed, as "the operator 'Mod'"."""
    raise UnsupportedModel(
        f"{WHERE}: argument 'to': 'c', but the model computes by {what}, which is not printed as "
        "C; export a library or another package"
    )


def name_type(dtype: str) -> str:
    """Return the C type of numbers of a dtype."""
    return C_TYPES[dtype] if dtype in C_TYPES else refuse(f"numbers of type '{dtype}'")


def write_number(value: float, dtype: str) -> str:
    """Return the C literal of a number, exact to the last bit; every NaN becomes `NAN`."""
    if not dtype.startswith("float"):
        if value == -(2**63):
            return "INT64_MIN"
        return f"INT64_C({value})" if abs(value) > 2**31 - 1 else str(int(value))
    if not math.isfinite(value):
        return "NAN" if math.isnan(value) else "-INFINITY" if value < 0 else "INFINITY"
    text = float(value).hex()
    return text + "f" if dtype == "float32" else text


class Printer:
    """Prints one function; every variable gets a distinct name.

    Attributes:
        powers: dtypes for which the text calls `exp_float32` or `exp_float64`.
    """

    def __init__(self, known: dict[Any, str]) -> None:
        """Begin with the C names of variables that the caller declares: buffers, number of rows."""
        self.powers = set[str]()
        self._names, self._scalars = known, set[Any]()

    def print(self, stmt: Any, indent: str = "  ") -> Iterator[str]:
        """Yield the lines of a statement."""
        kind = type(stmt).__name__
        if kind == "SeqStmt":
            for each in stmt.seq:
                yield from self.print(each, indent)
        elif kind == "Bind":
            value, var = self.express(stmt.value), stmt.var
            yield f"{indent}const {name_type(str(var.ty.dtype))} {self._add(var)} = {value};"
        elif kind == "BufferStore":
            yield f"{indent}{self._place(stmt.buffer, stmt.indices)} = {self.express(stmt.value)};"
        elif kind == "AllocBuffer":
            yield f"{indent}{self._declare(stmt.buffer)};"
        elif kind == "AttrStmt":
            yield from self.print(stmt.body, indent)
        elif kind in ("For", "While", "IfThenElse"):
            yield f"{indent}{self._head(kind, stmt)} {{"
            body = stmt.then_case if kind == "IfThenElse" else stmt.body
            yield from self.print(body, indent + "  ")
            if kind == "IfThenElse" and stmt.else_case is not None:
                yield f"{indent}}} else {{"
                yield from self.print(stmt.else_case, indent + "  ")
            yield f"{indent}}}"
        elif kind != "Evaluate" or not isinstance(stmt.value, tirx.IntImm):
            refuse(f"the statement '{kind}'")

    def _head(self, kind: str, stmt: Any) -> str:
        """Return the first line of a loop or an if statement, without the brace."""
        if kind == "IfThenElse":
            return f"if ({self.express(stmt.condition)})"
        if kind == "While":
            return f"while ({self.express(stmt.condition)})"
        if stmt.kind not in IN_TURN:
            refuse(f"a loop of kind '{tirx.ForKind(stmt.kind).name.lower()}'")
        begin, end = self.express(stmt.min), self.express(stmt.extent)
        name, of = self._add(stmt.loop_var), name_type(str(stmt.loop_var.ty.dtype))
        end = end if begin == "0" else f"{begin} + {end}"
        return f"for ({of} {name} = {begin}, {name}_end = {end}; {name} < {name}_end; ++{name})"

    def _add(self, var: Any) -> str:
        text = "".join(c if c.isalnum() else "_" for c in str(var.name).removesuffix(".source"))
        self._names[var] = f"{text.rstrip('_')}_{len(self._names)}"
        return self._names[var]

    def _declare(self, buffer: Any) -> str:
        if not all(isinstance(x, tirx.IntImm) for x in buffer.shape):
            refuse("memory of a size that is known at run time alone")
        size = math.prod(int(x) for x in buffer.shape)
        if size == 1:
            self._scalars.add(buffer)
        text = f"{name_type(str(buffer.dtype))} {self._add(buffer)}"
        return text if size == 1 else f"{text}[{size}]"

    def _place(self, buffer: Any, indices: Any) -> str:
        if buffer not in self._names:
            refuse(f"the buffer '{buffer.name}'")
        name = self._names[buffer]
        if buffer in self._scalars:
            return name
        index = ""
        for size, each in zip(buffer.shape, indices, strict=True):
            text = self.express(each)
            whole = index if index.isidentifier() else f"({index})"
            index = f"{whole} * {self.express(size)} + {text}" if index else text
        return f"{name}[{index}]"

    def express(self, expr: Any) -> str:
        """Return the C text of an expression, in parentheses if it has operands."""
        kind = type(expr).__name__
        if kind == "Var":
            return self._names[expr]
        if kind in ("IntImm", "FloatImm"):
            return write_number(expr.value, str(expr.ty.dtype))
        if kind == "TensorLoad":
            place, dtype = self._place(expr.source, expr.indices), str(expr.ty.dtype)
            is_integer = "int" in dtype and expr.source not in self._scalars
            return f"({name_type(dtype)}){place}" if is_integer else place  # of narrower C types
        if kind == "Cast":
            to, value = str(expr.ty.dtype), self.express(expr.value)
            return f"({value} != 0)" if to == "bool" else f"(({name_type(to)}){value})"
        if kind == "Not":
            return f"(!{self.express(expr.a)})"
        if kind == "Call":
            return self._call(expr)
        if kind == "Select":
            parts = (expr.condition, expr.true_value, expr.false_value)
            return "({} ? {} : {})".format(*map(self.express, parts))
        return self._operate(kind, expr)

    def _operate(self, kind: str, expr: Any) -> str:
        """Return the C text of an expression with two operands."""
        if not hasattr(expr, "b"):
            refuse(f"the expression '{kind}'")
        a, b, dtype = self.express(expr.a), self.express(expr.b), str(expr.ty.dtype)
        if kind in ("Min", "Max"):
            return f"({a} {'<' if kind == 'Min' else '>'} {b} ? {a} : {b})"
        if kind == "LShift":  # of unsigned numbers, which C lets overflow
            return f"(({name_type(dtype)})((u{name_type(dtype).lstrip('u')}){a} << {b}))"
        if kind not in OPERATORS:
            refuse(f"the operator '{kind}'")
        text = f"({a} {OPERATORS[kind]} {b})"
        is_short = dtype.lstrip("u") in ("int8", "int16")
        return f"(({name_type(dtype)}){text})" if kind in MAY_WRAP and is_short else text

    def _call(self, expr: Any) -> str:
        name, dtype = expr.op.name, str(expr.ty.dtype)
        if name == names.CALL_LLVM and int(expr.args[0]) != FENCE:
            refuse(f"an instruction of LLVM, '{expr}'")
        args = [self.express(x) for x in expr.args]
        if name == names.REINTERPRET:
            old = str(expr.args[0].ty.dtype)
            if (old, dtype) not in BITS:
                refuse(f"the bits of '{old}' as '{dtype}'")
            return BITS[old, dtype].format(*args)
        if name == names.EXP and dtype in ("float32", "float64"):
            self.powers.add(dtype)
            return f"exp_{dtype}({args[0]})"
        if name not in CALLS:
            refuse(f"'{name}'")
        return CALLS[name].format(*args)
