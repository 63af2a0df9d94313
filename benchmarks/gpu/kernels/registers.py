"""Compile the kernels of every recipe for GPUs, and list what they need of a GPU.

    python -m benchmarks gpu.kernels.registers    # or: make gpu-code; needs nvcc, and no GPU

Writes results/gpu_code.md. Ends with status 1 if a comparison would flush subnormal numbers.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import tvm_forest
from benchmarks import RESULTS
from benchmarks.models.published import published
from tvm_forest import Schedule
from tvm_forest.errors import ForestError
from tvm_forest.runtime.gpu.cuda_compiler import OPTIONS, find_nvcc
from tvm_forest.schedule_prims import recipes

PAGE = RESULTS / "gpu_code.md"
HEAD = """\
# What kernels need of a GPU

Written by `make gpu-code`: the kernels of `predict` for `airline` (100 trees of depth 8), in every
recipe for GPUs and every layout for whole nodes, compiled by nvcc. A cell gives registers of a
thread / bytes of shared memory of a block / bytes spilled to memory, of the kernel that needs most.
"""
ARCHITECTURES = (80, 90, 120)
LAYOUTS = ("array", "packed", "ranked", "reorg", "sparse")
SCHEDULES: dict[str, Callable[[Schedule], Schedule]] = {
    "gpu_straight_lines": lambda s: recipes.gpu_straight_lines(s, at=2),
    "tahoe_direct": recipes.tahoe_direct,
    "tahoe_shared_data": recipes.tahoe_shared_data,
    "tahoe_shared_data_rows": recipes.tahoe_shared_data_rows,
    "tahoe_shared_forest": lambda s: recipes.tahoe_shared_forest(s, fit=5),
    "tahoe_shared_partial_forest": lambda s: recipes.tahoe_shared_partial_forest(s, fit=5),
    "rapids_fil": recipes.rapids_fil,
    "gpu_template": recipes.gpu_template,
    "gpu_template, shuffles": lambda s: recipes.gpu_template(s, shared="shuffle"),
    "gpu_template, blocks of trees": lambda s: recipes.gpu_template(
        s, shared="atomic", tree_blocks=4
    ),
}
USED = re.compile(
    r"for '(?P<arch>sm_\d+)'.*?bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.S,
)


def main() -> int:
    """Print a table; write it too if asked."""
    parser = argparse.ArgumentParser(description="registers and memory of all kernels for GPUs")
    parser.add_argument("--out", type=Path, default=PAGE, help="Markdown file to write")
    options = parser.parse_args()
    start = tvm_forest.new_schedule(published("airline"))
    head = "| recipe | layout |" + "".join(f" sm_{a} |" for a in ARCHITECTURES)
    lines, flushing = [head, "|---|---|" + "---|" * len(ARCHITECTURES)], 0
    for name, write in SCHEDULES.items():
        for layout in LAYOUTS:
            try:
                cells, found = measured(write(start).represent_as(layout))
            except ForestError as error:
                cells, found = [str(error).split("; ")[0]], 0
            flushing += found
            lines.append(f"| `{name}` | {layout} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    said = f"{flushing} comparisons flush subnormal numbers."
    options.out.write_text("\n".join([HEAD, *lines, "", said, ""]), encoding="utf-8")
    print(said)
    return 1 if flushing else 0


def measured(schedule: Schedule) -> tuple[list[str], int]:
    """Return a cell for each architecture, and how many comparisons flush subnormal numbers."""
    library = tvm_forest.build(published("airline"), "cuda", schedule, exact=False).library
    nvcc = find_nvcc()
    if nvcc is None:
        raise SystemExit("no nvcc found; install CUDA's, or pip install nvidia-cuda-nvcc")
    targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES]
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "kernels.cu")
        text.write_text(library.source, encoding="utf-8")
        command = [nvcc, "-fatbin", "-std=c++17", "-Xptxas", "-v", "--keep", f"--keep-dir={folder}"]
        command += [*targets, *OPTIONS, "-o", f"{folder}/kernels.fatbin", str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        ptx = "".join(path.read_text() for path in Path(folder).glob("*.ptx"))
    assert "setp." in ptx, "nvcc keeps its PTX"
    return cells_of(done.stderr), len(re.findall(r"setp\.\w+\.ftz", ptx))


def cells_of(said: str) -> list[str]:
    """Return what ptxas says, as a cell for each architecture."""
    most: dict[str, tuple[int, int, int]] = {}
    for part in said.split("Compiling entry function")[1:]:
        use = USED.search(part)
        assert use is not None, part
        shared = re.search(r"(\d+) bytes smem", use["rest"])
        spilled = int(use["stores"]) + int(use["loads"])
        new = (int(use["registers"]), int(shared[1]) if shared else 0, spilled)
        old = most.get(use["arch"], (0, 0, 0))
        most[use["arch"]] = tuple(map(max, old, new))  # type: ignore[assignment]
    return [" / ".join(map(str, most[f"sm_{a}"])) for a in ARCHITECTURES]
