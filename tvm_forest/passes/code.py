"""A list of statements that grows as a walk is emitted.

takes: expressions; gives: one TIR statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx


class Code:
    """Statements in order. Small cells stand for variables.

    A cell is a buffer of one element in scope "global": below 1 KB TVM puts such a buffer on the
    stack and LLVM into a register. A `Bind` would be inlined again by the simplifier wherever it is
    used, which doubles the code with every level of a walk.
    """

    def __init__(self) -> None:
        self.statements: list[tirx.Stmt] = []

    def hold(self, name: str, value: Any) -> Any:
        """Store a value in a new cell; returns the load of it."""
        cell = tirx.decl_buffer((1,), value.ty.dtype, name, scope="global")
        self.statements.append(tirx.AllocBuffer(cell))
        load = tirx.BufferLoad(cell, [_i64(0)])
        self.put(load, value)
        return load

    def put(self, cell: Any, value: Any) -> None:
        """Overwrite a cell that `hold` made."""
        self.statements.append(tirx.BufferStore(cell.source, value, list(cell.indices)))

    def add(self, statement: tirx.Stmt) -> None:
        """Append a finished statement."""
        self.statements.append(statement)

    @contextmanager
    def repeat(self, name: str, count: Any) -> Iterator[Any]:
        """Open a serial loop; what is emitted inside is its body."""
        var, outer = tirx.Var(name, count.ty.dtype), self.statements
        self.statements = []
        yield var
        zero = tirx.const(0, count.ty.dtype)
        loop = tirx.For(var, zero, count, tirx.ForKind.SERIAL, self.finish())
        self.statements = [*outer, loop]

    def finish(self) -> tirx.Stmt:
        """Return everything emitted so far as one statement."""
        if len(self.statements) == 1:
            return self.statements[0]
        return tirx.SeqStmt(self.statements)


def _i64(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)
