"""Emits the TIR functions that compute SHAP values and their interactions.

takes: ContributionTables; gives: a TIR function (rows, tables ..., result).

A block of rows goes through all trees, see `contribution_walk`, or its contributions are looked up,
see `contribution_lookup`. On a GPU, each thread walks one row.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ..forest.contributions import INTERACTIONS, ContributionTables, contribution_arrays
from .contribution_lookup import BLOCK, ContributionLookup
from .contribution_walk import REAL, VECTORS, ContributionWalk
from .ir import guard, i64

SINGLE = "_of_one"
"""Suffix of the name of the function that takes rows one by one."""

THREADS = 64
"""Number of threads in a GPU block, each with one row."""


def emit_contributions(
    tables: ContributionTables, name: str, width: int, fused: bool, on_gpu: bool
) -> tirx.PrimFunc:
    """Return the TIR function that computes contributions or interactions.

    Args:
        tables: the model.
        name: CONTRIBUTIONS, or INTERACTIONS.
        width: number of rows side by side in vector lanes.
        fused: whether the machine has a fused multiply-add.
        on_gpu: emit a kernel with one row per thread, rather than parallel blocks of rows.

    Emits:
        A function (rows, arrays of `contribution_arrays` ..., result). The result is float64 (R,
        groups, players + 1), whose last column stays zero. A group is an output; for interactions,
        an output and a player.
    """
    forest = tables.forest
    n = tirx.Var("n", "int64")
    interactions = name == INTERACTIONS
    looks_up = not interactions and not on_gpu and tables.subtrees.fits
    arrays = contribution_arrays(tables, name, looks_up)
    rows = _declare("rows", (n, i64(forest.n_features)), forest.row_dtype)
    model = {k: _declare(k, (i64(x.size),), str(x.dtype)) for k, x in arrays.items()}
    players = len(tables.players)
    groups = forest.n_outputs * (players if interactions else 1)
    result = _declare("result", (n, i64(groups), i64(players + 1)), REAL)
    block = tirx.Var("block", "int64")
    if looks_up:
        lookup = ContributionLookup(tables.subtrees, model)
        count = tirx.floordiv(n + (BLOCK - 1), i64(BLOCK))
        body = lookup.emit(rows, result, block * BLOCK)
        body = tirx.For(block, i64(0), count, tirx.ForKind.PARALLEL, body)
        return tirx.PrimFunc([rows, *model.values(), result], body)
    walk = ContributionWalk(tables, model, interactions, width, fused)
    if on_gpu:
        thread = tirx.Var("thread", "int64")
        row = block * THREADS + thread
        body = guard(walk.emit(rows, result, row), [row < n])
        body = _bind(thread, i64(THREADS), body, "threadIdx.x")
        body = _bind(block, tirx.floordiv(n + (THREADS - 1), i64(THREADS)), body, "blockIdx.x")
    else:
        size = count_block_rows(width)
        body = walk.emit(rows, result, block * size)
        count = tirx.floordiv(n + (size - 1), i64(size))
        body = tirx.For(block, i64(0), count, tirx.ForKind.PARALLEL, body)
    return tirx.PrimFunc([rows, *model.values(), result], body)


def list_functions(
    name: str, looks_up: bool, on_gpu: bool, abilities: frozenset[str]
) -> dict[str, tuple[int, int]]:
    """Return the vector width and the block size of each function, in rows, by its name.

    For walks on a CPU there are two: the function for single rows comes first.
    """
    if looks_up or on_gpu:
        return {name: (1, BLOCK if looks_up else 1)}
    width = choose_width(abilities)
    return {name + SINGLE: (1, 1), name: (width, count_block_rows(width))}


def count_block_rows(width: int) -> int:
    """Return the number of rows in a block of a walk, for a vector width."""
    return width * VECTORS if width > 1 else 1


def choose_width(abilities: frozenset[str]) -> int:
    """Return the number of rows that walk side by side on a CPU: those of two float64 registers.

    Branches depend only on the trees, so more rows share the cost of a misprediction.
    """
    if "avx512f" in abilities:
        return 16
    return 8 if "avx" in abilities else 4


def _declare(name: str, shape: tuple[Any, ...], dtype: str) -> Any:
    itemsize = tvm.DataType(dtype).itemsize
    return tirx.decl_buffer(shape, dtype, name, data_alignment=itemsize)


def _bind(var: tirx.Var, extent: Any, body: tirx.Stmt, tag: str) -> tirx.For:
    axis = tirx.IterVar(None, var, tirx.IterVar.ThreadIndex, tag)
    return tirx.For(var, i64(0), extent, tirx.ForKind.THREAD_BINDING, body, axis)
