"""CPUs of other machines, by LLVM's target triple ("mtriple").

takes: options of a target; gives: the same, checked and completed.

LLVM ends the process or silently ignores an option if it finds an error while it compiles: a 32-bit
CPU, features that exclude each other, an ABI whose registers are missing. So options that are not
known to work are refused here, before LLVM sees them.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import tvm

from ..errors import InputError

WHERE = "build: argument 'target'"

LINUX = "(-[a-z0-9]+)?(-linux-(gnu|musl|android)|-none-elf|-unknown-elf)"
"""Pattern of what follows the architecture in a target triple for Linux or bare metal."""

MACOS, WINDOWS = r"-apple-macos(\d+(\.\d+)?)?", "-(pc|w64)-windows-gnu"


class Machines(NamedTuple):
    """The target triples and features that are supported for one architecture.

    Attributes:
        example: one of the triples.
        systems: pattern of what follows the architecture in the triples.
        mattr: CPU features that users may turn on with "+" and off with "-".
        given: default options; its "mattr" only counts if no CPU is named.
    """

    example: str
    systems: str
    mattr: tuple[str, ...]
    given: dict[str, Any] = {}


MACHINES = {
    "aarch64": Machines(
        "aarch64-linux-gnu",
        f"({LINUX}|{MACOS})",
        (
            *("aes", "bf16", "crc", "dotprod", "fp16fml", "fullfp16", "i8mm", "lse"),
            *("lse2", "rcpc", "rdm", "sha2", "sha3", "sve", "sve2"),
        ),
    ),
    "riscv64": Machines(
        "riscv64-linux-gnu",
        LINUX,
        ("m", "a", "f", "d", "c", "v", "zba", "zbb", "zbs", "zfh", "zicond"),
        {"mcpu": "generic-rv64", "mattr": ["+m", "+a", "+f", "+d", "+c"]},
    ),
    "wasm32": Machines(
        "wasm32-wasi",
        "(-unknown)?-(unknown|wasi)",
        (
            *("bulk-memory", "extended-const", "multivalue", "mutable-globals"),
            *("nontrapping-fptoint", "reference-types", "sign-ext", "simd128", "tail-call"),
        ),
        {"mcpu": "generic", "vector-width": 128},
    ),
    "x86_64": Machines(
        "x86_64-linux-gnu",
        f"({LINUX}|{MACOS}|{WINDOWS})",
        (
            *("avx", "avx2", "avx512bitalg", "avx512bw", "avx512cd", "avx512dq", "avx512f"),
            *("avx512vbmi", "avx512vbmi2", "avx512vl", "bmi", "bmi2", "f16c", "fma", "gfni"),
            *("lzcnt", "movbe", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"),
        ),
        {"mcpu": "x86-64"},
    ),
}
"""Supported machines by architecture. LLVM knows every feature listed here, and compiles with it;
`relaxed-simd` of WebAssembly is left out, for it would let LLVM fuse products and sums."""

ABIS = {"lp64": "", "lp64f": "f", "lp64d": "d"}
"""Calling conventions of 64-bit RISC-V, with the CPU feature that each needs."""


WITH_PARTS = ("m", "a", "c", "v")
"""Features of RISC-V that imply others, which stay on in LLVM when these are turned off."""


def complete_options(spec: dict[str, Any]) -> dict[str, Any]:
    """Check the options of a target for another machine; add a CPU, and on RISC-V an ABI.

    Args:
        spec: target options with "mtriple"; those other than "mcpu", "mattr" and "mabi" are
            returned as they are.

    Raises:
        InputError: the machine, CPU, feature or ABI is unknown, or they exclude each other.
    """
    triple, codegen = spec["mtriple"], tvm.target.codegen
    architecture = triple.partition("-")[0] if isinstance(triple, str) else ""
    machines = MACHINES.get(architecture)
    if machines is None or not re.fullmatch(architecture + machines.systems, triple):
        have = ", ".join(each.example for each in MACHINES.values())
        raise _error("mtriple", triple, f"is no machine that code is made for; use one like {have}")
    _check_abilities(spec.get("mattr", []), machines, triple)
    halved = [f"-{x}" for x in WITH_PARTS if f"-{x}" in spec.get("mattr", []) and "mcpu" in spec]
    if architecture == "riscv64" and halved:
        raise _error("mattr", halved[0], "would leave parts of it; leave 'mcpu' out, or name one")
    full = {**machines.given, **spec}
    if "mattr" in full:
        given = [] if "mcpu" in spec else machines.given.get("mattr", [])
        full["mattr"] = _keep_last_words([*given, *spec.get("mattr", [])])
    cpu = full.setdefault("mcpu", "generic")
    of_machine = tvm.target.Target({"kind": "llvm", "mtriple": triple})
    known = sorted(map(str, codegen.llvm_get_cpu_archlist(of_machine)))
    if cpu not in known:
        raise _error("mcpu", cpu, f"is no CPU of {triple}; use one of: {', '.join(known)}")
    if architecture not in ("aarch64", "wasm32") and "64bit" not in _list_abilities(triple, cpu):
        raise _error("mcpu", cpu, f"has no 64-bit mode, which {triple} needs; name a newer one")
    if architecture == "riscv64":
        return _choose_abi(full)
    if "mabi" in full:
        raise _error("mabi", full["mabi"], "is for riscv64 only; leave it out")
    return full


def _keep_last_words(mattr: list[str]) -> list[str]:
    """Keep the last of several settings of a feature, so that LLVM does not toggle it."""
    words = dict[str, str]()
    for ability in mattr:
        words.pop(ability[1:], None)
        words[ability[1:]] = ability
    return list(words.values())


def _check_abilities(mattr: Any, machines: Machines, triple: str) -> None:
    have = ", ".join(machines.mattr)
    if not isinstance(mattr, list | tuple):
        raise _error("mattr", mattr, f"is no list; use one such as ['+{machines.mattr[0]}']")
    for ability in mattr:
        if not isinstance(ability, str) or ability[:1] not in ("+", "-"):
            raise _error("mattr", ability, f"begins with neither '+' nor '-'; {triple} has {have}")
        if ability[1:] not in machines.mattr:
            raise _error("mattr", ability, f"is no ability that {triple} may have; use: {have}")


def _choose_abi(spec: dict[str, Any]) -> dict[str, Any]:
    """Return options with an ABI: the given one, or that which uses all float registers.

    Raises:
        InputError: the ABI is unknown, or needs a feature that is missing.
    """
    has = {"", *_list_abilities(spec["mtriple"], spec["mcpu"], spec.get("mattr", ()))}
    fitting = [abi for abi, needed in ABIS.items() if needed in has]
    abi = spec.get("mabi", fitting[-1])
    if abi not in ABIS:
        raise _error("mabi", abi, f"is unknown; use one of: {', '.join(ABIS)}")
    if abi not in fitting:
        raise _error("mabi", abi, f"needs '+{ABIS[abi]}' in 'mattr'; add it, or use {fitting[-1]}")
    return {**spec, "mabi": abi}


def _list_abilities(triple: str, cpu: str, mattr: Any = ()) -> set[str]:
    spec = {"kind": "llvm", "mtriple": triple, "mcpu": cpu, "mattr": list(mattr)}
    return set(map(str, tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target(spec))))


def _error(option: str, value: Any, what: str) -> InputError:
    return InputError(f"{WHERE}: option {option!r}: {value!r:.100} {what}")
