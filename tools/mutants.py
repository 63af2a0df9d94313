"""Small faults put into the code, one at a time: do the tests notice?

    python tools/mutants.py [--seed 1] [--room forest] [--again | --survivors]
    python tools/mutants.py --only tvm_forest/layouts/array.py 17   # one mutant, its tests' output

A mutant is a module with one operator, constant or condition changed. The tests of its room are
collected once. Each mutant is tried in a forked process, which gives the functions of the module
their changed code and runs the tests, quick ones first, until one fails. If none does, another
process loads the module from its changed source. A mutant is killed if a test fails, or if the
tests take many times as long as usual. One that survives shows a test that is missing, or changes
nothing that can be observed: why, stands in `tests/data/mutants_that_change_nothing.json`. What was
found lies in build/mutants.json and is not tried again; `--survivors` tries those again that
survived.
Ends with status 1 if a mutant survives that nobody has explained.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
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
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from code_size import ROOT

FOUND = ROOT / "build" / "mutants.json"
SAME = Path(__file__).resolve().parents[1] / "tests" / "data" / "mutants_that_change_nothing.json"
SHARED = ("numpy", "pytest", "hypothesis", "tvm", "xgboost", "lightgbm", "sklearn.ensemble")
"""Modules that are imported once, before any fork."""
TIMES_AS_LONG = 5
"""Processor time of the tests of a mutant beside that of the tests of the code as it is."""
MEMORY = 10 << 30
"""Most bytes of a process; one test asks for 8 GiB, of which it touches few."""
SHORT = "not gpu and not long and not rare"
QUICK = f"{SHORT} and not slow"


class Room(NamedTuple):
    """Modules whose faults the same tests should notice.

    Attributes:
        mutants: how many are drawn.
        modules: the modules or folders, below tvm_forest.
        tests: files of tests.
        marks: which of their tests are run.
    """

    mutants: int
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    marks: str = QUICK


PASSES = ("tighten_guards", "place_initials", "lower_walks", "lower_reductions", "privatize_sums")
STEPS = ("schedule", "directive", "loops", "fission", "regions", "reductions")
NESTS = ("nest", "schedule", "directives", "language", "memory_and_devices")
FORESTS = (
    *("forest", "encoder", "properties", "profile", "support"),
    *("linear_trees", "vector_leaves", "categories"),
)
ROOMS = {
    "nest": Room(30, ("schedule_prims/nest/*.py",), NESTS),
    "schedule": Room(50, tuple(f"schedule_prims/{name}.py" for name in STEPS), NESTS),
    "forest": Room(50, ("forest/*.py", "forest/structure/*.py"), FORESTS),
    "rewrites": Room(20, ("forest/rewrites/*.py",), ("tiling", "properties", "categories")),
    "passes": Room(
        30,
        (*(f"passes/{name}.py" for name in PASSES), "passes/ordered_sums.py"),
        ("passes", "primitives", "random_schedules", "kernels"),
        SHORT,
    ),
    "tir_gen": Room(
        30,
        ("tir_gen/walks/hops.py", "tir_gen/links.py", "runtime/results.py", "tir_gen/canonical.py"),
        ("passes", "compiled_links", "primitives", "walks", "vector_leaves"),
        SHORT,
    ),
}


class Mutant(NamedTuple):
    """One change: its file below the repository, its number there, and what it says.

    Attributes:
        place: the function that it is in.
        nth: how many such changes of that function came before, and this one.
    """

    path: str
    number: int
    line: int
    place: str
    old: str
    new: str
    nth: int

    @property
    def key(self) -> str:
        """What tells the mutant from others, wherever the lines are."""
        again = f" #{self.nth}" if self.nth > 1 else ""
        return f"{self.path} {self.place}: {self.old} -> {self.new}{again}"


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
    seen: Counter[tuple[str, str, str]] = Counter()
    for number, (node, place, change) in enumerate(changes):
        said = place, ast.unparse(node), ast.unparse(change)
        seen[said] += 1
        yield Mutant(path, number, getattr(node, "lineno", 0), *said, seen[said])


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
        if self.package:
            spec.submodule_search_locations = [str(Path(self.path).parent)]
        return spec

    def get_source(self, name: str) -> str:
        return ast.unparse(self.tree)

    def get_code(self, name: str) -> Any:
        return compile(self.tree, self.path, "exec")


class Trial:
    """A plugin of pytest that collects the tests once and tries mutants in forked processes."""

    def __init__(self, room: str, seed: int, found: dict[str, Any]) -> None:
        self.room, self.seed, self.found = room, seed, found

    def pytest_runtestloop(self, session: Any) -> bool:
        folder = FOUND.parent
        folder.mkdir(exist_ok=True)
        times = folder / f"mutants_{self.room}.times"
        outcome, seconds = fork(lambda: run_collected(session, times), 900)
        if outcome != "survived":
            sys.exit(f"{self.room}: the tests fail without any fault")
        took = json.loads(times.read_text())
        session.items.sort(key=lambda item: took[item.nodeid])
        room = ROOMS[self.room]
        print(f"{self.room}: {len(session.items)} tests, {seconds:.1f} s", flush=True)
        for mutant in draw(room, self.seed):
            if mutant.key not in self.found:
                self.try_one(session, mutant, max(20.0, TIMES_AS_LONG * seconds))
        return True

    def try_one(self, session: Any, mutant: Mutant, seconds: float) -> None:
        code = compile(make(mutant), str(ROOT / mutant.path), "exec")
        replaced = find_replaced(code)
        outcome, took = "survived", 0.0
        if replaced:
            outcome, took = fork(lambda: run_changed(session, replaced), seconds)
        keep(self.found, mutant, outcome, took, {"room": self.room, "seconds": seconds})


def keep(
    found: dict[str, Any], mutant: Mutant, outcome: str, took: float, more: dict[str, Any]
) -> None:
    """Keep what became of a mutant."""
    found[mutant.key] = {**more, "outcome": outcome, "number": mutant.number}
    FOUND.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(f"{outcome:9} {took:5.1f} s {mutant.line:4} {mutant.key}", flush=True)


def try_anew(found: dict[str, Any], same: dict[str, str]) -> None:
    """Try survivors in processes that load their module from its changed source.

    So tests see the change in what they make when they are collected, too.
    """
    for key, x in list(found.items()):
        if x["outcome"] != "survived" or x.get("anew") or key in same:
            continue
        path = key.partition(" ")[0]
        mutant = next(m for m in list_mutants(path) if m.key == key and m.number == x["number"])
        changed, room = Changed(path, make(mutant)), ROOMS[x["room"]]
        outcome, took = fork(partial(run_anew, room, changed), 2 * x["seconds"])
        keep(found, mutant, outcome, took, {**x, "anew": True})


def find_replaced(code: CodeType) -> list[tuple[FunctionType, CodeType]]:
    """Return the functions of a module that is loaded whose code changes, each with the new one.

    There is none if the change is outside of functions.
    """
    path, new = code.co_filename, {}
    for inner in _list_codes(code):
        new[inner.co_name, inner.co_firstlineno] = inner
    gc.unfreeze()  # `conftest.py` hides what lives as long as the tests
    functions = [
        x
        for x in gc.get_objects()
        if isinstance(x, FunctionType) and x.__code__.co_filename == path
    ]
    gc.freeze()
    pairs = [(x, new.get((x.__code__.co_name, x.__code__.co_firstlineno))) for x in functions]
    changed = [(x, y) for x, y in pairs if y is not None and not _are_alike(x.__code__, y)]
    return [(x, y) for x, y in changed if x.__code__.co_freevars == y.co_freevars]


def _list_codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _list_codes(inner)


def _are_alike(one: CodeType, other: CodeType) -> bool:
    parts = [
        [x if not isinstance(x, CodeType) else None for x in code.co_consts]
        for code in (one, other)
    ]
    inner = zip(_list_codes(one), _list_codes(other), strict=False)
    same = (one.co_code, one.co_names, repr(parts[0])) == (
        *(other.co_code, other.co_names),
        repr(parts[1]),
    )
    return same and all(_are_alike(x, y) for x, y in inner)


def run_collected(session: Any, times: Path) -> int:
    """Run all tests that were collected, and write how long each takes."""
    import pytest

    took: dict[str, float] = {item.nodeid: 0.0 for item in session.items}

    class Clock:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            took[report.nodeid] += report.duration

    session.config.pluginmanager.register(Clock())
    status = _run_items(session)
    times.write_text(json.dumps(took))
    return status


def run_changed(session: Any, replaced: list[tuple[FunctionType, CodeType]]) -> int:
    """Run the tests that were collected with changed functions, until one fails."""
    for function, code in replaced:
        function.__code__ = code
    return _run_items(session)


def _run_items(session: Any) -> int:
    for item, following in zip(session.items, [*session.items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


def run_anew(room: Room, changed: Changed) -> int:
    """Run tests in a process that has not loaded the package; return the status of pytest."""
    sys.meta_path.insert(0, changed)
    return run_pytest(room, "-x")


def run_pytest(room: Room, *options: str, plugins: Any = ()) -> int:
    """Run the tests of a room in this process."""
    import pytest

    files = [str(x) for name in room.tests for x in ROOT.glob(f"tests/*/test_{name}.py")]
    without = [
        x for name in ("cacheprovider", "faulthandler", "xdist") for x in ("-p", f"no:{name}")
    ]
    return int(
        pytest.main(["-q", "-s", "-m", room.marks, *without, *options, *files], plugins=[*plugins])
    )


def fork(work: Callable[[], int], seconds: float, show: bool = False) -> tuple[str, float]:
    """Do work in a forked process; return what became of it and its processor time.

    Args:
        work: returns 0 if the mutant survives.
        seconds: most processor time; many times as much may pass.
        show: whether what the tests write is shown.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 5))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            if not show:
                silent = os.open(os.devnull, os.O_WRONLY)
                os.dup2(silent, 1), os.dup2(silent, 2)
            status = work()
        finally:
            os._exit(status)
    end = time.monotonic() + 20 * seconds
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:  # it waits for something
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.01)
    took = used.ru_utime + used.ru_stime
    if os.WIFSIGNALED(status):
        late = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        return ("timeout" if late else "crash"), took
    return ("failed" if os.WEXITSTATUS(status) else "survived"), took


def list_all(room: Room) -> list[Mutant]:
    """Return all mutants of a room."""
    files = [x for name in room.modules for x in sorted((ROOT / "tvm_forest").glob(name))]
    return [mutant for path in files for mutant in list_mutants(str(path.relative_to(ROOT)))]


def draw(room: Room, seed: int) -> list[Mutant]:
    """Draw mutants of a room, the same for one seed."""
    mutants = list_all(room)
    rng = random.Random(f"{seed} {room.modules}")
    return rng.sample(mutants, min(room.mutants, len(mutants)))


def try_room(name: str, seed: int, found: dict[str, Any]) -> dict[str, Any]:
    """Try the mutants of a room that were not tried before; return what is found by then."""
    plugin = Trial(name, seed, found)
    outcome, _ = fork(lambda: run_pytest(ROOMS[name], plugins=[plugin]), 1e5, show=True)
    if outcome != "survived":
        sys.exit(f"{name}: the tests fail without any fault")
    return read_found()


def read_found() -> dict[str, Any]:
    """Return what was found so far, by mutant."""
    return json.loads(FOUND.read_text("utf-8")) if FOUND.exists() else {}


class Counts(NamedTuple):
    """What became of the mutants of a room.

    Attributes:
        drawn: mutants that were tried.
        killed: those that the tests notice.
        same: those that change nothing that can be observed.
        left: those that survive and should not.
    """

    drawn: int
    killed: int
    same: int
    left: int

    @property
    def score(self) -> float:
        """The share of killed ones among those that change something."""
        return self.killed / max(1, self.drawn - self.same)


def count(room: str, found: dict[str, Any], same: dict[str, str]) -> Counts:
    """Count what became of the mutants of a room."""
    keys = [key for key, x in found.items() if x["room"] == room]
    survived = [key for key in keys if found[key]["outcome"] == "survived"]
    equal = sum(key in same for key in survived)
    return Counts(len(keys), len(keys) - len(survived), equal, len(survived) - equal)


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
        changed = Changed(path, make(mutant))
        print(mutant.key, *fork(lambda: run_anew(room, changed), 600, show=True))
        return 0
    if given.again:
        FOUND.unlink(missing_ok=True)
    found = read_found()
    same = json.loads(SAME.read_text("utf-8")) if SAME.exists() else {}
    if given.survivors:
        found = {k: x for k, x in found.items() if x["outcome"] != "survived" or k in same}
    for name in given.room or ROOMS:
        found = try_room(name, given.seed, found)
    try_anew(found, same)
    for name in ROOMS:
        x = count(name, found, same)
        print(f"{name:10} {x.killed:3} of {x.drawn:3} killed, {x.same} same: {x.score:.1%}")
    left = [k for k, x in found.items() if x["outcome"] == "survived" and k not in same]
    print(*left, sep="\n")
    return bool(left)


if __name__ == "__main__":
    sys.exit(main())
