"""Small faults put into the code, one at a time: do the tests notice?

    python tests/mutants.py [--seed 1] [--room forest] [--jobs 2] [--again]
    python tests/mutants.py --only tvm_forest/nest.py 17     # one mutant, its tests' output shown

A mutant is a module with one operator, constant or condition changed. Each is tried in a forked
process, which compiles the module from its changed source and runs the tests of its room until one
fails. A mutant is killed if a test fails, or if the tests take many times as long as usual. One
that survives shows a test that is missing, or changes nothing that can be observed: why, stands in
`data/mutants_that_change_nothing.json`. What was found lies in build/mutants.json and is not tried
again; ends with status 1 if a mutant survives that nobody has explained.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from code_size import ROOT

FOUND = ROOT / "build" / "mutants.json"
SAME = Path(__file__).with_name("data") / "mutants_that_change_nothing.json"
SHARED = ("numpy", "pytest", "hypothesis", "tvm", "xgboost", "lightgbm", "sklearn.ensemble")
"""Modules that are imported once, before any fork."""
TIMES_AS_LONG = 5
"""Processor time of the tests of a mutant beside that of the tests of the code as it is."""
MEMORY = 6 << 30
MARKS = "not gpu and not long and not rare and not slow"


class Room(NamedTuple):
    """Modules whose faults the same tests should notice.

    Attributes:
        mutants: how many are drawn.
        modules: the modules or folders, below tvm_forest.
        tests: files of tests, those first that notice most.
    """

    mutants: int
    modules: tuple[str, ...]
    tests: tuple[str, ...]


PASSES = ("tighten_guards", "place_initials", "lower_walks", "lower_reductions", "privatize_sums")
STEPS = ("schedule", "directive", "loops", "fission", "regions", "reductions")
NESTS = ("schedule", "directives", "language", "memory_and_devices", "kernels")
ROOMS = {
    "nest": Room(30, ("nest.py",), NESTS),
    "schedule": Room(50, tuple(f"schedule_prims/{name}.py" for name in STEPS), NESTS),
    "forest": Room(
        50,
        ("forest/*.py", "forest/structure/*.py"),
        ("forest", "properties", "profile", "linear_trees", "vector_leaves", "categories"),
    ),
    "rewrites": Room(30, ("forest/rewrites/*.py",), ("tiling", "properties", "categories")),
    "passes": Room(
        40,
        (*(f"passes/{name}.py" for name in PASSES), "passes/ordered_sums.py"),
        ("passes", "primitives", "random_schedules", "memory_and_devices"),
    ),
    "tir_gen": Room(
        40,
        ("tir_gen/walks/hops.py", "tir_gen/links.py", "tir_gen/results.py", "tir_gen/canonical.py"),
        ("walks", "layouts", "features", "vector_leaves"),
    ),
}


class Mutant(NamedTuple):
    """One change: its file below the repository, its number there, and what it says."""

    path: str
    number: int
    line: int
    place: str
    old: str
    new: str

    @property
    def key(self) -> str:
        """What tells the mutant from others, wherever the lines are."""
        return f"{self.path} {self.place}: {self.old} -> {self.new}"


SWAPPED: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.LShift: (ast.RShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


def list_changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node is changed to, each a copy with one change."""
    match node:
        case ast.Compare(ops=[operator]):
            for other in SWAPPED.get(type(operator), ()):
                yield ast.Compare(node.left, [other()], node.comparators)
        case ast.BinOp() if not isinstance(node.left, ast.JoinedStr):
            for other in SWAPPED.get(type(node.op), ()):
                yield ast.BinOp(node.left, other(), node.right)
        case ast.BoolOp():
            parts = node.values if len(node.values) == 2 else []
            yield from (ast.BoolOp(SWAPPED[type(node.op)][0](), node.values), *parts)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.IfExp():
            yield from (node.orelse, node.body)
        case ast.Name(ctx=ast.Load()) if node.id in NAMES:
            yield ast.Name(NAMES[node.id], ast.Load())
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(not value if isinstance(value, bool) else value + 1)


def list_mutants(path: str) -> Iterator[Mutant]:
    """Yield the mutants of a file."""
    changes = _list_changes(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    for number, (node, place, change) in enumerate(changes):
        said = ast.unparse(node), ast.unparse(change)
        yield Mutant(path, number, getattr(node, "lineno", 0), place, *said)


def make(mutant: Mutant) -> ast.Module:
    """Return the module of a mutant."""
    tree = ast.parse((ROOT / mutant.path).read_text(encoding="utf-8"))
    node, _, change = next(islice(_list_changes(tree), mutant.number, None))
    _put(tree, node, ast.copy_location(copy.deepcopy(change), node))
    return ast.fix_missing_locations(tree)


def _list_changes(tree: ast.Module) -> Iterator[tuple[ast.AST, str, ast.AST]]:
    for node, place in _list_places(tree, ""):
        yield from ((node, place, change) for change in list_changes(node))


def _list_places(node: ast.AST, place: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield the expressions below a node with the function they are in; no text, no annotation."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Raise):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            here = f"{place}.{child.name}".lstrip(".") if hasattr(child, "name") else place
            if isinstance(child, ast.expr):
                yield child, here
            yield from _list_places(child, here)


def _put(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(item is old for item in value):
                setattr(parent, name, [new if item is old else item for item in value])


class Changed(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one module of the package from a changed tree."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        parts = Path(path).with_suffix("").parts
        self.package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.package else parts)
        self.path, self.tree = str(ROOT / path), tree

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        spec = importlib.machinery.ModuleSpec(name, self, origin=self.path, is_package=self.package)
        spec.has_location = True
        return spec

    def get_source(self, name: str) -> str:
        return ast.unparse(self.tree)

    def get_code(self, name: str) -> Any:
        return compile(self.tree, self.path, "exec")


def run_tests(tests: tuple[str, ...], finder: Changed | None, seconds: float, show: bool) -> int:
    """Run tests in this process, which must be a forked one; return the status of pytest."""
    import pytest

    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    if not show:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1), os.dup2(silent, 2)
    if finder is not None:
        sys.meta_path.insert(0, finder)
    files = [f"tests/test_{name}.py" for name in tests if Path(f"tests/test_{name}.py").exists()]
    options = ["-x", "-q", "-m", MARKS, "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    return int(pytest.main([*options, *files]))


def fork_tests(
    tests: tuple[str, ...], finder: Changed | None, seconds: float, show: bool = False
) -> tuple[str, float]:
    """Run tests in a forked process; return what became of them and their processor time."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = run_tests(tests, finder, seconds, show)
        finally:
            os._exit(status)
    end = time.monotonic() + 20 * seconds
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:  # it waits for something
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)
    took = used.ru_utime + used.ru_stime
    if os.WIFSIGNALED(status):
        late = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        return ("timeout" if late else "crash"), took
    return {0: "survived", 1: "failed", 2: "failed"}.get(os.WEXITSTATUS(status), "failed"), took


def draw(room: Room, seed: int) -> list[Mutant]:
    """Draw mutants of a room, the same for one seed."""
    files = [x for name in room.modules for x in sorted((ROOT / "tvm_forest").glob(name))]
    paths = [str(path.relative_to(ROOT)) for path in files]
    mutants = [mutant for path in paths for mutant in list_mutants(path)]
    rng = random.Random(f"{seed} {room.modules}")
    return rng.sample(mutants, min(room.mutants, len(mutants)))


def try_room(name: str, seed: int, found: dict[str, Any]) -> None:
    """Try the mutants of a room that were not tried before."""
    room = ROOMS[name]
    outcome, seconds = fork_tests(room.tests, None, 600)
    if outcome != "survived":
        sys.exit(f"{name}: the tests fail without any fault")
    print(f"{name}: {room.mutants} mutants, tests take {seconds:.1f} s", flush=True)
    for mutant in draw(room, seed):
        if mutant.key in found:
            continue
        changed = Changed(mutant.path, make(mutant))
        outcome, took = fork_tests(room.tests, changed, max(20.0, TIMES_AS_LONG * seconds))
        found[mutant.key] = {"room": name, "outcome": outcome, "number": mutant.number}
        FOUND.parent.mkdir(exist_ok=True)
        FOUND.write_text(json.dumps(found, indent=1), encoding="utf-8")
        line = f"{outcome:9} {took:5.1f} s {mutant.line:4} {mutant.key}"
        print(line, flush=True)


def describe(found: dict[str, Any], same: dict[str, str]) -> str:
    """Write a line for each room: mutants, killed ones, those that change nothing, the others."""
    lines = ["room       mutants killed same left  score"]
    for room in ROOMS:
        keys = [key for key, x in found.items() if x["room"] == room]
        left = [key for key in keys if found[key]["outcome"] == "survived"]
        equal = [key for key in left if key in same]
        tried, killed = len(keys) - len(equal), len(keys) - len(left)
        counts = f"{len(keys):7} {killed:6} {len(equal):4} {len(left) - len(equal):4}"
        lines.append(f"{room:10} {counts} {killed / max(1, tried):6.1%}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", choices=ROOMS, action="append")
    parser.add_argument("--again", action="store_true", help="forget what was found")
    parser.add_argument("--survivors", action="store_true", help="try survivors again")
    parser.add_argument("--only", nargs=2, metavar=("FILE", "NUMBER"))
    given = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    sys.path.insert(0, str(ROOT))
    for name in SHARED:
        importlib.import_module(name)
    if given.only:
        path, number = given.only[0], int(given.only[1])
        room = next(x for x in ROOMS.values() if any(Path(path).match(m) for m in x.modules))
        mutant = next(x for x in list_mutants(path) if x.number == number)
        print(mutant.key, *fork_tests(room.tests, Changed(path, make(mutant)), 600, show=True))
        return 0
    found = json.loads(FOUND.read_text("utf-8")) if FOUND.exists() and not given.again else {}
    same = json.loads(SAME.read_text("utf-8")) if SAME.exists() else {}
    if given.survivors:
        kept = {k: x for k, x in found.items() if x["outcome"] != "survived" or k in same}
        found.clear()
        found |= kept
    for name in given.room or ROOMS:
        try_room(name, given.seed, found)
    print(describe(found, same))
    left = [k for k, x in found.items() if x["outcome"] == "survived" and k not in same]
    print(*left, sep="\n")
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
