"""A Relax operator that checks, at compile time, that the target's CPU can run some functions.

takes: rows; gives: the same rows, or an InputError while the module is compiled.

    rows = R.tvm_forest.check_target(rows, target='{"kind": "llvm", "mcpu": "znver4"}')

A PrimFunc may call instructions by name, and LLVM ends the process if the CPU that it compiles for
lacks one. This operator is legalised before that, and raises an error instead.
"""

from __future__ import annotations

import json
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Op

from ..errors import InputError
from ..target import Target
from ..targets.cpu import instructions, tvm_target
from ..tir_gen.internals.names import DICT_ATTRS, LEGALIZE
from .operator import register_operator
from .targets import BASELINE

NAME = "relax.tvm_forest.check_target"


def check_target(rows: relax.Expr, target: str) -> relax.Call:
    """Return a call that returns its rows, and that can be compiled for certain CPUs only.

    These are the CPUs that have all instructions of `target`.

    Args:
        rows: any tensor that is passed to the functions.
        target: the CPU that the functions were made for, see `name_target`.
    """
    attrs = tvm.ir.make_node(DICT_ATTRS, target=str(target))
    return relax.Call(Op.get(NAME), [rows], attrs)


def name_target(target: Target) -> str:
    """Return a CPU as JSON text for `check_target`: its kind, and "mtriple" and "mcpu"."""
    full = tvm_target(target).export()
    return json.dumps({key: str(full[key]) for key in ("kind", "mtriple", "mcpu") if key in full})


def _legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Check the CPU that the module is compiled for, and return the rows in place of the call.

    Raises:
        InputError: the module is compiled for a GPU, or a CPU that lacks an instruction.
    """
    made_for, vdevice = str(call.attrs["target"]), call.args[0].ty.vdevice
    current = tvm.target.Target.current(allow_none=True)
    for known in (current,) if vdevice is None else (current, vdevice.target):
        spec: dict[str, Any] = {"kind": "llvm"} if known is None else dict(known.export())
        missing = _find_missing(made_for, spec)
        if missing:
            name = spec.get("mcpu") or spec.get("arch") or spec.get("mtriple") or spec["kind"]
            raise InputError(
                f"{NAME}: the forest was exported for {made_for}, and the module is compiled for "
                f"{str(name)!r}, which lacks {', '.join(missing[:6])}; give "
                "tvm_forest.relax.nn.ParameterForest the target that tvm.compile gets, or use "
                "ConstantForest"
            )
    return call.args[0]


def _find_missing(made_for: str, spec: dict[str, Any]) -> list[str]:
    """Return the features of the CPU `made_for`, a JSON text, that a TVM target lacks, sorted.

    A target for x86-64 without "mcpu" counts as the oldest 64-bit CPU. Of a target that is not a
    CPU, the result is ["a CPU"].
    """
    if str(spec["kind"]) != "llvm":
        return ["a CPU"]
    if str(spec.get("mtriple", "x86_64")).startswith("x86_64"):
        spec = {"mcpu": BASELINE} | spec
    needed = instructions(tvm.target.Target(json.loads(made_for)))
    return sorted(needed - instructions(tvm.target.Target(spec)))


def register() -> None:
    """Register the operator with TVM, once per process."""
    register_operator(
        check_target,
        "The CPU that functions were made for.",
        {"rows": "what is given back"},
        lambda call, bb: call.args[0].ty,
        **{LEGALIZE: _legalize},
    )
