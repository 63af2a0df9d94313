"""Make the machines that are shipped, in `tvm_forest/search/machines`.

    python -m benchmarks tuning.machines [--only zen4 cascadelake ...]

To be run on a Zen 4 (zen5 on a Zen 5), or with other `MEASURED`. What code for older CPUs takes is
measured on the CPU at hand by code that is made for them. Machines that are not at hand are
derived: their operations take as many times as long as `DERIVED` says, which rests on searches that
were run on such a machine or on tables of instructions.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tvm_forest.search import machines
from tvm_forest.search.machines import Machine, shipped_machines
from tvm_forest.search.measuring.calibrating import calibrate
from tvm_forest.target import AVX2, AVX512_BW, CPUS, SSE, parse_target

FOLDER = Path(machines.__file__).parent


TIMES = 3
"""Calibrations of a machine, of which the medians count."""


class Measured(NamedTuple):
    """A machine whose code runs here.

    Attributes:
        name, cpus: see `Machine`.
        target: what the code is made for.
        abilities: more than those of `TELLING`, by which it is told from an older machine.
        like, kept: file of another machine, and the beginnings of the names of those operations
            whose times are taken from it, such as waits that calibration did not meet.
        factors: as of `Derived`, where defaults that were timed turned out to be slower.
    """

    name: str
    target: dict[str, Any]
    cpus: tuple[str, ...]
    abilities: tuple[str, ...] = ()
    like: str = ""
    kept: tuple[str, ...] = ()
    factors: dict[str, float] = {}


MEASURED = {
    "zen4": Measured("Zen 4", {"kind": "llvm"}, ("znver4",)),
    "zen5": Measured(
        *("Zen 5", {"kind": "llvm"}, ("znver5",), ("avx512_vp2intersect",), "zen4"),
        kept=(
            *(f"wait memory {x}" for x in ("nodes", "tiles", "vectors")),
            *("wait model third", "wait plane"),
        ),
        factors={
            **{"wait third small trees": 0.5, "wait memory small trees": 0.27},
            **{"wait second small octets": 0.27, "wait row second, rows of codes": 0.14},
            **{"wait third pieces": 1.0, "wait third": 1.5, "walk octets": 1.16},
            **{"leaf levels 256": 0.6, "walk levels columns": 0.95},
            **{"walk packed, trees 8": 1.08, "walk ranked, trees 16": 1.24},
            "walk ranked, rows 16": 1.15,
        },
    ),
    "cascadelake": Measured(
        "AVX-512 without VBMI",
        {"kind": "llvm", "mcpu": "cascadelake"},
        tuple(CPUS[AVX512_BW].split()),
    ),
    "haswell": Measured(
        "AVX2",
        {"kind": "llvm", "mcpu": "x86-64-v3"},
        tuple(x for x in CPUS[AVX2].split() if x != "znver3"),
    ),
    "nehalem": Measured("SSE 4", {"kind": "llvm", "mcpu": "x86-64-v2"}, tuple(CPUS[SSE].split())),
    "x86-64": Measured("SSE 2", {"kind": "llvm", "mcpu": "x86-64"}, ("x86-64",)),
}


class Derived(NamedTuple):
    """A machine that is not at hand: like another one, but for factors of operations.

    Attributes:
        name, vendor, cpus, abilities, cache_bytes: see `Machine`; None for those of the other.
        like: file of the other.
        factors: how many times as long operations take whose names begin so, the first that fits.
        reason: where the factors come from.
        times: nanoseconds of operations that the other machine leaves to `search.guesses`.
    """

    name: str
    vendor: str
    cpus: tuple[str, ...]
    abilities: frozenset[str] | None
    cache_bytes: tuple[int, ...]
    like: str
    factors: dict[str, float]
    reason: str
    times: dict[str, float] = {}


DERIVED = {
    "zen3": Derived(
        "Zen 3",
        "AuthenticAMD",
        ("znver3",),
        frozenset({"avx", "avx2", "ssse3", "vaes"}),  # Zen 2 has no "vaes"
        (32 << 10, 512 << 10, 2965820),
        "haswell",
        {
            **dict.fromkeys(("walk array 8, trees 8", "walk sparse 8, trees 8"), 1.1),
            **dict.fromkeys(("walk array 8, trees 1", "walk sparse 8, trees 1"), 1.15),
            **dict.fromkeys(("walk array 4, trees 1", "walk sparse 4, trees 1"), 1.25),
            **dict.fromkeys(("walk array, trees 1", "walk reorg, trees 1"), 1.35),
            "walk ranked, trees 16": 1.25,
            "walk packed, trees 16": 1.25,
            "walk sparse, trees 16": 1.25,
        },
        "times of AVX2 code on Zen 4 times factors of four calibrations on a Zen 3, 2026-11-27",
        {"walk pieces": 5.5},
    ),
    "sapphirerapids": Derived(
        "Sapphire Rapids",
        "GenuineIntel",
        tuple(x for x in CPUS[f"{AVX512_BW} avx512vbmi"].split() if "znver" not in x),
        None,
        (48 << 10, 2 << 20, 32 << 20),
        "zen4",
        {
            "walk sparse 8": 0.94,
            "walk array 8": 0.94,
            "walk selection": 0.61,
            "walk slot": 1.4,
            "walk levels column": 4.0,
            "walk levels": 1.06,
            "wait": 0.86,
            "leaf": 0.85,
            "code": 0.85,
            "walk gather": 2.0,
            "walk": 1.2,
        },
        "times of Zen 4 times factors of searches on a Xeon with AMX, 2026-11-21",
    ),
    "neoverse": Derived(
        "Neoverse",
        "",
        (),
        frozenset({"neon"}),
        (64 << 10, 1 << 20, 32 << 20),
        "nehalem",
        {"": 1.0},
        "times of code for x86-64-v2 on Zen 4, not measured",
    ),
}


def measure(key: str) -> Machine:
    """Return a machine whose code runs here."""
    known = MEASURED[key]
    found = [calibrate(parse_target(known.target)) for _ in range(TIMES)]
    caches = tuple(map(max, zip(*(x.cache_bytes for x in found), strict=True)))
    times = {
        name: statistics.median(x.nanoseconds[name] for x in found if name in x.nanoseconds)
        * factor_of(name, known.factors)
        for name in {name for x in found for name in x.nanoseconds}
    }
    if known.like:
        like = Machine.from_json((FOLDER / f"{known.like}.json").read_text("utf-8"), known.like)
        times = {name: x for name, x in times.items() if not name.startswith(known.kept)}
        times |= {k: x for k, x in like.nanoseconds.items() if k.startswith(known.kept)}
    return replace(
        found[0],
        **{"name": known.name, "cpus": known.cpus, "nanoseconds": times, "cache_bytes": caches},
        abilities=found[0].abilities.union(known.abilities),
    )


def derive(key: str) -> Machine:
    """Return a machine that is not at hand."""
    about = DERIVED[key]
    like = Machine.from_json((FOLDER / f"{about.like}.json").read_text("utf-8"), about.like)
    times = {name: x * factor_of(name, about.factors) for name, x in like.nanoseconds.items()}
    abilities = like.abilities if about.abilities is None else about.abilities
    times |= about.times
    facts = (about.name, about.vendor, about.cpus, abilities, about.cache_bytes)
    return Machine(*facts, times, about.reason)


def factor_of(name: str, factors: dict[str, float]) -> float:
    """Return the factor of an operation."""
    key = "walk gather" if name.startswith("walk") and " gather " in name else name
    return next((x for start, x in factors.items() if key.startswith(start)), 1.0)


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[*MEASURED, *DERIVED])
    for key in parser.parse_args().only or [*MEASURED, *DERIVED]:
        machine = measure(key) if key in MEASURED else derive(key)
        (FOLDER / f"{key}.json").write_text(machine.to_json(), encoding="utf-8")
        shipped_machines.cache_clear()
        print(f"{key}: {len(machine.nanoseconds)} operations", flush=True)
