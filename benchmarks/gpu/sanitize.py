"""Run all kernels of the benchmark under NVIDIA's compute-sanitizer.

    python -m benchmarks gpu.sanitize [--models NAME ...]    # in a folder of `gpu.folder`

Every kernel predicts a few hundred rows, and its answers are compared (`gpu.speed --check`), three
times: memcheck looks for accesses out of bounds, racecheck for shared memory that a barrier should
guard, synccheck for barriers that some threads of a block miss. The status is 1 if a tool found
something or an answer was wrong, 2 if there is no compute-sanitizer, which is part of CUDA.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks import command, environment

TOOLS = ("memcheck", "racecheck", "synccheck")
CLEAN = "clean"
MISSING = "not run: no compute-sanitizer in PATH, CUDA_HOME or /usr/local/cuda"
HARMLESS = (CLEAN, MISSING)
FOUND = 9
"""Status by which compute-sanitizer says that it found something."""


def find_sanitizer() -> str | None:
    """Return the path of compute-sanitizer, or None."""
    homes = filter(None, (os.environ.get("CUDA_HOME"), "/usr/local/cuda"))
    places = (Path(home) / "bin" / "compute-sanitizer" for home in homes)
    there = (str(place) for place in places if place.exists())
    return shutil.which("compute-sanitizer") or next(there, None)


def sanitize(tool: str, sanitizer: str, arguments: list[str]) -> str:
    """Run the comparisons under a tool; return `CLEAN`, or what happened."""
    gpu = command("gpu.speed", "--check", "--engines", "ours")
    options = ["--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20"]
    done = subprocess.run(
        [sanitizer, *options, *gpu, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    if done.returncode == 0:
        return CLEAN
    print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    return "found something" if done.returncode == FOUND else f"status {done.returncode}"


def sanitize_all(models: list[str]) -> dict[str, str]:
    """Return what each tool says of some models, or of all if none is named."""
    sanitizer, arguments = find_sanitizer(), ["--models", *models] if models else []
    if sanitizer is None:
        return dict.fromkeys(TOOLS, MISSING)
    return {tool: sanitize(tool, sanitizer, arguments) for tool in TOOLS}


def main() -> int:
    """Run the tools, print a line for each; see the top of the file for the status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[], help="names; all that the folder holds")
    given = parser.parse_args()
    said = sanitize_all(given.models)
    print("\n".join(f"{tool}: {what}" for tool, what in said.items()))
    if MISSING in said.values():
        return 2
    return int(any(what != CLEAN for what in said.values()))
