"""Describes the machine that code is compiled for.

takes: a name, a dict or a target of TVM; gives: Target, plain facts without TVM.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from .errors import InputError
from .system.cores import available_cores
from .system.values import dataclass, field

GPUS = ("simt", "cuda", "rocm", "opencl")
REAL_GPUS = ("cuda", "rocm", "opencl")
KINDS = ("llvm", *GPUS)
LATER = ("metal", "vulkan")

_READ = {"cuda": ("arch",), "rocm": ("mcpu",), "opencl": ()}
"""Attributes of TVM's targets that are used, by kind; for "llvm", all except `_UNREAD` are."""

_UNREAD = {"kind", "tag", "keys", "host", "libs"}

STATIC_SHARED_BYTES = 48 * 1024
"""Bytes of shared memory that a block may have on every GPU of NVIDIA and AMD, without asking for
more at launch."""

SHARED_BYTES = {
    **dict.fromkeys((80, 87), 163 * 1024),
    **dict.fromkeys((90, 100, 103), 227 * 1024),
    **dict.fromkeys((86, 88, 89, 110, 120, 121), 99 * 1024),
}
"""Bytes of shared memory that a block of an NVIDIA GPU may have if it asks for them at launch, by
architecture number. Kernels are compiled only for these architectures."""

AMD_SHARED_BYTES = 64 * 1024, {"gfx950": 160 * 1024}
"""Bytes of shared memory that a block of an AMD GPU may have: usually, and on GPUs with more."""

LEAST_SHARED_BYTES = 32 * 1024
"""Bytes of shared memory that OpenCL guarantees for every device."""

OLD, SSE, AVX, AVX2 = "", "ssse3", "ssse3 avx", "ssse3 avx avx2"
AVX512, AVX512_BW = f"{AVX2} avx512f", f"{AVX2} avx512f avx512bw"
CPUS = {
    SSE: "atom bonnell btver1 core2 corei7 goldmont goldmont-plus nehalem penryn silvermont slm "
    "tremont westmere x86-64-v2",
    AVX: "bdver1 bdver2 bdver3 btver2 core-avx-i corei7-avx ivybridge sandybridge",
    AVX2: "alderlake arrowlake arrowlake-s bdver4 broadwell clearwaterforest core-avx2 gracemont "
    "grandridge haswell lunarlake meteorlake pantherlake raptorlake sierraforest skylake "
    "wildcatlake x86-64-v3 znver1 znver2 znver3",
    AVX512: "knl knm mic_avx512",
    AVX512_BW: "cascadelake cooperlake skx skylake-avx512 x86-64-v4",
    f"{AVX512_BW} avx512vbmi": "cannonlake diamondrapids emeraldrapids graniterapids "
    "graniterapids-d icelake-client icelake-server novalake rocketlake sapphirerapids tigerlake "
    "znver4 znver5",
}
"""LLVM's names of CPUs, by their features, as far as schedules depend on the features."""


X86_MACHINES = ("x86_64", "amd64", "i386", "i686")
ARM_MACHINES = ("aarch64", "arm64")
"""Names of machines in Python's `platform.machine()`, in lower case; all ARM machines have NEON."""

WINDOWS_FEATURES = {"ssse3": 36, "avx": 39, "avx2": 40, "avx512f": 41}
"""Numbers of CPU features in Windows's `IsProcessorFeaturePresent`, by Linux's names."""

OF_A_KIND = frozenset(
    "vendor_id,cpu family,model,model name,stepping,flags,Features,CPU implementer,"
    "CPU architecture,CPU variant,CPU part,CPU revision,cpu,isa,uarch".split(",")
)
"""Fields of /proc/cpuinfo that are equal on every machine with the same CPU."""


@dataclass(frozen=True)
class Target:
    """A target and the facts that schedules depend on.

    Attributes:
        kind: "llvm" for CPUs, "cuda", "rocm" or "opencl" for GPUs, or "simt" for GPU kernels that
            run on a CPU, one thread after the other.
        options: TVM's options of the target, sorted, e.g. (("mcpu", "znver4"),); without "mcpu" or
            "mtriple" the code is made for the CPU at hand.
        cores: CPU cores that this process may use; 1 for GPUs and for other machines.
        abilities: features of the CPU by Linux's names, such as "avx512f": those that the system
            reports, or, if the options name a CPU or a machine, those of `abilities_of`.
        vendor: maker of the CPU by Linux's names, such as "AuthenticAMD"; "" if the system does not
            report it, if the options name a CPU or a machine, or if abilities are given.
        shared_limit: bytes of shared memory that a block may have, if that is less than the GPU
            allows, as for kernels that TVM launches; None for no other limit.
    """

    kind: str = "llvm"
    options: tuple[tuple[str, Any], ...] = ()
    cores: int = field(default_factory=lambda: available_cores())
    abilities: frozenset[str] | None = field(default=None, repr=False)
    vendor: str = field(default="", repr=False)
    shared_limit: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.on_gpu or self.is_elsewhere:
            object.__setattr__(self, "cores", 1)
        if self.abilities is None:
            options = dict(self.options)
            named = "mcpu" in options or "mtriple" in options
            known = abilities_of(options) if named else cpu_abilities()
            object.__setattr__(self, "abilities", known)
            object.__setattr__(self, "vendor", "" if named else cpu_vendor())

    @property
    def on_gpu(self) -> bool:
        """Whether the code consists of GPU kernels, also for "simt"."""
        return self.kind in GPUS

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that a block may have.

        For "cuda" and "simt" without an architecture, it is the largest limit of any NVIDIA GPU,
        since the GPU at hand refuses launches that exceed its own; for images for several
        architectures, it is the smallest. For "rocm", it is that of the GPU that "mcpu" names, or
        the usual one. For OpenCL, it is what every device has.
        """
        if self.shared_limit is not None:
            return self.shared_limit
        options = dict(self.options)
        if self.kind == "rocm":
            usual, more = AMD_SHARED_BYTES
            return more.get(str(options.get("mcpu")).partition(":")[0], usual)
        if self.kind not in ("cuda", "simt"):
            return LEAST_SHARED_BYTES
        arch = str(options.get("arch", ""))
        if arch == "any":
            return min(SHARED_BYTES.values())
        return SHARED_BYTES.get(_number_of(arch), max(SHARED_BYTES.values()))

    @property
    def is_elsewhere(self) -> bool:
        """Whether the code is for another machine, named by its triple; it never runs here."""
        return self.kind == "llvm" and any(key == "mtriple" for key, _ in self.options)

    def has(self, ability: str) -> bool:
        """Return whether the CPU is known to have a feature such as "avx512f"."""
        return ability in (self.abilities or ())

    @property
    def has_bit_masks(self) -> bool:
        """Whether LLVM turns a comparison of 64 lanes into a bit mask by few instructions.

        It takes hundreds for WebAssembly, and for RISC-V unless the options have "+v".
        """
        options = dict(self.options) if self.is_elsewhere else {}
        triple, mattr = str(options.get("mtriple", "")), options.get("mattr") or ()
        return not (triple.startswith("wasm") or (triple.startswith("riscv") and "+v" not in mattr))

    def to_dict(self) -> dict[str, Any]:
        """Return the target as a dict, which `parse_target` accepts."""
        options = {key: list(x) if isinstance(x, tuple) else x for key, x in self.options}
        return {"kind": self.kind, **options}

    def host(self) -> dict[str, Any]:
        """Return, as a dict for TVM, the CPU that runs the code, or that drives the GPU."""
        if not self.on_gpu:
            return self.to_dict()
        options = self.to_dict() if self.kind == "simt" else {}
        return {key: x for key, x in options.items() if key != "order"} | {"kind": "llvm"}


@functools.cache
def cpu_abilities() -> frozenset[str]:
    """Return the features that the system reports of this CPU, named as in `read_abilities`."""
    return read_abilities(_read_cpu_fields(), platform.machine().lower())


def read_abilities(fields: Mapping[str, str], machine: str) -> frozenset[str]:
    """Return the features of a CPU by Linux's names, but "neon" where Linux says "asimd".

    If the fields do not list them: of an x86 CPU, those of `WINDOWS_FEATURES` that Windows says it
    has; of a 64-bit Arm CPU, "neon"; of others none.

    Args:
        fields: fields of /proc/cpuinfo; an emulator may show those of another machine.
        machine: the machine that the process runs on, in lower case, such as "x86_64".
    """
    if machine in X86_MACHINES:
        return frozenset(fields.get("flags", "").split()) or _ask_windows()
    told = fields.get("Features", "asimd" if machine in ARM_MACHINES else "").split()
    return frozenset("neon" if name == "asimd" else name for name in told)


def _ask_windows() -> frozenset[str]:
    """Return the available `WINDOWS_FEATURES`; empty on other systems."""
    if sys.platform != "win32":
        return frozenset()
    is_there = ctypes.windll.kernel32.IsProcessorFeaturePresent
    return frozenset(name for name, number in WINDOWS_FEATURES.items() if is_there(number))


def abilities_of(options: dict[str, Any]) -> frozenset[str]:
    """Return what is known of the features of the CPU that options name, by Linux's names.

    They are those in `CPUS`, and none for a CPU that is not in it. For every 64-bit Arm CPU that a
    "mtriple" names, only "neon" is known.
    """
    if str(options.get("mtriple", "")).startswith(("aarch64", "arm64")):
        return frozenset({"neon"})
    name = options.get("mcpu")
    return frozenset(next((x for x, names in CPUS.items() if name in names.split()), OLD).split())


@functools.cache
def cpu_vendor() -> str:
    """Return the maker of the CPU as Linux or Windows reports it; "" if neither does."""
    return _read_cpu("vendor_id") or os.environ.get("PROCESSOR_IDENTIFIER", "").rpartition(", ")[2]


def cpu_name() -> str:
    """Return the name of the CPU as Linux reports it; elsewhere, that of Python's `platform`."""
    return _read_cpu("model name") or platform.processor() or platform.machine()


def describe_cpu() -> str:
    """Return a text of all that the system reports about the CPU's model and features."""
    told = (f"{name}: {text}" for name, text in _read_cpu_fields().items() if name in OF_A_KIND)
    return "; ".join(told) or cpu_name()


def _read_cpu(field: str) -> str:
    """Return a field of the first core in /proc/cpuinfo; "" if the system does not report it."""
    return _read_cpu_fields().get(field, "")


@functools.cache
def _read_cpu_fields() -> dict[str, str]:
    """Return the fields of the first core in /proc/cpuinfo; empty if there is no such file."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return parse_cpuinfo(file)
    except OSError:
        return {}


def parse_cpuinfo(lines: Iterable[str]) -> dict[str, str]:
    """Return the fields of the first core from the lines of /proc/cpuinfo."""
    pairs = (line.partition(":") for line in itertools.takewhile(str.strip, lines))
    return {name.strip(): text.strip() for name, _, text in pairs}


class TvmTarget(Protocol):
    """The part of `tvm.target.Target` that this file uses."""

    kind: Any

    def export(self) -> Mapping[str, Any]:
        """Return the kind and the attributes of the target."""
        ...


def parse_target(target: str | dict[str, Any] | Target | TvmTarget) -> Target:
    """Convert a name, dict or TVM target to a Target.

    Args:
        target: one of:
            a kind: "llvm", "simt", "cuda", "rocm" or "opencl";
            a dict, such as {"kind": "llvm", "mcpu": "skylake-avx512"}, {"kind": "llvm", "mtriple":
            "aarch64-linux-gnu"} for another machine, {"kind": "cuda", "arch": "sm_90", "device": 0}
            or {"kind": "simt", "order": "backwards"}, which runs threads in reverse order;
            a Target, or a target of TVM, whose attributes are used if a dict may have them.
            The 'arch' "any" of "cuda" makes one image for all GPUs of NVIDIA from sm_80 on, the
            'mcpu' "any" of "rocm" makes images for a list of GPUs of AMD.

    Raises:
        InputError: the target is unknown, or has an invalid option.
    """
    if isinstance(target, Target):
        return target
    if type(target).__module__.partition(".")[0] == "tvm" and hasattr(target, "export"):
        target = _read_tvm_target(target)
    spec = {"kind": target} if isinstance(target, str) else target
    if not isinstance(spec, dict) or not isinstance(spec.get("kind"), str):
        use = "for two targets a list" if isinstance(target, tuple) else "'llvm'"
        raise _error(f"expected a name or a dict with 'kind', got {target!r}; use {use}")
    kind = spec["kind"]
    if kind in LATER:
        mac = ", or 'llvm' with the 'mtriple' 'aarch64-apple-macos11' for a Mac elsewhere"
        raise _error(f"{kind!r} is not supported yet; use 'llvm'{mac if kind == 'metal' else ''}")
    if " " in kind:
        advice = "write them as a dict, e.g. {'kind': 'llvm', 'mcpu': 'skylake-avx512'}"
        raise _error(f"options in the string {kind!r}; {advice}")
    if kind not in KINDS:
        raise _error(f"unknown kind {kind!r} (have: {', '.join(KINDS)})")
    order = spec.get("order", "forwards")
    if kind == "simt" and order not in ("forwards", "backwards"):
        unknown = f"option 'order' of 'simt': {order!r} is unknown"
        raise _error(f"{unknown}; use 'forwards' or 'backwards'")
    if kind == "cuda":
        _check_cuda(spec)
    device = spec.get("device", 0)
    if kind in _READ and (isinstance(device, bool) or not isinstance(device, int) or device < 0):
        raise _error(f"option 'device' of {kind!r}: {device!r} is no number of a GPU; use 0")
    named = sorted(((key, spec[key]) for key in spec if key != "kind"), key=str)
    options = ((key, tuple(x) if isinstance(x, list) else x) for key, x in named)
    return Target(kind, tuple(options))


def _read_tvm_target(target: Any) -> dict[str, Any]:
    """Return a target of TVM as a dict, without the attributes that TVM has added by itself."""
    kind = str(target.kind.name)
    if kind in LATER:
        return {"kind": kind}
    added = {"arch": "sm_50", "mcpu": "gfx900"}  # where there is no GPU
    if kind == "llvm":
        added = type(target)(kind).export()
    spec: dict[str, Any] = {"kind": kind}
    for key, value in target.export().items():
        is_read = key in _READ[kind] if kind in _READ else key not in _UNREAD
        if is_read and not key.startswith("feature.") and (key not in added or value != added[key]):
            is_list = not isinstance(value, str) and hasattr(value, "__len__")
            spec[str(key)] = list(map(str, value)) if is_list else value
    return spec


def _check_cuda(spec: dict[str, Any]) -> None:
    arch = spec.get("arch", "any")
    if not isinstance(arch, str) or not re.fullmatch(r"sm_\d+[af]?|any", arch):
        what = f"option 'arch' of 'cuda': {arch!r} is no architecture"
        raise _error(f"{what}; use 'sm_90' or 'any'")
    if arch != "any" and _number_of(arch) not in SHARED_BYTES:
        have = ", ".join(f"sm_{number}" for number in sorted(SHARED_BYTES))
        what = f"option 'arch' of 'cuda': kernels were never compiled for {arch!r} (have: {have})"
        raise _error(f"{what}; use one of them, or 'any' for all from sm_80 on")
    other = sorted(set(spec) - {"kind", "arch", "device"})
    if other:
        raise _error(f"option {other[0]!r} of 'cuda' is unknown; use 'arch' or 'device'")


def _number_of(arch: str) -> int:
    """Return the number of an architecture such as "sm_90a"; 0 if it has none."""
    return int("0" + "".join(filter(str.isdigit, arch)))


def _error(what: str) -> InputError:
    return InputError(f"build: argument 'target': {what}")
