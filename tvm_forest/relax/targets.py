"""Converts TVM's targets to targets of this package.

takes: the TVM target that a module is compiled for; gives: Target.
"""

from __future__ import annotations

from typing import Any

import tvm

from ..errors import InputError
from ..target import Target, parse_target

WHERE = "relax.tvm_forest.predict: the target of the module"
GPUS = {"cuda": "arch", "rocm": "mcpu"}
"""The target option that names a GPU, by kind of target."""

BASELINE = "x86-64"
"""The CPU of a target that names none."""


def from_tvm(target: tvm.target.Target | None) -> Target:
    """Convert the TVM target of a module to a Target.

    A TVM target that names no CPU means the oldest 64-bit CPU, not the CPU at hand.

    Raises:
        InputError: this package does not support the target.
    """
    if target is None:
        return parse_target({"kind": "llvm", "mcpu": BASELINE})
    spec: dict[str, Any] = {str(key): value for key, value in target.export().items()}
    kind = str(spec["kind"])
    if kind == "llvm":
        return _of_cpu(spec)
    if kind in GPUS:
        named = {key: str(spec[key]) for key in (GPUS[kind],) if key in spec}
        return parse_target({"kind": kind, **named})
    kinds = ", ".join(map(repr, ("llvm", *GPUS)))
    raise InputError(f"{WHERE}: {kind!r} is none that tvm_forest compiles for; use {kinds}")


def _of_cpu(spec: dict[str, Any]) -> Target:
    """Convert a TVM target for a CPU.

    Features turned on with "+" are dropped, since code that does not use them is right too. If one
    is turned off with "-", the code is for the oldest CPU.
    """
    here = tvm.target.codegen.llvm_get_system_triple()
    elsewhere = spec.get("mtriple", here) != here
    named: dict[str, Any] = {
        key: str(spec[key]) for key in ("mcpu", "mtriple", "mabi") if key in spec
    }
    if any(str(ability).startswith("-") for ability in spec.get("mattr", ())):
        named.pop("mcpu", None)
    if elsewhere:
        return parse_target({"kind": "llvm", **named})
    cpu = named.get("mcpu", BASELINE)
    if cpu == tvm.target.codegen.llvm_get_system_cpu():
        return Target()  # with all features that Linux reports
    return parse_target({"kind": "llvm", "mcpu": cpu})


def is_gpu(vdevice: Any) -> bool:
    """Return whether a VDevice is a GPU that this package supports in Relax modules."""
    return str(vdevice.target.kind.name) in GPUS
