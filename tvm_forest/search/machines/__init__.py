"""Data about machines: CPU features, and the durations of a prediction's operations.

takes: Target; gives: the most similar Machine.

A file of this folder describes one machine: the CPUs it stands for, by LLVM's names, their
features, the sizes of their caches, and the nanoseconds of every operation that `search.cost`
counts. `tvm-forest calibrate` writes such files (or `benchmarks/tuning/machines.py` those that are
shipped); a user's own file, see `own_file`, has priority on the machine where it was made.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...errors import InputError
from ...system.process.locks import cached_property
from ...system.values import dataclass, replace
from ...target import Target, cpu_name

VARIABLE = "TVM_FOREST_MACHINE"
"""Environment variable: path of the user's own machine file; "off" for none."""

FORMAT = 1
_MISREAD = (RecursionError, TypeError, ValueError)

TELLING = ("avx512vbmi", "avx512bw", "avx512f", "avx2", "avx", "ssse3", "neon")
"""CPU features by which machines differ most, the most significant one first."""


@dataclass(frozen=True)
class Machine:
    """The description of a CPU.

    Attributes:
        name: the name that the CPU reports.
        vendor: its maker, see `Target.vendor`.
        cpus: LLVM's names of CPUs of this kind, such as "znver4".
        abilities: those features of `TELLING` that it has, and others by which it differs from an
            older machine of its maker with the same ones.
        cache_bytes: sizes of a core's data caches, nearest first.
        nanoseconds: durations of operations, by name.
        origin: when and how these were measured.
    """

    name: str
    vendor: str
    cpus: tuple[str, ...]
    abilities: frozenset[str]
    cache_bytes: tuple[int, ...]
    nanoseconds: Mapping[str, float]
    origin: str

    def to_json(self) -> str:
        """Return the text of the machine's file."""
        fields = {
            "format": FORMAT,
            "name": self.name,
            "vendor": self.vendor,
            "cpus": list(self.cpus),
            "abilities": sorted(self.abilities),
            "cache_bytes": list(self.cache_bytes),
            "origin": self.origin,
            "nanoseconds": {key: round(x, 4) for key, x in sorted(self.nanoseconds.items())},
        }
        return json.dumps(fields, indent=1) + "\n"

    @cached_property
    def text(self) -> str:
        """The cached result of `to_json`, for digests."""
        return self.to_json()

    @classmethod
    def from_json(cls, text: str, where: str) -> Machine:
        """Read a machine's file; `where` names it in errors.

        Raises:
            InputError: the text is damaged, or of another version.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']}, expected {FORMAT}")
            times = {str(key): float(x) for key, x in data["nanoseconds"].items()}
            if not all(0 <= x < float("inf") for x in times.values()):
                raise ValueError("a time is negative or no number")
            return cls(
                str(data["name"]),
                str(data["vendor"]),
                tuple(map(str, data["cpus"])),
                frozenset(map(str, data["abilities"])),
                tuple(int(x) for x in data["cache_bytes"]),
                MappingProxyType(times),
                str(data["origin"]),
            )
        except (ArithmeticError, AttributeError, LookupError, *_MISREAD) as error:
            raise InputError(
                f"{where}: no description of a machine ({error}); make it anew by "
                "`tvm-forest calibrate`"
            ) from None


def own_file() -> Path | None:
    """Return the path of the user's own machine file, existing or not; None if turned off."""
    said = os.environ.get(VARIABLE)
    if said is not None:
        return None if said in ("", "off") else Path(said)
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "tvm_forest" / "machine.json"


@functools.cache
def shipped_machines() -> tuple[Machine, ...]:
    """Return the machines shipped in this folder."""
    files = sorted(Path(__file__).parent.glob("*.json"))
    return tuple(Machine.from_json(x.read_text(encoding="utf-8"), x.name) for x in files)


@functools.lru_cache(maxsize=8)
def _own_machine(file: Path, changed: int) -> Machine:
    """Read a machine file; `changed`, its modification time, makes the cache reread a new one."""
    return Machine.from_json(file.read_text(encoding="utf-8"), str(file))


def own_machine() -> Machine | None:
    """Return the user's own machine; None if there is none, or it describes another CPU.

    Raises:
        InputError: its file is damaged.
    """
    file = own_file()
    try:
        if file is None:
            return None
        machine = _own_machine(file, file.stat().st_mtime_ns)
    except OSError:
        return None
    return machine if machine.name == cpu_name() else None


def machine_of(target: Target) -> Machine:
    """Return the machine whose durations are used for a target.

    For the CPU at hand, not named by "mcpu", it is the user's own if there is one; else the nearest
    of the shipped ones.

    Raises:
        InputError: the file of the user's own machine is damaged.
    """
    named = dict(target.options).get("mcpu")
    if named is None and not target.is_elsewhere:
        own = own_machine()
        if own is not None:
            return own
    return nearest(shipped_machines(), target)


def nearest(machines: tuple[Machine, ...], target: Target) -> Machine:
    """Return the machine most similar to a target: by its name, else by its features and maker.

    If the most similar one does not have the target's name, and is another maker's or differs in a
    feature of `TELLING`, its durations and caches are moved halfway to the medians of all machines,
    since the target may not share its peculiarities.
    """
    named = dict(target.options).get("mcpu")
    likeness = {i: _likeness(machine, target, named) for i, machine in enumerate(machines)}
    found = max(likeness, key=lambda i: likeness[i])
    is_named, *is_alike, _ = likeness[found]
    return machines[found] if is_named or all(is_alike) else _temper(machines[found], machines)


def _likeness(machine: Machine, target: Target, named: Any) -> tuple[int, ...]:
    """Return whether the name, each of `TELLING` and the maker are equal, and a number.

    The number counts the machine's further abilities: those that the CPU has, less those that it
    lacks; 0 for another maker's machine.
    """
    alike = [(x in machine.abilities) == target.has(x) for x in TELLING]
    is_of_maker = target.vendor == machine.vendor
    further = [1 if target.has(x) else -1 for x in machine.abilities.difference(TELLING)]
    return (named in machine.cpus, *alike, is_of_maker, is_of_maker * sum(further))


def _temper(machine: Machine, machines: tuple[Machine, ...]) -> Machine:
    """Return a machine with the geometric means of its numbers and the medians of all machines."""

    def halfway(x: float, others: Iterable[float]) -> float:
        known = sorted(others)
        median = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
        return float((x * median) ** 0.5)

    times = {
        name: halfway(x, (y.nanoseconds[name] for y in machines if name in y.nanoseconds))
        for name, x in machine.nanoseconds.items()
    }
    caches = tuple(
        int(halfway(x, (y.cache_bytes[i] for y in machines if i < len(y.cache_bytes))))
        for i, x in enumerate(machine.cache_bytes)
    )
    return replace(machine, nanoseconds=MappingProxyType(times), cache_bytes=caches)
