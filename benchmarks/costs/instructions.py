"""Instructions that a row takes on processors that are not at hand, and whether margins are equal.

    python -m benchmarks costs.instructions [--models airline higgs] [--cpus neoverse-v1 x86-64-v3]

The default of each model is compiled for a CPU, exported, and run by qemu, whose log tells every
block of instructions that runs. A row's are those of 1,024 rows less those of 512, over 512. The
margins of 512 hard rows are compared with the model's own. Prints a table in Markdown, as in
docs/other_processors.md. AVX-512 is not emulated.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import tvm_forest
from benchmarks import HELPERS, models
from tvm_forest.forest.probe_rows import hard_rows

sys.path += HELPERS
from other_machines import ARM, Machine, make_program, on

X86 = ("qemu-x86_64", "-L", "/", "-cpu", "max")
MACHINES = {
    # without what qemu 7 does not emulate, and only atomics use
    "neoverse-v1": on("aarch64-linux-gnu", *ARM, mcpu="neoverse-v1", mattr=["-lse2"]),
    **{name: on("x86_64-linux-gnu", *X86, mcpu=name) for name in ("x86-64-v2", "x86-64-v3")},
}
ROWS = 512
LOG = ("-d", "in_asm,exec,nochain", "-D", "/dev/stderr")
TRANSLATED = re.compile(r"^0x([0-9a-f]+):")
RUN = re.compile(r"^Trace \d+: \S+ \[\w+/([0-9a-f]+)/")


def instructions(command: list[str]) -> int:
    """Count the instructions of a program under qemu."""
    emulator, *rest = command
    count, sizes, first = 0, dict[int, int](), 0
    command = [emulator, *LOG, *rest]
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, stdout=quiet, stderr=pipe, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("IN:"):
                first = -1
            elif found := TRANSLATED.match(line):
                at = int(found[1], 16)
                first = at if first < 0 else first
                sizes[first] = sizes.get(first, 0) + 1 if at != first else 1
            elif found := RUN.match(line):
                count += sizes[int(found[1], 16)]
    if running.returncode:
        raise SystemExit(f"{' '.join(command)} ends with status {running.returncode}")
    return count


def measure(forest: Any, machine: Machine, folder: Path) -> tuple[float, bool]:
    """Return the instructions of a row, and whether the margins of hard rows are equal."""
    program = make_program(tvm_forest.build(forest, machine.target), machine, folder)
    rows, counts = hard_rows(forest, 2 * ROWS, seed=0), []
    if forest.refuses:
        rows = np.clip(np.nan_to_num(rows), -1e30, 1e30)
    for count in (ROWS, 2 * ROWS):
        rows[:count].tofile(folder / "rows")
        counts.append(
            instructions([*program, str(count), str(folder / "rows"), str(folder / "out")])
        )
    expected = forest.predict_reference(rows[:ROWS], "margin")
    found = np.fromfile(folder / "out", expected.dtype).reshape(2 * ROWS, -1)[:ROWS]
    return (counts[1] - counts[0]) / ROWS, np.array_equal(found, expected, equal_nan=True)


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["airline", "higgs", "letters"])
    parser.add_argument("--cpus", nargs="+", default=list(MACHINES), choices=list(MACHINES))
    parser.add_argument("--cache", type=Path, default=models.CACHE, help="folder of models")
    options = parser.parse_args()
    print("| model |", " | ".join(options.cpus), "|\n|---|" + "---:|" * len(options.cpus))
    for name in options.models:
        forest = tvm_forest.load(models.get(name, options.cache).load())
        cells = []
        for mcpu in options.cpus:
            with tempfile.TemporaryDirectory() as folder:
                count, equal = measure(forest, MACHINES[mcpu], Path(folder))
            cells.append(f"{count:,.0f}" + ("" if equal else " WRONG"))
        print(f"| {name} |", " | ".join(cells), "|", flush=True)
