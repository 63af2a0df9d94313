"""List what the kernels of every recipe need of AMD's GPUs; neither ROCm nor a GPU is needed.

    python -m benchmarks gpu.kernels.rocm                 # needs ld.lld, or ziglang

Writes results/rocm_code.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tvm_forest
from benchmarks import RESULTS
from benchmarks.gpu.kernels.amd import read_kernels
from benchmarks.gpu.kernels.registers import LAYOUTS, SCHEDULES
from benchmarks.models.published import published
from tvm_forest import Schedule
from tvm_forest.errors import ForestError
from tvm_forest.targets.rocm import DEFAULT_GPUS as GPUS

NEEDS = (".vgpr_count", ".sgpr_count", ".group_segment_fixed_size")
PAGE = RESULTS / "rocm_code.md"
HEAD = """\
# What kernels need of a GPU of AMD

Written by `python -m benchmarks gpu.kernels.rocm`: the kernels of `predict` for `airline` (100
trees of depth 8), in every recipe for GPUs and every layout for whole nodes. A cell gives vector
registers / scalar registers / bytes of shared memory of a block / spilled registers, each of the
kernel that needs most.
"""


def main() -> None:
    """Print a table; write it too if asked."""
    parser = argparse.ArgumentParser(description="registers and memory of all kernels for ROCm")
    parser.add_argument("--out", type=Path, default=PAGE, help="Markdown file to write")
    options = parser.parse_args()
    start = tvm_forest.new_schedule(published("airline"))
    lines = ["| recipe | layout |" + "".join(f" {gpu} |" for gpu in GPUS)]
    lines.append("|---|---|" + "---|" * len(GPUS))
    for name, write in SCHEDULES.items():
        for layout in LAYOUTS:
            cells = [measured(write(start).represent_as(layout), gpu) for gpu in GPUS]
            lines.append(f"| `{name}` | {layout} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    options.out.write_text("\n".join([HEAD, *lines, ""]), encoding="utf-8")


def measured(schedule: Schedule, gpu: str) -> str:
    """Return what the kernels for a GPU need, or why there are none."""
    target = {"kind": "rocm", "mcpu": gpu}
    try:
        library = tvm_forest.build(published("airline"), target, schedule, exact=False).library
    except ForestError as error:
        return str(error).splitlines()[0].partition("; ")[0]
    kernels = read_kernels(library.images[gpu]).values()
    assert not any(kernel.flushes_denormals for kernel in kernels)
    needs = ((*(kernel.metadata[key] for key in NEEDS), kernel.spills) for kernel in kernels)
    return " / ".join(str(max(values)) for values in zip(*needs, strict=True))
