"""The custom operators of the package.

takes: nothing; gives: names of operators registered with TVM.

    tvm_forest.walk(rows[r, 0], tree, layout buffers ...)      value of the leaf that row r reaches
    tvm_forest.walk_id(rows[r, 0], tree, layout buffers ...)   number of that leaf in the source
    tvm_forest.linear(walk, rows[r, 0], linear buffers ...)    value of the leaf of that number
    tvm_forest.atomic_add(b[i], value)                         as the value of a store to b[i]

Buffers are passed as one load each ("anchors"): TVM's schedule primitives rewrite loads, so a walk
still finds its buffers after `cache_read` has redirected them.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import register_op_attr

WALK = "tvm_forest.walk"
WALK_ID = "tvm_forest.walk_id"
LINEAR = "tvm_forest.linear"
ATOMIC_ADD = "tvm_forest.atomic_add"


def _register(name: str) -> None:
    """Register an operator that reads memory and may not be duplicated or dropped."""
    register_op_attr(name, "TCallEffectKind", tirx.CallEffectKind.ReadState.value, level=11)
    register_op_attr(name, "TScriptPrinterName", name.replace(".", "_"), level=20)


def register_ops() -> None:
    """Register all operators; a second call does nothing."""
    known = set(tvm.ir.Op.list_op_names())
    for name in (WALK, WALK_ID, LINEAR, ATOMIC_ADD):
        if name not in known:
            _register(name)


register_ops()
