"""Emulates a team, GPU threads that decide a tile together by ballots, on a CPU.

takes: statements that a team's threads run together; gives: loops over these threads.

    while not is_leaf(node):                  while not is_leaf(node[0]):
        x = row[feature(node, tx)]                each tx: x[tx] = row[feature(node[tx], tx)]
        out = ballot(x < t(node, tx))   -->       each tx: bit[tx] = x[tx] < t(node[tx], tx)
        node = child(node, out)                   each tx: out[tx] = bit[0] | bit[1] << 1 | ...
                                                  each tx: node[tx] = child(node[tx], out[tx])

Every statement runs in all threads before the next one. Cells (variables of a thread) get an
element per thread. Loops and conditions around a ballot are decided by the first thread, since all
threads of a team must reach a ballot together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...errors import BuildError
from ...tir_gen.ir import change_loop, guard, i64, join_statements, replace_vars
from ...tir_gen.ops import BALLOT, is_extern
from . import kernel_code


@dataclass
class TeamWriter:
    """Builds the statements of a team.

    Attributes:
        team: the loop over the threads of the team.
        repeat: function that wraps a statement in this loop.
        places: for each cell, its buffer with an element per thread, and the thread's index.
    """

    team: tirx.For
    repeat: Callable[[tirx.Stmt], tirx.Stmt]
    places: dict[Any, kernel_code.Place] = field(default_factory=dict)

    def write(self, s: tirx.Stmt) -> tirx.Stmt:
        """Return a statement run by all threads, step by step.

        Raises:
            BuildError: a ballot is inside a statement that is not supported.
        """
        if isinstance(s, tirx.SeqStmt):
            return join_statements([self.write(part) for part in s.seq])
        if isinstance(s, tirx.AllocBuffer):
            wide = kernel_code.widen(s.buffer, [self.team.extent.astype("int64")], "global")
            self.places[s.buffer] = (wide, [self.team.loop_var.astype("int64")])
            return tirx.AllocBuffer(wide)
        if not kernel_code.find_extern(s, BALLOT):
            return self.repeat(kernel_code.move_buffers(s, self.places))
        if isinstance(s, tirx.For):
            body = self.write(s.body)
            return change_loop(s, min=self._of_all(s.min), extent=self._of_all(s.extent), body=body)
        if isinstance(s, tirx.While):
            return tirx.While(self._of_all(s.condition), self.write(s.body))
        if isinstance(s, tirx.IfThenElse) and s.else_case is None:
            return guard(self.write(s.then_case), [self._of_all(s.condition)])
        if isinstance(s, tirx.BufferStore):
            return self._meet(kernel_code.move_buffers(s, self.places))
        raise BuildError(f"build: a ballot stands inside {type(s).__name__}, found by 'simt'")

    def _of_all(self, x: Any) -> Any:
        """Return the first thread's value of an expression that is equal in all threads."""
        first = {self.team.loop_var: tirx.const(0, self.team.loop_var.ty.dtype)}
        return replace_vars(kernel_code.move_buffers(x, self.places), first)

    def _meet(self, s: tirx.Stmt) -> tirx.Stmt:
        """Emulate a ballot: all threads store their outcomes in a table, then read all of them."""
        (call,) = kernel_code.find_extern(s, BALLOT)
        size = int(call.args[2])
        bits = tirx.decl_buffer((i64(size),), "int32", "bits", scope="global")
        place = [self.team.loop_var.astype("int64")]
        total: Any = tirx.IntImm("int32", 0)
        for lane in range(size):
            total = total | tirx.shift_left(bits[i64(lane)], tirx.IntImm("int32", lane))
        rest = tvm_ffi.structural_map(
            s, (tvm.ir.Call, lambda x: total if is_extern(x, BALLOT) else x)
        )
        leave = tirx.BufferStore(bits, call.args[1].astype("int32"), place)
        return tirx.SeqStmt([tirx.AllocBuffer(bits), self.repeat(leave), self.repeat(rest)])
