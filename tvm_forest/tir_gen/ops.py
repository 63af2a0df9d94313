"""The custom TIR operators of the package.

takes: nothing; gives: names of operators that it registers with TVM, and functions that make and
find their calls.

    tvm_forest.walk(rows[r, 0], tree, layout buffers ...)      value of the leaf that row r reaches
    tvm_forest.walk_id(rows[r, 0], tree, layout buffers ...)   the leaf's number in the source model
    tvm_forest.linear(walk, rows[r, 0], linear buffers ...)    value of the linear leaf `walk`
    tvm_forest.reduce(b[i], value, initial, how)               value to store to b[i]

Buffers are passed as one load each ("anchors"): TVM's schedule primitives rewrite loads, so a walk
still finds its buffers after `cache_read` has redirected them.

A reduction combines a value with an array element; `how` is "add", "min", "max", or "atomic add" if
other threads update the same element. `initial` is the neutral value that partial results start
from. TVM recognises reductions by their form, so this one is registered with it, and its schedule
primitives apply to it.

TVMScript prints operators as `T.tvm_forest_reduce(...)`, and can parse this again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import register_op_attr
from tvm.tirx import script

from .internals import names
from .internals.replacing import put_word
from .internals.value_hooks import repair_hooks
from .ir import find_all

if TYPE_CHECKING:
    from ..layouts.protocol import Layout

WALK = "tvm_forest.walk"
WALK_ID = "tvm_forest.walk_id"
LINEAR = "tvm_forest.linear"
REDUCE = "tvm_forest.reduce"
WALKS = (WALK, WALK_ID)

LANE, BALLOT = "tvmf_lane", "tvmf_ballot"
"""Names of external functions: a thread's index in its team, and the ballot of its team. A team is
the threads of a GPU that decide a tile together."""
EXTERN = (names.CALL_EXTERN, names.CALL_PURE_EXTERN)

ADD, MIN, MAX, ATOMIC_ADD = "add", "min", "max", "atomic add"
INITIAL = {ADD: 0.0, MIN: float("inf"), MAX: -float("inf"), ATOMIC_ADD: 0.0}
"""The neutral value that partial results start from, by kind of reduction."""


def reduce(element: Any, value: Any, how: str = ADD) -> Any:
    """Return a call that reduces `value` into `element`, to be stored to that element.

    Args:
        element: load of the element.
        value: value that is combined with it.
        how: a key of `INITIAL`.
    """
    dtype = element.ty.dtype
    initial = tirx.FloatImm(dtype, INITIAL[how])
    # `how` comes last: of several constants, TVM's pattern of a reduction uses the last
    return tirx.call_intrin(dtype, REDUCE, element, value, initial, tvm.ir.StringImm(how))


def reduce_into(element: Any, reduction: Any, how: str = "") -> Any:
    """Return `reduction` with `element` in place of its own; `how` replaces its kind if given."""
    return reduce(element, reduction.args[1], how or reduction.args[3].value)


def join(reduction: Any) -> Any:
    """Return the plain expression that a reduction stores if no other thread writes the element."""
    element, value, _, how = reduction.args
    plain = {MIN: tirx.min, MAX: tirx.max}.get(how.value)
    return plain(element, value) if plain else element + value


def is_atomic(value: Any) -> bool:
    """Return whether a value is an atomic reduction: other threads add to its element too."""
    return is_call(value, REDUCE) and value.args[-1].value == ATOMIC_ADD


def begin_kept(element: Any, value: Any) -> Any:
    """Return the initial value of a cell that accumulates the sum of an element.

    It is the element, or 0 if other threads add to the element at the same time.

    Args:
        element: load of the element.
        value: value of the store to the element, such as a reduction.
    """
    return tirx.const(0.0, element.ty.dtype) if is_atomic(value) else element


def add_to_kept(kept: Any, value: Any) -> Any:
    """Return the value to store to the cell `kept`, for a store of `value` to the element."""
    if not is_call(value, REDUCE):
        return value
    return reduce_into(kept, value, ADD if is_atomic(value) else "")


def end_kept(element: Any, kept: Any, value: Any) -> Any:
    """Return what to store to an element at the end, when the cell `kept` has its whole sum.

    It is `kept`, or an atomic addition of it if other threads add to the element as well.

    Args:
        element, value: see `begin_kept`.
        kept: load of the cell.
    """
    return reduce(element, kept, ATOMIC_ADD) if is_atomic(value) else kept


def team_lane() -> Any:
    """Return the index of a thread in its team, int64.

    When a kernel is built, its own variable takes the place of this call.
    """
    return tirx.call_pure_extern("int64", LANE)


def ballot(outcome: Any, size: int) -> Any:
    """Return the bit mask of the outcomes of a team's threads, bit i from thread i; int32.

    All threads of the team must reach this call together; other threads need not.

    Args:
        outcome: truth value of a thread.
        size: number of threads in a team, a power of two.
    """
    return tirx.call_extern("int32", BALLOT, outcome, tirx.IntImm("int32", size))


def find_extern(node: Any, name: str) -> list[Any]:
    """Return the calls of the external function `name` inside some code."""
    return find_all(node, tvm.ir.Call, lambda call: is_extern(call, name))


def is_extern(node: Any, name: str) -> bool:
    """Return whether an expression calls the external function `name`."""
    return is_call(node, *EXTERN) and str(node.args[0].value) == name


def keep_rounded(value: Any) -> Any:
    """Return a product that LLVM rounds before it is added, never fused with the sum.

    TVM allows LLVM to contract a product and a sum into one fused operation, which rounds once, not
    twice. LLVM's `arithmetic.fence` prevents that at no cost. Kernels need no fence, since their
    compilers do not contract.
    """
    return tirx.call_llvm_pure_intrin(str(value.ty.dtype), "llvm.arithmetic.fence", value)


def _register_reducer(how: str) -> None:
    """Register a kind of reduction, with its initial value, so that TVM's primitives accept it.

    A loaded initial value, such as a base score, is accepted too; the pass PlaceInitials makes sure
    that it is added only once.
    """

    def identity(initial: Any) -> Any:
        given = initial[0]
        loaded = isinstance(given, tvm.ir.TensorLoad)
        return [given if loaded else tirx.FloatImm(given.ty.dtype, INITIAL[how])]

    def combine(x: Any, y: Any) -> Any:
        return [reduce(x[0], y[0], how)]

    # registered as global functions, since TVM keeps reducers longer than Python runs
    held = [
        tvm_ffi.register_global_func(f"{REDUCE}.{function.__name__}.{how}", function, override=True)
        for function in (combine, identity)
    ]
    tvm.get_global_func(names.REGISTER_REDUCER)(1, *held)


def _register(name: str, in_script: Callable[..., Any], prints_dtype: bool) -> None:
    """Register an operator with TVM, and its name in TVMScript."""
    # the operator reads memory, so TVM must not duplicate or drop a call
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
    """Return whether an expression calls one of the operators `names`."""
    return getattr(getattr(node, "op", None), "name", "") in names


def find_calls(node: Any, *names: str) -> list[Any]:
    """Return the calls of the operators `names` inside some code."""
    return find_all(node, tvm.ir.Call, lambda call: is_call(call, *names))


def find_walk(node: Any) -> Any | None:
    """Return the first call of a walk inside some code; None if there is none."""
    return next(iter(find_calls(node, *WALKS)), None)


def replace_call(node: Any, names: tuple[str, ...], value: Any) -> Any:
    """Replace the calls of some operators by a value."""
    return tvm_ffi.structural_map(
        node, (tvm.ir.Call, lambda call: value if is_call(call, *names) else call)
    )


def tree_of(call: Any, layout: Layout) -> tuple[Any, dict[str, Any]]:
    """Return the tree number of a walk, and its buffers by their names in the layout."""
    _, tree, *anchors = call.args
    specs = layout.id_buffers() if is_call(call, WALK_ID) else layout.value_buffers()
    names = [spec.name for spec in specs]
    return tree, {name: load.source for name, load in zip(names, anchors, strict=True)}
