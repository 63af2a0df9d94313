"""Reduces a function to its computation, independent of its loops.

takes: a function with S-TIR blocks, scheduled or not; gives: its blocks alone, in canonical order,
and a seal, a hash which tells whether a function was edited, not only scheduled.

    for b0, tree, b1 in ...:                 with T.sblock("init"):    # r
        with T.sblock("walk"):         -->       margin[r] = base[0]
            with T.init():                   with T.sblock("walk"):    # r, t
                margin[r] = base[0]              margin[r] = reduce(margin[r], walk(t, rows[r]))
            margin[r] = ...

TVM's primitives change loops, and the place where initial values are written, but not these blocks.
Loops are read and checked one by one (`read_nest`). The contents of blocks and the attributes about
the model could only be checked against the model, which a module does not contain, so they are
checked by the seal.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from ...errors import ScheduleError
from ...schedule_prims.replay import PREFIX, WALK_BLOCK
from ...tir_gen import ir
from .blocks import list_blocks

SEAL = "tvm_forest.seal"
"""Function attribute: hash of the function's computation and of its attributes about the model."""
INIT, UPDATE = f"{WALK_BLOCK}_init", f"{WALK_BLOCK}_update"
"""Names of the two blocks into which `decompose_reduction` splits the block of the walk."""


def take_computation(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function with the same parameters and blocks, without loops and attributes."""
    found = dict[str, Any]()
    for x in list_blocks(func):
        block, name = x.block, str(x.block.name_hint)
        if block.init is not None:
            found[INIT] = _take_block(block, block.init, list_result_axes(block))
        name = WALK_BLOCK if name == UPDATE else name
        found[name] = _take_block(block, block.body, sort_axes(block))
    return tirx.PrimFunc(func.params, ir.join_statements([x for _, x in sorted(found.items())]))


def sort_axes(block: Any) -> list[Any]:
    """Return the axes of a block in canonical order: rows, classes, then reduced trees."""
    constant = tirx.IntImm
    return sorted(block.iter_vars, key=lambda x: (x.iter_type, isinstance(x.dom.extent, constant)))


def list_result_axes(block: Any) -> list[Any]:
    """Return the axes that index a result: rows and classes."""
    return [x for x in sort_axes(block) if x.iter_type == tirx.IterVar.DataPar]


def _take_block(block: Any, body: tirx.Stmt, axes: list[Any]) -> Any:
    """Return a copy of a block with another body, over some of its axes."""
    new = {x.var: tirx.Var(x.var.name, x.var.ty) for x in axes}
    own = [tirx.IterVar(x.dom, new[x.var], x.iter_type) for x in axes]
    own_buffers = block.alloc_buffers, block.match_buffers
    body = ir.replace_vars(body, new)
    taken = s_tir.SBlock(own, [], [], WALK_BLOCK, body, None, *own_buffers)
    return s_tir.SBlockRealize([x.dom.min for x in axes], True, taken)


def with_seal(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a canonical function with its seal, an attribute that `check_seal` compares later."""
    return func.with_attr(SEAL, _make_seal(func))


def check_seal(func: tirx.PrimFunc) -> None:
    """Refuse a function whose computation or model attributes were edited.

    Raises:
        ScheduleError: the seal does not match.
    """
    if str(func.attrs[SEAL]) != _make_seal(func):
        raise ScheduleError(
            "build: argument 'schedule': the attributes, the parameters or the blocks of a "
            "function were changed; begin with tvm_forest.lower(model).before, and change the "
            "loops around its blocks only"
        )


def _make_seal(func: tirx.PrimFunc) -> str:
    said = {str(k): x for k, x in func.attrs.items() if str(k).startswith(PREFIX) and k != SEAL}
    return str(tvm_ffi.structural_hash(take_computation(func).with_attrs(said)))
