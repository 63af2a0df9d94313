"""The custom operators of the package.

takes: nothing; gives: names of operators registered with TVM, and their calls in some code.

    tvm_forest.walk(rows[r, 0], tree, layout buffers ...)      value of the leaf that row r reaches
    tvm_forest.walk_id(rows[r, 0], tree, layout buffers ...)   number of that leaf in the source
    tvm_forest.linear(walk, rows[r, 0], linear buffers ...)    value of the leaf of that number
    tvm_forest.atomic_add(b[i], value)                         as the value of a store to b[i]

Buffers are passed as one load each ("anchors"): TVM's schedule primitives rewrite loads, so a walk
still finds its buffers after `cache_read` has redirected them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import register_op_attr

from .ir import find_all

if TYPE_CHECKING:
    from ..layouts.representation import Representation

WALK = "tvm_forest.walk"
WALK_ID = "tvm_forest.walk_id"
LINEAR = "tvm_forest.linear"
ATOMIC_ADD = "tvm_forest.atomic_add"
WALKS = (WALK, WALK_ID)


for _name in {WALK, WALK_ID, LINEAR, ATOMIC_ADD}.difference(tvm.ir.Op.list_op_names()):
    # they read memory, so TVM may not write them twice or drop them
    register_op_attr(_name, "TCallEffectKind", tirx.CallEffectKind.ReadState.value, level=11)
    register_op_attr(_name, "TScriptPrinterName", _name.replace(".", "_"), level=20)


def is_call(node: Any, *names: str) -> bool:
    """Return whether an expression is the call of one of some operators."""
    return getattr(getattr(node, "op", None), "name", "") in names


def find_calls(node: Any, *names: str) -> list[Any]:
    """Return the calls of some operators inside some code."""
    return find_all(node, tvm.ir.Call, lambda call: is_call(call, *names))


def find_walk(node: Any) -> Any | None:
    """Return the walk inside some code, or None."""
    return next(iter(find_calls(node, *WALKS)), None)


def replace_call(node: Any, names: tuple[str, ...], value: Any) -> Any:
    """Return code in which a value stands for the calls of some operators."""
    return tvm_ffi.structural_map(
        node, (tvm.ir.Call, lambda call: value if is_call(call, *names) else call)
    )


def tree_of(call: Any, rep: Representation) -> tuple[Any, dict[str, Any]]:
    """Return the tree number of a walk, and its buffers by the names the layout gave them."""
    _, tree, *anchors = call.args
    specs = rep.id_buffers() if is_call(call, WALK_ID) else rep.value_buffers()
    names = [spec.name for spec in specs]
    return tree, {name: load.source for name, load in zip(names, anchors, strict=True)}
