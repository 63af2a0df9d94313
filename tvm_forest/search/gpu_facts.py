"""Facts about GPUs by the names of their architectures, for estimates.

takes: Target; gives: GpuFacts.

A target may name an architecture shared by several GPUs; then these are the facts of the one most
common in servers. A target without an architecture is assumed to be an H100, and one of OpenCL a
device of medium size.
"""

from __future__ import annotations

from typing import NamedTuple

from ..schedule_prims.devices import MAX_BLOCK_THREADS
from ..target import Target

KB = 1024


class GpuFacts(NamedTuple):
    """The figures of a GPU that decide how a batch is distributed.

    Attributes:
        processors: multiprocessors, or compute units.
        warps: groups of 32 threads that one multiprocessor holds.
        shared_bytes: shared memory of one multiprocessor.
        block_threads: most threads of a block.
    """

    processors: int = 132
    warps: int = 64
    shared_bytes: int = 228 * KB
    block_threads: int = MAX_BLOCK_THREADS


ASSUMED = GpuFacts()
ANY_DEVICE = GpuFacts(32, 32, 64 * KB, 256)
"""Facts assumed of an OpenCL device of unknown make and size; nearly all allow such blocks."""

KNOWN = {
    "sm_80": GpuFacts(108, 64, 164 * KB),
    "sm_86": GpuFacts(84, 48, 100 * KB),
    "sm_89": GpuFacts(142, 48, 100 * KB),
    "sm_90": ASSUMED,
    "sm_100": GpuFacts(148, 64, 228 * KB),
    "sm_120": GpuFacts(188, 48, 100 * KB),
    "gfx90a": GpuFacts(104, 64, 64 * KB),
    "gfx942": GpuFacts(304, 64, 64 * KB),
    "gfx950": GpuFacts(256, 64, 160 * KB),
    "gfx1100": GpuFacts(96, 32, 64 * KB),
    "gfx1201": GpuFacts(64, 32, 64 * KB),
}


def facts_of(target: Target) -> GpuFacts:
    """Return the facts of a target's architecture, or the assumed ones."""
    if target.kind == "opencl":
        return ANY_DEVICE
    options = dict(target.options)
    name = str(options.get("arch") or options.get("mcpu") or "")
    return KNOWN.get(name.rstrip("af") if name.startswith("sm_") else name, ASSUMED)
