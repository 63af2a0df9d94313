"""The tables of docs/testing.md; as a program, writes them from what was measured.

    python tools/testing_page.py        # after make coverage and make mutants

A table whose measurement is not in build/ stays as it is.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mutants
from code_size import ROOT
from coverage_rooms import FOLDER, TIERS, Reached, add_up

PAGE = ROOT / "docs" / "testing.md"
COLLECTED = re.compile(r"^(\d+)(?:/\d+)? tests? collected", re.MULTILINE)


def write_tiers() -> str:
    """Count the tests of each tier."""
    rows = ["| tier | tests |", "|---|---:|"]
    for name, marks in (*TIERS.items(), ("rare", "rare and not gpu")):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marks]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
        (number,) = COLLECTED.findall(found)
        rows.append(f"| {name} | {int(number):,} |")
    return "\n".join(rows)


def write_coverage(rooms: dict[str, Reached]) -> str:
    """Write what was reached of each room."""
    rows = ["| room | lines | reached | branches | reached |", "|---|---:|---:|---:|---:|"]
    named = [*((f"`{room}`", x) for room, x in rooms.items()), ("all", add_up(rooms.values()))]
    for room, x in named:
        lines, branches = f"{x.share():.1%}", f"{x.share('branches'):.1%}" if x.branches else "-"
        rows.append(f"| {room} | {x.lines:,} | {lines} | {x.branches:,} | {branches} |")
    return "\n".join(rows)


def write_mutants(found: dict[str, Any], same: dict[str, str]) -> str:
    """Write how many mutants of each room were killed."""
    head = ("room", "files", "mutants", "drawn", "killed", "change nothing", "left", "score")
    rows = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    for name, room in mutants.ROOMS.items():
        x = mutants.count(name, found, same)
        files = ", ".join(f"`{path}`" for path in room.modules)
        there = len(mutants.list_all(room))
        numbers = f"{there:,} | {x.drawn} | {x.killed} | {x.same} | {x.left} | {x.score:.1%}"
        rows.append(f"| {name} | {files} | {numbers} |")
    return "\n".join(rows)


def put(text: str, name: str, table: str) -> str:
    """Put a table between its marks."""
    between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    return between.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", text, count=1)


def main() -> None:
    text = put(PAGE.read_text(encoding="utf-8"), "tiers", write_tiers())
    rooms, found = FOLDER / "rooms.json", mutants.FOUND
    if rooms.exists():
        read = {name: Reached(*x) for name, x in json.loads(rooms.read_text()).items()}
        text = put(text, "coverage", write_coverage(read))
    if found.exists():
        tables = (json.loads(Path(x).read_text("utf-8")) for x in (found, mutants.SAME))
        text = put(text, "mutants", write_mutants(*tables))
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
