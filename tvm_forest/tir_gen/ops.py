"""The custom operators of the package.

takes: nothing; gives: names of operators registered with TVM, and their calls in some code.

    tvm_forest.walk(rows[r, 0], tree, layout buffers ...)      value of the leaf that row r reaches
    tvm_forest.walk_id(rows[r, 0], tree, layout buffers ...)   number of that leaf in the source
    tvm_forest.linear(walk, rows[r, 0], linear buffers ...)    value of the leaf of that number
    tvm_forest.reduce(b[i], value, initial, how)               as the value of a store to b[i]

Buffers are passed as one load each ("anchors"): TVM's schedule primitives rewrite loads, so a walk
still finds its buffers after `cache_read` has redirected them.

A reduction joins a value to an array element as if nothing came between, in the way `how`: "add",
"min", "max", or "atomic add" where other threads do the same. `initial` is what partial results
start from, and has no effect on a result. TVM knows reductions by their form, and is told the form
of ours, so that its own primitives apply to them.

TVMScript prints operators as `T.tvm_forest_reduce(...)` and parses what it printed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import register_op_attr
from tvm.tirx import script

from ..internals import names
from ..internals.replacing import put_word
from ..internals.value_hooks import repair_hooks
from .ir import find_all

if TYPE_CHECKING:
    from ..layouts.protocol import Layout

WALK = "tvm_forest.walk"
WALK_ID = "tvm_forest.walk_id"
LINEAR = "tvm_forest.linear"
REDUCE = "tvm_forest.reduce"
WALKS = (WALK, WALK_ID)

LANE, BALLOT = "tvmf_lane", "tvmf_ballot"
"""Functions of a team of threads that decide a tile together, as its code calls them."""
EXTERN = (names.CALL_EXTERN, names.CALL_PURE_EXTERN)

ADD, MIN, MAX, ATOMIC_ADD = "add", "min", "max", "atomic add"
INITIAL = {ADD: 0.0, MIN: float("inf"), MAX: -float("inf"), ATOMIC_ADD: 0.0}
"""What partial results start from, by how values are joined."""


def reduce(element: Any, value: Any, how: str = ADD) -> Any:
    """Return a reduction, which is to be stored to the element.

    Args:
        element: load of the element.
        value: what is joined to it.
        how: a key of `INITIAL`.
    """
    dtype = element.ty.dtype
    initial = tirx.FloatImm(dtype, INITIAL[how])
    # the word comes last: of several constants, TVM heeds the last one that it compares
    return tirx.call_intrin(dtype, REDUCE, element, value, initial, tvm.ir.StringImm(how))


def reduce_into(element: Any, reduction: Any, how: str = "") -> Any:
    """Return a reduction of the same value into another element, and perhaps in another way."""
    return reduce(element, reduction.args[1], how or reduction.args[3].value)


def join(reduction: Any) -> Any:
    """Return what a reduction stores where no other thread writes."""
    element, value, _, how = reduction.args
    plain = {MIN: tirx.min, MAX: tirx.max}.get(how.value)
    return plain(element, value) if plain else element + value


def is_atomic(value: Any) -> bool:
    """Return whether a value is a reduction that other threads join to the same element."""
    return is_call(value, REDUCE) and value.args[-1].value == ATOMIC_ADD


def begin_kept(element: Any, value: Any) -> Any:
    """Return what a sum begins with that is kept elsewhere for a while.

    That is the element, or nothing if other threads add to it meanwhile.

    Args:
        element: load of the element.
        value: what would be stored to it.
    """
    return tirx.const(0.0, element.ty.dtype) if is_atomic(value) else element


def add_to_kept(kept: Any, value: Any) -> Any:
    """Return what is stored to a kept sum in place of a value; reductions are joined to it."""
    if not is_call(value, REDUCE):
        return value
    return reduce_into(kept, value, ADD if is_atomic(value) else "")


def end_kept(element: Any, kept: Any, value: Any) -> Any:
    """Return what is stored to the element when all is added to the kept sum."""
    return reduce(element, kept, ATOMIC_ADD) if is_atomic(value) else kept


def team_lane() -> Any:
    """Return the number of a thread in its team, int64; a kernel puts its own variable there."""
    return tirx.call_pure_extern("int64", LANE)


def ballot(outcome: Any, size: int) -> Any:
    """Return the outcomes of all threads of a team, bit i that of thread i; int32.

    All threads of the team must come here together; others need not.

    Args:
        outcome: truth value of a thread.
        size: threads of a team, a power of two.
    """
    return tirx.call_extern("int32", BALLOT, outcome, tirx.IntImm("int32", size))


def find_extern(node: Any, name: str) -> list[Any]:
    """Return the calls of a function inside some code."""
    return find_all(node, tvm.ir.Call, lambda call: is_extern(call, name))


def is_extern(node: Any, name: str) -> bool:
    """Return whether an expression calls a function by its name."""
    return is_call(node, *EXTERN) and str(node.args[0].value) == name


def keep_rounded(value: Any) -> Any:
    """Return a product that no sum takes in before it is rounded.

    TVM allows LLVM to fuse a product and a sum, which is then rounded once and not twice. LLVM's
    `arithmetic.fence` keeps them apart; it costs no instruction. Kernels are written without it,
    for their compilers are told to fuse nothing.
    """
    return tirx.call_llvm_pure_intrin(str(value.ty.dtype), "llvm.arithmetic.fence", value)


def _register_reducer(how: str) -> None:
    """Let TVM's primitives know a way of joining, and what its partial results start from.

    An initial value that is loaded, such as a base score, passes for that: the pass PlaceInitials
    lets it enter once.
    """

    def identity(initial: Any) -> Any:
        given = initial[0]
        loaded = isinstance(given, tvm.ir.TensorLoad)
        return [given if loaded else tirx.FloatImm(given.ty.dtype, INITIAL[how])]

    def combine(x: Any, y: Any) -> Any:
        return [reduce(x[0], y[0], how)]

    # global functions outlive Python, as the reducers do that hold them
    held = [
        tvm_ffi.register_global_func(f"{REDUCE}.{function.__name__}.{how}", function, override=True)
        for function in (combine, identity)
    ]
    tvm.get_global_func(names.REGISTER_REDUCER)(1, *held)


def _register(name: str, in_script: Callable[..., Any], prints_dtype: bool) -> None:
    """Register an operator, and what its call in TVMScript stands for."""
    # it reads memory, so TVM may not write it twice or drop it
    register_op_attr(name, names.EFFECT_KIND, tirx.CallEffectKind.ReadState.value, level=11)
    script_name = name.replace(".", "_")
    register_op_attr(name, names.PRINTER_NAME, script_name, level=20)
    register_op_attr(name, names.PRINTS_DTYPE, int(prints_dtype), level=20)
    put_word(script_name, in_script, (script, script.parser))


def _parse_walk(name: str) -> Callable[..., Any]:
    return lambda dtype, *args: tirx.call_intrin(dtype, name, *args)


def _parse_reduction(element: Any, value: Any, initial: Any, how: str) -> Any:
    return tirx.call_intrin(element.ty, REDUCE, element, value, initial, tvm.ir.StringImm(how))


repair_hooks()
if REDUCE not in tvm.ir.Op.list_op_names():  # a second import finds them
    for _name in (WALK, WALK_ID, LINEAR):
        _register(_name, _parse_walk(_name), prints_dtype=True)
    _register(REDUCE, _parse_reduction, prints_dtype=False)
    for _how in (ADD, MIN, MAX):
        _register_reducer(_how)


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


def tree_of(call: Any, layout: Layout) -> tuple[Any, dict[str, Any]]:
    """Return the tree number of a walk, and its buffers by the names the layout gave them."""
    _, tree, *anchors = call.args
    specs = layout.id_buffers() if is_call(call, WALK_ID) else layout.value_buffers()
    names = [spec.name for spec in specs]
    return tree, {name: load.source for name, load in zip(names, anchors, strict=True)}
