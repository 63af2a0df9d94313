"""Scheduled functions that are compiled in another process, by what they say themselves.

    python tools/scheduled_modules.py --cpu 400 --simt 100

Schedules are drawn as in `random_schedules.py`, and replayed on the canonical functions. A second
process is given these as JSON and nothing else. What it lowers must be equal, text for text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_FOREST_CACHE", "off")
os.environ.setdefault("TVM_FOREST_MACHINE", "off")

import tvm

from tvm_forest import compiler
from tvm_forest.errors import ForestError
from tvm_forest.passes.reading.adopt import adopt_loops, read_schedule
from tvm_forest.schedule_prims import Schedule
from tvm_forest.target import parse_target

TARGETS = {"cpu": {"kind": "llvm", "mcpu": "x86-64-v3"}, "simt": "simt"}


def schedule_functions(forest: Any, sch: Schedule, device: str = "cpu") -> dict[str, Any]:
    """Return the functions of a model behind the directives, each as a module, by their names."""
    return list_scheduled(compiler.lower(forest, sch, parse_target(TARGETS[device])))


def list_scheduled(lowered: compiler.Lowered) -> dict[str, Any]:
    """Return the functions behind the directives, each as a module, by their names."""
    scheduled = lowered.stages["schedule"].functions
    return {x.name_hint: tvm.IRModule({"main": func}) for x, func in scheduled.items()}


def digest(functions: dict[str, Any]) -> dict[str, str]:
    """Return a digest of the text of each function."""
    texts = {x: compiler.to_text(tvm.IRModule({x: func})) for x, func in functions.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def lower_text(name: str, text: str, device: str) -> dict[str, str]:
    """Lower a function that came as JSON; return the digests of what it becomes."""
    func = adopt_loops(tvm.ir.load_json(text)["main"])
    read_schedule(func)  # which checks it
    return digest(compiler.lower_scheduled(func, name, parse_target(TARGETS[device])))


def list_cases(device: str, seeds: range) -> Iterator[dict[str, Any]]:
    """Yield scheduled functions as JSON, each with the digests of what this process makes of it."""
    from random_schedules import drawn_for  # with all libraries, which the other process needs not

    for seed in seeds:
        forest, sch = drawn_for(device, seed)
        try:
            lowered = compiler.lower(forest, sch, parse_target(TARGETS[device]))
        except ForestError:
            continue
        mine = {x.name_hint: func for x, func in lowered.after.functions.items()}
        for name, mod in list_scheduled(lowered).items():
            names = [x for x in mine if x in (name, name + compiler.PARALLEL)]
            wanted = digest({x: mine[x] for x in names})
            text = compiler.to_text(mod)
            yield {"of": f"{device} {seed}", "name": name, "device": device, "text": text} | {
                "wanted": wanted
            }


def list_differences(cases: list[dict[str, Any]]) -> list[str]:
    """Lower all functions in one other process; return those that become something else there."""
    program = [sys.executable, str(Path(__file__)), "--child"]
    lines = "\n".join(map(json.dumps, cases))
    found = subprocess.run(program, input=lines, check=True, capture_output=True, text=True)
    return found.stdout.splitlines()


def answer() -> None:
    """Read functions, and print those that are not lowered as wanted."""
    for line in sys.stdin:
        case = json.loads(line)
        try:
            got = lower_text(case["name"], case["text"], case["device"])
        except ForestError as error:
            print(case["of"], case["name"], "refused:", " | ".join(str(error).splitlines()[:12]))
            continue
        if got != case["wanted"]:
            print(case["of"], case["name"], sorted(got), "is not", sorted(case["wanted"]))


def main() -> int:
    """Compare as many schedules as asked for; return how many functions differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", action="store_true")
    for device in TARGETS:
        parser.add_argument(f"--{device}", type=int, default=0)
    options = parser.parse_args()
    if options.child:
        answer()
        return 0
    wrong = 0
    for device in TARGETS:
        for first in range(0, getattr(options, device), 50):
            seeds = range(first, min(first + 50, getattr(options, device)))
            cases = list(list_cases(device, seeds))
            different = list_differences(cases)
            wrong += len(different)
            print(f"{device} {seeds}: {len(cases)} functions", *different, sep="\n", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
