"""Changes of kernels before and after TVM prints them as text, shared by GPU targets."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..runtime.gpu.plan import HostLoop, HostStep, Launch, Plan
from ..target import STATIC_SHARED_BYTES
from ..tir_gen.internals import names
from ..tir_gen.ir import find_all, find_stores
from ..tir_gen.ops import find_calls, is_call

KERNEL = re.compile(f"(?={names.KERNEL})")
SHARED = re.compile(names.SHARED)
BYTES = {
    **dict.fromkeys(("bool", "uchar", "signed char", "int8_t", "uint8_t"), 1),
    **dict.fromkeys(("short", "ushort", "int16_t", "uint16_t"), 2),
    **dict.fromkeys(("int", "uint", "float", "int32_t", "uint32_t"), 4),
    **dict.fromkeys(("double", "int64_t", "uint64_t"), 8),
}
"""Bytes of an element, by its type in the text."""

_FENCE = int(tirx.call_llvm_pure_intrin("float64", "llvm.arithmetic.fence", 0.0).args[0])
"""Number of LLVM's intrinsic `llvm.arithmetic.fence`."""


def map_nodes(mod: tvm.IRModule, kind: Any, change: Callable[[Any], Any]) -> tvm.IRModule:
    """Replace all TIR nodes of one class in kernels by what a function returns for them."""
    kernels = {
        var: func.with_body(tvm_ffi.structural_map(func.body, (kind, change)))
        for var, func in mod.functions.items()
    }
    return tvm.IRModule(kernels)


def drop_fences(mod: tvm.IRModule) -> tvm.IRModule:
    """Remove `ops.keep_rounded` from kernels, for compilers that do not fuse products and sums."""

    def drop(call: Any) -> Any:
        is_fence = is_call(call, names.CALL_LLVM) and int(call.args[0]) == _FENCE
        return call.args[1] if is_fence else call

    return map_nodes(mod, tvm.ir.Call, drop)


def shift_no_negation(shift: Any) -> Any:
    """Rewrite a shift of a negation: ptxas 13.0 miscompiles (-x) >> 2 as -(x >> 2)."""
    negated, by = shift.a, shift.b
    is_negation = isinstance(negated, tirx.Sub) and isinstance(negated.a, tirx.IntImm)
    if not (is_negation and int(negated.a) == 0 and isinstance(by, tirx.IntImm)):
        return shift
    more = tirx.const((1 << int(by)) - 1, negated.ty.dtype)
    return negated.a - ((negated.b + more) >> by)


def share_written(text: str, kernels: tvm.IRModule) -> str:
    """Remove "restrict" from the parameters for arrays that a kernel writes.

    TVM puts it on all arrays. It promises that no other pointer writes there, so a compiler may
    keep a value in a register that a thread stores for other threads, even across a barrier.
    """
    for kernel in kernels.functions.values():
        written = _written_by(kernel)
        flags = [parameter in written for parameter in kernel.params]

        def share(head: re.Match[str], flags: list[bool] = flags) -> str:
            arrays = zip(head[2].split(", "), flags, strict=True)
            shown = (re.sub(names.RESTRICT, "", x) if shared else x for x, shared in arrays)
            return f"{head[1]}({', '.join(shown)})"

        text = re.sub(rf"\b({kernel.attrs['global_symbol']})\(([^)]*)\)", share, text)
    return text


def _written_by(kernel: tirx.PrimFunc) -> set[Any]:
    """Return the parameters that a kernel writes to, by itself or in the functions it calls."""
    given = (x for call in find_calls(kernel.body, names.CALL_EXTERN) for x in call.args)
    buffers = {x.args[0].source for x in given if is_call(x, names.ADDRESS_OF)}
    buffers |= {store.buffer for store in find_stores(kernel.body)}
    declared = find_all(kernel.body, tirx.DeclBuffer)
    return {declaration.data for declaration in declared if declaration.buffer in buffers}


def atomic_functions(text: str, template: str, words: dict[str, dict[str, str]]) -> str:
    """Return definitions of the atomic additions that kernels call; they return the old value.

    Args:
        text: source of the kernels.
        template: a definition, with {name} and the keys of the dicts in `words` as placeholders.
        words: for each dtype, the text for each placeholder.
    """
    named = ((f"tvmf_atomic_add_{dtype}", rest) for dtype, rest in words.items())
    return "".join(template.format(name=name, **rest) for name, rest in named if name in text)


def declare_at_launch(text: str) -> tuple[str, dict[str, int]]:
    """Make shared memory dynamic in kernels that use more than they may declare statically.

    Args:
        text: source of the kernels.

    Returns:
        The text, in which the shared arrays of such a kernel are parts of one array whose size the
        launch decides, and the bytes of that array by the kernel's name.
    """
    parts, sizes = KERNEL.split(text), dict[str, int]()
    for number, part in enumerate(parts):
        declared = SHARED.findall(part)
        total, places = 0, dict[str, int]()
        for alignment, kind, name, count in declared:
            places[name] = -(-total // int(alignment)) * int(alignment)
            total = places[name] + BYTES[kind] * int(count)
        found = re.search(r"(\w+)\(", part.partition(names.LAUNCH_BOUNDS)[2].partition(")")[2])
        if total <= STATIC_SHARED_BYTES or found is None:
            continue

        def place(match: re.Match[str], places: dict[str, int] = places) -> str:
            kind, name = match[2], match[3]
            return f"{kind}* {name} = ({kind}*)(at_launch + {places[name]});"

        head, brace, body = SHARED.sub(place, part).partition("{\n")
        memory = f"  extern __shared__ __align__(128) unsigned char at_launch[];  // {total}\n"
        parts[number], sizes[found[1]] = head + brace + memory + body, total
    return "".join(parts), sizes


def launch_with(plan: Plan, sizes: dict[str, int]) -> Plan:
    """Return a plan whose launches give kernels the bytes of dynamic shared memory in `sizes`."""

    def change(step: HostStep) -> HostStep:
        if isinstance(step, HostLoop):
            return replace(step, steps=tuple(map(change, step.steps)))
        if isinstance(step, Launch) and step.kernel in sizes:
            return replace(step, shared=sizes[step.kernel])
        return step

    return replace(plan, steps=tuple(map(change, plan.steps))) if sizes else plan
