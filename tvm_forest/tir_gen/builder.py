"""A builder that collects TIR statements; loops are opened with `with`.

takes: expressions; gives: one TIR statement.

    code = Builder()
    with code.repeat("row", count) as row:         for row in range(count):
        x = code.hold("x", load(row))       -->        x = load(row)
        code.store(out, x * x, [row])                  out[row] = x * x
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tvm import tirx

from . import ir
from .ir import i64, join_statements

SPREAD = "tvm_forest.spread"
"""Annotation key of a loop whose iterations the threads of a GPU block may share; nested loops with
the key are shared together."""


class Builder:
    """Collects statements, and declares cells, small buffers that serve as variables.

    A cell is a buffer of one element in scope "global": TVM puts buffers below 1 KB on the stack,
    and LLVM puts them into registers. The simplifier would inline TIR's own variable, `Bind`,
    wherever it is used, which doubles the code with every level of a walk.
    """

    def __init__(self) -> None:
        self.statements: list[tirx.Stmt] = []

    def buffer(self, name: str, shape: Sequence[Any], dtype: str, scope: str = "global") -> Any:
        """Append the declaration of a buffer, and return the buffer."""
        buffer = tirx.decl_buffer(tuple(shape), dtype, name, scope=scope)
        self.add(tirx.AllocBuffer(buffer))
        return buffer

    def store(self, buffer: Any, value: Any, indices: list[Any]) -> None:
        """Append a store to a buffer."""
        self.add(tirx.BufferStore(buffer, value, indices))

    def hold(self, name: str, value: Any) -> Any:
        """Store a value in a new cell, and return the load of the cell.

        The cell of a vector has an element for each lane.
        """
        element, _, lanes = str(value.ty.dtype).partition("x")
        count = int(lanes or 1)
        load = self.buffer(name, (count,), element)[ir.lanes(i64(0), count)]
        self.put(load, value)
        return load

    def put(self, cell: Any, value: Any) -> None:
        """Store a value in an existing cell; `cell` is the load that `hold` returned for it."""
        self.store(cell.source, value, list(cell.indices))

    def add(self, statement: tirx.Stmt) -> None:
        """Append a finished statement."""
        self.statements.append(statement)

    @contextmanager
    def repeat(self, name: str, count: Any, unrolled: bool = False) -> Iterator[Any]:
        """Open a serial or unrolled loop, and yield its variable.

        Statements appended in the `with` block are its body.
        """
        kind = tirx.ForKind.UNROLLED if unrolled else tirx.ForKind.SERIAL
        with self._loop(name, count, kind) as var:
            yield var

    @contextmanager
    def parts(self, name: str, count: int, size: int) -> Iterator[Any]:
        """Open a loop over the parts of `count` elements, `size` each; yield a part's start.

        A single part needs no loop.
        """
        if count == size:
            yield i64(0)
        else:
            with self.repeat(name, i64(count // size)) as part:
                yield part * size

    @contextmanager
    def lanes(self, name: str, count: int) -> Iterator[Any]:
        """Open a vectorized loop of `count` lanes, no loop if it is 1; yield the lane's number."""
        if count == 1:
            yield i64(0)
        else:
            with self._loop(name, i64(count), tirx.ForKind.VECTORIZED) as var:
                yield var

    @contextmanager
    def nest(
        self, name: str, counts: Sequence[Any], spread: bool = False, apart: bool = False
    ) -> Iterator[list[Any]]:
        """Open nested serial loops, and yield their variables.

        With `spread`, the threads of a GPU block share the iterations.
        Consecutive nests that are all `apart` write different elements, so they need no barrier
        between them.
        """
        notes, serial = {SPREAD: 1 + apart} if spread else {}, tirx.ForKind.SERIAL
        with ExitStack() as stack:
            yield [stack.enter_context(self._loop(name, count, serial, notes)) for count in counts]

    @contextmanager
    def parallel(self, name: str, count: Any) -> Iterator[Any]:
        """Open a loop whose iterations run on several threads, and yield its variable."""
        with self._loop(name, count, tirx.ForKind.PARALLEL) as var:
            yield var

    def groups(self, count: Any, width: int) -> list[tuple[int, Any, Any]]:
        """Divide `count` iterations into groups of `width`, and a rest in groups of one.

        Returns:
            (size, begin, number of groups) for the full groups and for the groups of one: 19
            iterations with width 8 give (8, 0, 2) and (1, 16, 3).
        """
        if width == 1:
            return [(1, i64(0), count)]
        full = tirx.floordiv(count, i64(width))
        return [(width, i64(0), full), (1, full * width, count - full * width)]

    @contextmanager
    def block(self, wrap: Any) -> Iterator[None]:
        """Collect the statements of the `with` block, and append what `wrap` makes of them."""
        outer, self.statements = self.statements, []
        yield
        self.statements = [*outer, wrap(self.finish())]

    @contextmanager
    def _loop(
        self, name: str, count: Any, kind: Any, notes: dict[str, Any] | None = None
    ) -> Iterator[Any]:
        var = tirx.Var(name, count.ty.dtype)
        zero = tirx.const(0, count.ty.dtype)
        with self.block(lambda body: tirx.For(var, zero, count, kind, body, None, notes or {})):
            yield var

    def finish(self) -> tirx.Stmt:
        """Return everything emitted so far as one statement."""
        return join_statements(self.statements)
