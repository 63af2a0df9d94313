"""Which lines and branches of each room of the package the tests reach.

    python tools/coverage_rooms.py [--jobs 2] [--again] [FILE ...]

runs the tests of `make test-all`, or of the files that are named, under coverage.py, some files at
a time, other processes that they start among them, and prints a line for each room of
`ARCHITECTURE.md`. It fails if a room has less than 95 % of its lines. What each piece has found
lies in build/coverage and is kept, so that a run that was cut goes on; `--again` starts anew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

from code_size import ROOT, read_budgets, room_of

FOLDER = ROOT / "build" / "coverage"
LEAST = 0.95
"""The share of the lines of a room that must be reached."""
FILES = 6
"""Files of tests in a piece."""
TIERS = {"short": "not gpu and not long and not rare", "long": "long and not gpu and not rare"}
NO_TESTS = 5
"""The status of pytest if a file has no test of a tier."""
PYTHON = [sys.executable, "-m"]


class Reached(NamedTuple):
    """Lines and branches of some code, and how many of them were reached."""

    lines: int = 0
    lines_reached: int = 0
    branches: int = 0
    branches_reached: int = 0

    def share(self, of: str = "lines") -> float:
        """Return the share that was reached, 1 where there is nothing to reach."""
        there: int = getattr(self, of)
        return getattr(self, f"{of}_reached") / there if there else 1.0


def list_pieces(named: list[str]) -> list[list[str]]:
    """Return the files of tests, some at a time."""
    found = sorted((ROOT / "tests").glob("*/test_*.py"))
    files = named or [path.relative_to(ROOT).as_posix() for path in found]
    return [files[start : start + FILES] for start in range(0, len(files), FILES)]


def run_piece(files: list[str], tier: str, jobs: int) -> int:
    """Run some files of tests and keep what they reach; return the exit status of pytest."""
    name = f"{tier}-{Path(files[0]).stem}"
    kept, done = FOLDER / "data" / name, FOLDER / f"{name}.done"
    if done.exists():
        return int(done.read_text())
    rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    spread = ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else []
    command = [*PYTHON, "coverage", "run", "-m", "pytest", "-q", "-m", TIERS[tier], *spread, *files]
    environment = os.environ | {"COVERAGE_FILE": str(kept / "data")}
    with (FOLDER / f"{name}.log").open("w") as log:
        status = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log
        ).returncode
    done.write_text(str(status))
    return status


def join_pieces() -> dict[str, dict[str, int]]:
    """Join what all pieces have found; return the counts of each file of the package."""
    environment = os.environ | {
        "COVERAGE_FILE": str(FOLDER / "data" / "data")
    }  # named as parts are
    folders = [str(path) for path in sorted((FOLDER / "data").iterdir()) if path.is_dir()]
    report = FOLDER / "coverage.json"
    quiet = {"cwd": ROOT, "env": environment, "check": True, "stdout": subprocess.DEVNULL}
    subprocess.run([*PYTHON, "coverage", "combine", "--keep", *folders], **quiet)
    subprocess.run([*PYTHON, "coverage", "json", "-o", str(report)], **quiet)
    files = json.loads(report.read_text(encoding="utf-8"))["files"]
    return {path: found["summary"] for path, found in files.items()}


def add_up(parts: Iterable[Reached]) -> Reached:
    """Return what was reached of all parts together."""
    return Reached(*map(sum, zip(*parts, strict=True)))


def count_rooms(files: dict[str, dict[str, int]], rooms: set[str]) -> dict[str, Reached]:
    """Add up the counts of files, room by room."""
    found: dict[str, Reached] = {}
    for path, counts in files.items():
        room = room_of(Path(path).relative_to("tvm_forest"), rooms)
        lines = counts["num_statements"], counts["covered_lines"]
        new = Reached(*lines, counts["num_branches"], counts["covered_branches"])
        found[room] = add_up([found.get(room, Reached()), new])
    return dict(sorted(found.items()))


def describe(found: dict[str, Reached]) -> str:
    """Write a line for each room."""
    rows = [
        f"{room:22} {x.lines:7,} {x.share():7.1%} {x.branches:7,} {x.share('branches'):7.1%}"
        for room, x in [*found.items(), ("all", add_up(found.values()))]
    ]
    return "\n".join(["room                     lines reached branches reached", *rows])


def find_rooms() -> dict[str, Reached]:
    """Return what was reached of each room."""
    budgets = read_budgets((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    return count_rooms(join_pieces(), set(budgets))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="forget what pieces have found")
    parser.add_argument("files", nargs="*", metavar="FILE", help="files of tests; else all")
    given = parser.parse_args()
    if given.again:
        rmtree(FOLDER, ignore_errors=True)
    for tier, files in product(TIERS, list_pieces(given.files)):
        if run_piece(files, tier, given.jobs) not in (0, NO_TESTS):
            print(f"tests fail, see build/coverage/{tier}-{Path(files[0]).stem}.log", flush=True)
    found = find_rooms()
    (FOLDER / "rooms.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(describe(found))
    low = [room for room, x in found.items() if x.share() < LEAST]
    print(*(f"{room}: less than {LEAST:.0%} of its lines" for room in low), sep="\n")
    return bool(low)


if __name__ == "__main__":
    sys.exit(main())
